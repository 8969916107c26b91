"""Tests of a power law (bend, omitted smallest x, a theorem's bound).

Shapes: N points, G groups (the distinct x, rising), S seeds.
Source: Draper and Smith, Applied Regression Analysis (1998), 2.1 (lack of fit).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.bootstrap_and_profile import f_tail
from depthrate.tasks.fits.models import POWER
from depthrate.tasks.fits.points import EXACT_FIT_RMS, FitError, as_curve, gather
from depthrate.tasks.fits.rates import fit_rates
from depthrate.tasks.fits.whole_seeds import MIN_SEEDS, p_of_zero_means, table_of_seeds


def lack_of_fit(
    x_N: npt.ArrayLike, y_N: npt.ArrayLike, *, seeds: Sequence[Hashable] | None = None, is_log_x: bool = True
) -> float | None:
    """Test whether log y is straight in log x (or in x), against a quadratic bend.

    The bend is one contrast: the coefficient of (log x)^2 (or x^2), with a free line. Over whole seeds, Student's t compares
    its mean with its variation between seeds (only seeds with a value at every x). A test of all departures together has
    almost no power with three seeds. For independent values, the scatter of the values around their means is the noise.

    Args:
        x_N: Positive x values, shape [N].
        y_N: Positive y values, shape [N].
        seeds: Seed of each value, length N, as for `fit_rates`.
        is_log_x: Whether a power law is tested. Otherwise, an exponential.

    Returns:
        The p-value, or None if the points do not allow the test.

    Raises:
        FitError: See `fit_many`.
    """
    points = gather(as_curve("x", x_N), as_curve("y", y_N)[None], seeds)
    if len(points.x_G) < 3:
        return None
    at_G = np.log(points.x_G) if is_log_x else points.x_G
    line_and_bend_GP = np.stack([np.ones_like(at_G), at_G, at_G**2], axis=1)
    bend_G = np.linalg.qr(line_and_bend_GP)[0][:, 2]
    if seeds is not None:
        _, log_y_SG = table_of_seeds(points, seeds)
        bend_1S1 = (log_y_SG @ bend_G)[None, :, None]
        return float(p_of_zero_means(bend_1S1, np.ones(1))[0]) if len(log_y_SG) >= MIN_SEEDS else None
    pure, within = points.num_points - len(points.x_G), float(points.within_C[0])
    if pure < 1 or within <= points.num_points * EXACT_FIT_RMS**2:
        return None
    variance = within / pure * float((bend_G**2 / points.count_G).sum())
    return float(f_tail(float(bend_G @ points.mean_GC[:, 0]) ** 2 / variance, 1, pure))


def sensitivity(
    x_N: npt.ArrayLike, y_N: npt.ArrayLike, *, seeds: Sequence[Hashable] | None = None, num_resamples: int = 1000
) -> list[dict[str, float | int | None]]:
    """Fit the power law to all x, then without the smallest x, the two smallest, and so on while three are left.

    Returns:
        One row per cut: x_min, exponent, ci_low, ci_high, n_points. The first row covers all points, the last the three
        largest x. Its exponent is the nearest to a local one, which a slow approach to a power law does not bias.
    """
    x_N, y_N = as_curve("x", x_N), as_curve("y", y_N)
    distinct = np.unique(x_N)
    rows: list[dict[str, float | int | None]] = []
    for x_min in distinct[: max(len(distinct) - 2, 1)]:
        above = x_N >= x_min
        left = None if seeds is None else list(compress(seeds, above))
        (fit,) = fit_rates(x_N[above], y_N[above], models=(POWER.name,), seeds=left, num_resamples=num_resamples)
        row = {"x_min": float(x_min), "exponent": fit.exponent, "ci_low": fit.ci_low, "ci_high": fit.ci_high}
        rows.append({**row, "n_points": fit.n_points})
    return rows


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
