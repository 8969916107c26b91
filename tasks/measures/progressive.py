"""The features' path through the layers: positions, step lengths and monotonicity.

Shapes: T trials, N samples, D feature dimensions.
Source: P3 Progressive Feedforward Collapse of ResNet Training, section IV.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def path_start(shapes: Sequence[tuple[int, ...]]) -> int:
    """Find the index of the path's first layer from the layers' feature shapes.

    Features of different widths cannot be subtracted, so the path is the last run of layers with the last layer's shape: all
    layers of a network of constant width, and the last stage of a network with stages, as in P3.
    """
    start = len(shapes)
    while start > 0 and shapes[start - 1] == shapes[-1]:
        start -= 1
    return start


def step_length(previous_TND: Tensor, h_TND: Tensor) -> Tensor:
    """Compute the path length from one layer to the next, [T]: the sum of ||h^{l+1} - h^l|| over samples.

    Each norm has the features' precision, as the difference has it anyway. The sum is in float64.
    """
    return torch.linalg.vector_norm(h_TND - previous_TND, dim=-1).double().sum(-1)


def relative_positions(steps: Sequence[float | None]) -> list[float | None]:
    """Compute each layer's relative position: the ratio of the path length up to it to the total length, from 0 to 1.

    The result has one entry more than `steps`. All are None if a step is, or if the total length is 0.
    """
    path = [0.0]
    for length in steps:
        path.append(path[-1] + (math.nan if length is None else length))
    return [length / path[-1] if path[-1] > 0 else None for length in path]


def monotonicity(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Compute the largest rise of nc1 and pfc2 and the largest fall of ncc_accuracy between consecutive layers' rows.

    Returns:
        nc1_rise (relative to nc1 at the first layer), pfc2_rise, ncc_fall, and the code `monotone`: 1 if nc1 ever rises + 2 if
        pfc2 does + 4 if ncc_accuracy ever falls. 0 is progressive collapse in the sense of P3. None if a layer lacks a number.
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
