"""Data of the user's that are too large to hold: batches are read as they are drawn, and a sample that seeds fix is measured.

Shapes: N samples, M of them that are measured, B of a batch, I numbers of a sample, K classes, m numbers of a target.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from depthrate.tasks.data.dataset import Dataset, DataShape, SampleStream, StreamShape
from depthrate.tasks.data.labels import LabelsError, check_classes
from depthrate.tasks.data.preparation import moments, scaled
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.own.arrays import Sets
from depthrate.tasks.own.data import check_class_count, check_numbers, flattened
from depthrate.tasks.own.items import AT_ONCE, Items

MEASURED, MEASURED_OF_A_CLASS = 4096, 20
"""Samples that are measured unless the sweep says how many, of all classes together and at least of each."""
LOOKED_AT = 32
"""Samples of a split that are read to know its form, and to tell it from others."""


class Streamed(ABC):
    """A user's data by index, of which a few samples of each split were looked at."""

    has_targets = labels_tokens = False
    """Whether a sample's label is numbers, and whether it is a label a token; else it is a class."""

    def __init__(self, sets: Sets, name: str):
        """Look at a few samples.

        Raises:
            DatasetError: they cannot be read, differ in form, are others each time, or are not what training takes.
        """
        self.sets, self.name = sets, name
        self._measured = functools.lru_cache(maxsize=2)(self._read_measured)
        """Kept for the packs to come, of the training and of the test split."""
        indices = looked_at(len(sets.training))
        first_x, _ = sets.training.read(indices[:1])  # opens files, say: its time tells nothing of the others
        started = time.perf_counter()
        x, y = sets.training.read(indices)
        self._sample_s = (time.perf_counter() - started) / len(indices)
        check_numbers(x, name, "training")
        if not np.array_equal(first_x[0], x[0], equal_nan=x.dtype.kind == "f"):
            raise DatasetError(
                f"{name} gives item {indices[0]} other numbers each time; a trial is told from others by its data: draw what "
                "is random from the index, np.random.default_rng(index)"
            )
        self._item_shape, self._dtype = x.shape[1:], x.dtype
        self.sample_shape = flattened(x)[1]
        self._learn_labels(y)
        digest = hashlib.sha256(repr(("streamed", x.dtype.str, x.shape[1:], sets.vocabulary_size)).encode())
        digest.update(self._labels_digest())
        digest.update(self._look(sets.training, indices, x, y))
        if sets.test is not None:
            of_test = looked_at(len(sets.test))
            digest.update(self._look(sets.test, of_test, *sets.test.read(of_test)))
        self.content_hash = digest.hexdigest()
        """Hexadecimal SHA-256 of length, form, all labels where they are known, and the samples that were looked at."""

    @property
    def num_samples(self) -> int:
        """Of the training split."""
        return len(self.sets.training)

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Classes, or numbers of a target."""

    @property
    def labels_held(self) -> int:
        """How many labels are in memory."""
        return 0

    @abstractmethod
    def _learn_labels(self, y_B: np.ndarray) -> None:
        """Learn what labels there are, from a few of them and what the data say beside their samples."""

    def _labels_digest(self) -> bytes:
        """Return what tells all labels, as far as they are known, from others."""
        return b""

    @abstractmethod
    def _labelled(self, y_B: np.ndarray, indices_B: np.ndarray) -> np.ndarray:
        """Return labels as training takes them."""

    def _chosen(self, split: Items, num_measured: int, data_seed: int) -> np.ndarray:
        """Return the indices of a sample of a split, upwards; drawn from all alike."""
        return np.sort(np.random.default_rng([data_seed, 0]).choice(len(split), num_measured, replace=False))

    @abstractmethod
    def _dataset(self, x_MI: np.ndarray, labels_M: np.ndarray) -> Dataset:
        """Return a measured sample as a data set."""

    @property
    def least_measured(self) -> int:
        """How many samples must be measured."""
        return 2 * self.num_outputs

    def num_measured(self, asked: int | None) -> int:
        """Return how many samples are measured."""
        return min(self.num_samples, asked or self._default_measured())

    def _default_measured(self) -> int:
        return MEASURED

    def shape(self, measure_samples: int | None, dtype: str) -> DataShape:
        """Return the shape of what is trained on, and what reading it takes."""
        inputs = int(np.prod(self.sample_shape))
        measured, item_bytes = self.num_measured(measure_samples), inputs * self._dtype.itemsize
        kept = measured * item_bytes * (1 if self.sets.test is None else 2) + 3 * 8 * self.labels_held
        return DataShape(
            num_samples=self.num_samples,
            sample_shape=self.sample_shape,
            num_classes=self.num_outputs,
            vocabulary_size=self.sets.vocabulary_size,
            has_targets=self.has_targets,
            labels_tokens=self.labels_tokens,
            stream=StreamShape(
                num_measured=measured, kept_bytes=kept, sample_bytes=item_bytes, sample_s=self._sample_s
            ),
            reading_bytes=2 * kept + measured * inputs * np.dtype(dtype).itemsize,
        )

    def prepared(
        self,
        *,
        measure_samples: int | None,
        data_seed: int,
        normalize: str,
        dtype: str,
        test: bool,
        standardize: bool = False,
    ) -> Dataset:
        """Return the measured sample with the stream that training draws from, both normalised by the sample's moments.

        Raises:
            DatasetError: a sample cannot be read, has another form, or a class is not in the sample.
        """
        count = self.num_measured(measure_samples)
        x_MI, y_M = self._measured(count, data_seed, False)
        of_inputs, of_labels = moments(x_MI, normalize), self._label_moments(y_M, standardize)
        number = np.dtype(dtype)

        def trained_on(x_BI: np.ndarray, y_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            if self.sets.vocabulary_size is not None:
                return x_BI.astype(np.int64), y_B
            return scaled(x_BI, *of_inputs, number), y_B if of_labels is None else scaled(y_B, *of_labels, number)

        def read(indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return trained_on(*self._read(self.sets.training, indices_B))

        held_out = None
        if test and self.sets.test is not None:
            held_out = self._dataset(*trained_on(*self._measured(count, data_seed, True)))
        measured = self._dataset(*trained_on(x_MI, y_M))
        return dataclasses.replace(
            measured,
            vocabulary_size=self.sets.vocabulary_size,
            test=held_out,
            stream=SampleStream(num_samples=self.num_samples, read=read),
        )

    def _label_moments(self, y_M: np.ndarray, standardize: bool) -> tuple[Any, Any] | None:
        return None

    def _read_measured(self, num_measured: int, data_seed: int, of_test: bool) -> tuple[np.ndarray, np.ndarray]:
        split = self.sets.test if of_test else self.sets.training
        assert split is not None
        chosen = self._chosen(split, min(num_measured, len(split)), data_seed)
        x_MI = np.empty((len(chosen), int(np.prod(self.sample_shape))), self._dtype)
        parts = []
        for start in range(0, len(chosen), AT_ONCE):
            indices = chosen[start : start + AT_ONCE]
            x_MI[start : start + AT_ONCE], y = self._read(split, indices)
            parts.append(y)
        return x_MI, np.concatenate(parts)

    def _read(self, split: Items, indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return samples [B, I] as they come and their labels as training takes them, of the form that was looked at."""
        return self._checked(*split.read(indices_B), indices_B)

    def _checked(self, x: np.ndarray, y: np.ndarray, indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if x.shape[1:] != self._item_shape or x.dtype != self._dtype:
            raise DatasetError(
                f"{self.name}: items {indices_B[0]} ... are {x.dtype} of shape {list(x.shape[1:])}, those before "
                f"{self._dtype} of shape {list(self._item_shape)}; bring all to one in __getitem__"
            )
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            bad = indices_B[np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(1))[0]]
            raise DatasetError(f"{self.name}: item {bad} has a number that is NaN or infinite; leave it out")
        size = self.sets.vocabulary_size
        if size is not None and (x.dtype.kind not in "iu" or x.min() < 0 or x.max() >= size):
            raise DatasetError(
                f"{self.name}: tokens are {x.dtype} from {x.min()} to {x.max()} and vocabulary_size is {size}; give whole "
                f"numbers 0 to {size - 1}"
            )
        return flattened(x)[0], self._labelled(y, indices_B)

    def _look(self, split: Items, indices: np.ndarray, x: np.ndarray, y: np.ndarray) -> bytes:
        """Return what tells these samples of a split from others."""
        x_BI, labels_B = self._checked(x, y, indices)
        return hashlib.sha256(x_BI.tobytes() + repr((len(split), labels_B.tolist())).encode()).digest()

    def remark(self, measure_samples: int | None) -> str:
        """Return the sentence that says how these data are trained on and told from others."""
        how = "the same number of each class" if self.labels_held else "drawn from all alike"
        labels = ", all labels" if self.labels_held else ""
        return (
            f"{self.name}: {self.num_samples:,} samples are streamed: a batch is read when it is drawn, and loss and layers "
            f"are those of {self.num_measured(measure_samples):,} samples, {how}, by data_seed. They are told from other data "
            f"by their number, form{labels} and {len(looked_at(self.num_samples))} samples: a change elsewhere goes unseen"
        )


