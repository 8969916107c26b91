"""Operations, and fields, shared by several families of networks, over a trial axis. Torch is imported at the first call.

Shapes: T trials, N samples, S positions, I inputs, D = width, V tokens in the vocabulary.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from depthrate.tasks.networks.network import FreeParameters, Network, ParameterSpec, Relu, Tensors
from depthrate.tasks.networks.parametrisation import Factors, Parametrisation

if TYPE_CHECKING:
    from torch import Tensor

LAYER_NORM_EPS = 1e-12
"""Prevents division by zero for a constant feature vector. The definition has no eps."""
NEUTRAL_BIAS = 0.1
"""Bias of neutral blocks: above 0, where ReLU has a slope, and equal in all coordinates, so that LayerNorm removes it."""


@dataclass(frozen=True, kw_only=True)
class NormedNetwork(Network):
    """P1's networks: an embedding, blocks with LayerNorm, and a last layer."""

    pre_norm: bool
    depth: int
    width: int
    num_classes: int
    last_bias: bool
    ln_eps: float = LAYER_NORM_EPS
    relu: Relu | None = None
    """Replacement of ReLU, or None."""
    free: FreeParameters = FreeParameters()  # noqa: RUF009  # immutable
    block_scale: float = 1.0
    """Factor s of every residual branch."""
    parametrisation: Parametrisation | None = None
    """Factors on learning rates, epsilon and initialisation. Its branch multiplier is part of `block_scale`."""
    last_weight = "W_L"
    has_generated_steps = True

    def with_relu(self, relu: Relu) -> Self:
        return dataclasses.replace(self, relu=relu)

    def factors(self, spec: ParameterSpec, optimizer: str) -> Factors:
        return Factors() if self.parametrisation is None else self.parametrisation.factors(spec.name, optimizer)

    def has_factors(self, optimizer: str) -> bool:
        if self.parametrisation is None:
            return False
        return any(self.factors(spec, optimizer) != Factors() for spec in self.parameter_specs())

    def _norm(self, h_TND: Tensor) -> Tensor:
        return layer_norm(h_TND, self.ln_eps)

    def _scaled(self, branch_TND: Tensor) -> Tensor:
        return branch_TND if self.block_scale == 1 else branch_TND * self.block_scale


def last(layers: Iterator[Tensor]) -> Tensor:
    """Return the last element, without holding earlier ones."""
    return collections.deque(layers, maxlen=1).pop()


def linear(parameters: Tensors, suffix: str, x_TNI: Tensor) -> Tensor:
    """Return W x + b of each trial, or W x without a bias, [T, N, D]."""
    weight_TID = parameters[f"W_{suffix}"].mT
    if f"b_{suffix}" not in parameters:
        return x_TNI.bmm(weight_TID)
    return parameters[f"b_{suffix}"].unsqueeze(1).baddbmm(x_TNI, weight_TID)


def layer_norm(x_TND: Tensor, eps: float = LAYER_NORM_EPS) -> Tensor:
    """Subtract the mean over the last axis and divide by sqrt(variance + eps), without parameters."""
    from torch.nn import functional

    return functional.layer_norm(x_TND, x_TND.shape[-1:], eps=eps)


def relu(x_TND: Tensor, instead: Relu | None = None) -> Tensor:
    """Return max(x, 0), or the value of its replacement."""
    return x_TND.relu() if instead is None else instead(x_TND)


def embedding(tokens_TNS: Tensor, table_TVD: Tensor) -> Tensor:
    """Look up each trial's tokens in the trial's table, [T, N, S, D]."""
    import torch
    from torch.nn import functional

    if len(table_TVD) == 1:
        return functional.embedding(tokens_TNS, table_TVD[0])
    # One lookup for all trials: each trial's tokens are offset to the rows of its table.
    num_trials, vocabulary_size, width = table_TVD.shape
    starts_T11 = torch.arange(num_trials, device=tokens_TNS.device).view(-1, 1, 1) * vocabulary_size
    return functional.embedding(tokens_TNS + starts_T11, table_TVD.reshape(-1, width))
