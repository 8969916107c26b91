"""Common exponent of several curves, and the test of whether they share it.

Shapes: N points, G groups (the distinct x, rising), S seeds, K curves.
Source: Draper and Smith, Applied Regression Analysis (1998), 14 (common slopes).
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.bootstrap_and_profile import f_tail, t_quantile
from depthrate.tasks.fits.least_squares import Array, information, linear_influence
from depthrate.tasks.fits.models import POWER
from depthrate.tasks.fits.points import EXACT_FIT_RMS, FitError, Points, as_curve, gather
from depthrate.tasks.fits.rates import fit_rates
from depthrate.tasks.fits.whole_seeds import MIN_SEEDS, p_of_zero_means, table_of_seeds


@dataclass(frozen=True)
class CommonFit:
    """Common exponent of several groups with separate prefactors, and the test that they share it."""

    exponent: float
    ci_low: float
    ci_high: float
    """95 % interval, Student's t."""
    p_common: float
    """p-value of the F test that all groups share the exponent, over whole seeds if they are known."""
    num_groups: int


def common_exponent(
    curves: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]], *, seeds: Sequence[Sequence[Hashable]] | None = None
) -> CommonFit:
    """Fit one power-law exponent to several curves and test whether they share it.

    Args:
        curves: Pairs (x, y) of positive values. Each curve has its own prefactor.
        seeds: Seed of each value, per curve. A seed may have values in all curves and is one replicate. Without it, the
            noise is assumed independent, with the same variance in all groups.

    Returns:
        The common exponent, its 95 % interval and the p-value of the test.

    Raises:
        FitError: There are fewer than two curves, too few points or whole seeds for the test, or invalid values as for
            `fit_many`.
    """
    if len(curves) < 2:
        raise FitError(f"a common exponent is fitted to {len(curves)} curves, expected at least 2.")
    x_y = [(as_curve("x", x), as_curve("y", y)) for x, y in curves]
    if seeds is not None:
        return _over_seeds(x_y, seeds)
    return _over_values(x_y)


def _over_seeds(curves: list[tuple[Array, Array]], seeds: Sequence[Sequence[Hashable]]) -> CommonFit:
    """Average each seed's exponents over the groups, and test whether the group means differ."""
    slopes, information_K = [], list[float]()
    for (x_N, y_N), of_curve in zip(curves, seeds, strict=True):
        points = gather(x_N, y_N[None], of_curve)
        names, log_y_SG = table_of_seeds(points, of_curve)
        influence_G, known = _power_influence(points)
        information_K.append(known)
        slopes.append(dict(zip(names, log_y_SG @ influence_G, strict=True)))
    shared = [seed for seed in slopes[0] if all(seed in of_curve for of_curve in slopes)]
    if len(shared) < MIN_SEEDS:
        raise FitError(
            f"{len(shared)} seeds have a value at every x of every curve, expected at least {MIN_SEEDS} for a common exponent."
        )
    slope_SK = np.array([[of_curve[seed] for of_curve in slopes] for seed in shared])
    exponent_S = slope_SK @ np.array(information_K) / sum(information_K)
    exponent, num_seeds = float(exponent_S.mean()), len(shared)
    half = t_quantile(num_seeds - 1) * float(exponent_S.std(ddof=1)) / math.sqrt(num_seeds)
    difference_SK = slope_SK - slope_SK.mean(1, keepdims=True)
    p_common = float(p_of_zero_means(difference_SK[None], np.array([len(curves) - 1.0]))[0])
    return CommonFit(exponent, exponent - half, exponent + half, p_common, len(curves))


def _power_influence(points: Points) -> tuple[Array, float]:
    """Return the influence [G] of each mean on the power law's exponent, and the information about it."""
    influence_G1 = linear_influence(POWER.basis(points.x_KG), points.mass_GC)[0]
    return influence_G1[:, 0], float(information(influence_G1, points.mass_GC)[0])


def _over_values(curves: list[tuple[Array, Array]]) -> CommonFit:
    """Average the exponents by their information, and test whether they differ, with the pooled residuals as noise."""
    fits = [fit_rates(x_N, y_N, models=(POWER.name,), num_resamples=1)[0] for x_N, y_N in curves]
    num_points, q = sum(fit.n_points for fit in fits), len(curves) - 1
    free = num_points - 2 * len(curves)
    if free < 1:
        raise FitError(f"{num_points} points in {len(curves)} curves leave no degree of freedom for the test")
    information_K = np.array([_power_influence(gather(x_N, y_N[None]))[1] for x_N, y_N in curves])
    exponent_K, total = np.array([fit.exponent for fit in fits]), float(information_K.sum())
    exponent = float(information_K @ exponent_K) / total
    within = 2 * sum(fit.objective for fit in fits)
    # Squares added by a common slope to the squares around each curve's own slope.
    added = float(information_K @ (exponent_K - exponent) ** 2)
    p_common = float(f_tail(added / q / max(within / free, EXACT_FIT_RMS**2), q, free))
    half = t_quantile(free + q) * math.sqrt(max(within + added, EXACT_FIT_RMS**2) / (free + q) / total)
    return CommonFit(exponent, exponent - half, exponent + half, p_common, len(curves))
