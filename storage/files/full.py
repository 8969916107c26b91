"""Errors of full stores, with the path, the free space and the space needed."""

import errno
import os
import re
import shutil
from collections.abc import Iterator

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full file system and an exhausted quota."""
_SERVER_MESSAGES = re.compile(r"QuotaExceeded|XMinioStorageFull|InsufficientStorage|Insufficient Storage|StorageFull")


class StoreFullError(OSError):
    """A file system or its quota is full. The message gives the path, the free space and the space needed."""

    def __init__(self, number: int, path: str, needed_bytes: int):
        super().__init__(number, os.strerror(number), path)
        self.path, self.needed_bytes = path, needed_bytes
        self.free_bytes = free_bytes(path)

    def __str__(self) -> str:
        folder = os.path.dirname(self.path)
        free = "" if self.free_bytes is None else f"{size_text(self.free_bytes)} free, "
        cause = "the quota is used up" if self.errno == errno.EDQUOT else "the file system is full"
        needed = f"{size_text(self.needed_bytes)} needed for {os.path.basename(self.path)}"
        return f"{cause} at {folder}: {free}{needed}. Free some space."


def is_full(error: BaseException) -> bool:
    """Return whether an error or one of its causes means that a store is full."""
    return any(
        getattr(cause, "errno", None) in FULL or (isinstance(cause, OSError) and _SERVER_MESSAGES.search(str(cause)))
        for cause in _causes(error)
    )


def needed_bytes(error: BaseException) -> int:
    """Return the bytes that could not be written according to an `is_full` error, or 0 if it does not state them."""
    return next((cause.needed_bytes for cause in _causes(error) if isinstance(cause, StoreFullError)), 0)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def free_bytes(path: str) -> int | None:
    """Return the free bytes available to this user at an existing or future path, or None if unknown."""
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        return shutil.disk_usage(path or "/").free
    except OSError:
        return None


def size_text(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError
