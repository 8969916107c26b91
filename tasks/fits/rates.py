"""How a measurement falls with depth: curves fitted by least squares on log y of every seed, with their uncertainty.

Shapes: C curves on one design (the same x), N points, G groups (the distinct x, rising), B resamples, P shape parameters.
Curves come last, resamples after them.
Sources: Efron and Tibshirani, An Introduction to the Bootstrap (1993); Burnham and Anderson, Model Selection and
Multimodel Inference (2002), section 2.4 (AICc) and 2.9 (weights); Draper and Smith, Applied Regression Analysis (1998),
2.1 (lack of fit) and 14 (common slopes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.intervals import (
    WEIGHTS,
    Profile,
    Resampling,
    acceleration,
    bca_interval,
    clip_outliers,
    draw,
    effective_freedom,
    f_tail,
    spread_weights,
    t_quantile,
)
from depthrate.tasks.fits.least_squares import (
    BLOCK_ROWS,
    Array,
    in_threads,
    influence,
    minimise,
    residuals,
    squares_left,
    sum_of_squares,
)
from depthrate.tasks.fits.models import MODELS, NUM_PARAMETERS, POWERS, Model, Points, log_floor, log_x_at, make_model

__all__ = ["MODELS", "WEIGHTS", "CommonFit", "Cutoff", "FitError", "RateFit", "common_exponent", "cutoff", "fit_many"]
__all__ += ["fit_rates", "predict", "sensitivity"]

ROUNDING = 1e-12
"""A root mean square in log space below this is rounding: two curves that both hit the points this well are equal."""
TOLERANCE = 1e-11
"""A row is done when its step moves the curve by less than this, root mean square in log space."""
TOLERANCE_RESAMPLED = 1e-3
"""The same for resamples, as a share of the spread between them: ten times finer than 1000 of them can tell."""
NUM_FOR_SPREAD = 100
"""Resamples that spread is taken from."""
SMALLEST_CUT = 4
"""Distinct x that the lower cut-off leaves at least."""
CUT_LEVEL = 0.05
"""The lower cut-off is the smallest x from which on the lack-of-fit test gives at least this p-value."""


class FitError(ValueError):
    """The points can't be fitted: the message says what was given and what is needed."""


@dataclass(frozen=True)
class RateFit:
    """One model fitted to one curve; the field names are columns of the fits table."""

    model: str
    """One of MODELS."""
    exponent: float
    """a in y = c x^-a, c x^-a + floor, c x^-a (log x)^b, c exp(-a x), c (1 - a log x): positive when y falls with x."""
    stderr: float | None
    """Least-squares standard error of the exponent; null without a degree of freedom left, or when it is left open."""
    ci_low: float | None
    ci_high: float | None
    """95 % interval of the exponent."""
    ci_method: str | None
    """bca (bootstrap over the values that share one x), or t where no x has two values."""
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
    log_power: float | None = None
    """b of power_log; null for the others."""
    profile_low: float | None = None
    profile_high: float | None = None
    """95 % interval of the exponent by profile likelihood (F test); an end is null where the points leave it open. It takes
    the noise to be of one size at all x, after the weights: where it is not, use `weights: spread` or ci_low, ci_high."""
    p_half: float | None = None
    p_one: float | None = None
    """p-values of a = 1/2 and a = 1, two-sided, by the same test with the same assumption; null for models without such a
    theory."""
    x_at_target: float | None = None
    x_at_low: float | None = None
    x_at_high: float | None = None
    """The x at which the curve meets the target asked for, with a 95 % interval; null where it never does."""


def fit_rates(
    x_N: npt.ArrayLike,
    y_N: npt.ArrayLike,
    *,
    models: Sequence[str] = MODELS,
    weights: str = "equal",
    num_resamples: int = 1000,
    seed: int = 0,
    target: float | None = None,
) -> list[RateFit]:
    """Fit every model that has fewer parameters than there are distinct x (power always), in the order asked for.

    x_N, y_N: [N], positive; the order of the points is of no account. The noise is taken as multiplicative.
    Raises FitError: see `fit_many`.
    """
    y_N = np.asarray(y_N, dtype=np.float64)
    options = {"weights": weights, "num_resamples": num_resamples, "seed": seed, "target": target}
    return fit_many(x_N, y_N[None] if y_N.ndim == 1 else y_N, models=models, **options)[0]  # type: ignore[arg-type]


