"""Metrics that need no classes: regression collapse, similarity of layers, effective rank, intrinsic dimension.

Computed in float64 on the features' device. Shapes: N samples, D feature dimensions, m target dimensions.
"""

import math
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.measures.labelled import FeaturesError, as_features, as_targets, as_weight, require_variation

DISTANCE_BLOCK_ROWS = 2048
"""Rows of the distance matrix in memory at a time."""
FITTED_SHARE = 0.9
"""Share of the ratios that TwoNN fits. The largest are left out, as in the paper."""


def regression_collapse(features: Any, targets: Any, weight: Any = None) -> dict[str, float | None]:
    """Measure neural regression collapse: nrc1, nrc2 and nrc3, each 0 at full collapse.

    With z_i = (h_i - mean h) / ||h_i - mean h||:
    nrc1 = mean ||z_i - P z_i||^2, P the projection on the first m principal components of the features.
    nrc2: the same with the projection on the rows of the last layer's weight W.
    nrc3 = min over s in [0, sqrt(lambda_min)] of ||W W^T / ||W W^T|| - (S - s I) / ||S - s I|| ||^2 in Frobenius norms, S the
    square root of the targets' covariance and lambda_min its smallest eigenvalue.
    Features are centred because the head's bias absorbs their mean. Source: Andriopoulos, Dong, Guo, Zhao, Ross, The
    Prevalence of Neural Collapse in Neural Multivariate Regression (NeurIPS 2024).

    Args:
        features: Shape [N, ...], numpy or torch. Axes after the first are flattened.
        targets: Shape [N] or [N, m].
        weight: Last layer's weight W, shape [m, D].

    Returns:
        nrc1, nrc2 and nrc3. nrc2 and nrc3 are None without a weight. nrc3 is None also for m = 1, where it is always 0.

    Raises:
        FeaturesError: Lengths differ, a number is not finite, all features are equal, or the targets do not vary.
    """
    h_ND = as_features(features).double()
    y_Nm = require_variation(as_targets(targets, len(h_ND))).to(h_ND.device)
    width, weight_mD = y_Nm.shape[1], as_weight(weight, h_ND.shape[1])
    if weight_mD is not None and len(weight_mD) != width:
        raise FeaturesError(f"weight has {len(weight_mD)} rows, expected one per target dimension, {width}")
    metrics: dict[str, float | None] = {"nrc1": component_collapse(h_ND, width), "nrc2": None, "nrc3": None}
    if weight_mD is not None:
        metrics |= weight_collapse(h_ND, y_Nm, weight_mD.double().to(h_ND.device))
    return metrics


def component_collapse(h_ND: Tensor, num_components: int) -> float:
    """Compute nrc1 of float64 features, see `regression_collapse`.

    Raises:
        FeaturesError: All features are equal.
    """
    components = torch.linalg.svd(h_ND - h_ND.mean(0), full_matrices=False).Vh[:num_components]
    return _outside(_directions(h_ND), components)


def weight_collapse(h_ND: Tensor, y_Nm: Tensor, weight_mD: Tensor) -> dict[str, float | None]:
    """Compute nrc2 and nrc3 of float64 features and targets, see `regression_collapse`.

    Raises:
        FeaturesError: All features are equal.
    """
    nrc3 = None if len(weight_mD) == 1 else _gram_distance(weight_mD @ weight_mD.mT, y_Nm)
    _, values, basis = torch.linalg.svd(weight_mD, full_matrices=False)
    row_space_rD = basis[values > values.max() * max(weight_mD.shape) * torch.finfo(values.dtype).eps]
    return {"nrc2": _outside(_directions(h_ND), row_space_rD), "nrc3": nrc3}


def linear_cka(first: Any, second: Any) -> float:
    """Compute the linear centred kernel alignment (CKA) of two layers' features.

    CKA = ||A^T B||^2 / (||A^T A|| ||B^T B||) in Frobenius norms, A and B the centred features. It is invariant to rotation and
    scale. Source: Kornblith, Norouzi, Lee, Hinton, Similarity of Neural Network Representations Revisited (ICML 2019).

    Args:
        first: Features, shape [N, ...], numpy or torch. Axes after the first are flattened.
        second: Features of the same samples in the same order, shape [N, ...]. Widths may differ.

    Returns:
        CKA from 0 (uncorrelated) to 1 (equal up to rotation and scale).

    Raises:
        FeaturesError: Lengths differ, a number is not finite, or one layer's features are all equal.
    """
    a_ND, b_NE = (as_features(features).double() for features in (first, second))
    if len(a_ND) != len(b_NE):
        raise FeaturesError(f"first has {len(a_ND)} samples and second has {len(b_NE)}, expected the same samples")
    a_ND, b_NE = a_ND - a_ND.mean(0), (b_NE - b_NE.mean(0)).to(a_ND.device)
    if len(a_ND) < max(a_ND.shape[1], b_NE.shape[1]):  # the samples' Gram matrices are the smaller ones
        gram_a, gram_b = a_ND @ a_ND.mT, b_NE @ b_NE.mT
        alignment, norms = (gram_a * gram_b).sum(), gram_a.norm() * gram_b.norm()
    else:
        alignment, norms = (a_ND.mT @ b_NE).square().sum(), (a_ND.mT @ a_ND).norm() * (b_NE.mT @ b_NE).norm()
    if not norms > 0:
        raise FeaturesError("all features of one layer are equal, so CKA is undefined")
    return float(alignment / norms)


