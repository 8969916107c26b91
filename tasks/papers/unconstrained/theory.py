"""The closed forms of the deep unconstrained features model: deep neural collapse and the strongly regular graph.

The objective, with Y = I_K (x) 1_n^T, N = K n and sigma = ReLU:
(1/2N)||W_L sigma(W_{L-1} ... sigma(W_1 H_1)) - Y||^2 + sum_l (lambda_l/2)||W_l||^2 + (lambda_H/2)||H_1||^2.
Importable without torch. L = depth, K = num_classes, n = samples_per_class.

Source: P2 Neural Collapse versus Low-Rank Bias, Theorems 5 and 6, Definition 10, Lemmas 16 and 18, with corrections: mu_1 of
Lemma 16 is ((r-2)(r-3))^2 / (2D), the printed one is right for r = 4 and 5 only. The printed L_DNC lacks "+ K lambda_L".
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from depthrate.tasks.papers.unconstrained.strongly_regular import (
    SMALLEST_R,
    TriangularGraph,
    graph_constant,
    triangular_root,
)

ZERO_LOSS = 0.5
"""Objective of the zero solution, which is always a candidate."""
_GRID = 400
"""Grid points over twelve decades of the scale. Minima are far wider than their spacing."""


@dataclass(frozen=True)
class DufmProblem:
    """Inputs of the closed forms of a deep unconstrained features model. Any sufficient width gives the same."""

    num_classes: int
    samples_per_class: int
    weight_decays: tuple[float, ...]
    """Weight decays lambda_1 to lambda_L, all above zero."""
    weight_decay_features: float
    """lambda_H, above zero (n lambda_H if the n samples of a class are merged)."""

    @property
    def depth(self) -> int:
        """Number L of weight matrices."""
        return len(self.weight_decays)

    @property
    def first_pair(self) -> float:
        """sqrt(n lambda_H lambda_1): the cost per unit of nuclear norm of W_1 M_1."""
        return math.sqrt(self.samples_per_class * self.weight_decay_features * self.weight_decays[0])


@dataclass(frozen=True)
class Branch:
    """A family of solutions with one free scale q: the objective along it, in closed form.

    loss(q) = (lambda_L/2) sum_i m_i / (mu_i alpha_L + K lambda_L) + (L/2) slope q with alpha_L = gain q^L. The sum is the
    ridge regression of W_L on features whose Gram matrix is alpha_L times a matrix with eigenvalues mu_i. The other L
    matrices, H_1 among them, share their regularisation equally.
    """

    problem: DufmProblem
    spectrum: tuple[tuple[float, float], ...]
    """(multiplicity m_i, eigenvalue mu_i). The multiplicities sum to the number of classes covered."""
    gain: float
    slope: float

    def loss(self, scale: float) -> float:
        """Return the objective at q = scale."""
        problem = self.problem
        last = problem.weight_decays[-1]
        alpha = self.gain * scale**problem.depth
        fit = sum(number / (eigenvalue * alpha + problem.num_classes * last) for number, eigenvalue in self.spectrum)
        return last / 2 * fit + problem.depth / 2 * self.slope * scale

    def minimum(self) -> tuple[float, float]:
        """Return (q, loss) at the best q >= 0, which may be 0."""
        unit = (self.problem.num_classes * self.problem.weight_decays[-1] / self.gain) ** (1 / self.problem.depth)
        grid = [unit * 10 ** (12 * index / _GRID - 6) for index in range(_GRID + 1)]
        best = min(range(1, _GRID), key=lambda index: self.loss(grid[index]))
        low, high = grid[best - 1], grid[best + 1]
        while low < (middle := (low + high) / 2) < high:  # to the last bit: the gradient there is zero to 1e-10
            low, high = (low, middle) if self._rises(middle) else (middle, high)
        return min(((scale, self.loss(scale)) for scale in (0.0, low)), key=lambda pair: pair[1])

    def _rises(self, scale: float) -> bool:
        """Return whether the objective's derivative (over L / 2) is above zero."""
        floor = self.problem.num_classes * self.problem.weight_decays[-1]
        alpha = self.gain * scale**self.problem.depth
        falls = sum(number * eigenvalue / (eigenvalue * alpha + floor) ** 2 for number, eigenvalue in self.spectrum)
        return self.slope > self.problem.weight_decays[-1] * falls * alpha / scale


