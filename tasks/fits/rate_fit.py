"""One model fitted to many curves: its parameters, their uncertainty, and the resulting rows of the fits table.

Shapes: C curves on one design (the same x), N points, G groups (the distinct x, rising), B resamples, P shape parameters,
S starting points, R rows. Curves come last, resamples after them.
Sources: Efron and Tibshirani, An Introduction to the Bootstrap (1993); Burnham and Anderson, Model Selection and
Multimodel Inference (2002), section 2.4 (AICc).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from depthrate.tasks.fits.bootstrap_and_profile import ProfileLikelihood, Resampling, f_tail, resampled, t_quantile
from depthrate.tasks.fits.least_squares import (
    Array,
    influence,
    linear_solution,
    residuals,
    squares_left,
    sum_of_squares,
)
from depthrate.tasks.fits.levenberg_marquardt import TOLERANCE, minimise
from depthrate.tasks.fits.model import CurveFamily, LinearModel, Mask, Model, exp, log_x_at
from depthrate.tasks.fits.points import EXACT_FIT_RMS, Points
from depthrate.tasks.fits.threads import BLOCK_ROWS, in_threads, parts_of
from depthrate.tasks.fits.whole_seeds import SeedSpread, lack_of_fit, log_x_interval, own_levels, seed_spread

SMALLEST_PART = 256
"""Minimum number of curves per thread. With fewer curves, an additional thread does not pay off."""
ON_BOUND = 1e-6
"""Distance from a bound, as a share of a parameter's size, at which the parameter is on it."""


@dataclass(frozen=True)
class RateFit:
    """One model fitted to one curve. All fields except `others` are columns of the fits table."""

    model: str
    """Model name, a key of MODELS."""
    exponent: float
    """a in y = c x^-a, c x^-a + floor, c x^-a (log x)^b, c exp(-a x), c (1 - a log x). Positive when y falls with x."""
    stderr: float | None
    """Standard error of the exponent: over whole seeds if known, else from least squares. None without a remaining degree
    of freedom, or if the points do not determine the exponent."""
    ci_low: float | None
    ci_high: float | None
    """95 % interval of the exponent. An end is None if the points do not determine it or no interval exists."""
    ci_method: str | None
    """Method: `seeds` (Student's t over whole seeds) or, for independent values, `bca` (bootstrap over the values that
    share one x) or `t` (no x has two values). None without an interval."""
    prefactor: float
    """c. Infinite or zero outside the range of a float."""
    floor: float | None
    """Floor of power_floor, >= 0. None for other models."""
    r2: float | None
    """Share of the variance of the means of log y at each x explained by the curve. None when they are constant."""
    aicc: float | None
    """AICc up to a constant of the points. The noise variance counts as a parameter. None with too few points."""
    weight: float | None
    """Akaike weight among the models fitted to the same points. None without `aicc`."""
    n_points: int
    log_power: float | None = None
    """b of power_log. None for other models."""
    profile_low: float | None = None
    profile_high: float | None = None
    """95 % interval of the exponent by profile likelihood (F test). Assumes independent values with the same variance at
    every x. An end is None if the points do not determine it, both if whole seeds are known."""
    p_half: float | None = None
    p_one: float | None = None
    """Two-sided p-values of a = 1/2 and a = 1: over whole seeds if known, else by the profile. None for models that are
    not a power of x."""
    x_at_target: float | None = None
    x_at_low: float | None = None
    x_at_high: float | None = None
    """x at which the curve meets the requested target, with a 95 % interval. None if it never does. Over whole seeds, only
    straight lines (power, exponential) have the interval."""
    n_seeds: int | None = None
    """Number of whole seeds. None for independent values."""
    seed_spread: float | None = None
    """Standard deviation of the exponent between seeds, noise included. None with fewer than three seeds."""
    p_lack_of_fit: float | None = None
    """p-value of the test against one mean per x. None if the points do not allow it."""
    aicc_break: float | None = None
    """AICc of a power law with a break, the same for all models of a curve. None with too few x or points."""
    others: Mapping[str, float | None] = field(default_factory=dict)
    """Model parameters without a column in the fits table, by name."""

    def parameter(self, name: str) -> float | None:
        """Return a parameter other than c and a, or None if the model does not have it."""
        return self.others.get(name) if name not in _COLUMNS else getattr(self, name)

    def row(self) -> dict[str, Any]:
        """Build the row of the fits table: the columns, then the other parameters by name."""
        return {name: getattr(self, name) for name in _COLUMNS} | dict(self.others)


_COLUMNS = tuple(column.name for column in fields(RateFit) if column.name != "others")


