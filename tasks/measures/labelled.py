"""Validation and conversion of users' features, labels, targets and weights into tensors.

Shapes: N samples, D feature dimensions, K classes, m target dimensions.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.errors import InputError
from depthrate.tasks.data.labels import LabelsError, as_array, check_classes, check_dense


class FeaturesError(InputError):
    """Raised for features, labels, targets or a weight that cannot be measured."""


def as_features(features: Any) -> Tensor:
    """Flatten features [N, ...] of numpy, pandas or torch to floating-point [N, D], on their device.

    Raises:
        FeaturesError: The shape or type is wrong, or a number is not finite.
    """
    tensor = _as_tensor(features)
    if tensor.ndim < 2 or not tensor.numel() or tensor.is_complex():
        raise FeaturesError(
            f"features have shape {list(tensor.shape)}, expected real numbers [N, ...], one row per sample"
        )
    flat_ND = tensor.flatten(1)
    if not torch.isfinite(flat_ND).all():
        bad = int((~torch.isfinite(flat_ND).all(1)).nonzero()[0])
        raise FeaturesError(f"features of sample {bad} contain NaN or infinity")
    return flat_ND if flat_ND.is_floating_point() else flat_ND.double()


def _as_tensor(values: Any) -> Tensor:
    check_dense(values, FeaturesError)
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(values)
    if array.dtype.kind not in "buifc":
        raise FeaturesError(f"features, targets or a weight have the type {array.dtype}, expected numbers")
    # the values of a frame are read-only, and a[::-1] is not in C order
    return torch.from_numpy(np.require(array, requirements=("C", "W")))


def as_labels(labels: Any, num_samples: int | None = None) -> np.ndarray:
    """Convert labels [N] of any type, but one for all, to numpy. N is `num_samples`, if it is known.

    Raises:
        FeaturesError: The labels are not one class per sample.
    """
    try:
        labels_N = as_array(labels)
        check_classes(labels_N, len(labels_N) if num_samples is None else num_samples)
    except LabelsError as error:
        raise FeaturesError(str(error)) from None
    return labels_N


def sort_by_class(labels_N: np.ndarray, num_classes: int | None = None) -> tuple[Tensor, Tensor]:
    """Compute the order that sorts samples by class.

    Args:
        labels_N: Labels of any type, or 0 to K - 1 if `num_classes` is passed.
        num_classes: Number of classes K, or None to take the distinct labels.

    Returns:
        Sample indices [N] sorted by class, and the number of samples per class [K].

    Raises:
        FeaturesError: There are fewer than two classes, or a class has no samples.
    """
    if num_classes is None:
        classes, index_N = np.unique(labels_N, return_inverse=True)
        num_classes = len(classes)
    else:
        if labels_N.dtype.kind not in "iu" or labels_N.min() < 0 or labels_N.max() >= num_classes:
            seen = np.unique(labels_N)  # also sorts strings, which have no minimum
            raise FeaturesError(
                f"labels are {labels_N.dtype} from {seen[0]} to {seen[-1]}, but the weight has {num_classes} rows. With a "
                "weight, labels must be its row numbers, 0 to K - 1."
            )
        index_N = labels_N
    counts_K = np.bincount(index_N, minlength=num_classes)
    if num_classes < 2 or not counts_K.all():
        fault = "one class" if num_classes < 2 else f"no sample of class {int(np.flatnonzero(counts_K == 0)[0])}"
        raise FeaturesError(f"labels have {fault}, collapse needs at least two classes, each with samples")
    return torch.from_numpy(np.argsort(index_N, kind="stable")), torch.from_numpy(counts_K)


def as_targets(targets: Any, num_samples: int) -> Tensor:
    """Convert regression targets [N] or [N, m] to float64 [N, m].

    Raises:
        FeaturesError: The number of targets differs from `num_samples`, or a number is not finite.
    """
    tensor = _as_tensor(targets)
    if tensor.ndim == 1:
        tensor = tensor.unsqueeze(1)
    if tensor.ndim != 2 or len(tensor) != num_samples:
        raise FeaturesError(
            f"targets have shape {list(tensor.shape)}, expected [N] or [N, m] with N = {num_samples} as the features"
        )
    return as_features(tensor).double()


def require_variation(y_Nm: Tensor) -> Tensor:
    """Return the targets after checking that every column varies.

    Raises:
        FeaturesError: A column is constant.
    """
    if not (y_Nm.var(0) > 0).all():
        raise FeaturesError("a column of the targets does not vary. Leave it out.")
    return y_Nm


def as_weight(weight: Any, width: int | None) -> Tensor | None:
    """Convert the last layer's weight to a tensor [K, D]. Return None for None.

    Raises:
        FeaturesError: The weight is not a matrix, or its width differs from `width`.
    """
    if weight is None:
        return None
    weight_KD = _as_tensor(weight)
    if weight_KD.ndim != 2 or (width is not None and weight_KD.shape[1] != width):
        expected = "[K, D]" if width is None else f"[K, {width}] for features of width {width}"
        raise FeaturesError(f"weight has shape {list(weight_KD.shape)}, expected {expected}")
    return weight_KD
