"""Whether a measurement falls as fast as a theorem's upper bound: one-sided, and up to the factor that no theorem fixes well.

Shapes: N points.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.models import POWER
from depthrate.tasks.fits.points import FitError
from depthrate.tasks.fits.rates import fit_rates


@dataclass(frozen=True)
class BoundCheck:
    """A measurement over its bound: what respects the bound does not grow with x."""

    exponent: float
    """Of the bound at these x, its logarithms included: positive when it falls."""
    ratio: float
    """The exponent of the measurement over the bound: negative when it grows."""
    ci_low: float
    ci_high: float
    """95 % interval of it: below zero as a whole, the measurement falls more slowly than the bound, which can't last."""

    @property
    def verdict(self) -> str:
        """What the interval says: above zero as a whole `respected`, below zero `slower`, else `not rejected`."""
        if self.ci_high < 0:
            return "slower"
        return "respected" if self.ci_low >= 0 else "not rejected"


def check_bound(
    x_N: npt.ArrayLike,
    y_N: npt.ArrayLike,
    bound_N: npt.ArrayLike,
    *,
    seeds: Sequence[Hashable] | None = None,
    weights: str = "equal",
) -> BoundCheck | None:
    """Fit a power law to y / bound; null where that has no interval (too few x, or too few whole seeds), and where the bound
    says nothing of x: it is the same at each, or differs at one x by something else.

    x_N, y_N, bound_N: [N], positive. seeds: as for `fit_rates`.
    """
    x_N, y_N, bound_N = (np.asarray(values, dtype=np.float64) for values in (x_N, y_N, bound_N))
    bound_of_x = dict(zip(x_N.tolist(), bound_N.tolist(), strict=True))
    if len(bound_of_x) < 3 or len(set(bound_of_x.values())) < 2:
        return None
    if any(bound_of_x[x] != bound for x, bound in zip(x_N.tolist(), bound_N.tolist(), strict=True)):
        return None
    try:
        (fit,) = fit_rates(x_N, y_N / bound_N, models=(POWER.name,), seeds=seeds, weights=weights)
    except FitError:
        return None
    if fit.ci_low is None or fit.ci_high is None:
        return None
    log_x_N = np.log(x_N) - np.log(x_N).mean()
    exponent = -float(log_x_N @ np.log(bound_N) / (log_x_N @ log_x_N))
    return BoundCheck(exponent, fit.exponent, fit.ci_low, fit.ci_high)