def fit_family(
    family: CurveFamily, points: Points, resampling: Resampling | None, target: float | None
) -> list[RateFit]:
    """Fit a model to each curve, without the weights among models.

    Args:
        family: The model's curves on these points.
        points: The curves, gathered by x.
        resampling: Bootstrap resamples, or None if no x has two values.
        target: Value of y for `x_at_target`.

    Returns:
        One fit per curve.
    """
    free = points.num_points - family.model.num_parameters
    theta_PC = _best(family, points)
    mass_GC = points.mass_GC
    level_C, residual_GC, jacobian_PGC = _around(family, points, theta_PC)
    influence_GC = influence(jacobian_PGC, mass_GC)[0]
    squares_C = points.within_C + sum_of_squares(residual_GC, mass_GC)
    stderr_C = np.full_like(squares_C, np.nan)
    if free > 0:
        stderr_C = np.sqrt(squares_C / free * (influence_GC**2 / mass_GC).sum(0))
    columns = {"exponent": theta_PC[0], "prefactor": exp(level_C), "stderr": stderr_C, "r2": _r2(residual_GC, points)}
    fit = _Fitted(family, points, theta_PC, level_C, residual_GC, jacobian_PGC, influence_GC, squares_C)
    columns["aicc"] = aicc(points, residual_GC, family.model.num_parameters)
    columns["p_lack_of_fit"] = lack_of_fit(
        points, residual_GC, np.where(_on_bound(family, theta_PC)[:, None], 0.0, jacobian_PGC)
    )
    if points.seed_N is not None:
        columns |= _over_seeds(fit, target)
        method = "seeds"
    else:
        columns |= _over_values(fit, resampling, stderr_C, free, target)
        method = "t" if resampling is None else "bca"
    if target is not None:
        columns["x_at_target"] = exp(log_x_at(family, theta_PC, level_C, family.ref_C, target))
    with np.errstate(all="ignore"):
        columns |= family.model.others(theta_PC, level_C, family.ref_C)
    return _rows(family, points, columns, method)


@dataclass(frozen=True)
class _Fitted:
    """A model's curves at the least-squares solution."""

    family: CurveFamily
    points: Points
    theta_PC: Array
    level_C: Array
    residual_GC: Array
    jacobian_PGC: Array
    influence_GC: Array
    """Influence of each group mean on the exponent."""
    squares_C: Array

    @property
    def information_C(self) -> Array:
        """Information about the exponent: 1 over its variance in units of the noise variance."""
        return np.asarray(1 / (self.influence_GC**2 / self.points.mass_GC).sum(0))


def _over_seeds(fit: _Fitted, target: float | None) -> dict[str, Array]:
    """Return the columns estimated over whole seeds, without an interval if there are too few seeds."""
    points, nowhere_C = fit.points, np.full_like(fit.squares_C, np.nan)
    columns = {"stderr": nowhere_C}
    spread = seed_spread(points, fit.jacobian_PGC, fit.residual_GC, fit.influence_GC)
    if spread is None:
        return columns
    variance_C, a_C = spread.variance(fit.influence_GC), fit.theta_PC[0]
    columns |= {"stderr": np.sqrt(variance_C), "seed_spread": np.sqrt(points.num_seeds * variance_C)}
    with np.errstate(divide="ignore", invalid="ignore"):
        unit_C = variance_C * fit.information_C
    if fit.family.basis_GP is not None:
        half_C = spread.t_C * np.sqrt(variance_C)
        columns |= {"ci_low": a_C - half_C, "ci_high": a_C + half_C}
    else:
        columns |= dict(zip(("ci_low", "ci_high"), _profile_ends(fit, unit_C, spread.t_C), strict=True))
    columns |= _p_values(fit, unit_C, spread.freedom_C)
    if target is not None and fit.family.basis_GP is not None and len(fit.theta_PC) == 1:
        columns |= _seeds_x_at(fit, spread, target)
    return columns


def _seeds_x_at(fit: _Fitted, spread: SeedSpread, target: float) -> dict[str, Array]:
    """Return the 95 % interval of the x at which a line meets a target (Fieller's theorem)."""
    basis_GP, model, slope_C = fit.family.basis_GP, fit.family.model, fit.theta_PC[0]
    assert basis_GP is not None and isinstance(model, LinearModel)
    share_GC = fit.points.mass_GC / fit.points.mass_GC.sum(0)
    centre_C = basis_GP[:, 0] @ share_GC
    level_C, log_target = fit.level_C + centre_C * slope_C, float(np.log(target))

    def is_outside(log_x_C: Array) -> Mask:
        gap_C = np.asarray(model.basis(np.exp(log_x_C)))[:, 0] - centre_C
        variance_C = spread.variance(share_GC + gap_C * fit.influence_GC)
        miss_C = level_C + gap_C * slope_C - log_target
        return np.asarray(np.abs(miss_C) > spread.t_C * np.sqrt(variance_C), dtype=np.bool_)

    log_x_C = log_x_at(fit.family, fit.theta_PC, fit.level_C, fit.family.ref_C, target)
    low_C, high_C = log_x_interval(is_outside, log_x_C)
    return {"x_at_low": exp(low_C), "x_at_high": exp(high_C)}


