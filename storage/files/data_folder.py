"""The location of data sets: a folder, or any URL that a store can have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from depthrate.storage.files.store import Store


class DataFolder:
    """The location of data sets (`tasks.data.sources.DataSource`)."""

    def __init__(self, url: str):
        self.store = Store(url, is_users_own=True)

    @property
    def url(self) -> str:
        """URL of the folder, as the user wrote it."""
        return self.store.url

    def find(self, folder: str, names: list[str]) -> str | None:
        """Return the path of the first of `names` that exists in `folder` (`` for the root), or None."""
        paths = [f"{folder}/{name}" if folder else name for name in names]
        return next((path for path in paths if self.store.size(path) is not None), None)

    def read(self, path: str) -> bytes:
        """Return the content of a file returned by `find`."""
        return self.store.read(path)

    def open(self, path: str) -> IO[bytes]:
        """Open a file returned by `find` for reading in parts."""
        return self.store.open(path)


def open_data_folder() -> DataFolder:
    """Open the data folder of this process: DEPTHRATE_DATA, else ~/.cache/depthrate."""
    return DataFolder(os.environ.get("DEPTHRATE_DATA") or str(Path.home() / ".cache" / "depthrate"))
