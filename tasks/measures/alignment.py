"""Alignment of the last layer's weight with a simplex, a basis and the features (NC2, NC3), in float64.

Shapes: T trials, N samples sorted by class, D feature dimensions, K classes.
Source: P1 Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, Definition 3.4.
"""

from __future__ import annotations

import torch
from torch import Tensor


def weight_alignment(h_TND: Tensor, class_counts_K: Tensor, weight_TKD: Tensor) -> dict[str, Tensor]:
    """Compare the last layer's weight W with a simplex, a basis and the features (P1 Def. 3.4).

    Args:
        h_TND: Features sorted by class.
        class_counts_K: Number of samples per class.
        weight_TKD: Last layer's weight, one row per class.

    Returns:
        Metric name -> values [T], 0 at collapse.
        nc2a = min over c >= 0 of ||W W^T - c E||_F / ||W W^T||_F with E = I - (1/K) 1 1^T.
        nc2b: the same with I in place of E.
        nc3 = 1 - mean over samples of cos(x, W_k), k the sample's class.
    """
    weight_TKD = weight_TKD.double()
    labels_N = torch.repeat_interleave(class_counts_K)
    num_classes = weight_TKD.shape[1]
    identity_KK = torch.eye(num_classes, dtype=torch.float64, device=weight_TKD.device)
    gram_TKK = weight_TKD @ weight_TKD.mT
    # 1 - cos is half the squared distance of unit vectors, which does not cancel near collapse
    difference_TND = _unit(h_TND.double())
    difference_TND -= _unit(weight_TKD).index_select(1, labels_N)
    return {
        "nc2a": _distance_to_ray(gram_TKK, identity_KK - 1 / num_classes),
        "nc2b": _distance_to_ray(gram_TKK, identity_KK),
        "nc3": torch.linalg.vector_norm(difference_TND, dim=(1, 2)).square() / (2 * len(labels_N)),
    }


def _unit(x_TND: Tensor) -> Tensor:
    return x_TND / x_TND.norm(dim=-1, keepdim=True)


def _distance_to_ray(gram_TKK: Tensor, basis_KK: Tensor) -> Tensor:
    scale_T11 = ((gram_TKK * basis_KK).sum((1, 2), keepdim=True) / basis_KK.square().sum()).clamp(min=0)
    return (gram_TKK - scale_T11 * basis_KK).norm(dim=(1, 2)) / gram_TKK.norm(dim=(1, 2))
