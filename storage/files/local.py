"""Files below a local folder: writes are atomic, and only regular files are read.

A reader sees the old file or the new one, even after a crash. A pipe or a device at a file's path never blocks a reader.
"""

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

from depthrate.storage.files.full import FULL, StoreFullError
from depthrate.storage.files.paths import is_file_path, kind_of
from depthrate.storage.files.protocol import (
    InvalidFileError,
    Item,
    Result,
    Stamp,
    invalid_file,
    is_hidden,
    require_size,
)

_FILE_TYPES = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW


class LocalFiles:
    """Implementation of `Files` for a folder.

    Links may lead to other paths within the folder but not out of it. With `follows_links`, for folders of user data, they may
    lead anywhere and files need not be regular.
    """

    is_shared = True
    uses_requests = False
    time_unit_s = 0.0

    def __init__(self, root: str, url: str, *, follows_links: bool):
        self.root, self.local_folder = root, Path(root or "/")
        self._url, self._follows_links = url, follows_links
        self._inside: set[str] = set()
        """Folders verified to lie within the root after following links."""

    @cached_property
    def fs(self) -> Any:
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem()

    def arrow_filesystem(self) -> Any:
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem()

    def full_path(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def probe(self) -> None:
        """Do nothing, since reading reports a folder without read permission."""

    def exists(self) -> bool:
        return os.path.isdir(self.root)

    def write_obstacle(self) -> str | None:
        folders = (self.local_folder, *self.local_folder.parents)
        existing = next(folder for folder in folders if os.path.lexists(folder))
        if not existing.is_dir():
            return f"{existing} is not a folder"
        below = [entry for entry in self.local_folder.glob("*") if entry.is_dir()]
        refused = [str(folder) for folder in (existing, *below) if not os.access(folder, os.W_OK | os.X_OK)]
        return f"no permission to write to {refused[0]}" if refused else None

    def read(self, path: str, max_bytes: int | None) -> bytes:
        with self.open(path) as file:
            if self._follows_links:
                return file.read()
            require_size(self.full_path(path), os.fstat(file.fileno()).st_size, max_bytes)
            return file.read() if max_bytes is None else file.read(max_bytes)

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        with self.open(path) as file:
            file.seek(start)
            return file.read(stop - start)

    def open(self, path: str) -> IO[bytes]:
        if self._follows_links:
            return open(self.full_path(path), "rb")
        descriptor = os.open(self.readable_path(path), _READ_FLAGS)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # replaced since
            os.close(descriptor)
            raise invalid_file(self.full_path(path), "it is not a file")
        return open(descriptor, "rb")

    def readable_path(self, path: str) -> str:
        """Return the path of a regular file without opening it, resolving a link if its target is below the root."""
        full = self.full_path(path)
        folder = os.path.dirname(full)
        if not self._follows_links and folder not in self._inside:
            if (outside := self._outside(folder)) is not None:
                raise InvalidFileError(
                    f"cannot read {path}: a link leads out of store {self._url}, to {outside}. Pass the link's target as "
                    "--store, or remove the link."
                )
            self._inside.add(folder)
        mode = os.lstat(full).st_mode
        if stat.S_ISREG(mode):
            return full
        description = next((name for is_type, name in _FILE_TYPES if is_type(mode)), "not a file")
        if stat.S_ISLNK(mode):
            target = os.path.realpath(full)
            if not os.path.exists(target):
                description = f"a link to {target}, which does not exist"
            elif self._outside(target) is not None:
                description = f"a link out of {self.root}, to {target}"
            elif os.path.isfile(target):
                return target
            else:
                description = f"a link to {target}, which is not a file"
        raise invalid_file(full, f"it is {description}, expected a file")

    def write(self, path: str, content: bytes | Path, *, durable: bool) -> None:
        full = os.path.abspath(self.full_path(path))
        folder, name = os.path.split(full)
        draft = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
        try:
            _create_folders(folder)
            with open(draft, "wb") as file:
                if isinstance(content, Path):
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, file)
                else:
                    file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(draft, full)
            if durable:
                _sync_folder(folder)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            if isinstance(error, IsADirectoryError):
                raise InvalidFileError(
                    f"cannot write {full}: it is a folder, expected a file. Nothing was written. Move the folder away."
                ) from None
            if isinstance(error, OSError) and error.errno in FULL:
                needed = content.stat().st_size if isinstance(content, Path) else len(content)
                raise StoreFullError(error.errno or 0, full, needed) from None
            raise

    def create(self, path: str, content: bytes) -> bool:
        folder, _, name = path.rpartition("/")
        draft = f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"
        self.write(draft, content, durable=True)
        try:
            os.link(self.full_path(draft), self.full_path(path))
        except FileExistsError:
            return False
        finally:
            os.unlink(self.full_path(draft))
        _sync_folder(self.full_path(folder))
        return True

    def walk(self, folder: str) -> Iterator[tuple[str, int]]:
        return _walk(self.full_path(folder), len(self.root) + 1)

    def stamps(self, folder: str) -> Iterator[tuple[str, Stamp]]:
        for path, _ in self.walk(folder):
            with contextlib.suppress(FileNotFoundError):
                status = _stat(self.full_path(path))
                yield path, (status.st_size, status.st_mtime_ns, status.st_ino)

    def invalid_files(self) -> Iterator[tuple[str, InvalidFileError]]:
        for path, size in list(self.walk("")):
            kind = kind_of(path)
            try:
                require_size(self.readable_path(path), size, None if kind is None else kind.max_bytes)
            except InvalidFileError as error:
                yield path, error
            except OSError:
                continue  # deleted meanwhile

    def unfinished_writes(self, before: float) -> list[str]:
        drafts = [path for path, _ in self.walk("") if is_hidden(path) and path.endswith(".tmp")]
        return [path for path in drafts if (self.modified(path) or before) < before]

    def remove_unfinished(self, path: str) -> bool:
        is_draft = is_hidden(path) and path.endswith(".tmp")
        if is_draft:
            self.delete_many([path])
        return is_draft

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes or, if missing, None. A dangling link has size 0, since it occupies the path."""
        full = self.full_path(path)
        try:
            return os.stat(full).st_size
        except OSError as error:
            if os.path.islink(full):
                return 0
            if isinstance(error, FileNotFoundError):
                return None
            raise

    def modified(self, path: str) -> float | None:
        try:
            return _stat(self.full_path(path)).st_mtime
        except FileNotFoundError:
            return None

    def delete(self, path: str, *, durable: bool) -> None:
        full = self.full_path(path)
        if not os.path.lexists(full):
            return
        with contextlib.suppress(FileNotFoundError):
            if os.path.isdir(full) and not os.path.islink(full):
                shutil.rmtree(full)
            else:
                os.remove(full)
            if durable:
                _sync_folder(os.path.dirname(full))

    def delete_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.full_path(path))

    def move(self, path: str, to: str) -> None:
        folder = os.path.dirname(self.full_path(to))
        _create_folders(folder)
        os.replace(self.full_path(path), self.full_path(to))
        _sync_folder(folder)

    def require_inside(self, path: str) -> None:
        if path and (outside := self._outside(os.path.dirname(self.full_path(path)))) is not None:
            raise OSError(
                f"cannot change {path}: a link leads out of store {self._url}, to {outside}. Nothing was written, moved or "
                "deleted. Pass the link's target as --store, or remove the link."
            )

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        return map(function, items)

    def _outside(self, path: str) -> str | None:
        """Return the target of a path that leads out of the root, or None for other paths."""
        root, real = os.path.realpath(self.root), os.path.realpath(path)
        return real if os.path.commonpath([root, real]) != root else None


def _create_folders(folder: str) -> None:
    """Create a folder and its missing parents durably, since a process that finds the folder relies on it without a check."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    if above != folder:
        _create_folders(above)
    os.makedirs(folder, exist_ok=True)
    _sync_folder(above)


def _sync_folder(folder: str) -> None:
    """Sync a folder's entries to the disk. Otherwise a synced file may have no name after a power cut."""
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(descriptor)
    except OSError as error:
        # the file system cannot sync folders, or the folder has write but no read permission
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES):
            raise
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _stat(path: str) -> os.stat_result:
    """Return the status of a file. For a dangling link, return the status of the link itself."""
    try:
        return os.stat(path)
    except OSError:
        return os.lstat(path)


def _walk(folder: str, start: int) -> Iterator[tuple[str, int]]:
    """Yield (path, bytes) of the files below a local folder in order. Files may vanish meanwhile.

    Folders behind links are not entered. Links, pipes, devices and folders are listed only at paths of a store's files, where
    reading them reports the fault.
    """
    try:
        entries = sorted(os.scandir(folder), key=attrgetter("name"))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        path = entry.path[start:]
        try:
            if entry.is_file(follow_symlinks=False):  # almost all entries
                yield path, entry.stat().st_size
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and not is_file_path(path):
                yield from _walk(entry.path, start)
            elif not is_folder and _is_file(entry):
                yield path, entry.stat().st_size
            elif is_file_path(path):
                yield path, 0
        except FileNotFoundError:
            continue


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False
