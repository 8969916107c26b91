"""Labelled images and texts as class-sorted numpy arrays, read from their published files. Importable without torch.

Shapes: N samples, D numbers of an image (channels x rows x columns) or tokens of a text, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from depthrate.tasks.data import image_files
from depthrate.tasks.data.reviews import Corpus, load_corpus
from depthrate.tasks.data.sources import DatasetError, DataSource, Layout, Located, locate, opened_archive, read_files

ROWS_AT_ONCE = 4096
CIFAR_BATCH = 10_000
CIFAR100_TRAINING = 50_000
STL10_TRAINING = 5000


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What is known of a data set before it is read."""

    num_samples: int
    smallest_class: int
    num_classes: int = 10
    image_shape: tuple[int, int, int] | None = None
    """Channels, rows, columns; null for a text."""
    homepage: str = ""
    layouts: tuple[Layout, ...] = ()
    """Forms in which it is read, the first one preferred; none for what comes with scikit-learn."""

    @property
    def is_text(self) -> bool:
        """Whether its samples are texts."""
        return self.image_shape is None


def _idx(name: str) -> tuple[Layout, ...]:
    return (
        Layout(name, ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")),
        Layout(name, ("train-images.idx3-ubyte", "train-labels.idx1-ubyte")),
    )


_CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_CIFAR10_BINARY = Layout(
    "cifar-10-batches-bin", tuple(f"data_batch_{batch}.bin" for batch in range(1, 6)), "cifar-10-binary.tar.gz"
)
_CIFAR10_PYTHON = Layout(
    "cifar-10-batches-py", tuple(f"data_batch_{batch}" for batch in range(1, 6)), "cifar-10-python.tar.gz"
)
DATASETS = {
    "digits": DatasetInfo(num_samples=1797, smallest_class=174, image_shape=(1, 8, 8)),
    "mnist": DatasetInfo(
        num_samples=60_000,
        smallest_class=5421,
        image_shape=(1, 28, 28),
        homepage="http://yann.lecun.com/exdb/mnist/",
        layouts=_idx("mnist"),
    ),
    "fashion_mnist": DatasetInfo(
        num_samples=60_000,
        smallest_class=6000,
        image_shape=(1, 28, 28),
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        layouts=_idx("fashion_mnist"),
    ),
    "kmnist": DatasetInfo(
        num_samples=60_000,
        smallest_class=6000,
        image_shape=(1, 28, 28),
        homepage="http://codh.rois.ac.jp/kmnist/",
        layouts=_idx("kmnist"),
    ),
    "cifar10": DatasetInfo(
        num_samples=50_000,
        smallest_class=5000,
        image_shape=(3, 32, 32),
        homepage=_CIFAR_PAGE,
        layouts=(_CIFAR10_BINARY, _CIFAR10_PYTHON),
    ),
    "cifar10_batch1": DatasetInfo(  # a data set of its own, so that a part never passes for the whole
        num_samples=CIFAR_BATCH,
        smallest_class=937,
        image_shape=(3, 32, 32),
        homepage=_CIFAR_PAGE,
        layouts=(
            Layout(_CIFAR10_BINARY.folder, _CIFAR10_BINARY.files[:1], _CIFAR10_BINARY.archive),
            Layout(_CIFAR10_PYTHON.folder, _CIFAR10_PYTHON.files[:1], _CIFAR10_PYTHON.archive),
        ),
    ),
    "cifar100": DatasetInfo(
        num_samples=CIFAR100_TRAINING,
        smallest_class=500,
        num_classes=100,
        image_shape=(3, 32, 32),
        homepage=_CIFAR_PAGE,
        layouts=(
            Layout("cifar-100-binary", ("train.bin",), "cifar-100-binary.tar.gz"),
            Layout("cifar-100-python", ("train",), "cifar-100-python.tar.gz"),
        ),
    ),
    "stl10": DatasetInfo(
        num_samples=STL10_TRAINING,
        smallest_class=500,
        image_shape=(3, 96, 96),
        homepage="https://cs.stanford.edu/~acoates/stl10/",
        layouts=(Layout("stl10_binary", ("train_X.bin", "train_y.bin"), "stl10_binary.tar.gz"),),
    ),
    "imdb": DatasetInfo(
        num_samples=25_000,
        smallest_class=12_500,
        num_classes=2,
        homepage="https://ai.stanford.edu/~amaas/data/sentiment/",
        layouts=(Layout("aclImdb", (), "aclImdb_v1.tar.gz"),),
    ),
}


@dataclass(frozen=True)
class Dataset:
    """Inputs and labels sorted by class, so that each class is one contiguous segment."""

    x_ND: np.ndarray
    """Normalised images, or token numbers."""
    labels_N: np.ndarray
    class_counts_K: np.ndarray

    @property
    def is_balanced(self) -> bool:
        """Whether every class has the same number of samples."""
        return bool((self.class_counts_K == self.class_counts_K[0]).all())


def check_dataset(name: str, source: DataSource) -> Located | None:
    """Return where the files of a data set lie; null for one that comes with scikit-learn.

    Raises:
        DatasetError: a file is missing; the message says where it was looked for and how to get it.
    """
    info = DATASETS[name]
    return locate(name, info.layouts, source, info.homepage) if info.layouts else None


def check_contents(name: str, source: DataSource) -> None:
    """Read all of a data set as a trial would; reviews are tokenised, and kept for the trials.

    Raises:
        DatasetError: a file is missing or damaged.
    """
    located = check_dataset(name, source)
    if DATASETS[name].is_text:
        _load_corpus(located, source)
    elif located is not None:
        _load_images(name, located, source)


def load_dataset(
    name: str,
    source: DataSource,
    *,
    samples_per_class: int | None,
    data_seed: int,
    normalize: str,
    context_length: int = 0,
    vocabulary_size: int = 0,
    dtype: str = "float64",
) -> Dataset:
    """Load a data set, draw `samples_per_class` samples of each class, normalise, and sort by class.

    The draw depends on `data_seed` alone, and a smaller draw is a prefix of a larger one. Images are normalised in
    float64 and given in `dtype`; of texts the last `context_length` tokens are given.

    Raises:
        DatasetError: a file is missing or damaged, or a class has too few samples.
    """
    info, located = DATASETS[name], check_dataset(name, source)
    if info.is_text:
        corpus = _load_corpus(located, source)
        indices = _draw(name, corpus.labels_N, samples_per_class, data_seed)
        x_ND, labels_N = corpus.contexts(indices, context_length, vocabulary_size), corpus.labels_N[indices]
    else:
        images_ND, all_labels_N = _load_images(name, located, source)
        indices = _draw(name, all_labels_N, samples_per_class, data_seed)
        x_ND, labels_N = _normalized(images_ND[indices], normalize, np.dtype(dtype)), all_labels_N[indices]
    return Dataset(x_ND, labels_N, np.bincount(labels_N, minlength=info.num_classes))


def cut_into_patches(x_ND: np.ndarray, image_shape: tuple[int, int, int], patch_size: int) -> np.ndarray:
    """Return images [N, D] with their numbers in the order of their patches: row by row of patches, whole patches in turn."""
    channels, rows, columns = image_shape
    down, across = rows // patch_size, columns // patch_size
    cut = x_ND.reshape(-1, channels, down, patch_size, across, patch_size)
    return cut.transpose(0, 2, 4, 1, 3, 5).reshape(x_ND.shape)


def _draw(name: str, labels_N: np.ndarray, samples_per_class: int | None, data_seed: int) -> np.ndarray:
    segments = []
    for label in range(DATASETS[name].num_classes):
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


def _normalized(images_ND: np.ndarray, normalize: str, dtype: np.dtype) -> np.ndarray:
    """Return images in `dtype`; pixels are whole numbers, so that their sums are exact and the same on every machine."""
    mean, std = _moments(images_ND, normalize)
    x_ND = np.empty(images_ND.shape, dtype)
    for start in range(
        0, len(images_ND), ROWS_AT_ONCE
    ):  # in parts: a whole set in float64 would be eight times its file
        rows = slice(start, start + ROWS_AT_ONCE)
        x_ND[rows] = (images_ND[rows].astype(np.float64) - mean) / std
    return x_ND


def _moments(images_ND: np.ndarray, normalize: str) -> tuple[np.ndarray | float, np.ndarray | float]:
    if normalize == "none":
        return 0.0, 1.0
    sum_D = np.zeros(images_ND.shape[1], np.int64)
    squares_D = np.zeros_like(sum_D)
    for start in range(0, len(images_ND), ROWS_AT_ONCE):
        block = images_ND[start : start + ROWS_AT_ONCE].astype(np.int64)
        sum_D += block.sum(0)
        squares_D += (block * block).sum(0)
    if normalize == "per_feature":
        count = len(images_ND)
        std_D = np.sqrt(count * squares_D - sum_D**2) / count
        return sum_D / count, np.where(std_D > 0, std_D, 1.0)  # a pixel that is always dark stays 0
    count, total, squares = images_ND.size, int(sum_D.sum()), int(squares_D.sum())
    std = (count * squares - total**2) ** 0.5 / count  # whole numbers too large for numpy's, not for Python's
    return total / count, std if std > 0 else 1.0


def _load_corpus(located: Located | None, source: DataSource) -> Corpus:
    assert located is not None
    with opened_archive(located, source) as opened:
        return load_corpus(opened, f"{source.url}/{located.archive}")


def _load_images(name: str, located: Located | None, source: DataSource) -> tuple[np.ndarray, np.ndarray]:
    if located is None:
        return _load_digits()
    files = read_files(located, source)
    images_ND, labels_N = _decode(name, files, located.layout)
    classes = DATASETS[name].num_classes
    if labels_N.size == 0 or labels_N.min() < 0 or labels_N.max() >= classes:
        raise DatasetError(f"{', '.join(located.where)} in {source.url}: labels outside 0..{classes - 1}; get it again")
    if images_ND.dtype.kind not in "iu":
        raise DatasetError(
            f"{located.where[0]} in {source.url} holds {images_ND.dtype} pixels; expected bytes; get it again"
        )
    return images_ND, labels_N


def _decode(name: str, files: Mapping[str, tuple[bytes, str]], layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    is_python = layout.folder.endswith(("-py", "-python"))
    if name in ("cifar10", "cifar10_batch1"):
        batches = [
            image_files.read_cifar_python(*files[file], num_images=CIFAR_BATCH, labels=b"labels")
            if is_python
            else image_files.read_cifar_binary(*files[file], num_images=CIFAR_BATCH)
            for file in layout.files
        ]
        images, labels = zip(*batches, strict=True)
        return np.concatenate(images), np.concatenate(labels)
    contents = [files[file] for file in layout.files]
    if name == "cifar100" and is_python:
        return image_files.read_cifar_python(*contents[0], num_images=CIFAR100_TRAINING, labels=b"fine_labels")
    if name == "cifar100":
        return image_files.read_cifar_binary(*contents[0], num_images=CIFAR100_TRAINING, label_bytes=2)
    if name == "stl10":
        return image_files.read_stl10_binary(*contents, num_images=STL10_TRAINING)
    info = DATASETS[name]
    assert info.image_shape is not None
    _, rows, columns = info.image_shape
    return image_files.read_idx_pair(*contents, num_images=info.num_samples, rows=rows, columns=columns)


@cache
def _load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Read scikit-learn's file as scikit-learn does, without the second and a half that its import takes."""
    package = find_spec("sklearn")
    assert package is not None and package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        table = np.loadtxt(path, delimiter=",")
        images, labels = table[:, :-1], table[:, -1]
    else:  # a version that keeps it elsewhere
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
    return images.astype(np.uint8), labels.astype(np.int64)
