"""One form fitted to many curves or surfaces: its parameters, their uncertainty, and the record.

Intervals are over whole units where these are known. A form that is linear in its parameters has Student's t, others the
profile likelihood, scaled by the variance over units. Independent values that share an x are resampled there (BCa). With
another loss than squares of log y, resamples of many whole units replace the profile.

Shapes: K variables, C curves on one design (the same x), N points, G groups (the distinct x, rising), B resamples, V values
left out, P shape parameters, S starting points, R rows. Curves come last, resamples after them.
Sources: Efron and Tibshirani, An Introduction to the Bootstrap (1993); Burnham and Anderson, Model Selection and
Multimodel Inference (2002), sections 2.4 (AICc) and 2.9 (weights).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from depthrate.tasks.fits import LOSSES
from depthrate.tasks.fits.bootstrap_and_profile import (
    ENDS,
    ProfileLikelihood,
    Resampling,
    f_tail,
    refit_weighted,
    resample_units,
    resampled,
    t_quantiles,
)
from depthrate.tasks.fits.fit import Estimate, Fit, FitWarning
from depthrate.tasks.fits.least_squares import Array, influence, information, linear_solution, residuals, sum_of_squares
from depthrate.tasks.fits.levenberg_marquardt import TOLERANCE, losses_left, minimise
from depthrate.tasks.fits.model import CurveFamily, LinearModel, Mask, Model, exp, log_x_at
from depthrate.tasks.fits.points import EXACT_FIT_RMS, FitError, Points
from depthrate.tasks.fits.threads import BLOCK_ROWS, in_threads, parts_of
from depthrate.tasks.fits.whole_seeds import (
    SeedSpread,
    Spread,
    ValueSpread,
    lack_of_fit,
    log_x_interval,
    own_levels,
    seed_spread,
)

SMALLEST_PART = 256
"""Minimum number of curves per thread. With fewer curves, an additional thread does not pay off."""
ON_BOUND = 1e-6
"""Distance from a bound, as a share of a parameter's size, at which the parameter is on it."""
MANY_UNITS = 20
"""Number of units from which intervals are percentiles of the bootstrap with another loss than squares of log y. Of fewer,
resamples are too few and too narrow. With squares, the profile covers better: 93 to 97 % of simulated curves of 20 and 30
seeds, where percentiles cover 91 to 97 %."""
HIGH_CORRELATION = 0.9
"""Correlation of two estimates above which the values determine only a combination of them."""
MAX_LEFT_OUT = 60
"""Maximum number of values that are left out and predicted, evenly chosen."""


@dataclass(frozen=True)
class Options:
    """Quantities computed in addition to the estimates."""

    names: tuple[str, ...] = ("x",)
    num_resamples: int = 1000
    seed: int = 0
    resampling: Resampling | None = None
    """Resamples of independent values, if an x has two."""
    target: float | None = None
    """Value of y for `x_at_target`."""
    loss: str = "log"
    """One of LOSSES."""
    threshold: float | None = None
    """Residual of log y from which Huber's function replaces the square, with the loss `huber`."""
    leaves_out: bool = False
    """Whether values of the variables are left out and predicted."""


def fit_form(model: Model, points: Points, options: Options) -> list[Fit] | None:
    """Fit a form to each curve, without the weights among forms.

    Args:
        model: The form.
        points: The curves, gathered by x.
        options: Quantities computed in addition to the estimates.

    Returns:
        One fit per curve, or None if the form has no curve on these points.
    """
    family = model.family(points)
    if family is None:
        return None
    squares = _Estimator(family, points, points, replace(options, loss="log", threshold=None))
    if options.loss == "log":
        return squares.fits()
    if options.loss == "huber":
        values = points.single()
        of_values = model.family(values)
        assert of_values is not None, "the same x"
        of_values = of_values.with_level_last(squares.theta_PC, squares.level_C)
        fits = _Estimator(of_values, values, points, options).fits()
    else:
        fits = [_fit_on_y(model, points.select(slice(c, c + 1)), options) for c in range(points.mean_GC.shape[1])]
    if not model.has_exponents:
        return fits
    exponents_CK = squares.theta_PC[: len(points.x_KG)].T.tolist()
    return [_with_loss_warnings(fit, exponents) for fit, exponents in zip(fits, exponents_CK, strict=True)]


