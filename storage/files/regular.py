"""Reads of local files that open regular files only: a pipe or a device in a file's place must not block a reader."""

from __future__ import annotations

import os
import stat

from depthrate.storage.files.full import size_text


class InvalidFileError(OSError):
    """What stands in a file's place is no file, or larger than the file can be; trying again changes nothing."""


_WORDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
)


def require_regular(path: str, root: str) -> str:
    """Return where the file is that stands at a path, behind a link where that stays below `root`; nothing is opened for it.

    Raises:
        InvalidFileError: there is something else.
        FileNotFoundError: there is nothing.
    """
    mode = os.lstat(path).st_mode
    if stat.S_ISREG(mode):
        return path
    what = next((word for is_it, word in _WORDS if is_it(mode)), "no file")
    if stat.S_ISLNK(mode):
        target, top = os.path.realpath(path), os.path.realpath(root)
        if not os.path.exists(target):
            what = f"a link to {target}, where nothing is"
        elif os.path.commonpath([top, target]) != top:
            what = f"a link out of {root}, to {target}"
        elif os.path.isfile(target):
            return target
        else:
            what = f"a link to {target}, which is no file"
    raise _unfit(path, f"is {what}, where a file belongs")


def open_regular(path: str, root: str) -> int:
    """Return the descriptor of a file opened for reading: never of a pipe or a device, which could keep us waiting.

    Raises:
        InvalidFileError: it is no file, or a link that leads out of `root`.
        FileNotFoundError: there is none.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW
    opened = os.open(require_regular(path, root), flags)
    if not stat.S_ISREG(os.fstat(opened).st_mode):  # replaced since
        os.close(opened)
        raise _unfit(path, "is no file")
    return opened


def read_bytes(path: str, root: str, max_bytes: int | None = None) -> bytes:
    """Return a file's content.

    Raises:
        InvalidFileError: it is no file below `root`, or has more than `max_bytes`.
        FileNotFoundError: there is none.
    """
    with open(open_regular(path, root), "rb") as file:
        require_size(path, os.fstat(file.fileno()).st_size, max_bytes)
        return file.read() if max_bytes is None else file.read(max_bytes)


def require_size(path: str, size: int, max_bytes: int | None) -> None:
    """Check that a file can be read whole.

    Raises:
        InvalidFileError: it has more than `max_bytes`.
    """
    if max_bytes is not None and size > max_bytes:
        raise _unfit(path, f"has {size_text(size)}, where such a file has at most {size_text(max_bytes)}")


def _unfit(path: str, what: str) -> InvalidFileError:
    return InvalidFileError(f"{path} {what}; it was not read: move it away, or put the file back from a backup")
