"""The geometry of one layer's features, in float64 and two passes, without a D x D matrix.

Shapes: T trials, N samples sorted by class, D feature dimensions, K classes.
Sources: P1 Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, Definition 3.4;
P2 Neural Collapse versus Low-Rank Bias, section 6; P3 Progressive Feedforward Collapse of ResNet Training, (7)-(9).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PINV_TOLERANCE = 1e-12
"""Eigenvalues of Sigma_B below this share of the largest count as zero in nc1_pinv; at most K - 1 are kept."""


@dataclass(frozen=True)
class ClassGeometry:
    """Measurements that need the features alone; null where a denominator is zero."""

    scalars: dict[str, Tensor]
    """Each a float64 tensor [T]; NaN or infinite where not defined."""
    singular_values: Tensor
    """Of the class-mean matrix M (D x K), falling, [T, min(D, K)]."""
    class_gram: Tensor
    """M^T M, [T, K, K]."""


def class_geometry(h_TND: Tensor, class_counts_K: Tensor, rank_tol: float) -> ClassGeometry:
    """Measure features sorted by class; classes are weighted by their share of the samples.

    nc1 = tr Sigma_W / tr Sigma_B (P1 Def. 3.4). nc1_pinv = tr(Sigma_W pinv(Sigma_B)) / K. pfc2 = || Ht^T Ht / ||Ht^T Ht||
    - E / sqrt(K-1) || with Ht the centred means and E = I - (1/K) 1 1^T (P3 (8)). ncc_accuracy = share of samples whose nearest
    class mean is their own (P3 (9)). Of the uncentred means M (P2 section 6): rank = number of singular values above
    rank_tol x the largest, stable_rank = ||M||_F^2 / ||M||_2^2, condition_number = largest over smallest singular
    value, not defined when the smallest is zero to rounding (below 1e-14 x the largest).
    """
    h_TND = h_TND.double()
    counts_K = class_counts_K.double()
    num_samples = h_TND.shape[1]
    labels_N = torch.repeat_interleave(class_counts_K)
    share_K1 = (counts_K / num_samples).unsqueeze(1)

    means_TKD = class_means(h_TND, class_counts_K)
    deviations_TND = h_TND - means_TKD[:, labels_N]
    global_mean_T1D = (share_K1 * means_TKD).sum(1, keepdim=True)
    centred_TKD = means_TKD - global_mean_T1D
    within_T = deviations_TND.square().sum((1, 2)) / num_samples
    between_T = (share_K1 * centred_TKD.square()).sum((1, 2))

    # on a GPU a decomposition of so small a matrix costs more than bringing it over
    singular_values = torch.linalg.svdvals(means_TKD.mT.cpu()).to(means_TKD.device)
    largest_T, smallest_T = singular_values[:, 0], singular_values[:, -1]
    smallest_T = torch.where(smallest_T > 1e-14 * largest_T, smallest_T, 0.0)
    scalars = {
        "nc1": within_T / between_T,
        "nc1_pinv": _nc1_pinv(deviations_TND, share_K1.sqrt() * centred_TKD),
        "pfc2": _distance_to_simplex(centred_TKD @ centred_TKD.mT),
        "ncc_accuracy": _ncc_accuracy(h_TND - global_mean_T1D, centred_TKD, labels_N),
        "rank": (singular_values > rank_tol * largest_T.unsqueeze(1)).double().sum(1),
        "stable_rank": singular_values.square().sum(1) / largest_T.square(),
        "condition_number": largest_T / smallest_T,
    }
    return ClassGeometry(scalars, singular_values, means_TKD @ means_TKD.mT)


def weight_alignment(h_TND: Tensor, class_counts_K: Tensor, weight_TKD: Tensor) -> dict[str, Tensor]:
    """Measure the last layer's weight W against a simplex, a basis and the features, each [T] (P1 Def. 3.4).

    nc2a = min over c >= 0 of ||W W^T - c E||_F / ||W W^T||_F with E = I - (1/K) 1 1^T; nc2b the same with I in place of E;
    nc3 = 1 - mean over samples of cos(x, W_k) with k the sample's class.
    """
    weight_TKD = weight_TKD.double()
    labels_N = torch.repeat_interleave(class_counts_K)
    num_classes = weight_TKD.shape[1]
    identity_KK = torch.eye(num_classes, dtype=torch.float64, device=weight_TKD.device)
    gram_TKK = weight_TKD @ weight_TKD.mT
    # cos is formed from unit vectors, and 1 - cos as half their squared distance: no cancellation near collapse
    unit_h_TND = _unit(h_TND.double())
    unit_w_TKD = _unit(weight_TKD)
    return {
        "nc2a": _distance_to_ray(gram_TKK, identity_KK - 1 / num_classes),
        "nc2b": _distance_to_ray(gram_TKK, identity_KK),
        "nc3": (unit_h_TND - unit_w_TKD[:, labels_N]).square().sum(-1).mean(1) / 2,
    }


def _unit(x_TND: Tensor) -> Tensor:
    return x_TND / x_TND.norm(dim=-1, keepdim=True)


def class_means(h_TND: Tensor, class_counts_K: Tensor) -> Tensor:
    """Return the class means [T, K, D] of features sorted by class."""
    segments = torch.split(h_TND, class_counts_K.tolist(), dim=1)
    return torch.stack([segment.mean(1) for segment in segments], dim=1)


def _nc1_pinv(deviations_TND: Tensor, root_TKD: Tensor) -> Tensor:
    """With Sigma_B = A^T A (A = root, K x D) and G = A A^T: tr(Sigma_W pinv(Sigma_B)) = tr(G^+ (A Sigma_W A^T) G^+)."""
    num_samples, num_classes = deviations_TND.shape[1], root_TKD.shape[1]
    gram_TKK = (root_TKD @ root_TKD.mT).cpu()
    eigenvalues_TK, vectors_TKK = (part.to(root_TKD.device) for part in torch.linalg.eigh(gram_TKK))
    kept_TK = eigenvalues_TK > PINV_TOLERANCE * eigenvalues_TK[:, -1:]
    kept_TK[:, 0] = False  # the centred means span at most K - 1 dimensions
    inverse_TK = torch.where(kept_TK, 1 / eigenvalues_TK, 0.0)
    projected_TNK = deviations_TND @ root_TKD.mT
    scatter_TKK = projected_TNK.mT @ projected_TNK / num_samples
    scaled_TKK = vectors_TKK * inverse_TK.unsqueeze(1)
    result_T = (scaled_TKK.mT @ scatter_TKK @ scaled_TKK).diagonal(dim1=-2, dim2=-1).sum(-1) / num_classes
    return torch.where(eigenvalues_TK[:, -1] > 0, result_T, torch.nan)


def _ncc_accuracy(centred_TND: Tensor, means_TKD: Tensor, labels_N: Tensor) -> Tensor:
    """The nearest mean maximises h . mu - ||mu||^2 / 2; centring first avoids cancellation."""
    scores_TNK = centred_TND @ means_TKD.mT - means_TKD.square().sum(-1).unsqueeze(1) / 2
    return (scores_TNK.argmax(-1) == labels_N).double().mean(1)


def _distance_to_simplex(gram_TKK: Tensor) -> Tensor:
    num_classes = gram_TKK.shape[-1]
    simplex_KK = torch.eye(num_classes, dtype=gram_TKK.dtype, device=gram_TKK.device) - 1 / num_classes
    unit_TKK = gram_TKK / gram_TKK.norm(dim=(1, 2), keepdim=True)
    return (unit_TKK - simplex_KK / (num_classes - 1) ** 0.5).norm(dim=(1, 2))


def _distance_to_ray(gram_TKK: Tensor, basis_KK: Tensor) -> Tensor:
    scale_T11 = ((gram_TKK * basis_KK).sum((1, 2), keepdim=True) / basis_KK.square().sum()).clamp(min=0)
    return (gram_TKK - scale_T11 * basis_KK).norm(dim=(1, 2)) / gram_TKK.norm(dim=(1, 2))
