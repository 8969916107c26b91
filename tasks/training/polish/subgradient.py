"""Minimum-norm subgradient of the objective with the true ReLU, whose gradient jumps at its kinks.

Shapes: P parameters of one trial, N samples, I input dimensions.
"""

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.networks.flat_parameters import leaves_of, split_parameters
from depthrate.tasks.networks.smooth_relu import KinkSlopes
from depthrate.tasks.training.step import losses
from depthrate.tasks.training.trainer import FusedTrainer

MAX_EVALUATIONS = 40
"""Maximum number of evaluations of the norm and its gradient."""


def min_subgradient_norm(trainer: FusedTrainer, position: int, theta_P: Tensor, width: float) -> float:
    """Minimise the norm of one trial's gradient over the slopes at ReLU's kinks, each between 0 and 1.

    ReLU's value is the true one. Units with |z| small compared with the last smoothing width are at a kink. Their slopes start
    at polish's values, and the squared norm is minimised over them. All samples are processed at once.

    Returns:
        The smallest norm found.
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
        pieces = torch.autograd.grad(loss, list(trained.values()), create_graph=differentiable)
        terms = [(piece + decayed[name]).square().sum() for name, piece in zip(trained, pieces, strict=True)]
        return torch.stack(terms).sum()

    # imported late, since the import takes half a second and most packs have no polish
    from scipy.optimize import minimize

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
    result = minimize(
        scaled, start.numpy(force=True), jac=True, method="L-BFGS-B", bounds=[(0, 1)] * len(start), options=options
    )
    return float(np.sqrt(min(result.fun * scale, first)))
