"""How a measurement falls with depth: four curves, fitted by least squares on log y, so that AICc can compare them.

Shapes: N points, G groups (the distinct x, rising), R rows fitted at once (resamples, or starting points), P shape
parameters of a curve (all but its prefactor; the first is the exponent), S starting points.
Sources: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 12, 13; Burnham and Anderson, Model
Selection and Multimodel Inference (2002), section 2.4 (AICc) and 2.9 (weights); Golub and Pereyra (1973) (profiling c).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

MODELS = ("power", "power_floor", "exponential", "log_linear")
NUM_PARAMETERS = {"power": 2, "power_floor": 3, "exponential": 2, "log_linear": 2}
COVERAGE = 0.95

ROUNDING = 1e-12
"""A root mean square in log space below this is rounding: two curves that both hit the points this well are equal."""
MAX_STEPS = 100
"""Of Levenberg-Marquardt; a row takes 5 to 20 unless the points leave the exponent open."""
TOLERANCE = 1e-11
"""A row is done when its step moves the curve by less than this, root mean square in log space."""
TOLERANCE_RESAMPLED = 1e-3
"""The same for resamples, as a share of the spread between them: ten times finer than 1000 of them can tell."""
LOG_REACH = 100.0
"""Bound on a log(x_max / x_min) in power_floor, where the points may leave the exponent open: 43 decades of y."""
LOG_LARGEST = 500.0
"""Bound on a |log x| there, so that c stays a float when the x lie close together and far from 1."""
STEEPEST = 1e6
"""Bound on log_linear's exponent where positivity sets none (rising y, all x above 1: y = c log x is its limit)."""


class FitError(ValueError):
    """The points can't be fitted: the message says what was given and what is needed."""


@dataclass(frozen=True)
class RateFit:
    """One model fitted to one curve; the field names are columns of the fits table."""

    model: str
    """One of MODELS."""
    exponent: float
    """a in y = c x^-a, c x^-a + floor, c exp(-a x), c (1 - a log x): positive when y falls with x."""
    stderr: float | None
    """Least-squares standard error of the exponent; null without a degree of freedom left, or when it is left open."""
    ci_low: float | None
    ci_high: float | None
    """95 % interval of the exponent."""
    ci_method: str | None
    """bootstrap (over the values that share one x), or t where no x has two values."""
    prefactor: float
    """c; infinite or zero where it lies outside the range of a float."""
    floor: float | None
    """Of power_floor, >= 0; null for the others."""
    r2: float | None
    """Share of the variance of log y that the curve explains; null when y is constant."""
    aicc: float | None
    """Up to a constant of the points; the noise's variance counts as a parameter; null with too few points."""
    weight: float | None
    """Akaike weight among the models fitted to the same points; null where aicc is."""
    n_points: int


@dataclass(frozen=True)
class _Groups:
    """Points gathered by x. A curve's least squares sees the group means alone: within_squares is the same for all."""

    x_G: Array
    mean_G: Array  # of log y
    count_G: Array
    deviations: list[Array]  # log y - mean, one array a group
    within_squares: float


@dataclass(frozen=True)
class _Curve:
    """log y = log c + shape(theta): what a model adds to the shared least squares."""

    shape: Callable[[Array], tuple[Array, Array]]
    """theta [R, P] -> shape [R, G] and its Jacobian [R, G, P], the latter up to a constant over the groups."""
    starts_SP: Array
    lower_P: Array
    upper_P: Array


def fit_rates(
    x_N: npt.ArrayLike,
    y_N: npt.ArrayLike,
    *,
    models: Sequence[str] = MODELS,
    num_resamples: int = 1000,
    seed: int = 0,
) -> list[RateFit]:
    """Fit every model that has fewer parameters than there are distinct x (power always), in the order asked for.

    x_N, y_N: [N], positive; the order of the points is of no account. The noise is taken as multiplicative.
    Raises FitError for fewer than two distinct x, values that are not positive and finite, lengths that differ, a model
    that is not in MODELS, fewer than one resample.
    """
    x_N, y_N = np.asarray(x_N, dtype=np.float64), np.asarray(y_N, dtype=np.float64)
    _check(x_N, y_N, models, num_resamples)
    groups = _gather(x_N, y_N)
    repeated = bool((groups.count_G > 1).any())
    # one set of resamples for all models: their intervals differ by the model, never by luck
    resampled_RG = _resample_means(groups, num_resamples, np.random.default_rng(seed)) if repeated else None
    fitted = [m for m in models if m == "power" or NUM_PARAMETERS[m] < len(groups.x_G)]
    return _with_weights([_fit(model, groups, resampled_RG) for model in fitted])


