"""Files below a local folder."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from depthrate.storage.files.atomic import move_atomic, sync_folder, write_atomic
from depthrate.storage.files.paths import is_file_path
from depthrate.storage.files.protocol import Item, Result, Stamp
from depthrate.storage.files.regular import InvalidFileError, open_regular, read_bytes, require_regular


class LocalFiles:
    """Implementation of `Files` for a folder.

    Links may lead to other paths within the folder, not out of it. With `follows_links` they may lead anywhere and
    files need not be regular, for folders of user data.
    """

    is_local = True
    is_shared = True

    def __init__(self, root: str, url: str, *, follows_links: bool):
        self.root = root
        self._url = url
        self._follows_links = follows_links
        self._inside: set[str] = set()
        """Folders verified to lie within the root, links followed."""

    @cached_property
    def fs(self) -> Any:
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem()

    def probe(self) -> None:
        """Do nothing: reading reports a folder without permission."""

    def exists(self) -> bool:
        return os.path.isdir(self.root)

    def read(self, path: str, max_bytes: int | None) -> bytes:
        full = self._readable(path)
        return Path(full).read_bytes() if self._follows_links else read_bytes(full, self.root, max_bytes)

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        with self.open(path) as file:
            file.seek(start)
            return file.read(stop - start)

    def open(self, path: str) -> IO[bytes]:
        full = self._readable(path)
        return Path(full).open("rb") if self._follows_links else open(open_regular(full, self.root), "rb")

    def readable_path(self, path: str) -> str:
        return require_regular(self._readable(path), self.root)

    def write(self, path: str, content: bytes | Path, *, durable: bool) -> None:
        write_atomic(self.full_path(path), content, durable=durable)

    def walk(self, folder: str) -> Iterator[tuple[str, int]]:
        return _walk(self.full_path(folder), len(self.root) + 1)

    def stamps(self, folder: str) -> Iterator[tuple[str, Stamp]]:
        for path, _ in self.walk(folder):
            with contextlib.suppress(FileNotFoundError):
                status = _stat(self.full_path(path))
                yield path, (status.st_size, status.st_mtime_ns, status.st_ino)

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes, or None if it does not exist. A dangling link has size 0, since it occupies
        the path."""
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
                sync_folder(os.path.dirname(full))

    def delete_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.full_path(path))

    def move(self, path: str, to: str) -> None:
        move_atomic(self.full_path(path), self.full_path(to))

    def require_inside(self, path: str) -> None:
        if path and (outside := self._outside(os.path.dirname(self.full_path(path)))) is not None:
            raise OSError(
                f"cannot change {path}: a link leads out of store {self._url}, to {outside}. Nothing was written, moved or "
                "deleted. Pass the link's target as --store, or remove the link."
            )

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        return map(function, items)

    def full_path(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def _readable(self, path: str) -> str:
        """Return the absolute path of a file to read.

        Raises:
            InvalidFileError: A link on the way leads out of the folder.
        """
        full = self.full_path(path)
        folder = os.path.dirname(full)
        if not self._follows_links and folder not in self._inside:
            if (outside := self._outside(folder)) is not None:
                raise InvalidFileError(
                    f"cannot read {path}: a link leads out of store {self._url}, to {outside}. Pass the link's target as "
                    "--store, or remove the link."
                )
            self._inside.add(folder)
        return full

    def _outside(self, folder: str) -> str | None:
        """Return the target of a folder that leads out of the root, else None."""
        root, real = os.path.realpath(self.root), os.path.realpath(folder)
        return real if os.path.commonpath([root, real]) != root else None


def _stat(path: str) -> os.stat_result:
    """Return the status of a file, or of a dangling link itself."""
    try:
        return os.stat(path)
    except OSError:
        return os.lstat(path)


def _walk(folder: str, start: int) -> Iterator[tuple[str, int]]:
    """Yield (path, bytes) of the files below a local folder in order. Files may vanish meanwhile.

    Folders behind links are not entered. Links, pipes, devices and folders are listed only at paths of a store's files:
    reading them then reports the fault.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and not is_file_path(entry.path[start:]):
                yield from _walk(entry.path, start)
            elif not is_folder and _is_file(entry):
                yield entry.path[start:], entry.stat().st_size
            elif is_file_path(path := entry.path[start:]):
                yield path, 0


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False
