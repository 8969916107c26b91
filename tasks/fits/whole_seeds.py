"""Uncertainty of parameters when the values of a seed are correlated: the spread is between whole seeds.

One seed gives networks of every depth the same first layers and the same order of the data. Its values therefore share
an offset, a slope or a bend, and only whole seeds are independent replicates. The variance is the sandwich estimator of
linearised least squares with Bell and McCaffrey's correction. If every seed has every x, the interval of a form that is linear
in its parameters is Student's t over the estimates per seed. For other forms, the F test of the profile is scaled by that
variance.

Shapes: C curves, N points, G groups (distinct x), S seeds, P shape parameters, Q = P, or 1 + P with a free level, M values of
one seed, D directions of a seed's residuals. Curves come last but where matrices are solved.
Sources: Bell and McCaffrey (2002), Bias reduction in standard errors for linear regression with multi-stage samples
(variance and degrees of freedom); Kent (1982), Robust properties of likelihood ratio tests (the scaled profile);
Huynh and Feldt (1976), Estimation of the Box correction for degrees of freedom from sample data in randomized block and
split-plot designs, corrected by Lecoutre (1991) (means of correlated values); Draper and Smith, Applied Regression Analysis
(1998), 2.1 (lack of fit).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from depthrate.tasks.fits.bootstrap_and_profile import f_tail
from depthrate.tasks.fits.least_squares import Array
from depthrate.tasks.fits.model import Mask
from depthrate.tasks.fits.points import EXACT_FIT_RMS, Points

MIN_SEEDS = 3
"""Minimum number of seeds for an interval: with two, Student's t is 12.7 and the spread has one degree of freedom."""
FREE = 1e-9
"""Minimum eigenvalue (share of freedom) of a direction of a seed's residuals: below it, the fit determines the direction."""
FARTHER = 0.001 * 1.5 ** np.arange(27)
"""Search steps, in ln x, for the ends of an interval of x: up to 38, or 16 decades."""


class Spread(Protocol):
    """Noise around a fit."""

    def variance(self, influence_GC: Array) -> Array:
        """Return the variance [C] of the sum of the group means weighted by `influence_GC`."""

    def freedom(self, influence_GC: Array) -> Array:
        """Return the degrees of freedom [C] of that variance."""


@dataclass(frozen=True)
class ValueSpread:
    """Noise of independent values, equal at every x."""

    variance_C: Array
    mass_GC: Array
    degrees_of_freedom: int

    def variance(self, influence_GC: Array) -> Array:
        """Return the variance [C] of the sum of the group means weighted by `influence_GC`."""
        return np.asarray(self.variance_C * (influence_GC**2 / self.mass_GC).sum(0))

    def freedom(self, influence_GC: Array) -> Array:
        """Return the degrees of freedom [C] of that variance."""
        return np.full(len(self.variance_C), float(self.degrees_of_freedom))


@dataclass(frozen=True)
class SeedSpread:
    """Noise around a fit, estimated from whole seeds."""

    points: Points
    residual_NC: Array
    """Residual of each value, scaled so that squared sums over a seed are unbiased."""
    correction: Correction | None = None
    """Correction of the residuals for the fit, if a seed lacks values."""

    def variance(self, influence_GC: Array) -> Array:
        """Return the variance [C] of the sum of the group means weighted by `influence_GC`."""
        assert self.points.seed_N is not None
        factor_NC = (influence_GC / self.points.count_G[:, None])[self.points.group_N]
        return np.asarray((sums_of_seeds(factor_NC * self.residual_NC, self.points.seed_N) ** 2).sum(0))

    def freedom(self, influence_GC: Array) -> Array:
        """Return the degrees of freedom [C] of that variance (Satterthwaite)."""
        most = self.points.num_seeds - 1.0
        if self.correction is None:
            return np.full(influence_GC.shape[1], most)
        factor_NC = (influence_GC / self.points.count_G[:, None])[self.points.group_N]
        return np.clip(np.nan_to_num(self.correction.freedom(factor_NC), nan=1.0), 1.0, most)


