"""Features, labels and targets as people have them, checked and brought into the form that formulas take.

Shapes: N samples, D numbers of a feature, K classes, m numbers of a target.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.data.labels import LabelsError, as_array, check_classes


class FeaturesError(ValueError):
    """Features, labels or a weight that cannot be measured; the message says why."""


def as_features(features: Any) -> Tensor:
    """Return features [N, ...] of numpy or torch, on their device, as [N, D].

    Raises:
        FeaturesError: they are no numbers of samples, or one is not finite.
    """
    given = features.detach() if isinstance(features, Tensor) else torch.as_tensor(np.asarray(features))
    if given.ndim < 2 or not given.numel() or given.is_complex():
        raise FeaturesError(f"features have shape {list(given.shape)}; give numbers [N, ...], a row a sample")
    flat_ND = given.flatten(1)
    if not torch.isfinite(flat_ND).all():
        bad = int((~torch.isfinite(flat_ND).all(1)).nonzero()[0])
        raise FeaturesError(f"features of sample {bad} have a number that is NaN or infinite")
    return flat_ND if flat_ND.is_floating_point() else flat_ND.double()


def as_labels(labels: Any, num_samples: int) -> np.ndarray:
    """Return labels [N] of any type as numpy.

    Raises:
        FeaturesError: there is not one class for each sample.
    """
    try:
        given = as_array(labels)
        check_classes(given, num_samples)
    except LabelsError as error:
        raise FeaturesError(str(error)) from None
    return given


def sort_by_class(labels_N: np.ndarray, num_classes: int | None = None) -> tuple[Tensor, Tensor]:
    """Return (the order that sorts samples by class, samples of each class); with `num_classes` labels are 0 to K - 1.

    Raises:
        FeaturesError: there is one class, or one without a sample.
    """
    if num_classes is None:
        classes, index_N = np.unique(labels_N, return_inverse=True)
        num_classes = len(classes)
    else:
        if labels_N.dtype.kind not in "iu" or labels_N.min() < 0 or labels_N.max() >= num_classes:
            seen = np.unique(labels_N)  # sorts texts too, which have no minimum
            raise FeaturesError(
                f"labels are {labels_N.dtype} from {seen[0]} to {seen[-1]}, and the weight has {num_classes} "
                "rows; with a weight labels number its rows, 0 to K - 1"
            )
        index_N = labels_N
    counts_K = np.bincount(index_N, minlength=num_classes)
    if num_classes < 2 or not counts_K.all():
        what = "one class" if num_classes < 2 else f"no sample of class {int(np.flatnonzero(counts_K == 0)[0])}"
        raise FeaturesError(f"labels have {what}; collapse is measured between classes that have samples")
    return torch.from_numpy(np.argsort(index_N, kind="stable")), torch.from_numpy(counts_K)


def as_targets(targets: Any, num_samples: int) -> Tensor:
    """Return the targets [N] or [N, m] of a regression as [N, m] in float64.

    Raises:
        FeaturesError: there is not one for each sample, or a number is not finite.
    """
    given = targets.detach() if isinstance(targets, Tensor) else torch.as_tensor(np.asarray(targets))
    if given.ndim == 1:
        given = given.unsqueeze(1)
    if given.ndim != 2 or len(given) != num_samples:
        raise FeaturesError(f"{num_samples} features have targets of shape {list(given.shape)}; give [N] or [N, m]")
    y_Nm = as_features(given).double()
    return y_Nm


def require_variation(y_Nm: Tensor) -> Tensor:
    """Return targets of which each number varies.

    Raises:
        FeaturesError: one does not.
    """
    if not (y_Nm.var(0) > 0).all():
        raise FeaturesError("a column of the targets does not vary; leave it out")
    return y_Nm


def as_weight(weight: Any, width: int | None) -> Tensor | None:
    """Return the last layer's weight [K, D]; null where none is given.

    Raises:
        FeaturesError: it is no matrix, or not of the features' width.
    """
    if weight is None:
        return None
    given = weight.detach() if isinstance(weight, Tensor) else torch.as_tensor(np.asarray(weight))
    if given.ndim != 2 or (width is not None and given.shape[1] != width):
        raise FeaturesError(f"weight has shape {list(given.shape)}, features are {width} wide; give [K, D]")
    return given
