"""How a measurement falls with depth: curves fitted by least squares on log y of every seed, with their uncertainty.

Shapes: C curves on one design (the same x), N points.
Source: Burnham and Anderson, Model Selection and Multimodel Inference (2002), section 2.9 (weights).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.intervals import draw
from depthrate.tasks.fits.least_squares import Array
from depthrate.tasks.fits.models import MODELS, models_named
from depthrate.tasks.fits.points import FitError, check_positive, gather
from depthrate.tasks.fits.rate_fit import RateFit, fit_family


def fit_rates(
    x_N: npt.ArrayLike,
    y_N: npt.ArrayLike,
    *,
    models: Iterable[str] | None = None,
    seeds: Sequence[Hashable] | None = None,
    weights: str = "equal",
    num_resamples: int = 1000,
    seed: int = 0,
    target: float | None = None,
) -> list[RateFit]:
    """Fit every model that has fewer parameters than there are distinct x (power always), in the order asked for.

    x_N, y_N: [N], positive; the order of the points is of no account. The noise is taken as multiplicative. seeds: which
    seed each value belongs to, where one seed has values at several x: intervals are then over whole seeds. Without, every
    value is taken as a draw of its own.
    Raises FitError: see `fit_many`.
    """
    y_N = np.asarray(y_N, dtype=np.float64)
    y_CN = y_N[None] if y_N.ndim == 1 else y_N
    options = {"weights": weights, "num_resamples": num_resamples, "seed": seed, "target": target}
    return fit_many(x_N, y_CN, models=models, seeds=seeds, **options)[0]  # type: ignore[arg-type]


def fit_many(
    x_N: npt.ArrayLike,
    y_CN: npt.ArrayLike,
    *,
    models: Iterable[str] | None = None,
    seeds: Sequence[Hashable] | None = None,
    weights: str = "equal",
    num_resamples: int = 1000,
    seed: int = 0,
    target: float | None = None,
) -> list[list[RateFit]]:
    """Fit many curves measured at the same x at once; every curve's fits are those it would have alone.

    x_N: [N]; y_CN: [C, N]; positive. seeds: N of them, as for `fit_rates`. models: names out of MODELS, null for all.
    weights: equal; spread (the variance follows a power of x, fitted to the spread at each x); robust (values far from
    their group's median are pulled in).
    target: y for x_at_target.
    power_log is left out where an x is not above 1, or the x lie too close together to tell log x from log log x.
    Raises FitError for fewer than two distinct x, values that are not positive and finite, lengths that differ, a model
    or weighting that is not known, fewer than one resample.
    """
    asked = models_named(MODELS if models is None else models)
    if num_resamples < 1:
        raise FitError(f"num_resamples is {num_resamples}; at least 1 is needed")
    if target is not None and not (math.isfinite(target) and target > 0):
        raise FitError(f"target is {target}; it must be finite and above zero")
    points = gather(np.asarray(x_N, dtype=np.float64), np.asarray(y_CN, dtype=np.float64), weights, seeds)
    resampling = draw(points, num_resamples, seed) if seeds is None else None
    families = [model.family(points) for model in asked if len(points.x_G) >= model.min_distinct_x]
    fitted = [fit_family(family, points, resampling, target) for family in families if family is not None]
    return [_with_weights(list(fits)) for fits in zip(*fitted, strict=True)]


def predict(fit: RateFit, x_N: npt.ArrayLike) -> Array:
    """Return the fitted curve's y at x.

    x_N: any shape, positive; y has the same shape. Beyond the fitted x, log_linear may fall below zero; power_log is
    NaN below x = 1.
    Raises FitError for an x that is not positive and finite.
    """
    x_N = np.asarray(x_N, dtype=np.float64)
    check_positive("x", x_N)
    (model,) = models_named([fit.model])
    others = {parameter.name: fit.parameter(parameter.name) or 0.0 for parameter in model.parameters}
    with np.errstate(all="ignore"):
        return model.value(x_N, fit.prefactor, fit.exponent, others)


def _with_weights(fits: list[RateFit]) -> list[RateFit]:
    criteria = [fit.aicc for fit in fits if fit.aicc is not None]
    if not criteria:
        return fits
    total = sum(math.exp((min(criteria) - aicc) / 2) for aicc in criteria)
    return [
        fit if fit.aicc is None else replace(fit, weight=math.exp((min(criteria) - fit.aicc) / 2) / total)
        for fit in fits
    ]
