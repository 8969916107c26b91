"""One model fitted to many curves: its parameters, what they are worth, and the row of the fits table they make.

Shapes: C curves on one design (the same x), N points, G groups (the distinct x, rising), B resamples, P shape parameters,
S starting points, R rows. Curves come last, resamples after them.
Sources: Efron and Tibshirani, An Introduction to the Bootstrap (1993); Burnham and Anderson, Model Selection and
Multimodel Inference (2002), section 2.4 (AICc).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from depthrate.tasks.fits.intervals import (
    Profile,
    Resampling,
    acceleration,
    bca_interval,
    effective_freedom,
    f_tail,
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
from depthrate.tasks.fits.model import CurveFamily, Model
from depthrate.tasks.fits.points import ROUNDING, Points

TOLERANCE = 1e-11
"""A row is done when its step moves the curve by less than this, root mean square in log space."""
TOLERANCE_RESAMPLED = 1e-3
"""The same for resamples, as a share of the spread between them: ten times finer than 1000 of them can tell."""
NUM_FOR_SPREAD = 100
"""Resamples that spread is taken from."""


@dataclass(frozen=True)
class RateFit:
    """One model fitted to one curve; the field names are columns of the fits table, but for `others`."""

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
    others: Mapping[str, float | None] = field(default_factory=dict)
    """The model's parameters that the fits table has no column for, by name."""

    def parameter(self, name: str) -> float | None:
        """Return one of the model's parameters besides c and a; null where it has none of the name."""
        return self.others.get(name) if name not in _COLUMNS else getattr(self, name)

    def row(self) -> dict[str, Any]:
        """Return the fit as a row: its columns, then its other parameters by name."""
        return {name: getattr(self, name) for name in _COLUMNS} | dict(self.others)


_COLUMNS = tuple(column.name for column in fields(RateFit) if column.name != "others")


def fit_family(
    family: CurveFamily, points: Points, resampling: Resampling | None, target: float | None
) -> list[RateFit]:
    """Fit a model to each curve; the weights among models are left out.

    resampling: the bootstrap's draws, null where no x has two values. target: y for x_at_target.
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
    columns = {"exponent": theta_PC[0], "prefactor": _exp(level_C), "stderr": stderr_C, "r2": _r2(squares_C, points)}
    columns["aicc"] = _aicc(squares_C, points.num_points, family.model.num_parameters + points.num_noise_parameters)
    if resampling is not None:
        columns |= _resampled(family, points, resampling, theta_PC, level_C, influence_GC, target)
    elif free > 0:
        half_C = t_quantile(free) * stderr_C
        columns |= {"ci_low": theta_PC[0] - half_C, "ci_high": theta_PC[0] + half_C}
    if free > 0:
        columns |= _profiled(family, points, theta_PC, squares_C, stderr_C, free)
    if target is not None:
        columns["x_at_target"] = _exp(_log_x_at(family, theta_PC, level_C, family.ref_C, target))
    with np.errstate(all="ignore"):
        columns |= family.model.others(theta_PC, level_C, family.ref_C)
    return _rows(family, points.num_points, columns, "t" if resampling is None else "bca")


def _rows(family: CurveFamily, num_points: int, columns: Mapping[str, Array], ci_method: str) -> list[RateFit]:
    fits = []
    for c in range(len(columns["exponent"])):
        row: dict[str, Any] = {"ci_low": None, "ci_high": None, "floor": None}
        row |= {name: _finite(column_C[c]) for name, column_C in columns.items()}
        row |= {name: float(columns[name][c]) for name in ("exponent", "prefactor")}
        row["ci_method"] = None if row["ci_low"] is None and row["ci_high"] is None else ci_method
        others = {name: row.pop(name) for name in [name for name in row if name not in _COLUMNS]}
        fits.append(RateFit(model=family.model.name, n_points=num_points, weight=None, others=others, **row))
    return fits


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _around(family: CurveFamily, points: Points, theta_PC: Array) -> tuple[Array, Array, Array]:
    mass_GC = points.mass_GC
    return residuals(family.shape, theta_PC, family.ref_C, points.mean_GC, mass_GC / mass_GC.sum(0))


def squares_around(model: Model, points: Points) -> Array:
    """Return the squares [C] around each curve's fit, those around the group means included."""
    family = model.family(points)
    assert family is not None, f"{model.name} has no curve on these points"
    _, residual_GC, _ = _around(family, points, _best(family, points))
    return points.within_C + sum_of_squares(residual_GC, points.mass_GC)


def _best(family: CurveFamily, points: Points) -> Array:
    """Return each curve's best shape parameters [P, C]."""
    if family.basis_GP is not None:
        return _linear_solution(family.basis_GP, points.mean_GC[..., None], points.mass_GC)[..., 0]
    num_starts, num_parameters, num_curves = family.starts_SPC.shape
    curve_R = np.tile(np.arange(num_curves), num_starts)
    ref_R, mean_GR, mass_GR = family.ref_C[curve_R], points.mean_GC[:, curve_R], points.mass_GC[:, curve_R]
    theta_PR = minimise(
        family.shape,
        np.concatenate(list(family.starts_SPC), axis=1),
        ref_R,
        mean_GR[..., None],
        mass_GR,
        family.lower_PC[:, curve_R],
        family.upper_PC[:, curve_R],
        np.full(len(curve_R), TOLERANCE),
    )[..., 0]
    squares_SC = squares_left(family.shape, theta_PR, ref_R, mean_GR, mass_GR).reshape(num_starts, num_curves)
    # the first of equals: power_floor's first start is the power law, so there is no floor unless it helps
    equal_SC = squares_SC <= squares_SC.min(0) * (1 + 1e-9) + points.num_points * ROUNDING**2
    theta_PSC = theta_PR.reshape(num_parameters, num_starts, num_curves)
    return theta_PSC[:, equal_SC.argmax(0), np.arange(num_curves)]


