"""Data sets as used by training: published data sets, generated data sets and custom arrays.

Importable without torch. Shapes: N samples, I numbers of a sample, K classes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

DISTANCE_BLOCK_ROWS = 10_000
"""Maximum number of samples for the pairwise distance check, which then takes about 10 s."""
COMPARED_AT_ONCE = 1000
MAX_SHOWN = 10
DUPLICATE_SQ_DISTANCE = 1e-12
"""Maximum squared distance, between samples of norm 1, that counts as zero (rounding)."""


@dataclass(frozen=True, kw_only=True)
class StreamShape:
    """Size and cost of samples that do not fit in memory and are read when a batch is sampled."""

    num_measured: int
    """Number of samples in memory, used to measure loss and layers."""
    kept_bytes: float = 0
    """Memory in bytes used throughout training, in addition to these samples and a batch."""
    sample_bytes: float = 0
    """Size in bytes of one sample as read."""
    sample_s: float = 0
    """Approximate seconds to read one sample."""


@dataclass(frozen=True, kw_only=True)
class SampleStream:
    """Training samples that are read when a batch is sampled."""

    num_samples: int
    read: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    """Function from indices [B] to training samples [B, I] and their class numbers [B] or targets [B, m]."""


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """Shape of a data set, known before it is read. It determines the networks and the predicted memory."""

    num_samples: int
    sample_shape: tuple[int, ...]
    """Shape of one sample: (channels, rows, columns) of an image, (tokens,) of a text, (I,) of a vector."""
    num_classes: int
    """Number of network outputs per sample: classes or, for a regression, the numbers of a target."""
    vocabulary_size: int | None = None
    """Number of distinct tokens if samples are texts, None if they are numbers."""
    has_targets: bool = False
    """True if samples have numeric targets instead of a class."""
    labels_tokens: bool = False
    """True if each token is labelled with the next token, instead of one label per text."""
    reading_bytes: float = 0
    """Memory in bytes needed for reading, including the resulting arrays."""
    stream: StreamShape | None = None
    """Size and cost of samples read on demand. None if all samples are in memory."""

    @property
    def num_held(self) -> int:
        """Number of samples in memory, used to measure loss and layers."""
        return self.num_samples if self.stream is None else self.stream.num_measured

    @property
    def num_inputs(self) -> int:
        """Number of values (or tokens) in one sample."""
        return math.prod(self.sample_shape)


@dataclass(frozen=True)
class Dataset:
    """Inputs and labels sorted by class, so that each class is one contiguous segment."""

    x_NI: np.ndarray
    """Flat samples: numbers, or token numbers of a text, to be reshaped to `sample_shape`."""
    labels_N: np.ndarray
    """Class numbers [N]. Targets [N, m] (regression) and classes per token [N, S] (next token) keep the order of the
    input samples."""
    class_counts_K: np.ndarray
    """Number of samples per class. Empty for a regression."""
    sample_shape: tuple[int, ...] = ()
    """Shape of one sample, () for a vector."""
    vocabulary_size: int | None = None
    """Number of distinct tokens if samples are texts, None if they are numbers."""
    test: Dataset | None = None
    """Test samples, which are not trained on, or None."""
    stream: SampleStream | None = None
    """Training samples read on demand. The arrays then hold only the measured samples."""
    class_names: tuple[str, ...] = ()
    """Name of each class, for messages. Empty: unknown."""

    @property
    def has_targets(self) -> bool:
        """Return whether samples have numeric targets instead of a class."""
        return self.labels_N.ndim == 2 and self.labels_N.dtype.kind == "f"

    @property
    def is_balanced(self) -> bool:
        """Return whether every class has the same number of samples."""
        return bool((self.class_counts_K == self.class_counts_K[0]).all())

    @property
    def num_samples(self) -> int:
        return len(self.x_NI) if self.stream is None else self.stream.num_samples

    @property
    def shape(self) -> DataShape:
        """Shape of the data set, which determines the networks."""
        return DataShape(
            num_samples=self.num_samples,
            sample_shape=self.sample_shape or self.x_NI.shape[1:],
            num_classes=self.labels_N.shape[1] if self.has_targets else len(self.class_counts_K),
            vocabulary_size=self.vocabulary_size,
            has_targets=self.has_targets,
            labels_tokens=self.labels_N.ndim == 2 and not self.has_targets,
            reading_bytes=self.x_NI.nbytes,
            stream=None if self.stream is None else StreamShape(num_measured=len(self.x_NI)),
        )

    def describe(self, split: str = "training") -> str:
        """Describe the samples of both splits, their form and range, and their classes with counts."""
        x_NI = self.x_NI
        text = f"{len(x_NI):,} {split} samples {list(self.shape.sample_shape)} of {x_NI.dtype}"
        text += f" from {x_NI.min():.6g} to {x_NI.max():.6g}, "
        if self.labels_N.ndim == 1:
            text += describe_classes(self.class_names, self.class_counts_K)
        else:
            text += f"{self.shape.num_classes} {'numbers per target' if self.has_targets else 'distinct tokens'}"
        return text if self.test is None else f"{text}. {self.test.describe('test')}"

    @cached_property
    def closest_samples(self) -> float | None:
        """Smallest distance between two samples scaled to norm 1. None for tokens or more than DISTANCE_BLOCK_ROWS samples."""
        if len(self.x_NI) > DISTANCE_BLOCK_ROWS or not np.issubdtype(self.x_NI.dtype, np.floating):
            return None
        unit_NI = self.x_NI.reshape(len(self.x_NI), -1).astype(np.float64)
        unit_NI = unit_NI / np.maximum(np.linalg.norm(unit_NI, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        smallest = np.inf
        for start in range(0, len(unit_NI), COMPARED_AT_ONCE):
            square_MN = 2 - 2 * unit_NI[start : start + COMPARED_AT_ONCE] @ unit_NI.T
            rows = np.arange(len(square_MN))
            square_MN[rows, start + rows] = np.inf
            smallest = min(smallest, float(square_MN.min()))
        return float(np.sqrt(smallest)) if smallest > DUPLICATE_SQ_DISTANCE else 0.0

    @cached_property
    def content_hash(self) -> str:
        """Hexadecimal SHA-256 of samples, labels and shape, including the test set."""
        digest = hashlib.sha256(
            repr((self.x_NI.shape, self.x_NI.dtype.str, self.sample_shape, self.vocabulary_size)).encode()
        )
        digest.update(np.ascontiguousarray(self.x_NI).data)
        digest.update(np.ascontiguousarray(self.labels_N, dtype="<f8" if self.has_targets else "<i8").data)
        if self.test is not None:
            digest.update(self.test.content_hash.encode())
        return digest.hexdigest()


def describe_classes(names: Sequence[str], counts_K: np.ndarray) -> str:
    """Describe the number of samples of each class, or of the first and last of many classes."""
    counts = [f"{name}: {count:,}" for name, count in zip(names, counts_K, strict=True)]
    spread = "equal" if len(set(counts_K.tolist())) == 1 else f"unequal, {counts_K.min():,} to {counts_K.max():,}"
    return f"{len(counts)} classes ({spread}): {shortened(counts)}"


def shortened(texts: Sequence[str]) -> str:
    """Join texts, or the first ones and the last of many."""
    return ", ".join(texts if len(texts) <= MAX_SHOWN else [*texts[: MAX_SHOWN - 1], "...", texts[-1]])


def numbered_samples(num_classes: int, num_samples: int) -> Dataset:
    """Build a balanced data set for models with free features, in which each sample is its index."""
    per_class = num_samples // num_classes
    labels_N = np.repeat(np.arange(num_classes), per_class)
    counts_K = np.full(num_classes, per_class)
    return Dataset(np.arange(num_samples)[:, None], labels_N, counts_K, vocabulary_size=num_samples)