def fit_many(
    x_N: npt.ArrayLike,
    y_CN: npt.ArrayLike,
    *,
    models: Sequence[str] = MODELS,
    weights: str = "equal",
    num_resamples: int = 1000,
    seed: int = 0,
    target: float | None = None,
) -> list[list[RateFit]]:
    """Fit many curves measured at the same x at once; every curve's fits are those it would have alone.

    x_N: [N]; y_CN: [C, N]; positive. weights: equal; spread (the variance follows a power of x, fitted to the
    spread at each x); robust (values far from their group's median are pulled in). target: y for x_at_target.
    power_log is left out where an x is not above 1, or the x lie too close together to tell log x from log log x.
    Raises FitError for fewer than two distinct x, values that are not positive and finite, lengths that differ, a model
    or weighting that is not known, fewer than one resample.
    """
    x_N, y_CN = np.asarray(x_N, dtype=np.float64), np.asarray(y_CN, dtype=np.float64)
    _check(x_N, y_CN, models, weights, num_resamples, target)
    points = _gather(x_N, y_CN, weights)
    resampling = draw(points, num_resamples, seed)
    made = [model for model in (make_model(name, points) for name in models) if model is not None]
    fitted = [_fit(model, points, resampling, int(weights == "spread"), target) for model in made]
    return [_with_weights(list(fits)) for fits in zip(*fitted, strict=True)]


def predict(fit: RateFit, x_N: npt.ArrayLike) -> Array:
    """Return the fitted curve's y at x.

    x_N: any shape, positive; y has the same shape. Beyond the fitted x, log_linear may fall below zero; power_log is
    NaN below x = 1.
    Raises FitError for an x that is not positive and finite.
    """
    x_N = np.asarray(x_N, dtype=np.float64)
    _check_values("x", x_N)
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        if fit.model == "exponential":
            return np.asarray(fit.prefactor * np.exp(-fit.exponent * x_N))
        if fit.model == "log_linear":
            return np.asarray(fit.prefactor * (1 - fit.exponent * np.log(x_N)))
        if fit.model == "power_log":
            return np.asarray(fit.prefactor * x_N**-fit.exponent * np.log(x_N) ** (fit.log_power or 0.0))
        return np.asarray(fit.prefactor * x_N**-fit.exponent + (fit.floor or 0.0))


@dataclass(frozen=True)
class Cutoff:
    """From which x on a power law is fitted."""

    x_min: float
    p_lack_of_fit: float | None
    """p-value of the test that the means at the x kept lie on a power law; null without a degree of freedom."""
    passed: bool
    """False where no cut-off passes: then nothing is cut."""


def cutoff(x_N: npt.ArrayLike, y_N: npt.ArrayLike, *, weights: str = "equal") -> Cutoff:
    """Choose the smallest x from which on the power law passes the lack-of-fit F test at 5 %, four distinct x kept.

    Raises FitError: see `fit_many`.
    """
    x_N, y_N = np.asarray(x_N, dtype=np.float64), np.asarray(y_N, dtype=np.float64)
    distinct = np.unique(x_N)
    tests = []
    for x_min in distinct[: max(len(distinct) - SMALLEST_CUT + 1, 1)]:
        p = _lack_of_fit(x_N[x_N >= x_min], y_N[x_N >= x_min], weights)
        tests.append(Cutoff(float(x_min), p, p is not None and p >= CUT_LEVEL))
        if p is None or p >= CUT_LEVEL:
            return tests[-1]
    return tests[0]


def _lack_of_fit(x_N: Array, y_N: Array, weights: str) -> float | None:
    """Compare the scatter of the means around a power law with the scatter of the values around their means."""
    _check(x_N, y_N[None], ("power",), weights, 1, None)
    points = _gather(x_N, y_N[None], weights)
    line, pure = len(points.x_G) - 2, points.num_points - len(points.x_G)
    within = float(points.within_C[0])
    if line < 1 or pure < 1 or within <= points.num_points * ROUNDING**2:
        return None
    around = _squares_of_lines(points)[0] - within
    return float(f_tail((around / line) / (within / pure), line, pure))