def _linear_solution(basis_GP: Array, mean_GCB: Array, mass_GC: Array) -> Array:
    """Return theta [P, C, B] of a shape linear in theta."""
    centred_PGC = basis_GP.T[..., None] - (basis_GP.T @ (mass_GC / mass_GC.sum(0)))[:, None]
    return np.asarray(np.einsum("pgc,gcb->pcb", influence(centred_PGC, mass_GC), mean_GCB))


def _resampled(
    family: CurveFamily,
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
        theta_PCB = _refit(family, points, part, theta_PC, mean_GCB)
        ends = bca_interval(theta_PC[0, part], theta_PCB[0], acceleration_C[part], freedom_C[part])
        for name, end_C in zip(("ci_low", "ci_high"), ends, strict=True):  # beyond the box the model has no such curve
            columns[name][part] = np.clip(end_C, family.lower_PC[0, part], family.upper_PC[0, part])
        if target is not None:
            log_x_C = _log_x_at(family, theta_PC[:, part], level_C[part], family.ref_C[part], target)
            log_x_CB = _resampled_x_at(family, points, part, theta_PCB, mean_GCB, target)
            low_C, high_C = bca_interval(log_x_C, log_x_CB, np.zeros_like(log_x_C), freedom_C[part])
            columns["x_at_low"][part], columns["x_at_high"][part] = _exp(low_C), _exp(high_C)

    at_once = max(1, BLOCK_ROWS // num_resamples)
    in_threads(work, [slice(first, min(first + at_once, num_curves)) for first in range(0, num_curves, at_once)])
    return columns


def _refit(family: CurveFamily, points: Points, part: slice, theta_PC: Array, mean_GCB: Array) -> Array:
    """Return the shape parameters [P, C, B] of resampled means."""
    if family.basis_GP is not None:
        return _linear_solution(family.basis_GP, mean_GCB, points.mass_GC[:, part])
    spread_C = (mean_GCB[..., :NUM_FOR_SPREAD] - points.mean_GC[:, part, None]).std((0, 2))
    tolerance_C = np.maximum(TOLERANCE, TOLERANCE_RESAMPLED * spread_C)
    theta_PC, lower_PC, upper_PC = theta_PC[:, part], family.lower_PC[:, part], family.upper_PC[:, part]
    return minimise(
        family.shape, theta_PC, family.ref_C[part], mean_GCB, points.mass_GC[:, part], lower_PC, upper_PC, tolerance_C
    )


def _resampled_x_at(
    family: CurveFamily, points: Points, part: slice, theta_PCB: Array, mean_GCB: Array, target: float
) -> Array:
    num_groups, num_curves, num_resamples = mean_GCB.shape
    curve_R = np.repeat(np.arange(points.mean_GC.shape[1])[part], num_resamples)
    theta_PR, mass_GR = theta_PCB.reshape(-1, len(curve_R)), points.mass_GC[:, curve_R]
    mean_GR, ref_R = mean_GCB.reshape(num_groups, -1), family.ref_C[curve_R]
    level_R, _, _ = residuals(family.shape, theta_PR, ref_R, mean_GR, mass_GR / mass_GR.sum(0))
    return _log_x_at(family, theta_PR, level_R, ref_R, target).reshape(num_curves, num_resamples)


def _log_x_at(family: CurveFamily, theta_PR: Array, level_R: Array, ref_R: Array, target: float) -> Array:
    with np.errstate(all="ignore"):
        return family.model.log_x_at(theta_PR, level_R, ref_R, float(np.log(target)))


def _profiled(
    family: CurveFamily, points: Points, theta_PC: Array, squares_C: Array, stderr_C: Array, free: int
) -> dict[str, Array]:
    """Return the profile likelihood's interval and the p-values of a = 1/2 and a = 1."""
    exponent_C = theta_PC[0]
    columns: dict[str, Array] = {}
    profile = Profile(family, points, theta_PC, squares_C)
    if family.basis_GP is not None:  # the squares are a parabola: Student's t
        half_C = t_quantile(free) * stderr_C
        columns |= {"profile_low": exponent_C - half_C, "profile_high": exponent_C + half_C}
    else:
        columns["profile_low"], columns["profile_high"] = profile.interval(stderr_C, free)
    if not family.model.has_theory:
        return columns
    for name, theory in (("p_half", 0.5), ("p_one", 1.0)):
        if family.basis_GP is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                f_C = ((exponent_C - theory) / stderr_C) ** 2
        else:
            at_C = profile.squares_at(np.full_like(exponent_C, theory), np.arange(len(exponent_C)))
            f_C = (at_C - squares_C) / np.maximum(squares_C / free, ROUNDING**2)
        columns[name] = f_tail(f_C, 1, free)
    return columns


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
