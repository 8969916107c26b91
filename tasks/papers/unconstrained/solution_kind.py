"""Kind of solution that training of the deep unconstrained features model reached, by the rule of `classify`.

Float64. Shapes: N samples sorted by class, K classes, D = width.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from depthrate.tasks.papers.unconstrained.deep_solutions import Solution
from depthrate.tasks.papers.unconstrained.strongly_regular import graph_order
from depthrate.tasks.papers.unconstrained.theory import DufmProblem

Array = npt.NDArray[np.float64]

DRIFT = 0.01
"""Largest mean gradient over the next steps, over the norm of lambda times the matrices, for a converged trial."""
ZERO_SHARE = 1e-3
"""Largest output norm of the zero solution, as a share of the targets' norm."""
GEOMETRY_TOLERANCE = 0.1
"""Largest difference of an entry of a Gram matrix, over the mean of its diagonal, from the solution's."""
WITHIN_SHARE = 1e-2
"""Largest share of the scatter within classes in all scatter, for a solution whose classes are points."""


class SolutionKind(StrEnum):
    """Kind of solution that a trial reached, by the rule of `classify`."""

    DNC = "dnc"
    SRG = "srg"
    LOW_RANK = "low_rank"
    FULL_RANK = "full_rank"
    """Converged with means of rank K in every layer that are not orthogonal."""
    ZERO = "zero"
    UNCONVERGED = "unconverged"


def classify(problem: DufmProblem, solution: Solution, *, drift: float, relu: bool, rank_tol: float) -> SolutionKind:
    """Classify a solution by the first rule that holds:

    1. zero: the output's norm is at most 0.001 of the targets'.
    2. unconverged: drift is above 0.01, the norm of the mean gradient over the next steps of gradient descent, over the
       norm of lambda times the matrices, which the fit's gradient balances at a stationary point. The gradient itself does
       not go to zero: values before a ReLU settle at its kink, which gradient descent crosses back and forth.
    3. dnc: in every layer 1 to L the class means are orthogonal and of one length (Gram matrix over the mean of its diagonal
       within 0.1 of I, entry by entry), and at most 0.01 of the scatter is within classes.
    4. srg: K = r(r-1)/2, L >= 3, in layers 2 to L-1 the Gram matrix is within 0.1 of the graph's (1 on the diagonal, 1/2
       between neighbours, else 0) for some order of the classes, and at most 0.01 of the scatter is within classes.
    5. low_rank: in some layer the class means have a rank below K (singular values above rank_tol times the largest).
    6. full_rank: none of these.

    All rules use the values after the ReLU and do not depend on the scale of the matrices or the order of classes and neurons.
    """
    layers, output_NK = _layers(solution, relu)
    targets_NK = np.repeat(np.eye(problem.num_classes), problem.samples_per_class, axis=0)
    if np.linalg.norm(output_NK) <= ZERO_SHARE * np.linalg.norm(targets_NK):
        return SolutionKind.ZERO
    if drift > DRIFT:
        return SolutionKind.UNCONVERGED
    return geometry(layers, problem.num_classes, rank_tol)


def geometry(layers: Sequence[Array], num_classes: int, rank_tol: float) -> SolutionKind:
    """Classify features of layers 1 to L as dnc, srg, low_rank or full_rank: rules 3 to 6 of `classify`."""
    means = [h_ND.reshape(num_classes, -1, h_ND.shape[1]).mean(1) for h_ND in layers]
    are_points = all(_within_share(h, mean) <= WITHIN_SHARE for h, mean in zip(layers, means, strict=True))
    if are_points and all(_is_orthogonal(mean_KD) for mean_KD in means):
        return SolutionKind.DNC
    if are_points and len(means) > 2 and all(_is_graph(mean_KD) for mean_KD in means[1:-1]):
        return SolutionKind.SRG
    is_low = any(_rank(mean_KD, rank_tol) < num_classes for mean_KD in means)
    return SolutionKind.LOW_RANK if is_low else SolutionKind.FULL_RANK


def _layers(solution: Solution, relu: bool) -> tuple[list[Array], Array]:
    """Return the input of each weight, and the output."""
    layers = [solution.h_ND]
    for weight in solution.weights[:-1]:
        before = layers[-1] @ weight.T
        layers.append(np.maximum(before, 0) if relu else before)
    return layers, layers[-1] @ solution.weights[-1].T


def _within_share(h_ND: Array, mean_KD: Array) -> float:
    total = float((h_ND**2).sum())
    within = float(((h_ND.reshape(len(mean_KD), -1, h_ND.shape[1]) - mean_KD[:, None]) ** 2).sum())
    return within / total if total > 0 else 0.0


def _is_orthogonal(mean_KD: Array) -> bool:
    gram_KK = mean_KD @ mean_KD.T
    scale = float(np.mean(np.diag(gram_KK)))
    return scale > 0 and bool((np.abs(gram_KK / scale - np.eye(len(gram_KK))) <= GEOMETRY_TOLERANCE).all())


def _is_graph(mean_KD: Array) -> bool:
    return graph_order(mean_KD @ mean_KD.T, GEOMETRY_TOLERANCE) is not None


def _rank(mean_KD: Array, rank_tol: float) -> int:
    sizes = np.linalg.svd(mean_KD, compute_uv=False)
    return int((sizes > rank_tol * sizes[0]).sum())
