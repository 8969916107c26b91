"""Samples with targets: a user's arrays, checked; published images with a teacher's outputs; the draw and the scaling.

Importable without torch. Shapes: N samples, I numbers of a sample, m numbers of a target, H hidden numbers of the teacher.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.data.preparation import moments, scaled
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.own.arrays import Arrays
from depthrate.tasks.own.data import check_samples, flattened

HIDDEN = 32


def regression_of(arrays: Arrays, name: str) -> Dataset:
    """Return arrays as samples with targets [N, m], in the order in which they come.

    Raises:
        DatasetError: lengths differ, targets are no numbers, a number is not finite, or one of a target does not vary.
    """
    if (arrays.x_test is None) != (arrays.y_test is None):
        raise DatasetError(f"{name} has one of x_test and y_test; give both, or none")
    if arrays.vocabulary_size is not None:
        raise DatasetError(f"{name} has vocabulary_size, and regression reads numbers; leave it out")
    whole = _split(arrays.x, arrays.y, name, "training")
    if arrays.x_test is None or arrays.y_test is None:
        return whole
    test = _split(arrays.x_test, arrays.y_test, name, "test")
    for what, given, other in (
        ("samples", whole.sample_shape, test.sample_shape),
        ("targets", whole.labels_N.shape[1:], test.labels_N.shape[1:]),
    ):
        if given != other:
            raise DatasetError(f"{name}: {what} are {given}, those of the test split {other}")
    return dataclasses.replace(whole, test=test)


def _split(x: np.ndarray, y: np.ndarray, name: str, split: str) -> Dataset:
    check_samples(x, name, split)
    y_Nm = targets_of(y, f"{name}, {split} split")
    if constant := np.flatnonzero(np.ptp(y_Nm, axis=0) == 0).tolist():
        raise DatasetError(
            f"{name}, {split} split: number {constant[0]} of the targets is the same for all samples; leave it out"
        )
    if len(y_Nm) != len(x):
        raise DatasetError(f"{name}, {split} split: {len(x)} samples have {len(y_Nm)} targets; give one a sample")
    flat_NI, sample_shape = flattened(x)
    return Dataset(flat_NI, y_Nm, np.zeros(0, np.int64), sample_shape)


def targets_of(y: np.ndarray, where: str) -> np.ndarray:
    """Return targets [N] or [N, m] as float64 [N, m].

    Raises:
        DatasetError: they are no numbers, not as many of each sample, or not finite.
    """
    if y.dtype.kind == "O":  # a table's column of lists
        try:
            y = np.array([np.asarray(each, np.float64) for each in y])
        except (TypeError, ValueError):
            raise DatasetError(f"{where}: targets are no numbers, or not as many of each sample; {_NUMBERS}") from None
    if y.dtype.kind not in "iuf" or y.ndim not in (1, 2) or not y.size:
        raise DatasetError(f"{where}: targets are {y.dtype} of shape {list(y.shape)}; {_NUMBERS}")
    y_Nm = y.astype(np.float64).reshape(len(y), -1)
    if not np.isfinite(y_Nm).all():
        bad = int(np.flatnonzero(~np.isfinite(y_Nm).all(1))[0])
        raise DatasetError(
            f"{where}: the target of sample {bad} is NaN or infinite; leave out samples without a target"
        )
    return y_Nm


_NUMBERS = "give numbers [N] or [N, m]; for classes give task: collapse"


def taught(images: Dataset, num_targets: int, data_seed: int) -> Dataset:
    """Return images with the outputs [N, m] of a teacher as targets, test split included.

    y = tanh(x A / sqrt(I)) B / sqrt(H), with A [I, H] and B [H, m] standard normal, drawn by `data_seed`.
    """
    rng = np.random.default_rng([data_seed, 1])
    inputs = images.x_NI.shape[1]
    first_IH, second_Hm = rng.normal(size=(inputs, HIDDEN)), rng.normal(size=(HIDDEN, num_targets))

    def of_images(split: Dataset) -> Dataset:
        hidden_NH = np.tanh(split.x_NI.astype(np.float64) @ first_IH / inputs**0.5)
        targets_Nm = hidden_NH @ second_Hm / HIDDEN**0.5
        test = None if split.test is None else of_images(split.test)
        return Dataset(split.x_NI, targets_Nm, np.zeros(0, np.int64), split.sample_shape, None, test)

    return of_images(images)


def drawn_and_scaled(
    whole: Dataset, *, samples: int | None, data_seed: int, normalize: str, standardize: bool, dtype: str, test: bool
) -> Dataset:
    """Return what a trial trains on, in `dtype`: drawn, inputs and targets scaled, the test split by the same moments."""
    num_all = len(whole.x_NI)
    chosen = np.arange(num_all)
    if samples is not None:
        chosen = np.sort(np.random.default_rng([data_seed, 0]).permutation(num_all)[:samples])
    of_inputs = moments(whole.x_NI[chosen], normalize)
    of_targets = moments(whole.labels_N[chosen], "per_feature" if standardize else "none")

    def of_split(x_NI: np.ndarray, y_Nm: np.ndarray, held_out: Dataset | None) -> Dataset:
        x_NI, y_Nm = scaled(x_NI, *of_inputs, np.dtype(dtype)), scaled(y_Nm, *of_targets, np.dtype(dtype))
        return Dataset(x_NI, y_Nm, np.zeros(0, np.int64), whole.sample_shape, None, held_out)

    held_out = None if whole.test is None or not test else of_split(whole.test.x_NI, whole.test.labels_N, None)
    return of_split(whole.x_NI[chosen], whole.labels_N[chosen], held_out)
