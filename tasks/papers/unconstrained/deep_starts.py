"""Starts of training: random matrices, balanced ones, or a closed form's solution with added noise.

Shapes: N samples, D = width, K classes, P parameters of one trial.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from depthrate.tasks.papers.unconstrained.deep_network import UnconstrainedFeatures
from depthrate.tasks.papers.unconstrained.deep_solutions import dnc_solution, repeated, srg_solution
from depthrate.tasks.papers.unconstrained.theory import DufmProblem

_EXPLICIT = {"dnc": dnc_solution, "srg": srg_solution}


def start(
    network: UnconstrainedFeatures,
    problem: DufmProblem | None,
    *,
    init: str,
    scale: float,
    noise: float,
    generator: torch.Generator,
) -> Tensor:
    """Return one trial's start [P] in float64, flat in the network's order.

    normal: W ~ N(0, 1/width); uniform: U(-1, 1)/sqrt(width), as torch.nn.Linear; he: N(0, 2/width); all three with
    H_1 ~ N(0, 1). balanced: all matrices have the same singular values, K of them, those of a K x D matrix of N(0, 1/width),
    on random bases. dnc, srg: the closed form's solution. All are multiplied by `scale`; then to each matrix is added
    normal noise of `noise` times its root mean square.
    """
    specs = network.parameter_specs()
    if init in _EXPLICIT:
        assert problem is not None  # zero weight decays are rejected earlier
        solution = repeated(_EXPLICIT[init](problem, network.width), problem.samples_per_class)
        pieces = [torch.from_numpy(matrix) for matrix in (solution.h_ND, *solution.weights)]
    elif init == "balanced":
        pieces = _balanced(network, generator)
    else:
        h_ND, *weights = (torch.empty(spec.shape, dtype=torch.float64) for spec in specs)
        h_ND.normal_(generator=generator)
        for weight in weights:
            if init == "uniform":
                bound = 1 / math.sqrt(network.width)
                weight.uniform_(-bound, bound, generator=generator)
            else:
                weight.normal_(0, math.sqrt((2 if init == "he" else 1) / network.width), generator=generator)
        pieces = [h_ND, *weights]
    return torch.cat([_noisy(scale * piece, noise, generator).flatten() for piece in pieces])


def _noisy(matrix: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    if not noise:
        return matrix
    drawn = torch.empty_like(matrix).normal_(generator=generator)
    return matrix + noise * matrix.square().mean().sqrt() * drawn


def _balanced(network: UnconstrainedFeatures, generator: torch.Generator) -> list[Tensor]:
    """Return matrices with W_{l+1}^T W_{l+1} = W_l W_l^T for all l, and W_1^T W_1 = H_1^T H_1."""
    width, classes = network.width, network.num_classes

    def basis(rows: int) -> Tensor:
        """Return K random orthonormal columns of this length."""
        return torch.linalg.qr(torch.empty(rows, classes, dtype=torch.float64).normal_(generator=generator))[0]

    drawn = torch.empty(classes, width, dtype=torch.float64).normal_(0, 1 / math.sqrt(width), generator=generator)
    sizes_K = torch.linalg.svdvals(drawn)
    bases = [basis(network.num_samples), *(basis(width) for _ in range(network.depth)), basis(classes)]
    first, *others = [left * sizes_K @ right.mT for right, left in itertools.pairwise(bases)]
    return [first.mT, *others]
