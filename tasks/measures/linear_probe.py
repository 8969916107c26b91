"""How much of the labels or targets a linear map reads off features: fitted on every second sample, scored on the others.

In float64, in closed form, on the features' device. Shapes: N samples, D numbers of a feature, m of a target, K classes.
"""

from __future__ import annotations

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
"""Ridge of the fit, as a share of the mean variance of a number of the features."""


def probe_accuracy(features: Any, labels: Any) -> float:
    """Return the share of held-out samples whose class a linear map of features [N, ...] finds; labels are [N].

    Ridge regression of one-hot rows, with a bias: fitted on every second sample of each class, scored on the others.
    Source: Alain & Bengio, Understanding intermediate layers using linear classifier probes (2016), there with a softmax.

    Raises:
        FeaturesError: lengths differ, labels are no classes, a number is not finite, or all features are one and the same.
    """
    h_ND = as_features(features).double()
    order_N, counts_K = sort_by_class(as_labels(labels, len(h_ND)))
    classes_N = torch.repeat_interleave(counts_K)
    one_hot_NK = F.one_hot(classes_N).double().to(h_ND.device)
    scores_MK, held_MK = _held_out(h_ND[order_N.to(h_ND.device)], one_hot_NK)
    return float((scores_MK.argmax(1) == held_MK.argmax(1)).double().mean())


def probe_r2(features: Any, targets: Any) -> float:
    """Return R^2 on held-out samples of a linear map from features [N, ...] to targets [N] or [N, m], over all m together.

    Ridge regression with a bias, fitted on every second sample, scored on the others: 1 where it is exact, 0 for the mean.
    Source: Alain & Bengio, Understanding intermediate layers using linear classifier probes (2016), there for classes.

    Raises:
        FeaturesError: lengths differ, a number is not finite, all features are one, or targets do not vary.
    """
    h_ND = as_features(features).double()
    found_Mm, held_Mm = _held_out(h_ND, require_variation(as_targets(targets, len(h_ND))).to(h_ND.device))
    spread = (held_Mm - held_Mm.mean(0)).square().sum()
    if not spread > 0:
        raise FeaturesError("the targets of every second sample are one and the same; give them in another order")
    return 1 - float((found_Mm - held_Mm).square().sum() / spread)


def _held_out(h_ND: Tensor, y_Nm: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the map gives for the held-out samples, and what it should, each [M, m]."""
    if len(h_ND) < 4:
        raise FeaturesError(f"{len(h_ND)} samples; half of them are held out, give 4 or more")
    mean_D, mean_m = h_ND[::2].mean(0), y_Nm[::2].mean(0)
    a_ND, b_Nm = h_ND[::2] - mean_D, y_Nm[::2] - mean_m
    ridge = RIDGE * a_ND.square().sum() / a_ND.shape[1]
    if not ridge > 0:
        raise FeaturesError("all features are one and the same; there is nothing to read off them")
    if len(a_ND) < a_ND.shape[1]:  # by the samples' Gram matrix, the smaller one
        map_Dm = a_ND.mT @ torch.linalg.solve(_ridged(a_ND @ a_ND.mT, ridge), b_Nm)
    else:
        map_Dm = torch.linalg.solve(_ridged(a_ND.mT @ a_ND, ridge), a_ND.mT @ b_Nm)
    return (h_ND[1::2] - mean_D) @ map_Dm + mean_m, y_Nm[1::2]


def _ridged(gram: Tensor, ridge: Tensor) -> Tensor:
    return gram + ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
