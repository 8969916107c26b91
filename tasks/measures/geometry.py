"""Measurements of features that need no classes: regression collapse, similarity of layers, effective rank, dimension.

All in float64, on the features' device. Shapes: N samples, D numbers of a feature, m numbers of a target.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.measures.labelled import FeaturesError, as_features, as_targets, as_weight, require_variation

DISTANCE_BLOCK_ROWS = 2048
"""Samples whose distances to all others are held at once."""
FITTED_SHARE = 0.9
"""Share of the ratios that TwoNN fits; the largest are left out, as its authors do."""


def regression_collapse(features: Any, targets: Any, weight: Any = None) -> dict[str, float | None]:
    """Measure neural regression collapse of features [N, ...] with targets [N] or [N, m]: nrc1, nrc2, nrc3, 0 where complete.

    With z_i = (h_i - mean h) / ||h_i - mean h||, nrc1 = mean ||z_i - P z_i||^2, P the projection on the m first principal
    components of the features; nrc2 the same with the projection on the rows of the last layer's weight W [m, D]; nrc3 = min
    over s in [0, sqrt(lambda_min)] of ||W W^T / ||W W^T|| - (S - s I) / ||S - s I|| ||^2 in Frobenius norms, S the square root
    of the targets' covariance and lambda_min its smallest eigenvalue. nrc2 and nrc3 are null without a weight, nrc3 also for
    m = 1, where it is always 0. Source: Andriopoulos, Dong, Guo, Zhao, Ross, The Prevalence of Neural Collapse in Neural
    Multivariate Regression (NeurIPS 2024); features are taken less their mean, as the head's bias does not see it.

    Raises:
        FeaturesError: lengths differ, a number is not finite, all features are one, or targets do not vary.
    """
    h_ND = as_features(features).double()
    y_Nm = require_variation(as_targets(targets, len(h_ND))).to(h_ND.device)
    width, weight_mD = y_Nm.shape[1], as_weight(weight, h_ND.shape[1])
    if weight_mD is not None and len(weight_mD) != width:
        raise FeaturesError(f"weight has {len(weight_mD)} rows, and targets have {width} numbers; give [m, D]")
    found: dict[str, float | None] = {"nrc1": component_collapse(h_ND, width), "nrc2": None, "nrc3": None}
    if weight_mD is not None:
        found |= weight_collapse(h_ND, y_Nm, weight_mD.double().to(h_ND.device))
    return found


def component_collapse(h_ND: Tensor, num_components: int) -> float:
    """Return nrc1 of features in float64: see `regression_collapse`.

    Raises:
        FeaturesError: all features are one.
    """
    components = torch.linalg.svd(h_ND - h_ND.mean(0), full_matrices=False).Vh[:num_components]
    return _outside(_directions(h_ND), components)


def weight_collapse(h_ND: Tensor, y_Nm: Tensor, weight_mD: Tensor) -> dict[str, float | None]:
    """Return nrc2 and nrc3 of features and targets in float64: see `regression_collapse`.

    Raises:
        FeaturesError: all features are one.
    """
    nrc3 = None if len(weight_mD) == 1 else _gram_distance(weight_mD @ weight_mD.mT, y_Nm)
    return {"nrc2": _outside(_directions(h_ND), _row_space(weight_mD)), "nrc3": nrc3}


def linear_cka(first: Any, second: Any) -> float:
    """Return linear centred kernel alignment of two features [N, ...] of the same samples, 0 to 1.

    ||A^T B||^2 / (||A^T A|| ||B^T B||) in Frobenius norms, A and B less their means: 1 for features that are each other's
    rotation, scaled. Source: Kornblith, Norouzi, Lee, Hinton, Similarity of Neural Network Representations Revisited (2019).

    Raises:
        FeaturesError: lengths differ, a number is not finite, or all features of one are the same.
    """
    a_ND, b_NE = (as_features(each).double() for each in (first, second))
    if len(a_ND) != len(b_NE):
        raise FeaturesError(f"{len(a_ND)} samples are compared with {len(b_NE)}; give features of the same samples")
    a_ND, b_NE = a_ND - a_ND.mean(0), (b_NE - b_NE.mean(0)).to(a_ND.device)
    if len(a_ND) < max(a_ND.shape[1], b_NE.shape[1]):  # by the samples' Gram matrices, the smaller ones
        gram_a, gram_b = a_ND @ a_ND.mT, b_NE @ b_NE.mT
        shared, own = (gram_a * gram_b).sum(), gram_a.norm() * gram_b.norm()
    else:
        shared, own = (a_ND.mT @ b_NE).square().sum(), (a_ND.mT @ a_ND).norm() * (b_NE.mT @ b_NE).norm()
    if not own > 0:
        raise FeaturesError("all features of one of them are the same; there is nothing to compare")
    return float(shared / own)


def effective_rank(features: Any) -> float:
    """Return e^entropy of the singular values of features [N, ...] less their mean, as shares of their sum: 1 to min(N, D).

    Source: Roy & Vetterli, The effective rank: a measure of effective dimensionality (2007).

    Raises:
        FeaturesError: a number is not finite, or all features are one and the same.
    """
    h_ND = as_features(features).double()
    values = torch.linalg.svdvals(h_ND - h_ND.mean(0))
    if not values.max() > 0:
        raise FeaturesError("all features are one and the same; they have no rank")
    shares = values / values.sum()
    return math.exp(float(torch.special.entr(shares).sum()))


def intrinsic_dimension(features: Any) -> float:
    """Return the dimension of the set that features [N, ...] lie on, by TwoNN: from the two nearest neighbours of each sample.

    The slope through 0 of -ln(1 - i/N) over ln(r2/r1), sorted, of the 90 % smallest ratios. Samples that are there twice are
    taken once. Source: Facco, d'Errico, Rodriguez, Laio, Estimating the intrinsic dimension of datasets by a minimal
    neighborhood information (2017).

    Raises:
        FeaturesError: a number is not finite, or fewer than 10 samples differ.
    """
    h_ND = torch.unique(as_features(features).double(), dim=0)
    if len(h_ND) < 10:
        raise FeaturesError(f"{len(h_ND)} samples differ; TwoNN needs 10 or more")
    nearest = []
    for start in range(0, len(h_ND), DISTANCE_BLOCK_ROWS):
        # by differences: squares and products would lose near neighbours to rounding
        distances = torch.cdist(
            h_ND[start : start + DISTANCE_BLOCK_ROWS], h_ND, compute_mode="donot_use_mm_for_euclid_dist"
        )
        nearest.append(distances.topk(3, largest=False).values[:, 1:])  # the first is the sample itself
    one_two = torch.cat(nearest)
    ratios = (one_two[:, 1] / one_two[:, 0]).log().sort().values
    num, kept = len(ratios), int(FITTED_SHARE * len(ratios))
    rank = torch.arange(1, kept + 1, dtype=torch.float64, device=ratios.device)
    x, y = ratios[:kept], -torch.log1p(-rank / num)
    if not x.square().sum() > 0:
        raise FeaturesError(
            "each sample has its two nearest neighbours at one distance, as on a lattice; TwoNN is not defined"
        )
    return float((x * y).sum() / x.square().sum())


def _directions(h_ND: Tensor) -> Tensor:
    """Return the directions of features less their mean; of those that are the mean none."""
    centred_ND = h_ND - h_ND.mean(0)
    norms_N = centred_ND.norm(dim=1)
    if not (norms_N > 0).any():
        raise FeaturesError("all features are one and the same; there is no direction to measure")
    return centred_ND[norms_N > 0] / norms_N[norms_N > 0].unsqueeze(1)


def _outside(unit_ND: Tensor, basis_rD: Tensor) -> float:
    """Return the mean square of what unit vectors have outside of the span of orthonormal rows."""
    return float((unit_ND - unit_ND @ basis_rD.mT @ basis_rD).square().sum(1).mean())


def _row_space(weight_mD: Tensor) -> Tensor:
    """Return an orthonormal basis [r, D] of a matrix's rows."""
    _, values, basis = torch.linalg.svd(weight_mD, full_matrices=False)
    return basis[values > values.max() * max(weight_mD.shape) * torch.finfo(values.dtype).eps]


