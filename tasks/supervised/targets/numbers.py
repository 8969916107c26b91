"""Regression on one or several numbers per sample: the task `regression`. Importable without torch.

Shapes: N samples, M measured samples, B samples per batch, I numbers per sample, m numbers per target, H hidden units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.data.preparation import moments, scaled
from depthrate.tasks.data.published import PUBLISHED, load_dataset
from depthrate.tasks.data.sources import DatasetError, DataSource
from depthrate.tasks.measures.named_columns import parse_measure
from depthrate.tasks.networks.builtin import ARCHITECTURES
from depthrate.tasks.supervised import metrics
from depthrate.tasks.supervised.items import check_samples, flattened, numbers_of
from depthrate.tasks.supervised.parameters import SupervisedParameters
from depthrate.tasks.supervised.streaming import Streamed
from depthrate.tasks.supervised.targets.target import Fields, Target, check_drawn

if TYPE_CHECKING:
    from depthrate.tasks.training.layers import Measure

HIDDEN = 32
_NO_CLASSES = np.zeros(0, np.int64)


class StreamedNumbers(Streamed):
    """Streamed samples with targets [m]."""

    has_targets = True
    _num_targets: int

    @property
    def num_outputs(self) -> int:
        return self._num_targets

    def _learn_labels(self, y_B: np.ndarray) -> None:
        self._num_targets = as_numbers(y_B, self.name).shape[1]

    def _convert_labels(self, y_B: np.ndarray, indices_B: np.ndarray) -> np.ndarray:
        y_Bm = as_numbers(y_B, f"{self.name}, items from {indices_B[0]} on")
        if y_Bm.shape[1] != self._num_targets:
            raise DatasetError(
                f"{self.name}: items from {indices_B[0]} on have targets of {y_Bm.shape[1]} numbers, earlier ones of "
                f"{self._num_targets}. Return equally many for each."
            )
        return y_Bm

    def _label_moments(self, y_M: np.ndarray, trial: SupervisedParameters) -> tuple[Any, Any] | None:
        return moments(y_M, "per_feature" if trial.standardize else "none")

    def _dataset(self, x_MI: np.ndarray, labels_M: np.ndarray) -> Dataset:
        _check_variation(labels_M, self.name, "all measured samples")
        return Dataset(x_MI, labels_M, _NO_CLASSES, self.sample_shape)


class Numbers(Target):
    """Numbers per sample, trained with the squared error."""

    name = "regression"
    doc = "Train networks on numeric targets, and measure neural regression collapse layer by layer."
    metrics = metrics.NUMBERS
    declares: ClassVar[Mapping[str, Fields]] = {
        "arch": {
            "choices": tuple(name for name, architecture in ARCHITECTURES.items() if architecture.reads_vectors),
            "doc": "plain network of linear layers and ReLU, residual network L-RN1 or L-RN2 (one or two linear layers per "
            "block), or one with BatchNorm",
        },
        "dataset": {
            "choices": tuple(name for name, info in PUBLISHED.items() if not info.is_text),
            "doc": "images, with the outputs of a fixed random network, the teacher, as targets",
        },
        "data_seed": {"doc": "seed of the samples and of the teacher, shared by all trials unless varied"},
        "samples": {"minimum": 4},
        "last_bias": {
            "nullable": False,
            "default": True,
            "doc": "whether the last layer has a bias, which is never regularised",
        },
        "measure": {"default": "effective_rank, intrinsic_dimension, linear_probe", "added_later": False},
        "test": {"added_later": False},
    }
    fixed: ClassVar[Mapping[str, Any]] = {"loss": "mse"}
    published_only = ("targets",)
    from_data = (*Target.from_data, "num_targets")
    streamed = StreamedNumbers

    def split(
        self, x: np.ndarray, y: np.ndarray, vocabulary_size: int | None, name: str, split: str
    ) -> tuple[Dataset, int]:
        """Build a data set with targets [N, m], in the order of the samples, and return it with m."""
        if vocabulary_size is not None:
            raise DatasetError(
                f"{name} has vocabulary_size, but regression reads numbers, not tokens. Remove vocabulary_size."
            )
        check_samples(x, name, split)
        y_Nm = as_numbers(y, f"{name}, {split} split")
        _check_variation(y_Nm, f"{name}, {split} split", "all samples")
        if len(y_Nm) != len(x):
            raise DatasetError(
                f"{name}, {split} split: {len(x)} samples have {len(y_Nm)} targets, expected one per sample"
            )
        flat_NI, sample_shape = flattened(x)
        return Dataset(flat_NI, y_Nm, _NO_CLASSES, sample_shape), y_Nm.shape[1]

    def check_alike(self, answers: int, test_answers: int, name: str) -> None:
        if answers != test_answers:
            raise DatasetError(f"{name}: targets have {answers} numbers, but the test split has {test_answers}")

    def prepare(self, whole: Dataset, trial: SupervisedParameters) -> Dataset:
        """Select samples, and scale their inputs and targets and the test split's with the same moments."""
        return _select_and_scale(whole, trial, trial.normalize)

    def published_shape(self, trial: SupervisedParameters) -> DataShape:
        shape = PUBLISHED[trial.dataset].shape(dtype=trial.dtype)
        num_samples = trial.samples or shape.num_samples
        return dataclasses.replace(shape, num_samples=num_samples, num_classes=trial.targets, has_targets=True)

    def load(self, trial: SupervisedParameters, source: DataSource) -> Dataset:
        images = load_dataset(
            trial.dataset,
            source,
            samples_per_class=None,
            data_seed=0,
            normalize=trial.normalize,
            dtype=trial.dtype,
            test=trial.test,
        )
        return _select_and_scale(_with_teacher_targets(images, trial.targets, trial.data_seed), trial, "none")

    def check(self, trial: SupervisedParameters, whole: Dataset | Streamed | None) -> None:
        parse_measure(trial.measure, self.custom)
        check_drawn(trial, PUBLISHED[trial.dataset].num_samples if whole is None else whole.num_samples)

    def measure(self, dataset: Dataset, trial: SupervisedParameters, split: str) -> Measure:
        from depthrate.tasks.supervised.targets.numbers_training import layer_measurements

        return layer_measurements(dataset.labels_N, parse_measure(trial.measure, self.custom), split=split)

    def training_options(self, trials: Sequence[SupervisedParameters], dataset: Dataset) -> dict[str, Any]:
        from depthrate.tasks.supervised.targets.numbers_training import NumbersTrainer

        return {"trainer": NumbersTrainer}


