"""A user's samples by index (a map-style data set or a pair of arrays), their checks, their flat form, and pixels of images.

Only requested samples are read. Importable without torch. Shapes: N samples, B samples read together, I numbers per sample.
"""

import mmap
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, cast

import numpy as np

from depthrate.tasks.code.explain import innermost_line
from depthrate.tasks.data.labels import LabelsError, as_array, is_missing
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.parameters import LARGEST

_GREY = ("1", "L", "I", "I;16", "I;16B", "F")
"""Pillow's modes with one number per pixel."""
_COLOUR = ("RGB", "P", "RGBA", "LA", "PA")
"""Modes that RGB represents if all pixels are opaque."""
_TRUNCATED = re.compile(r"(L|RGB|CMYK).*;16|(L|RGB)A?a?X")
"""Storage formats of which Pillow's modes keep 8 of 16 bits per channel, or not all channels."""


def is_image(value: Any) -> bool:
    return hasattr(value, "getbands") and hasattr(value, "convert")


def read_pixels(image: Any, name: str) -> np.ndarray:
    """Convert a grey Pillow image to its numbers [rows, columns], and others to bytes [3, rows, columns], turned as shown.

    Raises:
        DatasetError: An array would not have all values of the image.
    """
    if (loss := _find_loss(image)) is not None:
        raise DatasetError(
            f"{name} {loss}. Save it as grey (1 to 16 bits, int32 or float32) or opaque 8-bit RGB, or return arrays from a "
            "function ./data.py:make."
        )
    from PIL import ImageOps

    with suppress(Exception):  # corrupt metadata raise many kinds, and no viewer turns such an image
        image = ImageOps.exif_transpose(image)
    if image.mode in _GREY:
        pixels = np.asarray(image)
        return pixels.astype(pixels.dtype.newbyteorder("="))
    return np.moveaxis(np.asarray(image.convert("RGB")), -1, 0)


def _find_loss(image: Any) -> str | None:
    """Return a description of what an array would lose, or None."""
    if (num_frames := getattr(image, "n_frames", 1)) > 1 and image.format != "MPO":  # MPO adds previews to a photo
        return f"has {num_frames} frames, expected one"
    for codec, _, _, arguments in getattr(image, "tile", ()):
        stored, *others = arguments if isinstance(arguments, tuple) else (arguments,)
        is_rescaled = codec.startswith("ppm") and others[0] > 255
        if is_rescaled or (image.format != "WEBP" and _TRUNCATED.match(str(stored))):
            return f"is stored as {stored}, which Pillow reads as {image.mode} with fewer bits or channels"
    if image.mode not in (*_GREY, *_COLOUR):
        return f"has the mode {image.mode}, which RGB does not represent exactly"
    if not image.has_transparency_data:
        return None
    is_opaque = image.mode not in _GREY[2:] and np.asarray(image.convert("RGBA"))[..., 3].min() == 255
    return None if is_opaque else "has transparent pixels"


STREAMED_BYTES = 4e9
"""Size from which data are streamed by default, since `plan` would take minutes to read them. Part of a trial's identity."""
STREAMED_ITEMS = 1_000_000
"""Number of items from which a data set read item by item is streamed by default."""
MAX_MEMORY_SHARE = 0.5
"""Maximum share of this machine's memory for unprepared data. Training needs a second copy."""
ITEMS_PER_READ = 1024
"""Items read together."""
NUM_EXAMINED = 32
"""Samples per split that are read twice to find changes between readings, and to determine streamed data's identity."""
_NUMBERS: Any = (Real, np.bool_, Decimal)
_IS_NUMBER = np.vectorize(
    lambda one: isinstance(one, _NUMBERS) and one == one and -LARGEST < one < LARGEST, otypes=[bool]
)


