"""Stop a process at a call or request, and list the disks that a power cut may leave.

A killed process: from its n-th call that changes something below a folder, or its n-th request to a bucket, nothing is
carried out, clean-up included. A power cut: POSIX guarantees a name (made, renamed, deleted) once its folder is synced, and a
file's content once the file is. Other calls may have reached the disk in any order, or not. A rename is taken to be one
step. After the method of ALICE (Pillai et al., OSDI 2014).
"""

import builtins
import io
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
        if store.url.startswith("s3://"):  # data sets come from a folder
            store.fs.retries = 1
            store.files.fs = UntilStopped(store.fs)  # type: ignore[misc]

    Store.__init__ = opened  # type: ignore[method-assign]
    server.stop_at(kill_at, answer_lost=answer_lost)
    try:
        yield
    finally:
        Store.__init__ = plain  # type: ignore[method-assign]
        server.reset()


Disk = dict[str, bytes | None]
"""Path -> content; None of a folder."""


@dataclass(frozen=True)
class Step:
    """One call that changes names, or that brings a folder's names to the disk."""

    kind: str
    """put, move, delete, make or sync"""
    path: str
    to: str = ""
    content: bytes = b""
    is_synced: bool = True
    """Whether the content of what was put is surely on the disk."""

    @property
    def folders(self) -> set[str]:
        """Those whose sync brings this to the disk."""
        return {os.path.dirname(self.path), os.path.dirname(self.to or self.path)}


@dataclass
class Trace(Deadline):
    """The calls of a verb, in their order; for `crash_points.on_folder`."""

    root: str
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._synced = set[str]()
        self._begun = dict[str, int]()

    def call(self, name: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Make a call and note it."""
        path = self._path(given[0], named.get("dir_fd"))
        is_new = not os.path.exists(path)
        value = function(*given, **named)
        below = os.path.relpath(path, self.root)
        if name == "fsync" and os.path.isdir(path):
            self.steps.append(Step("sync", below))
        elif name == "fsync":
            self._synced.add(path)
        elif name == "mkdir" and is_new:
            self.steps.append(Step("make", below))
        elif name in ("replace", "rename"):
            target = self._path(given[1], None)
            to = os.path.relpath(target, self.root)
            if os.path.basename(path).startswith("."):  # written beside it, nobody reads it under that name
                self.steps.append(Step("put", to, "", Path(target).read_bytes(), path in self._synced))
            else:
                self.steps.append(Step("move", below, to))
        elif name in ("remove", "unlink", "rmdir"):
            self.steps.append(Step("delete", below))
        elif name == "open" and not os.path.basename(path).startswith("."):
            raise AssertionError(f"{path} is not written aside: its content after a power cut is not known")
        return value

    def _path(self, given: Any, dir_fd: int | None) -> str:
        if isinstance(given, int):
            return os.readlink(f"/proc/self/fd/{given}")
        folder = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
        return os.path.join(folder, os.path.abspath(os.fspath(given)) if not folder else os.fspath(given))


def disk_of(root: Path) -> Disk:
    """Return what a folder holds."""
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in sorted(root.rglob("*"))}


def write_disk(disk: Disk, root: Path) -> None:
    """Write a folder anew."""
    root.mkdir(parents=True)
    for name, content in sorted(disk.items()):
        if content is None:
            (root / name).mkdir(parents=True, exist_ok=True)
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)


def disks_after_power_cuts(
    before: Disk, steps: list[Step], rng: random.Random, draws: int
) -> Iterator[tuple[int, Disk]]:
    """Yield (number of calls until then, what the disk may hold), each different disk once, and once at the end.

    After each call: with all that may be lost, without any of it, with and without each alone, and `draws` random choices.
    """
    seen = set[int]()
    for count in range(len(steps) + 1):
        pending = [i for i in range(count) if steps[i].kind != "sync" and not _is_durable(steps, i, count)]
        choices = [set(pending), set[int]()]
        choices += [set(pending) - {index} for index in pending] + [{index} for index in pending]
        choices += [{index for index in pending if rng.random() < 0.5} for _ in range(draws if len(pending) > 2 else 0)]
        for lost in choices:
            for is_torn in (False, True):
                disk = _disk(before, [s for i, s in enumerate(steps[:count]) if i not in lost], is_torn)
                key = hash((frozenset(disk.items()), count == len(steps)))  # at the end more is promised
                if key not in seen:
                    seen.add(key)
                    yield count, disk


def _is_durable(steps: list[Step], index: int, count: int) -> bool:
    later = steps[index + 1 : count]
    return any(s.kind == "sync" and s.path in (folder or "." for folder in steps[index].folders) for s in later)


def _disk(before: Disk, steps: list[Step], is_torn: bool) -> Disk:
    """Carry out steps; where the folder or the file of one is not there, it has no effect."""
    disk = dict(before)
    for step in steps:
        if step.kind == "make" and _has_folder(disk, step.path):
            disk[step.path] = None
        elif step.kind == "put" and _has_folder(disk, step.path):
            disk[step.path] = b"" if is_torn and not step.is_synced else step.content
        elif step.kind == "move" and step.path in disk and _has_folder(disk, step.to):
            disk[step.to] = disk.pop(step.path)
        elif step.kind == "delete":
            for path in [path for path in disk if path == step.path or path.startswith(f"{step.path}/")]:
                del disk[path]
    return disk


def _has_folder(disk: Disk, path: str) -> bool:
    folder = os.path.dirname(path)
    return not folder or (folder in disk and disk[folder] is None)
