"""Fit a group of trials in several variables: one table of values, and its rows of the fits table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.replicates import replicate_keys
from depthrate.orchestrator.analysis.table_fit import TableFit, fit_table
from depthrate.tasks.fits.points import FitError

UNIT = "unit of resampling"


@dataclass(frozen=True)
class FittedSurface:
    """A metric over several variables, for one group of trials."""

    values: FittedCurve
    """Used and excluded trials."""
    fit: TableFit | None
    note: str = ""
    """Reason for the missing fit."""

    def table_rows(self, sweep: str) -> list[dict[str, Any]]:
        """Return the rows of the fits table, one per form and variable."""
        if self.fit is None:
            return []
        values = self.values
        preferred = " or ".join(fit.form for fit in self.fit.preferred) or "none"
        shared = values.values_columns(sweep) | {"variables": values.x, "preferred": preferred}
        copied = ["x", "exponent", "ci_low", "ci_high", "floor", "r2", "aicc"]
        copied += ["p_half", "p_one", "p_lack_of_fit", "n_points"]
        return [
            {name: row[name] for name in copied}
            | {"model": row["form"], "prefactor": row["coefficient"], "ci_method": row["method"] or None}
            | {"n_seeds": row["n_units"] if values.draws else None, "is_adequate": row["adequate"]}
            | shared
            for row in self.fit.rows()
        ]


def with_all_tests(surfaces: Sequence[FittedSurface]) -> list[FittedSurface]:
    """Give each fit of a sweep the p-values of all others, for which Holm's procedure corrects too."""
    p_values = [() if surface.fit is None else tuple(surface.fit.p_values()) for surface in surfaces]
    corrected = []
    for number, surface in enumerate(surfaces):
        others = sum((*p_values[:number], *p_values[number + 1 :]), start=())
        corrected.append(replace(surface, fit=surface.fit and replace(surface.fit, other_p_values=others)))
    return corrected


def fit_surface(values: FittedCurve) -> FittedSurface:
    """Fit a group of a request in several variables."""
    import pandas as pd

    rows: list[Mapping[str, Any]] = sorted(values.rows, key=lambda row: row["trial_id"])
    if not rows:
        return FittedSurface(values, None, f"nothing to fit: {values.excluded_text or 'no trial'}")
    frame = pd.DataFrame([row["variables"] for row in rows])
    units = replicate_keys(rows)
    frame[values.metric] = [row["y"] for row in rows]
    if units is not None:
        frame[UNIT] = [str(unit) for unit in units]
    over, request = None if units is None else UNIT, values.asked
    names, forms = list(request.variables), request.forms
    try:
        fit = fit_table(frame, values.metric, names, over, loss=request.loss, huber=request.huber, forms=forms)
    except FitError as error:
        return FittedSurface(values, None, str(error))
    return FittedSurface(values, fit)
