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
    """Write a file from bytes or a local file: readers see the old content or the new one.

    Args:
        killed writer leaves the old content.

    Raises:
        StoreFullError: The file system or the quota is full.
        OSError: The write failed. The old content is unchanged.
    """
    try:
        _write(path, content, durable=durable)
    except OSError as error:
        if error.errno not in FULL:
            raise
        needed = content.stat().st_size if isinstance(content, Path) else len(content)
        raise StoreFullError(error.errno or 0, path, needed) from None


def _write(path: str, content: bytes | Path, *, durable: bool) -> None:
    folder, name = os.path.split(os.path.abspath(path))
    _create_folders(folder)
    draft = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(draft, "wb") as file:
            if isinstance(content, Path):
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file)
            else:
                file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        Path(draft).unlink(missing_ok=True)
        if isinstance(error, IsADirectoryError):
            raise InvalidFileError(
                f"cannot write {path}: it is a folder, expected a file. Nothing was written. Move the folder away."
            ) from None
        raise
    if durable:
        sync_folder(folder)


def move_atomic(source: str, target: str) -> None:
    """Move a file durably, replacing any file at the target.

    Raises:
        FileNotFoundError: The file does not exist.
    """
    folder = os.path.dirname(target)
    _create_folders(folder)
    os.replace(source, target)
    sync_folder(folder)


def _create_folders(folder: str) -> None:
    """Create a folder and its missing parents, durably: a process that finds a folder relies on it without a check."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    if above != folder:
        _create_folders(above)
    os.makedirs(folder, exist_ok=True)
    sync_folder(above)


def sync_folder(folder: str) -> None:
    """Sync a folder's names to the disk: without it, a synced file may have no name after a power cut."""
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(descriptor)
    except OSError as error:
        # file systems without folder sync, and a folder with write but no read permission
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES):
            raise
    finally:
        if descriptor is not None:
            os.close(descriptor)