def predict(fit: RateFit, x_N: npt.ArrayLike) -> Array:
    """Return the fitted curve's y at x.

    x_N: any shape, positive; y has the same shape. Beyond the fitted x, log_linear may fall below zero.
    Raises FitError for an x that is not positive and finite.
    """
    x_N = np.asarray(x_N, dtype=np.float64)
    _check_values("x", x_N)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if fit.model == "exponential":
            return np.asarray(fit.prefactor * np.exp(-fit.exponent * x_N))
        if fit.model == "log_linear":
            return np.asarray(fit.prefactor * (1 - fit.exponent * np.log(x_N)))
        return np.asarray(fit.prefactor * x_N**-fit.exponent + (fit.floor or 0.0))


def _check(x_N: Array, y_N: Array, models: Sequence[str], num_resamples: int) -> None:
    unknown = [model for model in models if model not in MODELS]
    if unknown:
        raise FitError(f"unknown models {unknown}; known are {', '.join(MODELS)}")
    if num_resamples < 1:
        raise FitError(f"num_resamples is {num_resamples}; at least 1 is needed")
    if x_N.ndim != 1 or x_N.shape != y_N.shape:
        raise FitError(f"x has shape {x_N.shape}, y has shape {y_N.shape}; two lists of one length are needed")
    _check_values("x", x_N)
    _check_values("y", y_N)
    num_distinct = len(np.unique(x_N))
    if num_distinct < 2:
        raise FitError(f"{len(x_N)} points with {num_distinct} distinct x; at least 2 distinct x are needed for a rate")


def _check_values(name: str, values_N: Array) -> None:
    bad = values_N[~(np.isfinite(values_N) & (values_N > 0))]
    if len(bad):
        raise FitError(
            f"{name} has {len(bad)} values out of {values_N.size} that can't be fitted, the first is {bad[0]}; all "
            "must be finite and above zero (the fit is in log space): leave such points out and say so"
        )


def _gather(x_N: Array, y_N: Array) -> _Groups:
    order_N = np.lexsort((y_N, x_N))  # sums and draws then don't depend on the order of the points
    x_G, first_G, count_G = np.unique(x_N[order_N], return_index=True, return_counts=True)
    parts = np.split(np.log(y_N[order_N]), first_G[1:])
    mean_G = np.array([part.mean() for part in parts])
    deviations = [part - mean for part, mean in zip(parts, mean_G, strict=True)]
    within_squares = sum(float(d @ d) for d in deviations)
    return _Groups(x_G, mean_G, count_G.astype(np.float64), deviations, within_squares)


def _resample_means(groups: _Groups, num_resamples: int, rng: np.random.Generator) -> Array:
    """Draw each group's mean anew, [R, G]: its values are resampled among themselves, with replacement."""
    # m values drawn from m have (m-1)/m of the unbiased variance: at three seeds the plain bootstrap would shrink the
    # interval by a fifth. Deviations stretched by sqrt(m/(m-1)) give the group's mean its unbiased variance s^2/m.
    pools = [d * math.sqrt(len(d) / (len(d) - 1)) if len(d) > 1 else d for d in groups.deviations]
    # a lone value shows no spread of its own, which is not the same as having none: it borrows that of the others
    lone = np.concatenate([pool for pool in pools if len(pool) > 1])
    means_RG = np.empty((num_resamples, len(pools)))
    for g, pool in enumerate(pools):
        source = pool if len(pool) > 1 else lone
        draws_RM = rng.integers(len(source), size=(num_resamples, len(pool)))
        means_RG[:, g] = groups.mean_G[g] + source[draws_RM].mean(1)
    return means_RG


