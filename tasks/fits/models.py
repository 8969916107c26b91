"""The curves a rate can follow: their shapes on log y, where to start, what the box of their parameters is.

Shapes: C curves on one design, N points, G groups (the distinct x, rising), R rows, P shape parameters (all but the
prefactor; the first is the exponent), S starting points. Curves and rows come last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.least_squares import Array, Shape

Mask: TypeAlias = npt.NDArray[np.bool_]

MODELS = ("power", "power_floor", "power_log", "exponential", "log_linear")
NUM_PARAMETERS = {"power": 2, "power_floor": 3, "power_log": 3, "exponential": 2, "log_linear": 2}
POWERS = ("power", "power_floor", "power_log")
"""Those whose exponent a theorem speaks of."""
FORMULAS = {
    "power": "c x^-a",
    "power_floor": "c x^-a + floor",
    "power_log": "c x^-a (log x)^b",
    "exponential": "c exp(-a x)",
    "log_linear": "c (1 - a log x)",
}
LOG_REACH = 100.0
"""Bound on a log(x_max / x_min) in power_floor, where the points may leave the exponent open: 43 decades of y."""
LOG_LARGEST = 500.0
"""Bound on a |log x| there, so that c stays a float when the x lie close together and far from 1."""
LOG_FLOAT = 300.0
"""Bound on a log(x_max / x_min) whatever the points: the square of exp of it is still a float."""
STEEPEST = 1e6
"""Bound on log_linear's exponent where positivity sets none (rising y, all x above 1: y = c log x is its limit)."""
PARALLEL = 1e4
"""power_log is left out where log x and log log x are this near to parallel (condition number): depths 2 to 21 give 92,
12 to 31 give 1,900, 102 to 121 give 150,000, and exponents in the hundreds."""


@dataclass(frozen=True)
class Points:
    """C curves through the same x, gathered by x: least squares sees means and masses, `within` is all the rest."""

    x_G: Array
    count_G: Array
    group_N: np.ndarray[tuple[int], np.dtype[np.int64]]
    """The group of each point, rising."""
    mean_GC: Array
    """Of log y."""
    deviation_NC: Array
    """log y minus its group's mean, rising within a group."""
    weight_GC: Array
    """Of one value, its mean over the points 1."""

    @property
    def mass_GC(self) -> Array:
        """Weight of a group's mean."""
        return self.count_G[:, None] * self.weight_GC

    @property
    def within_C(self) -> Array:
        """Weighted squares around the group means: the same for every curve."""
        return np.asarray((self.deviation_NC**2 * self.weight_GC[self.group_N]).sum(0))

    @property
    def num_points(self) -> int:
        """N."""
        return len(self.group_N)


@dataclass(frozen=True)
class Model:
    """log y = log c + shape(theta) on one design; starts and bounds a curve."""

    name: str
    shape: Shape
    basis_GP: Array | None
    """Of a shape linear in theta; null otherwise."""
    starts_SPC: Array
    lower_PC: Array
    upper_PC: Array
    ref_C: Array
    """log x at which power_floor measures its floor."""


def make_model(name: str, points: Points) -> Model | None:
    """Return the model on these points; null where they have too few distinct x, or an x it is not defined at."""
    if name != "power" and NUM_PARAMETERS[name] >= len(points.x_G):
        return None
    log_x_G = np.log(points.x_G)
    if name == "power":
        return _linear(name, -log_x_G[:, None], points)
    if name == "exponential":
        return _linear(name, -points.x_G[:, None], points)
    if name == "power_log":
        if points.x_G[0] <= 1:
            return None  # log log x
        basis_GP = np.stack([-log_x_G, np.log(log_x_G)], axis=1)
        return None if _parallel(basis_GP) else _linear(name, basis_GP, points)
    return _power_floor(points) if name == "power_floor" else _log_linear(points)


def _parallel(basis_GP: Array) -> bool:
    centred_GP = basis_GP - basis_GP.mean(0)
    unit_GP = centred_GP / np.sqrt((centred_GP**2).sum(0))
    return bool(np.linalg.cond(unit_GP.T @ unit_GP) > PARALLEL)


def _linear(name: str, basis_GP: Array, points: Points) -> Model:
    basis_PG1 = basis_GP.T[..., None]

    def shape(theta_PR: Array, ref_R: Array) -> tuple[Array, Array]:
        return basis_GP @ theta_PR, np.broadcast_to(basis_PG1, (*basis_PG1.shape[:2], len(ref_R)))

    infinite_PC = np.full((basis_GP.shape[1], points.mean_GC.shape[1]), np.inf)
    ref_C = np.zeros(points.mean_GC.shape[1])
    return Model(name, shape, basis_GP, np.zeros_like(infinite_PC)[None], -infinite_PC, infinite_PC, ref_C)


