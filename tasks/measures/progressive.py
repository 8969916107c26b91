"""The path that features take through the layers.

Shapes: T trials, N samples, D feature dimensions.
Source: P3 Progressive Feedforward Collapse of ResNet Training, section IV.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


def path_start(shapes: Sequence[tuple[int, ...]]) -> int:
    """Return the index of the layer where the path begins, given the layers' feature shapes.

    Features of two widths cannot be subtracted, so the path is the last stretch of layers that all have the last one's
    shape: in a network of one width all of them, in a network of stages the last stage, which is what P3 measures.
    """
    start = len(shapes)
    while start > 0 and shapes[start - 1] == shapes[-1]:
        start -= 1
    return start


def step_length(previous_TND: Tensor, h_TND: Tensor) -> Tensor:
    """Return the way from one layer to the next, [T]: the sum of ||h^{l+1} - h^l|| over samples, formed in float64."""
    return (h_TND - previous_TND).double().norm(dim=-1).sum(-1)


def relative_positions(steps: Sequence[float]) -> list[float | None]:
    """Return of each layer of a path the length of the way to it over the whole way's: one more than there are steps.

    The first layer is at 0, the last at 1; where nothing moves, no layer has a position.
    """
    path = [0.0]
    for length in steps:
        path.append(path[-1] + length)
    return [length / path[-1] if path[-1] > 0 else None for length in path]


def monotonicity(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return by how much nc1 and pfc2 rise and ncc_accuracy falls at most from one layer's row to the next, and a code.

    nc1_rise is over nc1 at the first layer. The code `monotone` is 1 if nc1 ever rises + 2 if pfc2 does + 4 if ncc_accuracy
    ever falls: 0 where features collapse progressively, as P3 has it. Null where a layer has no such number.
    """
    nc1, pfc2, accuracy = ([row.get(name) for row in rows] for name in ("nc1", "pfc2", "ncc_accuracy"))
    steps = (_largest_rise(nc1, 1), _largest_rise(pfc2, 1), _largest_rise(accuracy, -1))
    if steps[0] is not None and nc1[0]:
        steps = (steps[0] / nc1[0], *steps[1:])
    lengths = [step for step in steps if step is not None]
    code = None if len(lengths) < len(steps) else sum(2**bit for bit, step in enumerate(lengths) if step > 0)
    return {**dict(zip(("nc1_rise", "pfc2_rise", "ncc_fall"), steps, strict=True)), "monotone": code}


def _largest_rise(values: Sequence[float | None], sign: int) -> float | None:
    signed = [sign * value for value in values if value is not None]
    if len(signed) < len(values):
        return None
    return max([0.0, *(after - before for before, after in itertools.pairwise(signed))])
