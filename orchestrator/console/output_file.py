"""Write the files that a user names: atomically, and never in place of a device, a pipe or a link."""

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from depthrate.orchestrator.console.errors import UsageError

READER_TIMEOUT_S = 5.0
"""Longest wait for a reader of a named pipe, in seconds."""
_POLL_S = 0.05


def check_output(path: Path) -> None:
    """Check, before any work is done, that a file can be written.

    Raises:
        UsageError: The path is a folder, or cannot be written.
    """
    if path.is_dir():
        raise UsageError(f"cannot write {str(path)!r}: it is a folder. Name a file, as in -o {path / 'report.html'}")
    _require_writable(path)


def check_folder(path: Path) -> None:
    """Check, before any work is done, that files can be written to a folder, which need not exist.

    Raises:
        UsageError: The path is not a folder, or cannot be written to.
    """
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is not a folder. Name a folder, which is created if it does not exist")
    _require_writable(path)


def _require_writable(path: Path) -> None:
    existing = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if existing != path and not existing.is_dir():
        raise UsageError(f"cannot write {path}: {existing} is not a folder")
    if not existing.is_symlink() and not os.access(existing, os.W_OK):
        raise UsageError(f"cannot write {path}: no permission to write to {existing}")


def is_replaceable(path: Path) -> bool:
    """Return whether a path is a regular file or does not exist."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return True


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file named by the user, and create its folder.

    Raises:
        UsageError: The file cannot be written.
    """
    with output_file(path, binary=isinstance(content, bytes)) as stream:
        stream.write(content)


@contextmanager
def output_file(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """Open a file named by the user, and create its folder.

    A regular file is replaced atomically when the block succeeds. Devices, pipes and links are opened directly.

    Raises:
        UsageError: The file cannot be written.
    """
    mode, options = ("wb", {}) if binary else ("w", {"encoding": "utf-8", "newline": "", "errors": "backslashreplace"})
    is_atomic = is_replaceable(path)
    target = path.with_name(f".{path.name}.{os.getpid()}.tmp") if is_atomic else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(target, mode, opener=_open, **options) as stream:  # type: ignore[call-overload]
                yield stream
            if is_atomic:
                target.replace(path)
        finally:
            if is_atomic:
                target.unlink(missing_ok=True)
    except OSError as error:
        reason = "no program reads from this pipe" if error.errno == errno.ENXIO else error.strerror or error
        raise UsageError(f"cannot write {path}: {reason}") from None


def _open(path: str, flags: int) -> int:
    """Open a descriptor for writing. A named pipe needs a reader within `READER_TIMEOUT_S`."""
    deadline = time.monotonic() + READER_TIMEOUT_S
    while True:
        try:
            descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
        else:
            os.set_blocking(descriptor, True)
            return descriptor
