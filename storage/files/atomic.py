"""Atomic writes and moves of local files: a reader sees the old file or the new one, also after a crash."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from pathlib import Path

from depthrate.storage.files.full import FULL, StoreFullError
from depthrate.storage.files.regular import InvalidFileError


def write_atomic(path: str, content: bytes | Path, *, durable: bool) -> None:
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
    folder, name = os.path.split(os.path.abspath(path))
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
    except BaseException as error:
        Path(aside).unlink(missing_ok=True)
        if isinstance(error, IsADirectoryError):
            raise InvalidFileError(
                f"{path} is a folder, where a file belongs; nothing was written: move it away"
            ) from None
        raise
    if durable:
        sync_folder(folder)


def move_atomic(source: str, target: str) -> None:
    """Give a file another path, durably, whatever stood there.

    Raises:
        FileNotFoundError: there is no such file.
    """
    folder = os.path.dirname(target)
    _make_folders(folder)
    os.replace(source, target)
    sync_folder(folder)


def _make_folders(folder: str) -> None:
    """Make a folder and those above it that are not there, durably: whoever finds one relies on it without a look."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    if above != folder:
        _make_folders(above)
    os.makedirs(folder, exist_ok=True)
    sync_folder(above)


def sync_folder(folder: str) -> None:
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