class Items(ABC):
    """Samples read by index."""

    name: str
    """Name of the data, for messages."""

    @property
    @abstractmethod
    def labels(self) -> np.ndarray | None:
        """All labels, or None if they require reading the samples."""

    @property
    def num_classes(self) -> int | None:
        """Number of classes, if the data declare it."""
        return None

    @property
    @abstractmethod
    def is_large(self) -> bool:
        """Whether reading all items takes more memory or time than the default limits."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return samples [B, ...] and their labels [B], unprepared.

        Raises:
            DatasetError: The samples cannot be read, or their shapes differ.
        """

    def check_reread(self, indices_B: np.ndarray, x_B: np.ndarray, y_B: np.ndarray) -> None:
        """Read samples, and reject data that change from reading to reading.

        Raises:
            DatasetError: Names a sample that is not the one in `x_B` and `y_B`, and the remedy.
        """
        for index, *entries in zip(indices_B, *self.read(indices_B), x_B, y_B, strict=True):
            x, y, *before = map(np.asarray, entries)
            pairs = [(x, before[0])]
            if not (y.ndim == 0 and is_missing(y.item())):  # its checks name a missing label
                pairs.append((y, before[1]))
            if not all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs):
                raise DatasetError(
                    f"{self.name} gives different numbers for item {index} at each read, but data identify trials. Give random "
                    "numbers a fixed seed, and those of a transform the seed of its item: np.random.default_rng(index)."
                )

    @abstractmethod
    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all samples and labels.

        Raises:
            DatasetError: They cannot be read, differ in form, or do not fit into memory.
        """


@dataclass(frozen=True)
class ArrayItems(Items):
    """Samples [N, ...] and labels [N] as arrays, possibly mapped from files."""

    x: np.ndarray
    y: np.ndarray
    name: str

    @property
    def labels(self) -> np.ndarray:
        return self.y

    @property
    def is_large(self) -> bool:
        return self.x.nbytes > STREAMED_BYTES

    def __len__(self) -> int:
        return len(self.x)

    def read(self, indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Copy these rows, and release the pages of a mapped file."""
        rows = self.x[indices_B], self.y[indices_B]
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)
        return rows

    @cached_property
    def _mapping(self) -> mmap.mmap | None:
        """Read-only mapping of the samples from a file, with advice on random access, or None if they are in memory."""
        part: Any = self.x
        while part is not None and not (isinstance(part, np.memmap) and part.mode == "r"):
            part = getattr(part, "base", None)
        mapping = getattr(part, "_mmap", None)
        if mapping is None or not hasattr(mmap, "MADV_DONTNEED"):
            return None
        mapping.madvise(mmap.MADV_RANDOM)
        return cast(mmap.mmap, mapping)

    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        check_size(self.name, self.x.nbytes + self.y.nbytes)
        return self.x, self.y


