"""A user's samples by index: a map-style data set or a pair of arrays, of which only the requested samples are read.

Shapes: N samples, B of them that are read together.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from depthrate.tasks.code.explain import innermost_line
from depthrate.tasks.data.labels import LabelsError, as_array
from depthrate.tasks.data.sources import DatasetError

STREAMED_BYTES = 4e9
"""Size of data from which on they are streamed by default: reading them at plan takes minutes. Part of a trial's identity."""
STREAMED_ITEMS = 1_000_000
"""Number of items, read one by one, from which on they are streamed by default."""
USABLE_SHARE = 0.5
"""Share of this machine's memory that data may take as they come. Training keeps a second copy."""
ITEMS_PER_READ = 1024
"""Items that are read together."""


class Items(ABC):
    """Samples that are read by their indices."""

    name: str
    """The name of the data, for messages."""

    @property
    @abstractmethod
    def labels(self) -> np.ndarray | None:
        """All labels, if they are known without reading samples."""

    @property
    def num_classes(self) -> int | None:
        """Number of classes, if the data declare it."""
        return None

    @property
    @abstractmethod
    def is_large(self) -> bool:
        """Whether reading all of them takes more memory or time than is taken by default."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return samples [B, ...] and their labels [B], as they come.

        Raises:
            DatasetError: they cannot be read, or are not of one form.
        """

    @abstractmethod
    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all samples and labels.

        Raises:
            DatasetError: they cannot be read, are not of one form, or do not fit into memory.
        """


@dataclass(frozen=True)
class ArrayItems(Items):
    """Samples [N, ...] and labels [N] as arrays, which may be mapped from files."""

    x: np.ndarray
    y: np.ndarray
    name: str

    @property
    def labels(self) -> np.ndarray:
        """All labels."""
        return self.y

    @property
    def is_large(self) -> bool:
        """Whether they take more than `STREAMED_BYTES`."""
        return self.x.nbytes > STREAMED_BYTES

    def __len__(self) -> int:
        return len(self.x)

    def read(self, indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return copies of these rows. No page of a mapped file stays in the process's memory."""
        rows = self.x[indices_B], self.y[indices_B]
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)
        return rows

    @cached_property
    def _mapping(self) -> mmap.mmap | None:
        """The read-only mapping of the samples from a file, advised of random access; None: they are in memory."""
        part: Any = self.x
        while part is not None and not (isinstance(part, np.memmap) and part.mode == "r"):
            part = getattr(part, "base", None)
        mapping = getattr(part, "_mmap", None)
        if mapping is None or not hasattr(mmap, "MADV_DONTNEED"):
            return None
        mapping.madvise(mmap.MADV_RANDOM)
        return cast(mmap.mmap, mapping)

    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        """Return both arrays as they are."""
        check_size(self.name, self.x.nbytes + self.y.nbytes)
        return self.x, self.y


