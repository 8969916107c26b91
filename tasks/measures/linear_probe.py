"""Linear probes of features: ridge regression fitted on every second sample and scored on the remaining samples.

Computed in closed form, in float64, on the features' device.
Shapes: N samples, M held-out samples, D feature dimensions, m target dimensions, K classes.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from depthrate.tasks.measures.labelled import (
    FeaturesError,
    as_features,
    as_labels,
    as_targets,
    require_variation,
    sort_by_class,
)

RIDGE = 1e-3
"""Ridge penalty as a share of the features' mean variance per dimension."""


def probe_accuracy(features: Any, labels: Any) -> float:
    """Compute the held-out accuracy of a linear classifier on the features.

    Ridge regression to one-hot rows, with a bias, fitted on every second sample of each class and scored on the rest.
    Source: Alain & Bengio, Understanding intermediate layers using linear classifier probes (2016), who use a softmax.

    Args:
        features: Shape [N, ...], numpy or torch. Axes after the first are flattened.
        labels: Class of each sample, shape [N], of any type.

    Returns:
        Share of held-out samples classified correctly, 0 to 1.

    Raises:
        FeaturesError: Lengths differ, labels are not classes, a number is not finite, or all features are equal.
    """
    h_ND = as_features(features).double()
    order_N, counts_K = sort_by_class(as_labels(labels, len(h_ND)))
    classes_N = torch.repeat_interleave(counts_K)
    one_hot_NK = F.one_hot(classes_N).double().to(h_ND.device)
    scores_MK, expected_MK = _predict_held_out(h_ND[order_N.to(h_ND.device)], one_hot_NK)
    return float((scores_MK.argmax(1) == expected_MK.argmax(1)).double().mean())


def probe_r2(features: Any, targets: Any) -> float:
    """Compute the held-out R^2 of a linear map from features to targets, all target dimensions together.

    Ridge regression with a bias, fitted on every second sample and scored on the others. Source: Alain & Bengio,
    Understanding intermediate layers using linear classifier probes (2016), who probe classes.

    Args:
        features: Shape [N, ...], numpy or torch. Axes after the first are flattened.
        targets: Shape [N] or [N, m].

    Returns:
        R^2: 1 for exact predictions, 0 for predicting the mean, negative if worse.

    Raises:
        FeaturesError: Lengths differ, a number is not finite, all features are equal, or the targets do not vary.
    """
    h_ND = as_features(features).double()
    predicted_Mm, y_Mm = _predict_held_out(h_ND, require_variation(as_targets(targets, len(h_ND))).to(h_ND.device))
    spread = (y_Mm - y_Mm.mean(0)).square().sum()
    if not spread > 0:
        raise FeaturesError("the held-out targets (every second sample) are all equal. Reorder the samples.")
    return 1 - float((predicted_Mm - y_Mm).square().sum() / spread)


def _predict_held_out(h_ND: Tensor, y_Nm: Tensor) -> tuple[Tensor, Tensor]:
    """Fit on the even samples. Return predictions and true values of the odd samples, each [M, m]."""
    if len(h_ND) < 4:
        raise FeaturesError(f"features have {len(h_ND)} samples, a probe needs at least 4 because half are held out")
    mean_D, mean_m = h_ND[::2].mean(0), y_Nm[::2].mean(0)
    a_ND, b_Nm = h_ND[::2] - mean_D, y_Nm[::2] - mean_m
    ridge = RIDGE * a_ND.square().sum() / a_ND.shape[1]
    if not ridge > 0:
        raise FeaturesError("all features are equal, so a linear probe is undefined")
    if len(a_ND) < a_ND.shape[1]:  # the samples' Gram matrix is the smaller one
        map_Dm = a_ND.mT @ torch.linalg.solve(_add_ridge(a_ND @ a_ND.mT, ridge), b_Nm)
    else:
        map_Dm = torch.linalg.solve(_add_ridge(a_ND.mT @ a_ND, ridge), a_ND.mT @ b_Nm)
    return (h_ND[1::2] - mean_D) @ map_Dm + mean_m, y_Nm[1::2]


def _add_ridge(gram: Tensor, ridge: Tensor) -> Tensor:
    return gram + ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