@dataclass(frozen=True)
class Correction:
    """Bell and McCaffrey's correction: each seed's residuals are widened by (I - H)^(-1/2), I outside the design's span.

    It and the degrees of freedom are exact for independent values, the reference case.
    """

    design_CNQ: Array
    inverse_CQQ: Array
    members: list[np.ndarray]
    """Values of each seed."""
    parts: list[tuple[Array, Array]]
    """Directions [C, M, D] of each seed's residuals in the design's span, and the widening [C, D] of each, less 1."""

    @staticmethod
    def of_design(design_CNQ: Array, seed_N: np.ndarray) -> Correction:
        inverse_CQQ = np.linalg.pinv(np.swapaxes(design_CNQ, 1, 2) @ design_CNQ).astype(np.float64)
        members, parts = [np.flatnonzero(seed_N == seed) for seed in range(int(seed_N.max()) + 1)], []
        for own in members:
            basis_CMD, triangle_CDQ = np.linalg.qr(design_CNQ[:, own])
            leverage_CD, turn_CDD = np.linalg.eigh(triangle_CDQ @ inverse_CQQ @ np.swapaxes(triangle_CDQ, 1, 2))
            # a direction that the seed alone determines has no residual
            left_CD = 1 - leverage_CD
            widening_CD = np.where(left_CD > FREE, np.maximum(left_CD, FREE) ** -0.5, 0.0) - 1
            parts.append((basis_CMD @ turn_CDD, widening_CD))
        return Correction(design_CNQ, inverse_CQQ, members, parts)

    def widened(self, value_NC: Array) -> Array:
        """Return the values of each seed, widened."""
        widened_NC = value_NC.copy()
        for own, (basis_CMD, widening_CD) in zip(self.members, self.parts, strict=True):
            along_CD = np.einsum("cmd,mc->cd", basis_CMD, value_NC[own]) * widening_CD
            widened_NC[own] += np.einsum("cmd,cd->mc", basis_CMD, along_CD)
        return widened_NC

    def freedom(self, factor_NC: Array) -> Array:
        """Return the degrees of freedom [C] of the variance of the sum of the values weighted by `factor_NC`."""
        widened_NC = self.widened(factor_NC)
        reach_CSQ = np.stack(
            [np.einsum("cmq,mc->cq", self.design_CNQ[:, own], widened_NC[own]) for own in self.members], axis=1
        )
        gram_CSS = -reach_CSQ @ self.inverse_CQQ @ np.swapaxes(reach_CSQ, 1, 2)
        at = np.arange(len(self.members))
        gram_CSS[:, at, at] += np.stack([(widened_NC[own] ** 2).sum(0) for own in self.members], axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.trace(gram_CSS, axis1=1, axis2=2) ** 2 / (gram_CSS**2).sum((1, 2)))


def seed_spread(
    points: Points, jacobian_PGC: Array, residual_GC: Array, *, has_level: bool, threshold: float | None = None
) -> SeedSpread | None:
    """Estimate the spread between whole seeds around a fit.

    Args:
        points: The curves, gathered by x.
        jacobian_PGC: Jacobian of the fit.
        residual_GC: Residuals of the fit.
        has_level: Whether the level is a further parameter.
        threshold: Residual from which Huber's function is linear. Such residuals are clipped, not corrected.

    Returns:
        The spread, or None with fewer than MIN_SEEDS seeds or without seeds.
    """
    if points.seed_N is None or points.num_seeds < MIN_SEEDS:
        return None
    num_seeds, around_NC = points.num_seeds, points.deviation_NC + residual_GC[points.group_N]
    if threshold is not None:
        return SeedSpread(points, np.clip(around_NC, -threshold, threshold))
    if is_complete(points):
        return SeedSpread(points, points.deviation_NC * np.sqrt(num_seeds / (num_seeds - 1)))
    design_CNQ = np.moveaxis(jacobian_PGC[:, points.group_N], (2, 1), (0, 1))
    if has_level:
        design_CNQ = np.concatenate([np.ones((*design_CNQ.shape[:2], 1)), design_CNQ], axis=2)
    correction = Correction.of_design(design_CNQ, points.seed_N)
    return SeedSpread(points, correction.widened(around_NC), correction)