def effective_rank(features: Any) -> float:
    """Compute the effective rank e^H, H the entropy of the centred features' singular values as shares of their sum.

    Source: Roy & Vetterli, The effective rank: a measure of effective dimensionality (EUSIPCO 2007).

    Args:
        features: Shape [N, ...], numpy or torch. Axes after the first are flattened to D.

    Returns:
        Effective rank, from 1 to min(N, D).

    Raises:
        FeaturesError: A number is not finite, or all features are equal.
    """
    h_ND = as_features(features).double()
    values = torch.linalg.svdvals(h_ND - h_ND.mean(0))
    if not values.max() > 0:
        raise FeaturesError("all features are equal, so the effective rank is undefined")
    shares = values / values.sum()
    return math.exp(float(torch.special.entr(shares).sum()))


def intrinsic_dimension(features: Any) -> float:
    """Estimate the intrinsic dimension of the features by TwoNN, from each sample's two nearest neighbours.

    The estimate is the slope through 0 of -ln(1 - i/N) against the sorted ln(r2/r1), fitted to the smallest 90 %. Duplicate
    samples count once. Source: Facco, d'Errico, Rodriguez, Laio, Estimating the intrinsic dimension of datasets by a minimal
    neighborhood information (Scientific Reports 2017).

    Args:
        features: Shape [N, ...], numpy or torch. Axes after the first are flattened.

    Returns:
        Estimated dimension, not necessarily an integer.

    Raises:
        FeaturesError: A number is not finite, fewer than 10 samples are distinct, or all distance ratios are 1.
    """
    h_ND = torch.unique(as_features(features).double(), dim=0)
    if len(h_ND) < 10:
        raise FeaturesError(f"features have {len(h_ND)} distinct samples, TwoNN needs at least 10")
    nearest = []
    for start in range(0, len(h_ND), DISTANCE_BLOCK_ROWS):
        # computed from differences, since rounding in the matrix-product formula loses near neighbours
        distances = torch.cdist(
            h_ND[start : start + DISTANCE_BLOCK_ROWS], h_ND, compute_mode="donot_use_mm_for_euclid_dist"
        )
        nearest.append(distances.topk(3, largest=False).values[:, 1:])  # the first is the sample itself
    r1_r2 = torch.cat(nearest)
    ratios = (r1_r2[:, 1] / r1_r2[:, 0]).log().sort().values
    num, num_fitted = len(ratios), int(FITTED_SHARE * len(ratios))
    rank = torch.arange(1, num_fitted + 1, dtype=torch.float64, device=ratios.device)
    x, y = ratios[:num_fitted], -torch.log1p(-rank / num)
    if not x.square().sum() > 0:
        raise FeaturesError(
            "every sample's two nearest neighbours are equally far, as on a lattice, so TwoNN is undefined"
        )
    return float((x * y).sum() / x.square().sum())


def _directions(h_ND: Tensor) -> Tensor:
    """Return the unit vectors of the centred features, excluding samples at the mean."""
    centred_ND = h_ND - h_ND.mean(0)
    norms_N = centred_ND.norm(dim=1)
    if not (norms_N > 0).any():
        raise FeaturesError("all features are equal, so regression collapse is undefined")
    return centred_ND[norms_N > 0] / norms_N[norms_N > 0].unsqueeze(1)


def _outside(unit_ND: Tensor, basis_rD: Tensor) -> float:
    """Compute the mean squared distance of unit vectors from the span of orthonormal rows."""
    return float((unit_ND - unit_ND @ basis_rD.mT @ basis_rD).square().sum(1).mean())


def _gram_distance(gram_mm: Tensor, y_Nm: Tensor) -> float | None:
    """Compute nrc3, or None for a zero weight. The minimum over s is where the cosine of the two matrices is largest."""
    if not gram_mm.norm() > 0:
        return None
    variances, vectors = torch.linalg.eigh(torch.cov(y_Nm.mT, correction=0))
    variances = variances.clamp(min=0)
    root_mm = (vectors * variances.sqrt()) @ vectors.mT
    unit_mm, identity_mm = gram_mm / gram_mm.norm(), torch.eye(len(gram_mm), dtype=gram_mm.dtype, device=gram_mm.device)
    along, trace = float((unit_mm * root_mm).sum()), float(unit_mm.trace())
    squares, sum_of_roots, max_s = float(variances.sum()), float(root_mm.trace()), float(variances[0].sqrt())
    curvature = along * len(gram_mm) - trace * sum_of_roots
    inner = (along * sum_of_roots - trace * squares) / curvature if curvature else 0.0
    distances = []
    for s in {0.0, max_s, min(max(inner, 0.0), max_s)}:
        shifted_mm = root_mm - s * identity_mm
        if shifted_mm.norm() > 1e-12 * root_mm.norm():
            distances.append(float((unit_mm - shifted_mm / shifted_mm.norm()).square().sum()))
    return min(distances)
