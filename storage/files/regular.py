"""Reads of regular local files only: a pipe or a device at a file's path must not block a reader."""

from __future__ import annotations

import os
import stat

from depthrate.storage.files.full import size_text


class InvalidFileError(OSError):
    """The path does not hold a regular file, or the file is larger than its kind allows. Retrying does not help."""


_FILE_TYPES = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
)


def require_regular(path: str, root: str) -> str:
    """Return the path of a regular file, resolving a link if its target is below `root`. Opens nothing.

    Raises:
        InvalidFileError: The path holds something else.
        FileNotFoundError: The path does not exist.
    """
    mode = os.lstat(path).st_mode
    if stat.S_ISREG(mode):
        return path
    description = next((name for is_type, name in _FILE_TYPES if is_type(mode)), "not a file")
    if stat.S_ISLNK(mode):
        target, top = os.path.realpath(path), os.path.realpath(root)
        if not os.path.exists(target):
            description = f"a link to {target}, which does not exist"
        elif os.path.commonpath([top, target]) != top:
            description = f"a link out of {root}, to {target}"
        elif os.path.isfile(target):
            return target
        else:
            description = f"a link to {target}, which is not a file"
    raise _invalid(path, f"it is {description}, expected a file")


def open_regular(path: str, root: str) -> int:
    """Open a regular file for reading and return its descriptor. Never opens a pipe or a device, which could block.

    Raises:
        InvalidFileError: The path does not hold a regular file, or is a link out of `root`.
        FileNotFoundError: The path does not exist.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(require_regular(path, root), flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # replaced since
        os.close(descriptor)
        raise _invalid(path, "it is not a file")
    return descriptor


def read_bytes(path: str, root: str, max_bytes: int | None = None) -> bytes:
    """Read a file's content.

    Raises:
        InvalidFileError: The path is not a regular file below `root`, or has more than `max_bytes`.
        FileNotFoundError: The path does not exist.
    """
    with open(open_regular(path, root), "rb") as file:
        require_size(path, os.fstat(file.fileno()).st_size, max_bytes)
        return file.read() if max_bytes is None else file.read(max_bytes)


def require_size(path: str, size: int, max_bytes: int | None) -> None:
    """Check that a file is small enough to be read at once.

    Raises:
        InvalidFileError: It has more than `max_bytes`.
    """
    if max_bytes is not None and size > max_bytes:
        raise _invalid(path, f"it has {size_text(size)}, expected at most {size_text(max_bytes)}")


def _invalid(path: str, reason: str) -> InvalidFileError:
    return InvalidFileError(f"cannot read {path}: {reason}. Move it away, or restore the file from a backup.")
