"""How far from stationary the objective with the true ReLU is, at whose kinks the gradient jumps.

Shapes: P parameters of one trial, N samples, I inputs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.networks.flat_parameters import leaves_of, split_parameters
from depthrate.tasks.networks.smooth_relu import KinkSlopes
from depthrate.tasks.training.step import losses
from depthrate.tasks.training.trainer import FusedTrainer

MAX_EVALUATIONS = 40
"""Of the norm and its gradient, at most."""


def min_subgradient_norm(trainer: FusedTrainer, position: int, theta_P: Tensor, width: float) -> float:
    """Return the least norm found of one trial's gradient when the slopes at kinks may be anything from 0 to 1.

    ReLU's value is the true one. Its kinks are where |z| is small beside the width that polish ended with; each has a slope of
    its own, which begins as polish has it, and the norm's square is minimised over them in their box. All samples go through
    at once.
    """
    kinks = KinkSlopes(width)
    network = trainer.network.with_relu(kinks)
    leaves = leaves_of(split_parameters(theta_P.unsqueeze(0), trainer.specs), network.fixed_parameters)
    trained = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    decay_P = trainer.decay_TP[position]
    decayed = split_parameters((decay_P * theta_P).unsqueeze(0), trainer.specs)
    state = {name: tensor[position : position + 1] for name, tensor in trainer.untrained.items()}
    x_1NI, labels_1N = trainer.x_NI.unsqueeze(0), trainer.labels_N.unsqueeze(0)

    def square(slopes: list[Tensor] | None, *, differentiable: bool) -> Tensor:
        kinks.begin(slopes)
        loss = losses(trainer.plan.loss, network.logits(leaves, x_1NI, state), labels_1N).sum()
        found = torch.autograd.grad(loss, list(trained.values()), create_graph=differentiable)
        terms = [(g + decayed[name]).square().sum() for name, g in zip(trained, found, strict=True)]
        return torch.stack(terms).sum()

    from scipy.optimize import minimize  # here: it takes half a second, and most packs polish nothing

    first = square(None, differentiable=False).item()
    start = torch.cat(kinks.starts) if kinks.starts else theta_P.new_zeros(0)
    if not len(start):
        return float(np.sqrt(first))
    sizes, scale = [len(part) for part in kinks.starts], max(first, 1e-300)

    def scaled(flat: np.ndarray) -> tuple[float, np.ndarray]:
        slopes = torch.from_numpy(flat.copy()).to(theta_P).requires_grad_()
        value = square(list(torch.split(slopes, sizes)), differentiable=True) / scale
        (gradient,) = torch.autograd.grad(value, slopes)
        return value.item(), gradient.numpy(force=True).astype(float)

    options = {"maxfun": MAX_EVALUATIONS, "maxiter": MAX_EVALUATIONS, "ftol": 0.0, "gtol": 1e-12}
    found = minimize(
        scaled, start.numpy(force=True), jac=True, method="L-BFGS-B", bounds=[(0, 1)] * len(start), options=options
    )
    return float(np.sqrt(min(found.fun * scale, first)))
