"""Table of published data sets and their readers. Importable without torch.

Shapes: N samples, I numbers per image (channels x rows x columns) or tokens per text, K classes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from depthrate.tasks.data import formats
from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.data.preparation import drawn, prepare_classes
from depthrate.tasks.data.reviews import Corpus, load_corpus
from depthrate.tasks.data.sources import DatasetError, DataSource, Layout, Located, locate, opened_archive, read_files

CIFAR_BATCH = 10_000
READING_TEXT_BYTES = 60e6
"""Memory in bytes for reading the reviews' tokens (measured)."""
Files = Mapping[str, tuple[bytes, str]]
"""Content of each file and its path for messages: file -> (content, origin)."""
Decoded = tuple[np.ndarray, np.ndarray]
"""Images [N, I] and labels [N]."""


@dataclass(frozen=True, kw_only=True)
class PublishedDataset:
    """Properties of a published data set that are known before it is read."""

    num_samples: int
    smallest_class: int
    num_classes: int = 10
    image_shape: tuple[int, int, int] | None = None
    """Channels, rows and columns. None for text."""
    homepage: str = ""
    files_url: str = ""
    """Address of the published files of the first layout, without their names."""
    sha256: tuple[str, ...] = ()
    """Checksums of these files from established libraries, since publishers provide an MD5 or no checksum."""
    layouts: tuple[Layout, ...] = ()
    """Supported layouts, starting with the preferred one. Empty for data sets included in depthrate."""
    test: tuple[int, tuple[Layout, ...]] | None = None
    """Number of test samples and supported layouts of the test split. None without a supported test split."""
    read: Callable[[PublishedDataset, Layout, Files], Decoded] | None = None
    """Decoder for the files of a layout. None for text and for data sets included in depthrate."""

    @property
    def is_text(self) -> bool:
        return self.image_shape is None

    def shape(
        self,
        *,
        samples_per_class: int | None = None,
        context_length: int = 0,
        vocabulary_size: int = 0,
        dtype: str = "float64",
    ) -> DataShape:
        """Return the shape of the data set that `load_dataset` returns for the same arguments."""
        num_samples = self.num_samples if samples_per_class is None else samples_per_class * self.num_classes
        sample_shape = self.image_shape or (context_length,)
        image_bytes = (2 * self.num_samples + num_samples * np.dtype(dtype).itemsize) * math.prod(sample_shape)
        return DataShape(
            num_samples=num_samples,
            sample_shape=sample_shape,
            num_classes=self.num_classes,
            vocabulary_size=vocabulary_size if self.is_text else None,
            reading_bytes=READING_TEXT_BYTES if self.is_text else image_bytes,
        )


def _read_cifar10(info: PublishedDataset, layout: Layout, files: Files) -> Decoded:
    batches = [
        formats.read_cifar_python(*files[file], num_images=CIFAR_BATCH, labels=b"labels")
        if layout.is_python
        else formats.read_cifar_binary(*files[file], num_images=CIFAR_BATCH)
        for file in layout.files
    ]
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _read_cifar100(info: PublishedDataset, layout: Layout, files: Files) -> Decoded:
    content = files[layout.files[0]]
    if layout.is_python:
        return formats.read_cifar_python(*content, num_images=info.num_samples, labels=b"fine_labels")
    return formats.read_cifar_binary(*content, num_images=info.num_samples, label_bytes=2)


def _read_idx(info: PublishedDataset, layout: Layout, files: Files) -> Decoded:
    assert info.image_shape is not None
    _, rows, columns = info.image_shape
    images, labels = (files[file] for file in layout.files)
    return formats.read_idx_pair(images, labels, num_images=info.num_samples, rows=rows, columns=columns)


def _mnist_like(name: str, smallest_class: int, homepage: str, files_url: str, *sha256: str) -> PublishedDataset:
    training, test = (
        tuple(Layout(name, (f"{split}-images{dot}idx3-ubyte", f"{split}-labels{dot}idx1-ubyte")) for dot in "-.")
        for split in ("train", "t10k")
    )
    return PublishedDataset(
        num_samples=60_000,
        smallest_class=smallest_class,
        image_shape=(1, 28, 28),
        homepage=homepage,
        files_url=files_url,
        sha256=sha256,
        layouts=training,
        test=(10_000, test),
        read=_read_idx,
    )


