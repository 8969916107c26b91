"""Explicit matrices of the two solutions, and the kind of a trained solution. Float64.

Rows are samples: h_ND holds features, a weight maps them as h W^T. Shapes: N samples sorted by class, K classes, D = width.
Source: P2 Neural Collapse versus Low-Rank Bias, Definition 10 and Lemma 18.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from depthrate.tasks.papers.unconstrained.strongly_regular import (
    TriangularGraph,
    bipartite_sides,
    graph_order,
    triangular_classes,
    triangular_root,
)
from depthrate.tasks.papers.unconstrained.theory import DufmProblem, dnc_branch, srg_branch

Array = npt.NDArray[np.float64]
DRIFT = 0.01
"""Largest mean gradient over the next steps, over the norm of lambda times the matrices, for a converged trial."""
ZERO_SHARE = 1e-3
"""Largest output norm of the zero solution, as a share of the targets' norm."""
GEOMETRY_TOLERANCE = 0.1
"""Largest difference of an entry of a Gram matrix, over the mean of its diagonal, from the solution's."""
START_GAIN = 0.9
"""Gain of W_1 to W_{L-2} at the start on a bipartite graph."""
WITHIN_SHARE = 1e-2
"""Largest share of the scatter within classes in all scatter, for a solution whose classes are points."""


@dataclass(frozen=True)
class Solution:
    """Trained parameters of the model: one feature per class (or sample), and the weights W_1 to W_L."""

    h_ND: Array
    weights: list[Array]


def dnc_solution(problem: DufmProblem, width: int) -> Solution:
    """Return deep neural collapse at its best scale: class k uses coordinate k alone in every layer.

    Raises:
        ValueError: The width is below the number of classes.
    """
    _check_width(problem, width)
    scale, _ = dnc_branch(problem).minimum()
    identity_KD = np.eye(problem.num_classes, width)
    features = problem.samples_per_class * problem.weight_decay_features
    m_KD = np.sqrt(scale / features) * identity_KD
    hidden = [np.sqrt(scale / decay) * identity_KD.T @ identity_KD for decay in problem.weight_decays[:-1]]
    return _with_ridge(problem, m_KD, hidden)


def srg_solution(problem: DufmProblem, width: int) -> Solution:
    """Return the strongly regular graph's solution at its best scale.

    Raises:
        ValueError: K is not r(r-1)/2, the depth is below 3, or the width is below the number of classes.
    """
    _check_width(problem, width)
    r = triangular_root(problem.num_classes)
    if r is None:
        near = triangular_classes(problem.num_classes)
        raise ValueError(f"num_classes is {problem.num_classes}. The graph exists for r(r-1)/2 classes: {near}, ...")
    scale, _ = srg_branch(problem, r).minimum()
    slope, graph = srg_branch(problem, r).slope, TriangularGraph(r)
    left_RR, sizes_R, right_RK = np.linalg.svd(scale * graph.features_RK, full_matrices=False)
    features = problem.samples_per_class * problem.weight_decay_features
    ratio = np.sqrt(features / problem.weight_decays[0])
    m_KR = right_RK.T * np.sqrt(sizes_R / ratio)
    hidden = [left_RR * np.sqrt(sizes_R * ratio)]
    hidden += [np.sqrt(slope * scale / (r * decay)) * np.eye(r) for decay in problem.weight_decays[1:-2]]
    gain = slope * scale / problem.weight_decays[-2] / (r * problem.num_classes)
    hidden.append(np.sqrt(gain) * graph.signs_KR)
    return _with_ridge(problem, _padded(m_KR, (problem.num_classes, width)), [_padded(w, (width,) * 2) for w in hidden])


def bipartite_start(problem: DufmProblem, signs_DD: Array) -> Solution:
    """Return a start near a low-rank solution whose classes are the edges of the complete bipartite graph K_{a,b}.

    a b = K, with a the largest divisor up to sqrt(K). The class means of layers 1 to L-1 are multiples of the incidence
    matrix, of rank a + b - 1. W_{L-1} has the given signs, and W_L is optimal for these features. With three layers and 6
    classes, descent from here ends below deep neural collapse at lambda = 0.02.
    """
    a, b = bipartite_sides(problem.num_classes)
    width = len(signs_DD)
    incidence_KV = np.hstack([np.repeat(np.eye(a), b, axis=0), np.tile(np.eye(b), (a, 1))])
    hidden = [START_GAIN * np.eye(width)] * (problem.depth - 2) + [signs_DD / np.sqrt(width)]
    return _with_ridge(problem, _padded(incidence_KV, (problem.num_classes, width)), hidden)


def _check_width(problem: DufmProblem, width: int) -> None:
    if width < problem.num_classes:
        raise ValueError(f"width is {width}, expected at least {problem.num_classes}, the number of classes")


def _padded(matrix: Array, shape: tuple[int, ...]) -> Array:
    return np.pad(matrix, [(0, size - old) for size, old in zip(shape, matrix.shape, strict=True)])


def _with_ridge(problem: DufmProblem, m_KD: Array, hidden: list[Array]) -> Solution:
    """Return the solution with the optimal last weight for these features and weights."""
    h_KD = m_KD
    for weight in hidden:
        h_KD = np.maximum(h_KD @ weight.T, 0)
    shift_KK = problem.num_classes * problem.weight_decays[-1] * np.eye(problem.num_classes)
    last = np.asarray(np.linalg.solve(h_KD @ h_KD.T + shift_KK, h_KD), dtype=np.float64)
    return Solution(m_KD, [*hidden, last])


def repeated(solution: Solution, samples_per_class: int) -> Solution:
    """Repeat each class's feature for each of its samples."""
    return Solution(np.repeat(solution.h_ND, samples_per_class, axis=0), solution.weights)


def forward(solution: Solution, relu: bool) -> tuple[list[Array], Array]:
    """Return the input of each weight, and the output."""
    h = [solution.h_ND]
    for weight in solution.weights[:-1]:
        h.append(np.maximum(h[-1] @ weight.T, 0) if relu else h[-1] @ weight.T)
    return h, h[-1] @ solution.weights[-1].T


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
    layers, output_NK = forward(solution, relu)
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
    graphs = [graph_order(mean_KD @ mean_KD.T, GEOMETRY_TOLERANCE) is not None for mean_KD in means[1:-1]]
    if are_points and graphs and all(graphs):
        return SolutionKind.SRG
    sizes = [np.linalg.svd(mean_KD, compute_uv=False) for mean_KD in means]
    is_low = any(int((size_S > rank_tol * size_S[0]).sum()) < num_classes for size_S in sizes)
    return SolutionKind.LOW_RANK if is_low else SolutionKind.FULL_RANK


def _within_share(h_ND: Array, mean_KD: Array) -> float:
    total = float((h_ND**2).sum())
    within = float(((h_ND.reshape(len(mean_KD), -1, h_ND.shape[1]) - mean_KD[:, None]) ** 2).sum())
    return within / total if total > 0 else 0.0


def _is_orthogonal(mean_KD: Array) -> bool:
    gram_KK = mean_KD @ mean_KD.T
    scale = float(np.mean(np.diag(gram_KK)))
    return scale > 0 and bool((np.abs(gram_KK / scale - np.eye(len(gram_KK))) <= GEOMETRY_TOLERANCE).all())