@dataclass(frozen=True)
class DatasetItems(Items):
    """A map-style data set, of torch or with `__len__` and `__getitem__` like one. `__getitems__` is used if it exists."""

    dataset: Any
    name: str

    @property
    def labels(self) -> np.ndarray | None:
        """Its `targets`, as the data sets of torchvision have them, also behind torch's subsets and concatenations."""
        labels = _targets(self.dataset)
        return labels if labels is not None and len(labels) == len(self) else None

    @property
    def num_classes(self) -> int | None:
        """Its `num_classes`, or the number of names in its `classes`."""
        part = self.dataset
        while part is not None:
            if isinstance(count := getattr(part, "num_classes", None), int):
                return count
            if isinstance(names := getattr(part, "classes", None), Sequence):
                return len(names)
            part = getattr(part, "dataset", None)
        return None

    @cached_property
    def _first(self) -> np.ndarray:
        return self.read(np.zeros(1, np.int64))[0]

    @property
    def is_large(self) -> bool:
        """Whether they are more than `STREAMED_ITEMS` or, by the first, take more than `STREAMED_BYTES`."""
        return len(self) > STREAMED_ITEMS or len(self) * self._first.nbytes > STREAMED_BYTES

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples and labels of these items."""
        x_B, y_B = self._pairs(indices_B.tolist())
        return self._stacked(x_B, indices_B), self._labels(y_B)

    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples and labels of all items."""
        check_size(self.name, len(self) * self._first.nbytes)
        x, y = [], []
        for start in range(0, len(self), ITEMS_PER_READ):
            indices = np.arange(start, min(start + ITEMS_PER_READ, len(self)))
            x_B, y_B = self._pairs(indices.tolist())
            x.append(self._stacked(x_B, indices))
            y += y_B
            if x[-1].shape[1:] != x[0].shape[1:]:
                raise self._varies(start, x[-1].shape[1:], 0, x[0].shape[1:])
        return np.concatenate(x), self._labels(y)

    def _pairs(self, indices: list[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        items = self._items(indices)
        for index, item in zip(indices, items, strict=True):
            if not isinstance(item, tuple | list) or len(item) != 2:
                form = f"a {type(item).__name__}"
                form += f" of {len(item)}" if isinstance(item, tuple | list) else ""
                form += f" of {', '.join(map(str, item))}" if isinstance(item, Mapping) else ""
                raise DatasetError(
                    f"{self.name}: item {index} is {form}; each must be a pair (sample, label): wrap the data set in one whose "
                    "__getitem__ returns that"
                )
        return [self._array(x) for x, _ in items], [self._array(y) for _, y in items]

    def _items(self, indices: list[int]) -> list[Any]:
        many = getattr(self.dataset, "__getitems__", None)
        if many is not None:
            try:
                items = list(many(indices))
            except Exception as error:
                one_by_one = [self._item(index) for index in indices]  # which names the index that fails
                raise DatasetError(
                    f"{self.name}: __getitems__ of {len(one_by_one)} indices from {indices[0]} on fails, and __getitem__ of "
                    f"each does not: {innermost_line(error)}{type(error).__name__}: {error}"
                ) from error
            if len(items) != len(indices):
                raise DatasetError(
                    f"{self.name}: __getitems__ of {len(indices)} indices gives {len(items)} items; return one each, or leave "
                    "it out"
                )
            return items
        return [self._item(index) for index in indices]

    def _item(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            raise DatasetError(
                f"{self.name}: item {index} cannot be read: {innermost_line(error)}{type(error).__name__}: {error}"
            ) from error

    def _stacked(self, x_B: list[np.ndarray], indices_B: np.ndarray) -> np.ndarray:
        for index, x in zip(indices_B.tolist(), x_B, strict=True):
            if x.shape != x_B[0].shape:
                raise self._varies(index, x.shape, int(indices_B[0]), x_B[0].shape)
        return np.stack(x_B)

    def _varies(self, index: int, shape: tuple[int, ...], other: int, others: tuple[int, ...]) -> DatasetError:
        return DatasetError(
            f"{self.name}: item {index} has shape {list(shape)}, item {other} {list(others)}; bring all to one shape in "
            "__getitem__ (crop, resize, pad)"
        )

    def _labels(self, y_B: list[np.ndarray]) -> np.ndarray:
        is_one_each = all(y.size == 1 for y in y_B)
        return self._array([y.item() if is_one_each else y for y in y_B])

    def _array(self, value: Any) -> np.ndarray:
        return named_array(value, self.name)


def named_array(value: Any, name: str) -> np.ndarray:
    """Return what numpy makes of a value.

    Raises:
        DatasetError: rows of different lengths.
    """
    try:
        return as_array(value)
    except LabelsError as error:
        raise DatasetError(f"{name}: {error}") from error


def check_size(path: Path | str, num_bytes: float) -> None:
    """Refuse data that do not fit into this machine's memory.

    Raises:
        DatasetError: naming both sizes.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if num_bytes > USABLE_SHARE * memory:
        raise DatasetError(
            f"{path} takes {num_bytes / 1e9:.1f} GB unpacked, and this machine has {memory / 1e9:.1f} GB of memory, where "
            "training keeps a second copy; give stream: true with a folder of x.npy and y.npy or with a function that "
            "returns a map-style data set; or keep a part of it"
        )


def _targets(dataset: Any) -> np.ndarray | None:
    targets = getattr(dataset, "targets", None)
    if targets is not None:
        try:
            return as_array(targets)
        except LabelsError:
            return None
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):  # torch's Subset
        of_all = _targets(dataset.dataset)
        return None if of_all is None else of_all[np.asarray(dataset.indices)]
    if isinstance(parts := getattr(dataset, "datasets", None), list):  # torch's ConcatDataset
        known = [labels for part in parts if (labels := _targets(part)) is not None]
        return np.concatenate(known) if known and len(known) == len(parts) else None
    tensors = getattr(dataset, "tensors", None)  # torch's TensorDataset
    return as_array(tensors[1]) if isinstance(tensors, tuple) and len(tensors) == 2 else None
