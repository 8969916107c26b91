"""Stop a process at its n-th call that changes something below a folder, or at its n-th request to a bucket.

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
from tests.support.s3_server import S3Server

CHANGING = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "link", "symlink", "truncate", "fsync")
"""Functions of `os`; beside them, files are opened for writing."""


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

    def call(self, name: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call a function, unless the process is dead."""
        if not self.is_over:
            self.calls[name] += 1
        if self.is_over:
            raise Killed
        return function(*given, **named)


@contextmanager
def on_folder(root: Path, kill_at: int | None = None, deadline: Deadline | None = None) -> Iterator[Deadline]:
    """Count the calls that change something below a folder, and die at the n-th; or do with them as a `deadline` does."""
    inside = os.path.realpath(root)
    deadline = Deadline(kill_at) if deadline is None else deadline

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
def on_bucket(server: S3Server, kill_at: int, *, answer_lost: bool) -> Iterator[None]:
    """Die at the n-th request to a server: before it is carried out, or before its answer comes."""

    class UntilStopped:
        def __init__(self, fs: Any):
            self._fs = fs

        def __getattr__(self, name: str) -> Any:
            value = getattr(self._fs, name)
            if not callable(value):
                return value

            def call(*given: Any, **named: Any) -> Any:
                try:
                    return value(*given, **named)
                except Exception:
                    if server.has_stopped():
                        raise Killed from None
                    raise

            return call

    plain = Store.__init__

    def opened(store: Store, url: Any, **others: Any) -> None:
        plain(store, url, **others)
        if store.is_s3:  # data sets come from a folder
            store.fs.retries = 1
            store.files.fs = UntilStopped(store.fs)  # type: ignore[misc]

    Store.__init__ = opened  # type: ignore[method-assign]
    server.stop_at(kill_at, answer_lost=answer_lost)
    try:
        yield
    finally:
        Store.__init__ = plain  # type: ignore[method-assign]
        server.reset()
