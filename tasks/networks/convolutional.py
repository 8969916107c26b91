"""ResNet20 with an MLP head over a trial axis. Importable without torch.

Shapes: T trials, N samples, D = width of the head, I numbers per image, K classes.
Sources: He et al., Deep Residual Learning for Image Recognition, section 4.2 (the CIFAR form, shortcuts of option A);
P2 Neural Collapse versus Low-Rank Bias, section 6 (the head, and the regularisation).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from depthrate.tasks.networks.batch_normed import BatchNormed, ForwardPass, Normed, as_maps, cost_of_maps
from depthrate.tasks.networks.network import NO_STATE, Layer, ParameterSpec, StepCost, Tensors
from depthrate.tasks.networks.operations import last, linear

if TYPE_CHECKING:
    from torch import Tensor

STAGES = ((16, 1), (32, 2), (64, 2))
"""Channels and stride of the first block, by stage."""
BLOCKS = 3
"""Blocks per stage, with two convolutions each: 6 x 3 + 1 convolutions and one layer of the head make 20."""


@dataclass(frozen=True, kw_only=True)
class ResNetWithHead(BatchNormed):
    """ResNet20 without its last layer, and an MLP of depth linear layers on its 64 pooled features.

    Layer 1 is the backbone's output, layer l the input of the head's W_l, and layer depth the input of the last one. The head's
    hidden layers have no biases, as in the unconstrained features model. The last one has a bias if the trial sets it.

    Decay groups: with `regularised_backbone`, convolutions and BatchNorm belong to `hidden`, like the head's weights. Without
    it, they are not regularised, but the backbone's output is: training follows the gradient of (feature_decay/2)||H||^2 over
    all samples. The reported objective does not include this term.
    """

    depth: int
    width: int
    image_shape: tuple[int, int, int]
    num_samples: int
    """Size of the training set, which scales the decay of a batch's features."""
    regularised_backbone: bool
    feature_decay: float
    holds_only_features = False

    @property
    def _head_widths(self) -> list[int]:
        """Input widths of the head's layers."""
        return [STAGES[-1][0], *[self.width] * (self.depth - 1)]

    @property
    def read_width(self) -> int:
        return self._head_widths[-1]

    @property
    def decay_of_maps(self) -> str | None:
        return "hidden" if self.regularised_backbone else None

    def maps(self) -> list[Normed]:
        """Return the first convolution and two per block."""
        convolutions = [Normed("0", (STAGES[0][0], self.image_shape[0], 3, 3))]
        for stage, (outputs, stride) in enumerate(STAGES, 1):
            for block in range(1, BLOCKS + 1):
                inputs = convolutions[-1].shape[0]
                first_stride = stride if block == 1 else 1
                convolutions.append(Normed(f"{stage}.{block}.1", (outputs, inputs, 3, 3), first_stride))
                convolutions.append(Normed(f"{stage}.{block}.2", (outputs, outputs, 3, 3)))
        return convolutions

    def head_specs(self) -> list[ParameterSpec]:
        inputs = enumerate(self._head_widths[:-1], 1)
        return [ParameterSpec(f"W_{layer}", (self.width, size), size, "hidden") for layer, size in inputs]

    def layers(self) -> list[Layer]:
        return [Layer(number, (width,)) for number, width in enumerate(self._head_widths, 1)]

    @property
    def rows_per_sample(self) -> int:
        _, rows, columns = self.image_shape
        return -(-rows // 4) * -(-columns // 4)

    def step_cost(self) -> StepCost:
        """Return the cost of a step. Each convolution stores its input, BatchNorm's and ReLU's for the backward pass."""
        multiply_adds, kept = 0.0, 0.0
        pixels: float = self.image_shape[1] * self.image_shape[2]
        for normed in self.maps():
            pixels /= normed.stride**2
            multiply_adds += normed.fan_in * normed.shape[0] * pixels
            kept += 3 * normed.shape[0] * pixels
        return cost_of_maps(len(self.maps()) + self.depth, multiply_adds, kept, self.rows_per_sample)

    def features(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Iterator[Tensor]:
        """Yield the inputs of the head's layers, [T, N, D], with the running statistics."""
        yield from self._head(parameters, last(super().features(parameters, x_TNI, state)))

    def _output(self, parameters: Tensors, h: Tensor) -> Tensor:
        if self.feature_decay:  # scaled to all samples, since the loss is a mean over the batch
            h = _decayed(h, self.feature_decay * self.num_samples / h.shape[1])
        return linear(parameters, "L", last(self._head(parameters, h)))

    def _head(self, parameters: Tensors, features_TNC: Tensor) -> Iterator[Tensor]:
        yield features_TNC
        for layer in range(1, self.depth):
            features_TNC = linear(parameters, f"{layer}", features_TNC).relu()
            yield features_TNC

    def _stream(self, run: ForwardPass, x_TNI: Tensor) -> Iterator[Tensor]:
        """Yield the pooled features of the backbone, [T, N, 64]."""
        num_trials = x_TNI.shape[0]
        first, *others = self.maps()
        maps = run.convolved(as_maps(x_TNI, self.image_shape), first).relu()
        for one, two in zip(others[::2], others[1::2], strict=True):
            shortcut = maps if one.stride == 1 else _subsampled(maps, num_trials, one.shape[0])
            maps = (run.convolved(run.convolved(maps, one).relu(), two) + shortcut).relu()
        yield maps.mean((2, 3)).view(len(maps), num_trials, -1).transpose(0, 1)


def _subsampled(maps: Tensor, num_trials: int, channels: int) -> Tensor:
    """Return every other pixel, with zero channels added on both sides up to `channels` per trial (He et al., option A)."""
    from torch.nn import functional

    even = maps[:, :, ::2, ::2]
    small = even.reshape(len(maps), num_trials, -1, *even.shape[2:])
    missing = channels - small.shape[2]
    padded = functional.pad(small, (0, 0, 0, 0, missing // 2, missing - missing // 2))
    return padded.flatten(1, 2)


def _decayed(h_TND: Tensor, decay: float) -> Tensor:
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
