"""Plot requested points: a metric over a parameter, a share of trials over a parameter, a metric's values."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report.curve_groups import group_trials, spread
from depthrate.orchestrator.report.figure_data import FigureContent
from depthrate.orchestrator.report.plot import (
    DASHES,
    GREY,
    MAX_GROUPS,
    Axes,
    Plot,
    Trace,
    make_layout,
    make_trace,
    omission_notes,
    value_ticks,
    viridis,
)
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.text import escape_for_plotly
from depthrate.tasks.fits.proportions import wilson_interval

LOG_FACTOR = 8
"""Minimum range of positive values for a log axis by default, as a factor."""
JITTER = 0.15
"""Horizontal offset of a distribution's points, to either side."""
_NO_NAME = ("all trials",)


def is_log(requested: str, values: Iterable[float]) -> bool:
    """Return whether an axis is logarithmic: as requested, else by its values."""
    array = np.asarray(list(values), dtype=np.float64)
    if requested:
        return requested == "log" and bool((array > 0).all())
    return array.size > 0 and bool(array.min() > 0) and bool(array.max() >= LOG_FACTOR * array.min())


def metric_label_for(data: ReportData, name: str) -> str:
    """Return a metric's label, or the expression itself."""
    return data.measurement(name).label if name in data.measurements else name


def with_positions(data: ReportData, content: FigureContent, names: Sequence[str]) -> pd.DataFrame:
    """Return the numeric values, with their trials' parameters in columns `at_<name>`."""
    numeric = ["value", *(f"line_{number}" for number, _ in enumerate(content.request.lines))]
    rows = content.rows.assign(
        **{name: pd.to_numeric(content.rows[name], errors="coerce").astype(float) for name in numeric}
    )
    parameters = data.trials.drop_duplicates("trial_id").set_index("trial_id")
    for name in names:
        rows[f"at_{name}"] = pd.to_numeric(rows["trial_id"].map(parameters[name]), errors="coerce")
    rows = rows.replace([np.inf, -np.inf], np.nan)
    return rows.dropna(subset=["value", *(f"at_{name}" for name in names)])


def curve_plot(data: ReportData, content: FigureContent) -> Plot | None:
    """Plot a metric over a parameter: light points for trials, a line for their mean, dashed reference lines."""
    request = content.request
    rows = with_positions(data, content, [request.x])
    if rows.empty:
        return None
    at = f"at_{request.x}"
    values = [*rows["value"], *_line_values(rows, request.lines)]
    y_log = is_log(request.y_axis, values)
    axes = Axes(
        request.x, "value", request.x, metric_label_for(data, request.metric), is_log(request.x_axis, rows[at]), y_log
    )
    drawable = rows[rows["value"] > 0] if y_log else rows
    groups = group_trials(data.trials, drawable, list(request.by))
    shown = spread(groups, MAX_GROUPS)
    traces: list[Trace] = []
    for index, ((key, part), colour) in enumerate(zip(shown, viridis(len(shown)), strict=True)):
        group, name = f"g{index}", ", ".join(key) or "mean"
        mean = part.groupby(at)["value"].mean()
        traces.append(make_trace(part[at], part["value"], group, mode="markers", marker=_dot(colour, 0.35)))
        line = {"color": colour, "width": 2}
        traces.append(make_trace(mean.index, mean, group, name=escape_for_plotly(name), line=line, hoverinfo="x+y"))
        for number, dash in zip(range(len(request.lines)), DASHES[1:] * len(request.lines), strict=False):
            reference = part.groupby(at)[f"line_{number}"].mean()
            traces.append(
                make_trace(reference.index, reference, group, line={"color": colour, "dash": dash, "width": 1.5})
            )
    with_values = [name for number, name in enumerate(request.lines) if drawable[f"line_{number}"].notna().any()]
    traces += _line_names(request.lines, with_values)
    layout = make_layout(axes, drawable["value"], legend=request.by)
    _set_ticks(layout, axes, rows[at])
    missing = [f"No values of {name}." for name in request.lines if name not in with_values]
    notes = [
        _trials_note(drawable),
        *missing,
        *omission_notes(len(shown), len(groups), len(rows) - len(drawable), log=y_log),
    ]
    return Plot(request.title or f"{axes.y_title} over {request.x}", traces, layout, notes)


