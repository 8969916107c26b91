"""Where data sets are read from: a folder, or any place that a store could be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from depthrate.storage.files.store import Store


class DataFolder:
    """The place data sets are read from (`tasks.data.sources.DataSource`)."""

    def __init__(self, url: str):
        self.store = Store(url, is_users_own=True)

    @property
    def url(self) -> str:
        """The place, as the user gave it."""
        return self.store.url

    def find(self, folder: str, names: list[str]) -> str | None:
        """Return the path of the first of `names` that exists in `folder` (`` for the place itself), or None."""
        paths = [f"{folder}/{name}" if folder else name for name in names]
        return next((path for path in paths if self.store.size(path) is not None), None)

    def read(self, path: str) -> bytes:
        """Return the bytes of a file that `find` gave."""
        return self.store.read(path)

    def open(self, path: str) -> IO[bytes]:
        """Open a file that `find` gave, for reading in parts."""
        return self.store.open(path)


def open_data_folder() -> DataFolder:
    """Return where this process finds data sets: DEPTHRATE_DATA, else ~/.cache/depthrate."""
    return DataFolder(os.environ.get("DEPTHRATE_DATA") or str(Path.home() / ".cache" / "depthrate"))
