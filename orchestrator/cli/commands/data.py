"""`depthrate data`: list the data sets, download missing ones."""

import tempfile
from contextlib import nullcontext
from pathlib import Path

import click

from depthrate.orchestrator.cli.options import declared_group
from depthrate.orchestrator.console.tables import make_console, print_line, print_table
from depthrate.storage.files.data_folder import DataFolder, open_data_folder
from depthrate.tasks.data.fetch import DownloadError, fetch_missing
from depthrate.tasks.data.published import PUBLISHED, check_dataset
from depthrate.tasks.data.sources import DatasetError, IncompleteDatasetError

command = declared_group(__doc__)


@command.declared("list")
def show_list() -> None:
    """List the data sets and their files in DEPTHRATE_DATA."""
    data, console = open_data_folder(), make_console()
    console.print(f"data sets at {data.url} (DEPTHRATE_DATA)")
    rows = []
    for name, info in PUBLISHED.items():
        sample = "text" if info.image_shape is None else " x ".join(map(str, info.image_shape))
        rows.append([name, info.num_samples, info.num_classes, sample, *_state(name, data)])
    print_table(console, ["data set", "samples", "classes", "sample", "state", "files"], rows)


def _state(name: str, data: DataFolder) -> tuple[str, str]:
    """Return whether a data set's files exist, without reading them, and a description of the files or of the missing ones."""
    try:
        located = check_dataset(name, data)
    except IncompleteDatasetError as error:
        more = f" and {len(error.missing) - 1} more" if len(error.missing) > 1 else ""
        return "incomplete", f"missing: {error.missing[0]}{more}"
    except DatasetError:
        return "missing", f"depthrate data fetch {name}"
    return "here", "included in depthrate" if located is None else ", ".join(located.where)


@command.declared("fetch")
@click.argument("name", help="Name of a data set, from depthrate data list.")
def fetch(name: str) -> int:
    """Download a data set from its publisher to DEPTHRATE_DATA and verify its checksums."""
    data = open_data_folder()
    store = data.store
    with nullcontext(store.full_path("")) if store.local_folder else tempfile.TemporaryDirectory() as folder:
        try:
            for path in fetch_missing(name, lambda path: store.size(path) is not None, Path(folder)):
                if store.local_folder is None:
                    store.write(path, Path(folder, path).read_bytes())
                print_line(f"got {store.full_path(path)}")
        except DownloadError as error:
            remedy = f"Get the file by other means and save it as {store.full_path(error.path)}, or set DEPTHRATE_DATA"
            print_line(f"depthrate: {error}. {remedy}", stderr=True)
            return 1
    print_line(f"{name} is at {data.url}")
    return 0
