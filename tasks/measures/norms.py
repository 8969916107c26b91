"""The sizes of weights that the theorems speak of, and what they cost, in float64.

Shapes: T trials, K classes, D feature dimensions; weights by name [T, *shape].
Source: P1 Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, Theorems 4.3 and 4.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor


def square_norms(weights: Mapping[str, Tensor], groups: Mapping[str, str | None]) -> dict[str, Tensor]:
    """Return decay group -> sum of ||W||^2 over its weights, [T]. groups: weight -> its group, null where never decayed."""
    squares: dict[str, Tensor] = {}
    for name, weight in weights.items():
        group = groups[name]
        if group is not None:
            squares[group] = squares.get(group, 0) + weight.double().flatten(1).square().sum(1)
    return squares


def row_norms(weight_TKD: Tensor) -> Tensor:
    """Return ||w_k|| of each class's row, [T, K]."""
    return weight_TKD.double().norm(dim=-1)


def smallest_deviations(before_norms: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the smallest standard deviation over the last axis, [T], of what each LayerNorm reads.

    Near zero LayerNorm is a singularity, and its eps decides what comes out.
    """
    for h_TND in before_norms:
        yield torch.stack([_smallest_deviation(h_ND) for h_ND in h_TND.flatten(1, -2)])


def _smallest_deviation(h_ND: Tensor) -> Tensor:
    """Return the smallest standard deviation of a row, as `std` in float64 gives it, which is slow: of all rows it is
    formed fast first, and only those that are the smallest but for rounding are given to `std`."""
    if len(h_ND) > 1:
        limits, width = torch.finfo(h_ND.dtype), h_ND.shape[-1]
        mean_N1 = h_ND.mean(-1, keepdim=True)
        fast_N = (h_ND - mean_N1).square().mean(-1).sqrt()
        # its rounding grows with the numbers that the mean is of; squares of the smallest numbers vanish
        rounding = width * limits.eps * (mean_N1.squeeze(-1).abs() + fast_N).max() + limits.tiny**0.5
        h_ND = h_ND[~(fast_N > fast_N.min() + 8 * rounding)]  # NaN stays
        # one row alone is summed in another order than among others
        h_ND = h_ND.expand(2, width) if len(h_ND) == 1 else h_ND
    return h_ND.double().std(dim=-1, unbiased=False).min()
