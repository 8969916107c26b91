"""The strongly regular graph behind the low-rank solution: classes are the edges of a complete graph on r vertices.

The triangular graph T(r): two classes are neighbours if their edges share a vertex. It is strongly regular with
K = r(r-1)/2 vertices, degree 2(r-2), r-2 common neighbours of neighbours and 4 of others. Shapes: R = r, K classes.
Source: P2 Neural Collapse versus Low-Rank Bias, Definition 10.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
SMALLEST_R = 4
"""Smallest r of the graph. With r = 3 any two edges share a vertex, and the last features would be zero."""


def graph_constant(r: int) -> float:
    """Return D = (r-2)(r-3) + 2: a row of A T_r has the squared norm 2 D / (r-1)."""
    return (r - 2) * (r - 3) + 2.0


def triangular_root(num_classes: int) -> int | None:
    """Return r >= 4 with K = r(r-1)/2, or None if there is none."""
    r = (1 + math.isqrt(1 + 8 * num_classes)) // 2
    return r if r >= SMALLEST_R and r * (r - 1) // 2 == num_classes else None


def triangular_classes(around: int) -> str:
    """Return a string of the nearest numbers of classes with a graph."""
    r = max(SMALLEST_R, (1 + math.isqrt(1 + 8 * around)) // 2 - 2)
    return ", ".join(str(size * (size - 1) // 2) for size in range(r, r + 5))


def bipartite_sides(num_classes: int) -> tuple[int, int]:
    """Return the sides a <= b of the complete bipartite graph K_{a,b} with this number of edges, nearest to each other."""
    a = next(size for size in range(math.isqrt(num_classes), 0, -1) if num_classes % size == 0)
    return a, num_classes // a


@dataclass(frozen=True)
class TriangularGraph:
    """T(r), with the matrices of the solution built on it.

    Raises:
        ValueError: r is below 4.
    """

    r: int

    def __post_init__(self) -> None:
        if self.r < SMALLEST_R:
            raise ValueError(f"r is {self.r}, expected at least {SMALLEST_R} (K = 6 classes)")

    @property
    def num_classes(self) -> int:
        """K = r(r-1)/2."""
        return self.r * (self.r - 1) // 2

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """Pair of vertices of each class, in lexicographic order."""
        return list(itertools.combinations(range(self.r), 2))

    @cached_property
    def incidence_RK(self) -> Array:
        """Incidence matrix: 1 where a vertex is an end of an edge, else 0."""
        incidence = np.zeros((self.r, self.num_classes))
        for column, ends in enumerate(self.edges):
            incidence[list(ends), column] = 1.0
        return incidence

    @property
    def features_RK(self) -> Array:
        """T_r, the incidence divided by sqrt(r-1): the class means of layers 2 to L-1 up to a factor."""
        return self.incidence_RK / math.sqrt(self.r - 1)

    @property
    def signs_KR(self) -> Array:
        """A, one row per class: -1 at the ends of its edge, +1 elsewhere. Equals W_{L-1} up to a factor."""
        return 1.0 - 2.0 * self.incidence_RK.T

    @property
    def row_norm(self) -> float:
        """The norm of each row of A T_r."""
        return math.sqrt(2 * graph_constant(self.r) / (self.r - 1))

    @property
    def last_features_KK(self) -> Array:
        """relu(A T_r) with each row over its norm before the ReLU: the class means of layer L up to a factor."""
        return np.maximum(self.signs_KR @ self.features_RK, 0) / self.row_norm

    @property
    def adjacency_KK(self) -> npt.NDArray[np.bool_]:
        """Adjacency matrix: true for two classes whose edges share one vertex."""
        return self.incidence_RK.T @ self.incidence_RK == 1

    def gram_KK(self) -> Array:
        """Return the Gram matrix of T_r over its diagonal: 1 on it, 1/2 between neighbours, else 0."""
        return self.incidence_RK.T @ self.incidence_RK / 2


def graph_order(gram_KK: Array, tolerance: float) -> list[int] | None:
    """Return the order of classes that makes a Gram matrix the graph's up to a factor, or None if there is none.

    The order follows `TriangularGraph.edges`. Each entry, over the mean of the diagonal, may be off by `tolerance`.
    """
    r = triangular_root(len(gram_KK))
    scale = float(np.mean(np.diag(gram_KK)))
    if r is None or not scale > 0:
        return None
    graph, cosines = TriangularGraph(r), gram_KK / scale
    adjacency = (cosines > 0.25) & ~np.eye(len(gram_KK), dtype=bool)
    if not _has_counts(adjacency, r):
        return None
    edge_of = _edges_of_classes(adjacency, graph.adjacency_KK)
    if edge_of is None:
        return None
    order = np.argsort(edge_of).tolist()
    off = np.abs(cosines[np.ix_(order, order)] - graph.gram_KK()).max()
    return order if off <= tolerance else None


def _has_counts(adjacency: npt.NDArray[np.bool_], r: int) -> bool:
    """Return whether a graph has the degree and the common neighbours of T(r), which identify T(r) except for r = 8."""
    common = adjacency.astype(float) @ adjacency.astype(float)
    expected = np.where(adjacency, r - 2, 4)
    np.fill_diagonal(expected, 2 * (r - 2))
    return bool((common == expected).all())


def _edges_of_classes(adjacency: npt.NDArray[np.bool_], of_edges: npt.NDArray[np.bool_]) -> list[int] | None:
    """Return an edge's number for each class so that neighbours share a vertex (a backtracking search with few branches).

    Args:
        adjacency: Adjacency of the classes.
        of_edges: Adjacency of the edges.
    """
    branches: list[list[int]] = [[]]
    while branches:
        chosen = branches.pop()
        number = len(chosen)
        if number == len(adjacency):
            return chosen
        fits = (of_edges[:, chosen] == adjacency[number, :number]).all(1)
        fits[chosen] = False
        branches += [[*chosen, edge] for edge in reversed(np.flatnonzero(fits).tolist())]
    return None
