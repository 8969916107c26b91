"""The protocol of the files below a store's root. `local.py` implements it for folders, `remote.py` for fsspec filesystems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

Stamp = tuple[Any, ...]
"""Value that changes when a file is rewritten. Only equality is meaningful."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def is_hidden(path: str) -> bool:
    """Return whether a file's name starts with a dot: a file being written, or one that no store creates."""
    return path.rpartition("/")[2].startswith(".")


class Files(Protocol):
    """Files below one root. Paths are relative to it, use `/` and have been checked to be safe.

    Every method but `probe` raises OSError when the filesystem fails.
    """

    root: str
    """Path of the root in its filesystem."""
    is_local: bool
    """Whether the root is a folder of the local machine."""
    is_shared: bool
    """Whether other processes see the files."""

    @property
    def fs(self) -> Any:
        """The fsspec filesystem."""
        ...

    def full_path(self, path: str) -> str:
        """Return the path in the filesystem, or the root for an empty path."""
        ...

    def probe(self) -> None:
        """Send one request to the root, which may be empty. Exceptions of the client are not converted."""
        ...

    def exists(self) -> bool:
        """Return whether the root exists. A bucket always does: an empty one has no files."""
        ...

    def read(self, path: str, max_bytes: int | None) -> bytes:
        """Return a file's content.

        Raises:
            FileNotFoundError: The file does not exist.
            InvalidFileError: It is not a regular file below the root, or larger than `max_bytes`.
        """
        ...

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop` of a file, in one request."""
        ...

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading in parts."""
        ...

    def readable_path(self, path: str) -> str:
        """Return the path in the filesystem of a file that other libraries may open.

        Raises:
            InvalidFileError: It is not a regular file below the root.
        """
        ...

    def write(self, path: str, content: bytes | Path, *, durable: bool) -> None:
        """Write a file atomically, from bytes or from a local file. `durable` also syncs it to the disk."""
        ...

    def walk(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield the path and the size in bytes of each file below a folder, in order."""
        ...

    def stamps(self, folder: str) -> Iterator[tuple[str, Stamp]]:
        """Yield the path and the stamp of each file below a folder, in order."""
        ...

    def size(self, path: str) -> int | None:
        """Return a file's current size in bytes, or None if it does not exist."""
        ...

    def modified(self, path: str) -> float | None:
        """Return a file's modification time in seconds since the epoch, or None if it does not exist."""
        ...

    def delete(self, path: str, *, durable: bool) -> None:
        """Delete a file or a folder with its content, if it exists."""
        ...

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete files. Missing files are ignored."""
        ...

    def move(self, path: str, to: str) -> None:
        """Move a file. At any moment at least one of the two paths exists.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        ...

    def require_inside(self, path: str) -> None:
        """Check that a path to be changed is below the root, links followed.

        Raises:
            OSError: A link on the way leads out of it.
        """
        ...

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield `function` of each item in order, with as many parallel calls as the filesystem makes worthwhile."""
        ...
