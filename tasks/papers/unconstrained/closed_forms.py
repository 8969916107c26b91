"""Lowest objectives of the closed forms for any number of classes, as the baseline of every trial."""

from __future__ import annotations

import math
from functools import lru_cache

from depthrate.tasks.papers.unconstrained.strongly_regular import cut_graph_branch
from depthrate.tasks.papers.unconstrained.theory import (
    SMALLEST_R,
    ZERO_LOSS,
    DufmProblem,
    dnc_branch,
    srg_branch,
    triangular_root,
)


@lru_cache(maxsize=4096)
def dnc_loss(problem: DufmProblem) -> float:
    """Return L_DNC, the lowest objective of deep neural collapse, or 1/2 if the zero solution is better."""
    return dnc_branch(problem).minimum()[1]


@lru_cache(maxsize=4096)
def srg_loss(problem: DufmProblem) -> float | None:
    """Return L_SRG: the graph's lowest objective, and for K other than r(r-1)/2 the best of two constructions from it.

    The constructions are a graph on r(r-1)/2 of the classes with deep neural collapse of the others, for any r that fits,
    and the next larger graph with some classes removed. None for a depth below 3 or fewer than 6 classes (with 4 or 5, the
    graph of 6 could be cut, but is never better than DNC).
    """
    if problem.depth < 3 or problem.num_classes < SMALLEST_R * (SMALLEST_R - 1) // 2:
        return None
    r = triangular_root(problem.num_classes)
    if r is not None:
        return srg_branch(problem, r).minimum()[1]
    largest = (1 + math.isqrt(1 + 8 * problem.num_classes)) // 2
    beside = [_graph_beside_dnc(problem, r) for r in range(SMALLEST_R, largest + 1)]
    return min(*beside, cut_graph_branch(problem, largest + 1).minimum()[1])


def _graph_beside_dnc(problem: DufmProblem, r: int) -> float:
    """Return the objective of a graph on r(r-1)/2 classes and DNC on the others: the matrices are orthogonal blocks."""
    others = problem.num_classes - r * (r - 1) // 2
    return srg_branch(problem, r).minimum()[1] + dnc_branch(problem, others).minimum()[1]


def best_known(problem: DufmProblem, *, relu: bool = True) -> float:
    """Return the lowest objective of the closed forms. Without ReLU, or with K = 2 or L = 2, DNC's is the optimum."""
    graph = srg_loss(problem) if relu else None
    return min(ZERO_LOSS, dnc_loss(problem), *([] if graph is None else [graph]))
