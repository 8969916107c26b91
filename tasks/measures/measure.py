"""Any features measured: the numbers that the built-in tasks give for a layer, by the same formulas.

Shapes: T = 1, N samples, D numbers of a feature, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from depthrate.tasks.measures.alignment import weight_alignment
from depthrate.tasks.measures.class_means import class_collapse, class_means
from depthrate.tasks.measures.labelled import as_features, as_labels, as_weight, sort_by_class
from depthrate.tasks.measures.spectra import spectrum


def measure(features: Any, labels: Any, weight: Any = None, *, rank_tol: float = 0.01) -> dict[str, Any]:
    """Measure the collapse of features [N, ...] with labels [N], as the built-in tasks measure a layer, in float64.

    Numpy or torch, on any device; samples in any order, labels of any type; what a sample has beyond its first axis is
    flattened. With the last layer's weight [K, D], whose rows the labels then number, nc2a, nc2b and nc3 as well. Returns
    column -> number (null where not defined), list or matrix [K, K].

    Raises:
        FeaturesError: lengths differ, labels are no classes, a number is not finite, or a class is empty.
    """
    h_ND = as_features(features)
    labels_N, weight_KD = as_labels(labels, len(h_ND)), as_weight(weight, h_ND.shape[1])
    order_N, counts_K = sort_by_class(labels_N, None if weight_KD is None else len(weight_KD))
    h_1ND, counts_K = h_ND[order_N.to(h_ND.device)].double().unsqueeze(0), counts_K.to(h_ND.device)
    means_1KD = class_means(h_1ND, counts_K)
    measured = class_collapse(h_1ND, counts_K, means_1KD) | spectrum(means_1KD, rank_tol, h_ND.dtype)
    if weight_KD is not None:
        measured |= weight_alignment(h_1ND, counts_K, weight_KD.to(h_ND.device).unsqueeze(0))
    return as_columns(measured)


def as_columns(found: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return measurements of one trial as numbers (null where not defined), lists and matrices."""
    columns: dict[str, Any] = {}
    for name, values in found.items():
        if values.ndim == 1:
            number = values.item()
            columns[name] = number if math.isfinite(number) else None
        else:
            columns[name] = values[0].tolist() if values.ndim == 2 else values[0].cpu().numpy()
    return columns
