"""Deep residual networks over a trial axis: one set of [T, ...] parameters is T networks of one shape.

Shapes: T trials, N samples, D = width, I input dimensions, K classes.
Source: Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, section 3 (L-RN1, L-RN2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from depthrate.tasks.networks.network import NO_STATE, Kernels, Layer, ParameterSpec, StepCost, Tensors
from depthrate.tasks.networks.operations import NEUTRAL_BIAS, NormedNetwork, last, linear, relu

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ResidualNetwork(NormedNetwork):
    """L-RN1 or L-RN2, post-LN or pre-LN: the embedding W_0, depth - 1 residual blocks, the last layer W_L.

    Post-LN: X_{l+1} = LN(X_l + s block(X_l)). Pre-LN: X_{l+1} = X_l + s block(LN(X_l)), and the output reads LN(X_L), with s =
    `block_scale`. Layer 0 is the input, layer l the input of block l, layer depth the input of the last layer. Decay groups:
    `hidden` for the weights of blocks, `last` for W_L. Biases and W_0 are not regularised, unless `free` is set otherwise.
    """

    linear_layers: int
    """Linear layers per block: 1 (RN1: relu(W x + b)) or 2 (RN2: W_2 relu(W_1 x + b_1) + b_2)."""
    input_dimensions: int
    has_weight_pairs = True

    def parameter_specs(self) -> list[ParameterSpec]:
        d, i = self.width, self.input_dimensions
        specs = [self.free.embedding("W_0", (d, i), i), self.free.embedding("b_0", (d,), i)]
        for block in range(1, self.depth):
            for number in range(1, self.linear_layers + 1):
                suffix = f"{block}" if self.linear_layers == 1 else f"{block},{number}"
                specs += [ParameterSpec(f"W_{suffix}", (d, d), d, "hidden"), self.free.bias(f"b_{suffix}", d, d)]
        specs.append(ParameterSpec("W_L", (self.num_classes, d), d, "last"))
        if self.last_bias:
            specs.append(self.free.bias("b_L", self.num_classes, d))
        return specs

    def layers(self) -> list[Layer]:
        return [Layer(number, (self.width,)) for number in range(1, self.depth + 1)]

    @property
    def input_layer(self) -> Layer:
        return Layer(0, (self.input_dimensions,), "input")

    def step_cost(self) -> StepCost:
        """Return the cost of a step. A block stores ReLU's output, the sum and its LayerNorm for the backward pass."""
        products = self.depth * self.linear_layers + 1 + self.input_dimensions / self.width
        return StepCost(
            products,
            products * self.width**2,
            kept=self.width * 3 * self.depth,
            kept_by_process=self.width * (self.depth * (3 + self.linear_layers) + 4),
            native_s=2.8e-11,
        )

    def kernels(self) -> Kernels | None:
        """Return the kernels of `tasks/native/residual.cpp`, or None with another ReLU or scaled branches."""
        if self.relu is not None or self.block_scale != 1:
            return None
        constants = {
            "WIDTH": self.width,
            "INPUTS": self.input_dimensions,
            "CLASSES": self.num_classes,
            "LINEAR_LAYERS": self.linear_layers,
            "PRE_NORM": int(self.pre_norm),
        }
        if not self.free.train_embedding:
            constants["FIXED_EMBEDDING"] = 1
        arguments = {"depth": self.depth, "last_bias": self.last_bias, "ln_eps": self.ln_eps}
        groups = ("hidden", "last", "biases", "embedding")
        return Kernels("residual", constants, arguments, groups, can_smooth=True, gives_layers=True, evaluates=True)

    def features(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Iterator[Tensor]:
        """Yield the input of each linear map: layer 1 (the first block's input) to layer depth, each [T, N, D]."""
        for layer, h_TND in enumerate(self._stream(parameters, x_TNI), start=1):
            yield self._norm(h_TND) if self.pre_norm and layer > 1 else h_TND

    def logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Tensor:
        h_TND = last(self._stream(parameters, x_TNI))
        return linear(parameters, "L", self._norm(h_TND) if self.pre_norm else h_TND)

    def norm_inputs(self, parameters: Tensors, x_TNI: Tensor) -> Iterator[Tensor]:
        """Yield the input of each LayerNorm, [T, N, D]: the embedding, then a block's input (pre-LN) or sum (post-LN)."""
        h_TND = linear(parameters, "0", x_TNI)
        yield h_TND
        if self.pre_norm:
            yield from self._stream(parameters, x_TNI)
            return
        for block in range(1, self.depth):
            normal_TND = self._norm(h_TND)
            h_TND = normal_TND + self._block(parameters, block, normal_TND)
            yield h_TND

    def weight_pairs(self, parameters: Tensors) -> Mapping[int, tuple[Tensor, Tensor]]:
        """Return for layer l the last matrix of block l - 1, or W_0, and the first one of block l, or W_L."""
        first, end = ("", "") if self.linear_layers == 1 else (",1", ",2")
        written = ["0", *(f"{block}{end}" for block in range(1, self.depth))]
        read = [*(f"{block}{first}" for block in range(1, self.depth)), "L"]
        pairs = zip(written, read, strict=True)
        return {n: (parameters[f"W_{w}"], parameters[f"W_{r}"]) for n, (w, r) in enumerate(pairs, start=1)}

    def neutral_block(self) -> Mapping[str, float] | None:
        """Return W = 0 and one bias for all coordinates, which the next LayerNorm removes, or None for RN2.

        With two matrices at zero, neither has a gradient. With one of them nonzero, the block costs something.
        """
        return {"W_{}": 0.0, "b_{}": NEUTRAL_BIAS} if self.linear_layers == 1 else None

    def _stream(self, parameters: Tensors, x_TNI: Tensor) -> Iterator[Tensor]:
        """Yield X_1 to X_L, each [T, N, D]."""
        h_TND = self._norm(linear(parameters, "0", x_TNI))
        yield h_TND
        for block in range(1, self.depth):
            if self.pre_norm:
                h_TND = h_TND + self._block(parameters, block, self._norm(h_TND))
            else:
                h_TND = self._norm(h_TND + self._block(parameters, block, h_TND))
            yield h_TND

    def _block(self, parameters: Tensors, block: int, h_TND: Tensor) -> Tensor:
        if self.linear_layers == 1:
            return self._scaled(relu(linear(parameters, f"{block}", h_TND), self.relu))
        inner_TND = relu(linear(parameters, f"{block},1", h_TND), self.relu)
        return self._scaled(linear(parameters, f"{block},2", inner_TND))
