"""Merge two sweeps into one report with common figures."""

import shlex
from dataclasses import replace
from typing import Any

import pandas as pd

from depthrate.orchestrator.analysis.compare import pair_up
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.report.curve_groups import SWEEP_COLUMN, unique
from depthrate.orchestrator.report.figure_data import FigureContent
from depthrate.orchestrator.report.report_data import ReportData

_FRAMES = ("results", "metrics", "curves", "lists", "points", "layered")
"""Fields of the tables with a column trial_id."""


def merge_reports(first: ReportData, second: ReportData) -> ReportData:
    """Merge two sweeps into one with the additional parameter `sweep`. A trial that belongs to both sweeps appears twice.

    Raises:
        UsageError: The two sweeps are the same sweep, or a parameter is named `sweep`.
    """
    if first.name == second.name:
        raise UsageError(f"cannot overlay {second.name!r} on itself. Overlay another sweep, or omit --overlay.")
    for data in (first, second):
        if SWEEP_COLUMN in data.parameters:
            raise UsageError(
                f"sweep {data.name!r} has a parameter {SWEEP_COLUMN!r}, a name that overlays reserve. "
                "Write one report per sweep."
            )
    shared = set(first.trials["trial_id"]) & set(second.trials["trial_id"])
    other = _renamed(second, {trial_id: f"{trial_id} of {second.name}" for trial_id in shared})
    frames: dict[str, Any] = {name: _concat(getattr(first, name), getattr(other, name)) for name in _FRAMES}
    # common exponents are tested per sweep
    curves = [
        replace(curve, by={SWEEP_COLUMN: data.name, **curve.by}, common=None)
        for data in (first, second)
        for curve in data.fits
    ]
    order = unique((curve.metric, curve.x) for curve in curves)
    report = [f"{command} --overlay {shlex.quote(second.name)}" for command in first.commands[-1:]]
    trials = [data.trials.assign(**{SWEEP_COLUMN: data.name}) for data in (first, other)]
    return replace(
        first,
        **frames,
        name=f"{first.name} and {second.name}",
        trials=pd.concat(trials, ignore_index=True),
        fits=sorted(curves, key=lambda curve: order.index((curve.metric, curve.x))),
        commands=unique([*first.commands[:-1], *second.commands[:-1], *report]),
        problems=unique([*first.problems, *second.problems]),
        measurements={**second.measurements, **first.measurements},
        panels=tuple(unique([*first.panels, *second.panels])),
        search=None,
        figures=_figures(first, other),
        parts=(first, second),
        pairs=tuple(pair_up(first.fits, second.fits)),
    )


def _concat(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Concatenate two tables, with trial_id as a category."""
    both = pd.concat([first, second], ignore_index=True)
    return both.assign(trial_id=both["trial_id"].astype(str).astype("category")) if "trial_id" in both else both


def _renamed(data: ReportData, names: dict[str, str]) -> ReportData:
    """Rename some trials, so that their names differ from the other sweep's."""
    frames = {name: getattr(data, name) for name in (*_FRAMES, "trials")}
    renamed: dict[str, Any] = {
        name: frame.assign(trial_id=frame["trial_id"].astype(str).replace(names)) if "trial_id" in frame else frame
        for name, frame in frames.items()
    }
    figures = [
        replace(figure, rows=figure.rows.assign(trial_id=figure.rows["trial_id"].replace(names)))
        if "trial_id" in figure.rows
        else figure
        for figure in data.figures
    ]
    return replace(data, **renamed, figures=figures)


def _figures(first: ReportData, second: ReportData) -> list[FigureContent]:
    """Return the requested figures of both sweeps. Equal requests become one figure with a group per sweep."""
    figures: list[FigureContent] = []
    remaining = list(second.figures)
    for figure in first.figures:
        same = next((other for other in remaining if other.request == figure.request and not other.problem), None)
        if same is None or figure.problem or figure.request.kind not in ("curve", "share", "distribution"):
            figures.append(figure)
            continue
        remaining.remove(same)
        request = figure.request.replace(by=(SWEEP_COLUMN, *figure.request.by))
        figures.append(FigureContent(request, pd.concat([figure.rows, same.rows], ignore_index=True)))
    return figures + remaining
