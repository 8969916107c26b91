"""Stop a process at its n-th call that changes something: of a folder's files, or of a bucket's.

From that call on nothing that it does is carried out, as of a process that was killed: no clean-up, no last word.
"""

from __future__ import annotations

import builtins
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from depthrate.storage.files.store import Store

CHANGING = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "link", "symlink", "truncate", "fsync")
"""Functions of `os`; beside them, files are opened for writing."""
REQUESTS = (
    "call_s3",
    "pipe_file",
    "put_file",
    "cat_file",
    "cp_file",
    "rm",
    "rm_file",
    "find",
    "info",
    "modified",
    "exists",
)
"""What a remote store is asked, each about one request."""


class Killed(BaseException):
    """The process is no more."""


class Deadline:
    """Counts calls and lets none through from the n-th on."""

    def __init__(self, kill_at: int | None = None):
        self.kill_at = kill_at
        self.calls = Counter[str]()

    @property
    def count(self) -> int:
        """Calls until now, those that were not carried out included."""
        return self.calls.total()

    @property
    def is_over(self) -> bool:
        """Whether the process is dead."""
        return self.kill_at is not None and self.count >= self.kill_at

    def call(
        self, name: str, function: Callable[..., Any], *given: Any, answer_lost: bool = False, **named: Any
    ) -> Any:
        """Call a function, unless the process is dead; with `answer_lost` the call that kills it is carried out."""
        if self.is_over:
            raise Killed
        self.calls[name] += 1
        if self.is_over and not answer_lost:
            raise Killed
        value = function(*given, **named)
        if self.is_over:
            raise Killed
        return value


@contextmanager
def on_folder(root: Path, kill_at: int | None = None) -> Iterator[Deadline]:
    """Count the calls that change something below a folder, and die at the n-th."""
    deadline, inside = Deadline(kill_at), os.path.realpath(root)

    def is_inside(path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.abspath(os.fspath(path)).startswith(inside)

    def concerns(*given: Any, dir_fd: int | None = None, **named: Any) -> bool:
        opened = dir_fd if dir_fd is not None else given[0] if type(given[0]) is int else None
        if opened is not None:
            return is_inside(os.readlink(f"/proc/self/fd/{opened}"))
        return any(is_inside(path) for path in given[:2])

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            if not concerns(*given, **named):
                return function(*given, **named)
            return deadline.call(name, function, *given, **named)

        return call

    def opener(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
            if set(mode) & set("wax+") and concerns(file):
                return deadline.call("open", function, file, mode, *given, **named)
            return function(file, mode, *given, **named)

        return call

    plain = {name: getattr(os, name) for name in CHANGING}
    plain_open, plain_io_open = builtins.open, io.open
    for name, function in plain.items():
        setattr(os, name, counted(name, function))
    builtins.open, io.open = opener(plain_open), opener(plain_io_open)  # type: ignore[assignment]
    try:
        yield deadline
    finally:
        builtins.open, io.open = plain_open, plain_io_open
        for name, function in plain.items():
            setattr(os, name, function)


@contextmanager
def on_requests(store: Store, kill_at: int | None = None, *, answer_lost: bool = False) -> Iterator[Deadline]:
    """Count what a remote store is asked, and die at the n-th: before it is asked, or before the answer comes."""
    deadline, plain = Deadline(kill_at), store.fs

    class Counted:
        def __getattr__(self, name: str) -> Any:
            value = getattr(plain, name)
            if name not in REQUESTS:
                return value
            return lambda *given, **named: deadline.call(name, value, *given, answer_lost=answer_lost, **named)

    store.fs = Counted()
    try:
        yield deadline
    finally:
        store.fs = plain
