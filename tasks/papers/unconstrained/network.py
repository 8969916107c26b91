"""The unconstrained features models as networks: the features of every block are parameters. Importable without torch.

The input of sample i is its index i. It refers to row i of X, which the network carries as untrained state.
Shapes: T trials, N samples, D = dimension, K classes. Source: P3 Progressive Feedforward Collapse of ResNet Training, (12).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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

if TYPE_CHECKING:
    from torch import Tensor

WEIGHT, INPUTS = "W", "X"


@dataclass(frozen=True, kw_only=True)
class UnconstrainedLayers(Network):
    """Features H_1 to H_L and a linear layer W on H_L, without bias. Layer 0 is X, layer l is H_l."""

    depth: int
    dimension: int
    num_samples: int
    num_classes: int
    last_weight = WEIGHT
    has_step_by_hand = True

    def feature_names(self) -> list[str]:
        """Return H_1 to H_L."""
        return [f"H_{layer}" for layer in range(1, self.depth + 1)]

    def parameter_specs(self) -> list[ParameterSpec]:
        """Return H_1 to H_L [N, D] and W [K, D]. The trainer applies the proximity of features."""
        features = [ParameterSpec(name, (self.num_samples, self.dimension), 1, None) for name in self.feature_names()]
        return [*features, ParameterSpec(WEIGHT, (self.num_classes, self.dimension), self.dimension, WEIGHT)]

    def state_specs(self) -> list[StateSpec]:
        """Return X."""
        return [StateSpec(INPUTS, (self.num_samples, self.dimension), 0.0)]

    def layers(self) -> list[Layer]:
        """Return layer 0 to layer depth."""
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
        """Return the output [T, N, K]."""
        return parameters[self.feature_names()[-1]][:, x_TNI[0, :, 0]].bmm(parameters[WEIGHT].mT)
