"""Collapse metrics of any features, by the formulas of the built-in tasks.

Shapes: T = 1, N samples, D feature dimensions, K classes.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from depthrate.tasks.measures.alignment import feature_alignment, weight_alignment
from depthrate.tasks.measures.labelled import as_features, as_labels, as_weight, sort_by_class
from depthrate.tasks.measures.neural_collapse import class_collapse, class_moments, spectrum


def measure(features: Any, labels: Any, weight: Any = None, *, rank_tol: float = 0.01) -> dict[str, Any]:
    """Measure the collapse of one layer's features, in float64, as the built-in tasks do.

    With class means mu_k (the columns of M, D x K), mu_G their mean, Sigma_W the mean over samples of
    (x - mu_k)(x - mu_k)^T, Sigma_B = (1/K) sum (mu_k - mu_G)(mu_k - mu_G)^T and E = I - (1/K) 1 1^T:

    - nc1 = tr Sigma_W / tr Sigma_B (P1 Def. 3.4, P3 (7)). nc1_pinv = tr(Sigma_W pinv(Sigma_B)) / K (Papyan et al. 2020).
    - pfc2 = || Ht^T Ht / ||Ht^T Ht||_F - E / sqrt(K-1) ||_F, Ht the centred means (P3 (8)).
    - ncc_accuracy = share of samples whose nearest class mean is their class's, NC4 (P3 (9)).
    - rank, stable_rank, condition_number, singular_values and class_gram = M^T M, of M (P2 section 6).
    - With a weight W: nc2a = min over c >= 0 of ||W W^T - c E||_F / ||W W^T||_F, nc2b the same with I in place of E,
      nc3 = 1 - mean cos(x, W_k) (P1 Def. 3.4).

    P1: Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers. P2: Neural Collapse versus Low-Rank
    Bias. P3: Progressive Feedforward Collapse of ResNet Training.

    Args:
        features: Shape [N, ...], numpy or torch, on any device. Axes after the first are flattened to D.
        labels: Class of each sample, shape [N], of any type and in any order. With a weight, its row numbers 0 to K - 1.
        weight: Last layer's weight W, shape [K, D].
        rank_tol: Share of the largest singular value above which one counts in rank.

    Returns:
        Metric name -> float (None where undefined), list (singular_values) or array [K, K] (class_gram). All are
        dimensionless except singular_values (units of the features) and class_gram (their square).

    Raises:
        FeaturesError: Lengths differ, labels are not classes, a number is not finite, or a class has no samples.
    """
    h_ND = as_features(features)
    labels_N, weight_KD = as_labels(labels, len(h_ND)), as_weight(weight, h_ND.shape[1])
    order_N, counts_K = sort_by_class(labels_N, None if weight_KD is None else len(weight_KD))
    h_1ND = h_ND[order_N.to(h_ND.device)].double().unsqueeze(0)
    moments = class_moments(h_1ND, counts_K)
    metrics = class_collapse(moments) | spectrum(moments["means"], rank_tol, h_ND.dtype)
    if weight_KD is not None:
        weight_1KD = weight_KD.to(h_ND.device).unsqueeze(0)
        metrics |= weight_alignment(weight_1KD) | feature_alignment(h_1ND, counts_K, weight_1KD)
    return as_columns(metrics)


def as_columns(metrics: Mapping[str, Tensor]) -> dict[str, Any]:
    """Convert one trial's metrics to floats (None where undefined), lists and arrays."""
    columns: dict[str, Any] = {}
    for name, values in metrics.items():
        if values.ndim == 1:
            number = values.item()
            columns[name] = number if math.isfinite(number) else None
        else:
            columns[name] = values[0].tolist() if values.ndim == 2 else values[0].cpu().numpy()
    return columns
