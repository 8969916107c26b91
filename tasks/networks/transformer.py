"""Deep causal transformers over a trial axis, on image patches or on tokens, read out at the last position.

Shapes: T trials, N samples, S positions, D = width, P numbers in a patch, V tokens in the vocabulary, K classes.
Source: Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, section 3 (L-T11 to L-T22).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from depthrate.tasks.networks.residual import ParameterSpec, last, layer_norm, linear


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """L-Txy, post-LN or pre-LN: W_e Z + W_p, depth blocks of attention and MLP, the last layer on the last position.

    Post-LN: U = LN(X), V = LN(U + attention(U)), X' = V + mlp(V). Pre-LN, on X = LN(W_e Z + W_p): U = X + attention(LN(X)),
    X' = U + mlp(LN(U)). Read out at LN(X). Single-head attention(X)_j = sum over i <= j of softmax_i(score_ij) value_i.
    """

    attention_layers: int
    """x: 1 (score z_i^T W_QK z_j / sqrt(D), value W_VO z_i) or 2 (score (W_K z_i)^T W_Q z_j / sqrt(D), value W_O W_V z_i)."""
    mlp_layers: int
    """y: 1 (relu(W x + b)) or 2 (W_2 relu(W_1 x + b_1) + b_2)."""
    pre_norm: bool
    depth: int
    width: int
    positions: int
    """S: patches of an image, or tokens of a text."""
    patch_dimensions: int | None
    """P: inputs are patches [T, N, S * P]; null: inputs are tokens [T, N, S]."""
    vocabulary_size: int | None
    """V, where inputs are tokens."""
    num_classes: int
    last_bias: bool
    first_layer = 0
    """Layer 0 is what block 1 reads, layer l what follows block l reads."""

    def parameter_specs(self) -> list[ParameterSpec]:
        """Return the parameters in the order in which they are drawn and stored."""
        d = self.width
        # Tokens and positions are one-hot columns: however many there are, an output reads one entry of its row.
        if self.patch_dimensions is None:
            assert self.vocabulary_size is not None
            specs = [ParameterSpec("W_e", (d, self.vocabulary_size), 1, "none")]
        else:
            specs = [ParameterSpec("W_e", (d, self.patch_dimensions), self.patch_dimensions, "none")]
        specs.append(ParameterSpec("W_p", (d, self.positions), 1, "none"))
        attention = ("QK", "VO") if self.attention_layers == 1 else ("Q", "K", "V", "O")
        mlp = ("",) if self.mlp_layers == 1 else (",1", ",2")
        for block in range(1, self.depth + 1):
            specs += [ParameterSpec(f"W_{block},{name}", (d, d), d, "hidden") for name in attention]
            for name in mlp:
                specs += [
                    ParameterSpec(f"W_{block}{name}", (d, d), d, "hidden"),
                    ParameterSpec(f"b_{block}{name}", (d,), d, "none"),
                ]
        specs.append(ParameterSpec("W_L", (self.num_classes, d), d, "last"))  # W_{L+1} in the paper
        if self.last_bias:
            specs.append(ParameterSpec("b_L", (self.num_classes,), d, "none"))
        return specs

    def features(self, parameters: dict[str, Tensor], x_TNI: Tensor) -> Iterator[Tensor]:
        """Yield LN(X) at the last position, layer 0 (the embedding) to layer depth, each [T, N, D]."""
        for h_TNSD in self._stream(parameters, x_TNI):
            yield layer_norm(h_TNSD[:, :, -1])

    def logits(self, parameters: dict[str, Tensor], x_TNI: Tensor) -> Tensor:
        """Return the network's output [T, N, K]."""
        h_TNSD = last(self._stream(parameters, x_TNI))
        return linear(parameters, "L", layer_norm(h_TNSD[:, :, -1]))

    def _stream(self, parameters: dict[str, Tensor], x_TNI: Tensor) -> Iterator[Tensor]:
        """Yield the embedding and what follows each block, [T, N, S, D]."""
        h_TNSD = self._embed(parameters, x_TNI)
        yield h_TNSD
        for block in range(1, self.depth + 1):
            h_TNSD = self._block(parameters, block, h_TNSD)
            yield h_TNSD

    def _embed(self, parameters: dict[str, Tensor], x_TNI: Tensor) -> Tensor:
        num_trials, num_samples = x_TNI.shape[:2]
        w_e = parameters["W_e"].mT
        if self.patch_dimensions is None:
            # one table for all trials, each with its own stretch of rows
            starts_T11 = torch.arange(num_trials, device=x_TNI.device).view(-1, 1, 1) * w_e.shape[1]
            h_TNSD = F.embedding(x_TNI + starts_T11, w_e.reshape(-1, self.width))
        else:
            z_TMP = x_TNI.reshape(num_trials, num_samples * self.positions, self.patch_dimensions)
            h_TNSD = torch.bmm(z_TMP, w_e).view(num_trials, num_samples, self.positions, self.width)
        h_TNSD = h_TNSD + parameters["W_p"].mT.unsqueeze(1)
        return layer_norm(h_TNSD) if self.pre_norm else h_TNSD

    def _block(self, parameters: dict[str, Tensor], block: int, h_TNSD: Tensor) -> Tensor:
        normal_TNSD = layer_norm(h_TNSD)
        u_TNSD = (h_TNSD if self.pre_norm else normal_TNSD) + self._attention(parameters, block, normal_TNSD)
        normal_TNSD = layer_norm(u_TNSD)
        return (u_TNSD if self.pre_norm else normal_TNSD) + self._mlp(parameters, block, normal_TNSD)

    def _attention(self, parameters: dict[str, Tensor], block: int, h_TNSD: Tensor) -> Tensor:
        def through(name: str, x_TNSD: Tensor) -> Tensor:
            return torch.bmm(x_TNSD.flatten(1, 2), parameters[f"W_{block},{name}"].mT).view_as(x_TNSD)

        if self.attention_layers == 1:
            queries_TNSD, keys_TNSD, values_TNSD = through("QK", h_TNSD), h_TNSD, through("VO", h_TNSD)
        else:
            queries_TNSD, keys_TNSD = through("Q", h_TNSD), through("K", h_TNSD)
            values_TNSD = through("O", through("V", h_TNSD))
        later_SS = torch.full((self.positions, self.positions), -torch.inf, dtype=h_TNSD.dtype, device=h_TNSD.device)
        scores_TNSS = queries_TNSD @ keys_TNSD.mT / math.sqrt(self.width) + later_SS.triu(1)
        return torch.softmax(scores_TNSS, dim=-1) @ values_TNSD

    def _mlp(self, parameters: dict[str, Tensor], block: int, h_TNSD: Tensor) -> Tensor:
        h_TMD = h_TNSD.flatten(1, 2)
        if self.mlp_layers == 1:
            return torch.relu(linear(parameters, f"{block}", h_TMD)).view_as(h_TNSD)
        return linear(parameters, f"{block},2", torch.relu(linear(parameters, f"{block},1", h_TMD))).view_as(h_TNSD)
