"""Smooth replacements of ReLU, for gradients without jumps. Imports torch.

Operations are single and elementwise, and widths have a trial axis, [T, 1, 1], so that a trial does not depend on its pack.
"""

from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.networks.network import Relu


class _Smooth(torch.autograd.Function):
    """A function of z and a fixed width that saves its slope."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        (slope_TND,) = ctx.saved_tensors
        return gradients[0] * slope_TND, None


class _Parabola(_Smooth):
    @staticmethod
    def forward(ctx: Any, z_TND: Tensor, width_T11: Tensor) -> Tensor:
        slope_TND = (z_TND * (0.5 / width_T11)).add_(0.5).clamp_(0, 1)
        ctx.save_for_backward(slope_TND)
        return (1 - slope_TND).mul_(width_T11).add_(z_TND).mul_(slope_TND)


class _Root(_Smooth):
    @staticmethod
    def forward(ctx: Any, z_TND: Tensor, width_T11: Tensor) -> Tensor:
        root_TND = (z_TND * z_TND).add_(width_T11 * width_T11).sqrt_()
        value_TND = (z_TND + root_TND).mul_(0.5)
        ctx.save_for_backward(value_TND / root_TND)
        return value_TND


def parabola(width_T11: Tensor) -> Relu:
    """Return max(z, 0) outside |z| < e, and (z + e)^2 / 4e inside. Value and slope are continuous, at most e/4 above ReLU.

    With p = clamp(z/2e + 1/2, 0, 1), the slope, the value is p (z + e (1 - p)) everywhere.
    """
    return lambda z_TND: _Parabola.apply(z_TND, width_T11)  # type: ignore[no-untyped-call]


def root(width_T11: Tensor) -> Relu:
    """Return (z + sqrt(z^2 + w^2)) / 2, which is smooth and at most w/2 above ReLU. Its slope is the value over the root."""
    return lambda z_TND: _Root.apply(z_TND, width_T11)  # type: ignore[no-untyped-call]


REACH = 30.0
"""Distance from 0, in widths, within which the slope of `root` differs from 0 and 1 (by 3e-4 at the end)."""


class KinkSlopes:
    """ReLU with free slopes between 0 and 1 at its kinks, where |z| is at most `REACH` widths.

    The first pass through the network determines the kinks, in its order. Later passes receive their slopes. The value is
    ReLU's, and a second derivative reaches the slopes.
    """

    def __init__(self, width: float):
        self.width = width
        self.starts: list[Tensor] = []
        """Slopes of `root` with that width at the kinks, one tensor per call."""
        self.slopes: list[Tensor] | None = None
        self._masks: list[Tensor] = []
        self._calls = 0

    def begin(self, slopes: list[Tensor] | None) -> None:
        """Start a pass, the first one with None."""
        self.slopes, self._calls = slopes, 0

    def __call__(self, z_TND: Tensor) -> Tensor:
        fixed_TND = z_TND.detach()
        if self.slopes is None:
            self._masks.append(fixed_TND.abs() <= REACH * self.width)
            near = fixed_TND[self._masks[-1]]
            self.starts.append((1 + near / (near * near + self.width**2).sqrt()) / 2)
            slopes = self.starts
        else:
            slopes = self.slopes
        slope_TND = (fixed_TND > 0).to(z_TND.dtype).masked_scatter(self._masks[self._calls], slopes[self._calls])
        self._calls += 1
        return fixed_TND.relu() + slope_TND * (z_TND - fixed_TND)
