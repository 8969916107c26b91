"""The record of one form fitted to one table of values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from depthrate.tasks.fits.least_squares import Array
from depthrate.tasks.fits.models import FORMS
from depthrate.tasks.fits.points import check_positive

Interval: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """One parameter with its uncertainty."""

    value: float
    stderr: float | None = None
    """Standard error: over whole units if known, else from least squares. None without a remaining degree of freedom, or if the
    values do not determine the parameter."""
    low: float | None = None
    high: float | None = None
    """95 % interval. An end is None if the values do not determine it or no interval exists."""
    p_half: float | None = None
    p_one: float | None = None
    """Two-sided p-values of 1/2 and 1. None if no theorem predicts the parameter."""
    has_interval: bool = False
    """Whether there is an interval, which may be open."""

    def scaled(self, unit: float) -> Estimate:
        """Return the estimate times a unit."""
        ends = {name: value * unit for name in ("stderr", "low", "high") if (value := getattr(self, name)) is not None}
        return replace(self, value=self.value * unit, **ends)

    @property
    def interval(self) -> Interval | None:
        """The interval, with an infinite end where it is open. None without one."""
        if not self.has_interval:
            return None
        return -np.inf if self.low is None else self.low, np.inf if self.high is None else self.high


@dataclass(frozen=True)
class FitWarning:
    """Something that the values do not determine."""

    code: str
    """`trade_off`: the estimates of two parameters correlate. `loss`: another loss moves an exponent by more than half the
    width of its interval."""
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Fit:
    """One form fitted to one table. For one variable, the properties from `exponent` on are the columns of the fits table."""

    form: str
    """Name of the form, a key of FORMS."""
    exponent_estimates: tuple[Estimate, ...]
    """a of each variable, as in y = c x^-a. Positive when y falls with x."""
    coefficient_estimates: tuple[Estimate, ...]
    """c, or c_k of each variable for a sum of powers. Infinite or zero outside the range of a float."""
    other_estimates: Mapping[str, Estimate] = field(default_factory=dict)
    """Other parameters by name: floor, log_power, correction."""
    variables: tuple[str, ...] = ("x",)
    r2: float | None = None
    """Share of the variance of the means of log y at each x explained by the form. None when they are constant."""
    aicc: float | None = None
    """AICc up to a constant of the values. The noise variance counts as a parameter. None with too few values."""
    weight: float | None = None
    """Akaike weight among the forms fitted to the same values. None without `aicc`."""
    n_points: int = 0
    n_seeds: int | None = None
    """Number of whole units, such as seeds. None for independent values."""
    method: str = ""
    """Method of the intervals: `t` (Student's), `profile` (likelihood), `bootstrap` (percentiles over whole units) or `bca`
    (bootstrap over the values that share one x). Empty without intervals."""
    p_lack_of_fit: float | None = None
    """p-value of the test against one mean per x. None if the values do not allow it."""
    aicc_break: float | None = None
    """AICc of a power law of one variable with a break, the same for all forms of a table. None with too few x or values, or if
    one form alone is fitted."""
    loss: str = "log"
    """One of LOSSES."""
    huber: float | None = None
    """Residual of log y from which Huber's function replaces the square. None with another loss."""
    objective: float = 0.0
    """Sum of half squares of the residuals, or of Huber's function."""
    profile_low: float | None = None
    profile_high: float | None = None
    """95 % interval of the first exponent by profile likelihood (F test). Assumes independent values with the same variance at
    every x. An end is None if the values do not determine it, both if whole units are known."""
    x_at_target: float | None = None
    x_at_low: float | None = None
    x_at_high: float | None = None
    """x at which the curve meets the requested target, with a 95 % interval. None if it never does. Over whole seeds, only
    straight lines (power, exponential) have the interval."""
    seed_spread: float | None = None
    """Standard deviation of the first exponent between units, noise included. None with fewer than three."""
    left_out: float | None = None
    """Root mean square of the residuals of log y when each value of each variable is left out and predicted. None if it is not
    computed."""
    on_bound: float = 0.0
    """Share of resamples whose floor is 0."""
    warnings: tuple[FitWarning, ...] = ()

    @property
    def exponents(self) -> tuple[float, ...]:
        """a of each variable."""
        return tuple(estimate.value for estimate in self.exponent_estimates)

    @property
    def intervals(self) -> tuple[Interval | None, ...]:
        """95 % intervals of the exponents."""
        return tuple(estimate.interval for estimate in self.exponent_estimates)

    @property
    def coefficients(self) -> tuple[float, ...]:
        """c, or c_k of each variable."""
        return tuple(estimate.value for estimate in self.coefficient_estimates)

    @property
    def coefficient_intervals(self) -> tuple[Interval | None, ...]:
        """95 % intervals of the coefficients."""
        return tuple(estimate.interval for estimate in self.coefficient_estimates)

    @property
    def exponent(self) -> float:
        """a of the only variable, or of the first."""
        return self.exponent_estimates[0].value

    @property
    def stderr(self) -> float | None:
        """Standard error of `exponent`."""
        return self.exponent_estimates[0].stderr

    @property
    def ci_low(self) -> float | None:
        """Lower end of the 95 % interval of `exponent`. None if it is open or no interval exists."""
        return self.exponent_estimates[0].low

    @property
    def ci_high(self) -> float | None:
        """Upper end of the 95 % interval of `exponent`."""
        return self.exponent_estimates[0].high

    @property
    def ci_method(self) -> str | None:
        """Method of the interval of `exponent`, `seeds` for Student's t and the profile over whole units. None without one."""
        if self.ci_low is None and self.ci_high is None:
            return None
        return "seeds" if self.n_seeds is not None and self.method != "bootstrap" else self.method

    @property
    def p_half(self) -> float | None:
        """p-value of `exponent` = 1/2."""
        return self.exponent_estimates[0].p_half

    @property
    def p_one(self) -> float | None:
        """p-value of `exponent` = 1."""
        return self.exponent_estimates[0].p_one

    @property
    def prefactor(self) -> float:
        """c, or c_1 of a sum in several variables."""
        return self.coefficient_estimates[0].value

    @property
    def floor(self) -> float | None:
        """Floor of power_floor, >= 0. None for other forms."""
        return self.parameter("floor")

    @property
    def floor_interval(self) -> Interval | None:
        """95 % interval of the floor."""
        return self.other_estimates["floor"].interval if "floor" in self.other_estimates else None

    @property
    def log_power(self) -> float | None:
        """b, the power of the first variable's logarithm. None for forms without one."""
        return self.parameter("log_power")

    @property
    def correction(self) -> float | None:
        """b of power_correction. None for other forms."""
        return self.parameter("correction")

    @property
    def log_power_interval(self) -> Interval | None:
        """95 % interval of b."""
        return self.other_estimates["log_power"].interval if "log_power" in self.other_estimates else None

    @property
    def n_units(self) -> int:
        """Number of independent units: whole units, or values."""
        return self.n_points if self.n_seeds is None else self.n_seeds

    @property
    def trade_offs(self) -> tuple[tuple[str, str, float], ...]:
        """Pairs of parameters whose estimates correlate, and the correlation."""
        found = [warning.values for warning in self.warnings if warning.code == "trade_off"]
        return tuple((values["one"], values["other"], values["correlation"]) for values in found)

    def parameter(self, name: str) -> float | None:
        """Return a parameter other than c and a, or None if the form does not have it or it is not finite."""
        value = self.other_estimates[name].value if name in self.other_estimates else np.nan
        return value if math.isfinite(value) else None

    def row(self) -> dict[str, Any]:
        """Build the row of the fits table of one variable: the columns, then the other parameters by name."""
        columns = {"model": self.form} | {name: getattr(self, name) for name in COLUMNS}
        others = {name: self.parameter(name) for name in self.other_estimates}
        return columns | {"loss_function": self.loss} | others  # `loss` would be a metric there

    def predict(self, x_K: npt.ArrayLike) -> Array:
        """Return y at values of the variables, [K, ...].

        Outside the fitted x, log_linear may be negative. power_log is NaN below x = 1.

        Raises:
            FitError: An x is not positive and finite.
        """
        values = np.asarray(x_K, dtype=np.float64)
        check_positive("x", values)
        others = {name: estimate.value for name, estimate in self.other_estimates.items()}
        with np.errstate(all="ignore"):
            return FORMS[self.form].value(values, self.coefficients, self.exponents, others)


COLUMNS = (
    *(
        "exponent",
        "stderr",
        "ci_low",
        "ci_high",
        "ci_method",
        "prefactor",
        "floor",
        "r2",
        "aicc",
        "weight",
        "n_points",
    ),
    *("log_power", "profile_low", "profile_high", "p_half", "p_one", "x_at_target", "x_at_low", "x_at_high", "n_seeds"),
    *("seed_spread", "p_lack_of_fit", "huber"),
)
"""Columns of the fits table that a fit in one variable has."""