@dataclass(frozen=True)
class DatasetItems(Items):
    """A map-style data set of torch, or any object with `__len__` and `__getitem__`. `__getitems__` is used if it exists."""

    dataset: Any
    name: str

    @property
    def labels(self) -> np.ndarray | None:
        """The data set's `targets`, as in torchvision, including those inside torch's subsets and concatenations."""
        labels = _targets(self.dataset)
        return labels if labels is not None and len(labels) == len(self) else None

    @property
    def num_classes(self) -> int | None:
        """The data set's `num_classes`, or the length of its `classes`."""
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
        """Whether the items exceed `STREAMED_ITEMS` or, estimated from the first, `STREAMED_BYTES`."""
        return len(self) > STREAMED_ITEMS or len(self) * self._first.nbytes > STREAMED_BYTES

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x_B, y_B = self._pairs(indices_B.tolist())
        return self._stacked(x_B, indices_B), self._labels(y_B)

    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        check_size(self.name, len(self) * self._first.nbytes)
        x, y = [], []
        for start in range(0, len(self), ITEMS_PER_READ):
            indices = np.arange(start, min(start + ITEMS_PER_READ, len(self)))
            x_B, y_B = self._pairs(indices.tolist())
            x.append(self._stacked(x_B, indices))
            y += y_B
            if x[-1].shape[1:] != x[0].shape[1:]:
                raise self._varies(start, x[-1].shape[1:], 0, x[0].shape[1:])
        samples, labels, examined = np.concatenate(x), self._labels(y), examined_indices(len(self))
        self.check_reread(examined, samples[examined], labels[examined])
        return samples, labels

    def _pairs(self, indices: list[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        items = self._items(indices)
        for index, item in zip(indices, items, strict=True):
            if not isinstance(item, tuple | list) or len(item) != 2:
                form = f"a {type(item).__name__}"
                form += f" of {len(item)}" if isinstance(item, tuple | list) else ""
                form += f" of {', '.join(map(str, item))}" if isinstance(item, Mapping) else ""
                raise DatasetError(
                    f"{self.name}: item {index} is {form}, expected a pair (sample, label). Wrap the data set in one whose "
                    "__getitem__ returns pairs."
                )
        return [named_array(x, self.name) for x, _ in items], [named_array(y, self.name) for _, y in items]

    def _items(self, indices: list[int]) -> list[Any]:
        many = getattr(self.dataset, "__getitems__", None)
        if many is None:
            return [self._item(index) for index in indices]
        try:
            items = list(many(indices))
        except Exception as error:
            items = [self._item(index) for index in indices]  # raises an error with the index, if one fails
            raise DatasetError(
                f"{self.name}: __getitems__ of {len(items)} indices from {indices[0]} on fails, but __getitem__ of each "
                f"succeeds: {innermost_line(error)}{type(error).__name__}: {error}"
            ) from error
        if len(items) != len(indices):
            raise DatasetError(
                f"{self.name}: __getitems__ of {len(indices)} indices returns {len(items)} items. Return one per index, or "
                "remove the method."
            )
        return items

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
        return numbers_of(np.stack(x_B), self.name)

    def _varies(self, index: int, shape: tuple[int, ...], other: int, others: tuple[int, ...]) -> DatasetError:
        return DatasetError(
            f"{self.name}: item {index} has shape {list(shape)}, item {other} {list(others)}. Convert all to one shape in "
            "__getitem__ (crop, resize, pad)."
        )

    def _labels(self, y_B: list[np.ndarray]) -> np.ndarray:
        has_one_each = all(y.size == 1 for y in y_B)
        return named_array([y.item() if has_one_each else y for y in y_B], self.name)


def named_array(value: Any, name: str) -> np.ndarray:
    """Convert a value, a Pillow image or a list of them to a numpy array.

    Raises:
        DatasetError: Rows have different lengths, or an image or array cannot be converted without a loss.
    """
    if is_image(value):
        return read_pixels(value, f"{name}: an image")
    if isinstance(value, list | tuple) and value and is_image(value[0]):
        value = [named_array(image, name) for image in value]
    try:
        return as_array(value)
    except LabelsError as error:
        raise DatasetError(f"{name}: {error}") from error


def column_names(value: Any) -> list[str]:
    """Return the names of the columns of a table of pandas, polars or Arrow, and none for other values."""
    return [str(name) for name in getattr(value, "column_names", getattr(value, "columns", ()))]


def numbers_of(value: Any, name: str) -> np.ndarray:
    """Convert samples or targets to an array [N, ...], and objects in columns or lists to the numbers that they are.

    Raises:
        DatasetError: A column of a table or of objects has a value that is not a finite number, or lists differ in form.
    """
    x, columns = named_array(value, name), column_names(value)
    is_object = x.dtype.kind == "O"
    if is_object and x.ndim == 1 and any(isinstance(row, list | np.ndarray) for row in x):
        try:
            return np.stack([numbers_of(row, name) for row in x])
        except ValueError as error:
            raise DatasetError(f"{name}: lists differ in form ({error}). Convert all to one shape.") from None
    if not (is_object or columns) or x.dtype.kind in "iub" or x.ndim not in (1, 2):
        return x
    x_NI = x.reshape(len(x), -1)
    wrong_NI = ~np.isfinite(x_NI) if x.dtype.kind == "f" else ~_IS_NUMBER(x_NI) | (not is_object)
    if wrong_NI.any():
        column = int(np.argmax(wrong_NI.any(0)))
        rows = np.flatnonzero(wrong_NI[:, column]).tolist()
        row = min(
            rows, key=lambda row: bool(re.fullmatch(r"[-+.\de]+", str(x_NI[row, column])))
        )  # "?" rather than "95"
        entry, place = x_NI[row, column], value.index[row] if hasattr(value, "iloc") else row
        raise DatasetError(
            f"{name}: column {(columns or range(column + 1))[column]!r} has "
            f"{repr(entry) if isinstance(entry, str) else str(entry):.60} in row {place}, and {len(rows)} of its {len(x)} "
            "entries are not finite numbers. Convert or remove the column, or remove these rows."
        )
    return x.astype(np.float64) if is_object else x


def examined_indices(num_samples: int) -> np.ndarray:
    """Return the indices of the examined samples: the first, the last, and fixed random ones."""
    if num_samples == 0:
        return np.zeros(0, np.int64)
    others = np.random.default_rng(0).integers(num_samples, size=NUM_EXAMINED - 2)
    return np.unique([0, num_samples - 1, *others])


def check_size(path: Path | str, num_bytes: float) -> None:
    """Reject data that do not fit into this machine's memory.

    Raises:
        DatasetError: Names both sizes.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if num_bytes > MAX_MEMORY_SHARE * memory:
        raise DatasetError(
            f"{path} takes {num_bytes / 1e9:.1f} GB unpacked, but this machine has {memory / 1e9:.1f} GB of memory, and "
            "training needs a second copy. Set stream: true with a folder of x.npy and y.npy or a function that returns a "
            "map-style data set, or use a part of the data."
        )


def check_not_empty(x: np.ndarray, name: str, split: str) -> None:
    """Reject a split without samples, or with empty samples.

    Raises:
        DatasetError: Names the split.
    """
    if x.size:
        return
    content = "no samples" if not len(x) else f"{len(x)} samples without numbers"
    remedy = "Leave x_test and y_test out, or add samples." if split == "test" else "Add samples."
    raise DatasetError(f"{name}: the {split} split has {content} (its x has shape {list(x.shape)}). {remedy}")


def check_numbers(x: np.ndarray, name: str, split: str) -> None:
    """Reject samples that are not numbers [N, ...]. NaN and infinity are accepted.

    Raises:
        DatasetError: Names the split.
    """
    check_not_empty(x, name, split)
    if x.ndim < 2 or x.dtype.kind not in "iufb":
        raise DatasetError(
            f"{name}: the {split} split's samples are {x.dtype} of shape {list(x.shape)}, expected numbers [N, ...] (images: "
            "[N, channels, rows, columns])"
        )
    *others, last = x.shape[1:]
    if len(others) > 1 and last <= 4 and (min(others) > 4 or (len(others) == 2 and others[0] == others[1] > last)):
        raise DatasetError(
            f"{name}: the {split} split's samples have shape {[*others, last]}, as if their channels were last, expected "
            f"[channels, rows, columns]. Use np.moveaxis(x, -1, 1). If they have {others[0]} channels, give [N, numbers] and "
            "reshape in the network."
        )


def check_samples(x: np.ndarray, name: str, split: str) -> None:
    """Reject samples that are not finite numbers [N, ...].

    Raises:
        DatasetError: Names the split.
    """
    check_numbers(x, name, split)
    if (bad := first_not_finite(x)) is not None:
        raise DatasetError(
            f"{name}: sample {bad} of the {split} split has a number that is NaN or infinite. Remove it."
        )


def first_not_finite(x: np.ndarray) -> int | None:
    """Return the index of the first sample that contains NaN or infinity, or None if all are finite."""
    if x.dtype.kind != "f" or np.isfinite(x).all():
        return None
    return int(np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(1))[0])


def flattened(x: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """Flatten samples to [N, I], bool as bytes, and return the shape of one. Images without a channel axis get one channel."""
    x = x[:, None] if x.ndim == 3 else x
    flat_NI = x.reshape(len(x), -1)
    return flat_NI.astype(np.uint8) if flat_NI.dtype.kind == "b" else flat_NI, x.shape[1:]


def _targets(dataset: Any) -> np.ndarray | None:
    targets = getattr(dataset, "targets", None)
    if targets is not None:
        try:
            return as_array(targets)
        except LabelsError:
            return None
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):  # torch's Subset
        all_labels = _targets(dataset.dataset)
        return None if all_labels is None else all_labels[np.asarray(dataset.indices)]
    if isinstance(parts := getattr(dataset, "datasets", None), list):  # torch's ConcatDataset
        labels_of_parts = [labels for part in parts if (labels := _targets(part)) is not None]
        return np.concatenate(labels_of_parts) if labels_of_parts and len(labels_of_parts) == len(parts) else None
    tensors = getattr(dataset, "tensors", None)  # torch's TensorDataset
    return as_array(tensors[1]) if isinstance(tensors, tuple) and len(tensors) == 2 else None
