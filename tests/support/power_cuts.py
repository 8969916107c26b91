"""What a disk may hold after a power cut: calls on folders that no fsync divides may have reached it in any order, or not.

POSIX promises of a name (made, renamed, deleted) that it is on the disk once its folder was synced, and of a file's content
that it is there once the file was. A rename is taken to be one step. After the method of ALICE (Pillai et al., OSDI 2014).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.crash_points import Deadline

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
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))
    }


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
        pending = [
            index for index in range(count) if steps[index].kind != "sync" and not _is_durable(steps, index, count)
        ]
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
    return any(
        step.kind == "sync" and step.path in (folder or "." for folder in steps[index].folders) for step in later
    )


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