def is_complete(points: Points) -> bool:
    """Return whether every seed has a value at each x."""
    return points.num_points == points.num_seeds * len(points.x_G)


def sums_of_seeds(value_NC: Array, seed_N: np.ndarray) -> Array:
    """Sum the values of each seed, [S, C]."""
    sums_SC = np.zeros((int(seed_N.max()) + 1, value_NC.shape[1]))
    np.add.at(sums_SC, seed_N, value_NC)
    return sums_SC


def own_levels(points: Points, residual_GC: Array) -> Array:
    """Return the squares [C] that remain when each seed has its own level."""
    assert points.seed_N is not None
    around_NC = points.deviation_NC + residual_GC[points.group_N]
    count_S1 = np.bincount(points.seed_N)[:, None]
    level_SC = sums_of_seeds(around_NC, points.seed_N) / count_S1
    return np.asarray(((around_NC - level_SC[points.seed_N]) ** 2).sum(0))


def log_x_interval(is_outside: Callable[[Array], Mask], log_x_C: Array) -> tuple[Array, Array]:
    """Return the limits in ln x, [C] and [C], of the interval around `log_x_C` within which `is_outside` is false.

    A limit is infinite if the search finds no end, or if `log_x_C` is infinite.
    """
    meets_C = np.isfinite(log_x_C)
    start_C = np.where(meets_C, log_x_C, 0.0)
    ends = []
    for sign in (-1, 1):
        inside_C, outside_C = start_C, np.full_like(start_C, np.inf)
        for reach in FARTHER:
            tried_C = start_C + sign * reach
            new_C, out_C = np.isinf(outside_C), is_outside(tried_C)
            outside_C = np.where(new_C & out_C, tried_C, outside_C)
            inside_C = np.where(new_C & ~out_C, tried_C, inside_C)
        found_C = np.isfinite(outside_C) & meets_C
        outside_C = np.where(found_C, outside_C, inside_C)
        for _ in range(60):
            middle_C = (inside_C + outside_C) / 2
            out_C = is_outside(middle_C)
            inside_C, outside_C = np.where(out_C, inside_C, middle_C), np.where(out_C, middle_C, outside_C)
        ends.append(np.where(found_C, inside_C, sign * np.inf))
    return ends[0], ends[1]


def lack_of_fit(points: Points, residual_GC: Array, jacobian_PGC: Array, *, has_level: bool = True) -> Array:
    """Return the p-values [C] of the test that the means of log y lie on the fitted curves.

    The part of the residuals that no change of the parameters explains is compared with its spread between whole seeds (those
    with a value at every x), pooled over x. A shift or another exponent of a whole seed is no evidence against a curve. For
    independent values, the spread is that of the values around their means.

    Args:
        points: The curves, gathered by x.
        residual_GC: Residuals of the means.
        jacobian_PGC: Derivatives of the curves. Zero for a parameter on its bound, which cannot follow the means.
        has_level: Whether the level is a further parameter.

    Returns:
        NaN without a spread, with fewer than MIN_SEEDS whole seeds, or with as many parameters as x.
    """
    num_x, num_curves = residual_GC.shape
    tangent_CGQ = np.moveaxis(jacobian_PGC, (2, 1), (0, 1))
    if has_level:
        tangent_CGQ = np.concatenate([np.ones((num_curves, num_x, 1)), tangent_CGQ], axis=2)
    basis_CGQ, size_CQ, _ = np.linalg.svd(tangent_CGQ, full_matrices=False)
    is_used_CQ = size_CQ > 1e-15 * num_x * size_CQ[:, :1]
    basis_CGQ = basis_CGQ * is_used_CQ[:, None]
    freedom_C = (num_x - is_used_CQ.sum(1)).astype(np.float64)
    if points.seed_N is not None:
        around_CSG = np.moveaxis(_deviations_of_whole_seeds(points) + residual_GC, -1, 0)
        if around_CSG.shape[1] < MIN_SEEDS:
            return np.full(num_curves, np.nan)
        return p_of_zero_means(around_CSG - around_CSG @ basis_CGQ @ np.swapaxes(basis_CGQ, 1, 2), freedom_C)
    pure, within_C = points.num_points - num_x, points.within_C
    misfit_C = (points.mass_GC * residual_GC**2).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        p_C = f_tail(misfit_C / freedom_C * pure / within_C, freedom_C, pure)
    return np.where((freedom_C > 0) & (within_C > points.num_points * EXACT_FIT_RMS**2), p_C, np.nan)


