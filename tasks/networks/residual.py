"""Deep residual networks over a trial axis: one set of [T, ...] parameters is T networks of one shape.

Shapes: T trials, N samples, D = width, I input dimensions, K classes, P parameters of one trial.
Source: Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, section 3 (L-RN1, L-RN2).
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

LAYER_NORM_EPS = 1e-12
"""Only keeps a constant feature vector from dividing by zero: the definition has none."""


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter tensor of a network: its name, its shape without the trial axis, and how it is regularised."""

    name: str
    shape: tuple[int, ...]
    fan_in: int
    decay: str
    """`none` (biases and the embedding), `hidden` (weight_decay) or `last` (weight_decay_last)."""


class Network(Protocol):
    """What trains fused: its parameters, its output, and its features layer by layer."""

    @property
    def positions(self) -> int:
        """Rows that one sample adds to a matrix product: 1, or the positions of a transformer."""
        ...

    @property
    def first_layer(self) -> int:
        """The number of the layer that `features` yields first."""
        ...

    def parameter_specs(self) -> list[ParameterSpec]:
        """Return the parameters in the order in which they are drawn and stored."""
        ...

    def features(self, parameters: dict[str, Tensor], x_TNI: Tensor) -> Iterator[Tensor]:
        """Yield the features [T, N, D] layer by layer."""
        ...

    def logits(self, parameters: dict[str, Tensor], x_TNI: Tensor) -> Tensor:
        """Return the output [T, N, K]."""
        ...


@dataclass(frozen=True, kw_only=True)
class ResidualNetwork:
    """L-RN1 or L-RN2, post-LN or pre-LN: the embedding W_0, depth - 1 residual blocks, the last layer W_L.

    Post-LN: X_{l+1} = LN(X_l + block(X_l)). Pre-LN: X_{l+1} = X_l + block(LN(X_l)), read out at LN(X_L).
    """

    linear_layers: int
    """1 (RN1: relu(W x + b)) or 2 (RN2: W_2 relu(W_1 x + b_1) + b_2) in a block."""
    pre_norm: bool
    depth: int
    width: int
    input_dimensions: int
    num_classes: int
    last_bias: bool
    positions = 1
    first_layer = 1
    """Layer l is what block l reads, layer depth what the last layer reads."""

    def parameter_specs(self) -> list[ParameterSpec]:
        """Return the parameters in the order in which they are drawn and stored."""
        d, i = self.width, self.input_dimensions
        specs = [ParameterSpec("W_0", (d, i), i, "none"), ParameterSpec("b_0", (d,), i, "none")]
        for block in range(1, self.depth):
            for linear in range(1, self.linear_layers + 1):
                suffix = f"{block}" if self.linear_layers == 1 else f"{block},{linear}"
                specs += [
                    ParameterSpec(f"W_{suffix}", (d, d), d, "hidden"),
                    ParameterSpec(f"b_{suffix}", (d,), d, "none"),
                ]
        specs.append(ParameterSpec("W_L", (self.num_classes, d), d, "last"))
        if self.last_bias:
            specs.append(ParameterSpec("b_L", (self.num_classes,), d, "none"))
        return specs

    def features(self, parameters: dict[str, Tensor], x_TNI: Tensor) -> Iterator[Tensor]:
        """Yield what each linear map reads: layer 1 (the first block's input) to layer depth, each [T, N, D]."""
        for layer, h_TND in enumerate(self._stream(parameters, x_TNI), start=1):
            yield layer_norm(h_TND) if self.pre_norm and layer > 1 else h_TND

    def logits(self, parameters: dict[str, Tensor], x_TNI: Tensor) -> Tensor:
        """Return the network's output [T, N, K]."""
        h_TND = last(self._stream(parameters, x_TNI))
        return linear(parameters, "L", layer_norm(h_TND) if self.pre_norm else h_TND)

    def _stream(self, parameters: dict[str, Tensor], x_TNI: Tensor) -> Iterator[Tensor]:
        """Yield X_1 to X_L, each [T, N, D]."""
        h_TND = layer_norm(linear(parameters, "0", x_TNI))
        yield h_TND
        for block in range(1, self.depth):
            if self.pre_norm:
                h_TND = h_TND + self._block(parameters, block, layer_norm(h_TND))
            else:
                h_TND = layer_norm(h_TND + self._block(parameters, block, h_TND))
            yield h_TND

    def _block(self, parameters: dict[str, Tensor], block: int, h_TND: Tensor) -> Tensor:
        if self.linear_layers == 1:
            return torch.relu(linear(parameters, f"{block}", h_TND))
        inner_TND = torch.relu(linear(parameters, f"{block},1", h_TND))
        return linear(parameters, f"{block},2", inner_TND)


def last(layers: Iterator[Tensor]) -> Tensor:
    """Return the last of them, holding no other."""
    return collections.deque(layers, maxlen=1).pop()


def linear(parameters: dict[str, Tensor], suffix: str, x_TNI: Tensor) -> Tensor:
    """Return W x + b of each trial, or W x where there is no such bias, [T, N, D]."""
    weight_TID = parameters[f"W_{suffix}"].mT
    if f"b_{suffix}" not in parameters:
        return torch.bmm(x_TNI, weight_TID)
    return torch.baddbmm(parameters[f"b_{suffix}"].unsqueeze(1), x_TNI, weight_TID)


def layer_norm(x_TND: Tensor) -> Tensor:
    """Subtract the mean over the last axis and divide by the standard deviation; there are no parameters."""
    return F.layer_norm(x_TND, x_TND.shape[-1:], eps=LAYER_NORM_EPS)


def initial_parameters(specs: list[ParameterSpec], init: str, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw one trial's parameters [P], flat and in order; on the CPU and in float64, so that devices and dtypes agree.

    uniform: U(-1, 1)/sqrt(fan_in) for weights and biases (what torch.nn.Linear does); normal: N(0, 1/fan_in);
    he: N(0, 2/fan_in); the last two with biases at zero.
    """
    pieces = []
    for spec in specs:
        size = math.prod(spec.shape)
        if init == "uniform":
            bound = 1 / math.sqrt(spec.fan_in)
            piece = torch.empty(size, dtype=torch.float64).uniform_(-bound, bound, generator=generator)
        elif len(spec.shape) == 1:
            piece = torch.zeros(size, dtype=torch.float64)
        else:
            std = math.sqrt((2 if init == "he" else 1) / spec.fan_in)
            piece = torch.empty(size, dtype=torch.float64).normal_(0, std, generator=generator)
        pieces.append(piece)
    return torch.cat(pieces).to(dtype)


def split_parameters(theta_TP: Tensor, specs: list[ParameterSpec]) -> dict[str, Tensor]:
    """Return views of the flat parameters by name, each [T, *shape]."""
    sizes = [math.prod(spec.shape) for spec in specs]
    pieces = torch.split(theta_TP, sizes, dim=1)
    return {spec.name: piece.view(-1, *spec.shape) for spec, piece in zip(specs, pieces, strict=True)}