def _over_values(
    fit: _Fitted, resampling: Resampling | None, stderr_C: Array, free: int, target: float | None
) -> dict[str, Array]:
    """Return the columns estimated over independent values."""
    columns: dict[str, Array] = {}
    if resampling is not None:
        columns |= resampled(fit.family, fit.points, resampling, fit.theta_PC, fit.level_C, fit.influence_GC, target)
    elif free > 0:
        half_C = t_quantile(free) * stderr_C
        columns |= {"ci_low": fit.theta_PC[0] - half_C, "ci_high": fit.theta_PC[0] + half_C}
    if free > 0:
        columns |= _profiled(fit, stderr_C, free)
    return columns


def _rows(family: CurveFamily, points: Points, columns: Mapping[str, Array], ci_method: str) -> list[RateFit]:
    fits = []
    for c in range(len(columns["exponent"])):
        row: dict[str, Any] = {"ci_low": None, "ci_high": None, "floor": None}
        row |= {name: float(column_C[c]) if math.isfinite(column_C[c]) else None for name, column_C in columns.items()}
        row |= {name: float(columns[name][c]) for name in ("exponent", "prefactor")}
        row["ci_method"] = None if row["ci_low"] is None and row["ci_high"] is None else ci_method
        row["n_seeds"] = None if points.seed_N is None else points.num_seeds
        others = {name: row.pop(name) for name in [name for name in row if name not in _COLUMNS]}
        fits.append(RateFit(model=family.model.name, n_points=points.num_points, weight=None, others=others, **row))
    return fits


def _around(family: CurveFamily, points: Points, theta_PC: Array) -> tuple[Array, Array, Array]:
    mass_GC = points.mass_GC
    return residuals(family.shape, theta_PC, family.ref_C, points.mean_GC, mass_GC / mass_GC.sum(0))


def squares_around(model: Model, points: Points) -> Array:
    """Return the squares [C] around each curve's fit, including the squares around the group means."""
    family = model.family(points)
    assert family is not None, f"{model.name} has no curve on these points"
    _, residual_GC, _ = _around(family, points, _best(family, points))
    return points.within_C + sum_of_squares(residual_GC, points.mass_GC)


def _best(family: CurveFamily, points: Points) -> Array:
    """Return each curve's best shape parameters [P, C]."""
    if family.basis_GP is not None:
        return linear_solution(family.basis_GP, points.mean_GC[..., None], points.mass_GC)[..., 0]
    num_starts, num_parameters, num_curves = family.starts_SPC.shape
    curve_R = np.tile(np.arange(num_curves), num_starts)
    rows, mean_GR, mass_GR = family.select(curve_R), points.mean_GC[:, curve_R], points.mass_GC[:, curve_R]
    start_PR, tolerance_R = np.concatenate(list(family.starts_SPC), axis=1), np.full(len(curve_R), TOLERANCE)
    theta_PR = minimise(rows, start_PR, mean_GR[..., None], mass_GR, tolerance_R)[..., 0]
    squares_SC = squares_left(family.shape, theta_PR, rows.ref_C, mean_GR, mass_GR).reshape(num_starts, num_curves)
    # Take the first of equals: power_floor starts from the power law, so it has a floor only if that improves the fit.
    equal_SC = squares_SC <= squares_SC.min(0) * (1 + 1e-9) + points.num_points * EXACT_FIT_RMS**2
    theta_PSC = theta_PR.reshape(num_parameters, num_starts, num_curves)
    return theta_PSC[:, equal_SC.argmax(0), np.arange(num_curves)]


def _on_bound(family: CurveFamily, theta_PC: Array) -> Mask:
    """Return which parameters of a bounded model are on a bound [P, C]."""
    if family.basis_GP is not None:
        return np.zeros(theta_PC.shape, dtype=np.bool_)
    near_PC = ON_BOUND * (1 + np.abs(theta_PC))
    return np.asarray((theta_PC < family.lower_PC + near_PC) | (theta_PC > family.upper_PC - near_PC), dtype=np.bool_)


def _profiled(fit: _Fitted, stderr_C: Array, free: int) -> dict[str, Array]:
    """Return the profile-likelihood interval and the p-values of a = 1/2 and a = 1 for independent values."""
    if fit.family.basis_GP is not None:  # the squares are a parabola: Student's t
        half_C = t_quantile(free) * stderr_C
        ends = fit.theta_PC[0] - half_C, fit.theta_PC[0] + half_C
    else:
        ends = _profile_ends(fit, fit.squares_C / free, np.full_like(stderr_C, t_quantile(free)))
    columns = {"profile_low": ends[0], "profile_high": ends[1]}
    return columns | _p_values(fit, fit.squares_C / free, np.full_like(stderr_C, free))


