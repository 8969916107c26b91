"""Deep causal transformers over a trial axis, on image patches or tokens, with output at the last position or at each.

Shapes: T trials, N samples, S positions, D = width, P numbers per patch, V tokens in the vocabulary, K classes.
Source: Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, section 3 (L-T11 to L-T22).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depthrate.tasks.networks.network import NO_STATE, Layer, ParameterSpec, StepCost, Tensors
from depthrate.tasks.networks.operations import NEUTRAL_BIAS, NormedNetwork, embedding, last, linear, relu

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Transformer(NormedNetwork):
    """L-Txy, post-LN or pre-LN: W_e Z + W_p, depth blocks of attention and MLP, the last layer on the last position.

    Post-LN: U = LN(X), V = LN(U + attention(U)), X' = V + mlp(V). Pre-LN, on X = LN(W_e Z + W_p): U = X + attention(LN(X)),
    X' = U + mlp(LN(U)). The output reads LN(X). Single-head attention(X)_j = sum over i <= j of softmax_i(score_ij) value_i.
    `block_scale` multiplies attention and mlp. Layer 0 is the input of block 1, layer l the output of block l. Decay groups:
    `hidden` for the weights of blocks, `last` for W_L (the paper's W_{L+1}). Biases, W_e and W_p are not regularised, unless
    `free` is set otherwise.
    """

    attention_layers: int
    """x: 1 (score z_i^T W_QK z_j / sqrt(D), value W_VO z_i) or 2 (score (W_K z_i)^T W_Q z_j / sqrt(D), value W_O W_V z_i)."""
    mlp_layers: int
    """y: 1 (relu(W x + b)) or 2 (W_2 relu(W_1 x + b_1) + b_2)."""
    positions: int
    """S: patches per image, or tokens per text."""
    patch_dimensions: int | None
    """P, if inputs are patches [T, N, S * P]. None: inputs are tokens [T, N, S]."""
    vocabulary_size: int | None
    """V, if inputs are tokens."""
    every_position: bool = False
    """Whether the output is read at each position, [T, N, S, ...], instead of the last one, [T, N, ...]."""
    image_shape: tuple[int, int, int] | None = None
    """Channels, rows, columns of the images that `arranged` cuts into square patches. None: inputs are not rearranged."""

    def parameter_specs(self) -> list[ParameterSpec]:
        d = self.width
        # Tokens and positions are one-hot columns: an output reads one entry of its row, for any number of them.
        if self.patch_dimensions is None:
            assert self.vocabulary_size is not None
            specs = [self.free.embedding("W_e", (d, self.vocabulary_size), 1)]
        else:
            specs = [self.free.embedding("W_e", (d, self.patch_dimensions), self.patch_dimensions)]
        specs.append(self.free.embedding("W_p", (d, self.positions), 1))
        attention = ("QK", "VO") if self.attention_layers == 1 else ("Q", "K", "V", "O")
        mlp = ("",) if self.mlp_layers == 1 else (",1", ",2")
        for block in range(1, self.depth + 1):
            specs += [ParameterSpec(f"W_{block},{name}", (d, d), d, "hidden") for name in attention]
            for name in mlp:
                specs += [
                    ParameterSpec(f"W_{block}{name}", (d, d), d, "hidden"),
                    self.free.bias(f"b_{block}{name}", d, d),
                ]
        specs.append(ParameterSpec("W_L", (self.num_classes, d), d, "last"))  # W_{L+1} in the paper
        if self.last_bias:
            specs.append(self.free.bias("b_L", self.num_classes, d))
        return specs

    def layers(self) -> list[Layer]:
        shape = (self.positions, self.width) if self.every_position else (self.width,)
        return [Layer(number, shape) for number in range(self.depth + 1)]

    @property
    def rows_per_sample(self) -> int:
        return self.positions

    def step_cost(self) -> StepCost:
        """Return the cost of a step.

        For the backward pass a block stores both LayerNorms, both sums, ReLU's output, the products of the attention, and the
        attention weights of each position.
        """
        x, y, attended = self.attention_layers, self.mlp_layers, self.positions / self.width
        products = self.depth * (2 * x + y + 2 * attended) + 1 + (self.patch_dimensions or 0) / self.width
        outputs = self.num_classes if self.every_position else 0
        return StepCost(
            products,
            products * self.width**2 + outputs * self.width,
            kept=self.width * (self.depth * (5 + 2 * x + attended) + 3) + 2 * outputs,
            kept_by_process=self.width * (self.depth * (4 + 2 * x + y + 3 * attended) + 4) + 4 * outputs,
            native_s=4e-11,
        )

    def arranged(self, x_NI: np.ndarray) -> np.ndarray:
        """Rearrange images [N, I] patch by patch, if they come whole."""
        if self.image_shape is None:
            return x_NI
        assert self.patch_dimensions is not None
        return cut_into_patches(x_NI, self.image_shape, math.isqrt(self.patch_dimensions // self.image_shape[0]))

    def features(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Iterator[Tensor]:
        """Yield LN(X), layer 0 (the embedding) to layer depth, each [T, N, D] or, at every position, [T, N, S, D]."""
        for h_TNSD in self._stream(parameters, x_TNI):
            yield self._norm(self._read(h_TNSD))

    def logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Tensor:
        h = self._norm(self._read(last(self._stream(parameters, x_TNI))))
        return linear(parameters, "L", h.flatten(1, -2)).view(*h.shape[:-1], self.num_classes)

    def norm_inputs(self, parameters: Tensors, x_TNI: Tensor) -> Iterator[Tensor]:
        """Yield the input of each LayerNorm, [T, N, S, D], and finally the input of the output's."""
        if self.pre_norm:
            yield self._embed(parameters, x_TNI)
        for block, h_TNSD in enumerate(self._stream(parameters, x_TNI), start=1):
            if block > self.depth:
                yield self._read(h_TNSD)
                return
            yield h_TNSD
            normal_TNSD = self._norm(h_TNSD)
            yield (h_TNSD if self.pre_norm else normal_TNSD) + self._attention(parameters, block, normal_TNSD)

    def neutral_block(self) -> Mapping[str, float] | None:
        """Return zero weights and one bias for all coordinates, which the next LayerNorm removes. None except for T11.

        With two matrices at zero, neither has a gradient. With one of them nonzero, the block costs something.
        """
        if (self.attention_layers, self.mlp_layers) != (1, 1):
            return None
        return {"W_{},QK": 0.0, "W_{},VO": 0.0, "W_{}": 0.0, "b_{}": NEUTRAL_BIAS}

    def _stream(self, parameters: Tensors, x_TNI: Tensor) -> Iterator[Tensor]:
        """Yield the embedding and the output of each block, [T, N, S, D]."""
        h_TNSD = self._embed(parameters, x_TNI)
        h_TNSD = self._norm(h_TNSD) if self.pre_norm else h_TNSD
        yield h_TNSD
        for block in range(1, self.depth + 1):
            h_TNSD = self._block(parameters, block, h_TNSD)
            yield h_TNSD

    def _embed(self, parameters: Tensors, x_TNI: Tensor) -> Tensor:
        num_trials, num_samples = x_TNI.shape[:2]
        w_e = parameters["W_e"].mT
        if self.patch_dimensions is None:
            h_TNSD = embedding(x_TNI, w_e)
        else:
            z_TMP = x_TNI.reshape(num_trials, num_samples * self.positions, self.patch_dimensions)
            h_TNSD = z_TMP.bmm(w_e).view(num_trials, num_samples, self.positions, self.width)
        return h_TNSD + parameters["W_p"].mT.unsqueeze(1)

    def _read(self, h_TNSD: Tensor) -> Tensor:
        return h_TNSD if self.every_position else h_TNSD[:, :, -1]

    def _block(self, parameters: Tensors, block: int, h_TNSD: Tensor) -> Tensor:
        normal_TNSD = self._norm(h_TNSD)
        u_TNSD = (h_TNSD if self.pre_norm else normal_TNSD) + self._attention(parameters, block, normal_TNSD)
        normal_TNSD = self._norm(u_TNSD)
        return (u_TNSD if self.pre_norm else normal_TNSD) + self._mlp(parameters, block, normal_TNSD)

    def _attention(self, parameters: Tensors, block: int, h_TNSD: Tensor) -> Tensor:
        def through(name: str, x_TNSD: Tensor) -> Tensor:
            return x_TNSD.flatten(1, 2).bmm(parameters[f"W_{block},{name}"].mT).view_as(x_TNSD)

        if self.attention_layers == 1:
            queries_TNSD, keys_TNSD, values_TNSD = through("QK", h_TNSD), h_TNSD, through("VO", h_TNSD)
        else:
            queries_TNSD, keys_TNSD = through("Q", h_TNSD), through("K", h_TNSD)
            values_TNSD = through("O", through("V", h_TNSD))
        later_SS = h_TNSD.new_full((self.positions, self.positions), -math.inf)
        scores_TNSS = queries_TNSD @ keys_TNSD.mT / math.sqrt(self.width) + later_SS.triu(1)
        return self._scaled(scores_TNSS.softmax(-1) @ values_TNSD)

    def _mlp(self, parameters: Tensors, block: int, h_TNSD: Tensor) -> Tensor:
        h_TMD = h_TNSD.flatten(1, 2)
        if self.mlp_layers == 1:
            return self._scaled(relu(linear(parameters, f"{block}", h_TMD), self.relu)).view_as(h_TNSD)
        inner_TMD = relu(linear(parameters, f"{block},1", h_TMD), self.relu)
        return self._scaled(linear(parameters, f"{block},2", inner_TMD)).view_as(h_TNSD)


def cut_into_patches(x_NI: np.ndarray, image_shape: tuple[int, int, int], patch_size: int) -> np.ndarray:
    """Reorder images [N, I] by patches: row by row of patches, whole patches in turn."""
    channels, rows, columns = image_shape
    down, across = rows // patch_size, columns // patch_size
    cut = x_NI.reshape(-1, channels, down, patch_size, across, patch_size)
    return cut.transpose(0, 2, 4, 1, 3, 5).reshape(x_NI.shape)