def sensitivity(
    x_N: npt.ArrayLike, y_N: npt.ArrayLike, *, weights: str = "equal", num_resamples: int = 1000
) -> list[dict[str, float | int | None]]:
    """Fit the power law without the smallest x, the two smallest, and so on while three are left.

    Returns a row a cut: x_min, exponent, ci_low, ci_high, n_points; the first is the whole.
    """
    x_N, y_N = np.asarray(x_N, dtype=np.float64), np.asarray(y_N, dtype=np.float64)
    distinct = np.unique(x_N)
    rows: list[dict[str, float | int | None]] = []
    for x_min in distinct[: max(len(distinct) - 2, 1)]:
        kept = x_N >= x_min
        (fit,) = fit_rates(x_N[kept], y_N[kept], models=("power",), weights=weights, num_resamples=num_resamples)
        row = {"x_min": float(x_min), "exponent": fit.exponent, "ci_low": fit.ci_low, "ci_high": fit.ci_high}
        rows.append({**row, "n_points": fit.n_points})
    return rows


@dataclass(frozen=True)
class CommonFit:
    """One exponent for several groups, each with its own prefactor, and whether they have one."""

    exponent: float
    ci_low: float
    ci_high: float
    """95 % interval, Student's t."""
    p_common: float
    """p-value of the F test that all groups share the exponent."""
    num_groups: int


def common_exponent(curves: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]], *, weights: str = "equal") -> CommonFit:
    """Fit one power-law exponent to several curves (x, y), with a prefactor each, and test that it is one.

    The noise is taken to be of one size in all groups (after the weights).
    Raises FitError for fewer than two curves, too few points for the test, and what `fit_many` refuses.
    """
    if len(curves) < 2:
        raise FitError(f"a common exponent needs at least 2 curves; given {len(curves)}")
    within = slopes = information = moment = 0.0
    num_points = 0
    for x, y in curves:
        x_N, y_N = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        _check(x_N, y_N[None], ("power",), weights, 1, None)
        points = _gather(x_N, y_N[None], weights)
        mass_G, mean_G = points.mass_GC[:, 0], points.mean_GC[:, 0]
        u_G = np.log(points.x_G) - mass_G @ np.log(points.x_G) / mass_G.sum()
        information += float(mass_G @ u_G**2)
        moment -= float((mass_G * u_G) @ mean_G)
        within += float(_squares_of_lines(points)[0])
        slopes += float(((mass_G * u_G) @ mean_G) ** 2 / (mass_G @ u_G**2))
        num_points += points.num_points
    free = num_points - 2 * len(curves)
    if free < 1:
        raise FitError(f"{num_points} points in {len(curves)} curves leave no degree of freedom for the test")
    exponent = moment / information
    # the squares that a common slope adds to those around each curve's own
    added = max(slopes - moment**2 / information, 0.0)
    q = len(curves) - 1
    scale = max(within / free, ROUNDING**2)
    p_common = float(f_tail(added / q / scale, q, free))
    half = t_quantile(free + q) * math.sqrt(max(within + added, ROUNDING**2) / (free + q) / information)
    return CommonFit(exponent, exponent - half, exponent + half, p_common, len(curves))


# Checking and gathering


def _check(
    x_N: Array, y_CN: Array, models: Sequence[str], weights: str, num_resamples: int, target: float | None
) -> None:
    unknown = [model for model in models if model not in MODELS]
    if unknown:
        raise FitError(f"unknown models {unknown}; known are {', '.join(MODELS)}")
    if weights not in WEIGHTS:
        raise FitError(f"unknown weights {weights!r}; known are {', '.join(WEIGHTS)}")
    if num_resamples < 1:
        raise FitError(f"num_resamples is {num_resamples}; at least 1 is needed")
    if x_N.ndim != 1 or y_CN.ndim != 2 or y_CN.shape[1] != len(x_N):
        raise FitError(f"x has shape {x_N.shape}, y has shape {y_CN.shape[-1:]}; two lists of one length are needed")
    if not len(y_CN):
        raise FitError("there is no curve to fit; give y of at least one")
    _check_values("x", x_N)
    _check_values("y", y_CN)
    if target is not None and not (math.isfinite(target) and target > 0):
        raise FitError(f"target is {target}; it must be finite and above zero")
    num_distinct = len(np.unique(x_N))
    if num_distinct < 2:
        raise FitError(f"{len(x_N)} points with {num_distinct} distinct x; at least 2 distinct x are needed for a rate")