_NUMBERS = "expected numbers [N] or [N, m]. For classes, set task: collapse."


def as_numbers(y: np.ndarray, context: str) -> np.ndarray:
    """Convert targets [N] or [N, m] to float64 [N, m].

    Raises:
        DatasetError: They are not numbers, differ in length, or are not finite.
    """
    y = numbers_of(y, f"{context}, targets")
    if y.dtype.kind not in "iuf" or y.ndim not in (1, 2) or not y.size:
        raise DatasetError(f"{context}: targets are {y.dtype} of shape {list(y.shape)}, {_NUMBERS}")
    y_Nm = y.astype(np.float64).reshape(len(y), -1)
    if not np.isfinite(y_Nm).all():
        bad = int(np.flatnonzero(~np.isfinite(y_Nm).all(1))[0])
        raise DatasetError(
            f"{context}: the target of sample {bad} is NaN or infinite. Remove samples without a target."
        )
    return y_Nm


def _check_variation(y_Nm: np.ndarray, context: str, samples: str) -> None:
    if constant := np.flatnonzero(np.ptp(y_Nm, axis=0) == 0).tolist():
        raise DatasetError(f"{context}: number {constant[0]} of the targets is the same for {samples}. Remove it.")


def _with_teacher_targets(images: Dataset, num_targets: int, data_seed: int) -> Dataset:
    """Replace the labels of images, including the test split, by the outputs [N, m] of a teacher.

    y = tanh(x A / sqrt(I)) B / sqrt(H), with A [I, H] and B [H, m] standard normal, drawn by `data_seed`.
    """
    rng = np.random.default_rng([data_seed, 1])
    inputs = images.x_NI.shape[1]
    first_IH, second_Hm = rng.normal(size=(inputs, HIDDEN)), rng.normal(size=(HIDDEN, num_targets))

    def label(split: Dataset) -> Dataset:
        hidden_NH = np.tanh(split.x_NI.astype(np.float64) @ first_IH / inputs**0.5)
        targets_Nm = hidden_NH @ second_Hm / HIDDEN**0.5
        test = None if split.test is None else label(split.test)
        return Dataset(split.x_NI, targets_Nm, _NO_CLASSES, split.sample_shape, None, test)

    return label(images)


def _select_and_scale(whole: Dataset, trial: SupervisedParameters, normalize: str) -> Dataset:
    num_all, dtype = len(whole.x_NI), np.dtype(trial.dtype)
    chosen = np.arange(num_all)
    if trial.samples is not None:
        chosen = np.sort(np.random.default_rng([trial.data_seed, 0]).permutation(num_all)[: trial.samples])
    input_moments = moments(whole.x_NI[chosen], normalize)
    target_moments = moments(whole.labels_N[chosen], "per_feature" if trial.standardize else "none")

    def scale(x_NI: np.ndarray, y_Nm: np.ndarray, test: Dataset | None) -> Dataset:
        x_NI, y_Nm = scaled(x_NI, *input_moments, dtype), scaled(y_Nm, *target_moments, dtype)
        return Dataset(x_NI, y_Nm, _NO_CLASSES, whole.sample_shape, None, test)

    test = None if whole.test is None or not trial.test else scale(whole.test.x_NI, whole.test.labels_N, None)
    return scale(whole.x_NI[chosen], whole.labels_N[chosen], test)
