"""The unconstrained features models as networks, free, held to an input, or deep. Importable without torch.

Features are parameters. The input of sample i is its index i. Shapes: T trials, N samples, D = dimension or width, K classes.
Sources: P3 Progressive Feedforward Collapse of ResNet Training, (12), and P2 Neural Collapse versus Low-Rank Bias, (1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from depthrate.tasks.networks.network import (
    NO_STATE,
    Kernels,
    Layer,
    Network,
    ParameterSpec,
    StateSpec,
    StepCost,
    Tensors,
)
from depthrate.tasks.networks.operations import embedding

if TYPE_CHECKING:
    from torch import Tensor

WEIGHT, INPUTS = "W", "X"
FEATURES = "H_1"
"""Name of the deep model's features and their decay group."""


@dataclass(frozen=True, kw_only=True)
class UnconstrainedLayers(Network):
    """Features H_1 to H_L and a linear layer W on H_L, without bias. Layer 0 is X, untrained state, layer l is H_l."""

    depth: int
    dimension: int
    num_samples: int
    num_classes: int
    last_weight = WEIGHT

    def feature_names(self) -> list[str]:
        """Return H_1 to H_L."""
        return [f"H_{layer}" for layer in range(1, self.depth + 1)]

    def parameter_specs(self) -> list[ParameterSpec]:
        """Return H_1 to H_L [N, D] and W [K, D]. The trainer applies the proximity of features."""
        features = [ParameterSpec(name, (self.num_samples, self.dimension), 1, None) for name in self.feature_names()]
        return [*features, ParameterSpec(WEIGHT, (self.num_classes, self.dimension), self.dimension, WEIGHT)]

    def state_specs(self) -> list[StateSpec]:
        return [StateSpec(INPUTS, (self.num_samples, self.dimension), 0.0)]

    def layers(self) -> list[Layer]:
        return [Layer(number, (self.dimension,)) for number in range(self.depth + 1)]

    def step_cost(self) -> StepCost:
        """Return the cost of a step: the output, two gradients of it, and passes over the features."""
        multiply_adds = 3 * self.dimension * self.num_classes + 4 * self.depth * self.dimension
        return StepCost(3 + self.depth, multiply_adds, kept=2 * self.dimension * self.depth)

    def kernels(self) -> Kernels:
        """Return the kernels of `tasks/native/unconstrained.cpp`. The trainer passes their arguments for each trial."""
        constants = {"WIDTH": self.dimension, "CLASSES": self.num_classes}
        return Kernels("unconstrained", constants, {"depth": self.depth}, ())

    def features(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Iterator[Tensor]:
        """Yield X and H_1 to H_L, each [T, N, D]."""
        rows_N = x_TNI[0, :, 0]  # all trials read the same samples
        yield state[INPUTS][:, rows_N]
        for name in self.feature_names():
            yield parameters[name][:, rows_N]

    def logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Tensor:
        return parameters[self.feature_names()[-1]][:, x_TNI[0, :, 0]].bmm(parameters[WEIGHT].mT)


@dataclass(frozen=True, kw_only=True)
class UnconstrainedFeatures(Network):
    """W_L sigma(W_{L-1} ... sigma(W_1 H_1)), sigma = ReLU or nothing, without biases or an output ReLU.

    Layer l is the input of W_l: layer 1 is H_1 itself. Each matrix is a decay group with its name.
    """

    depth: int
    width: int
    num_samples: int
    num_classes: int
    relu: bool
    has_weight_pairs = True
    has_generated_steps = True

    def weight_names(self) -> list[str]:
        """Return W_1 to W_L."""
        return [f"W_{layer}" for layer in range(1, self.depth + 1)]

    def parameter_specs(self) -> list[ParameterSpec]:
        sizes = [self.width] * (self.depth - 1) + [self.num_classes]
        weights = [
            ParameterSpec(name, (rows, self.width), self.width, name)
            for name, rows in zip(self.weight_names(), sizes, strict=True)
        ]
        return [ParameterSpec(FEATURES, (self.num_samples, self.width), 1, FEATURES), *weights]

    def layers(self) -> list[Layer]:
        return [Layer(number, (self.width,)) for number in range(1, self.depth + 1)]

    def step_cost(self) -> StepCost:
        """Return the cost of a step. Each layer keeps its output for the backward pass."""
        multiply_adds = (self.depth - 1) * self.width**2 + self.width * self.num_classes
        return StepCost(self.depth, multiply_adds, kept=self.width * (self.depth + 2))

    def weight_pairs(self, parameters: Tensors) -> Mapping[int, tuple[Tensor, Tensor]]:
        """Return W_{l-1}, or the features H_1^T as columns, and W_l for layer l."""
        weights = [parameters[FEATURES].mT, *(parameters[name] for name in self.weight_names())]
        return dict(enumerate(pairwise(weights), start=1))

    def stages(self, parameters: Tensors, x_TNI: Tensor) -> Iterator[tuple[Tensor | None, Tensor]]:
        """Yield for layer 1 to depth the values before the ReLU (None for layer 1) and after it, [T, N, D]."""
        h_TND = embedding(x_TNI, parameters[FEATURES]).flatten(2)
        yield None, h_TND
        for name in self.weight_names()[:-1]:
            before_TND = h_TND.bmm(parameters[name].mT)
            h_TND = before_TND.relu() if self.relu else before_TND
            yield before_TND, h_TND

    def features(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Iterator[Tensor]:
        """Yield the input of each weight: layer 1 to layer depth, each [T, N, D]."""
        for _, h_TND in self.stages(parameters, x_TNI):
            yield h_TND

    def logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Tensor:
        *_, (_, h_TND) = self.stages(parameters, x_TNI)
        return h_TND.bmm(parameters[self.weight_names()[-1]].mT)
