"""Rates of a metric over depth and other variables: forms fitted to log y of every seed, with their uncertainty.

Also how a power law depends on its smallest x, and how it compares with a theorem's bound.

Shapes: K variables, C curves on one design (the same x), N points.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt

from depthrate.tasks.data.labels import check_dense
from depthrate.tasks.fits.bootstrap_and_profile import draw
from depthrate.tasks.fits.estimate import Options, checked_loss, compared, fit_form
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.least_squares import Array
from depthrate.tasks.fits.models import MODELS, POWER, forms_named
from depthrate.tasks.fits.points import FitError, as_curve, gather


def fit_rates(
    x_N: npt.ArrayLike,
    y_N: npt.ArrayLike,
    *,
    models: Iterable[str] | None = None,
    seeds: Sequence[Hashable] | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
    target: float | None = None,
    loss: str = "log",
    huber: float | None = None,
) -> list[Fit]:
    """Fit models to one curve.

    A model needs more distinct x than it has parameters (power is always fitted). Noise is assumed multiplicative.

    Args:
        x_N: Positive x values, shape [N], in any order.
        y_N: Positive y values, shape [N].
        models: Names of forms. Default: MODELS.
        seeds: Seed of each value, length N. With it, intervals are over whole seeds. Without it, values are independent.
        num_resamples: Number of bootstrap resamples.
        seed: Seed of the bootstrap.
        target: Value of y for `x_at_target`.
        loss: `log` (squares of the residuals of log y), `y` (squares of those of y) or `huber`.
        huber: Threshold of Huber's function for the residuals of log y, which it implies.

    Returns:
        One fit per fitted model, in the order requested.

    Raises:
        FitError: y is not one curve, or see `fit_many`.
    """
    options = {"num_resamples": num_resamples, "seed": seed, "target": target, "loss": loss, "huber": huber}
    return fit_many(x_N, as_curve("y", y_N)[None], models=models, seeds=seeds, **options)[0]  # type: ignore[arg-type]


def fit_many(
    x_N: npt.ArrayLike,
    y_CN: npt.ArrayLike,
    *,
    models: Iterable[str] | None = None,
    seeds: Sequence[Hashable] | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
    target: float | None = None,
    loss: str = "log",
    huber: float | None = None,
) -> list[list[Fit]]:
    """Fit models to many curves measured at the same x.

    Each curve gets the same fits as it would alone. power_log is omitted if an x is not above 1, or if the x are too
    close together to distinguish log x from log log x.

    Args:
        x_N: Positive x values, shape [N].
        y_CN: Positive y values, shape [C, N].
        models: Names of forms. Default: MODELS.
        seeds: Seed of each value, length N, as for `fit_rates`.
        num_resamples: Number of bootstrap resamples.
        seed: Seed of the bootstrap.
        target: Value of y for `x_at_target`.
        loss: `log` (squares of the residuals of log y), `y` (squares of those of y) or `huber`.
        huber: Threshold of Huber's function for the residuals of log y, which it implies.

    Returns:
        For each curve, one fit per fitted model, in the order requested.

    Raises:
        FitError: Fewer than two x are distinct, a value is not positive and finite, lengths differ, a seed is missing (None
            or NaN), a model is unknown, the target is not positive and finite, `num_resamples` is below 1, or the loss is
            unknown or lacks its threshold.
    """
    requested = forms_named(MODELS if models is None else models)
    if num_resamples < 1:
        raise FitError(f"num_resamples is {num_resamples}, expected at least 1.")
    if target is not None and not (math.isfinite(target) and target > 0):
        raise FitError(f"target is {target}, expected a finite number > 0.")
    check_dense(y_CN, FitError)
    points = gather(as_curve("x", x_N), np.asarray(y_CN, dtype=np.float64), seeds)
    resampling = draw(points, num_resamples, seed) if seeds is None else None
    options = Options(("x",), num_resamples, seed, resampling, target, *checked_loss(loss, huber))
    fitted = [fit_form(model, points, options) for model in requested if len(points.x_G) >= model.min_distinct_x]
    of_curve = list(zip(*filter(None, fitted), strict=True))
    return compared(of_curve, points)


def predict(fit: Fit, x_N: npt.ArrayLike) -> Array:
    """Evaluate a fitted curve.

    Args:
        fit: The fit to evaluate.
        x_N: Positive x values, any shape.

    Returns:
        y values in the shape of `x_N`. Outside the fitted x, log_linear may be negative. power_log is NaN below x = 1.

    Raises:
        FitError: An x is not positive and finite.
    """
    return fit.predict(np.asarray(x_N, dtype=np.float64)[None])


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
