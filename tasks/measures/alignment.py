"""Measures of the weights, in float64: alignment with a simplex, a basis, features (NC2, NC3) and the next weights, distance to
optima, norms.

Shapes: T trials, N samples sorted by class, D, I, O feature dimensions of a layer, the one before and the one after, K classes;
weights by name [T, *shape].
Source: P1 Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, Definition 3.4, Theorems 4.3, 4.6.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from depthrate.tasks.measures.neural_collapse import by_class


def weight_alignment(weight_TKD: Tensor) -> dict[str, Tensor]:
    """Compare the last layer's weight W with a simplex and a basis (P1 Def. 3.4).

    Args:
        weight_TKD: Last layer's weight, one row per class.

    Returns:
        Metric name -> values [T], 0 at collapse.
        nc2a = min over c >= 0 of ||W W^T - c E||_F / ||W W^T||_F with E = I - (1/K) 1 1^T.
        nc2b: the same with I in place of E.
    """
    weight_TKD = weight_TKD.double()
    num_classes = weight_TKD.shape[1]
    identity_KK = torch.eye(num_classes, dtype=torch.float64, device=weight_TKD.device)
    gram_TKK = weight_TKD @ weight_TKD.mT
    return {
        "nc2a": _distance_to_ray(gram_TKK, identity_KK - 1 / num_classes),
        "nc2b": _distance_to_ray(gram_TKK, identity_KK),
    }


def feature_alignment(h_TND: Tensor, class_counts_K: Tensor, weight_TKD: Tensor) -> dict[str, Tensor]:
    """Compare the features with the last layer's weight W (P1 Def. 3.4).

    Args:
        h_TND: Features sorted by class.
        class_counts_K: Number of samples per class, on the CPU.
        weight_TKD: Last layer's weight, one row per class.

    Returns:
        nc3 [T] = 1 - mean over samples of cos(x, W_k), k the sample's class. It is 0 at collapse.
    """
    weight_TKD = weight_TKD.double()
    directions_TKD = weight_TKD / torch.linalg.vector_norm(weight_TKD, dim=-1, keepdim=True)
    samples, of_classes = by_class(h_TND.double(), class_counts_K, -directions_TKD)
    # 1 - cos is half the squared distance of unit vectors, which does not cancel near collapse
    inverse_norms = torch.linalg.vector_norm(samples, dim=-1, keepdim=True).reciprocal()
    difference = torch.addcmul(of_classes, samples, inverse_norms)
    return {"nc3": torch.linalg.vector_norm(difference.flatten(1), dim=1).square() / (2 * h_TND.shape[1])}


def distance_to_optima(
    means_KD: Tensor, within: Tensor, class_counts_K: Tensor, weight_KD: Tensor, row_norm: float, *, is_simplex: bool
) -> Tensor:
    """Measure the distance of (W, H) to the optima of the unconstrained model on the LayerNorm sphere (P1, Theorem 4.3).

    An optimum has W_k = w u_k and features sqrt(D) u_k for all samples of class k, with unit vectors u_k that are orthogonal to
    the vector of ones and form a simplex or are orthogonal to one another. All optima are images of one under the orthogonal
    maps of the mean-zero subspace, so the closest one solves an orthogonal Procrustes problem.

    Args:
        means_KD: Class means of the features after their LayerNorm, as in `class_moments`.
        within: tr Sigma_W of the features, as in `class_moments`.
        class_counts_K: Number of samples per class.
        weight_KD: Last layer's weight, one row per class.
        row_norm: w, of `theory.gufm_optimum`.
        is_simplex: Whether the u_k form a simplex. Otherwise they are orthogonal.

    Returns:
        min over optima of sqrt(||W - W*||_F^2 + ||H - H*||_F^2), in units of features. NaN unless all numbers are finite.
    """
    weight_KD = weight_KD.double()
    num_classes, width = weight_KD.shape
    radius = math.sqrt(width)
    # the u_k are the rows of corners_KM V axes_DE^T, with orthonormal rows of V
    axes_DE, corners_KM = _mean_zero_basis(width), torch.eye(num_classes, dtype=torch.float64)
    if is_simplex:
        corners_KM = math.sqrt(num_classes / (num_classes - 1)) * _mean_zero_basis(num_classes)
    counts_K1 = class_counts_K.unsqueeze(1)
    cross_ME = corners_KM.mT @ (row_norm * weight_KD + radius * counts_K1 * means_KD) @ axes_DE
    if not cross_ME.isfinite().all():  # the decomposition would raise
        return torch.full_like(cross_ME[0, 0], math.nan)
    left_MM, _, right_ME = torch.linalg.svd(cross_ME, full_matrices=False)
    units_KD = corners_KM @ left_MM @ right_ME @ axes_DE.mT
    of_weight = (weight_KD - row_norm * units_KD).square().sum()
    of_features = class_counts_K.sum() * within + (counts_K1 * (means_KD - radius * units_KD).square()).sum()
    return (of_weight + of_features).sqrt()


@functools.lru_cache(maxsize=8)
def _mean_zero_basis(size: int) -> Tensor:
    """Return an orthonormal basis [size, size - 1] of the vectors whose coordinates sum to zero."""
    return torch.linalg.svd(torch.ones(1, size, dtype=torch.float64)).Vh[1:].mT


def _distance_to_ray(gram_TKK: Tensor, basis_KK: Tensor) -> Tensor:
    scale_T11 = ((gram_TKK * basis_KK).sum((1, 2), keepdim=True) / basis_KK.square().sum()).clamp(min=0)
    return (gram_TKK - scale_T11 * basis_KK).norm(dim=(1, 2)) / gram_TKK.norm(dim=(1, 2))


def square_norms(weights: Mapping[str, Tensor], groups: Mapping[str, str | None]) -> dict[str, Tensor]:
    """Sum ||W||^2 over each decay group's weights, [T]. `groups` maps a weight to its group, or to None if never decayed."""
    squares: dict[str, Tensor] = {}
    for name, weight in weights.items():
        group = groups[name]
        if group is not None:
            squares[group] = squares.get(group, 0) + weight.double().flatten(1).square().sum(1)
    return squares