class StreamedClasses(Streamed):
    """Samples with a class each."""

    _classes: np.ndarray
    _labels_N: np.ndarray | None

    @property
    def num_outputs(self) -> int:
        """Classes."""
        return len(self._classes)

    @property
    def labels_held(self) -> int:
        """How many labels are in memory."""
        return 0 if self._labels_N is None else len(self._labels_N)

    def _default_measured(self) -> int:
        return max(MEASURED, MEASURED_OF_A_CLASS * self.num_outputs)

    def _learn_labels(self, y_B: np.ndarray) -> None:
        self._check(y_B, len(y_B))
        labels, count = self.sets.training.labels, self.sets.training.num_classes
        self._labels_N = None
        if labels is not None:
            self._check(labels, self.num_samples)
            classes, self._labels_N = np.unique(labels, return_inverse=True)
            self._classes = np.array(classes.tolist())
        elif count is not None:
            self._classes = np.arange(count)
        else:
            raise DatasetError(
                f"{self.name} is streamed and does not say which classes there are; give the data set an attribute targets "
                "(a label a sample, as torchvision's have it) or num_classes (labels are then 0 to num_classes - 1)"
            )
        check_class_count(self._classes, self.name)

    def _labels_digest(self) -> bytes:
        digest = hashlib.sha256(repr(self._classes.tolist()).encode())
        digest.update(b"" if self._labels_N is None else self._labels_N.astype("<i8").tobytes())
        return digest.digest()

    def _check(self, labels: np.ndarray, count: int) -> None:
        try:
            check_classes(labels, count)
        except LabelsError as error:
            raise DatasetError(f"{self.name}: {error}") from None

    def _labelled(self, y_B: np.ndarray, indices_B: np.ndarray) -> np.ndarray:
        self._check(y_B, len(indices_B))
        y_B = np.array(y_B.tolist())
        if (y_B.dtype.kind in "US") == (self._classes.dtype.kind in "US"):
            numbers_B = np.searchsorted(self._classes, y_B).clip(max=self.num_outputs - 1)
            wrong = self._classes[numbers_B] != y_B
        else:
            numbers_B, wrong = np.zeros(len(y_B), np.int64), np.ones(len(y_B), bool)
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            known = "its targets are" if self._labels_N is not None else f"num_classes is {self.num_outputs}:"
            raise DatasetError(
                f"{self.name}: item {indices_B[first]} has label {y_B[first]!s}, and {known} {self._classes[0]!s} to "
                f"{self._classes[-1]!s}; give labels in __getitem__ that are among them"
            )
        return numbers_B.astype(np.int64)

    def _chosen(self, split: Items, num_measured: int, data_seed: int) -> np.ndarray:
        if num_measured == len(split):
            return np.arange(len(split))
        labels = self._labels_N if split is self.sets.training else split.labels
        if labels is None:
            return super()._chosen(split, num_measured, data_seed)
        by_class = np.argsort(labels, kind="stable")
        _, counts = np.unique(labels, return_counts=True)
        chosen = []
        for number, members in enumerate(np.split(by_class, np.cumsum(counts)[:-1])):
            rng = np.random.default_rng([data_seed, number])
            each = min(len(members), num_measured // len(counts))
            chosen.append(members[rng.choice(len(members), each, replace=False)])
        return np.sort(np.concatenate(chosen))

    def _dataset(self, x_MI: np.ndarray, labels_M: np.ndarray) -> Dataset:
        counts_K = np.bincount(labels_M, minlength=self.num_outputs)
        if (missing := np.flatnonzero(counts_K == 0)).size:
            raise DatasetError(
                f"{self.name}: class {self._classes[missing[0]]!s} is not among the {len(labels_M):,} samples that are "
                "measured; raise measure_samples, or give the data set an attribute targets, so that each class has as many"
            )
        order = np.argsort(labels_M, kind="stable")
        return Dataset(x_MI[order], labels_M[order], counts_K, self.sample_shape)


def looked_at(num_samples: int) -> np.ndarray:
    """Return the indices of the samples that are looked at: the first, the last, and others that are always the same."""
    others = np.random.default_rng(0).integers(num_samples, size=LOOKED_AT - 2)
    return np.unique([0, num_samples - 1, *others])
