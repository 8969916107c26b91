"""Labelled images as class-sorted numpy arrays, read from their published files. Importable without torch.

Shapes: N samples, D input dimensions, K classes.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

GET_DATA = {
    "mnist": "the MNIST database of handwritten digits, http://yann.lecun.com/exdb/mnist/",
    "fashion_mnist": "https://github.com/zalandoresearch/fashion-mnist",
    "kmnist": "http://codh.rois.ac.jp/kmnist/",
}
NUM_SAMPLES = {"digits": 1797, "mnist": 60_000, "fashion_mnist": 60_000, "kmnist": 60_000}
SMALLEST_CLASS = {"digits": 174, "mnist": 5421, "fashion_mnist": 6000, "kmnist": 6000}
NUM_CLASSES = 10
IMAGES_FILE, LABELS_FILE = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


class DatasetError(ValueError):
    """A data set is missing or damaged; the message names the file, what was expected and the remedy."""


class DataSource(Protocol):
    """Where data sets are read from: a folder or any other place with files in folders."""

    @property
    def url(self) -> str:
        """The place, as the user gave it."""
        ...

    def find(self, folder: str, names: list[str]) -> str | None:
        """Return the path of the first of `names` that exists in `folder`, or None."""
        ...

    def read(self, path: str) -> bytes:
        """Return the bytes of a file that `find` gave."""
        ...


@dataclass(frozen=True)
class Dataset:
    """Images and labels sorted by class, so that each class is one contiguous segment."""

    x_ND: np.ndarray
    """Normalised inputs, float64."""
    labels_N: np.ndarray
    class_counts_K: np.ndarray

    @property
    def is_balanced(self) -> bool:
        """Whether every class has the same number of samples."""
        return bool((self.class_counts_K == self.class_counts_K[0]).all())


def check_dataset(name: str, source: DataSource) -> None:
    """Check that the files of a data set are where they should be.

    Raises:
        DatasetError: a file is missing; the message says where it was looked for and how to get it.
    """
    if name != "digits":
        for stem in (IMAGES_FILE, LABELS_FILE):
            _require(name, stem, source)


def load_dataset(
    name: str, source: DataSource, *, samples_per_class: int | None, data_seed: int, normalize: str
) -> Dataset:
    """Load a data set, draw `samples_per_class` images of each class, normalise, and sort by class.

    The draw depends on `data_seed` alone, and a smaller draw is a prefix of a larger one.

    Raises:
        DatasetError: a file is missing or damaged, or a class has too few samples.
    """
    images_ND, labels_N = _load_digits() if name == "digits" else _load_idx(name, source)
    indices = _draw(name, labels_N, samples_per_class, data_seed)
    x_ND = _normalize(images_ND[indices].astype(np.float64), normalize)
    labels_N = labels_N[indices]
    return Dataset(x_ND, labels_N, np.bincount(labels_N, minlength=NUM_CLASSES))


def _draw(name: str, labels_N: np.ndarray, samples_per_class: int | None, data_seed: int) -> np.ndarray:
    segments = []
    for label in range(NUM_CLASSES):
        members = np.flatnonzero(labels_N == label)
        if samples_per_class is not None:
            if len(members) < samples_per_class:
                raise DatasetError(
                    f"data set {name!r} has {len(members)} samples of class {label}, "
                    f"but samples_per_class is {samples_per_class}; give at most {len(members)}, or null for all"
                )
            rng = np.random.default_rng([data_seed, label])
            members = rng.permutation(members)[:samples_per_class]
        segments.append(members)
    return np.concatenate(segments)


def _normalize(x_ND: np.ndarray, normalize: str) -> np.ndarray:
    if normalize == "none":
        return x_ND
    axis = 0 if normalize == "per_feature" else None
    std = x_ND.std(axis=axis)
    return (x_ND - x_ND.mean(axis=axis)) / np.where(std > 0, std, 1.0)  # a pixel that is always dark stays 0


def _load_digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits  # a second and a half to import: only in the process that trains

    images, labels = load_digits(return_X_y=True)
    return images, labels.astype(np.int64)


def _load_idx(name: str, source: DataSource) -> tuple[np.ndarray, np.ndarray]:
    images_path, labels_path = (_require(name, stem, source) for stem in (IMAGES_FILE, LABELS_FILE))
    images = read_idx(source.read(images_path), f"{source.url}/{images_path}")
    labels = read_idx(source.read(labels_path), f"{source.url}/{labels_path}")
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise DatasetError(
            f"{images_path} holds an array of shape {images.shape} and {labels_path} one of shape {labels.shape}; "
            f"expected [N, rows, columns] and [N]; get both files again: {GET_DATA[name]}"
        )
    if labels.size == 0 or labels.min() < 0 or labels.max() >= NUM_CLASSES:
        raise DatasetError(f"{labels_path} in {source.url} holds labels outside 0..{NUM_CLASSES - 1}")
    return images.reshape(len(images), -1), labels.astype(np.int64)


def _require(name: str, stem: str, source: DataSource) -> str:
    names = [stem, stem + ".gz", stem.replace("-idx", ".idx"), stem.replace("-idx", ".idx") + ".gz"]
    path = source.find(name, names)
    if path is None:
        raise DatasetError(
            f"data set {name!r} not found: looked for {name}/{stem} and {name}/{stem}.gz in {source.url}; "
            f"get the two training files from {GET_DATA[name]}, put them into a folder {name}/ "
            "and point DEPTHRATE_DATA at the folder above it"
        )
    return path


def read_idx(content: bytes, origin: str) -> np.ndarray:
    """Decode an IDX file, compressed with gzip or not.

    Raises:
        DatasetError: the content is not IDX, is cut short, or has bytes left over; the message names `origin`.
    """
    with _naming(origin):
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
            raise DatasetError(
                f"{origin} is not an IDX file (it begins with {content[:4].hex() or 'nothing'}); get it again"
            )
        dtype, num_dimensions = np.dtype(_IDX_TYPES[content[2]]), content[3]
        shape = struct.unpack_from(f">{num_dimensions}I", content, 4)
        offset = 4 + 4 * num_dimensions
        expected = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if len(content) != expected:
            raise DatasetError(
                f"{origin} is damaged: its header promises {expected} bytes for shape {list(shape)}, "
                f"it has {len(content)}; get it again"
            )
        return np.frombuffer(content, dtype, offset=offset).reshape(shape)


@contextmanager
def _naming(origin: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError, zlib.error, struct.error) as error:
        raise DatasetError(f"{origin} is damaged ({error}); get it again") from error