def _fit(model: str, groups: _Groups, resampled_RG: Array | None) -> RateFit:
    curve = _curve(model, groups)
    theta_P = _best_start(curve, groups)
    level_R, residual_RG, jacobian_RGP = _residuals(curve, theta_P[None], groups.mean_G[None], groups.count_G)
    level, exponent = float(level_R[0]), float(theta_P[0])

    num_points, num_parameters = int(groups.count_G.sum()), NUM_PARAMETERS[model]
    squares = groups.within_squares + float(residual_RG[0] ** 2 @ groups.count_G)
    free = num_points - num_parameters
    stderr = _stderr(jacobian_RGP[0], groups.count_G, squares / free) if free > 0 else None
    if resampled_RG is None:
        low, high, method = _t_interval(exponent, stderr, free)
    else:
        starts_RP = np.tile(theta_P, (len(resampled_RG), 1))
        tolerance = max(TOLERANCE, TOLERANCE_RESAMPLED * float((resampled_RG - groups.mean_G).std()))
        theta_RP = _least_squares(curve, starts_RP, resampled_RG, groups.count_G, tolerance)
        tail = _expanded_tail(num_points - len(groups.x_G))
        low, high = (float(q) for q in np.quantile(theta_RP[:, 0], [tail, 1 - tail]))
        method = "bootstrap"
    return RateFit(
        model=model,
        exponent=exponent,
        stderr=stderr,
        ci_low=low,
        ci_high=high,
        ci_method=method,
        prefactor=_exp(level),
        floor=_floor(theta_P, level, groups) if model == "power_floor" else None,
        r2=_r2(squares, groups),
        aicc=_aicc(squares, num_points, num_parameters + 1),
        weight=None,
        n_points=num_points,
    )


# The four curves


def _curve(model: str, groups: _Groups) -> _Curve:
    if model == "power":
        return _line(np.log(groups.x_G))
    if model == "exponential":
        return _line(groups.x_G)
    return _power_floor(groups) if model == "power_floor" else _log_linear(groups)


def _line(u_G: Array) -> _Curve:
    """log y = log c - a u, theta = (a): ordinary least squares, which the first steps solve to rounding."""

    def shape(theta_RP: Array) -> tuple[Array, Array]:
        shape_RG = -theta_RP * u_G
        return shape_RG, np.broadcast_to(-u_G[:, None], (*shape_RG.shape, 1))

    return _Curve(shape, np.zeros((1, 1)), np.array([-np.inf]), np.array([np.inf]))


def _power_floor(groups: _Groups) -> _Curve:
    """y = c (x^-a + t x_ref^-a), theta = (a, tau): t is tau up to 1 and exp(tau - 1) above.

    x_ref is where the power law is lowest: t is the floor in units of its last value. Linear at zero: the squares keep
    a slope there, so a fit can stop at no floor and leave it again (log t could do neither). Exponential above: where
    only the first x lie above the floor, log t rises with a along a straight valley.
    """
    log_x_G = np.log(groups.x_G)
    slope, log_x_ref = _power_slope(groups), _log_x_ref(groups)
    span = log_x_G[-1] - log_x_G[0]
    v_G = log_x_G - log_x_ref

    def shape(theta_RP: Array) -> tuple[Array, Array]:
        a_R1, tau_R1 = theta_RP[:, :1], theta_RP[:, 1:]
        shape_RG = np.logaddexp(-a_R1 * v_G, _log_t(tau_R1))
        by_a_RG = -v_G * np.exp(-a_R1 * v_G - shape_RG)
        by_tau_RG = np.exp(np.maximum(tau_R1 - 1, 0.0) - shape_RG)
        return shape_RG - a_R1 * log_x_ref, np.stack([by_a_RG, by_tau_RG], axis=-1)

    # the power law first; then ever steeper ones that meet their floor at 0.4 of the way back from x_ref
    steepness = math.copysign(max(abs(slope), 0.1 / span), slope)
    starts = [(slope, 0.0), *((k * steepness, 1 + 0.4 * k * abs(steepness) * span) for k in (1, 2, 4, 8))]
    # the power law itself is always inside
    steepest = max(min(LOG_REACH / span, LOG_LARGEST / np.abs(log_x_G).max()), 2 * abs(slope))
    lower_P, upper_P = np.array([-steepest, 0.0]), np.array([steepest, 1 + LOG_REACH])
    return _Curve(shape, np.clip(starts, lower_P, upper_P), lower_P, upper_P)


def _log_linear(groups: _Groups) -> _Curve:
    """log y = log c + log(1 - a log x), theta = (a), positive at each x of the data (and at 1, where it is c)."""
    log_x_G = np.log(groups.x_G)

    def shape(theta_RP: Array) -> tuple[Array, Array]:
        value_RG = 1 - theta_RP * log_x_G
        return np.log(value_RG), (-log_x_G / value_RG)[..., None]

    inside = 1 - 1e-9
    lower = inside / log_x_G[0] if log_x_G[0] < 0 else -STEEPEST
    upper = inside / log_x_G[-1] if log_x_G[-1] > 0 else STEEPEST
    bounds = [bound for bound in (lower, upper) if abs(bound) < STEEPEST]
    starts = np.array([_power_slope(groups), *(share * bound for bound in bounds for share in (0.5, 0.99))])
    return _Curve(shape, np.clip(starts, lower, upper)[:, None], np.array([lower]), np.array([upper]))


