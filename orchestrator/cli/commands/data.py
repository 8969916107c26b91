"""`depthrate data`: list the data sets, download missing ones."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import click

from depthrate.orchestrator.cli.options import declared_group
from depthrate.orchestrator.console.tables import make_console, print_line, print_table
from depthrate.storage.files.data_folder import DataFolder, open_data_folder
from depthrate.tasks.data.downloads import DOWNLOADS, Download
from depthrate.tasks.data.published import PUBLISHED, check_dataset
from depthrate.tasks.data.sources import DatasetError, IncompleteDatasetError
from depthrate.tasks.parameters import nearest


class UnknownDatasetError(ValueError):
    """The data set does not exist or cannot be downloaded."""


class DownloadError(Exception):
    """A download failed. The message names the file and where to put it."""


@dataclass(frozen=True)
class DatasetState:
    """A data set and the state of its files."""

    name: str
    num_samples: int
    num_classes: int
    sample: str
    """Shape of an image, or `text`."""
    state: str
    """`here`, `incomplete` or `missing`."""
    details: str
    """Paths of the files, or what is missing."""


def print_datasets(data: DataFolder) -> None:
    """Print one row per data set."""
    console = make_console()
    console.print(f"data sets at {data.url} (DEPTHRATE_DATA)")
    rows = [[d.name, d.num_samples, d.num_classes, d.sample, d.state, d.details] for d in list_datasets(data)]
    print_table(console, ["data set", "samples", "classes", "sample", "state", "files"], rows)


def fetch_and_print(name: str, data: DataFolder) -> bool:
    """Download a data set, print its files, and return whether all arrived.

    Raises:
        UnknownDatasetError: The data set is unknown.
    """
    try:
        for path in fetch_dataset(name, data):
            print_line(f"got {data.store.full_path(path)}")
    except DownloadError as error:
        print_line(f"depthrate: {error}", stderr=True)
        return False
    print_line(f"{name} is at {data.url}")
    return True


def list_datasets(data: DataFolder) -> list[DatasetState]:
    """Check which files of every data set exist, without reading them."""
    states = []
    for name, info in PUBLISHED.items():
        sample = "text" if info.image_shape is None else " x ".join(map(str, info.image_shape))
        try:
            located = check_dataset(name, data)
            state, details = "here", "included in depthrate" if located is None else ", ".join(located.where)
        except IncompleteDatasetError as error:
            state, details = (
                "incomplete",
                f"missing: {error.missing[0]}"
                + (f" and {len(error.missing) - 1} more" if len(error.missing) > 1 else ""),
            )
        except DatasetError:
            state, details = "missing", f"depthrate data fetch {name}"
        states.append(DatasetState(name, info.num_samples, info.num_classes, sample, state, details))
    return states


def fetch_dataset(name: str, data: DataFolder) -> Iterator[str]:
    """Download the missing files of a data set and yield the path of each once its checksum is verified.

    Raises:
        UnknownDatasetError: The data set is unknown.
        DownloadError: A download failed. Earlier files are kept.
    """
    if name not in DOWNLOADS:
        raise UnknownDatasetError(
            f"data set {name!r} cannot be downloaded{nearest(name, DOWNLOADS)}. Allowed: {', '.join(DOWNLOADS)}"
        )
    for download in DOWNLOADS[name]:
        if data.store.size(download.path) is None:
            _fetch(download, data)
            yield download.path


def _fetch(download: Download, data: DataFolder) -> None:
    import pooch  # slow to import, and only needed here

    pooch.get_logger().setLevel("WARNING")
    folder, _, file = download.path.rpartition("/")
    with _download_folder(data, folder) as landing:
        try:
            arrived = pooch.retrieve(download.url, known_hash=f"sha256:{download.sha256}", fname=file, path=landing)
        except (OSError, ValueError) as error:  # no network, no such file, or another checksum
            raise DownloadError(
                f"cannot download {download.url}: {type(error).__name__}: {error}. Get {file} (sha256 {download.sha256}) by "
                f"other means and save it as {data.store.full_path(download.path)}"
            ) from error
        if not data.store.is_local:
            data.store.write(download.path, Path(arrived).read_bytes())


@contextmanager
def _download_folder(data: DataFolder, folder: str) -> Iterator[str]:
    """Yield a local folder to download to: the final one if it is local, so that large files are not copied."""
    context = nullcontext(data.store.full_path(folder)) if data.store.is_local else tempfile.TemporaryDirectory()
    with context as landing:
        yield landing


command = declared_group(__doc__)


@command.declared("list")
def show_list() -> None:
    """List the data sets and their files in DEPTHRATE_DATA."""
    print_datasets(open_data_folder())


@command.declared("fetch")
@click.argument("name", help="Name of a data set, from depthrate data list.")
def fetch(name: str) -> int:
    """Download a data set from its publisher to DEPTHRATE_DATA and verify its checksums."""
    return 0 if fetch_and_print(name, open_data_folder()) else 1
