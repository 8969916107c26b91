"""Where a command writes what it was asked for: whole or not at all, and never in place of a device, a pipe or a link."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from depthrate.orchestrator.console.errors import UsageError


def check_output(path: Path) -> None:
    """Check that a file can be meant by what -o was given.

    Raises:
        UsageError: it is a folder, or its folder is not there.
    """
    if path.is_dir():
        raise UsageError(f"cannot write {str(path)!r}: it is a folder; name a file, as in -o {path / 'report.html'}")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: folder {path.parent} does not exist")


def check_folder(path: Path) -> None:
    """Check that a folder can be meant.

    Raises:
        UsageError: there is something else of that name.
    """
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is no folder; name one, which is made where it is not there")


def is_replaceable(path: Path) -> bool:
    """Whether a path is a file of its own, or nothing yet: no device, pipe, socket or link to one of them."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return True


@contextmanager
def output_file(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """Open a file for what is written in the block: there whole or not at all where it is a file, else as it comes.

    Raises:
        OSError: it cannot be written.
    """
    mode, options = ("wb", {}) if binary else ("w", {"encoding": "utf-8", "newline": "", "errors": "backslashreplace"})
    if not is_replaceable(path):
        with path.open(mode, **options) as stream:  # type: ignore[call-overload]
            yield stream
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open(mode, **options) as stream:  # type: ignore[call-overload]
            yield stream
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