def _of_file(layouts: tuple[Layout, ...], *files: tuple[str, ...]) -> tuple[Layout, ...]:
    """Return the training split's layouts with the files of the test split."""
    return tuple(dataclasses.replace(layout, files=names) for layout, names in zip(layouts, files, strict=True))


_CIFAR_PAGE, _CIFAR_FILES = "https://www.cs.toronto.edu/~kriz/cifar.html", "https://www.cs.toronto.edu/~kriz"
_CIFAR10_LAYOUTS = (
    Layout("cifar-10-batches-bin", tuple(f"data_batch_{batch}.bin" for batch in range(1, 6)), "cifar-10-binary.tar.gz"),
    Layout(
        "cifar-10-batches-py",
        tuple(f"data_batch_{batch}" for batch in range(1, 6)),
        "cifar-10-python.tar.gz",
        is_python=True,
    ),
)
_CIFAR10 = PublishedDataset(
    num_samples=50_000,
    smallest_class=5000,
    image_shape=(3, 32, 32),
    homepage=_CIFAR_PAGE,
    files_url=_CIFAR_FILES,
    sha256=("c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
    layouts=_CIFAR10_LAYOUTS,
    test=(CIFAR_BATCH, _of_file(_CIFAR10_LAYOUTS, ("test_batch.bin",), ("test_batch",))),
    read=_read_cifar10,
)
_CIFAR100 = (
    Layout("cifar-100-binary", ("train.bin",), "cifar-100-binary.tar.gz"),
    Layout("cifar-100-python", ("train",), "cifar-100-python.tar.gz", is_python=True),
)
_STL10 = (Layout("stl10_binary", ("train_X.bin", "train_y.bin"), "stl10_binary.tar.gz"),)
PUBLISHED = {
    "digits": PublishedDataset(num_samples=1797, smallest_class=174, image_shape=(1, 8, 8)),
    "mnist": _mnist_like(
        "mnist",
        5421,
        "https://yann.lecun.com/exdb/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "fashion_mnist": _mnist_like(
        "fashion_mnist",
        6000,
        "https://github.com/zalandoresearch/fashion-mnist",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    "kmnist": _mnist_like(
        "kmnist",
        6000,
        "https://codh.rois.ac.jp/kmnist/",
        "https://codh.rois.ac.jp/kmnist/dataset/kmnist",
        "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
        "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
    ),
    "cifar10": _CIFAR10,
    "cifar10_batch1": dataclasses.replace(  # a separate data set, so that a part is never mistaken for the whole
        _CIFAR10,
        num_samples=CIFAR_BATCH,
        smallest_class=937,
        layouts=tuple(dataclasses.replace(layout, files=layout.files[:1]) for layout in _CIFAR10_LAYOUTS),
    ),
    "cifar100": PublishedDataset(
        num_samples=50_000,
        smallest_class=500,
        num_classes=100,
        image_shape=(3, 32, 32),
        homepage=_CIFAR_PAGE,
        files_url=_CIFAR_FILES,
        sha256=("58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",),
        layouts=_CIFAR100,
        test=(10_000, _of_file(_CIFAR100, ("test.bin",), ("test",))),
        read=_read_cifar100,
    ),
    "stl10": PublishedDataset(
        num_samples=5000,
        smallest_class=500,
        image_shape=(3, 96, 96),
        homepage="https://cs.stanford.edu/~acoates/stl10/",
        files_url="https://cs.stanford.edu/~acoates/stl10",
        sha256=("f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",),
        layouts=_STL10,
        test=(8000, _of_file(_STL10, ("test_X.bin", "test_y.bin"))),
        read=lambda info, layout, files: formats.read_stl10_binary(
            files[layout.files[0]], files[layout.files[1]], num_images=info.num_samples
        ),
    ),
    "imdb": PublishedDataset(
        num_samples=25_000,
        smallest_class=12_500,
        num_classes=2,
        homepage="https://ai.stanford.edu/~amaas/data/sentiment/",
        files_url="https://ai.stanford.edu/~amaas/data/sentiment",
        sha256=("c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",),
        layouts=(Layout("aclImdb", (), "aclImdb_v1.tar.gz"),),
    ),
}


def check_dataset(name: str, source: DataSource) -> Located | None:
    """Locate the files of a data set. Return None for a data set included in depthrate.

    Raises:
        DatasetError: A file is missing. The message lists the paths searched and how to get the file.
    """
    info = PUBLISHED[name]
    return locate(name, info.layouts, source, info.homepage) if info.layouts else None


def check_test(name: str, source: DataSource) -> Located:
    """Locate the files of a data set's test split.

    Raises:
        DatasetError: The test split is not supported, or a file is missing. The message lists the paths searched.
    """
    info = PUBLISHED[name]
    if info.test is None:
        known = ", ".join(key for key, other in PUBLISHED.items() if other.test is not None)
        raise DatasetError(f"data set {name!r} has no test split. Set test: false, or dataset to one of {known}.")
    return locate(name, info.test[1], source, info.homepage)


def check_contents(name: str, source: DataSource) -> None:
    """Read a whole data set to verify it. Reviews are tokenised and cached for the trials.

    Raises:
        DatasetError: A file is missing or corrupt.
    """
    located = check_dataset(name, source)
    if PUBLISHED[name].is_text:
        load_corpus_of(name, source)
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
    test: bool = False,
) -> Dataset:
    """Load a data set, sample each class, normalise, and sort by class.

    Args:
        name: Key of PUBLISHED.
        source: Folder or other place with the files.
        samples_per_class: Number of samples per class. None: all.
        data_seed: Seed of the sample, which depends on nothing else. A smaller sample is a prefix of a larger one.
        normalize: Normalisation of images in float64, see `moments`.
        context_length: Number of tokens per text: the last ones are used.
        vocabulary_size: Number of distinct tokens. Less frequent tokens become UNKNOWN.
        dtype: Type of the normalised images.
        test: Whether to load the whole test split, normalised like the training split. Ignored for text.

    Returns:
        The samples, sorted by class.

    Raises:
        DatasetError: A file is missing or corrupt, or a class has too few samples.
    """
    info = PUBLISHED[name]
    if info.is_text:
        corpus = load_corpus_of(name, source)
        indices = drawn(name, corpus.labels_N, info.num_classes, samples_per_class, data_seed)
        x_NI, labels_N = corpus.contexts(indices, context_length, vocabulary_size), corpus.labels_N[indices]
        return Dataset(x_NI, labels_N, np.bincount(labels_N, minlength=info.num_classes), (), vocabulary_size)
    whole = _load_images(name, check_dataset(name, source), source)
    return prepare_classes(
        dataclasses.replace(whole, test=_load_test(name, source) if test else None),
        name,
        samples_per_class=samples_per_class,
        data_seed=data_seed,
        normalize=normalize,
        dtype=dtype,
    )


def _load_test(name: str, source: DataSource) -> Dataset:
    located, info = check_test(name, source), PUBLISHED[name]
    assert info.test is not None
    whole = _decode(dataclasses.replace(info, num_samples=info.test[0], layouts=info.test[1]), located, source)
    order = np.argsort(whole.labels_N, kind="stable")
    return dataclasses.replace(whole, x_NI=whole.x_NI[order], labels_N=whole.labels_N[order])


def load_corpus_of(name: str, source: DataSource) -> Corpus:
    """Load a whole text data set as tokens.

    Raises:
        DatasetError: The archive is missing or corrupt.
    """
    located = check_dataset(name, source)
    assert located is not None
    with opened_archive(located, source) as opened:
        return load_corpus(opened, f"{source.url}/{located.archive}")


def _load_images(name: str, located: Located | None, source: DataSource) -> Dataset:
    """Load all images in the order of the files."""
    info = PUBLISHED[name]
    return _as_dataset(info, _load_digits()) if located is None else _decode(info, located, source)


def _decode(info: PublishedDataset, located: Located, source: DataSource) -> Dataset:
    assert info.read is not None
    images_NI, labels_N = info.read(info, located.layout, read_files(located, source))
    last, origin = info.num_classes - 1, f"{', '.join(located.where)} in {source.url}"
    if labels_N.size == 0 or labels_N.min() < 0 or labels_N.max() > last:
        raise DatasetError(f"{origin} has labels outside 0..{last}. Download it again.")
    if images_NI.dtype.kind not in "iu":
        raise DatasetError(f"{origin} has {images_NI.dtype} pixels, expected bytes. Download it again.")
    return _as_dataset(info, (images_NI, labels_N))


def _as_dataset(info: PublishedDataset, decoded: Decoded) -> Dataset:
    images_NI, labels_N = decoded
    return Dataset(images_NI, labels_N, np.bincount(labels_N, minlength=info.num_classes), info.image_shape or ())


@cache
def _load_digits() -> Decoded:
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as arrays:
        return arrays["images_NI"], arrays["labels_N"].astype(np.int64)