def _power_floor(points: Points) -> Model:
    """y = c (x^-a + t x_ref^-a), theta = (a, tau): t is tau up to 1 and exp(tau - 1) above.

    x_ref is where the power law is lowest: t is the floor in units of its last value. Linear at zero: the squares keep
    a slope there, so a fit can stop at no floor and leave it again (log t could do neither). Exponential above: where
    only the first x lie above the floor, log t rises with a along a straight valley.
    """
    log_x_G = np.log(points.x_G)
    span, largest = log_x_G[-1] - log_x_G[0], np.abs(log_x_G).max()
    slope_C = power_slope(points)
    ref_C = np.where(slope_C >= 0, log_x_G[-1], log_x_G[0])

    def shape(theta_PR: Array, ref_R: Array) -> tuple[Array, Array]:
        a_R, tau_R = theta_PR
        v_GR = ref_R - log_x_G[:, None]
        power_GR = np.exp(a_R * v_GR)
        t_R, slope_R = floor_ratio(tau_R)
        sum_GR = power_GR + t_R
        jacobian_PGR = np.empty((2, *sum_GR.shape))
        np.divide(power_GR * v_GR, sum_GR, out=jacobian_PGR[0])
        np.divide(slope_R, sum_GR, out=jacobian_PGR[1])
        return np.log(sum_GR) - a_R * ref_R, jacobian_PGR

    # the power law first; then ever steeper ones that meet their floor at 0.4 of the way back from x_ref
    steepness_C = np.copysign(np.maximum(np.abs(slope_C), 0.1 / span), slope_C)
    starts = [np.stack([slope_C, np.zeros_like(slope_C)])]
    for k in (1, 2, 4, 8):
        starts.append(np.stack([k * steepness_C, 1 + 0.4 * k * np.abs(steepness_C) * span]))
    # the power law itself is always inside, but for one through more than 130 decades
    steepest_C = np.maximum(min(LOG_REACH / span, LOG_LARGEST / largest), 2 * np.abs(slope_C))
    steepest_C = np.minimum(steepest_C, LOG_FLOAT / span)
    lower_PC = np.stack([-steepest_C, np.zeros_like(slope_C)])
    upper_PC = np.stack([steepest_C, np.full_like(slope_C, 1 + LOG_REACH)])
    return Model("power_floor", shape, None, np.clip(starts, lower_PC, upper_PC), lower_PC, upper_PC, ref_C)


def _log_linear(points: Points) -> Model:
    """log y = log c + log(1 - a log x), theta = (a), positive at each x of the data (and at 1, where it is c)."""
    log_x_G = np.log(points.x_G)

    def shape(theta_PR: Array, ref_R: Array) -> tuple[Array, Array]:
        value_GR = 1 - theta_PR * log_x_G[:, None]
        return np.log(value_GR), (-log_x_G[:, None] / value_GR)[None]

    inside = 1 - 1e-9
    lower = inside / log_x_G[0] if log_x_G[0] < 0 else -STEEPEST
    upper = inside / log_x_G[-1] if log_x_G[-1] > 0 else STEEPEST
    bounds = [bound for bound in (lower, upper) if abs(bound) < STEEPEST]
    slope_C = power_slope(points)
    starts = [slope_C, *(np.full_like(slope_C, share * bound) for bound in bounds for share in (0.5, 0.99))]
    lower_PC, upper_PC = np.full((1, len(slope_C)), lower), np.full((1, len(slope_C)), upper)
    starts_SPC = np.clip(np.stack(starts)[:, None], lower_PC, upper_PC)
    return Model("log_linear", shape, None, starts_SPC, lower_PC, upper_PC, np.zeros_like(slope_C))


def power_slope(points: Points) -> Array:
    """Return the power law's exponent, [C]."""
    share_GC = points.mass_GC / points.mass_GC.sum(0)
    log_x_G = np.log(points.x_G)
    centred_GC = log_x_G[:, None] - log_x_G @ share_GC
    return np.asarray(-(share_GC * centred_GC * points.mean_GC).sum(0) / (share_GC * centred_GC**2).sum(0))


def floor_ratio(tau: Array) -> tuple[Array, Array]:
    """Return power_floor's t, the floor in units of the power law's last value, and its derivative by tau."""
    slope = np.exp(np.maximum(tau, 1.0) - 1)
    return np.minimum(tau, 1.0) * slope, slope


def log_floor(theta_PR: Array, level_R: Array, ref_R: Array) -> Array:
    """Return the log of power_floor's floor, minus infinity where it has none."""
    with np.errstate(divide="ignore"):
        return np.asarray(level_R - theta_PR[0] * ref_R + np.log(floor_ratio(theta_PR[1])[0]))


def log_x_at(model: Model, theta_PR: Array, level_R: Array, ref_R: Array, target: float) -> Array:
    """Return log x where each row's curve meets the target, infinite where it never does at growing x."""
    a_R, wanted = theta_PR[0], np.log(target)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if model.name == "power":
            return _never_unless(a_R > 0, (level_R - wanted) / a_R)
        if model.name == "exponential":
            x_R = (level_R - wanted) / a_R
            return _never_unless((a_R > 0) & (x_R > 0), np.log(x_R))
        if model.name == "log_linear":
            return _never_unless(a_R > 0, (1 - np.exp(wanted - level_R)) / a_R)
        if model.name == "power_floor":
            share_R = np.exp(log_floor(theta_PR, level_R, ref_R) - wanted)
            left_R = wanted + np.log1p(-np.minimum(share_R, 1.0))
            return _never_unless((a_R > 0) & (share_R < 1), (level_R - left_R) / a_R)
        return _power_log_at(a_R, theta_PR[1], level_R - wanted)


def _never_unless(meets_R: Mask, log_x_R: Array) -> Array:
    return np.where(meets_R, log_x_R, np.inf)


def _power_log_at(a_R: Array, b_R: Array, drop_R: Array) -> Array:
    """Solve drop - a v + b log v = 0 for v = log x on the branch that falls, by bisection."""
    falls_R = a_R > 0
    low_R = np.where(falls_R, np.maximum(b_R / np.where(falls_R, a_R, 1.0), 1e-12), 1.0)
    high_R = np.full_like(low_R, 1e4)

    def above(v_R: Array) -> Mask:
        return np.asarray(drop_R - a_R * v_R + b_R * np.log(v_R) > 0, dtype=np.bool_)

    meets_R = falls_R & above(low_R) & ~above(high_R)
    for _ in range(80):
        middle_R = (low_R + high_R) / 2
        over_R = above(middle_R)
        low_R, high_R = np.where(over_R, middle_R, low_R), np.where(over_R, high_R, middle_R)
    return _never_unless(meets_R, low_R)
