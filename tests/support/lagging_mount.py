"""Run a command that sees a folder as a client of a shared file system does: late.

    unshare --mount python -m tests.support.lagging_mount FOLDER LAG_S COMMAND...

What others write in FOLDER is seen by the command up to LAG_S seconds after: names that were not there stay away for so long
(the kernel's negative entries), and so do listings. What the command writes is seen by everybody at once. Needs root,
/dev/fuse, libfuse 2 and fusepy; the mount is seen by the command alone and goes with it.
"""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fuse


class Lagging(fuse.Operations):  # type: ignore[misc]
    """Passes everything on to a folder, whose listings it keeps for a while."""

    def __init__(self, folder: int, lag_s: float):
        self._root, self._lag_s = f"/proc/self/fd/{folder}", lag_s
        self._listings: dict[str, tuple[float, list[str]]] = {}

    def _at(self, path: str) -> str:
        return self._root + path

    def _changes(self, *paths: str) -> None:
        """Forget the listings of folders in which the command itself changes something, as NFS does."""
        for path in paths:
            self._listings.pop(os.path.dirname(path), None)

    def access(self, path: str, mode: int) -> None:
        if not os.access(self._at(path), mode):
            raise fuse.FuseOSError(errno.EACCES)

    def getattr(self, path: str, handle: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._at(path))
        names = ("st_atime", "st_ctime", "st_gid", "st_mode", "st_mtime", "st_nlink", "st_size", "st_uid", "st_ino")
        return {name: getattr(found, name) for name in names}

    def statfs(self, path: str) -> dict[str, Any]:
        found = os.statvfs(self._at(path))
        names = (
            "f_bavail",
            "f_bfree",
            "f_blocks",
            "f_bsize",
            "f_favail",
            "f_ffree",
            "f_files",
            "f_frsize",
            "f_namemax",
        )
        return {name: getattr(found, name) for name in names}

    def readdir(self, path: str, handle: int) -> Iterator[str]:
        listed_at, names = self._listings.get(path, (float("-inf"), []))
        if time.monotonic() - listed_at > self._lag_s:
            names = os.listdir(self._at(path))
            self._listings[path] = (time.monotonic(), names)
        yield from (".", "..", *names)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path), flags)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._changes(path)
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
        return os.pread(handle, size, offset)

    def write(self, path: str, data: bytes, offset: int, handle: int) -> int:
        return os.pwrite(handle, data, offset)

    def truncate(self, path: str, length: int, handle: int | None = None) -> None:
        os.truncate(self._at(path), length)

    def fsync(self, path: str, only_data: int, handle: int) -> None:
        os.fsync(handle)

    def flush(self, path: str, handle: int) -> None: ...

    def release(self, path: str, handle: int) -> None:
        os.close(handle)

    def mkdir(self, path: str, mode: int) -> None:
        self._changes(path)
        os.mkdir(self._at(path), mode)

    def rmdir(self, path: str) -> None:
        self._changes(path)
        os.rmdir(self._at(path))

    def unlink(self, path: str) -> None:
        self._changes(path)
        os.unlink(self._at(path))

    def rename(self, path: str, new: str) -> None:
        self._changes(path, new)
        os.replace(self._at(path), self._at(new))

    def link(self, path: str, existing: str) -> None:
        self._changes(path)
        os.link(self._at(existing), self._at(path))

    def symlink(self, path: str, target: str) -> None:
        self._changes(path)
        os.symlink(target, self._at(path))

    def readlink(self, path: str) -> str:
        return os.readlink(self._at(path))

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._at(path), mode)

    def utimens(self, path: str, times: tuple[float, float] | None = None) -> None:
        os.utime(self._at(path), times)


def main() -> int:
    """Mount, run the command, and return its exit code."""
    folder, lag_s, command = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    folder.mkdir(parents=True, exist_ok=True)
    beneath = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # leads to what is there, also below the mount
    mounter = os.fork()
    if mounter == 0:
        options = {"foreground": True, "nothreads": True, "hard_remove": True, "big_writes": True}
        late = {"negative_timeout": lag_s, "entry_timeout": 1.0, "attr_timeout": 1.0}
        fuse.FUSE(Lagging(beneath, lag_s), str(folder), **options, **late)
        os._exit(0)
    deadline = time.monotonic() + 60
    while not folder.is_mount():
        if time.monotonic() > deadline or os.waitpid(mounter, os.WNOHANG)[0]:
            sys.exit("the folder was not mounted")
        time.sleep(0.05)
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)
        os.waitpid(mounter, 0)


if __name__ == "__main__":
    sys.exit(main())
