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
Greenhouse and Geisser (1959) (means of correlated values).
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


def p_of_zero_means(value_SQ: Array) -> float:
    """Return the p-value of the F test that Q values have mean zero over S seeds, for any correlation between them.

    Degrees of freedom follow Greenhouse and Geisser: Student's t for Q = 1, conservative for Q > 1.
    """
    num_seeds, num_values = value_SQ.shape
    mean_Q = value_SQ.mean(0)
    covariance_QQ = np.atleast_2d(np.cov(value_SQ, rowvar=False))
    variance = float(np.trace(covariance_QQ))
    if variance <= num_values * EXACT_FIT_RMS**2:
        return 0.0 if float(mean_Q @ mean_Q) > num_values * EXACT_FIT_RMS**2 else 1.0
    share = variance**2 / (num_values * float((covariance_QQ**2).sum()))
    f = num_seeds * float(mean_Q @ mean_Q) / variance
    return float(f_tail(f, num_values * share, num_values * (num_seeds - 1) * share))


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


def without(columns_GP: Array) -> Array:
    """Return an orthonormal basis [G, G - P] of the orthogonal complement of the columns."""
    return np.linalg.qr(columns_GP, mode="complete")[0][:, columns_GP.shape[1] :]
