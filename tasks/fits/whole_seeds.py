"""Uncertainty of an exponent when the values of a seed are correlated: the spread is between whole seeds.

One seed gives networks of every depth the same first layers and the same order of the data. Its values therefore share
an offset, a slope or a bend, and only whole seeds are independent replicates. If every seed has every x, the interval of
a line is Student's t over the slopes per seed. If values are missing, it is the sandwich estimator of linearised least
squares with Bell and McCaffrey's correction, which is identical for complete data. For nonlinear curves, the F test of
the profile is scaled by that variance.

Shapes: C curves, N points, G groups (distinct x), S seeds, P shape parameters, Q = 1 + P, M values of one seed. Curves
come last but where matrices are solved.
Sources: Bell and McCaffrey (2002), Bias reduction in standard errors for linear regression with multi-stage samples
(variance and degrees of freedom); Kent (1982), Robust properties of likelihood ratio tests (the scaled profile);
Huynh and Feldt (1976), Estimation of the Box correction for degrees of freedom from sample data in randomized block and
split-plot designs, corrected by Lecoutre (1991) (means of correlated values); Draper and Smith, Applied Regression Analysis
(1998), 2.1 (lack of fit).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from depthrate.tasks.fits.bootstrap_and_profile import f_tail, t_quantiles
from depthrate.tasks.fits.least_squares import Array
from depthrate.tasks.fits.model import Mask
from depthrate.tasks.fits.points import EXACT_FIT_RMS, Points

MIN_SEEDS = 3
"""Minimum number of seeds for an interval: with two, Student's t is 12.7 and the spread has one degree of freedom."""
FREE = 1e-9
"""Minimum eigenvalue (share of freedom) of a direction of a seed's residuals: below it, the fit determines the direction."""
FARTHER = 0.001 * 1.5 ** np.arange(27)
"""Search steps, in ln x, for the ends of an interval of x: up to 38, or 16 decades."""


@dataclass(frozen=True)
class SeedSpread:
    """Noise around a fit, estimated from whole seeds."""

    points: Points
    residual_NC: Array
    """Residual of each value, scaled so that squared sums over a seed are unbiased."""
    freedom_C: Array
    """Degrees of freedom of the exponent's variance."""

    def variance(self, influence_GC: Array) -> Array:
        """Return the variance [C] of the sum of the group means weighted by `influence_GC`."""
        assert self.points.seed_N is not None
        factor_NC = (influence_GC / self.points.count_G[:, None])[self.points.group_N]
        return np.asarray((sums_of_seeds(factor_NC * self.residual_NC, self.points.seed_N) ** 2).sum(0))

    @property
    def t_C(self) -> Array:
        """Student's t for 95 % intervals."""
        return t_quantiles(self.freedom_C)


def seed_spread(points: Points, jacobian_PGC: Array, residual_GC: Array, influence_GC: Array) -> SeedSpread | None:
    """Estimate the spread between whole seeds around a fit.

    Args:
        points: The curves, gathered by x.
        jacobian_PGC: Jacobian of the fit.
        residual_GC: Residuals of the fit.
        influence_GC: Influence of each group mean on the exponent.

    Returns:
        The spread, or None with fewer than MIN_SEEDS seeds or without seeds.
    """
    if points.seed_N is None or points.num_seeds < MIN_SEEDS:
        return None
    num_seeds = points.num_seeds
    if is_complete(points):
        scale = np.sqrt(num_seeds / (num_seeds - 1))
        return SeedSpread(points, points.deviation_NC * scale, np.full(residual_GC.shape[1], num_seeds - 1.0))
    return _incomplete(points, jacobian_PGC, residual_GC, influence_GC)


def is_complete(points: Points) -> bool:
    """Return whether every seed has a value at each x."""
    return points.num_points == points.num_seeds * len(points.x_G)


def sums_of_seeds(value_NC: Array, seed_N: np.ndarray) -> Array:
    """Sum the values of each seed, [S, C]."""
    sums_SC = np.zeros((int(seed_N.max()) + 1, value_NC.shape[1]))
    np.add.at(sums_SC, seed_N, value_NC)
    return sums_SC


def _incomplete(points: Points, jacobian_PGC: Array, residual_GC: Array, influence_GC: Array) -> SeedSpread:
    """Correct each seed's residuals for the fit (CR2), with Satterthwaite's degrees of freedom.

    Both are exact for independent values, the reference case of Bell and McCaffrey.
    """
    assert points.seed_N is not None
    group_N = points.group_N
    ones_1NC = np.ones((1, *points.deviation_NC.shape))
    x_CNQ = np.moveaxis(np.concatenate([ones_1NC, jacobian_PGC[:, group_N]]), (2, 1), (0, 1))
    inverse_CQQ = np.linalg.pinv(np.swapaxes(x_CNQ, 1, 2) @ x_CNQ)
    hat_CNN = x_CNQ @ inverse_CQQ @ np.swapaxes(x_CNQ, 1, 2)
    left_CNN = np.eye(len(group_N)) - hat_CNN
    around_NC = points.deviation_NC + residual_GC[group_N]
    factor_NC = (influence_GC / points.count_G[:, None])[group_N]
    widened_NC, reach = np.zeros_like(around_NC), []
    for seed in range(points.num_seeds):
        own = np.flatnonzero(points.seed_N == seed)
        value_CM, vector_CMM = np.linalg.eigh(left_CNN[:, own[:, None], own])
        with np.errstate(divide="ignore"):
            widen_CM = np.where(value_CM > FREE, np.maximum(value_CM, FREE) ** -0.5, 0.0)
        widen_CMM = (vector_CMM * widen_CM[:, None]) @ np.swapaxes(vector_CMM, 1, 2)
        widened_NC[own] = np.einsum("cmk,kc->mc", widen_CMM, around_NC[own])
        reach.append(np.einsum("cnm,cmk,kc->cn", left_CNN[:, :, own], widen_CMM, factor_NC[own]))
    reach_CSN = np.stack(reach, axis=1)
    gram_CSS = reach_CSN @ np.swapaxes(reach_CSN, 1, 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom_C = np.trace(gram_CSS, axis1=1, axis2=2) ** 2 / (gram_CSS**2).sum((1, 2))
    freedom_C = np.clip(np.nan_to_num(freedom_C, nan=1.0), 1.0, points.num_seeds - 1.0)
    return SeedSpread(points, widened_NC, freedom_C)


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


def lack_of_fit(points: Points, residual_GC: Array, jacobian_PGC: Array) -> Array:
    """Return the p-values [C] of the test that the means of log y lie on the fitted curves.

    The part of the residuals that no change of the parameters explains is compared with its spread between whole seeds (those
    with a value at every x), pooled over x. A shift or another exponent of a whole seed is no evidence against a curve. For
    independent values, the spread is that of the values around their means.

    Args:
        points: The curves, gathered by x.
        residual_GC: Residuals of the means.
        jacobian_PGC: Derivatives of the curves. Zero for a parameter on its bound, which cannot follow the means.

    Returns:
        NaN without a spread, with fewer than MIN_SEEDS whole seeds, or with as many parameters as x.
    """
    num_x, num_curves = residual_GC.shape
    tangent_CGQ = np.moveaxis(np.concatenate([np.ones((1, num_x, num_curves)), jacobian_PGC]), (2, 1), (0, 1))
    beyond_CGG = np.eye(num_x) - tangent_CGQ @ np.linalg.pinv(tangent_CGQ)
    freedom_C = np.rint(np.trace(beyond_CGG, axis1=1, axis2=2))
    if points.seed_N is not None:
        deviation_SGC = _deviations_of_whole_seeds(points)
        beyond_CSG = np.moveaxis(deviation_SGC + residual_GC, -1, 0) @ beyond_CGG
        return (
            p_of_zero_means(beyond_CSG, freedom_C) if len(deviation_SGC) >= MIN_SEEDS else np.full(num_curves, np.nan)
        )
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
    covariance_CQQ = np.swapaxes(around_CSQ, 1, 2) @ around_CSQ / free
    variance_C, square_C = np.trace(covariance_CQQ, axis1=1, axis2=2), (covariance_CQQ**2).sum((1, 2))
    misfit_C, smallest_C = (mean_CQ**2).sum(1), num_values_C * EXACT_FIT_RMS**2
    with np.errstate(divide="ignore", invalid="ignore"):
        square_of_trace_C = (
            free + 1
        ) * variance_C**2 - 2 * square_C  # times the same factor as the next line, unbiased
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