def p_of_zero_means(value_CSQ: Array, num_values_C: Array) -> Array:
    """Return the p-values [C] of the F test that values have mean zero over S seeds, for any correlation between them.

    Degrees of freedom follow Huynh and Feldt, whose traces are unbiased: Student's t for one value. (Greenhouse and Geisser's
    would reject with three seeds in less than 1 % of cases at 5 %, and hardly ever see a difference.)

    Args:
        value_CSQ: Values, at least two seeds.
        num_values_C: Number of independent values among Q. NaN results where it is 0.
    """
    num_seeds = value_CSQ.shape[1]
    free = num_seeds - 1
    mean_CQ = value_CSQ.mean(1)
    around_CSQ = value_CSQ - mean_CQ[:, None]
    # The seeds' products have the trace of the covariance, and their square has that of its square.
    gram_CSS = around_CSQ @ np.swapaxes(around_CSQ, 1, 2) / free
    variance_C, square_C = np.trace(gram_CSS, axis1=1, axis2=2), (gram_CSS**2).sum((1, 2))
    misfit_C, smallest_C = (mean_CQ**2).sum(1), num_values_C * EXACT_FIT_RMS**2
    with np.errstate(divide="ignore", invalid="ignore"):
        # Both are unbiased up to one factor, which their ratio does not have.
        square_of_trace_C = (free + 1) * variance_C**2 - 2 * square_C
        trace_of_square_C = free * square_C - variance_C**2
        share_C = np.clip(square_of_trace_C / trace_of_square_C / num_values_C, 1 / num_values_C, 1.0)
        share_C = np.where(trace_of_square_C > 0, share_C, 1.0)
        p_C = f_tail(num_seeds * misfit_C / variance_C, num_values_C * share_C, num_values_C * free * share_C)
    p_C = np.where(variance_C > smallest_C, p_C, misfit_C <= smallest_C)  # without a spread, only rounding differs
    return np.where(num_values_C > 0, p_C, np.nan)


def _deviations_of_whole_seeds(points: Points) -> Array:
    """Return log y minus the means at each x, [S, G, C], of the seeds with a value at every x."""
    deviation_SGC = np.full((points.num_seeds, *points.mean_GC.shape), np.nan)
    deviation_SGC[points.seed_N, points.group_N] = points.deviation_NC
    return deviation_SGC[~np.isnan(deviation_SGC).any((1, 2))]


def table_of_seeds(points: Points, seeds: Sequence[Hashable]) -> tuple[list[Hashable], Array]:
    """Return the seeds with a value at each x, and their log y [S, G] on the first curve.

    `seeds`: the argument passed to `gather`.
    """
    assert points.seed_N is not None
    log_y_SG = np.full((points.num_seeds, len(points.x_G)), np.nan)
    log_y_SG[points.seed_N, points.group_N] = points.mean_GC[points.group_N, 0] + points.deviation_NC[:, 0]
    full = np.flatnonzero(~np.isnan(log_y_SG).any(1))
    names = list(dict.fromkeys(seeds))
    return [names[number] for number in full], log_y_SG[full]
