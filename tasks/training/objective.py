"""The parts of an objective, for T trials at once: the data term, and what LayerNorm reads.

Shapes: T trials, N samples, B samples of a batch, D width, I input dimensions, K classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from depthrate.tasks.networks.network import Network, Tensors


def data_term(loss: str, logits_TBK: Tensor, labels_TB: Tensor) -> Tensor:
    """Return the loss of a batch [T]: mean cross-entropy (ce), or (1/2B) ||f - Y||^2 (mse)."""
    if loss == "ce":
        log_probabilities_TBK = F.log_softmax(logits_TBK, dim=-1)
        return -log_probabilities_TBK.gather(-1, labels_TB.unsqueeze(-1)).squeeze(-1).mean(1)
    targets_TBK = F.one_hot(labels_TB, logits_TBK.shape[-1]).to(logits_TBK.dtype)
    return (logits_TBK - targets_TBK).square().sum(-1).mean(1) / 2


def variance_ratio(x_TND: Tensor) -> Tensor:
    """Return [T], the mean of v / v_i over samples, v_i a sample's variance over the last axis, v their mean; 1 or more."""
    variance_TN = x_TND.var(-1, correction=0).flatten(1)
    return variance_TN.mean(1) * variance_TN.reciprocal().mean(1)


def smallest_deviation(network: Network, parameters: Tensors, x_NI: Tensor) -> Tensor | None:
    """Return [T], the smallest standard deviation that any LayerNorm of the network reads; null where it says nothing."""
    smallest_T = None
    with torch.no_grad():
        num_trials = len(next(iter(parameters.values())))
        for x_TND in network.norm_inputs(parameters, x_NI.expand(num_trials, *x_NI.shape)):
            deviation_T = x_TND.double().std(-1, correction=0).flatten(1).amin(1)
            smallest_T = deviation_T if smallest_T is None else torch.minimum(smallest_T, deviation_T)
    return smallest_T
