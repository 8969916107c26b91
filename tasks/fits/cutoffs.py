"""Lower cut-off of a power law, and the sensitivity of the exponent to omitting the smallest x.

Shapes: N points, G groups (the distinct x, rising), S seeds, Q contrasts.
Source: Draper and Smith, Applied Regression Analysis (1998), 2.1 (lack of fit).
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.bootstrap_and_profile import f_tail
from depthrate.tasks.fits.least_squares import Array
from depthrate.tasks.fits.models import POWER
from depthrate.tasks.fits.points import EXACT_FIT_RMS, as_curve, gather
from depthrate.tasks.fits.rate_fit import squares_around
from depthrate.tasks.fits.rates import fit_rates
from depthrate.tasks.fits.whole_seeds import MIN_SEEDS, p_of_zero_means, table_of_seeds, without

SMALLEST_CUT = 4
"""Minimum number of distinct x above the lower cut-off."""
CUT_LEVEL = 0.05
"""Minimum p-value of the lack-of-fit test: the lower cut-off is the smallest x that reaches it."""


@dataclass(frozen=True)
class Cutoff:
    """Lower cut-off: the power law is fitted to x >= x_min."""

    x_min: float
    p_lack_of_fit: float | None
    """p-value of the test that the means at the remaining x lie on a power law. None without a degree of freedom."""
    passed: bool
    """True if the cut-off passes the test. If no cut-off passes, nothing is cut."""


def cutoff(
    x_N: npt.ArrayLike, y_N: npt.ArrayLike, *, seeds: Sequence[Hashable] | None = None, weights: str = "equal"
) -> Cutoff:
    """Choose the smallest cut-off at which the power law passes the lack-of-fit F test at 5 %.

    At least four distinct x remain.

    Args:
        x_N: Positive x values, shape [N].
        y_N: Positive y values, shape [N].
        seeds: Seed of each value, length N, as for `fit_rates`.
        weights: Weighting, see `fit_many`.

    Returns:
        The first cut-off that passes or cannot be tested. If none does, the smallest x with its p-value.

    Raises:
        FitError: See `fit_many`.
    """
    tests = []
    for x_min, above in _cuts(x_N, y_N, seeds, SMALLEST_CUT):
        p = lack_of_fit(*above, weights=weights)
        tests.append(Cutoff(x_min, p, p is not None and p >= CUT_LEVEL))
        if p is None or p >= CUT_LEVEL:
            return tests[-1]
    return tests[0]


def _cuts(
    x_N: npt.ArrayLike, y_N: npt.ArrayLike, seeds: Sequence[Hashable] | None, num_left: int
) -> Iterator[tuple[float, tuple[Array, Array, list[Hashable] | None]]]:
    """Yield each cut-off that leaves `num_left` distinct x or more, and x, y and seeds from there on."""
    x_N, y_N = as_curve("x", x_N), as_curve("y", y_N)
    distinct = np.unique(x_N)
    for x_min in distinct[: max(len(distinct) - num_left + 1, 1)]:
        above = x_N >= x_min
        yield float(x_min), (x_N[above], y_N[above], None if seeds is None else list(compress(seeds, above)))


def lack_of_fit(
    x_N: Array, y_N: Array, seeds: Sequence[Hashable] | None = None, *, weights: str = "equal"
) -> float | None:
    """Test whether the means at the distinct x lie on a power law.

    Over whole seeds, the test compares the mean deviation of the seeds' values from their own lines with its variation
    between seeds (only seeds with a value at every x). Otherwise it compares the scatter of the means around a power law
    with the scatter of the values around their means.

    Returns:
        The p-value, or None if the points do not allow the test.
    """
    points = gather(x_N, y_N[None], weights, seeds)
    line, pure = len(points.x_G) - 2, points.num_points - len(points.x_G)
    if line < 1:
        return None
    if seeds is not None:
        _, log_y_SG = table_of_seeds(points, seeds)
        bends_GQ = without(np.stack([np.ones_like(points.x_G), np.log(points.x_G)], axis=1))
        return p_of_zero_means(log_y_SG @ bends_GQ) if len(log_y_SG) >= MIN_SEEDS else None
    within = float(points.within_C[0])
    if pure < 1 or within <= points.num_points * EXACT_FIT_RMS**2:
        return None
    around = squares_around(POWER, points)[0] - within
    return float(f_tail((around / line) / (within / pure), line, pure))


def sensitivity(
    x_N: npt.ArrayLike,
    y_N: npt.ArrayLike,
    *,
    seeds: Sequence[Hashable] | None = None,
    weights: str = "equal",
    num_resamples: int = 1000,
) -> list[dict[str, float | int | None]]:
    """Fit the power law to all x, then without the smallest x, the two smallest, and so on while three are left.

    Returns:
        One row per cut: x_min, exponent, ci_low, ci_high, n_points. The first row covers all points.
    """
    rows: list[dict[str, float | int | None]] = []
    for x_min, (x, y, seeds_left) in _cuts(x_N, y_N, seeds, 3):
        (fit,) = fit_rates(x, y, models=(POWER.name,), seeds=seeds_left, weights=weights, num_resamples=num_resamples)
        row = {"x_min": x_min, "exponent": fit.exponent, "ci_low": fit.ci_low, "ci_high": fit.ci_high}
        rows.append({**row, "n_points": fit.n_points})
    return rows