def row_norms(weight_TKD: Tensor) -> Tensor:
    """Compute the norm ||w_k|| of each class's row, [T, K]."""
    return weight_TKD.double().norm(dim=-1)


def smallest_deviations(before_norms: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield for each LayerNorm the smallest standard deviation over the last axis of its inputs, [T].

    LayerNorm is singular at zero deviation. Near zero, eps determines the output.
    """
    for before_norm in before_norms:
        h_TND = before_norm.flatten(1, -2)
        if h_TND.is_cuda:  # it would wait for the number of rows that the fast pass selects
            yield h_TND.double().std(dim=-1, unbiased=False).amin(1)
        else:
            yield torch.stack([_smallest_deviation(h_ND) for h_ND in h_TND])


def _smallest_deviation(h_ND: Tensor) -> Tensor:
    """Compute the smallest standard deviation of a row, exactly as float64 `std` over all rows would.

    `std` in float64 is slow, so a fast pass first selects the rows that could be smallest up to rounding.
    """
    if len(h_ND) > 1:
        limits, width = torch.finfo(h_ND.dtype), h_ND.shape[-1]
        mean_N1 = h_ND.mean(-1, keepdim=True)
        fast_N = (h_ND - mean_N1).square().mean(-1).sqrt()
        # rounding grows with the size of the averaged numbers, and squares of the smallest numbers underflow
        rounding = width * limits.eps * (mean_N1.squeeze(-1).abs() + fast_N).max() + limits.tiny**0.5
        h_ND = h_ND[~(fast_N > fast_N.min() + 8 * rounding)]  # keeps NaN
        # torch sums a single row in a different order than a row of a larger matrix
        h_ND = h_ND.expand(2, width) if len(h_ND) == 1 else h_ND
    return h_ND.double().std(dim=-1, unbiased=False).min()


MIN_GAP = 0.01
"""Smallest gap after a singular value, over the largest one, for which the span of the vectors up to it counts as defined."""


def consecutive_alignment(written_TDI: Tensor, read_TOD: Tensor, num_vectors: int) -> dict[str, Tensor]:
    """Compare the left singular vectors of the matrix that writes a layer with the right ones of the matrix that reads it.

    They are computed as eigenvectors of W W^T and V^T V, in float64.

    Args:
        written_TDI: W of each trial.
        read_TOD: V of each trial.
        num_vectors: K of subspace_alignment, at most D.

    Returns:
        Metric name -> values [T], from 0 to 1. NaN where undefined.
    """
    grams = torch.stack([written_TDI.double() @ written_TDI.double().mT, read_TOD.double().mT @ read_TOD.double()])
    is_finite_T = grams.isfinite().all(-1).all(-1).all(0)  # the decomposition would raise
    squares, vectors = torch.linalg.eigh(torch.where(is_finite_T[:, None, None], grams, 0.0))
    squares, vectors = squares.flip(-1).clamp(min=0), vectors.flip(-1)

    def overlap(count: int) -> Tensor:
        """Compute ||U^T V||_F^2 / count of the first vectors, NaN if a matrix does not determine their span."""
        left_TDK, right_TDK = vectors[..., :count]
        sizes = squares.sqrt()
        gaps = sizes[..., count - 1] - (sizes[..., count] if count < sizes.shape[-1] else 0)
        is_defined_T = (gaps > MIN_GAP * sizes[..., 0]).all(0)
        values_T = (left_TDK.mT @ right_TDK).square().sum((1, 2)) / count
        return torch.where(is_defined_T & is_finite_T, values_T.clamp(max=1), math.nan)

    reached_T = (read_TOD.double() @ written_TDI.double()).square().sum((1, 2))
    return {
        "singular_alignment": overlap(1).sqrt(),
        "subspace_alignment": overlap(min(num_vectors, squares.shape[-1])),
        "product_alignment": (reached_T / squares.prod(0).sum(-1)).clamp(max=1),
    }
