"""`depthrate data`: which data sets are here, and getting one."""

from __future__ import annotations

import sys

from orchestrator.data import DownloadError, fetch_dataset, list_datasets
from orchestrator.show import make_console, print_table
from storage.files import DataFolder


def print_datasets(data: DataFolder) -> None:
    """Print one row a data set."""
    console = make_console()
    console.print(f"data sets at {data.url} (DEPTHRATE_DATA)", highlight=False)
    rows = [[d.name, d.num_samples, d.num_classes, d.what, d.state, d.where] for d in list_datasets(data)]
    print_table(console, ["data set", "samples", "classes", "a sample", "state", "where"], rows)


def fetch_and_print(name: str, data: DataFolder) -> bool:
    """Download a data set, name its files, and return whether it is whole.

    Raises:
        UnknownDatasetError: there is no such data set.
    """
    try:
        for path in fetch_dataset(name, data):
            print(f"got {data.files.full_path(path)}")
    except DownloadError as error:
        print(f"depthrate: {error}", file=sys.stderr)
        return False
    print(f"{name} is at {data.url}")
    return True
