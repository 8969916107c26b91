"""What every network fulfils: a report that plans read, and forward methods that workers call.

How to add one: a frozen dataclass below `Network` in a file of its own, and a line in `builtin.py` that makes it. The report
(parameters, layers, untrained state, cost of a step) says all that predictions of memory and time, checks and tables need, so
that nothing outside the class knows its name. Both halves stand in one class, because they must agree; yet `depthrate plan`
imports it without torch: the forward half calls methods of the tensors it is given, and the functions of `operations.py`,
which import torch when they are called.

A network holds shapes only. Its parameters come as tensors with a trial axis in front, [T, ...]: T networks of one shape, each
computed exactly as if it were alone. So products are batched over T (never merged), and nothing is summed across T.

Shapes: T trials, N samples, I numbers of a sample as the data set gives them, K classes, D numbers of a feature.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]
"""Name -> tensor [T, *shape]."""
NO_STATE: Tensors = MappingProxyType({})
Relu = Callable[["Tensor"], "Tensor"]
"""What stands for ReLU: elementwise, on a tensor [T, ...]."""


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter tensor of a network: its name, its shape without the trial axis, how it starts and is regularised."""

    name: str
    shape: tuple[int, ...]
    fan_in: int
    """Inputs that one output of it sums over: the scale of a random start."""
    decay: str | None
    """Its decay group, any name: trials give each group a weight decay. Null: never regularised."""
    initial: float | None = None
    """The value that all its numbers start with; null: drawn as the trial's `init` says."""
    is_trained: bool = True
    """Whether training changes it; else it stays as it started, and its gradient counts as 0."""

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class StateSpec:
    """One tensor that a network carries without training it, such as a running mean: its name, its shape, how it starts."""

    name: str
    shape: tuple[int, ...]
    initial: float

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layer:
    """One layer whose features are measured: its number and the shape of one sample's feature, (D,) or a map's."""

    number: int
    shape: tuple[int, ...]
    name: str | None = None
    is_output: bool = False
    """Whether it is what the last linear map gives: the layer before it is the one that counts as the last."""

    @property
    def width(self) -> int:
        """Numbers in one sample's feature."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class StepCost:
    """What one training step takes, for one row (a sample, or a position of it); a rough report is better than none."""

    products: float
    """Matrix products that follow each other: each takes a fixed time beside its arithmetic."""
    multiply_adds: float
    """Of all those products, for one row."""
    kept: float
    """Numbers of one row that the backward pass needs from the forward pass."""
    kept_by_process: float | None = None
    """The same as a CPU process grows by it, with what its allocator keeps (measured); null: a third more than `kept`."""
    eager_s: float = 1.4e-10
    """Seconds of an eager step for each of `multiply_adds` on one core; plans correct it by what the store's trials took."""
    kept_s: float = 0.0
    """The same for each number that is kept, where reading and writing them takes longer than the products."""
    native_s: float = 4.5e-11
    """Seconds of a native step in float32 for each of `multiply_adds` on one core (measured)."""


@dataclass(frozen=True, kw_only=True)
class FreeParameters:
    """What of a network with an embedding and biases is trained and decayed; as it stands, what P1's objective (7) has."""

    train_embedding: bool = True
    """Whether the embedding is trained; else it stays as drawn."""
    decays_embedding: bool = False
    """Whether it has the decay group `embedding`."""
    decays_biases: bool = False
    """Whether all other biases have the decay group `biases`."""

    def embedding(self, name: str, shape: tuple[int, ...], fan_in: int) -> ParameterSpec:
        """Return a tensor of the embedding."""
        decay = "embedding" if self.decays_embedding else None
        return ParameterSpec(name, shape, fan_in, decay, is_trained=self.train_embedding)

    def bias(self, name: str, size: int, fan_in: int) -> ParameterSpec:
        """Return a bias that is not the embedding's."""
        return ParameterSpec(name, (size,), fan_in, "biases" if self.decays_biases else None)


AS_IN_P1 = FreeParameters()


@dataclass(frozen=True)
class Kernels:
    """Which kernels of `tasks/native` take a network's training steps."""

    family: str
    constants: Mapping[str, int]
    """What they are built with."""
    arguments: Mapping[str, float]
    """What their calls are given, as `tasks.native.library.Call` names it."""
    decay_groups: Sequence[str]
    """In the order of their numbers there."""
    can_smooth: bool = False
    """Whether they can be built to give the smoothed loss that polish minimises, and its gradient."""
    gives_layers: bool = False
    """Whether they also evaluate, and give the features of all layers, `depth` of the network's `width`."""


