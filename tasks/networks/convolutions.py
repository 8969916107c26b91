"""Operations of convolutional networks over a trial axis: T trials are T groups of channels of one tensor.

A map has shape [N, T x C, rows, columns]. On a GPU the trials of a pack run as groups. On a CPU they run separately, so that a
trial does not depend on its pack (grouped convolutions are not faster there).
Importable without torch, which the functions import when they are called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from depthrate.tasks.networks.network import StepCost

if TYPE_CHECKING:
    from torch import Tensor

BATCH_NORM_EPS = 1e-5
BATCH_NORM_MOMENTUM = 0.1
"""Weight of the batch's mean and variance in the running ones after a step (torch's default)."""
SECONDS_PER_PRODUCT = 3.8e-11
"""Seconds of a step per multiply-add, forward and backward (measured on ResNets of up to 23 convolutions)."""
SECONDS_PER_STORED_NUMBER = 4.6e-9
"""Seconds of a step per number stored for the backward pass (measured on the same)."""


def cost_of_maps(products: int, multiply_adds: float, kept: float, rows_per_sample: int) -> StepCost:
    """Return the cost of a step from the multiply-adds and stored numbers per sample."""
    per_row = multiply_adds / rows_per_sample, kept / rows_per_sample
    return StepCost(
        products, per_row[0], kept=per_row[1], eager_s=SECONDS_PER_PRODUCT, kept_s=SECONDS_PER_STORED_NUMBER
    )


def as_maps(x_TNI: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    """Reshape flat images [T, N, I] to maps."""
    num_trials, num_samples, _ = x_TNI.shape
    images = x_TNI.reshape(num_trials, num_samples, *image_shape).transpose(0, 1)
    return images.reshape(num_samples, num_trials * image_shape[0], *image_shape[1:])


def convolution(maps: Tensor, weight_TOCHW: Tensor, stride: int) -> Tensor:
    """Convolve each trial's maps with its 3 x 3 weights, with zeros around the image and no bias."""
    from torch.nn import functional

    num_trials = weight_TOCHW.shape[0]
    return functional.conv2d(maps, weight_TOCHW.flatten(0, 1), stride=stride, padding=1, groups=num_trials)


def batch_norm(
    maps: Tensor, scale_TC: Tensor, shift_TC: Tensor, mean_TC: Tensor, var_TC: Tensor, *, training: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return normalised maps, and the running means and variances, which change only in training."""
    from torch.nn import functional

    mean, var = (
        (mean_TC.flatten().clone(), var_TC.flatten().clone()) if training else (mean_TC.flatten(), var_TC.flatten())
    )
    out = functional.batch_norm(
        maps, mean, var, scale_TC.flatten(), shift_TC.flatten(), training, BATCH_NORM_MOMENTUM, BATCH_NORM_EPS
    )
    return out, mean.view_as(mean_TC), var.view_as(var_TC)


def subsampled(maps: Tensor, num_trials: int, channels: int) -> Tensor:
    """Return every other pixel, with zero channels added on both sides up to `channels` per trial (He et al., option A)."""
    from torch.nn import functional

    even = maps[:, :, ::2, ::2]
    small = even.reshape(len(maps), num_trials, -1, *even.shape[2:])
    missing = channels - small.shape[2]
    padded = functional.pad(small, (0, 0, 0, 0, missing // 2, missing - missing // 2))
    return padded.flatten(1, 2)


def pooled(maps: Tensor, num_trials: int) -> Tensor:
    """Return the mean over the pixels of each channel, [T, N, C]."""
    return maps.mean((2, 3)).view(len(maps), num_trials, -1).transpose(0, 1)


def stacked(of_trials: Sequence[Tensor]) -> Tensor:
    """Concatenate the tensors [1, ...] of several trials to one [T, ...]."""
    import torch

    return torch.cat(list(of_trials))


def decayed(h_TND: Tensor, decay: float) -> Tensor:
    """Return the features unchanged, but add decay x h to their gradient, as (decay/2)||h||^2 in the objective does."""
    import torch

    class Decayed(torch.autograd.Function):
        @staticmethod
        def forward(context: torch.autograd.function.FunctionCtx, h: Tensor) -> Tensor:
            context.save_for_backward(h)
            return h.view_as(h)

        @staticmethod
        def backward(context: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> Tensor:
            (h,) = context.saved_tensors  # type: ignore[attr-defined]
            return gradients[0] + decay * h

    return Decayed.apply(h_TND)  # type: ignore[no-untyped-call]
