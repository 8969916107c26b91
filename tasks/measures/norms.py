"""Weight norms that appear in the theorems, and LayerNorm's smallest input deviations, in float64.

Shapes: T trials, N rows, K classes, D feature dimensions; weights by name [T, *shape].
Source: P1 Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, Theorems 4.3 and 4.6.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor


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