class Network(ABC):
    """A network of one shape: the report first, then the forward pass over a trial axis."""

    last_weight: ClassVar[str | None] = None
    """Name of the last linear map [K, D], with which nc2a, nc2b and nc3 compare features; null where there is none."""
    is_compilable: ClassVar[bool] = True
    """Whether its step can be compiled: it computes with tensors alone, by code that is ours."""

    has_step_by_hand: ClassVar[bool] = False
    """Whether its trainer's eager step is written by hand: that is as fast as a compiled one, and nothing is compiled."""

    holds_only_features: ClassVar[bool] = False
    """Whether, between two layers, `features` holds nothing larger than the feature it yielded last: then a large training
    set goes through layer by layer, and no more layers are held for a deeper network."""

    @abstractmethod
    def parameter_specs(self) -> list[ParameterSpec]:
        """Return the parameters in the order in which they are drawn and stored."""

    @abstractmethod
    def layers(self) -> list[Layer]:
        """Return the layers whose features `features` yields, in its order, numbered upwards."""

    @abstractmethod
    def step_cost(self) -> StepCost:
        """Return what a training step takes for one row: predictions of memory and time rest on it."""

    def step_s(self, num_samples: int) -> float | None:
        """Return the seconds of a step on so many samples, measured on one core; null: reckoned from `step_cost`."""
        return None

    @property
    def min_batch_size(self) -> int:
        """Fewest samples of a training step: 2 where a BatchNorm reads one number of a sample, whose variance would be 0."""
        return 1

    @property
    def rows_per_sample(self) -> int:
        """Rows that one sample adds to a matrix product: 1, or the positions of a sequence."""
        return 1

    @cached_property
    def num_parameters(self) -> int:
        """Numbers that one trial holds as parameters."""
        return sum(spec.size for spec in self.parameter_specs())

    @cached_property
    def fixed_parameters(self) -> frozenset[str]:
        """Names of the parameters that stay as they started."""
        return frozenset(spec.name for spec in self.parameter_specs() if not spec.is_trained)

    def state_specs(self) -> list[StateSpec]:
        """Return what the network carries without training it (running statistics, say); none by default."""
        return []

    @property
    def input_layer(self) -> Layer | None:
        """The input as a layer, where it is measured too; null by default."""
        return None

    def measured_layers(self) -> list[Layer]:
        """Return all layers that have measurements: the input where it is one, and those of `layers`."""
        return [*([] if self.input_layer is None else [self.input_layer]), *self.layers()]

    @property
    def unfused_reason(self) -> str | None:
        """Why the trials of a pack train one after the other; null: fused, which is the default."""
        return None

    def start(self, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensors] | None:
        """Return a trial's parameters [P], flat, and its state, where the network draws them itself; null: as `init` says."""
        return None

    def kernels(self) -> Kernels | None:
        """Return what takes its steps natively; null where nothing does, which is the default."""
        return None

    def own_code(self) -> str:
        """Return the code that its forward pass runs and that stands elsewhere than its class, as a user's does; else nothing.

        Compiled steps are kept by what they are made of: that code, the files of the class and of those it builds on, and the
        network's repr, which therefore says all that makes two networks of a class differ.
        """
        return ""

    def arranged(self, x_NI: np.ndarray) -> np.ndarray:
        """Return a data set's samples in the order in which the network reads them; done once, before training."""
        return x_NI

    @abstractmethod
    def logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Tensor:
        """Return the output [T, N, K] in evaluation mode: samples do not influence each other, the state stays as it is."""

    def training_logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Return the output [T, N, K] for a training step, and the state after it; by default as in evaluation mode."""
        return self.logits(parameters, x_TNI, state), state

    @abstractmethod
    def features(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Iterator[Tensor]:
        """Yield the features [T, N, *shape] layer by layer, in evaluation mode, as `layers` reports them.

        One layer at a time is held by who reads them, so a network should hold no other.
        """

    def norm_inputs(self, parameters: Tensors, x_TNI: Tensor) -> Iterator[Tensor]:
        """Yield what each LayerNorm reads, [T, N, ..., D], the first one first; none where a network does not say."""
        return iter(())

    def with_relu(self, relu: Relu) -> Network:
        """Return the network with another function for each ReLU; itself where it has none."""
        return self

    def neutral_block(self) -> Mapping[str, float] | None:
        """Return constants with which a further block changes nothing, yet is trained: name, with {} for the block -> value.

        Null where none are known: such networks are not continued in depth.
        """
        return None
