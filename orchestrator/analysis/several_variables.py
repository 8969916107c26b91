"""Fit a request in several variables: one table of values per group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.replicates import replicate_keys
from depthrate.orchestrator.analysis.table_fit import fit_table
from depthrate.tasks.fits.points import FitError

UNIT = "unit of resampling"


def fit_variables(groups: Sequence[FittedGroup]) -> list[FittedGroup]:
    """Fit groups of a sweep in several variables, and correct the tests of each for those of all others (Holm)."""
    fitted = [_fitted(group) for group in groups]
    p_values = [() if group.table is None else tuple(group.table.p_values()) for group in fitted]
    corrected = []
    for number, group in enumerate(fitted):
        others = sum((*p_values[:number], *p_values[number + 1 :]), start=())
        corrected.append(replace(group, table=group.table and replace(group.table, other_p_values=others)))
    return corrected


def _fitted(group: FittedGroup) -> FittedGroup:
    import pandas as pd

    rows: list[Mapping[str, Any]] = sorted(group.rows, key=lambda row: row["trial_id"])
    if not rows:
        return replace(group, note=f"nothing to fit: {group.excluded_text or 'no trial'}")
    frame = pd.DataFrame([row["variables"] for row in rows])
    units = replicate_keys(rows)
    frame[group.metric] = [row["y"] for row in rows]
    if units is not None:
        frame[UNIT] = [str(unit) for unit in units]
    over, request = None if units is None else UNIT, group.asked
    names, forms = list(request.variables), request.forms
    try:
        table = fit_table(frame, group.metric, names, over, loss=request.loss, huber=request.huber, forms=forms)
    except FitError as error:
        return replace(group, note=str(error))
    return replace(group, fits=list(table.surfaces.fits), table=table)
