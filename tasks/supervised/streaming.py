"""Custom data that are too large for memory: batches are read when they are drawn, and a fixed sample is measured.

Shapes: N samples, M measured samples, B samples per batch, I numbers per sample.
"""

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
from depthrate.tasks.supervised.items import (
    ITEMS_PER_READ,
    Items,
    check_numbers,
    examined_indices,
    first_not_finite,
    flattened,
)
from depthrate.tasks.supervised.parameters import DEFAULT_MEASURED_SAMPLES, SupervisedParameters


class Streamed(ABC):
    """Custom data by index, known from a few samples per split."""

    has_targets = False
    """Whether labels are numbers."""
    labels_tokens = False
    """Whether a sample has one label per token."""

    def __init__(self, splits: Splits, name: str):
        """Read a few samples.

        Raises:
            DatasetError: They cannot be read, differ in form or between reads, or cannot be trained on.
        """
        self.splits, self.name = splits, name
        self._measured = functools.lru_cache(maxsize=2)(self._read_measured)  # shared by packs; training and test split
        training = splits.training
        indices = examined_indices(len(training))
        training.read(indices[:1])  # this read is not timed, since it may open files
        started = time.perf_counter()
        x, y = training.read(indices)
        self._sample_s = (time.perf_counter() - started) / len(indices)
        check_numbers(x, name, "training")
        training.check_reread(indices, x, y)
        self._item_shape, self._dtype = x.shape[1:], x.dtype
        self.x_NI, self.sample_shape = flattened(x)  # of the examined samples
        self._learn_labels(y)
        digest = hashlib.sha256(repr(("streamed", x.dtype.str, x.shape[1:], splits.vocabulary_size)).encode())
        digest.update(self._labels_digest())
        digest.update(self._digest(training, indices, x, y))
        if splits.test is not None:
            test_indices = examined_indices(len(splits.test))
            digest.update(self._digest(splits.test, test_indices, *splits.test.read(test_indices)))
        self.content_hash = digest.hexdigest()
        """SHA-256 of length, form, all labels if known, and the examined samples, in hexadecimal."""

    @property
    def num_samples(self) -> int:
        return len(self.splits.training)

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Number of classes, numbers per target, or tokens."""

    @property
    def labels_held(self) -> int:
        """Number of labels in memory."""
        return 0

    @abstractmethod
    def _learn_labels(self, y_B: np.ndarray) -> None:
        """Determine which labels exist from a few samples and from the data's declarations."""

    def _labels_digest(self) -> bytes:
        return b""

    @abstractmethod
    def _convert_labels(self, y_B: np.ndarray, indices_B: np.ndarray) -> np.ndarray:
        """Convert labels to their form in training."""

    def _choose(self, split: Items, num_measured: int, data_seed: int) -> np.ndarray:
        """Draw the indices of a sample of a split uniformly, in ascending order."""
        return np.sort(np.random.default_rng([data_seed, 0]).choice(len(split), num_measured, replace=False))

    @abstractmethod
    def _dataset(self, x_MI: np.ndarray, labels_M: np.ndarray) -> Dataset:
        """Build a data set from the measured samples."""

    @property
    def min_measured(self) -> int:
        """Minimum number of measured samples."""
        return 2 * self.num_outputs

    @property
    def default_measured(self) -> int:
        """Default number of measured samples."""
        return DEFAULT_MEASURED_SAMPLES

    def num_measured(self, measure_samples: int | None) -> int:
        return min(self.num_samples, measure_samples or self.default_measured)

    def shape(self, measure_samples: int | None, dtype: str) -> DataShape:
        """Return the shape of the training set, with the memory needed to read it."""
        inputs = int(np.prod(self.sample_shape))
        measured, item_bytes = self.num_measured(measure_samples), inputs * self._dtype.itemsize
        stored_bytes = measured * item_bytes * (1 if self.splits.test is None else 2) + 3 * 8 * self.labels_held
        return DataShape(
            num_samples=self.num_samples,
            sample_shape=self.sample_shape,
            num_classes=self.num_outputs,
            vocabulary_size=self.splits.vocabulary_size,
            has_targets=self.has_targets,
            labels_tokens=self.labels_tokens,
            stream=StreamShape(
                num_measured=measured, kept_bytes=stored_bytes, sample_bytes=item_bytes, sample_s=self._sample_s
            ),
            reading_bytes=2 * stored_bytes + measured * inputs * np.dtype(dtype).itemsize,
        )

    def prepared(self, trial: SupervisedParameters) -> Dataset:
        """Prepare the measured samples and the training stream, both normalised by the moments of the measured samples.

        Raises:
            DatasetError: A sample cannot be read or has another form, or a class is missing among the measured samples.
        """
        count, size = self.num_measured(trial.measure_samples), self.splits.vocabulary_size
        dtype = np.dtype(trial.dtype)
        x_MI, y_M = self._measured(count, trial.data_seed, False)
        input_moments = (0.0, 1.0) if size is not None else moments(x_MI, trial.normalize)
        label_moments = None if size is not None else self._label_moments(y_M, trial)

        def scale(x_BI: np.ndarray, y_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            y_B = y_B if label_moments is None else scaled(y_B, *label_moments, dtype)
            return scaled(x_BI, *input_moments, dtype) if size is None else x_BI.astype(np.int64), y_B

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

    def _read_measured(self, num_measured: int, data_seed: int, is_test: bool) -> tuple[np.ndarray, np.ndarray]:
        split = self.splits.test if is_test else self.splits.training
        assert split is not None
        chosen = self._choose(split, min(num_measured, len(split)), data_seed)
        x_MI = np.empty((len(chosen), int(np.prod(self.sample_shape))), self._dtype)
        parts = []
        for start in range(0, len(chosen), ITEMS_PER_READ):
            indices = chosen[start : start + ITEMS_PER_READ]
            x_MI[start : start + ITEMS_PER_READ], y = self._read(split, indices)
            parts.append(y)
        return x_MI, np.concatenate(parts)

    def _read(self, split: Items, indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read samples [B, I] and their labels in training form, and check their form."""
        return self._checked(*split.read(indices_B), indices_B)

    def _checked(self, x: np.ndarray, y: np.ndarray, indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if x.shape[1:] != self._item_shape or x.dtype != self._dtype:
            raise DatasetError(
                f"{self.name}: items from {indices_B[0]} on are {x.dtype} of shape {list(x.shape[1:])}, earlier ones "
                f"{self._dtype} of shape {list(self._item_shape)}. Convert them in __getitem__."
            )
        if (bad := first_not_finite(x)) is not None:
            raise DatasetError(f"{self.name}: item {indices_B[bad]} has a number that is NaN or infinite. Remove it.")
        size = self.splits.vocabulary_size
        if size is not None and (x.dtype.kind not in "iu" or x.min() < 0 or x.max() >= size):
            raise DatasetError(
                f"{self.name}: tokens are {x.dtype} from {x.min()} to {x.max()}, but vocabulary_size is {size}. Use int "
                f"0 to {size - 1}."
            )
        return flattened(x)[0], self._convert_labels(y, indices_B)

    def _digest(self, split: Items, indices: np.ndarray, x: np.ndarray, y: np.ndarray) -> bytes:
        """Return a digest of these samples of a split."""
        x_BI, labels_B = self._checked(x, y, indices)
        return hashlib.sha256(x_BI.tobytes() + repr((len(split), labels_B.tolist())).encode()).digest()

    def check(self, trial: SupervisedParameters, draw: str) -> None:
        """Reject a trial that streamed samples do not support. `draw` is the parameter that limits the samples.

        Raises:
            ParameterError: Names the value and an allowed one.
        """
        count, limit = self.num_samples, getattr(trial, draw)
        if trial.batch_size is None or trial.batch_size >= count:
            size = "null, full batch" if trial.batch_size is None else f"{trial.batch_size}, all samples"
            raise ParameterError(
                f"batch_size is {size}, but the {count:,} samples of {trial.dataset!r} are streamed, and a step would read all "
                "of them. Set a smaller batch_size, or stream: false to hold them in memory."
            )
        if limit is not None:
            raise ParameterError(
                f"{draw} is {limit}, but {trial.dataset!r} is streamed in full. Set it to null and return a subset, "
                "torch.utils.data.Subset(...), or set stream: false to hold all in memory."
            )
        if self.num_measured(trial.measure_samples) < min(self.min_measured, count):
            raise ParameterError(
                f"measure_samples is {trial.measure_samples}, but {trial.dataset!r} has {self.num_outputs} outputs. Set at "
                f"least {self.min_measured}."
            )

    def describe(self) -> str:
        """Describe the samples and their form."""
        return f"{self.num_samples:,} training samples {list(self.sample_shape)} of {self._dtype}, streamed"

    def remark(self, measure_samples: int | None) -> str:
        """Return the remark on training with these data and identifying them."""
        sampling = "equally many per class" if self.labels_held else "drawn uniformly"
        labels = ", all labels" if self.labels_held else ""
        return (
            f"{self.name}: {self.num_samples:,} samples are streamed. Batches are read when drawn. Loss and layers are those "
            f"of {self.num_measured(measure_samples):,} samples, {sampling}, by data_seed. The data are identified by number, "
            f"form{labels} and {len(examined_indices(self.num_samples))} samples: a change elsewhere goes unseen."
        )
