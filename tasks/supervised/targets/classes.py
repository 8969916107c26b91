"""Classes, one per sample, with a custom network or custom data: the task `own`. Importable without torch.

Shapes: N samples, M measured samples, B samples per batch, I numbers per sample, K classes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from depthrate.tasks.data.dataset import Dataset, DataShape, describe_classes
from depthrate.tasks.data.labels import LabelsError, check_classes
from depthrate.tasks.data.preparation import prepare_classes
from depthrate.tasks.data.published import PUBLISHED, load_dataset
from depthrate.tasks.data.sources import DatasetError, DataSource
from depthrate.tasks.measures.named_columns import parse_measure
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised import metrics
from depthrate.tasks.supervised.items import Items, check_samples, flattened
from depthrate.tasks.supervised.parameters import (
    DEFAULT_CONTEXT_LENGTH,
    DEFAULT_MEASURED_SAMPLES,
    DEFAULT_VOCABULARY_SIZE,
    MEASURED_PER_CLASS,
    SupervisedParameters,
)
from depthrate.tasks.supervised.streaming import Streamed
from depthrate.tasks.supervised.targets.target import Fields, Target

if TYPE_CHECKING:
    from depthrate.tasks.training.layers import Measure


class StreamedClasses(Streamed):
    """Streamed samples with one class each."""

    _classes: np.ndarray
    _labels_N: np.ndarray | None

    @property
    def num_outputs(self) -> int:
        return len(self._classes)

    @property
    def labels_held(self) -> int:
        return 0 if self._labels_N is None else len(self._labels_N)

    @property
    def default_measured(self) -> int:
        return max(DEFAULT_MEASURED_SAMPLES, MEASURED_PER_CLASS * self.num_outputs)

    def _learn_labels(self, y_B: np.ndarray) -> None:
        self._check(y_B, len(y_B))
        labels, count = self.splits.training.labels, self.splits.training.num_classes
        self._labels_N = None
        if labels is not None:
            self._check(labels, self.num_samples)
            classes, self._labels_N = np.unique(labels, return_inverse=True)
            self._classes = np.array(classes.tolist())
        elif count is not None:
            self._classes = np.arange(count)
        else:
            raise DatasetError(
                f"{self.name} is streamed, but its classes are unknown. Give the data set an attribute targets "
                "(one label per sample, as in torchvision) or num_classes (for labels 0 to num_classes - 1)."
            )
        _check_class_count(self._classes, self.name)

    def describe(self) -> str:
        """Add the classes, with counts if all labels are known."""
        if self._labels_N is None:
            return f"{super().describe()}, {self.num_outputs} classes"
        return f"{super().describe()}, {describe_classes([*map(str, self._classes)], np.bincount(self._labels_N))}"

    def _labels_digest(self) -> bytes:
        digest = hashlib.sha256(repr(self._classes.tolist()).encode())
        digest.update(b"" if self._labels_N is None else self._labels_N.astype("<i8").tobytes())
        return digest.digest()

    def _check(self, labels: np.ndarray, count: int) -> None:
        try:
            check_classes(labels, count)
        except LabelsError as error:
            raise DatasetError(f"{self.name}: {error}") from None

    def _convert_labels(self, y_B: np.ndarray, indices_B: np.ndarray) -> np.ndarray:
        self._check(y_B, len(indices_B))
        y_B = np.array(y_B.tolist())
        if (y_B.dtype.kind in "US") == (self._classes.dtype.kind in "US"):
            numbers_B = np.searchsorted(self._classes, y_B).clip(max=self.num_outputs - 1)
            wrong = self._classes[numbers_B] != y_B
        else:
            numbers_B, wrong = np.zeros(len(y_B), np.int64), np.ones(len(y_B), bool)
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            declared = "its targets are" if self._labels_N is not None else f"num_classes is {self.num_outputs}:"
            raise DatasetError(
                f"{self.name}: item {indices_B[first]} has label {y_B[first]!s}, but {declared} {self._classes[0]!s} to "
                f"{self._classes[-1]!s}. Return only these labels from __getitem__."
            )
        return numbers_B.astype(np.int64)

    def _choose(self, split: Items, num_measured: int, data_seed: int) -> np.ndarray:
        if num_measured == len(split):
            return np.arange(len(split))
        labels = self._labels_N if split is self.splits.training else split.labels
        if labels is None:
            return super()._choose(split, num_measured, data_seed)
        by_class = np.argsort(labels, kind="stable")
        _, counts = np.unique(labels, return_counts=True)
        chosen = []
        for number, members in enumerate(np.split(by_class, np.cumsum(counts)[:-1])):
            rng = np.random.default_rng([data_seed, number])
            num_chosen = min(len(members), num_measured // len(counts))
            chosen.append(members[rng.choice(len(members), num_chosen, replace=False)])
        return np.sort(np.concatenate(chosen))

    def _dataset(self, x_MI: np.ndarray, labels_M: np.ndarray) -> Dataset:
        counts_K = np.bincount(labels_M, minlength=self.num_outputs)
        if (missing := np.flatnonzero(counts_K == 0)).size:
            raise DatasetError(
                f"{self.name}: class {self._classes[missing[0]]!s} is not among the {len(labels_M):,} measured samples. "
                "Raise measure_samples, or give the data set an attribute targets, so that all classes are equally sampled."
            )
        order = np.argsort(labels_M, kind="stable")
        return Dataset(x_MI[order], labels_M[order], counts_K, self.sample_shape)


class Classes(Target):
    """One class per sample."""

    name = "own"
    doc = "Train a custom network or on custom data, and measure neural collapse layer by layer."
    metrics = metrics.CLASSES
    declares: ClassVar[Mapping[str, Fields]] = {"test": {"added_later": False}}
    draw = "samples_per_class"
    streamed = StreamedClasses

    def split(
        self, x: np.ndarray, y: np.ndarray, vocabulary_size: int | None, name: str, split: str
    ) -> tuple[Dataset, np.ndarray]:
        """Build a data set sorted by class, with class numbers as labels, and return it with the classes."""
        check_samples(x, name, split)
        try:
            check_classes(y, len(x))
        except LabelsError as error:
            raise DatasetError(f"{name}, {split} split: {error}") from None
        if vocabulary_size is not None and (
            x.ndim != 2 or x.dtype.kind not in "iu" or x.min() < 0 or x.max() >= vocabulary_size
        ):
            raise DatasetError(
                f"{name}: with vocabulary_size {vocabulary_size}, samples must be tokens, but they are {x.dtype} of shape "
                f"{list(x.shape)} from {x.min()} to {x.max()}. Use int 0 to {vocabulary_size - 1} as [N, tokens]."
            )
        classes, labels_N = np.unique(y, return_inverse=True)
        if split == "training":
            _check_class_count(classes, name)
        order = np.argsort(labels_N, kind="stable")
        flat_NI, sample_shape = flattened(x)
        labels_N = labels_N.astype(np.int64)
        vocabulary, names = vocabulary_size if split == "training" else None, tuple(map(str, classes))
        x_NI, counts_K = np.ascontiguousarray(flat_NI[order]), np.bincount(labels_N)
        return Dataset(x_NI, labels_N[order], counts_K, sample_shape, vocabulary, class_names=names), classes

    def check_alike(self, answers: np.ndarray, test_answers: np.ndarray, name: str) -> None:
        if len(answers) != len(test_answers) or (answers != test_answers).any():
            unshared = sorted(set(map(str, answers)) ^ set(map(str, test_answers)))
            raise DatasetError(f"{name}: class {unshared[0]} is in one split only. Add samples of it to the other.")

    def held_shape(self, whole: Dataset, trial: SupervisedParameters) -> DataShape:
        shape, samples_per_class = whole.shape, trial.samples_per_class
        num_samples = shape.num_samples if samples_per_class is None else samples_per_class * shape.num_classes
        trained_bytes = num_samples * shape.num_inputs * np.dtype(trial.dtype).itemsize
        return dataclasses.replace(
            shape, num_samples=num_samples, reading_bytes=2 * shape.reading_bytes + trained_bytes
        )

    def prepare(self, whole: Dataset, trial: SupervisedParameters) -> Dataset:
        return prepare_classes(
            whole if trial.test else dataclasses.replace(whole, test=None),
            trial.dataset,
            samples_per_class=trial.samples_per_class,
            data_seed=trial.data_seed,
            normalize=trial.normalize,
            dtype=trial.dtype,
        )

    def published_shape(self, trial: SupervisedParameters) -> DataShape:
        return PUBLISHED[trial.dataset].shape(**_published_sizes(trial))

    def load(self, trial: SupervisedParameters, source: DataSource) -> Dataset:
        return load_dataset(
            trial.dataset,
            source,
            data_seed=trial.data_seed,
            normalize=trial.normalize,
            test=trial.test,
            **_published_sizes(trial),
        )

    def check(self, trial: SupervisedParameters, whole: Dataset | Streamed | None) -> None:
        parse_measure(trial.measure, self.custom)
        if isinstance(whole, Streamed) or trial.samples_per_class is None:
            return
        smallest = PUBLISHED[trial.dataset].smallest_class if whole is None else min(whole.class_counts_K)
        if trial.samples_per_class > smallest:
            raise ParameterError(
                f"samples_per_class is {trial.samples_per_class}, but the smallest class of {trial.dataset!r} has "
                f"{smallest} samples. Set at most that, or null for all."
            )

    def measure(self, dataset: Dataset, trial: SupervisedParameters, split: str) -> Measure:
        from depthrate.tasks.supervised.targets.classes_training import layer_measurements

        names = parse_measure(trial.measure, self.custom)
        return layer_measurements(dataset.class_counts_K, trial.rank_tol, split=split, names=names)


def _published_sizes(trial: SupervisedParameters) -> dict[str, Any]:
    return {
        "samples_per_class": trial.samples_per_class,
        "context_length": trial.context_length or DEFAULT_CONTEXT_LENGTH,
        "vocabulary_size": trial.vocabulary_size or DEFAULT_VOCABULARY_SIZE,
        "dtype": trial.dtype,
    }


def _check_class_count(classes: np.ndarray, name: str) -> None:
    if len(classes) < 2:
        raise DatasetError(
            f"{name} has samples of one class only ({classes[0]!s}), but collapse is measured between class means. "
            "Use two or more classes."
        )
