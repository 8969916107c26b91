"""The location of data sets: a folder or any URL that a store can have, optionally read through a cache on a node's disk."""

import fcntl
import hashlib
import logging
import os
import shutil
from pathlib import Path
from typing import IO

from depthrate.storage.files.store import Store

log = logging.getLogger("depthrate")
COPY_BYTES = 8 * 2**20


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
    """Open the data folder of this process: DEPTHRATE_DATA or, if that is not set, ~/.cache/depthrate."""
    return DataFolder(os.environ.get("DEPTHRATE_DATA") or str(Path.home() / ".cache" / "depthrate"))


class CachedDataFolder(DataFolder):
    """A data folder read through a cache on this node. An unusable cache only costs time.

    A copy's name contains the file's state (its modification time or ETag), so a changed file is copied again. Each
    user has their own copies in a shared folder and can neither see nor replace other users' copies.
    """

    def __init__(self, url: str, cache: str):
        super().__init__(url)
        self._folder = Path(cache) / f"depthrate-{os.getuid()}"
        self._key = hashlib.sha256(self.store.url.encode()).hexdigest()[:16]

    def read(self, path: str) -> bytes:
        """Return the content of a file returned by `find`."""
        copy = self._copy_of(path)
        return super().read(path) if copy is None else copy.read_bytes()

    def open(self, path: str) -> IO[bytes]:
        """Open a file returned by `find` for reading in parts."""
        copy = self._copy_of(path)
        return super().open(path) if copy is None else copy.open("rb")

    def _copy_of(self, path: str) -> Path | None:
        """Return the cached copy of a file, making it if it does not exist, or None if the cache is unusable."""
        state = self.store.fs.ukey(self.store.full_path(path))
        folder = self._folder / self._key
        copy = folder / f"{hashlib.sha256(f'{path} {state}'.encode()).hexdigest()[:16]}-{Path(path).name}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._folder.stat().st_uid != os.getuid() or self._folder.is_symlink():
                raise PermissionError(f"{self._folder} belongs to another user or is a link")
            if not copy.exists():
                self._fill(path, copy)
        except OSError as error:
            log.warning("data cache unusable, reading data sets from %s: %s", self.url, error)
            return None
        return copy

    def _fill(self, path: str, copy: Path) -> None:
        """Copy a file under a lock that ends with its process, so that a killed process does not block other processes."""
        draft = copy.with_name(f".{copy.name}")
        with copy.with_name(f".{copy.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if copy.exists():
                return
            try:
                with super().open(path) as source, draft.open("wb") as target:
                    shutil.copyfileobj(source, target, COPY_BYTES)
                os.replace(draft, copy)
            finally:
                draft.unlink(missing_ok=True)


def worker_data_folder(url: str) -> DataFolder:
    """Return the data folder of a worker, read through the cache in DEPTHRATE_DATA_CACHE if that is set."""
    cache = os.environ.get("DEPTHRATE_DATA_CACHE")
    return CachedDataFolder(url, cache) if cache else DataFolder(url)