def share_plot(data: ReportData, content: FigureContent) -> Plot | None:
    """Plot the share of trials with a condition over a parameter, with Wilson's 95 % intervals."""
    request = content.request
    rows = with_positions(data, content, [request.x])
    if rows.empty:
        return None
    at = f"at_{request.x}"
    title = request.title or f"Share of trials with {request.condition}"
    axes = Axes(request.x, "share", request.x, "Share of trials", is_log(request.x_axis, rows[at]), False)
    groups = group_trials(data.trials, rows, list(request.by))
    shown = spread(groups, MAX_GROUPS)
    traces: list[Trace] = []
    counts = []
    for index, ((key, part), colour) in enumerate(zip(shown, viridis(len(shown)), strict=True)):
        group = f"g{index}"
        tally = [(x, int((at_x["value"] != 0).sum()), len(at_x)) for x, at_x in part.groupby(at)]
        counts += [f"{(key and ', '.join(key) + ': ') or ''}{k} of {n} at {x:g}" for x, k, n in tally]
        ends = [wilson_interval(k, n) for _, k, n in tally]
        xs = [x for x, _, _ in tally]
        bars_x = [value for x in xs for value in (x, x, None)]
        bars_y = [value for low, high in ends for value in (low, high, None)]
        traces.append(make_trace(bars_x, bars_y, group, line={"color": colour, "width": 1}, opacity=0.6))
        name = escape_for_plotly(", ".join(key) or "share, 95 % interval")
        shares = [k / n for _, k, n in tally]
        style = {"mode": "lines+markers", "marker": {"size": 7, "color": colour}, "line": {"color": colour, "width": 2}}
        traces.append(make_trace(xs, shares, group, name=name, hoverinfo="x+y", **style))
    layout = make_layout(axes, [0, 1], legend=request.by)
    _set_ticks(layout, axes, rows[at])
    layout["yaxis"]["range"] = [-0.03, 1.03]
    notes = [f"Condition: {request.condition}. {'; '.join(counts[:24])}."]
    return Plot(title, traces, layout, notes)


def distribution_plot(data: ReportData, content: FigureContent) -> Plot | None:
    """Plot the values of a metric, one point per trial, with reference lines."""
    request = content.request
    rows = with_positions(data, content, [])
    if rows.empty:
        return None
    groups = spread(group_trials(data.trials, rows, list(request.by)), MAX_GROUPS)
    y_log = is_log(request.y_axis, [*rows["value"], *_line_values(rows, request.lines)])
    axes = Axes("x", "value", ", ".join(request.by), metric_label_for(data, request.metric), False, y_log)
    traces: list[Trace] = []
    notes = []
    dashes = (DASHES[1:] * (1 + len(request.lines)))[: len(request.lines)]
    for index, ((key, part), colour) in enumerate(zip(groups, viridis(len(groups)), strict=True)):
        ordered = part.sort_values("value")
        # neighbours in height go to different sides, reproducibly
        offsets = JITTER * np.array([(-1) ** i * ((i % 5) / 4) for i in range(len(ordered))])
        traces.append(
            make_trace(
                index + offsets, ordered["value"], f"g{index}", mode="markers", marker=_dot(colour, 0.8), hoverinfo="y"
            )
        )
        for number, (name, dash) in enumerate(zip(request.lines, dashes, strict=True)):
            height = pd.to_numeric(part[f"line_{number}"], errors="coerce").mean()
            if np.isfinite(height):
                line = {"color": GREY, "dash": dash, "width": 1.5}
                traces.append(make_trace([index - 0.4, index + 0.4], [height] * 2, f"g{index}", line=line))
                below = int((part["value"] < height * (1 - 1e-9)).sum())
                notes.append(
                    f"{', '.join(key) + ': ' if key else ''}{below} of {len(part)} below {name} ({height:.6g})."
                )
    traces += _line_names(request.lines)
    layout = make_layout(axes, rows["value"])
    names = [escape_for_plotly(", ".join(key or _NO_NAME)) for key, _ in groups]
    layout["xaxis"] |= {"tickvals": list(range(len(groups))), "ticktext": names, "range": [-0.5, len(groups) - 0.5]}
    title = request.title or f"{axes.y_title} of each trial"
    return Plot(title, traces, layout, [_trials_note(rows), *notes])


def _line_values(rows: pd.DataFrame, lines: Iterable[str]) -> list[float]:
    names = [f"line_{number}" for number, _ in enumerate(lines)]
    values = [pd.to_numeric(rows[name], errors="coerce").dropna() for name in names]
    return [float(value) for column in values for value in column]


def _dot(colour: str, opacity: float) -> dict[str, object]:
    return {"size": 6, "color": colour, "opacity": opacity}


def _line_names(lines: Iterable[str], shown: Container[str] | None = None) -> list[Trace]:
    """Return legend entries for the reference lines, by default for all."""
    return [
        make_trace([None], [None], f"line{name}", name=escape_for_plotly(name), line={"color": GREY, "dash": dash})
        for name, dash in zip(lines, itertools.cycle(DASHES[1:]), strict=False)
        if shown is None or name in shown
    ]


def _set_ticks(layout: dict[str, Any], axes: Axes, values: pd.Series) -> None:
    """Set ticks at the parameter's values."""
    if (axes.x_log or values.nunique() <= 10) and values.min() > 0:
        layout["xaxis"] |= value_ticks(values)


def _trials_note(rows: pd.DataFrame) -> str:
    return f"{counted(rows['trial_id'].nunique(), 'trial')}."
