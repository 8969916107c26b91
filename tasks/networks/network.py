"""Interface of a network: a report for plans, and forward methods for workers.

To add one, write a frozen dataclass below `Network` in a separate file, and a line in `builtin.py` that makes it. The report
(parameters, layers, untrained state, cost of a step) contains everything that predictions of memory and time, checks and tables
need, so no other code knows the class's name. Both halves are in one class, because they must agree. `depthrate plan` still
imports it without torch: the forward half calls methods of its tensor arguments, and the functions of `operations.py`, which
import torch when they are called.

A network holds shapes only. Its parameters come as tensors with a leading trial axis, [T, ...]: T networks of one shape, each
computed exactly as if it were alone. Products are therefore batched over T (never merged), and nothing is summed across T.

Shapes: T trials, N samples, I numbers per sample as in the data set, K classes, D numbers per feature.
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

from depthrate.tasks.networks.parametrisation import Factors

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]
"""Name -> tensor [T, *shape]."""
NO_STATE: Tensors = MappingProxyType({})
Relu = Callable[["Tensor"], "Tensor"]
"""Replacement of ReLU: elementwise, on a tensor [T, ...]."""


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter tensor of a network: name, shape without the trial axis, initialisation and regularisation."""

    name: str
    shape: tuple[int, ...]
    fan_in: int
    """Number of inputs summed by one output: the scale of a random initialisation."""
    decay: str | None
    """Name of the decay group. Trials give each group a weight decay. None: never regularised."""
    initial: float | None = None
    """Initial value of all its numbers. None: drawn by the trial's `init`."""
    is_trained: bool = True
    """Whether it is trained. Otherwise it keeps its initial value, and its gradient counts as 0."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def decay_groups(specs: Sequence[ParameterSpec]) -> list[str]:
    """Return the sorted names of the decay groups."""
    return sorted({spec.decay for spec in specs if spec.decay is not None})


@dataclass(frozen=True)
class StateSpec:
    """One tensor that a network carries without training, like a running mean: name, shape and initial value."""

    name: str
    shape: tuple[int, ...]
    initial: float

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layer:
    """One measured layer: its number and the shape of one sample's feature, (D,) or a map's."""

    number: int
    shape: tuple[int, ...]
    name: str | None = None
    is_output: bool = False
    """Whether it is the output of the last linear map. The layer before it then counts as the last."""
    output: str | None = None
    """Shape of a module's output, with N for the samples and averaged axes marked. None: one row of numbers per sample."""

    @property
    def width(self) -> int:
        """Numbers per sample."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class StepCost:
    """Cost of one training step, per row (a sample, or a position of it). Rough estimates suffice."""

    products: float
    """Number of sequential matrix products, each with a fixed time in addition to its arithmetic."""
    multiply_adds: float
    """Multiply-adds of all products, per row."""
    kept: float
    """Numbers per row that the forward pass stores for the backward pass."""
    kept_by_process: float | None = None
    """The same as measured by the growth of a CPU process, including its allocator. None: a third more than `kept`."""
    eager_s: float = 1.4e-10
    """Seconds of an eager step per multiply-add on one core. Plans correct it by the times of stored trials."""
    kept_s: float = 0.0
    """Seconds of an eager step per stored number, if memory traffic takes longer than the products."""
    native_s: float = 4.5e-11
    """Seconds of a native step in float32 per multiply-add on one core (measured)."""


@dataclass(frozen=True, kw_only=True)
class FreeParameters:
    """Trained and decayed parts of a network with an embedding and biases. The defaults follow P1's objective (7)."""

    train_embedding: bool = True
    """Whether the embedding is trained. Otherwise it keeps its initial value."""
    decays_embedding: bool = False
    """Whether the embedding has the decay group `embedding`."""
    decays_biases: bool = False
    """Whether all other biases have the decay group `biases`."""

    def embedding(self, name: str, shape: tuple[int, ...], fan_in: int) -> ParameterSpec:
        """Return the specification of an embedding tensor."""
        decay = "embedding" if self.decays_embedding else None
        return ParameterSpec(name, shape, fan_in, decay, is_trained=self.train_embedding)

    def bias(self, name: str, size: int, fan_in: int) -> ParameterSpec:
        """Return the specification of a bias outside the embedding."""
        return ParameterSpec(name, (size,), fan_in, "biases" if self.decays_biases else None)


