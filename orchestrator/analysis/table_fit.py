"""Fit rates in one to three variables to any table: the rows that the command line and Python share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depthrate.orchestrator.analysis.preference import LogMeans, Preference, judge, why_inadequate
from depthrate.sweeps.expression import Expression
from depthrate.tasks.fits import DEFAULT_FORMS, current_names
from depthrate.tasks.fits.bootstrap_and_profile import holm
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.models import FORMS
from depthrate.tasks.fits.points import FitError
from depthrate.tasks.fits.several_variables import SurfaceFits, fit_surfaces
from depthrate.tasks.parameters import nearest

if TYPE_CHECKING:
    import pandas as pd

MAX_FIRST_COUNT = 20
"""Largest smallest value of a whole number that may count layers with or without the first one."""
FACTS = (
    *(
        "form",
        "variables",
        "exponents",
        "intervals",
        "coefficients",
        "coefficient_intervals",
        "log_power",
        "log_power_interval",
    ),
    *(
        "floor",
        "floor_interval",
        "correction",
        "loss",
        "huber",
        "objective",
        "r2",
        "aicc",
        "left_out",
        "p_lack_of_fit",
        "on_bound",
        "trade_offs",
        "n_points",
    ),
    *("n_units", "method"),
)
"""Facts of a form in JSON."""
CLEAR_SHIFT = 0.05
"""Change of an exponent above which the fit says that it depends on the count."""


@dataclass(frozen=True)
class TableFit:
    """The forms fitted to one table."""

    y: str
    surfaces: SurfaceFits
    omitted: int
    """Number of rows without a positive value of each column."""
    repeated: int
    """Number of used rows that equal an earlier one in the fitted columns and the unit. Each counts as a value."""
    shifts: Mapping[str, float]
    """Variable that counts -> change of its exponent in the preferred form if it counts from one less."""
    x_KN: np.ndarray = field(repr=False)
    """Used values of the variables, [K, N]."""
    y_N: np.ndarray = field(repr=False)
    unit_N: np.ndarray = field(repr=False)
    """Number of each value's unit."""
    other_p_values: tuple[float, ...] = ()
    """p-values of a sweep's other fits, for which Holm's procedure corrects too."""

    @cached_property
    def cells(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Distinct combinations of the variables, [K, C], the number of each value's one, [N], and the means of log y, [C]."""
        x_KC, cell_N = np.unique(self.x_KN, axis=1, return_inverse=True)
        cell_N = cell_N.reshape(-1)
        return x_KC, cell_N, np.bincount(cell_N, np.log(self.y_N)) / np.bincount(cell_N)

    @cached_property
    def log_means(self) -> LogMeans:
        """Mean of log y at each combination of the variables."""
        x_KC, _, log_y_C = self.cells
        return dict(zip(map(tuple, x_KC.T.tolist()), log_y_C.tolist(), strict=True))

    @cached_property
    def preference(self) -> Preference:
        """The forms that describe the values, by the rule for all fits."""
        return judge(self.surfaces.fits, self.log_means, self.variables)

    @cached_property
    def inadequacy(self) -> dict[str, str]:
        """Form -> why it does not describe the values, or an empty string."""
        return why_inadequate(self.surfaces.fits, self.log_means, self.variables)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the variables."""
        return self.surfaces.fits[0].variables

    @property
    def preferred(self) -> tuple[Fit, ...]:
        """Adequate forms that the values do not rule out, the best first."""
        return self.preference.models

    def p_values(self) -> list[float]:
        """Return the p-values of all tests, uncorrected."""
        estimates = [estimate for fit in self.surfaces.fits for estimate in fit.exponent_estimates]
        return [p for estimate in estimates for p in (estimate.p_half, estimate.p_one) if p is not None]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per form and variable: exponent with interval, p-values and facts of the form."""
        tests = self.p_values()
        corrected = iter(holm([*tests, *self.other_p_values]))
        rows = []
        for fit in self.surfaces.fits:
            shared = {
                "preferred": fit in self.preferred,
                "adequate": not self.inadequacy[fit.form],
                **{name: getattr(fit, name) for name in ("floor", "loss", "huber", "objective", "r2", "aicc")},
                **{name: getattr(fit, name) for name in ("left_out", "on_bound", "p_lack_of_fit")},
                **{name: getattr(fit, name) for name in ("n_points", "n_units", "method")},
                "omitted": self.omitted,
                **dict(zip(("floor_low", "floor_high"), fit.floor_interval or (None, None), strict=True)),
                "num_tests": len(tests) + len(self.other_p_values),
            }
            for k, (name, estimate) in enumerate(zip(fit.variables, fit.exponent_estimates, strict=True)):
                tested = [None if p is None else next(corrected) for p in (estimate.p_half, estimate.p_one)]
                row = {"form": fit.form, "x": name, "exponent": estimate.value}
                row |= dict(zip(("ci_low", "ci_high"), estimate.interval or (None, None), strict=True))
                row |= {"coefficient": fit.coefficients[k if len(fit.coefficients) > 1 else 0]}
                rows.append(row | dict(zip(("p_half", "p_one"), tested, strict=True)) | shared)
        return rows


def read_table(path: Path) -> pd.DataFrame:
    """Read a table: CSV, Parquet or JSON.

    Raises:
        FitError: It cannot be read.
    """
    import pandas as pd

    readers = {".csv": pd.read_csv, ".parquet": pd.read_parquet, ".json": pd.read_json}
    if path.suffix not in readers:
        raise FitError(f"{path} ends in {path.suffix!r}, expected one of {', '.join(readers)}.")
    try:
        frame: pd.DataFrame = readers[path.suffix](path)  # type: ignore[operator]
    except (ValueError, OSError) as error:
        raise FitError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from None
    return frame


def fit_table(
    frame: pd.DataFrame,
    y: str,
    x: Sequence[str],
    over: str | None = None,
    *,
    loss: str = "log",
    huber: float | None = None,
    forms: Sequence[str] = DEFAULT_FORMS,
    num_resamples: int = 1000,
    seed: int = 0,
) -> TableFit:
    """Fit y over one to three variables.

    Args:
        frame, y, x, over, forms: As for `depthrate.fit`.
        loss, huber, num_resamples, seed: As `loss`, `delta`, `num_resamples` and `seed` of `fit_surfaces`.

    Raises:
        FitError: A column is unknown or not numeric, or see `fit_surfaces`.
        ExpressionError: A variable is not arithmetic.
    """
    columns = [_column(frame, name) for name in (y, *x)]
    units = None if over is None else _units(frame, over)
    is_used = np.all([np.isfinite(column) & (column > 0) for column in columns], axis=0)
    y_N, *x_KN = (column[is_used] for column in columns)
    units = units and list(compress(units, is_used))

    def fit(x_KN: Sequence[np.ndarray], **options: Any) -> SurfaceFits:
        return fit_surfaces(np.array(x_KN), y_N, list(x), units=units, loss=loss, delta=huber, seed=seed, **options)

    surfaces = fit(x_KN, forms=current_names(forms), num_resamples=num_resamples)
    numbers = {unit: number for number, unit in enumerate(dict.fromkeys(units or range(len(y_N))))}
    unit_N = np.array([numbers[unit] for unit in units or range(len(y_N))])
    rows = zip(*(column.tolist() for column in (*x_KN, y_N)), units or [None] * len(y_N), strict=True)
    repeated = len(y_N) - len(set(rows))
    found = TableFit(y, surfaces, int((~is_used).sum()), repeated, {}, np.array(x_KN), y_N, unit_N)
    best = (found.preferred or surfaces.fits)[0]
    shifts = {}
    for k, name in enumerate(x):
        has_logarithm = k == 0 and FORMS[best.form].needs_x_above_one
        if name.isidentifier() and _counts(x_KN[k]) and not (has_logarithm and x_KN[k].min() <= 2):
            moved = [*x_KN[:k], x_KN[k] - 1, *x_KN[k + 1 :]]
            again = fit(moved, forms=[best.form], num_resamples=0).fits[0]
            shifts[name] = again.exponents[k] - best.exponents[k]
    return replace(found, shifts=shifts)


def _column(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Return the numbers of a column, or of arithmetic over columns. NaN where a value is missing."""
    if name in frame.columns:
        return _numbers(frame, name)
    expression = Expression(name)
    for used in expression.names:
        if used not in frame.columns:
            raise FitError(f"the table has no column {used!r}{nearest(used, list(map(str, frame.columns)))}")
    values = {used: _numbers(frame, used).tolist() for used in expression.names}
    rows = []
    for number in range(len(frame)):
        try:
            rows.append(float(expression.evaluate({used: of[number] for used, of in values.items()})))
        except (ValueError, ZeroDivisionError, OverflowError):
            rows.append(np.nan)
    return np.array(rows)


def _numbers(frame: pd.DataFrame, name: str) -> np.ndarray:
    import pandas as pd

    try:
        return np.asarray(pd.to_numeric(frame[name]).to_numpy(dtype=np.float64, na_value=np.nan))
    except (ValueError, TypeError) as error:
        raise FitError(f"column {name!r} is not numeric: {error}") from None


def _units(frame: pd.DataFrame, over: str) -> list[Any]:
    if over not in frame.columns:
        raise FitError(f"the table has no column {over!r}{nearest(over, list(map(str, frame.columns)))}")
    if frame[over].isna().any():
        raise FitError(f"column {over!r} has missing values, expected the unit of each row")
    units: list[Any] = frame[over].tolist()
    return units


def _counts(x_N: np.ndarray) -> bool:
    """Return whether values are whole numbers that may count from 0 or from 1, as a depth does."""
    return bool((x_N == np.round(x_N)).all() and 2 <= x_N.min() <= MAX_FIRST_COUNT)