def checked_loss(loss: str, threshold: float | None) -> tuple[str, float | None]:
    """Return the loss and its threshold. A threshold alone implies Huber's function.

    Raises:
        FitError: The loss is unknown, or lacks its threshold, or has one that does not apply.
    """
    if loss not in LOSSES:
        raise FitError(f"loss is {loss!r}, expected one of {', '.join(LOSSES)}.")
    if loss == "huber" and threshold is None:
        raise FitError(
            "loss is 'huber' without a threshold. Give huber, the residual of log y from which it is linear."
        )
    if threshold is not None and not (math.isfinite(threshold) and threshold > 0):
        raise FitError(f"huber is {threshold}, expected a finite number > 0.")
    if loss == "y" and threshold is not None:
        raise FitError(
            "huber is a threshold for residuals of log y, so that it does not apply to the loss 'y'. Leave out one."
        )
    return loss if threshold is None else "huber", threshold


def _fit_on_y(model: Model, points: Points, options: Options) -> Fit:
    """Fit a form to y of one curve, in units of its geometric mean."""
    log_unit = float(points.count_G @ points.mean_GC[:, 0] / points.count_G.sum())
    points, unit = replace(points, mean_GC=points.mean_GC - log_unit), math.exp(log_unit)
    family = model.family(points)
    assert family is not None, "the same x"
    options = replace(options, resampling=None, target=options.target and options.target / unit)
    squares, values = _Estimator(family, points, points, options), points.on_y()
    family = family.with_level_last(squares.theta_PC, squares.level_C).on_y()
    (fit,) = _Estimator(family, values, values, options).fits()
    scaled = {
        name: estimate.scaled(unit) if name == "floor" else estimate for name, estimate in fit.other_estimates.items()
    }
    coefficients = tuple(estimate.scaled(unit) for estimate in fit.coefficient_estimates)
    return replace(fit, coefficient_estimates=coefficients, other_estimates=scaled, objective=fit.objective * unit**2)


def _with_loss_warnings(fit: Fit, exponents: Sequence[float]) -> Fit:
    """Add a warning for each exponent that squares of log y move by more than half the width of its interval."""
    found = []
    for name, estimate, other in zip(fit.variables, fit.exponent_estimates, exponents, strict=True):
        change, (low, high) = estimate.value - other, estimate.interval or (-math.inf, math.inf)
        if abs(change) > (high - low) / 2:
            found.append(FitWarning("loss", {"variable": name, "change": change, "half_width": (high - low) / 2}))
    return replace(fit, warnings=(*fit.warnings, *found))


