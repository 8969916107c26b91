"""ResNet20 with an MLP head over a trial axis. Importable without torch.

Shapes: T trials, N samples, D = width of the head, I numbers per image, K classes.
Sources: He et al., Deep Residual Learning for Image Recognition, section 4.2 (the CIFAR form, shortcuts of option A);
P2 Neural Collapse versus Low-Rank Bias, section 6 (the head, and the regularisation).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from depthrate.tasks.networks.convolutions import (
    as_maps,
    batch_norm,
    convolution,
    cost_of_maps,
    decayed,
    pooled,
    stacked,
    subsampled,
)
from depthrate.tasks.networks.network import NO_STATE, Layer, Network, ParameterSpec, StateSpec, StepCost, Tensors
from depthrate.tasks.networks.operations import last, linear

if TYPE_CHECKING:
    from torch import Tensor

STAGES = ((16, 1), (32, 2), (64, 2))
"""Channels and stride of the first block, by stage."""
BLOCKS = 3
"""Blocks per stage, with two convolutions each: 6 x 3 + 1 convolutions and one layer of the head make 20."""


@dataclass(frozen=True)
class _Convolution:
    """One convolution followed by a BatchNorm."""

    name: str
    inputs: int
    outputs: int
    stride: int


def _convolutions(channels: int) -> list[_Convolution]:
    """Return the first convolution and two per block, in order."""
    convolutions = [_Convolution("0", channels, STAGES[0][0], 1)]
    for stage, (outputs, stride) in enumerate(STAGES, 1):
        for block in range(1, BLOCKS + 1):
            inputs = convolutions[-1].outputs
            convolutions.append(_Convolution(f"{stage}.{block}.1", inputs, outputs, stride if block == 1 else 1))
            convolutions.append(_Convolution(f"{stage}.{block}.2", outputs, outputs, 1))
    return convolutions


@dataclass(frozen=True, kw_only=True)
class ResNetWithHead(Network):
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
    num_classes: int
    last_bias: bool
    regularised_backbone: bool
    feature_decay: float
    last_weight = "W_L"
    is_compilable = False

    @property
    def _head_widths(self) -> list[int]:
        """Input widths of the head's layers."""
        return [STAGES[-1][0], *[self.width] * (self.depth - 1)]

    def parameter_specs(self) -> list[ParameterSpec]:
        """Return the parameters in the order of initialisation and storage."""
        decay = "hidden" if self.regularised_backbone else None
        specs = []
        for conv in _convolutions(self.image_shape[0]):
            shape = (conv.outputs, conv.inputs, 3, 3)
            specs.append(ParameterSpec(f"C_{conv.name}", shape, 9 * conv.inputs, decay))
            specs.append(ParameterSpec(f"scale_{conv.name}", (conv.outputs,), 1, decay, initial=1.0))
            specs.append(ParameterSpec(f"shift_{conv.name}", (conv.outputs,), 1, decay, initial=0.0))
        *hidden, read = self._head_widths
        for layer, inputs in enumerate(hidden, 1):
            specs.append(ParameterSpec(f"W_{layer}", (self.width, inputs), inputs, "hidden"))
        specs.append(ParameterSpec("W_L", (self.num_classes, read), read, "last"))
        if self.last_bias:
            specs.append(ParameterSpec("b_L", (self.num_classes,), read, None))
        return specs

    def state_specs(self) -> list[StateSpec]:
        """Return BatchNorm's running means and variances."""
        specs = []
        for conv in _convolutions(self.image_shape[0]):
            specs += [
                StateSpec(f"mean_{conv.name}", (conv.outputs,), 0.0),
                StateSpec(f"var_{conv.name}", (conv.outputs,), 1.0),
            ]
        return specs

    def layers(self) -> list[Layer]:
        """Return layer 1 (the backbone's output) to layer depth."""
        return [Layer(number, (width,)) for number, width in enumerate(self._head_widths, 1)]

    @property
    def rows_per_sample(self) -> int:
        """Pixels of the last stage."""
        _, rows, columns = self.image_shape
        return -(-rows // 4) * -(-columns // 4)

    def step_cost(self) -> StepCost:
        """Return the cost of a step. Each convolution stores its input, BatchNorm's and ReLU's for the backward pass."""
        multiply_adds, kept = 0.0, 0.0
        pixels: float = self.image_shape[1] * self.image_shape[2]
        for conv in _convolutions(self.image_shape[0]):
            pixels /= conv.stride**2
            multiply_adds += 9 * conv.inputs * conv.outputs * pixels
            kept += 3 * conv.outputs * pixels
        products = len(_convolutions(1)) + self.depth
        return cost_of_maps(products, multiply_adds, kept, self.rows_per_sample)

    def features(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Iterator[Tensor]:
        """Yield the inputs of the head's layers, [T, N, D], with the running statistics."""
        yield from self._head(parameters, self._backbone(parameters, x_TNI, state, {}, training=False))

    def logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Tensor:
        """Return the output [T, N, K] with the running statistics."""
        features_TNC = self._backbone(parameters, x_TNI, state, {}, training=False)
        return self._output(parameters, self._regularised(features_TNC, x_TNI.shape[1]))

    def training_logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Return the output [T, N, K] with the batch's statistics, and the running ones after it."""
        next_state: dict[str, Tensor] = {}
        features_TNC = self._backbone(parameters, x_TNI, state, next_state, training=True)
        return self._output(parameters, self._regularised(features_TNC, x_TNI.shape[1])), next_state

    def _regularised(self, features_TNC: Tensor, num_rows: int) -> Tensor:
        """Return the backbone's output with its decay, scaled to all samples, since the loss is a mean over the batch."""
        if not self.feature_decay:
            return features_TNC
        return decayed(features_TNC, self.feature_decay * self.num_samples / num_rows)

    def _output(self, parameters: Tensors, features_TNC: Tensor) -> Tensor:
        return linear(parameters, "L", last(self._head(parameters, features_TNC)))

    def _head(self, parameters: Tensors, features_TNC: Tensor) -> Iterator[Tensor]:
        yield features_TNC
        for layer in range(1, self.depth):
            features_TNC = linear(parameters, f"{layer}", features_TNC).relu()
            yield features_TNC

    def _backbone(
        self, parameters: Tensors, x_TNI: Tensor, state: Tensors, next_state: dict[str, Tensor], *, training: bool
    ) -> Tensor:
        """Return the pooled features [T, N, 64]. `next_state` receives the running statistics after a training step."""
        num_trials = x_TNI.shape[0]
        if num_trials == 1 or x_TNI.device.type != "cpu":
            return self._grouped_backbone(parameters, x_TNI, state, next_state, training=training)
        outputs, states = [], []
        for trial in range(num_trials):
            only = slice(trial, trial + 1)
            trial_state: dict[str, Tensor] = {}
            weights, running = (
                {name: values[only] for name, values in tensors.items()} for tensors in (parameters, state)
            )
            outputs.append(self._grouped_backbone(weights, x_TNI[only], running, trial_state, training=training))
            states.append(trial_state)
        next_state |= {name: stacked([trial_state[name] for trial_state in states]) for name in states[0]}
        return stacked(outputs)

    def _grouped_backbone(
        self, parameters: Tensors, x_TNI: Tensor, state: Tensors, next_state: dict[str, Tensor], *, training: bool
    ) -> Tensor:
        num_trials = x_TNI.shape[0]

        def normalised(maps: Tensor, conv: _Convolution) -> Tensor:
            running = (f"mean_{conv.name}", f"var_{conv.name}")
            maps = convolution(maps, parameters[f"C_{conv.name}"], conv.stride)
            scale, shift = parameters[f"scale_{conv.name}"], parameters[f"shift_{conv.name}"]
            out, mean, var = batch_norm(maps, scale, shift, *(state[name] for name in running), training=training)
            next_state.update(zip(running, (mean, var), strict=True))
            return out

        first, *others = _convolutions(self.image_shape[0])
        maps = normalised(as_maps(x_TNI, self.image_shape), first).relu()
        for one, two in zip(others[::2], others[1::2], strict=True):
            shortcut = maps if one.stride == 1 else subsampled(maps, num_trials, one.outputs)
            maps = (normalised(normalised(maps, one).relu(), two) + shortcut).relu()
        return pooled(maps, num_trials)