def _gram_distance(gram_mm: Tensor, y_Nm: Tensor) -> float | None:
    """Return nrc3; null for a weight of zeros. The minimum over s is where the cosine of both matrices is largest."""
    if not gram_mm.norm() > 0:
        return None
    variances, vectors = torch.linalg.eigh(torch.cov(y_Nm.mT, correction=0))
    variances = variances.clamp(min=0)
    root_mm = (vectors * variances.sqrt()) @ vectors.mT
    unit_mm, identity_mm = gram_mm / gram_mm.norm(), torch.eye(len(gram_mm), dtype=gram_mm.dtype, device=gram_mm.device)
    along, trace = float((unit_mm * root_mm).sum()), float(unit_mm.trace())
    squares, sum_of_roots, num, most = (
        float(variances.sum()),
        float(root_mm.trace()),
        len(gram_mm),
        float(variances[0].sqrt()),
    )
    curvature = along * num - trace * sum_of_roots
    inner = (along * sum_of_roots - trace * squares) / curvature if curvature else 0.0
    found = []
    for s in {0.0, most, min(max(inner, 0.0), most)}:
        shifted_mm = root_mm - s * identity_mm
        if shifted_mm.norm() > 1e-12 * root_mm.norm():
            found.append(float((unit_mm - shifted_mm / shifted_mm.norm()).square().sum()))
    return min(found)
