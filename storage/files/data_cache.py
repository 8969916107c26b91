"""Data sets kept on a node's own disk: the first process that needs a file copies it, the others wait for that and read it."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
from pathlib import Path
from typing import IO

from depthrate.storage.files.data_folder import DataFolder

log = logging.getLogger("depthrate")
COPY_BYTES = 8 * 2**20


class CachedDataFolder(DataFolder):
    """A place of data sets, read through a folder of this machine; a cache that cannot be used costs time only.

    A copy's name has the file's state in it (its time, or its ETag), so one that changed is copied anew. The copies are the
    user's own: others may use the same folder, and neither see nor replace them.
    """

    def __init__(self, url: str, cache: str):
        super().__init__(url)
        self._folder = Path(cache) / f"depthrate-{os.getuid()}"
        self._place = hashlib.sha256(self.store.url.encode()).hexdigest()[:16]

    def read(self, path: str) -> bytes:
        """Return the bytes of a file that `find` gave."""
        copy = self._copy_of(path)
        return super().read(path) if copy is None else copy.read_bytes()

    def open(self, path: str) -> IO[bytes]:
        """Open a file that `find` gave, for reading in parts."""
        copy = self._copy_of(path)
        return super().open(path) if copy is None else copy.open("rb")

    def _copy_of(self, path: str) -> Path | None:
        """Return the copy of a file, made now if nobody has; None where there can be none."""
        state = self.store.fs.ukey(self.store.full_path(path))
        folder = self._folder / self._place
        copy = folder / f"{hashlib.sha256(f'{path} {state}'.encode()).hexdigest()[:16]}-{Path(path).name}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._folder.stat().st_uid != os.getuid() or self._folder.is_symlink():
                raise PermissionError(f"{self._folder} belongs to somebody else")
            if not copy.exists():
                self._fill(path, copy)
        except OSError as error:
            log.warning("data sets are read from %s, since the cache cannot be used: %s", self.url, error)
            return None
        return copy

    def _fill(self, path: str, copy: Path) -> None:
        """Copy a file under a lock that ends with its process, so that one that was killed keeps nobody waiting."""
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
    """Return where a worker reads data sets: through DEPTHRATE_DATA_CACHE, a folder of its machine, where that is set."""
    cache = os.environ.get("DEPTHRATE_DATA_CACHE")
    return CachedDataFolder(url, cache) if cache else DataFolder(url)
