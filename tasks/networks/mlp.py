"""A plain network of linear layers and ReLU over a trial axis. Importable without torch.

Shapes: T trials, N samples, I input dimensions, D = width, K outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from depthrate.tasks.networks.network import NO_STATE, Layer, Network, ParameterSpec, StepCost, Tensors
from depthrate.tasks.networks.operations import last, linear

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Mlp(Network):
    """h_l = relu(W_l h_{l-1} + b_l) for `depth` layers of one width, with h_0 the input, and the last layer W_L h + b_L.

    Layer l is h_l. Decay groups: `hidden` for all weights except the last, `last` for W_L. Biases are not regularised.
    """

    depth: int
    width: int
    input_dimensions: int
    num_classes: int
    last_bias: bool
    last_weight = "W_L"
    has_generated_steps = True
    holds_only_features = True
    has_weight_pairs = True

    def parameter_specs(self) -> list[ParameterSpec]:
        specs, fan_in = [], self.input_dimensions
        for layer in range(1, self.depth + 1):
            specs.append(ParameterSpec(f"W_{layer}", (self.width, fan_in), fan_in, "hidden"))
            specs.append(ParameterSpec(f"b_{layer}", (self.width,), fan_in, None))
            fan_in = self.width
        specs.append(ParameterSpec("W_L", (self.num_classes, self.width), self.width, "last"))
        return [*specs, ParameterSpec("b_L", (self.num_classes,), self.width, None)] if self.last_bias else specs

    def layers(self) -> list[Layer]:
        return [Layer(number, (self.width,)) for number in range(1, self.depth + 1)]

    @property
    def input_layer(self) -> Layer:
        return Layer(0, (self.input_dimensions,), "input")

    def step_cost(self) -> StepCost:
        """Return the cost of a step. Each layer stores its sum and ReLU's output for the backward pass."""
        return StepCost(self.depth + 1, self.num_parameters, kept=2 * self.depth * self.width)

    def features(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Iterator[Tensor]:
        h_TND = x_TNI
        for layer in range(1, self.depth + 1):
            h_TND = linear(parameters, f"{layer}", h_TND).relu()
            yield h_TND

    def weight_pairs(self, parameters: Tensors) -> Mapping[int, tuple[Tensor, Tensor]]:
        """Return W_l with W_{l+1}, or W_L, for layers 1 to depth."""
        weights = [parameters[f"W_{layer}"] for layer in [*range(1, self.depth + 1), "L"]]
        return dict(enumerate(pairwise(weights), start=1))

    def logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Tensor:
        return linear(parameters, "L", last(self.features(parameters, x_TNI)))