def _check_values(name: str, values: Array) -> None:
    bad = values[~(np.isfinite(values) & (values > 0))]
    if len(bad):
        raise FitError(
            f"{name} has {len(bad)} values out of {values.size} that can't be fitted, the first is {bad[0]}; all "
            "must be finite and above zero (the fit is in log space): leave such points out and say so"
        )


def _gather(x_N: Array, y_CN: Array, weights: str) -> Points:
    order_N = np.argsort(x_N, kind="stable")
    x_G, group_N, count_G = np.unique(x_N[order_N], return_inverse=True, return_counts=True)
    members = [np.flatnonzero(group_N == g) for g in range(len(x_G))]
    # sums and draws then don't depend on the order of the points
    log_y_NC = np.concatenate([np.sort(np.log(y_CN.T[order_N[own]]), axis=0) for own in members])
    if weights == "robust":
        log_y_NC = clip_outliers(log_y_NC, group_N)
    mean_GC = np.stack([log_y_NC[own].mean(0) for own in members])
    deviation_NC = log_y_NC - mean_GC[group_N]
    counts_G = count_G.astype(np.float64)
    weight_GC = np.ones_like(mean_GC)
    if weights == "spread":
        weight_GC = spread_weights(x_G, counts_G, group_N, deviation_NC)
    return Points(x_G, counts_G, group_N, mean_GC, deviation_NC, weight_GC)


# Fitting one model


def _fit(
    model: Model, points: Points, resampling: Resampling | None, extra_parameters: int, target: float | None
) -> list[RateFit]:
    num_points, num_parameters = points.num_points, NUM_PARAMETERS[model.name]
    free = num_points - num_parameters
    theta_PC = _best(model, points)
    mass_GC = points.mass_GC
    level_C, residual_GC, jacobian_PGC = _around(model, points, theta_PC)
    influence_GC = influence(jacobian_PGC, mass_GC)[0]
    squares_C = points.within_C + sum_of_squares(residual_GC, mass_GC)
    exponent_C = theta_PC[0]
    columns: dict[str, Array] = {}
    stderr_C = np.full_like(exponent_C, np.nan)
    if free > 0:
        stderr_C = np.sqrt(squares_C / free * (influence_GC**2 / mass_GC).sum(0))
    columns["stderr"] = stderr_C
    if resampling is not None:
        columns |= _resampled(model, points, resampling, theta_PC, level_C, influence_GC, target)
    elif free > 0:
        half_C = t_quantile(free) * stderr_C
        columns |= {"ci_low": exponent_C - half_C, "ci_high": exponent_C + half_C}
    if free > 0:
        columns |= _profiled(model, points, theta_PC, squares_C, stderr_C, free)
    if target is not None:
        log_x_C = log_x_at(model, theta_PC, level_C, model.ref_C, target)
        columns["x_at_target"] = _exp(log_x_C)
    if model.name == "power_floor":
        columns["floor"] = _exp(log_floor(theta_PC, level_C, model.ref_C))
    if model.name == "power_log":
        columns["log_power"] = theta_PC[1]
    columns |= {"r2": _r2(squares_C, points), "prefactor": _exp(level_C)}
    columns["aicc"] = _aicc(squares_C, num_points, num_parameters + 1 + extra_parameters)
    no_curve = {"ci_low": None, "ci_high": None, "floor": None}
    fits = []
    for c in range(len(exponent_C)):
        row: dict[str, Any] = no_curve | {name: _finite(column_C[c]) for name, column_C in columns.items()}
        no_interval = row["ci_low"] is None and row["ci_high"] is None
        row["ci_method"] = None if no_interval else "t" if resampling is None else "bca"
        row |= {"exponent": float(exponent_C[c]), "prefactor": float(columns["prefactor"][c])}
        fits.append(RateFit(model=model.name, n_points=num_points, weight=None, **row))
    return fits


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _around(model: Model, points: Points, theta_PC: Array) -> tuple[Array, Array, Array]:
    mass_GC = points.mass_GC
    return residuals(model.shape, theta_PC, model.ref_C, points.mean_GC, mass_GC / mass_GC.sum(0))


