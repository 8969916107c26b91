"""Rates in one to three variables of one table, and what they leave undecided.

Shapes: K variables, N values.
Source: Belsley, Kuh and Welsch (1980), Regression Diagnostics (variance inflation).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits import DEFAULT_FORMS, MAX_VARIABLES
from depthrate.tasks.fits.bootstrap_and_profile import draw
from depthrate.tasks.fits.estimate import Options, checked_loss, compared, fit_form
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.least_squares import Array
from depthrate.tasks.fits.models import forms_named
from depthrate.tasks.fits.points import FitError, as_curve, gather

MAX_INFLATION = 5.0
"""Variance inflation above which two variables are confounded (a correlation of .89)."""
SMALLEST_EIGENVALUE = 1e-9
"""Eigenvalue of the correlations below which one variable follows from the others."""
MAX_ON_BOUND = 0.025
"""Share of resamples with E at 0 above which E is not identified."""


@dataclass(frozen=True)
class SurfaceFits:
    """The forms fitted to one table."""

    fits: tuple[Fit, ...]
    inflation: float
    """Largest variance inflation of the variables' logarithms."""
    confounded: tuple[str, ...] = ()
    """The two variables with the largest correlation of their logarithms."""


def fit_surfaces(
    x_KN: npt.ArrayLike,
    y_N: npt.ArrayLike,
    names: Sequence[str],
    *,
    units: Sequence[Hashable] | None = None,
    forms: Sequence[str] = DEFAULT_FORMS,
    loss: str = "log",
    delta: float | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
) -> SurfaceFits:
    """Fit forms in one to three variables.

    Args:
        x_KN: Positive values of the variables, [K, N].
        y_N: Positive values, [N].
        names: Names of the variables.
        units: Independent unit of each value, such as its seed or run, length N. None: each value.
        forms: Forms to fit.
        loss: `log` (squares of the residuals of log y), `y` (squares of those of y) or `huber`.
        delta: Threshold of Huber's function for the residuals of log y, which it implies.
        num_resamples: Number of resamples.
        seed: Seed of the resamples.

    Raises:
        FitError: A value is not positive and finite, lengths differ, a variable has fewer than two values or follows from the
            others, there are fewer values than parameters, or the loss is unknown or lacks its threshold.
    """
    x_KN, y_N = np.asarray(x_KN, dtype=np.float64), as_curve("y", y_N)
    if x_KN.ndim != 2 or x_KN.shape != (len(names), len(y_N)) or not 1 <= len(names) <= MAX_VARIABLES:
        raise FitError(
            f"x has shape {x_KN.shape}, expected [{len(names)}, {len(y_N)}]: one row for each of at most {MAX_VARIABLES} names."
        )
    requested = forms_named(forms, len(names))
    points = gather(x_KN, y_N[None], units, names, "units")
    for model in requested:
        if model.needs_x_above_one and not (x_KN[0] > 1).all():
            raise FitError(
                f"{names[0]} has values up to 1, whose logarithm has no power: {model.name} needs values above 1."
            )
    if len(names) == 1:  # as of a curve, a form without a residual is left out
        num_x = len(points.x_G)
        fewest = min(model.min_distinct_x for model in requested)
        if num_x < fewest:
            raise FitError(f"{num_x} values of {names[0]}, {' or '.join(forms)} needs at least {fewest}.")
        requested = [model for model in requested if num_x >= model.min_distinct_x]
    num_parameters = max(model.num_parameters_of(len(names)) for model in requested)
    if len(y_N) <= num_parameters:
        raise FitError(
            f"{len(y_N)} values, expected more than the {num_parameters} parameters of {' or '.join(forms)}."
        )
    resampling = draw(points, num_resamples, seed) if units is None and num_resamples else None
    checked = checked_loss(loss, delta)
    options = Options(tuple(names), num_resamples, seed, resampling, None, *checked, leaves_out=True)
    fitted = [fit_form(model, points, options) for model in requested]
    fits = [fits_C[0] for fits_C in fitted if fits_C is not None]
    if not fits:
        raise FitError(
            f"one of {', '.join(names)} follows from the others, so that they have no exponents of their own."
        )
    confounded = tuple(names[k] for k in _most_correlated(np.log(x_KN)))
    (fits,) = compared([fits], points)
    return SurfaceFits(tuple(fits), _inflation(np.log(x_KN)), confounded)


def is_floor_identified(fit: Fit) -> bool:
    """Return whether the values decide that the floor is above 0."""
    return (
        fit.on_bound <= MAX_ON_BOUND and bool(fit.floor) and (fit.floor_interval is None or fit.floor_interval[0] > 0)
    )


def inflation_of(rows: Sequence[Sequence[float]]) -> float:
    """Return the largest variance inflation of the variables of a design, of rows of positive values.

    It is infinite if one is a power of others, or has one value.
    """
    log_x_KN = np.log(np.array(rows, dtype=np.float64)).T
    if not log_x_KN.size or (np.ptp(log_x_KN, axis=1) == 0).any():
        return math.inf
    return _inflation(log_x_KN)


def _inflation(log_x_KN: Array) -> float:
    """Return the largest variance inflation of a variable: 1 / (1 - R^2) of its regression on the others."""
    if len(log_x_KN) == 1:
        return 1.0
    correlation_KK = np.corrcoef(log_x_KN)
    if np.linalg.eigvalsh(correlation_KK)[0] < SMALLEST_EIGENVALUE:
        return math.inf
    return float(np.diag(np.linalg.inv(correlation_KK)).max())


def _most_correlated(log_x_KN: Array) -> list[int]:
    if len(log_x_KN) == 1:
        return []
    size_KK = np.abs(np.corrcoef(log_x_KN)) - np.eye(len(log_x_KN))
    return sorted(int(k) for k in np.unravel_index(int(np.argmax(size_KK)), size_KK.shape))