@dataclass(frozen=True)
class _Estimator:
    """A form's curves at the least loss."""

    family: CurveFamily
    points: Points
    """Values as the loss takes them."""
    cells: Points
    """Values gathered by x."""
    options: Options

    @cached_property
    def model(self) -> Model:
        return self.family.model

    @cached_property
    def theta_PC(self) -> Array:
        return _best(self.family, self.points, self.options.threshold)

    @cached_property
    def _around(self) -> tuple[Array, Array, Array]:
        mass_GC = self.points.mass_GC
        return residuals(
            self.family.shape,
            self.theta_PC,
            self.family.ref_C,
            self.points.mean_GC,
            mass_GC / mass_GC.sum(0),
            has_level=self.family.has_level,
        )

    @property
    def level_C(self) -> Array:
        return self._around[0]

    @property
    def residual_GC(self) -> Array:
        return self._around[1]

    @cached_property
    def jacobian_PGC(self) -> Array:
        """Derivatives, 0 for parameters that cannot move.

        These are the exponent of a term of a sum that has vanished and, where errors are those of a linear approximation,
        parameters on a bound.
        """
        is_held_PC, k = np.zeros(self.theta_PC.shape, dtype=np.bool_), len(self.points.x_KG)
        if self.options.threshold is not None or self.family.is_sum:
            is_held_PC |= self._on_bound()
        if self.family.is_sum:
            is_gone_KC = self.theta_PC[k : 2 * k] <= self.family.lower_PC[k : 2 * k]
            is_held_PC[:k] |= is_gone_KC
            is_held_PC[k : 2 * k] |= is_gone_KC
        return np.where(is_held_PC[:, None], 0.0, self._around[2])

    @cached_property
    def influence_PGC(self) -> Array:
        """Influence of each group mean on each parameter."""
        mass_GC, threshold = self.points.mass_GC, self.options.threshold
        if threshold is None:
            return influence(self.jacobian_PGC, mass_GC)
        return influence(self.jacobian_PGC, mass_GC, np.where(np.abs(self.residual_GC) <= threshold, mass_GC, 0.0))

    @cached_property
    def shape_theta_PC(self) -> Array:
        """Parameters of the shape, without the level."""
        return self.theta_PC[:-1] if self.family.is_level_last else self.theta_PC

    @property
    def shape_level_C(self) -> Array:
        """The level, a parameter or eliminated."""
        return self.theta_PC[-1] if self.family.is_level_last else self.level_C

    @property
    def of_cells(self) -> np.ndarray:
        """One of the points of each cell."""
        is_gathered = len(self.points.count_G) == len(self.cells.count_G)
        return (
            np.arange(len(self.cells.count_G))
            if is_gathered
            else np.flatnonzero(np.diff(self.cells.group_N, prepend=-1))
        )

    @cached_property
    def cell_residual_GC(self) -> Array:
        """Residuals of the means of log y."""
        curve_GC = self.points.mean_GC - self.residual_GC
        return np.asarray(self.cells.mean_GC - curve_GC[self.of_cells])

    @cached_property
    def squares_C(self) -> Array:
        return np.asarray(self.points.within_C + sum_of_squares(self.residual_GC, self.points.mass_GC))

    @cached_property
    def num_parameters(self) -> int:
        return self.model.num_parameters_of(len(self.points.x_KG))

    @cached_property
    def num_units(self) -> int:
        return self.points.num_seeds or self.points.num_points

    @cached_property
    def spread(self) -> Spread | None:
        """Noise around the fit, None if there is too little to estimate it."""
        points, threshold = self.points, self.options.threshold
        if points.seed_N is not None:
            has_level = self.family.has_level
            return seed_spread(points, self.jacobian_PGC, self.residual_GC, has_level=has_level, threshold=threshold)
        if (free := points.num_points - self.num_parameters) <= 0:
            return None
        squares_C = self.squares_C
        if threshold is not None:
            squares_C = np.asarray((np.clip(self.residual_GC, -threshold, threshold) ** 2).sum(0))
        return ValueSpread(squares_C / free, points.mass_GC, free)

    @cached_property
    def resampled(self) -> tuple[Array, Array] | None:
        """Parameters [P, C, B] and level [C, B] of resamples of whole units, or None if the intervals do not need them."""
        points, options = self.points, self.options
        if options.loss == "log" or self.num_units < MANY_UNITS or options.num_resamples < 1:
            return None
        weight_NB = resample_units(points, options.num_resamples, options.seed)
        return refit_weighted(self.family, points, self.theta_PC, weight_NB, options.threshold)

    def fits(self) -> list[Fit]:
        """Build the records."""
        points, k, theta_PC = self.points, len(self.points.x_KG), self.shape_theta_PC
        columns: dict[str, Array] = {
            "r2": self._r2(),
            "aicc": aicc(self.cells, self.cell_residual_GC, self.num_parameters),
            "objective": self._objective(),
        }
        moving_PGC = np.where(self._on_bound()[:, None], 0.0, self.jacobian_PGC)[:, self.of_cells]
        columns["p_lack_of_fit"] = lack_of_fit(
            self.cells, self.cell_residual_GC, moving_PGC, has_level=self.family.has_level
        )
        num_profiled = k if self.model.has_exponents else 0
        estimates, method = self._parameters(columns)
        exponents = estimates[:num_profiled] or [_known(1.0, theta_PC.shape[1]) for _ in range(k)]
        coefficients = self._coefficients()
        if points.seed_N is not None and self.spread is not None and num_profiled:
            columns["seed_spread"] = np.sqrt(points.num_seeds) * estimates[0]["stderr"]
        if self.options.target is not None:
            log_c_C = self.family.log_coefficients(theta_PC, self.shape_level_C, self.family.ref_C)[0]
            columns["x_at_target"] = exp(
                log_x_at(self.family, theta_PC, log_c_C, self.family.ref_C, self.options.target)
            )
        with np.errstate(all="ignore"):
            values = self.model.others(theta_PC, self.family.ref_C)
            others = {name: {"value": value_C} for name, value_C in values.items()}
        free = [parameter.name for parameter in self.model.parameters if parameter.name not in self.model.fixed]
        if isinstance(self.model, LinearModel) or self.family.is_sum:
            for place, name in enumerate(free):
                others[name] = self._scaled(estimates[len(theta_PC) - len(free) + place], name)
        if self.options.leaves_out:
            columns["left_out"] = self._left_out()
        if self.resampled is not None and self.family.is_sum:
            columns["on_bound"] = (self.resampled[0][-1] <= 0).mean(1)
        warnings = self._trade_offs()
        facts: list[dict[str, Any]] = [
            {name: _finite(column_C[c]) for name, column_C in columns.items()} for c in range(theta_PC.shape[1])
        ]
        return [
            Fit(
                self.model.name,
                tuple(_estimate(columns_C, c) for columns_C in exponents),
                tuple(_estimate(columns_C, c) for columns_C in coefficients),
                {name: _estimate(columns_C, c) for name, columns_C in others.items()},
                variables=self.options.names,
                n_points=points.num_points,
                n_seeds=None if points.seed_N is None else points.num_seeds,
                method=method,
                loss=self.options.loss,
                huber=self.options.threshold,
                warnings=tuple(warnings[c]),
                **facts_of_curve,
            )
            for c, facts_of_curve in enumerate(facts)
        ]

    def _scaled(self, columns: dict[str, Array], name: str) -> dict[str, Array]:
        """Return a floor in the units of y, and any other parameter as it is."""
        if name != "floor":
            return columns
        unit_C = exp(self.family.ref_C)
        scaled = {key: columns[key] * unit_C for key in ("value", "stderr", "low", "high") if key in columns}
        if "low" in scaled:
            scaled["low"] = np.where(np.isnan(scaled["low"]), 0.0, scaled["low"])
        return columns | scaled

    def _parameters(self, columns: dict[str, Array]) -> tuple[list[dict[str, Array]], str]:
        """Return each parameter's value, error, interval and p-values, and the method of the intervals."""
        theta_PC, spread, is_linear = self.theta_PC, self.spread, self.family.basis_GP is not None
        estimates: list[dict[str, Array]] = [{"value": theta_C} for theta_C in theta_PC]
        errors = [np.full_like(theta_C, np.nan) for theta_C in theta_PC]
        if spread is not None:
            errors = [_stderr(spread, own_GC) for own_GC in self.influence_PGC]
            for estimate, error_C in zip(estimates, errors, strict=True):
                estimate["stderr"] = error_C
        k, method = len(self.points.x_KG) if self.model.has_exponents else 0, ""
        is_squares, resampling = self.options.threshold is None, self.options.resampling
        wanted = [*range(k), *([len(theta_PC) - 1] if self.family.is_sum else [])]
        wanted = list(range(len(theta_PC))) if is_linear or not is_squares else wanted
        if self.resampled is not None:
            low_PC, high_PC = np.quantile(self.resampled[0], ENDS, axis=2)
            method = "bootstrap"
        elif resampling is not None and is_squares:
            influences = {p: self.influence_PGC[p] for p in wanted}
            low_PC, high_PC, at_target = resampled(
                self.family, self.points, resampling, theta_PC, self.level_C, influences, self.options.target
            )
            columns |= at_target
            method = "bca"
        elif spread is not None and (is_linear or not is_squares):
            half_PC = np.array([_student_half(spread, own_GC) for own_GC in self.influence_PGC]).reshape(theta_PC.shape)
            low_PC, high_PC, method = theta_PC - half_PC, theta_PC + half_PC, "t"
        elif spread is not None:
            method = "profile"
        units = {p: self._unit(p) for p in wanted} if spread is not None else {}
        for p in wanted:
            if method == "profile":
                low_C, high_C = self._profile_ends(p, units[p], errors[p])
            elif method:
                low_C, high_C = low_PC[p], high_PC[p]
            else:
                continue
            estimates[p] |= {"low": low_C, "high": high_C, "has_interval": np.ones(len(low_C))}
        if self.model.has_theory and spread is not None:
            for p in range(k):
                estimates[p] |= self._p_values(p, units[p])
        if self.points.seed_N is None and spread is not None and is_squares and k == 1:
            is_bootstrap = method in ("bootstrap", "bca")
            ends = (
                self._profile_ends(0, units[0], errors[0])
                if is_bootstrap
                else (estimates[0]["low"], estimates[0]["high"])
            )
            columns |= dict(zip(("profile_low", "profile_high"), ends, strict=True))
        if isinstance(spread, SeedSpread) and self.options.target is not None and is_linear and len(theta_PC) == 1:
            columns |= self._seeds_x_at(spread, self.options.target)
        return estimates, method

    def _unit(self, p: int) -> Array:
        """Return the squares per degree of freedom of noise [C] that a parameter has. On a bound, it has that of the values.

        Where the interval of a sum's floor reaches 0, the profile of another parameter continues along curves without a
        floor, and whole units may differ more in that direction. The larger noise of both applies.
        """
        free = max(self.points.num_points - self.num_parameters, 1)
        unit_C = self._noise(self.influence_PGC[p])
        unit_C = np.where(np.isnan(unit_C), self.squares_C / free, unit_C)
        if not self.family.is_sum or p == len(self.theta_PC) - 1:
            return unit_C
        assert self.spread is not None
        floor_low_C = self.theta_PC[-1] - _student_half(self.spread, self.influence_PGC[-1])
        return np.where(floor_low_C > 0, unit_C, np.fmax(unit_C, self._noise(self._floorless_PGC[p])))

    @cached_property
    def _floorless_PGC(self) -> Array:
        """Influence of each group mean on each parameter of a sum whose floor is known."""
        jacobian_PGC = self.jacobian_PGC.copy()
        jacobian_PGC[-1] = 0.0
        return influence(jacobian_PGC, self.points.mass_GC)

    def _noise(self, influence_GC: Array) -> Array:
        """Return the squares per degree of freedom of noise [C] in the direction of an influence."""
        assert self.spread is not None
        with np.errstate(invalid="ignore"):
            return np.asarray(_stderr(self.spread, influence_GC) ** 2 * information(influence_GC, self.points.mass_GC))

    def _profile_ends(self, p: int, unit_C: Array, error_C: Array) -> tuple[Array, Array]:
        """Return the limits of the values of a parameter whose squares are less than t^2 units above the minimum."""
        assert self.spread is not None
        t_C = t_quantiles(self.spread.freedom(self.influence_PGC[p]))
        if self.family.basis_GP is not None:  # the squares are a parabola: Student's t
            return self.theta_PC[p] - t_C * error_C, self.theta_PC[p] + t_C * error_C

        def ends(part: slice) -> tuple[Array, Array]:
            profile = ProfileLikelihood(
                self.family.select(part), self.points.select(part), self.theta_PC[:, part], self.squares_C[part], p
            )
            return profile.interval(t_C[part] / 2 * error_C[part], t_C[part] ** 2 * unit_C[part])

        parts = parts_of(len(unit_C), at_most=BLOCK_ROWS // 2, at_least=SMALLEST_PART)
        lows, highs = zip(*in_threads(ends, parts), strict=True)
        return np.concatenate(lows), np.concatenate(highs)

    def _p_values(self, p: int, unit_C: Array) -> dict[str, Array]:
        """Return the p-values of a = 1/2 and a = 1. `unit_C`: squares per degree of freedom of noise."""
        assert self.spread is not None
        found, freedom_C = {}, self.spread.freedom(self.influence_PGC[p])
        for name, theory in (("p_half", 0.5), ("p_one", 1.0)):
            if self.family.basis_GP is not None or self.options.threshold is not None:
                added_C = information(self.influence_PGC[p], self.points.mass_GC) * (self.theta_PC[p] - theory) ** 2
            else:
                profile = ProfileLikelihood(self.family, self.points, self.theta_PC, self.squares_C, p)
                added_C = profile.squares_at(np.full_like(unit_C, theory), np.arange(len(unit_C))) - self.squares_C
            found[name] = f_tail(added_C / np.maximum(unit_C, EXACT_FIT_RMS**2), 1, freedom_C)
        return found

    def _coefficients(self) -> list[dict[str, Array]]:
        """Return the coefficients, with Student's t of their logarithms, or percentiles of resamples."""
        family, mass_GC, log_c_LP = self.family, self.points.mass_GC, self.family.log_c_LP
        log_c_LC = family.log_coefficients(self.shape_theta_PC, self.shape_level_C, family.ref_C)
        if log_c_LP is not None:
            influence_LGC = np.einsum("lp,pgc->lgc", log_c_LP, self.influence_PGC)
        elif isinstance(self.model, LinearModel) and family.basis_GP is None:
            influence_LGC = self.influence_PGC[-1:]
        elif family.basis_GP is None:
            return [{"value": exp(log_c_C)} for log_c_C in log_c_LC]
        else:
            share_GC = mass_GC / mass_GC.sum(0)
            mean_PC = family.basis_GP.T @ share_GC
            influence_LGC = (share_GC - np.einsum("pc,pgc->gc", mean_PC, self.influence_PGC))[None]
        coefficients = []
        for place, (log_c_C, own_GC) in enumerate(zip(log_c_LC, influence_LGC, strict=True)):
            columns = {"value": exp(log_c_C)}
            if self.resampled is not None:
                theta_PCB, level_CB = self.resampled
                log_c_CB = theta_PCB[-1] if family.is_level_last else level_CB
                if log_c_LP is not None:
                    log_c_CB = np.einsum("p,pcb->cb", log_c_LP[place], theta_PCB) + family.ref_C[:, None]
                low_C, high_C = np.quantile(exp(log_c_CB), ENDS, axis=1)
                columns |= {"low": low_C, "high": high_C, "has_interval": np.ones(len(low_C))}
            elif self.spread is not None:
                half_C = _student_half(self.spread, own_GC)
                columns |= {
                    "low": exp(log_c_C - half_C),
                    "high": exp(log_c_C + half_C),
                    "has_interval": np.ones(len(half_C)),
                }
            coefficients.append(columns)
        return coefficients

    def _seeds_x_at(self, spread: SeedSpread, target: float) -> dict[str, Array]:
        """Return the 95 % interval of the x at which a line meets a target (Fieller's theorem)."""
        basis_GP, model, slope_C, influence_GC = (
            self.family.basis_GP,
            self.model,
            self.theta_PC[0],
            self.influence_PGC[0],
        )
        assert basis_GP is not None and isinstance(model, LinearModel)
        share_GC = self.points.mass_GC / self.points.mass_GC.sum(0)
        centre_C, t_C = basis_GP[:, 0] @ share_GC, t_quantiles(spread.freedom(influence_GC))
        level_C, log_target = self.level_C + centre_C * slope_C, float(np.log(target))

        def is_outside(log_x_C: Array) -> Mask:
            x_1C = np.exp(log_x_C)[None]
            gap_C = np.asarray(model.basis(x_1C))[:, 0] - centre_C
            variance_C = spread.variance(share_GC + gap_C * influence_GC)
            miss_C = level_C + gap_C * slope_C - log_target
            return np.asarray(np.abs(miss_C) > t_C * np.sqrt(variance_C), dtype=np.bool_)

        log_x_C = log_x_at(self.family, self.theta_PC, self.level_C, self.family.ref_C, target)
        low_C, high_C = log_x_interval(is_outside, log_x_C)
        return {"x_at_low": exp(low_C), "x_at_high": exp(high_C)}

    def _on_bound(self) -> Mask:
        """Return which parameters are on a bound [P, C]."""
        near_PC = ON_BOUND * (1 + np.abs(self.theta_PC))
        is_low_PC, is_high_PC = (
            self.theta_PC < self.family.lower_PC + near_PC,
            self.theta_PC > self.family.upper_PC - near_PC,
        )
        return np.asarray(is_low_PC | is_high_PC, dtype=np.bool_)

    def _r2(self) -> Array:
        """Return R^2 of the means [C]: the spread between seeds at one x is no evidence against a curve."""
        points, mass_GC = self.cells, self.cells.mass_GC
        grand_C = (mass_GC * points.mean_GC).sum(0) / mass_GC.sum(0)
        total_C = sum_of_squares(points.mean_GC - grand_C, mass_GC)
        varies_C = total_C > points.num_points * EXACT_FIT_RMS**2
        squares_C = sum_of_squares(self.cell_residual_GC, mass_GC)
        return np.where(varies_C, 1 - squares_C / np.where(varies_C, total_C, 1.0), np.nan)

    def _objective(self) -> Array:
        if self.options.threshold is None:
            return np.asarray(self.squares_C / 2)
        return (
            losses_left(self.family, self.theta_PC, self.points.mean_GC, self.points.mass_GC, self.options.threshold)
            / 2
        )

    def _left_out(self) -> Array:
        """Return the root mean square error [C] when each value of each variable is left out and predicted."""
        points, out_VN = self.points, list[Mask]()
        for x_G in points.x_KG:
            number_G = np.unique(x_G, return_inverse=True)[1].reshape(-1)
            number_N = number_G[points.group_N]
            if number_N.max() + 1 <= len(number_N) // 2:  # a variable with hardly two equal values has no groups
                out_VN += [number_N == number for number in range(int(number_N.max()) + 1)]
        if not out_VN:
            return np.full(points.mean_GC.shape[1], np.nan)
        is_out_NV = np.array(out_VN)[np.linspace(0, len(out_VN) - 1, min(len(out_VN), MAX_LEFT_OUT)).astype(int)].T
        theta_PCV, level_CV = refit_weighted(
            self.family, points, self.theta_PC, 1.0 - is_out_NV, self.options.threshold
        )
        errors = []
        for v, is_out_N in enumerate(is_out_NV.T):
            curve_GC = self.family.shape(theta_PCV[..., v], self.family.ref_C)[0] + level_CV[:, v]
            errors.append(((points.mean_GC - curve_GC)[points.group_N] + points.deviation_NC)[is_out_N])
        return np.asarray(np.sqrt((np.concatenate(errors) ** 2).mean(0)))

    def _trade_offs(self) -> list[list[FitWarning]]:
        """Return the pairs of exponents, and of the logarithm's power, whose estimates correlate, of each curve.

        Without resamples, the correlations are those of independent values: a few units would correlate by chance.
        """
        names, num_curves = self.options.names, self.theta_PC.shape[1]
        if len(names) == 1 or not self.model.has_exponents:
            return [[] for _ in range(num_curves)]
        labels = [f"the exponent of {name}" for name in names]
        if self.model.needs_x_above_one and not self.model.fixed:
            labels.append(f"the power of log {names[0]}")
        warnings = []
        for c in range(num_curves):
            if self.resampled is not None:
                covariance_PP = np.cov(self.resampled[0][:, c])
            else:
                scaled_PG = self.influence_PGC[..., c] / np.sqrt(self.points.count_G)
                covariance_PP = scaled_PG @ scaled_PG.T
            error_P = np.sqrt(np.diag(covariance_PP))
            with np.errstate(invalid="ignore", divide="ignore"):
                correlation_PP = covariance_PP / np.outer(error_P, error_P)
            warnings.append(
                [
                    FitWarning(
                        "trade_off", {"one": labels[p], "other": labels[q], "correlation": float(correlation_PP[p, q])}
                    )
                    for p, q in itertools.combinations(range(len(labels)), 2)
                    if abs(correlation_PP[p, q]) > HIGH_CORRELATION
                ]
            )
        return warnings


def compared(fits_of_curve: Sequence[Sequence[Fit]], points: Points) -> list[list[Fit]]:
    """Give the forms of each curve their Akaike weights and, of one variable, the AICc of a power law with a break.

    A form alone has nothing to be compared with.
    """
    broken_C = [math.nan] * len(fits_of_curve)
    if len(points.x_KG) == 1 and any(len(fits) > 1 for fits in fits_of_curve):
        broken_C = aicc_of_break(points).tolist()
    found = []
    for fits, broken in zip(fits_of_curve, broken_C, strict=True):
        best = min((fit.aicc for fit in fits if fit.aicc is not None), default=math.nan)
        share = {fit.form: math.exp((best - fit.aicc) / 2) for fit in fits if fit.aicc is not None}
        weights = {form: value / sum(share.values()) for form, value in share.items()}
        aicc_break = None if math.isnan(broken) else broken
        found.append([replace(fit, weight=weights.get(fit.form), aicc_break=aicc_break) for fit in fits])
    return found


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

    If seeds are known and have values at half of the x or more, each seed has its own level: a shift of all its values carries
    no information about the shape. The level of a seed with values at few x does.
    """
    squares_C, k = points.within_C + sum_of_squares(residual_GC, points.mass_GC), num_parameters + 1
    if points.num_seeds > 1 and 2 * points.num_points >= points.num_seeds * len(points.count_G):
        squares_C, k = own_levels(points, residual_GC), k + points.num_seeds - 1
    if points.num_points - k - 1 <= 0:
        return np.full_like(squares_C, np.nan)
    variance_C = np.maximum(squares_C / points.num_points, EXACT_FIT_RMS**2)
    n = points.num_points
    return np.asarray(n * np.log(variance_C) + 2 * k + 2 * k * (k + 1) / (n - k - 1))


def _best(family: CurveFamily, points: Points, threshold: float | None) -> Array:
    """Return each curve's best shape parameters [P, C]."""
    if family.basis_GP is not None and threshold is None:
        return linear_solution(family.basis_GP, points.mean_GC[..., None] - family.offset_G11, points.mass_GC)[..., 0]
    num_starts, num_parameters, num_curves = family.starts_SPC.shape
    curve_R = np.tile(np.arange(num_curves), num_starts)
    rows, mean_GR, mass_GR = family.select(curve_R), points.mean_GC[:, curve_R], points.mass_GC[:, curve_R]
    start_PR, tolerance_R = np.concatenate(list(family.starts_SPC), axis=1), np.full(len(curve_R), TOLERANCE)
    theta_PR = minimise(rows, start_PR, mean_GR[..., None], mass_GR, tolerance_R, threshold)[..., 0]
    squares_SC = losses_left(rows, theta_PR, mean_GR, mass_GR, threshold).reshape(num_starts, num_curves)
    # Take the first of equals: power_floor starts from the power law, so it has a floor only if that improves the fit.
    equal_SC = squares_SC <= squares_SC.min(0) * (1 + 1e-9) + points.num_points * EXACT_FIT_RMS**2
    theta_PSC = theta_PR.reshape(num_parameters, num_starts, num_curves)
    return theta_PSC[:, equal_SC.argmax(0), np.arange(num_curves)]


def _stderr(spread: Spread, influence_GC: Array) -> Array:
    """Return the standard error [C] of a quantity from the influence of each mean. NaN if no mean has one."""
    return np.where((influence_GC == 0).all(0), np.nan, np.sqrt(spread.variance(influence_GC)))


def _student_half(spread: Spread, influence_GC: Array) -> Array:
    """Return half the width [C] of the 95 % interval by Student's t. NaN if no mean has an influence."""
    return t_quantiles(spread.freedom(influence_GC)) * _stderr(spread, influence_GC)


def _known(value: float, num_curves: int) -> dict[str, Array]:
    return {"value": np.full(num_curves, value)}


def _estimate(columns: Mapping[str, Array], c: int) -> Estimate:
    """Build the estimate of one curve."""
    parts: dict[str, Any] = {name: _finite(column_C[c]) for name, column_C in columns.items() if name != "value"}
    parts["has_interval"] = "has_interval" in parts
    return Estimate(float(columns["value"][c]), **parts)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