def _best(model: Model, points: Points) -> Array:
    """Return each curve's best shape parameters [P, C]."""
    if model.basis_GP is not None:
        return _linear_solution(model.basis_GP, points.mean_GC[..., None], points.mass_GC)[..., 0]
    num_starts, num_parameters, num_curves = model.starts_SPC.shape
    curve_R = np.tile(np.arange(num_curves), num_starts)
    ref_R, mean_GR, mass_GR = model.ref_C[curve_R], points.mean_GC[:, curve_R], points.mass_GC[:, curve_R]
    theta_PR = minimise(
        model.shape,
        np.concatenate(list(model.starts_SPC), axis=1),
        ref_R,
        mean_GR[..., None],
        mass_GR,
        model.lower_PC[:, curve_R],
        model.upper_PC[:, curve_R],
        np.full(len(curve_R), TOLERANCE),
    )[..., 0]
    squares_SC = squares_left(model.shape, theta_PR, ref_R, mean_GR, mass_GR).reshape(num_starts, num_curves)
    # the first of equals: power_floor's first start is the power law, so there is no floor unless it helps
    equal_SC = squares_SC <= squares_SC.min(0) * (1 + 1e-9) + points.num_points * ROUNDING**2
    theta_PSC = theta_PR.reshape(num_parameters, num_starts, num_curves)
    return theta_PSC[:, equal_SC.argmax(0), np.arange(num_curves)]


def _linear_solution(basis_GP: Array, mean_GCB: Array, mass_GC: Array) -> Array:
    """Return theta [P, C, B] of a shape linear in theta."""
    centred_PGC = basis_GP.T[..., None] - (basis_GP.T @ (mass_GC / mass_GC.sum(0)))[:, None]
    return np.asarray(np.einsum("pgc,gcb->pcb", influence(centred_PGC, mass_GC), mean_GCB))


def _squares_of_lines(points: Points) -> Array:
    """Return the squares [C] around each curve's power law, those around the group means included."""
    model = make_model("power", points)
    assert model is not None
    _, residual_GC, _ = _around(model, points, _best(model, points))
    return points.within_C + sum_of_squares(residual_GC, points.mass_GC)


