"""Plot a finite-size collapse: the profiles over the layers of several depths, on the axes that make them coincide."""

import numpy as np
import pandas as pd

from depthrate.orchestrator.analysis.replicates import replicate_of
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report.curve_groups import group_trials, setting_text, spread
from depthrate.orchestrator.report.figure import (
    MAX_FACETS,
    Axis,
    Facet,
    Figure,
    Mark,
    colours_of,
    mean_line,
    omission_notes,
)
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.text import ends_text, number_text, signed_text
from depthrate.orchestrator.sheet.names import shorten
from depthrate.sweeps.spec import FitRequest
from depthrate.tasks.figure_request import FigureRequest
from depthrate.tasks.fits.collapse import B_RANGE, Collapse, fit_collapse
from depthrate.tasks.fits.points import FitError


def collapse_plots(data: ReportData, request: FigureRequest, rows: pd.DataFrame) -> list[Figure]:
    """Plot L^a times a metric over (L - layer) / L^b, one line per depth and one facet per group."""
    rows = rows[rows["layer"] >= 1]
    rows = rows.assign(value=pd.to_numeric(rows["value"], errors="coerce").astype(float))
    bad = rows.loc[~((rows["value"] > 0) & (rows["value"] < np.inf)), "trial_id"].unique()
    rows = rows[~rows["trial_id"].isin(bad)]
    if rows.empty:
        return []
    rows = rows.assign(depth=rows.groupby("trial_id", observed=True)["layer"].transform("max"))
    depths = [str(depth) for depth in sorted(rows["depth"].unique())]
    colours = dict(zip(depths, colours_of(depths), strict=True))
    label = data.measurement(request.metric).label
    x, y = Axis(title="(L − layer) / Lᵇ"), Axis(title=shorten(f"Lᵃ · {label}"), is_log=True)
    notes = [f"{counted(rows['trial_id'].nunique(), 'trial')}. Geometric means by layer and depth L."]
    notes += [f"{counted(len(bad), 'trial')} omitted: not positive at every layer."] if len(bad) else []
    facets, groups = [], group_trials(data.trials, rows, list(request.by))
    for key, part in spread(groups, MAX_FACETS):
        setting = setting_text(request.by, key)
        try:
            found = fit_collapse(part["depth"], part["layer"], part["value"], _units(data, request, part))
        except FitError as error:
            notes.append(f"{setting + ': ' if setting else ''}no collapse, {error}.")
            continue
        notes.append(f"{setting + ': ' if setting else ''}{_caption(found)}")
        facets.append(Facet(title=setting, x=x, y=y, marks=_marks(found, part, colours)))
    notes += omission_notes(min(len(groups), MAX_FACETS), len(groups))
    title = request.title or f"Collapse of {label} over layers and depths"
    return [Figure(title, facets, notes, has_common_axes=False)] if facets else []


def _units(data: ReportData, request: FigureRequest, rows: pd.DataFrame) -> list[str] | None:
    """Return the replicate of each row, or None if each trial is its own."""
    asked, ids = FitRequest(request.metric, over=request.over), rows["trial_id"].unique()
    units = {name: replicate_of(asked, params) for name, params in zip(ids, data.params_of(ids), strict=True)}
    return None if None in units.values() else [str(units[name]) for name in rows["trial_id"]]


def _marks(found: Collapse, rows: pd.DataFrame, colours: dict[str, str]) -> list[Mark]:
    marks: list[Mark] = []
    for depth, part in rows.groupby("depth"):
        size = float(part["depth"].iloc[0])
        means = np.exp(np.log(part["value"]).groupby(size - part["layer"]).mean())
        x, y = means.index.to_numpy(dtype=float) / size**found.b, size**found.a * means
        marks.append(mean_line(x, y, f"L {depth}", colours[str(depth)], size=4, width=1.0))
    return marks


def _caption(found: Collapse) -> str:
    """Return the exponents, their intervals and the quality."""
    ends = [f" {ends_text(interval)}" if interval else "" for interval in (found.a_interval, found.b_interval)]
    texts = [f"{name} = {signed_text(v, '.2f')}" for name, v in (("a", found.a), ("b", found.b))]
    quality = f"mean deviation of ln y {number_text(found.quality)} (unscaled {number_text(found.unscaled)})"
    of = f", 95 % over {found.num_units} replicates" if found.a_interval else ", no interval: fewer than 3 replicates"
    edge = f", b is at the edge of the search from {B_RANGE[0]:g} to {B_RANGE[1]:g}" if found.is_at_edge else ""
    return f"{texts[0]}{ends[0]}, {texts[1]}{ends[1]}{of}, {quality}{edge}."
