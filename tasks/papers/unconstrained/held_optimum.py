"""Exact optima of the unconstrained features models, by quasi-Newton methods in few variables. Torch-free.

The objectives, N = K n samples, f = W H: (UFM) loss(f) + lambda_W/(2K) ||W||^2 + lambda/(2N) ||H||^2. (MUFM) with
||H - X||^2 in place of ||H||^2. With L blocks lambda/(2N) sum_l ||H_l - H_{l-1}||^2, H_0 = X. The squared loss is
(1/2N) ||f - Y||^2.

Squared loss: given W, the best features have a closed form. The rest is a function of the K x d entries of W, and of the
data only through second moments. With R = (Y - W X)(Y - W X)^T / N and P = (I + W W^T / lambda)^-1 it is
tr(P R) / 2 + lambda_W/(2K) ||W||^2. Cross-entropy has no closed form: L-BFGS in W and H together.

Shapes: N samples sorted by class, D = dimension, K classes. Source: P3 Progressive Feedforward Collapse of ResNet
Training, (12), (13) and Theorem 3, whose lambda is lambda / L (the paper drops the L).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

GRADIENT_TOLERANCE = 1e-12
MAX_ITERATIONS = 20_000
SMALLEST_START = 1e-3
"""Ratio of the standard deviations of the random start and of ridge regression. W = 0 is a saddle for X = 0."""


@dataclass(frozen=True)
class ExactSolution:
    """Minimiser of an objective."""

    h_ND: Array
    weight_KD: Array
    objective: float


@dataclass(frozen=True)
class UnconstrainedProblem:
    """One model: `target_ND` is X in MUFM and zero in UFM."""

    target_ND: Array
    labels_N: npt.NDArray[np.int64]
    num_classes: int
    weight_decay: float
    proximity: float
    """lambda, above zero (lambda / L for L blocks)."""

    @property
    def targets_NK(self) -> Array:
        """One-hot labels."""
        return np.eye(self.num_classes)[self.labels_N]


def solve(problem: UnconstrainedProblem, loss: str, generator: np.random.Generator) -> ExactSolution:
    """Return the optimum of a problem with loss mse or ce, the better result of two starts: ridge regression and a random one.

    The problem is not convex, and a random start can end in a local minimum. Of ten draws at P3's setting, the better start
    reached the lowest minimum that eight others found in all for lambda = 0.02, 0.1 and 0.2, and in nine for 0.05.
    """
    ridge_KD = _ridge(problem, problem.target_ND)
    scale = max(float(ridge_KD.std()), 1.0)
    starts = [
        ridge_KD + SMALLEST_START * generator.normal(size=ridge_KD.shape),
        scale * generator.normal(size=ridge_KD.shape),
    ]
    solutions = [_solve_mse(problem, start) if loss == "mse" else _solve_ce(problem, start) for start in starts]
    return min(solutions, key=lambda solution: solution.objective)


def _ridge(problem: UnconstrainedProblem, h_ND: Array) -> Array:
    """Return the best W for given features: Y H^T (H H^T + n lambda_W I)^-1."""
    per_class = len(h_ND) / problem.num_classes
    gram_DD = h_ND.T @ h_ND + per_class * max(problem.weight_decay, 1e-12) * np.eye(h_ND.shape[1])
    return np.asarray(np.linalg.solve(gram_DD, h_ND.T @ problem.targets_NK).T)


def _solve_mse(problem: UnconstrainedProblem, start_KD: Array) -> ExactSolution:
    x_ND, y_NK, count = problem.target_ND, problem.targets_NK, len(problem.target_ND)
    yy_KK, yx_KD, xx_DD = y_NK.T @ y_NK / count, y_NK.T @ x_ND / count, x_ND.T @ x_ND / count
    identity_KK, decay = np.eye(problem.num_classes), problem.weight_decay / problem.num_classes

    def value_and_gradient(flat: Array) -> tuple[float, Array]:
        w_KD = flat.reshape(start_KD.shape)
        crossed_KK = w_KD @ yx_KD.T
        r_KK = yy_KK - crossed_KK - crossed_KK.T + w_KD @ xx_DD @ w_KD.T
        p_KK = np.linalg.inv(identity_KK + w_KD @ w_KD.T / problem.proximity)
        gradient_KD = p_KK @ (w_KD @ xx_DD - yx_KD) - p_KK @ r_KK @ p_KK @ w_KD / problem.proximity + decay * w_KD
        return float((p_KK * r_KK).sum() / 2 + decay / 2 * (w_KD**2).sum()), gradient_KD.ravel()

    x, value = _minimum(value_and_gradient, start_KD.ravel(), "BFGS", gtol=GRADIENT_TOLERANCE)
    w_KD = x.reshape(start_KD.shape)
    system_DD = w_KD.T @ w_KD + problem.proximity * np.eye(w_KD.shape[1])
    h_ND = np.linalg.solve(system_DD, w_KD.T @ y_NK.T + problem.proximity * x_ND.T).T
    return ExactSolution(h_ND, w_KD, value)


def _solve_ce(problem: UnconstrainedProblem, start_KD: Array) -> ExactSolution:
    x_ND, labels_N, (count, dimension) = problem.target_ND, problem.labels_N, problem.target_ND.shape
    # scale features so that their curvature matches the weights': their gradients have a factor 1 / N
    unit, rows = np.sqrt(count / problem.num_classes), np.arange(count)

    def split(flat: Array) -> tuple[Array, Array]:
        return flat[: start_KD.size].reshape(start_KD.shape), flat[start_KD.size :].reshape(x_ND.shape) * unit

    def value_and_gradient(flat: Array) -> tuple[float, Array]:
        w_KD, h_ND = split(flat)
        logits_NK = h_ND @ w_KD.T
        logits_NK -= logits_NK.max(1, keepdims=True)
        odds_NK = np.exp(logits_NK)
        sums_N1 = odds_NK.sum(1, keepdims=True)
        loss = float((np.log(sums_N1[:, 0]) - logits_NK[rows, labels_N]).mean())
        error_NK = odds_NK / sums_N1
        error_NK[rows, labels_N] -= 1
        error_NK /= count
        change_ND = h_ND - x_ND
        decay = problem.weight_decay / problem.num_classes
        value = (
            loss + decay / 2 * float((w_KD**2).sum()) + problem.proximity / (2 * count) * float((change_ND**2).sum())
        )
        of_h_ND = error_NK @ w_KD + problem.proximity / count * change_ND
        return value, np.concatenate([(error_NK.T @ h_ND + decay * w_KD).ravel(), of_h_ND.ravel() * unit])

    noise_ND = SMALLEST_START * np.random.default_rng(0).normal(size=(count, dimension))
    start = np.concatenate([start_KD.ravel(), ((x_ND + noise_ND) / unit).ravel()])
    options = {"gtol": 1e-10, "ftol": 0.0, "maxfun": 2 * MAX_ITERATIONS, "maxcor": 30}
    x, value = _minimum(value_and_gradient, start, "L-BFGS-B", **options)
    w_KD, h_ND = split(x)
    return ExactSolution(h_ND, w_KD, value)


def _minimum(
    value_and_gradient: Callable[[Array], tuple[float, Array]], start: Array, method: str, **options: float
) -> tuple[Any, float]:
    from scipy.optimize import minimize  # local import: it takes half a second

    options = {"maxiter": MAX_ITERATIONS, **options}
    found = minimize(value_and_gradient, start, jac=True, method=method, options=options)
    return found.x, float(found.fun)


def ufm_optimum(loss: str, *, num_classes: int, weight_decay: float, weight_decay_features: float) -> float:
    """Return the lowest objective of the unconstrained features model, for d >= K and balanced classes.

    Both regularisers together cost sqrt(lambda_W lambda / n) / K times the nuclear norm of W H, so with
    c = sqrt(lambda_W lambda): mse, W H = (1 - c) Y and c - c^2/2, or 1/2 at zero if c >= 1. ce, W H = a (I - 1 1^T / K)
    on the classes with exp(-a) = c / (K - c (K-1)), or log K at zero if c >= 1.
    """
    c = math.sqrt(weight_decay * weight_decay_features)
    if loss == "mse":
        return c - c**2 / 2 if c < 1 else 0.5
    if c >= 1:
        return math.log(num_classes)
    others = num_classes - 1
    if c == 0:
        return 0.0
    tail = c / (num_classes - c * others)
    return math.log1p(others * tail) - c * others / num_classes * math.log(tail)
