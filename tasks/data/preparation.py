"""Sampling and normalisation of a data set for a trial.

Shapes: N images, I numbers per image, K classes.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from depthrate.tasks.data.dataset import Dataset, shortened
from depthrate.tasks.data.sources import DatasetError

ROWS_AT_ONCE = 4096
HIDDEN_SHARE = 1e-5
"""Share of the largest value below which float32 has few digits for an input. A step of 16-bit pixels is larger."""


def drawn(
    name: str, labels_N: np.ndarray, num_classes: int, samples_per_class: int | None, data_seed: int
) -> np.ndarray:
    """Sample the indices of `samples_per_class` samples per class, or of all if it is None, in class order.

    Raises:
        DatasetError: A class has too few samples.
    """
    segments = []
    for label in range(num_classes):
        members = np.flatnonzero(labels_N == label)
        if samples_per_class is not None:
            if len(members) < samples_per_class:
                raise DatasetError(
                    f"data set {name!r} has {len(members)} samples of class {label}, but samples_per_class is "
                    f"{samples_per_class}. Set at most {len(members)}, or null for all."
                )
            rng = np.random.default_rng([data_seed, label])
            members = rng.permutation(members)[:samples_per_class]
        segments.append(members)
    return np.concatenate(segments)


def prepare_classes(
    whole: Dataset, name: str, *, samples_per_class: int | None, data_seed: int, normalize: str, dtype: str
) -> Dataset:
    """Sample each class and normalise, in class order. The test split is normalised with the same moments.

    Tokens are not normalised.

    Raises:
        DatasetError: A class has too few samples.
    """
    chosen = drawn(name, whole.labels_N, len(whole.class_counts_K), samples_per_class, data_seed)
    x_NI, labels_N = whole.x_NI[chosen], whole.labels_N[chosen]
    of_inputs = None if whole.vocabulary_size is not None else moments(x_NI, normalize)

    def prepared(x_NI: np.ndarray) -> np.ndarray:
        return x_NI.astype(np.int64) if of_inputs is None else scaled(x_NI, *of_inputs, np.dtype(dtype))

    return dataclasses.replace(
        whole,
        x_NI=prepared(x_NI),
        labels_N=labels_N,
        class_counts_K=np.bincount(labels_N, minlength=len(whole.class_counts_K)),
        test=None if whole.test is None else dataclasses.replace(whole.test, x_NI=prepared(whole.test.x_NI)),
    )


def scaled(images_NI: np.ndarray, mean: np.ndarray | float, std: np.ndarray | float, dtype: np.dtype) -> np.ndarray:
    """Return (images - mean) / std in `dtype`, computed in float64."""
    x_NI = np.empty(images_NI.shape, dtype)
    for start in range(0, len(images_NI), ROWS_AT_ONCE):  # float64 of all rows takes eight times the size of the file
        rows = slice(start, start + ROWS_AT_ONCE)
        x_NI[rows] = (images_NI[rows].astype(np.float64) - mean) / std
    return x_NI


def moments(images_NI: np.ndarray, normalize: str) -> tuple[np.ndarray | float, np.ndarray | float]:
    """Compute the mean and standard deviation for normalisation.

    They are computed over all values (`global`) or for each feature (`per_feature`), or set to 0 and 1 (`none`). Pixels are
    integers, so their sums are exact and identical on every machine.
    """
    if normalize == "none":
        return 0.0, 1.0
    if images_NI.dtype.kind == "f" or _is_vast(images_NI):
        axis = None if normalize == "global" else 0
        std = images_NI.std(axis, dtype=np.float64)
        return images_NI.mean(axis, dtype=np.float64), np.where(std > 0, std, 1.0)
    sum_I = np.zeros(images_NI.shape[1], np.int64)
    squares_I = np.zeros_like(sum_I)
    for start in range(0, len(images_NI), ROWS_AT_ONCE):
        block = images_NI[start : start + ROWS_AT_ONCE].astype(np.int64)
        sum_I += block.sum(0)
        squares_I += (block * block).sum(0)
    if normalize == "per_feature":
        count = len(images_NI)
        spread_I = count * squares_I.astype(object) - sum_I.astype(object) ** 2  # Python int: too large for int64
        std_I = np.sqrt(spread_I.astype(np.float64)) / count
        return sum_I / count, np.where(std_I > 0, std_I, 1.0)  # a pixel that is always dark stays 0
    count, total, squares = images_NI.size, sum(sum_I.tolist()), sum(squares_I.tolist())
    std = (count * squares - total**2) ** 0.5 / count
    return total / count, std if std > 0 else 1.0


def describe_hidden(x_NI: np.ndarray, columns: Sequence[str], normalize: str) -> str:
    """Describe inputs that vary, but by less than `HIDDEN_SHARE` of the largest normalised value, in at most 10^7 values."""
    sample_NI = x_NI[:: 1 + x_NI.size // 10**7].astype(np.float64)
    ranges_I, largest = np.ptp(sample_NI, axis=0), np.abs(sample_NI - moments(sample_NI, normalize)[0]).max()
    hidden = np.flatnonzero((ranges_I > 0) & (ranges_I < HIDDEN_SHARE * largest)).tolist()
    if normalize == "per_feature" or not hidden:
        return ""
    return (
        f". With normalize: {normalize}, {len(hidden)} of its {len(ranges_I)} inputs "
        f"({shortened([columns[index] if columns else str(index) for index in hidden])}) vary by less than {HIDDEN_SHARE:g} of "
        "the largest value, so a network hardly sees them. Set normalize: per_feature."
    )


def _is_vast(values_NI: np.ndarray) -> bool:
    """Return whether the sum of the squared integers could exceed 64 bits."""
    if values_NI.dtype.itemsize <= 2 or not values_NI.size:
        return False
    largest = max(abs(int(values_NI.min())), abs(int(values_NI.max())))
    return largest**2 * len(values_NI) >= 2**63
