"""A user's data that are too large to hold: batches are read as they are drawn, and a fixed sample is measured.

Shapes: N samples, M of them measured, B of a batch, I numbers of a sample.
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
from depthrate.tasks.data.preparation import moments, scaled
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.arrays import Splits
from depthrate.tasks.supervised.items import ITEMS_PER_READ, Items
from depthrate.tasks.supervised.parameters import DEFAULT_MEASURED_SAMPLES, SupervisedParameters
from depthrate.tasks.supervised.samples import check_numbers, first_not_finite, flattened

NUM_EXAMINED = 32
"""Number of samples of a split that are read to learn its form and to identify it."""


class Streamed(ABC):
    """A user's data by index, of which a few samples of each split were read."""

    has_targets = False
    """Whether a sample's label is numbers."""
    labels_tokens = False
    """Whether a sample has a label per token."""

    def __init__(self, splits: Splits, name: str):
        """Read a few samples.

        Raises:
            DatasetError: they cannot be read, differ in form or between reads, or are not what training takes.
        """
        self.splits, self.name = splits, name
        self._measured = functools.lru_cache(maxsize=2)(self._read_measured)  # for later packs, training and test split
        training = splits.training
        indices = examined(len(training))
        first_x, _ = training.read(indices[:1])  # untimed: the first read may open files
        started = time.perf_counter()
        x, y = training.read(indices)
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
        digest = hashlib.sha256(repr(("streamed", x.dtype.str, x.shape[1:], splits.vocabulary_size)).encode())
        digest.update(self._labels_digest())
        digest.update(self._digest(training, indices, x, y))
        if splits.test is not None:
            of_test = examined(len(splits.test))
            digest.update(self._digest(splits.test, of_test, *splits.test.read(of_test)))
        self.content_hash = digest.hexdigest()
        """Hexadecimal SHA-256 of length, form, all labels where they are known, and the examined samples."""

    @property
    def num_samples(self) -> int:
        """Number of samples of the training split."""
        return len(self.splits.training)

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Number of classes, of numbers of a target, or of tokens."""

    @property
    def labels_held(self) -> int:
        """Number of labels in memory."""
        return 0

    @abstractmethod
    def _learn_labels(self, y_B: np.ndarray) -> None:
        """Learn which labels exist, from a few of them and from what the data declare."""

    def _labels_digest(self) -> bytes:
        """Return a digest of all labels, as far as they are known."""
        return b""

    @abstractmethod
    def _labelled(self, y_B: np.ndarray, indices_B: np.ndarray) -> np.ndarray:
        """Return labels as training takes them."""

    def _chosen(self, split: Items, num_measured: int, data_seed: int) -> np.ndarray:
        """Return the indices of a sample of a split, ascending, drawn uniformly."""
        return np.sort(np.random.default_rng([data_seed, 0]).choice(len(split), num_measured, replace=False))

    @abstractmethod
    def _dataset(self, x_MI: np.ndarray, labels_M: np.ndarray) -> Dataset:
        """Return a measured sample as a data set."""

    @property
    def min_measured(self) -> int:
        """Least number of samples that must be measured."""
        return 2 * self.num_outputs

    @property
    def default_measured(self) -> int:
        """Number of samples that are measured by default."""
        return DEFAULT_MEASURED_SAMPLES

    def num_measured(self, measure_samples: int | None) -> int:
        """Return the number of samples that are measured."""
        return min(self.num_samples, measure_samples or self.default_measured)

    def shape(self, measure_samples: int | None, dtype: str) -> DataShape:
        """Return the shape of the training set, and the memory that reading it takes."""
        inputs = int(np.prod(self.sample_shape))
        measured, item_bytes = self.num_measured(measure_samples), inputs * self._dtype.itemsize
        kept = measured * item_bytes * (1 if self.splits.test is None else 2) + 3 * 8 * self.labels_held
        return DataShape(
            num_samples=self.num_samples,
            sample_shape=self.sample_shape,
            num_classes=self.num_outputs,
            vocabulary_size=self.splits.vocabulary_size,
            has_targets=self.has_targets,
            labels_tokens=self.labels_tokens,
            stream=StreamShape(
                num_measured=measured, kept_bytes=kept, sample_bytes=item_bytes, sample_s=self._sample_s
            ),
            reading_bytes=2 * kept + measured * inputs * np.dtype(dtype).itemsize,
        )

    def prepared(self, trial: SupervisedParameters) -> Dataset:
        """Return the measured sample with the stream that training draws from, both normalised by the sample's moments.

        Raises:
            DatasetError: a sample cannot be read, has another form, or a class is not in the sample.
        """
        count, dtype, size = (
            self.num_measured(trial.measure_samples),
            np.dtype(trial.dtype),
            self.splits.vocabulary_size,
        )
        x_MI, y_M = self._measured(count, trial.data_seed, False)
        of_inputs = (0.0, 1.0) if size is not None else moments(x_MI, trial.normalize)
        of_labels = self._label_moments(y_M, trial)

        def scale(x_BI: np.ndarray, y_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            if size is not None:
                return x_BI.astype(np.int64), y_B
            return scaled(x_BI, *of_inputs, dtype), y_B if of_labels is None else scaled(y_B, *of_labels, dtype)

        def read(indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return scale(*self._read(self.splits.training, indices_B))

        test = None
        if trial.test and self.splits.test is not None:
            test = self._dataset(*scale(*self._measured(count, trial.data_seed, True)))
        stream = SampleStream(num_samples=self.num_samples, read=read)
        measured = self._dataset(*scale(x_MI, y_M))
        return dataclasses.replace(measured, vocabulary_size=size, test=test, stream=stream)

    def _label_moments(self, y_M: np.ndarray, trial: SupervisedParameters) -> tuple[Any, Any] | None:
        return None

    def _read_measured(self, num_measured: int, data_seed: int, of_test: bool) -> tuple[np.ndarray, np.ndarray]:
        split = self.splits.test if of_test else self.splits.training
        assert split is not None
        chosen = self._chosen(split, min(num_measured, len(split)), data_seed)
        x_MI = np.empty((len(chosen), int(np.prod(self.sample_shape))), self._dtype)
        parts = []
        for start in range(0, len(chosen), ITEMS_PER_READ):
            indices = chosen[start : start + ITEMS_PER_READ]
            x_MI[start : start + ITEMS_PER_READ], y = self._read(split, indices)
            parts.append(y)
        return x_MI, np.concatenate(parts)

    def _read(self, split: Items, indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return samples [B, I] as they come and their labels as training takes them, after a check of their form."""
        return self._checked(*split.read(indices_B), indices_B)

    def _checked(self, x: np.ndarray, y: np.ndarray, indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if x.shape[1:] != self._item_shape or x.dtype != self._dtype:
            raise DatasetError(
                f"{self.name}: items {indices_B[0]} ... are {x.dtype} of shape {list(x.shape[1:])}, those before "
                f"{self._dtype} of shape {list(self._item_shape)}; bring all to one in __getitem__"
            )
        if (bad := first_not_finite(x)) is not None:
            raise DatasetError(f"{self.name}: item {indices_B[bad]} has a number that is NaN or infinite; leave it out")
        size = self.splits.vocabulary_size
        if size is not None and (x.dtype.kind not in "iu" or x.min() < 0 or x.max() >= size):
            raise DatasetError(
                f"{self.name}: tokens are {x.dtype} from {x.min()} to {x.max()} and vocabulary_size is {size}; give whole "
                f"numbers 0 to {size - 1}"
            )
        return flattened(x)[0], self._labelled(y, indices_B)

    def _digest(self, split: Items, indices: np.ndarray, x: np.ndarray, y: np.ndarray) -> bytes:
        """Return a digest of these samples of a split."""
        x_BI, labels_B = self._checked(x, y, indices)
        return hashlib.sha256(x_BI.tobytes() + repr((len(split), labels_B.tolist())).encode()).digest()

    def check(self, trial: SupervisedParameters, draw: str) -> None:
        """Refuse a trial that streamed samples cannot do. draw: the parameter by which some samples are drawn.

        Raises:
            ParameterError: naming the value, and a value to give.
        """
        count, drawn = self.num_samples, getattr(trial, draw)
        if trial.batch_size is None or trial.batch_size >= count:
            size = "null, full batch" if trial.batch_size is None else f"{trial.batch_size}, all samples"
            raise ParameterError(
                f"batch_size is {size}, but the {count:,} samples of {trial.dataset!r} are streamed, and a step would read all "
                "of them; give a batch_size, or stream: false to hold them in memory"
            )
        if drawn is not None:
            raise ParameterError(
                f"{draw} is {drawn}, but {trial.dataset!r} is streamed, and no part of it is drawn; give null and return the "
                "part, torch.utils.data.Subset(...), or stream: false to hold all in memory"
            )
        if self.num_measured(trial.measure_samples) < min(self.min_measured, count):
            raise ParameterError(
                f"measure_samples is {trial.measure_samples}, but {trial.dataset!r} has {self.num_outputs} outputs; give at "
                f"least {self.min_measured}"
            )

    def remark(self, measure_samples: int | None) -> str:
        """Return the sentence on how these data are trained on and identified."""
        how = "the same number of each class" if self.labels_held else "drawn from all alike"
        labels = ", all labels" if self.labels_held else ""
        return (
            f"{self.name}: {self.num_samples:,} samples are streamed: a batch is read when it is drawn, and loss and layers "
            f"are those of {self.num_measured(measure_samples):,} samples, {how}, by data_seed. They are told from other data "
            f"by their number, form{labels} and {len(examined(self.num_samples))} samples: a change elsewhere goes unseen"
        )


def examined(num_samples: int) -> np.ndarray:
    """Return the indices of the samples that are examined: the first, the last, and others that are always the same."""
    others = np.random.default_rng(0).integers(num_samples, size=NUM_EXAMINED - 2)
    return np.unique([0, num_samples - 1, *others])