def _power_slope(groups: _Groups) -> float:
    share_G = groups.count_G / groups.count_G.sum()
    centred_G = np.log(groups.x_G) - share_G @ np.log(groups.x_G)
    return -float((share_G * centred_G) @ groups.mean_G / (share_G @ centred_G**2))


def _log_x_ref(groups: _Groups) -> float:
    return math.log(groups.x_G[-1] if _power_slope(groups) >= 0 else groups.x_G[0])


def _log_t(tau_R1: Array) -> Array:
    tiny = 1e-300  # stands for no floor: its log is finite
    return np.where(tau_R1 < 1, np.log(np.clip(tau_R1, tiny, 1.0)), tau_R1 - 1)


def _floor(theta_P: Array, log_c: float, groups: _Groups) -> float:
    a, tau = (float(value) for value in theta_P)
    unit = log_c - a * _log_x_ref(groups)
    return tau * _exp(unit) if tau < 1 else _exp(unit + tau - 1)


def _exp(value: float) -> float:
    with np.errstate(over="ignore", under="ignore"):
        return float(np.exp(value))


# Least squares


def _residuals(curve: _Curve, theta_RP: Array, mean_RG: Array, count_G: Array) -> tuple[Array, Array, Array]:
    """Return log c [R], the residuals [R, G] and the shape's Jacobian [R, G, P], both with log c solved for."""
    share_G = count_G / count_G.sum()
    shape_RG, jacobian_RGP = curve.shape(theta_RP)
    level_R = (mean_RG - shape_RG) @ share_G
    centred_RGP = jacobian_RGP - np.einsum("g,rgp->rp", share_G, jacobian_RGP)[:, None]
    return level_R, mean_RG - shape_RG - level_R[:, None], centred_RGP


def _squares(residual_RG: Array, count_G: Array) -> Array:
    return np.asarray(residual_RG**2 @ count_G)


def _best_start(curve: _Curve, groups: _Groups) -> Array:
    means_SG = np.tile(groups.mean_G, (len(curve.starts_SP), 1))
    theta_SP = _least_squares(curve, curve.starts_SP, means_SG, groups.count_G, TOLERANCE)
    squares_S = _squares(_residuals(curve, theta_SP, means_SG, groups.count_G)[1], groups.count_G)
    # the first of equals: power_floor's first start is the power law, so there is no floor unless it helps
    equal_S = squares_S <= squares_S.min() * (1 + 1e-9) + groups.count_G.sum() * ROUNDING**2
    return np.asarray(theta_SP[np.argmax(equal_S)])


def _least_squares(curve: _Curve, theta_RP: Array, mean_RG: Array, count_G: Array, tolerance: float) -> Array:
    """Minimise each row's squares from theta_RP, inside the curve's box: Levenberg-Marquardt, all rows at once."""
    theta_RP = theta_RP.copy()
    damping_R = np.full(len(theta_RP), 1e-6)
    live = np.arange(len(theta_RP))  # the rows not yet done
    for _ in range(MAX_STEPS):
        before_RP = theta_RP[live]
        _, residual_RG, jacobian_RGP = _residuals(curve, before_RP, mean_RG[live], count_G)
        step_RP = _step(curve, before_RP, residual_RG, jacobian_RGP, count_G, damping_R[live])
        after_RP = np.clip(before_RP + step_RP, curve.lower_P, curve.upper_P)
        moved_RG = (jacobian_RGP @ (after_RP - before_RP)[..., None])[..., 0]
        squares_R, promised_R = _squares(residual_RG, count_G), _squares(residual_RG - moved_RG, count_G)
        after_R = _squares(_residuals(curve, after_RP, mean_RG[live], count_G)[1], count_G)
        better_R = after_R <= squares_R * (1 + 1e-12)  # rounding must not turn the last steps away
        theta_RP[live] = np.where(better_R[:, None], after_RP, before_RP)
        # a step that gained much less than promised went too far, and without more damping so would the next
        gain_R = (squares_R - after_R) / np.maximum(squares_R - promised_R, 1e-100)
        factor_R = np.select([~better_R, gain_R < 0.25, gain_R < 0.75], [30.0, 4.0, 1.0], 0.1)
        damping_R[live] = np.clip(damping_R[live] * factor_R, 1e-9, 1e15)
        # steps below 1e-8 of the residuals change the squares by less than their rounding
        live = live[_squares(moved_RG, count_G) > tolerance**2 * count_G.sum() + 1e-16 * squares_R]
        if not len(live):
            break
    return theta_RP