GENERATED = "generated"
"""Family of kernels that are generated from a network's traced step."""


@dataclass(frozen=True)
class Kernels:
    """Kernels of `tasks/native` for a network's training steps."""

    family: str
    constants: Mapping[str, int]
    """Compile-time constants."""
    arguments: Mapping[str, float]
    """Call arguments, named as in `tasks.native.library.Call`."""
    decay_groups: Sequence[str]
    """Decay groups in the order of their numbers in the kernels."""
    can_smooth: bool = False
    """Whether they can compute the smoothed loss of polish and its gradient."""
    gives_layers: bool = False
    """Whether they return the features of all layers: `depth` of them, of the network's `width`."""
    evaluates: bool = False
    """Whether they compute loss, accuracy and gradient over all samples."""


class Network(ABC):
    """A network of one shape: first the report, then the forward pass over a trial axis."""

    last_weight: ClassVar[str | None] = None
    """Name of the last linear map [K, D], with which nc2a, nc2b and nc3 compare features, or None."""
    has_generated_steps: ClassVar[bool | None] = False
    """Whether native steps are generated for it. None: to be found out by a trace of its step."""
    may_skip_parameters: ClassVar[bool] = False
    """Whether a step may leave parameters unused, as with stochastic depth. Their gradient is then 0."""
    has_weight_pairs: ClassVar[bool] = False
    """Whether `weight_pairs` has pairs."""
    holds_only_features: ClassVar[bool] = False
    """Whether `features` stores nothing larger than the last yielded feature between layers. A large training set is then
    processed layer by layer, with memory independent of the depth."""

    @abstractmethod
    def parameter_specs(self) -> list[ParameterSpec]:
        """Return the parameters in the order of initialisation and storage."""

    @abstractmethod
    def layers(self) -> list[Layer]:
        """Return the layers whose features `features` yields, in its order, with ascending numbers."""

    @abstractmethod
    def step_cost(self) -> StepCost:
        """Return the cost of a training step per row, the basis of predictions of memory and time."""

    def step_s(self, num_samples: int) -> float | None:
        """Return the measured seconds of a step on one core, or None to estimate them from `step_cost`."""
        return None

    @property
    def min_batch_size(self) -> int:
        """Minimal batch size: 2 if a BatchNorm reads one number per sample, whose variance would be 0."""
        return 1

    @property
    def rows_per_sample(self) -> int:
        """Rows that one sample adds to a matrix product: 1, or the positions of a sequence."""
        return 1

    @cached_property
    def num_parameters(self) -> int:
        """Count of numbers in one trial's parameters."""
        return sum(spec.size for spec in self.parameter_specs())

    @cached_property
    def fixed_parameters(self) -> frozenset[str]:
        """Names of the parameters that keep their initial values."""
        return frozenset(spec.name for spec in self.parameter_specs() if not spec.is_trained)

    def factors(self, spec: ParameterSpec, optimizer: str) -> Factors:
        """Return the factors by which a parameter's learning rate, epsilon and initialisation differ. Default: all 1."""
        return Factors()

    def has_factors(self, optimizer: str) -> bool:
        """Return whether any parameter has a factor other than 1. Default: none."""
        return False

    def state_specs(self) -> list[StateSpec]:
        """Return the untrained tensors that the network carries, like running statistics. Default: none."""
        return []

    @property
    def input_layer(self) -> Layer | None:
        """The input as a measured layer. Default: None."""
        return None

    def measured_layers(self) -> list[Layer]:
        """Return all measured layers: the input, if it is one, and `layers`."""
        return [*([] if self.input_layer is None else [self.input_layer]), *self.layers()]

    @property
    def unfused_reason(self) -> str | None:
        """Reason why the trials of a pack train one by one. Default: None, which means fused."""
        return None

    def start(self, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensors] | None:
        """Return a trial's initial parameters [P], flat, and its state, or None if `init` draws them."""
        return None

    def step_texts(self) -> list[str]:
        """Return texts that differ for networks with different steps, in addition to this package's code."""
        return [repr(self)]

    def kernels(self) -> Kernels | None:
        """Return the handwritten kernels for its steps, with one class per sample. Default: None."""
        return None

    def native_kernels(self, has_classes: bool) -> Kernels:
        """Return the handwritten kernels if each sample has one class, without smoothing, or else the generated ones."""
        handwritten = self.kernels() if has_classes else None
        if handwritten is not None:
            return handwritten
        arguments = {"depth": 0, "last_bias": 0, "ln_eps": 0.0}
        return Kernels(GENERATED, {}, arguments, decay_groups(self.parameter_specs()), evaluates=True)

    def arranged(self, x_NI: np.ndarray) -> np.ndarray:
        """Arrange a data set's samples in the network's reading order. Called once, before training."""
        return x_NI

    @abstractmethod
    def logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Tensor:
        """Return the output [T, N, K] in evaluation mode: samples are independent, and the state does not change."""

    def training_logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Return the output [T, N, K] of a training step, and the state after it. Default: as in evaluation mode."""
        return self.logits(parameters, x_TNI, state), state

    def step_logits(self, parameters: Tensors, state: Tensors, x_NI: Tensor) -> Tensor:
        """Return the output [N, K] of one trial's training step, without trial axes. Its kernels are generated from this."""
        whole, carried = ({name: t.unsqueeze(0) for name, t in part.items()} for part in (parameters, state))
        return self.training_logits(whole, x_NI.unsqueeze(0), carried)[0].squeeze(0)

    def plain_module(self, parameters: Tensors, state: Tensors) -> tuple[Tensors, Callable[[Tensor], Tensor]]:
        """Return copies of one trial's parameters (T = 1) and the function from samples to outputs that a plain loop calls."""
        whole, carried = ({name: t.detach().clone() for name, t in part.items()} for part in (parameters, state))
        leaves = {name: t.requires_grad_() for name, t in whole.items() if name not in self.fixed_parameters}

        def call(x_NI: Tensor) -> Tensor:
            logits_1NK, after = self.training_logits(whole, x_NI.unsqueeze(0), carried)
            carried.update({name: tensor.detach() for name, tensor in after.items()})
            return logits_1NK[0]

        return leaves, call

    @abstractmethod
    def features(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Iterator[Tensor]:
        """Yield the features [T, N, *shape] layer by layer, in evaluation mode, in the order of `layers`.

        The caller holds one layer at a time, so a network should hold no other.
        """

    def last_weights(self, parameters: Tensors, state: Tensors, x_NI: Tensor) -> Tensor | None:
        """Return the weight of the last linear map [T, K, D], or None. Samples may be needed to compute it."""
        return None if self.last_weight is None else parameters[self.last_weight]

    def remarks(self) -> list[str]:
        """Return remarks for a plan on what is trained and measured. Default: none."""
        return []

    def weight_pairs(self, parameters: Tensors) -> Mapping[int, tuple[Tensor, Tensor]]:
        """Return for each layer with both the matrix that writes it, [T, D, *], and the one that reads it, [T, *, D]."""
        return {}

    def norm_inputs(self, parameters: Tensors, x_TNI: Tensor) -> Iterator[Tensor]:
        """Yield the input of each LayerNorm in order, [T, N, ..., D]. Default: none."""
        return iter(())

    def with_relu(self, relu: Relu) -> Network:
        """Return the network with another function in place of ReLU, or itself if it has no ReLU."""
        return self

    def neutral_block(self) -> Mapping[str, float] | None:
        """Return constants of a block that changes nothing but can be trained: name pattern, with {} for the block -> value.

        None if no constants are known, so that the network is not continued in depth.
        """
        return None
