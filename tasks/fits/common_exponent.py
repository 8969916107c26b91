"""One exponent for several curves, and whether they have one.

Shapes: N points, G groups (the distinct x, rising).
Source: Draper and Smith, Applied Regression Analysis (1998), 14 (common slopes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.intervals import f_tail, t_quantile
from depthrate.tasks.fits.models import POWER
from depthrate.tasks.fits.points import ROUNDING, FitError, gather
from depthrate.tasks.fits.rate_fit import squares_around


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
        points = gather(x_N, y_N[None], weights)
        mass_G, mean_G = points.mass_GC[:, 0], points.mean_GC[:, 0]
        u_G = np.log(points.x_G) - mass_G @ np.log(points.x_G) / mass_G.sum()
        information += float(mass_G @ u_G**2)
        moment -= float((mass_G * u_G) @ mean_G)
        within += float(squares_around(POWER, points)[0])
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
