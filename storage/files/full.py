"""A place that takes no more: which one, how much is free there, and how much is needed."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator

FULL = (errno.ENOSPC, errno.EDQUOT)
"""How a file system says that it takes no more."""
_SAID_BY_SERVERS = re.compile(r"QuotaExceeded|XMinioStorageFull|InsufficientStorage|Insufficient Storage|StorageFull")


class StoreFullError(OSError):
    """A file system, or a quota on it, took no more; the message names the file, what is free and what is needed."""

    def __init__(self, number: int, path: str, needed_bytes: int):
        super().__init__(number, os.strerror(number), path)
        self.path, self.needed_bytes = path, needed_bytes
        self.free_bytes = free_bytes(path)

    def __str__(self) -> str:
        folder = os.path.dirname(self.path)
        free = "" if self.free_bytes is None else f"{size_text(self.free_bytes)} free, "
        what = "the quota is used up" if self.errno == errno.EDQUOT else "the file system is full"
        needed = f"{size_text(self.needed_bytes)} needed for {os.path.basename(self.path)}"
        return f"{what} at {folder}: {free}{needed}; make room there"


def is_full(error: BaseException) -> bool:
    """Whether an error says, itself or by what caused it, that a place takes no more."""
    return any(
        getattr(cause, "errno", None) in FULL or (isinstance(cause, OSError) and _SAID_BY_SERVERS.search(str(cause)))
        for cause in _causes(error)
    )


def needed_bytes(error: BaseException) -> int:
    """Return what there was no room for, as far as an error that `is_full` says it."""
    return next((cause.needed_bytes for cause in _causes(error) if isinstance(cause, StoreFullError)), 0)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def free_bytes(path: str) -> int | None:
    """Return how much a user may still write where a path is or would be; None where nobody says."""
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        return shutil.disk_usage(path or "/").free
    except OSError:
        return None


def size_text(count: float) -> str:
    """Return a number of bytes in words."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError
