"""From a user's arrays to a data set: labels numbered, checked, drawn, normalised, with its test split.

Shapes: N samples, I numbers of a sample, K classes.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.data.labels import LabelsError, check_classes
from depthrate.tasks.data.preparation import drawn, moments, scaled
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.own.arrays import Arrays


def dataset_of(arrays: Arrays, name: str) -> Dataset:
    """Return arrays as a data set, after checking that training on them can be what is meant.

    Raises:
        DatasetError: lengths differ, labels are no classes, a number is not finite, or a class is empty in a split.
    """
    if (arrays.x_test is None) != (arrays.y_test is None):
        raise DatasetError(f"{name} has one of x_test and y_test; give both, or none")
    _check_split(arrays.x, arrays.y, name, "training")
    _check_tokens(arrays, name)
    classes = np.unique(arrays.y)
    check_class_count(classes, name)
    test = None
    if arrays.x_test is not None and arrays.y_test is not None:
        _check_split(arrays.x_test, arrays.y_test, name, "test")
        if arrays.x_test.shape[1:] != arrays.x.shape[1:]:
            raise DatasetError(
                f"{name}: samples are {arrays.x.shape[1:]}, those of the test split {arrays.x_test.shape[1:]}"
            )
        in_test = np.unique(arrays.y_test)
        if len(in_test) != len(classes) or (in_test != classes).any():
            others = sorted(set(map(str, classes)) ^ set(map(str, in_test)))
            raise DatasetError(f"{name}: class {others[0]} is in one split only; give samples of each class in both")
        test = _numbered(arrays.x_test, arrays.y_test, classes, None)
    whole = _numbered(arrays.x, arrays.y, classes, test)
    return dataclasses.replace(whole, vocabulary_size=arrays.vocabulary_size)


def check_class_count(classes: np.ndarray, name: str) -> None:
    """Refuse a data set of one class.

    Raises:
        DatasetError: naming it.
    """
    if len(classes) < 2:
        raise DatasetError(
            f"{name} has samples of one class only ({classes[0]!s}), and collapse is measured between the means of classes; "
            "give samples of two classes or more"
        )


def check_not_empty(x: np.ndarray, name: str, split: str) -> None:
    """Refuse a split without samples, or whose samples have no numbers.

    Raises:
        DatasetError: naming the split.
    """
    if x.size:
        return
    what = "no samples" if not len(x) else f"{len(x)} samples of no numbers"
    way_on = ", or leave x_test and y_test out" if split == "test" else ""
    raise DatasetError(f"{name}: the {split} split has {what} (its x has shape {list(x.shape)}); give some{way_on}")


def _check_tokens(arrays: Arrays, name: str) -> None:
    """Refuse texts whose tokens are not numbered below `vocabulary_size`."""
    size = arrays.vocabulary_size
    for x in (arrays.x, arrays.x_test):
        if x is None or size is None:
            continue
        if x.ndim != 2 or x.dtype.kind not in "iu" or x.min() < 0 or x.max() >= size:
            raise DatasetError(
                f"{name}: with vocabulary_size {size} samples are tokens; they are {x.dtype} of shape {list(x.shape)} from "
                f"{x.min()} to {x.max()}; give whole numbers 0 to {size - 1} as [N, tokens]"
            )


def _check_split(x: np.ndarray, y: np.ndarray, name: str, split: str) -> None:
    check_not_empty(x, name, split)
    try:
        check_classes(y, len(x))
    except LabelsError as error:
        raise DatasetError(f"{name}, {split} split: {error}") from None
    check_samples(x, name, split)


def check_samples(x: np.ndarray, name: str, split: str) -> None:
    """Refuse samples that are no finite numbers [N, ...].

    Raises:
        DatasetError: naming the split.
    """
    check_numbers(x, name, split)
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        bad = int(np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(1))[0])
        raise DatasetError(f"{name}: sample {bad} of the {split} split has a number that is NaN or infinite; remove it")


def check_numbers(x: np.ndarray, name: str, split: str) -> None:
    """Refuse samples that are no numbers [N, ...], finite or not.

    Raises:
        DatasetError: naming the split.
    """
    check_not_empty(x, name, split)
    if x.ndim < 2 or x.dtype.kind not in "iufb":
        raise DatasetError(
            f"{name}: the {split} split's samples are {x.dtype} of shape {list(x.shape)}; give numbers [N, ...], images as "
            "[N, channels, rows, columns]"
        )


def _numbered(x: np.ndarray, y: np.ndarray, classes: np.ndarray, test: Dataset | None) -> Dataset:
    """Return samples as they come with their labels as class numbers, sorted by class."""
    labels_N = np.searchsorted(classes, y)
    order = np.argsort(labels_N, kind="stable")
    flat_NI, sample_shape = flattened(x)
    flat_NI = np.ascontiguousarray(flat_NI[order])
    return Dataset(flat_NI, labels_N[order].astype(np.int64), np.bincount(labels_N), sample_shape, None, test)


def flattened(x: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return samples [N, I], truth values as bytes, and the shape of one: images without a channel axis have one channel."""
    x = x[:, None] if x.ndim == 3 else x
    flat_NI = x.reshape(len(x), -1)
    return flat_NI.astype(np.uint8) if flat_NI.dtype.kind == "b" else flat_NI, x.shape[1:]


def prepared(
    whole: Dataset, name: str, *, samples_per_class: int | None, data_seed: int, normalize: str, dtype: str, test: bool
) -> Dataset:
    """Return what a trial trains on: drawn and normalised, as is the test split where it is wanted, by the same moments.

    Raises:
        DatasetError: a class has too few samples.
    """
    chosen = drawn(name, whole.labels_N, len(whole.class_counts_K), samples_per_class, data_seed)
    images_NI, labels_N = whole.x_NI[chosen], whole.labels_N[chosen]
    if whole.vocabulary_size is not None:
        return _of_tokens(whole, images_NI, labels_N, whole.test if test else None)
    mean, std = moments(images_NI, normalize)
    held_out = whole.test if test else None
    if held_out is not None:
        x_NI = scaled(held_out.x_NI, mean, std, np.dtype(dtype))
        held_out = Dataset(x_NI, held_out.labels_N, held_out.class_counts_K, whole.sample_shape)
    x_NI = scaled(images_NI, mean, std, np.dtype(dtype))
    return Dataset(x_NI, labels_N, np.bincount(labels_N), whole.sample_shape, None, held_out)


def _of_tokens(whole: Dataset, x_NI: np.ndarray, labels_N: np.ndarray, held_out: Dataset | None) -> Dataset:
    """Return texts as they come: tokens are not scaled."""
    if held_out is not None:
        held_out = dataclasses.replace(held_out, x_NI=held_out.x_NI.astype(np.int64))
    return dataclasses.replace(
        whole, x_NI=x_NI.astype(np.int64), labels_N=labels_N, class_counts_K=np.bincount(labels_N), test=held_out
    )


def shape_of(whole: Dataset, samples_per_class: int | None, dtype: str) -> DataShape:
    """Return the shape of what `prepared` gives."""
    num_classes = len(whole.class_counts_K)
    num_samples = len(whole.x_NI) if samples_per_class is None else samples_per_class * num_classes
    inputs = whole.x_NI.shape[1]
    return DataShape(
        num_samples=num_samples,
        sample_shape=whole.sample_shape,
        num_classes=num_classes,
        vocabulary_size=whole.vocabulary_size,
        reading_bytes=2 * whole.x_NI.nbytes + num_samples * inputs * np.dtype(dtype).itemsize,
    )
