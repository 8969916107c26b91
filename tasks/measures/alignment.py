"""Alignment of the last layer's weight with a simplex, a basis and the features (NC2, NC3, distance to optima), in float64.

Shapes: T trials, N samples sorted by class, D feature dimensions, K classes.
Source: P1 Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, Definition 3.4.
"""

import math

import torch
from torch import Tensor

from depthrate.tasks.measures.class_means import class_means


def weight_alignment(h_TND: Tensor, class_counts_K: Tensor, weight_TKD: Tensor) -> dict[str, Tensor]:
    """Compare the last layer's weight W with a simplex, a basis and the features (P1 Def. 3.4).

    Args:
        h_TND: Features sorted by class.
        class_counts_K: Number of samples per class.
        weight_TKD: Last layer's weight, one row per class.

    Returns:
        Metric name -> values [T], 0 at collapse.
        nc2a = min over c >= 0 of ||W W^T - c E||_F / ||W W^T||_F with E = I - (1/K) 1 1^T.
        nc2b: the same with I in place of E.
        nc3 = 1 - mean over samples of cos(x, W_k), k the sample's class.
    """
    weight_TKD = weight_TKD.double()
    labels_N = torch.repeat_interleave(class_counts_K)
    num_classes = weight_TKD.shape[1]
    identity_KK = torch.eye(num_classes, dtype=torch.float64, device=weight_TKD.device)
    gram_TKK = weight_TKD @ weight_TKD.mT
    # 1 - cos is half the squared distance of unit vectors, which does not cancel near collapse
    difference_TND = _unit(h_TND.double())
    difference_TND -= _unit(weight_TKD).index_select(1, labels_N)
    return {
        "nc2a": _distance_to_ray(gram_TKK, identity_KK - 1 / num_classes),
        "nc2b": _distance_to_ray(gram_TKK, identity_KK),
        "nc3": torch.linalg.vector_norm(difference_TND, dim=(1, 2)).square() / (2 * len(labels_N)),
    }


def distance_to_optima(
    h_ND: Tensor, class_counts_K: Tensor, weight_KD: Tensor, row_norm: float, *, is_simplex: bool
) -> Tensor:
    """Measure the distance of (W, H) to the optima of the unconstrained model on the LayerNorm sphere (P1, Theorem 4.3).

    An optimum has W_k = w u_k and features sqrt(D) u_k for all samples of class k, with unit vectors u_k that are orthogonal to
    the vector of ones and form a simplex or are orthogonal to one another. All optima are images of one under the orthogonal
    maps of the mean-zero subspace, so the closest one solves an orthogonal Procrustes problem.

    Args:
        h_ND: Features sorted by class, after their LayerNorm.
        class_counts_K: Number of samples per class.
        weight_KD: Last layer's weight, one row per class.
        row_norm: w, of `theory.gufm_optimum`.
        is_simplex: Whether the u_k form a simplex. Otherwise they are orthogonal.

    Returns:
        min over optima of sqrt(||W - W*||_F^2 + ||H - H*||_F^2), in units of features. NaN unless all numbers are finite.
    """
    h_ND, weight_KD = h_ND.double(), weight_KD.double()
    num_classes, width = weight_KD.shape
    radius = math.sqrt(width)
    # the u_k are the rows of corners_KM V axes_DE^T, with orthonormal rows of V
    axes_DE = _mean_zero_basis(width, h_ND.device)
    corners_KM = torch.eye(num_classes, dtype=torch.float64, device=h_ND.device)
    if is_simplex:
        corners_KM = math.sqrt(num_classes / (num_classes - 1)) * _mean_zero_basis(num_classes, h_ND.device)
    sums_KD = class_means(h_ND.unsqueeze(0), class_counts_K)[0] * class_counts_K.unsqueeze(1)
    cross_ME = corners_KM.mT @ (row_norm * weight_KD + radius * sums_KD) @ axes_DE
    if not cross_ME.isfinite().all():  # the decomposition would raise
        return torch.full_like(cross_ME[0, 0], math.nan)
    left_MM, _, right_ME = torch.linalg.svd(cross_ME, full_matrices=False)
    units_KD = corners_KM @ left_MM @ right_ME @ axes_DE.mT
    of_weight = (weight_KD - row_norm * units_KD).square().sum()
    of_features = (h_ND - radius * units_KD.repeat_interleave(class_counts_K, 0)).square().sum()
    return (of_weight + of_features).sqrt()


def _mean_zero_basis(size: int, device: torch.device) -> Tensor:
    """Return an orthonormal basis [size, size - 1] of the vectors whose coordinates sum to zero."""
    ones = torch.ones(1, size, dtype=torch.float64, device=device)
    return torch.linalg.svd(ones).Vh[1:].mT


def _unit(x_TND: Tensor) -> Tensor:
    return x_TND / x_TND.norm(dim=-1, keepdim=True)


def _distance_to_ray(gram_TKK: Tensor, basis_KK: Tensor) -> Tensor:
    scale_T11 = ((gram_TKK * basis_KK).sum((1, 2), keepdim=True) / basis_KK.square().sum()).clamp(min=0)
    return (gram_TKK - scale_T11 * basis_KK).norm(dim=(1, 2)) / gram_TKK.norm(dim=(1, 2))
