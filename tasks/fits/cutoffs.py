"""Where a power law sets in: the lower cut-off, and how the exponent moves when the smallest x are left out.

Shapes: N points.
Source: Draper and Smith, Applied Regression Analysis (1998), 2.1 (lack of fit).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.intervals import f_tail
from depthrate.tasks.fits.least_squares import Array
from depthrate.tasks.fits.models import POWER
from depthrate.tasks.fits.points import ROUNDING, gather
from depthrate.tasks.fits.rate_fit import squares_around
from depthrate.tasks.fits.rates import fit_rates

SMALLEST_CUT = 4
"""Distinct x that the lower cut-off leaves at least."""
CUT_LEVEL = 0.05
"""The lower cut-off is the smallest x from which on the lack-of-fit test gives at least this p-value."""


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
    points = gather(x_N, y_N[None], weights)
    line, pure = len(points.x_G) - 2, points.num_points - len(points.x_G)
    within = float(points.within_C[0])
    if line < 1 or pure < 1 or within <= points.num_points * ROUNDING**2:
        return None
    around = squares_around(POWER, points)[0] - within
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
        (fit,) = fit_rates(x_N[kept], y_N[kept], models=(POWER.name,), weights=weights, num_resamples=num_resamples)
        row = {"x_min": float(x_min), "exponent": fit.exponent, "ci_low": fit.ci_low, "ci_high": fit.ci_high}
        rows.append({**row, "n_points": fit.n_points})
    return rows
