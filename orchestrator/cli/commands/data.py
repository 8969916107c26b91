"""`depthrate data`: the data sets: what is here, and getting what is not."""

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
    """There is no data set of this name, or none that could be fetched."""


class DownloadError(Exception):
    """A file could not be had from its publisher; the message says which file to put where."""


@dataclass(frozen=True)
class DatasetState:
    """One data set and whether it is there."""

    name: str
    num_samples: int
    num_classes: int
    what: str
    """The shape of its images, or `text`."""
    state: str
    """`here`, `incomplete` or `missing`."""
    where: str
    """The paths that are read, or what is wrong."""


def print_datasets(data: DataFolder) -> None:
    """Print one row a data set."""
    console = make_console()
    console.print(f"data sets at {data.url} (DEPTHRATE_DATA)")
    rows = [[d.name, d.num_samples, d.num_classes, d.what, d.state, d.where] for d in list_datasets(data)]
    print_table(console, ["data set", "samples", "classes", "a sample", "state", "where"], rows)


def fetch_and_print(name: str, data: DataFolder) -> bool:
    """Download a data set, name its files, and return whether it is whole.

    Raises:
        UnknownDatasetError: there is no such data set.
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
    """Look for the files of every data set; nothing is read."""
    states = []
    for name, info in PUBLISHED.items():
        what = "text" if info.image_shape is None else " x ".join(map(str, info.image_shape))
        try:
            located = check_dataset(name, data)
            state, where = "here", "comes with depthrate" if located is None else ", ".join(located.where)
        except IncompleteDatasetError as error:
            state, where = (
                "incomplete",
                f"lacks {error.missing[0]}" + (f" and {len(error.missing) - 1} more" if len(error.missing) > 1 else ""),
            )
        except DatasetError:
            state, where = "missing", f"depthrate data fetch {name}"
        states.append(DatasetState(name, info.num_samples, info.num_classes, what, state, where))
    return states


def fetch_dataset(name: str, data: DataFolder) -> Iterator[str]:
    """Download what is missing of a data set, and yield the path of each file as it arrives, its checksum right.

    Raises:
        UnknownDatasetError: there is no such data set.
        DownloadError: a file cannot be had; those that came before it stay.
    """
    if name not in DOWNLOADS:
        raise UnknownDatasetError(
            f"data set {name!r} cannot be fetched{nearest(name, DOWNLOADS)}; allowed: {', '.join(DOWNLOADS)}"
        )
    for download in DOWNLOADS[name]:
        if data.store.size(download.path) is None:
            _fetch(download, data)
            yield download.path


def _fetch(download: Download, data: DataFolder) -> None:
    import pooch  # here: only this needs it

    pooch.get_logger().setLevel("WARNING")
    folder, _, file = download.path.rpartition("/")
    with _landing_place(data, folder) as landing:
        try:
            arrived = pooch.retrieve(download.url, known_hash=f"sha256:{download.sha256}", fname=file, path=landing)
        except (OSError, ValueError) as error:  # no network, no such file; another checksum
            raise DownloadError(
                f"cannot get {download.url}: {type(error).__name__}: {error}; get {file} (sha256 {download.sha256}) by other "
                f"means and put it at {data.store.full_path(download.path)}"
            ) from error
        if not data.store.is_local:
            data.store.write(download.path, Path(arrived).read_bytes())


@contextmanager
def _landing_place(data: DataFolder, folder: str) -> Iterator[str]:
    """Give a local folder to download into: the very place where that is local, so that a large file is not copied."""
    place = nullcontext(data.store.full_path(folder)) if data.store.is_local else tempfile.TemporaryDirectory()
    with place as landing:
        yield landing


command = declared_group(__doc__)


@command.declared("list")
def show_list() -> None:
    """Show which data sets are at DEPTHRATE_DATA, and which files of them are read."""
    print_datasets(open_data_folder())


@command.declared("fetch")
@click.argument("name", help="A data set: its name in depthrate data list.")
def fetch(name: str) -> int:
    """Download a data set from its publisher to DEPTHRATE_DATA, checksums checked."""
    return 0 if fetch_and_print(name, open_data_folder()) else 1
