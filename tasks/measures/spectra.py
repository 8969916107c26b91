"""The singular values of the class-mean matrix, in float64.

Shapes: T trials, D feature dimensions, K classes.
Source: P2 Neural Collapse versus Low-Rank Bias, section 6.
"""

import torch
from torch import Tensor

from depthrate.tasks.measures.finite_matrices import zero_unless_finite


def spectrum(means_TKD: Tensor, rank_tol: float, precision: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Measure the spectrum of the uncentred class-mean matrix M (D x K).

    Args:
        means_TKD: Class means, M^T of each trial.
        rank_tol: Share of the largest singular value above which one counts in rank.
        precision: Floating-point type of the features' computation.

    Returns:
        Metric name -> values, NaN or infinite where undefined.
        singular_values: descending, [T, min(D, K)].
        class_gram = M^T M, [T, K, K].
        rank: number of singular values above rank_tol times the largest, [T].
        stable_rank = ||M||_F^2 / ||M||_2^2, [T].
        condition_number: largest over smallest singular value, [T]. It is infinite if the smallest is zero up to rounding,
        i.e. at most the largest times max(D, K) times the machine epsilon of `precision`.
    """
    # for such a small matrix, a decomposition on the GPU costs more than the transfer
    finite_TKD, is_finite_T11 = zero_unless_finite(means_TKD.cpu())
    singular_values = torch.linalg.svdvals(finite_TKD.mT)
    singular_values = torch.where(is_finite_T11.squeeze(2), singular_values, torch.nan).to(means_TKD.device)
    largest_T, smallest_T = singular_values[:, 0], singular_values[:, -1]
    zero_share = max(means_TKD.shape[1:]) * torch.finfo(precision).eps
    smallest_T = torch.where(smallest_T > zero_share * largest_T, smallest_T, 0.0)
    return {
        "rank": (singular_values > rank_tol * largest_T.unsqueeze(1))
        .double()
        .sum(1)
        .where(~largest_T.isnan(), torch.nan),
        "stable_rank": singular_values.square().sum(1) / largest_T.square(),
        "condition_number": largest_T / smallest_T,
        "singular_values": singular_values,
        "class_gram": means_TKD @ means_TKD.mT,
    }