def dnc_branch(problem: DufmProblem, num_classes: int | None = None) -> Branch:
    """Return deep neural collapse of `num_classes` classes (all by default): M_l = sqrt(alpha_l) I for every layer.

    alpha_l = x^l / (n lambda_H prod_{i<l} lambda_i), and the regularisation of each matrix is K x / 2.
    """
    classes = problem.num_classes if num_classes is None else num_classes
    features = problem.samples_per_class * problem.weight_decay_features
    gain = 1 / (features * math.prod(problem.weight_decays[:-1]))
    return Branch(problem, ((classes, 1.0),), gain, classes)


def srg_branch(problem: DufmProblem, r: int) -> Branch:
    """Return the strongly regular graph on r(r-1)/2 of the classes: M_l = sqrt(alpha_l) T_r for 2 <= l <= L-1.

    alpha_l = p^{l-2} q^l / (r^{l-2} prod_{i=2}^{l-1} lambda_i) with p = sqrt(n lambda_H lambda_1) (sqrt 2 +
    sqrt((r-1)(r-2))), and alpha_L = 4 D p^{L-2} q^L / (r^{L-1} (r-1)^2 prod_{i=2}^{L-1} lambda_i).

    Raises:
        ValueError: The depth is below 3, or r below 4.
    """
    if problem.depth < 3 or r < SMALLEST_R:
        raise ValueError(f"depth is {problem.depth} and r is {r}, expected a depth of at least 3 and r of at least 4")
    constant = graph_constant(r)
    p = problem.first_pair * (math.sqrt(2) + math.sqrt((r - 1) * (r - 2)))
    gain = 4 * constant * p ** (problem.depth - 2) / (r ** (problem.depth - 1) * (r - 1) ** 2)
    spectrum = (
        (1, ((r - 2) * (r - 3)) ** 2 / (2 * constant)),
        (r - 1, 2 * (r - 3) ** 2 / constant),
        (r * (r - 3) / 2, 2 / constant),
    )
    return Branch(problem, spectrum, gain / math.prod(problem.weight_decays[1:-1]), p)


def cut_graph_branch(problem: DufmProblem, r: int) -> Branch:
    """Return the family of solutions on the first K classes of the graph of r, without its other classes.

    For K = r(r-1)/2 it equals `srg_branch`. Nuclear norm and eigenvalues are computed numerically: they have no closed form.

    Raises:
        ValueError: K exceeds the number of classes of the graph.
    """
    graph, classes = TriangularGraph(r), problem.num_classes
    if classes > graph.num_classes:
        raise ValueError(f"num_classes is {classes}, expected at most {graph.num_classes}, the graph of r = {r}")
    features = graph.features_RK[:, :classes]
    last = graph.last_features_KK[:classes, :classes]
    p = problem.first_pair * float(np.linalg.norm(features, ord="nuc"))
    # each matrix costs p q / 2. W_2 to W_{L-2} are multiples of I_r, and W_{L-1} of K rows of signs
    gain = (p / r) ** (problem.depth - 3) * p * graph.row_norm**2 / (r * classes)
    eigenvalues = np.linalg.eigvalsh(last.T @ last)
    spectrum = tuple((1.0, max(float(eigenvalue), 0.0)) for eigenvalue in eigenvalues)
    return Branch(problem, spectrum, gain / math.prod(problem.weight_decays[1:-1]), p)


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
    others = {r: problem.num_classes - r * (r - 1) // 2 for r in range(SMALLEST_R, largest + 1)}
    # the matrices of the graph and of DNC are orthogonal blocks
    beside = [srg_branch(problem, r).minimum()[1] + dnc_branch(problem, n).minimum()[1] for r, n in others.items()]
    return min(*beside, cut_graph_branch(problem, largest + 1).minimum()[1])


def best_known(problem: DufmProblem, *, relu: bool = True) -> float:
    """Return the lowest objective of the closed forms. Without ReLU, or with K = 2 or L = 2, DNC's is the optimum."""
    graph = srg_loss(problem) if relu else None
    return min(ZERO_LOSS, dnc_loss(problem), *([] if graph is None else [graph]))
