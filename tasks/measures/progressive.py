"""The path that features take through the layers.

Shapes: T trials, N samples, D feature dimensions.
Source: P3 Progressive Feedforward Collapse of ResNet Training, section IV.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def step_length(previous_TND: Tensor, h_TND: Tensor) -> float:
    """Return the way from one layer to the next: the sum of ||h^{l+1} - h^l|| over samples, formed in float64."""
    return (h_TND - previous_TND).double().norm(dim=-1).sum().item()


def relative_positions(steps: Sequence[float]) -> list[float | None]:
    """Return of each layer of a path the length of the way to it over the whole way's: one more than there are steps.

    The first layer is at 0, the last at 1; where nothing moves, no layer has a position.
    """
    path = [0.0]
    for length in steps:
        path.append(path[-1] + length)
    return [length / path[-1] if path[-1] > 0 else None for length in path]
