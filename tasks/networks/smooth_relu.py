"""ReLU with its kink rounded off, for optimisers that need a gradient without jumps; imported where torch is at hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class SmoothRelu(torch.autograd.Function):
    """max(z, 0) outside of |z| < e, inside (z + e)^2 / 4e: value and slope go on at both ends; never more than e/4 above.

    With p = clamp(z/2e + 1/2, 0, 1), which is its slope, it is p (z + e (1 - p)) everywhere. Operations are single
    elementwise ones, and e has a trial axis, [T, 1, 1]: a trial's numbers do not depend on the pack it is in.
    """

    @staticmethod
    def forward(ctx: Any, z_TND: Tensor, width_T11: Tensor) -> Tensor:
        """Return the smoothed ReLU of z."""
        slope_TND = (z_TND * (0.5 / width_T11)).add_(0.5).clamp_(0, 1)
        ctx.save_for_backward(slope_TND)
        return (1 - slope_TND).mul_(width_T11).add_(z_TND).mul_(slope_TND)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        """Return the gradient for z; the width is no parameter."""
        (slope_TND,) = ctx.saved_tensors
        return gradients[0] * slope_TND, None
