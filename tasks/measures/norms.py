"""The sizes of weights that the theorems speak of, and what they cost, in float64.

Shapes: T trials, K classes, D feature dimensions; weights by name [T, *shape].
Source: P1 Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, Theorems 4.3 and 4.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def square_norms(weights: Mapping[str, Tensor], groups: Mapping[str, str | None]) -> dict[str, Tensor]:
    """Return decay group -> sum of ||W||^2 over its weights, [T]. groups: weight -> its group, null where never decayed."""
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        group = groups[name]
        if group is not None:
            found[group] = found.get(group, 0) + weight.double().flatten(1).square().sum(1)
    return found


def row_norms(weight_TKD: Tensor) -> Tensor:
    """Return ||w_k|| of each class's row, [T, K]."""
    return weight_TKD.double().norm(dim=-1)


def smallest_deviation(before_norms: Iterable[Tensor]) -> Tensor | None:
    """Return the smallest standard deviation over the last axis, [T], of all that LayerNorms read; null where there is none.

    Near zero LayerNorm is a singularity, and its eps decides what comes out.
    """
    smallest_T: Tensor | None = None
    for h_TND in before_norms:
        here_T = h_TND.double().std(dim=-1, unbiased=False).flatten(1).min(1).values
        smallest_T = here_T if smallest_T is None else torch.minimum(smallest_T, here_T)
    return smallest_T