def _step(
    curve: _Curve, theta_RP: Array, residual_RG: Array, jacobian_RGP: Array, count_G: Array, damping_R: Array
) -> Array:
    """Return the damped step [R, P]."""
    weighted_RPG = np.swapaxes(jacobian_RGP * count_G[:, None], 1, 2)
    gradient_RP = (weighted_RPG @ residual_RG[..., None])[..., 0]
    normal_RPP = weighted_RPG @ jacobian_RGP
    diagonal_RP = np.diagonal(normal_RPP, axis1=1, axis2=2).copy()
    # a parameter at its bound that wants to leave the box stays, and the others move as if it were known
    pinned_RP = (theta_RP <= curve.lower_P) & (gradient_RP < 0) | (theta_RP >= curve.upper_P) & (gradient_RP > 0)
    free_RP = ~pinned_RP
    normal_RPP = normal_RPP * (free_RP[:, :, None] & free_RP[:, None, :])
    # the share of the trace keeps a parameter without influence (the floor, when a = 0) from running away
    damped_RP = damping_R[:, None] * (diagonal_RP + 1e-6 * diagonal_RP.sum(1, keepdims=True))
    system_RPP = normal_RPP + damped_RP[:, :, None] * np.eye(theta_RP.shape[1])
    return np.linalg.solve(system_RPP, (gradient_RP * free_RP)[..., None])[..., 0]


# What the squares say


def _stderr(jacobian_GP: Array, count_G: Array, variance: float) -> float | None:
    """Return the exponent's standard error; null where the points leave it open (the columns are as good as parallel).

    At a floor of zero the floor still counts as fitted: the error is that of power_floor, above the power law's.
    """
    root_GP = jacobian_GP * np.sqrt(count_G)[:, None]
    length_P = np.sqrt((root_GP**2).sum(0))
    if not length_P.all():
        return None
    unit_GP = root_GP / length_P
    gram_PP = unit_GP.T @ unit_GP
    if np.linalg.cond(gram_PP) > 1e12:
        return None
    return float(math.sqrt(variance * np.linalg.inv(gram_PP)[0, 0]) / length_P[0])


def _expanded_tail(free: int) -> float:
    """Return the share of resamples beyond each end: Student's quantile read as a normal one (Hesterberg 2015, 5.3).

    A spread estimated from few seeds is uncertain itself: plain 2.5 % tails covered 90 % at three seeds a depth.
    """
    return math.erfc(t_quantile(COVERAGE, free) / math.sqrt(2)) / 2


def _t_interval(exponent: float, stderr: float | None, free: int) -> tuple[float | None, float | None, str | None]:
    if stderr is None:
        return None, None, None
    half = t_quantile(COVERAGE, free) * stderr
    return exponent - half, exponent + half, "t"


def t_quantile(coverage: float, degrees_of_freedom: int) -> float:
    """Return the t with P(|T| <= t) = coverage for Student's T, by bisection on the angle atan(t / sqrt(nu)).

    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4: a finite sum of positive terms for whole degrees of freedom.
    """
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _t_probability(middle, degrees_of_freedom) < coverage else (low, middle)
    return math.sqrt(degrees_of_freedom) * math.tan(low)


def _t_probability(angle: float, degrees_of_freedom: int) -> float:
    """P(|T| <= sqrt(nu) tan(angle))."""
    odd, cos = degrees_of_freedom % 2, math.cos(angle)
    term, total = (cos, 0.0) if odd else (1.0, 0.0)
    for k in range(2 + odd, degrees_of_freedom + 1, 2):
        total += term
        term *= cos**2 * (k - 1) / k
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def _r2(squares: float, groups: _Groups) -> float | None:
    num_points = groups.count_G.sum()
    grand_mean = groups.count_G @ groups.mean_G / num_points
    total = groups.within_squares + float(_squares(groups.mean_G - grand_mean, groups.count_G))
    return 1 - squares / total if total > num_points * ROUNDING**2 else None


def _aicc(squares: float, num_points: int, k: int) -> float | None:
    if num_points - k - 1 <= 0:
        return None
    variance = max(squares / num_points, ROUNDING**2)
    return num_points * math.log(variance) + 2 * k + 2 * k * (k + 1) / (num_points - k - 1)


def _with_weights(fits: list[RateFit]) -> list[RateFit]:
    known = [fit.aicc for fit in fits if fit.aicc is not None]
    if not known:
        return fits
    total = sum(math.exp((min(known) - aicc) / 2) for aicc in known)
    return [
        fit if fit.aicc is None else replace(fit, weight=math.exp((min(known) - fit.aicc) / 2) / total) for fit in fits
    ]
