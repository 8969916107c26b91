"""The protocol of the files below a store's root. `local.py` implements it for folders, `remote.py` for fsspec filesystems."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from depthrate.storage.files.full import size_text

Stamp = tuple[Any, ...]
"""Value that changes when a file is rewritten. Only equality is meaningful."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class InvalidFileError(OSError):
    """The path does not hold a regular file, or the file is larger than its kind allows. Retrying does not help."""


def invalid_file(path: str, reason: str) -> InvalidFileError:
    """Return the error for reading a file that differs from what the store wrote."""
    return InvalidFileError(f"cannot read {path}: {reason}. Move it away, or restore the file from a backup.")


def require_size(path: str, size: int, max_bytes: int | None) -> None:
    """Check that a file is small enough to be read at once.

    Raises:
        InvalidFileError: It has more than `max_bytes`.
    """
    if max_bytes is not None and size > max_bytes:
        raise invalid_file(path, f"it has {size_text(size)}, expected at most {size_text(max_bytes)}")


def is_hidden(path: str) -> bool:
    """Return whether a file's name starts with a dot: a file being written, or one that no store creates."""
    return path.rpartition("/")[2].startswith(".")


class Files(Protocol):
    """Files below one root. Paths are relative to the root, use `/` and have been checked to be safe.

    Every method except `probe` raises OSError when the filesystem fails. Methods that `Store` also has are described in
    `Store`.
    """

    root: str
    """Path of the root in its filesystem."""
    is_shared: bool
    """Whether other processes can see the files."""
    uses_requests: bool
    """Whether each call is a request, which takes time and may be billed."""
    time_unit_s: float
    """Resolution of the files' modification times in seconds."""

    @property
    def local_folder(self) -> Path | None:
        """The root as a folder of this machine, or None for other roots."""

    @property
    def fs(self) -> Any:
        """The fsspec filesystem."""

    def arrow_filesystem(self) -> Any:
        """Return the filesystem for Arrow's readers."""

    def full_path(self, path: str) -> str:
        """Return the path in the filesystem, or the root for an empty path."""

    def probe(self) -> None:
        """Send one request to the root, which may be empty. Exceptions of the client are not converted."""

    def exists(self) -> bool:
        """Return whether the root exists. A bucket always counts as existing, since an empty one has no files."""

    def write_obstacle(self) -> str | None:
        """Return the reason why trials cannot write below the root, as far as it can be determined without writing."""

    def read(self, path: str, max_bytes: int | None) -> bytes: ...
    def read_range(self, path: str, start: int, stop: int) -> bytes: ...
    def open(self, path: str) -> IO[bytes]: ...
    def readable_path(self, path: str) -> str: ...
    def write(self, path: str, content: bytes | Path, *, durable: bool) -> None: ...
    def create(self, path: str, content: bytes) -> bool: ...
    def size(self, path: str) -> int | None: ...
    def modified(self, path: str) -> float | None: ...
    def delete(self, path: str, *, durable: bool) -> None: ...
    def delete_many(self, paths: Sequence[str]) -> None: ...
    def move(self, path: str, to: str) -> None: ...

    def walk(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield the path and the size in bytes of each file below a folder, in order."""

    def stamps(self, folder: str) -> Iterator[tuple[str, Stamp]]:
        """Yield the path and the stamp of each file below a folder, in order."""

    def invalid_files(self) -> Iterator[tuple[str, InvalidFileError]]:
        """Yield the paths that should hold a file but do not, or hold one too large for its kind."""

    def unfinished_writes(self, before: float) -> list[str]:
        """List the unfinished writes that killed processes left before a time by the store's clock."""

    def remove_unfinished(self, path: str) -> bool:
        """Delete one of `unfinished_writes`. Return whether the path can be an unfinished write."""

    def require_inside(self, path: str) -> None:
        """Check that a path to be changed is below the root after following links.

        Raises:
            OSError: A link in the path leads out of the root.
        """

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield `function` of each item in order, making as many parallel calls as are worthwhile on the filesystem."""
