"""A data set of the user's as a sweep names it: a file, a folder or a function, read whole or streamed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.own.arrays import (
    Arrays,
    Sets,
    arrays_of_file,
    is_of_mapped_arrays,
    sets_of_folder,
    sets_of_function,
)
from depthrate.tasks.own.data import dataset_of
from depthrate.tasks.own.streamed import Streamed, StreamedClasses


@dataclass(frozen=True)
class OwnData:
    """A data set of the user's: a file, a folder, or a function with arguments."""

    name: str
    path: Path | None = None
    make: Callable[..., Any] | None = None
    made_of: Callable[[Arrays, str], Dataset] = dataset_of
    """Makes a data set of its arrays."""
    streamed_of: Callable[[Sets, str], Streamed] = StreamedClasses
    """Makes what is streamed of what the function returns."""

    def read(self, arguments: Mapping[str, Any], stream: bool | None = None) -> Dataset | Streamed:
        """Return all of it as it comes, or what streams it; read once a process.

        stream: whether it is streamed; null: where it is large (`items.STREAMED_BYTES`).

        Raises:
            DatasetError: see `arrays_of_file`, `sets_of_function`, `Streamed`; or the arrays do not fit together.
        """
        if (made := self._made(arguments)) is not None:
            return made.read(stream)
        assert self.path is not None
        if stream:
            raise DatasetError(
                f"stream is true, but {self.name} is read whole; give a folder with x.npy and y.npy, or a function in a file, "
                "./data.py:make, that returns a map-style data set"
            )
        return _read(self.path, self.name, _changed_at(self.path), self.made_of)

    def settled(self, arguments: Mapping[str, Any], stream: bool | None) -> bool | None:
        """Return `stream` as trials are named by: true where it is streamed, null where data that are not large are held.

        Raises:
            DatasetError: as `read`.
        """
        if isinstance(self.read(arguments, stream), Streamed):
            return True
        made = self._made(arguments)
        return False if made is not None and made.is_large else None

    def is_from_loader(self, arguments: Mapping[str, Any]) -> bool:
        """Whether torch's loaders were returned, of which the data sets alone are taken."""
        return (made := self._made(arguments)) is not None and made.is_from_loader

    def _made(self, arguments: Mapping[str, Any]) -> _Made | None:
        """Return what has an index; null for files that are read whole."""
        if self.make is not None:
            return _made(self.make, self.name, tuple(arguments.items()), self.made_of, self.streamed_of)
        assert self.path is not None
        if not is_of_mapped_arrays(self.path):
            return None
        return _mapped(self.path, self.name, _changed_at(self.path), self.made_of, self.streamed_of)


class _Made:
    """What a function returned, or arrays mapped from files, read in one way or the other when that is first asked for."""

    def __init__(
        self,
        call: Callable[[], Sets],
        name: str,
        made_of: Callable[[Arrays, str], Dataset],
        streamed_of: Callable[[Sets, str], Streamed],
    ):
        self._call, self._name, self._made_of, self._streamed_of = call, name, made_of, streamed_of
        sets = call()
        self._sets: Sets | None = sets
        self.is_large, self.is_from_loader = sets.is_large, sets.is_from_loader
        self._streamed: Streamed | None = None
        self._held: Dataset | None = None

    def read(self, stream: bool | None) -> Dataset | Streamed:
        if self.is_large if stream is None else stream:
            if self._streamed is None:
                self._streamed = self._streamed_of(self._sets or self._call(), self._name)
            return self._streamed
        if self._held is None:
            sets, self._sets = self._sets or self._call(), None  # what is held needs no second copy as it came
            self._held = self._made_of(sets.arrays(), self._name)
        return self._held


def _changed_at(path: Path) -> tuple[int, ...]:
    """Return what changes when a file, or one of a folder, does."""
    try:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        return tuple(number for file in files for number in (file.stat().st_mtime_ns, file.stat().st_size))
    except OSError:
        return ()


@functools.lru_cache(maxsize=2)
def _read(path: Path, name: str, changed_at: tuple[int, ...], made_of: Callable[[Arrays, str], Dataset]) -> Dataset:
    return made_of(arrays_of_file(path), name)


@functools.lru_cache(maxsize=2)
def _mapped(
    path: Path,
    name: str,
    changed_at: tuple[int, ...],
    made_of: Callable[[Arrays, str], Dataset],
    streamed_of: Callable[[Sets, str], Streamed],
) -> _Made:
    return _Made(functools.partial(sets_of_folder, path, name), name, made_of, streamed_of)


@functools.lru_cache(maxsize=2)
def _made(
    make: Callable[..., Any],
    name: str,
    arguments: tuple[tuple[str, Any], ...],
    made_of: Callable[[Arrays, str], Dataset],
    streamed_of: Callable[[Sets, str], Streamed],
) -> _Made:
    return _Made(functools.partial(sets_of_function, make, dict(arguments), name), name, made_of, streamed_of)
