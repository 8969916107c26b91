"""One-sided test that a metric falls as fast as a theorem's upper bound, up to a constant factor.

Shapes: N points.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.models import POWER
from depthrate.tasks.fits.points import FitError
from depthrate.tasks.fits.rates import fit_rates


@dataclass(frozen=True)
class BoundCheck:
    """Fit of the ratio of a metric to its bound, which must not grow with x."""

    exponent: float
    """Exponent of the bound at these x, including its logarithms. Positive when it falls."""
    ratio: float
    """Exponent of the ratio metric / bound. Negative when the ratio grows."""
    ci_low: float
    ci_high: float
    """95 % interval of `ratio`. Entirely below zero: the metric falls more slowly than the bound, which cannot last."""

    @property
    def verdict(self) -> str:
        """Verdict: `respected` if the interval is above zero, `slower` if below, else `not rejected`."""
        if self.ci_high < 0:
            return "slower"
        return "respected" if self.ci_low >= 0 else "not rejected"


def check_bound(
    x_N: npt.ArrayLike, y_N: npt.ArrayLike, bound_N: npt.ArrayLike, *, seeds: Sequence[Hashable] | None = None
) -> BoundCheck | None:
    """Fit a power law to y / bound.

    Args:
        x_N: Positive x values, shape [N].
        y_N: Positive y values, shape [N].
        bound_N: Positive bound of each y, shape [N].
        seeds: Seed of each value, length N, as for `fit_rates`.

    Returns:
        The check, or None if the fit fails, has no interval (too few x or whole seeds), or the bound is not a function
        of x that varies.
    """
    x_N, y_N, bound_N = (np.asarray(values, dtype=np.float64) for values in (x_N, y_N, bound_N))
    bound_of_x = dict(zip(x_N.tolist(), bound_N.tolist(), strict=True))
    if len(bound_of_x) < 3 or len(set(bound_of_x.values())) < 2:
        return None
    if any(bound_of_x[x] != bound for x, bound in zip(x_N.tolist(), bound_N.tolist(), strict=True)):
        return None
    try:
        (fit,) = fit_rates(x_N, y_N / bound_N, models=(POWER.name,), seeds=seeds)
    except FitError:
        return None
    if fit.ci_low is None or fit.ci_high is None:
        return None
    log_x_N = np.log(x_N) - np.log(x_N).mean()
    exponent = -float(log_x_N @ np.log(bound_N) / (log_x_N @ log_x_N))
    return BoundCheck(exponent, fit.exponent, fit.ci_low, fit.ci_high)
