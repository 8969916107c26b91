"""Files of a folder on this machine: written whole, and listed without those that are being written."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from depthrate.storage.files.full import FULL, StoreFullError

Stamp = tuple[Any, ...]
"""By which it is seen that a file was written anew; of no other use."""


def write_whole(path: str, content: bytes | Path, *, durable: bool) -> None:
    """Write a file, of bytes or of another: a reader sees the old content or the new, a killed writer leaves the old.

    Raises:
        StoreFullError: there is no room for it.
        OSError: it could not be written; the old content is still there.
    """
    try:
        _write_whole(path, content, durable=durable)
    except OSError as error:
        if error.errno not in FULL:
            raise
        needed = content.stat().st_size if isinstance(content, Path) else len(content)
        raise StoreFullError(error.errno or 0, path, needed) from None


def _write_whole(path: str, content: bytes | Path, *, durable: bool) -> None:
    folder, name = os.path.split(path)
    _make_folders(folder)
    aside = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(aside, "wb") as file:
            if isinstance(content, Path):
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file)
            else:
                file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(folder)


def move_whole(source: str, target: str) -> None:
    """Give a file another path, durably, whatever stood there.

    Raises:
        FileNotFoundError: there is no such file.
    """
    folder = os.path.dirname(target)
    _make_folders(folder)
    os.replace(source, target)
    _sync_folder(folder)


def _make_folders(folder: str) -> None:
    """Make a folder and those above it that are not there, durably: whoever finds one relies on it without a look."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    if above != folder:
        _make_folders(above)
    os.makedirs(folder, exist_ok=True)
    _sync_folder(above)


def _sync_folder(folder: str) -> None:
    """Bring a folder's names to the disk: without that a file that was synced may be nameless after a power cut."""
    opened = None
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(opened)
    except OSError as error:
        # file systems that have no such thing, and a folder that may be written to and not read
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES):
            raise
    finally:
        if opened is not None:
            os.close(opened)


def is_hidden(path: str) -> bool:
    """Whether a file is one that is being written, or otherwise none of ours."""
    return path.rpartition("/")[2].startswith(".")


def walk_stamps(folder: str, root: str) -> Iterator[tuple[str, Stamp]]:
    """Yield (path below `root`, what changes when it is written anew) of the files in a local folder, as `walk` does."""
    for path, _ in walk(folder, len(root) + 1):
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(f"{root}/{path}")
            yield path, (found.st_size, found.st_mtime_ns, found.st_ino)


def walk(folder: str, start: int) -> Iterator[tuple[str, int]]:
    """Yield (path, bytes) of the files below a local folder in order; what vanishes meanwhile is no error.

    Folders behind links, devices and pipes are not looked into.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):
            if entry.is_dir(follow_symlinks=False):
                yield from walk(entry.path, start)
            elif entry.is_file():
                yield entry.path[start:], entry.stat().st_size
