"""Sums of powers with a floor, y = E + sum c_k x_k^-a_k: their minimum by variable projection and Newton steps.

The objective is sum rho(log model - log y), with rho the square or Huber's function. For given exponents, c and E follow from
non-negative least squares, which gives the starts. Newton steps with the exact Hessian then minimise the objective itself,
many starts or resamples at once.

Shapes: K variables, N values, R rows (starts, resamples), P = 2 K + 1 parameters: a_1 ... a_K, log c_1 ... log c_K, E.
Sources: Golub and Pereyra (1973), The differentiation of pseudo-inverses and nonlinear least squares problems whose variables
separate; Huber (1964), Robust estimation of a location parameter; Hoffmann et al. (2022), Training Compute-Optimal Large
Language Models, section D.2 (Huber on logarithms).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from depthrate.tasks.fits.least_squares import Array

START_EXPONENTS = (0.1, 0.35, 0.8, 1.6)
"""Exponents of the starts, for each variable."""
BEST_STARTS = 12
"""Number of starts that Newton steps follow to the end."""
MAX_STEPS = 400
SMALL = 1e-15
"""Predicted decrease, as a share of the objective, at which a row has converged."""
SINGULAR = 1e-10
"""Smallest eigenvalue of the scaled and damped Hessian with which a step is solved."""
MIN_LOG_COEFFICIENT = -60.0
"""Logarithm of a coefficient that counts as zero: smaller ones change no value in float64."""
MAX_EXPONENT = 30.0


@dataclass(frozen=True)
class PowerSum:
    """Data of one fit. Variables are scaled by their geometric means, and y by its own, for good conditioning."""

    log_x_KN: Array
    log_y_N: Array
    delta: float | None
    """Residual from which Huber's function is linear. None: squares."""

    @property
    def num_variables(self) -> int:
        """Number of variables K."""
        return len(self.log_x_KN)

    def objective(self, theta_RP: Array, weight_RN: Array, log_y_RN: Array | None = None) -> Array:
        """Return the weighted objective [R], of each row's values if they are given. Infinity if it is not finite."""
        _, model_RN = self._terms(theta_RP)
        with np.errstate(divide="ignore", invalid="ignore"):
            residual_RN = np.log(model_RN) - (self.log_y_N if log_y_RN is None else log_y_RN)
            value_R = np.where(weight_RN > 0, weight_RN * self.rho(residual_RN), 0.0).sum(1)
        return np.where(np.isfinite(value_R), value_R, np.inf)

    def derivatives(
        self, theta_RP: Array, weight_RN: Array, log_y_RN: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Return the gradient [R, P], the Hessian and its Gauss-Newton part [R, P, P]."""
        k = self.num_variables
        term_RKN, model_RN = self._terms(theta_RP)
        # a value that a row leaves out may be predicted as 0 or infinity
        log_y_RN = self.log_y_N if log_y_RN is None else log_y_RN
        residual_RN = np.where(weight_RN > 0, np.log(np.where(weight_RN > 0, model_RN, 1.0)) - log_y_RN, 0.0)
        term_RKN, model_RN = np.where(weight_RN[:, None] > 0, term_RKN, 0.0), np.where(weight_RN > 0, model_RN, 1.0)
        slope_RN, curvature_RN = self._rho_derivatives(residual_RN)
        jacobian_RPN = self._jacobian(term_RKN, model_RN)
        gradient_RP = np.einsum("rn,rpn->rp", weight_RN * slope_RN, jacobian_RPN)
        # of Huber's linear part, the curvature that majorises it: positive, as a Gauss-Newton part must be
        with np.errstate(divide="ignore", invalid="ignore"):
            bent_RN = np.where(curvature_RN > 0, 1.0, np.abs(slope_RN / residual_RN))
        gauss_RPP = np.einsum("rn,rpn,rqn->rpq", weight_RN * bent_RN, jacobian_RPN, jacobian_RPN)
        factor_RN = weight_RN * (curvature_RN - slope_RN)
        hessian_RPP = np.einsum("rn,rpn,rqn->rpq", factor_RN, jacobian_RPN, jacobian_RPN)
        share_RKN = (weight_RN * slope_RN / model_RN)[:, None] * term_RKN
        own_RK = share_RKN.sum(2)
        with_log_RK = np.einsum("rkn,kn->rk", share_RKN, self.log_x_KN)
        with_square_RK = np.einsum("rkn,kn->rk", share_RKN, self.log_x_KN**2)
        at = np.arange(k)
        hessian_RPP[:, at, at] += with_square_RK
        hessian_RPP[:, at, k + at] -= with_log_RK
        hessian_RPP[:, k + at, at] -= with_log_RK
        hessian_RPP[:, k + at, k + at] += own_RK
        return gradient_RP, hessian_RPP, gauss_RPP

    def jacobian(self, theta_P: Array) -> Array:
        """Return the derivatives [P, N] of the log model with respect to the parameters."""
        term_RKN, model_RN = self._terms(theta_P[None])
        return self._jacobian(term_RKN, model_RN)[0]

    def log_model(self, theta_P: Array) -> Array:
        """Return the log of the model [N]."""
        return np.asarray(np.log(self._terms(theta_P[None])[1][0]))

    def starts(self) -> Array:
        """Return starts [R, P]: c and E by non-negative least squares of relative errors, on a grid of exponents."""
        rows = []
        inverse_N = np.exp(-self.log_y_N)
        for exponents in itertools.product(START_EXPONENTS, repeat=self.num_variables):
            powers_NK = np.exp(-np.array(exponents)[:, None] * self.log_x_KN).T * inverse_N[:, None]
            columns_NQ = np.concatenate([powers_NK, inverse_N[:, None]], axis=1)
            solution, _ = nnls(columns_NQ, np.ones(len(inverse_N)))
            # a coefficient of zero has no slope in its logarithm, so it starts at a share of the whole
            coefficients = np.maximum(solution[:-1], 1e-3 / columns_NQ[:, :-1].mean(0))
            rows.append([*exponents, *np.log(coefficients), solution[-1]])
        return np.array(rows)

    def minimise(
        self,
        theta_RP: Array,
        weight_RN: Array,
        max_steps: int = MAX_STEPS,
        fixed_RP: np.ndarray | None = None,
        log_y_RN: Array | None = None,
    ) -> tuple[Array, Array]:
        """Follow damped Newton steps from each row, which change no fixed parameter.

        Args:
            theta_RP: Starts.
            weight_RN: Weights of the values.
            max_steps: Maximum number of steps.
            fixed_RP: Parameters that stay.
            log_y_RN: Values of each row instead of the problem's.

        Returns:
            The parameters [R, P] and the objective [R].
        """
        theta_RP, value_R = theta_RP.copy(), self.objective(theta_RP, weight_RN, log_y_RN)
        damping_R, rows = np.full(len(theta_RP), 1e-2), np.flatnonzero(np.isfinite(value_R))
        at = np.arange(theta_RP.shape[1])
        for _ in range(max_steps):
            if not len(rows):
                break
            theta, weight, log_y = theta_RP[rows], weight_RN[rows], None if log_y_RN is None else log_y_RN[rows]
            gradient, hessian, gauss = self.derivatives(theta, weight, log_y)
            held = self._held(theta, gradient)
            if fixed_RP is not None:
                held |= fixed_RP[rows]
            gradient = np.where(held, 0.0, gradient)
            scale = np.maximum(gauss[:, at, at], 1e-12 * gauss[:, at, at].max(1, keepdims=True) + 1e-300)
            step = _damped_step(hessian, gauss, gradient, scale, damping_R[rows], held)
            tried = self._inside(theta + step)
            tried_value = self.objective(tried, weight, log_y)
            is_better = tried_value < value_R[rows]
            predicted = -(gradient * (tried - theta)).sum(1)
            is_done = np.abs(predicted) <= SMALL * value_R[rows]
            accepted = rows[is_better]
            theta_RP[accepted], value_R[accepted] = tried[is_better], tried_value[is_better]
            damping_R[rows] = np.where(is_better, damping_R[rows] / 8, damping_R[rows] * 5)
            rows = rows[~(is_done | (damping_R[rows] > 1e14))]
        return theta_RP, value_R

    def _terms(self, theta_RP: Array) -> tuple[Array, Array]:
        """Return the terms c_k x_k^-a_k [R, K, N] and the model [R, N]."""
        k = self.num_variables
        with np.errstate(over="ignore"):
            term_RKN = np.exp(theta_RP[:, k : 2 * k, None] - theta_RP[:, :k, None] * self.log_x_KN)
        return term_RKN, term_RKN.sum(1) + theta_RP[:, 2 * k, None]

    def _jacobian(self, term_RKN: Array, model_RN: Array) -> Array:
        share_RKN = term_RKN / model_RN[:, None]
        return np.concatenate([-share_RKN * self.log_x_KN, share_RKN, 1 / model_RN[:, None]], axis=1)

    def rho(self, residual_RN: Array) -> Array:
        """Return half the squares of residuals, or Huber's function."""
        half_squares = residual_RN**2 / 2
        if self.delta is None:
            return np.asarray(half_squares)
        size = np.abs(residual_RN)
        return np.where(size <= self.delta, half_squares, self.delta * (size - self.delta / 2))

    def _rho_derivatives(self, residual_RN: Array) -> tuple[Array, Array]:
        if self.delta is None:
            return residual_RN, np.ones_like(residual_RN)
        is_inside = np.abs(residual_RN) <= self.delta
        return np.clip(residual_RN, -self.delta, self.delta), is_inside.astype(np.float64)

    def _held(self, theta_RP: Array, gradient_RP: Array) -> np.ndarray:
        """Return which parameters are on a bound that the gradient pushes against [R, P]."""
        k = self.num_variables
        held_RP = np.zeros(theta_RP.shape, dtype=bool)
        held_RP[:, 2 * k] = (theta_RP[:, 2 * k] <= 0) & (gradient_RP[:, 2 * k] > 0)
        held_RP[:, k : 2 * k] = (theta_RP[:, k : 2 * k] <= MIN_LOG_COEFFICIENT) & (gradient_RP[:, k : 2 * k] > 0)
        return held_RP

    def _inside(self, theta_RP: Array) -> Array:
        k = self.num_variables
        theta_RP[:, 2 * k] = np.maximum(theta_RP[:, 2 * k], 0.0)
        theta_RP[:, k : 2 * k] = np.maximum(theta_RP[:, k : 2 * k], MIN_LOG_COEFFICIENT)
        theta_RP[:, :k] = np.clip(theta_RP[:, :k], -MAX_EXPONENT, MAX_EXPONENT)
        return theta_RP


def _damped_step(
    hessian_RPP: Array, gauss_RPP: Array, gradient_RP: Array, scale_RP: Array, damping_R: Array, held_RP: np.ndarray
) -> Array:
    """Solve for the step [R, P] with the Hessian, or with its Gauss-Newton part where the damped Hessian has no descent."""
    at, steps = np.arange(gradient_RP.shape[1]), []
    root_RP = np.sqrt(scale_RP)
    for matrix_RPP in (hessian_RPP, gauss_RPP):
        scaled_RPP = matrix_RPP / root_RP[:, :, None] / root_RP[:, None, :]
        scaled_RPP[held_RP[:, :, None] | held_RP[:, None, :]] = 0.0
        scaled_RPP[:, at, at] += damping_R[:, None] + held_RP
        smallest_R = np.linalg.eigvalsh(scaled_RPP)[:, 0]
        scaled_RPP[:, at, at] += np.where(smallest_R < SINGULAR, SINGULAR - np.minimum(smallest_R, 0.0), 0.0)[:, None]
        steps.append((np.linalg.solve(scaled_RPP, -(gradient_RP / root_RP)[..., None])[..., 0] / root_RP, smallest_R))
    (newton_RP, smallest_R), (gauss_newton_RP, _) = steps
    return np.where((smallest_R > SINGULAR)[:, None], newton_RP, gauss_newton_RP)


def best_of_starts(problem: PowerSum) -> tuple[Array, float]:
    """Return the parameters [P] with the smallest objective found from all starts, and the objective."""
    starts_RP = problem.starts()
    ones_RN = np.ones((len(starts_RP), len(problem.log_y_N)))
    near_RP, value_R = problem.minimise(starts_RP, ones_RN, max_steps=30)
    best = np.argsort(value_R)[:BEST_STARTS]
    theta_RP, value_R = problem.minimise(near_RP[best], ones_RN[best])
    winner = int(np.argmin(value_R))
    return theta_RP[winner], float(value_R[winner])