def _resampled(
    model: Model,
    points: Points,
    resampling: Resampling,
    theta_PC: Array,
    level_C: Array,
    influence_GC: Array,
    target: float | None,
) -> dict[str, Array]:
    """Return the intervals that the bootstrap gives."""
    num_curves, num_resamples = len(level_C), resampling.shares[0].shape[1]
    acceleration_C, freedom_C = acceleration(influence_GC, points), effective_freedom(influence_GC, points)
    names = ["ci_low", "ci_high"] + (["x_at_low", "x_at_high"] if target is not None else [])
    columns = {name: np.empty(num_curves) for name in names}

    def work(part: slice) -> None:
        mean_GCB = resampling.means(points, part)
        theta_PCB = _refit(model, points, part, theta_PC, mean_GCB)
        ends = bca_interval(theta_PC[0, part], theta_PCB[0], acceleration_C[part], freedom_C[part])
        for name, end_C in zip(("ci_low", "ci_high"), ends, strict=True):  # beyond the box the model has no such curve
            columns[name][part] = np.clip(end_C, model.lower_PC[0, part], model.upper_PC[0, part])
        if target is not None:
            log_x_C = log_x_at(model, theta_PC[:, part], level_C[part], model.ref_C[part], target)
            log_x_CB = _resampled_x_at(model, points, part, theta_PCB, mean_GCB, target)
            low_C, high_C = bca_interval(log_x_C, log_x_CB, np.zeros_like(log_x_C), freedom_C[part])
            columns["x_at_low"][part], columns["x_at_high"][part] = _exp(low_C), _exp(high_C)

    at_once = max(1, BLOCK_ROWS // num_resamples)
    in_threads(work, [slice(first, min(first + at_once, num_curves)) for first in range(0, num_curves, at_once)])
    return columns


def _refit(model: Model, points: Points, part: slice, theta_PC: Array, mean_GCB: Array) -> Array:
    """Return the shape parameters [P, C, B] of resampled means."""
    if model.basis_GP is not None:
        return _linear_solution(model.basis_GP, mean_GCB, points.mass_GC[:, part])
    spread_C = (mean_GCB[..., :NUM_FOR_SPREAD] - points.mean_GC[:, part, None]).std((0, 2))
    tolerance_C = np.maximum(TOLERANCE, TOLERANCE_RESAMPLED * spread_C)
    theta_PC, lower_PC, upper_PC = theta_PC[:, part], model.lower_PC[:, part], model.upper_PC[:, part]
    return minimise(
        model.shape, theta_PC, model.ref_C[part], mean_GCB, points.mass_GC[:, part], lower_PC, upper_PC, tolerance_C
    )


def _resampled_x_at(
    model: Model, points: Points, part: slice, theta_PCB: Array, mean_GCB: Array, target: float
) -> Array:
    num_groups, num_curves, num_resamples = mean_GCB.shape
    curve_R = np.repeat(np.arange(points.mean_GC.shape[1])[part], num_resamples)
    theta_PR, mass_GR = theta_PCB.reshape(-1, len(curve_R)), points.mass_GC[:, curve_R]
    mean_GR, ref_R = mean_GCB.reshape(num_groups, -1), model.ref_C[curve_R]
    level_R, _, _ = residuals(model.shape, theta_PR, ref_R, mean_GR, mass_GR / mass_GR.sum(0))
    return log_x_at(model, theta_PR, level_R, ref_R, target).reshape(num_curves, num_resamples)


def _profiled(
    model: Model, points: Points, theta_PC: Array, squares_C: Array, stderr_C: Array, free: int
) -> dict[str, Array]:
    """Return the profile likelihood's interval and the p-values of a = 1/2 and a = 1."""
    exponent_C = theta_PC[0]
    columns: dict[str, Array] = {}
    profile = Profile(model, points, theta_PC, squares_C)
    if model.basis_GP is not None:  # the squares are a parabola: Student's t
        half_C = t_quantile(free) * stderr_C
        columns |= {"profile_low": exponent_C - half_C, "profile_high": exponent_C + half_C}
    else:
        columns["profile_low"], columns["profile_high"] = profile.interval(stderr_C, free)
    if model.name not in POWERS:
        return columns
    for name, theory in (("p_half", 0.5), ("p_one", 1.0)):
        if model.basis_GP is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                f_C = ((exponent_C - theory) / stderr_C) ** 2
        else:
            at_C = profile.squares_at(np.full_like(exponent_C, theory), np.arange(len(exponent_C)))
            f_C = (at_C - squares_C) / np.maximum(squares_C / free, ROUNDING**2)
        columns[name] = f_tail(f_C, 1, free)
    return columns


# What the squares say


def _exp(value: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.exp(value))


def _r2(squares_C: Array, points: Points) -> Array:
    grand_C = (points.mass_GC * points.mean_GC).sum(0) / points.mass_GC.sum(0)
    total_C = points.within_C + sum_of_squares(points.mean_GC - grand_C, points.mass_GC)
    varies_C = total_C > points.num_points * ROUNDING**2
    return np.where(varies_C, 1 - squares_C / np.where(varies_C, total_C, 1.0), np.nan)


def _aicc(squares_C: Array, num_points: int, k: int) -> Array:
    if num_points - k - 1 <= 0:
        return np.full_like(squares_C, np.nan)
    variance_C = np.maximum(squares_C / num_points, ROUNDING**2)
    return np.asarray(num_points * np.log(variance_C) + 2 * k + 2 * k * (k + 1) / (num_points - k - 1))


def _with_weights(fits: list[RateFit]) -> list[RateFit]:
    known = [fit.aicc for fit in fits if fit.aicc is not None]
    if not known:
        return fits
    total = sum(math.exp((min(known) - aicc) / 2) for aicc in known)
    return [
        fit if fit.aicc is None else replace(fit, weight=math.exp((min(known) - fit.aicc) / 2) / total) for fit in fits
    ]