def _profile_ends(fit: _Fitted, unit_C: Array, t_C: Array) -> tuple[Array, Array]:
    """Return the limits of the exponents whose squares are less than t^2 units above the minimum."""
    with np.errstate(divide="ignore", invalid="ignore"):
        stderr_C = np.sqrt(unit_C / fit.information_C)

    def ends(part: slice) -> tuple[Array, Array]:
        profile = ProfileLikelihood(
            fit.family.select(part), fit.points.select(part), fit.theta_PC[:, part], fit.squares_C[part]
        )
        return profile.interval(t_C[part] / 2 * stderr_C[part], t_C[part] ** 2 * unit_C[part])

    parts = parts_of(len(unit_C), at_most=BLOCK_ROWS // 2, at_least=SMALLEST_PART)
    lows, highs = zip(*in_threads(ends, parts), strict=True)
    return np.concatenate(lows), np.concatenate(highs)


def _p_values(fit: _Fitted, unit_C: Array, freedom_C: Array) -> dict[str, Array]:
    """Return the p-values of a = 1/2 and a = 1. `unit_C`: squares per degree of freedom of noise."""
    if not fit.family.model.has_theory:
        return {}
    columns = {}
    for name, theory in (("p_half", 0.5), ("p_one", 1.0)):
        if fit.family.basis_GP is not None:
            added_C = fit.information_C * (fit.theta_PC[0] - theory) ** 2
        else:
            profile = ProfileLikelihood(fit.family, fit.points, fit.theta_PC, fit.squares_C)
            added_C = profile.squares_at(np.full_like(unit_C, theory), np.arange(len(unit_C))) - fit.squares_C
        columns[name] = f_tail(added_C / np.maximum(unit_C, EXACT_FIT_RMS**2), 1, freedom_C)
    return columns


def _r2(residual_GC: Array, points: Points) -> Array:
    """Return R^2 of the means [C]: the spread between seeds at one x is no evidence against a curve."""
    mass_GC = points.mass_GC
    grand_C = (mass_GC * points.mean_GC).sum(0) / mass_GC.sum(0)
    total_C = sum_of_squares(points.mean_GC - grand_C, mass_GC)
    varies_C = total_C > points.num_points * EXACT_FIT_RMS**2
    return np.where(varies_C, 1 - sum_of_squares(residual_GC, mass_GC) / np.where(varies_C, total_C, 1.0), np.nan)


def aicc_of_break(points: Points) -> Array:
    """Return the AICc [C] of two powers of x that meet at a break, the best over breaks at and halfway between the x.

    It stands for the curves that are none of the models. NaN with too few x or points.
    """
    log_x_G, root_G, num_parameters = np.log(points.x_G), np.sqrt(points.count_G), 4
    inner = log_x_G[1:-1]
    if len(log_x_G) <= num_parameters:
        return np.full(points.mean_GC.shape[1], np.nan)
    best_GC, least_C = points.mean_GC, np.full(points.mean_GC.shape[1], np.inf)
    for at in np.sort(np.concatenate([inner, (inner[1:] + inner[:-1]) / 2])):
        design_GQ = np.stack([np.ones_like(log_x_G), log_x_G, np.maximum(log_x_G - at, 0.0)], axis=1)
        solve_QG = np.linalg.pinv(root_G[:, None] * design_GQ) * root_G
        residual_GC = points.mean_GC - design_GQ @ (solve_QG @ points.mean_GC)
        squares_C = sum_of_squares(residual_GC, points.mass_GC)
        is_better_C = squares_C < least_C
        best_GC, least_C = np.where(is_better_C, residual_GC, best_GC), np.where(is_better_C, squares_C, least_C)
    return aicc(points, best_GC, num_parameters)


def aicc(points: Points, residual_GC: Array, num_parameters: int) -> Array:
    """Return AICc [C] up to a constant of the points, NaN with too few points. The noise variance is a further parameter.

    If seeds are known, each seed has its own level: a shift of all its values carries no information about the shape.
    """
    squares_C, k = points.within_C + sum_of_squares(residual_GC, points.mass_GC), num_parameters + 1
    if points.num_seeds > 1:
        squares_C, k = own_levels(points, residual_GC), k + points.num_seeds - 1
    if points.num_points - k - 1 <= 0:
        return np.full_like(squares_C, np.nan)
    variance_C = np.maximum(squares_C / points.num_points, EXACT_FIT_RMS**2)
    n = points.num_points
    return np.asarray(n * np.log(variance_C) + 2 * k + 2 * k * (k + 1) / (n - k - 1))
