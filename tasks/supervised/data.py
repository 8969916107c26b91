"""A user's data, referenced by a sweep as a file, a folder or a function, in memory or streamed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.parameters import Parameter
from depthrate.tasks.supervised.arrays import Splits, call_function, read_file
from depthrate.tasks.supervised.references import short_name
from depthrate.tasks.supervised.streaming import Streamed
from depthrate.tasks.supervised.targets.target import Target
from depthrate.tasks.supervised.user_callable import UserCallable


@dataclass(frozen=True)
class CustomData:
    """A custom data set."""

    source: Path | UserCallable
    target: Target
    """Target that builds data sets from its samples."""

    @property
    def name(self) -> str:
        """Name in a trial's parameters: `mine.npz`, `data:make`."""
        return short_name(str(self.source)) if isinstance(self.source, Path) else self.source.name

    @property
    def function(self) -> UserCallable | None:
        """The user's function, or None for a file or folder."""
        return None if isinstance(self.source, Path) else self.source

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        """Arguments of the user's function."""
        return () if self.function is None else self.function.arguments

    def read(self, arguments: Mapping[str, Any], stream: bool | None = None) -> Dataset | Streamed:
        """Read all samples unprepared, or return the object that streams them, once per process.

        Args:
            arguments: Arguments of a trial.
            stream: Whether the samples are streamed. None: if they are large (`items.STREAMED_BYTES`).
        Raises:
            DatasetError: The samples cannot be read, have different forms, or cannot be streamed.
        """
        return self.opened(arguments).read(stream)

    def opened(self, arguments: Mapping[str, Any], *, is_compared: bool = False) -> OpenedData:
        """Read the samples for these arguments, or find them as read before.

        Args:
            arguments: Arguments of a trial.
            is_compared: Whether a function is called again, as in another process, and some samples are compared.
        Raises:
            DatasetError: The samples cannot be read, or differ.
        """
        if isinstance(self.source, Path):
            call = functools.partial(read_file, self.source, self.name)
            key: tuple[Any, ...] = (self.source, _changed_at(self.source))
        else:
            values = self.source.values(arguments)
            call = functools.partial(call_function, self.source.make, values, self.name)
            key = (self.source.make, repr(values))  # repr, since 1, 1.0 and True differ, and a list has no hash
        key = (*key, self.target)
        if (opened := _OPENED.pop(key, None)) is None:
            splits = call()
            if is_compared and self.function is not None:
                splits.compare(call_function(self.function.imported_again(), values, self.name))
            opened = OpenedData(splits, call, self.name, self.target)
        _OPENED[key] = opened
        if len(_OPENED) > MAX_OPENED:
            del _OPENED[next(iter(_OPENED))]
        return opened


class OpenedData:
    """Splits as read, converted to a data set or a stream on first request."""

    def __init__(self, splits: Splits, call: Callable[[], Splits], name: str, target: Target):
        """Store the splits, and the function that reads them again."""
        self._call, self._name, self._target = call, name, target
        self._splits: Splits | None = splits
        self._is_indexed, self.is_large, self.is_from_loader = splits.is_indexed, splits.is_large, splits.is_from_loader
        self.columns = splits.columns
        self._streamed: Streamed | None = None
        self._held: Dataset | None = None

    def read(self, stream: bool | None) -> Dataset | Streamed:
        """Return the data set, or the object that streams it, as `CustomData.read`."""
        if self.is_large if stream is None else stream:
            if not self._is_indexed:
                raise DatasetError(
                    f"stream is true, but {self._name} can only be read in full. Use a folder with x.npy and y.npy, or a "
                    "function ./data.py:make that returns a map-style data set."
                )
            if self._streamed is None:
                self._streamed = self._target.streamed(self._splits or self._call(), self._name)
            return self._streamed
        if self._held is None:
            splits, self._splits = self._splits or self._call(), None  # frees the unprepared copy
            self._held = self._target.dataset(splits, self._name)
        return self._held


_OPENED: dict[tuple[Any, ...], OpenedData] = {}
MAX_OPENED = 2
"""Maximum number of data sets that a process caches. The least recently used one is dropped first."""


def _changed_at(path: Path) -> tuple[int, ...]:
    """Return numbers that change when a file, or any file in a folder, changes."""
    try:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        return tuple(number for file in files for number in (file.stat().st_mtime_ns, file.stat().st_size))
    except OSError:
        return ()
