"""Plot the panels that a task declares: features as points, vectors with predictions, shares and verdicts."""

from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.curve_groups import (
    finite_arrays,
    group_trials,
    mean_array,
    setting_text,
    spread,
    thin_indices,
    unique,
)
from depthrate.orchestrator.report.figures.layer_paths import layer_maps, path_plot, trade_off_plot
from depthrate.orchestrator.report.line_styles import colour_groups
from depthrate.orchestrator.report.plot import (
    MAX_GROUPS,
    Axes,
    Plot,
    Trace,
    dots,
    legend_entry,
    make_layout,
    make_trace,
    value_ticks,
    viridis,
)
from depthrate.orchestrator.report.report_data import ReportData, ReportSection
from depthrate.orchestrator.report.tables import verdict_table
from depthrate.orchestrator.report.text import escape, escape_for_plotly
from depthrate.tasks.fits.proportions import wilson_interval
from depthrate.tasks.panel import (
    LayerMapPanel,
    PathPanel,
    ProfilePanel,
    ScatterPanel,
    SharePanel,
    TradeOffPanel,
    VerdictPanel,
)

MAX_SCATTERS = 6
"""Maximum number of settings with a figure of points."""
MAX_FRAMES = 12
MAX_DOTS = 3000
"""Maximum number of points of one step."""
LABEL_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Colours of Okabe and Ito, distinct without red and green."""


def declared_plots(data: ReportData) -> list[Plot]:
    """Plot the task's panels, in order."""
    plots: list[Plot | None] = []
    for panel in data.panels:
        if isinstance(panel, ScatterPanel):
            plots += _scatter_plots(data, panel)
        elif isinstance(panel, LayerMapPanel):
            plots += layer_maps(data, panel)
        elif isinstance(panel, ProfilePanel):
            plots.append(_profile_plot(data, panel))
        elif isinstance(panel, SharePanel):
            plots.append(_share_plot(data, panel))
        elif isinstance(panel, PathPanel):
            plots.append(path_plot(data, panel))
        elif isinstance(panel, TradeOffPanel):
            plots.append(trade_off_plot(data, panel))
    return [plot for plot in plots if plot is not None]


def _scatter_plots(data: ReportData, panel: ScatterPanel) -> list[Plot]:
    if data.points.empty:
        return []
    points = data.points[data.points["kind"] == panel.kind]
    return [
        _scatter_plot(panel, part, setting_text(data.settings, key))
        for key, part in group_trials(data.trials, points, data.settings)
    ]


def _scatter_plot(panel: ScatterPanel, points: pd.DataFrame, setting: str) -> Plot:
    """Plot the last step, with a slider for other stored steps."""
    labels = sorted(points["label"].dropna().unique())
    colours = LABEL_COLOURS if len(labels) <= len(LABEL_COLOURS) else viridis(len(labels))
    steps = spread(sorted(points["step"].unique()), MAX_FRAMES)

    def step_traces(step: Any) -> list[Trace]:
        at_step = points[points["step"] == step]
        at_step = at_step.iloc[thin_indices(len(at_step), MAX_DOTS)]
        traces = []
        for label, colour in zip(labels, colours, strict=False):
            part = at_step[at_step["label"] == label]
            name = escape_for_plotly(f"{panel.group} {label}")
            trace = dots(part["x"], part["y"], name, colour, 0.6)
            traces.append(trace | {"name": name, "showlegend": True, "hoverinfo": "x+y"})
        return traces

    layout = make_layout(Axes("x", "y", *panel.axes, x_log=False, y_log=False), [])
    layout["yaxis"] |= {"scaleanchor": "x"}
    layout["legend"]["itemsizing"] = "constant"  # larger dots than in the figure, so that colours are visible
    last = f"Step {steps[-1]} of one trial, {len(points[points['step'] == steps[-1]])} points."
    notes = [panel.doc, last] if panel.doc else [last]
    frames = []
    if len(steps) > 1:
        frames = [{"name": str(step), "data": step_traces(step)} for step in steps]
        layout |= _slider([str(step) for step in steps])
        notes.append("The slider shows earlier steps, in components per step.")
    return Plot(panel.title + (f", {setting}" if setting else ""), step_traces(steps[-1]), layout, notes, frames)


def _slider(names: list[str]) -> dict[str, Any]:
    transition = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    places = [{"label": name, "method": "animate", "args": [[name], transition]} for name in names]
    label = {"prefix": "step ", "font": {"size": 12}, "xanchor": "right"}
    at = {"x": 0, "y": 0, "len": 1, "pad": {"t": 44, "b": 4}, "ticklen": 3, "font": {"size": 10}}
    return {"sliders": [at | {"active": len(names) - 1, "steps": places, "currentvalue": label}]}


def _profile_plot(data: ReportData, panel: ProfilePanel) -> Plot | None:
    """Plot one colour per setting: the mean as a strong line, trials as light lines and the prediction as a dashed line."""
    measured = dict(finite_arrays(data.trials, data.lists, panel.measurement))
    predicted = dict(finite_arrays(data.trials, data.lists, panel.predicted)) if panel.predicted else {}
    if not measured:
        return None
    groups, omissions = colour_groups(data.trials, pd.DataFrame({"trial_id": list(measured)}), data.settings)
    metric = data.measurement(panel.measurement)
    traces: list[Trace] = []
    for key, part, colour in groups:
        ids = list(part["trial_id"])
        name = escape_for_plotly(setting_text(data.settings, key) or "measured")
        for trial_id in spread(ids, MAX_GROUPS) if len(ids) > 1 else []:
            traces.append(_profile(measured[trial_id], name, line={"color": colour, "width": 1}, opacity=0.3))
        mean = mean_array([measured[trial_id] for trial_id in ids])
        traces.append(_profile(mean, name, label=name, line={"color": colour, "width": 2}, hoverinfo="x+y"))
        theory = [predicted[trial_id] for trial_id in ids if trial_id in predicted]
        if theory:
            traces.append(_profile(mean_array(theory), name, line={"color": colour, "width": 2, "dash": "dash"}))
    if predicted:
        traces.append(legend_entry("predicted", "theory", dash="dash"))
    values = [value for trace in traces for value in trace["y"] if value]
    if not values:
        return None
    layout = make_layout(Axes("index", "value", metric.entry, metric.label, x_log=True, y_log=True), values)
    notes = [f"{metric.doc[:1].upper()}{metric.doc[1:]}. Last layer, last step.", *omissions]
    return Plot(metric.label, traces, layout, notes)


def _share_plot(data: ReportData, panel: SharePanel) -> Plot | None:
    """Plot one colour per setting: the share over all trials at each x with its interval, and light dots for trials."""
    if panel.measurement not in data.results or panel.x not in data.settings:
        return None
    names = [panel.x, *panel.observations]
    rows = (
        data.results[["trial_id", panel.measurement]].dropna().merge(data.trials[["trial_id", *dict.fromkeys(names)]])
    )
    settings = [name for name in data.settings if name != panel.x]
    groups, omissions = colour_groups(data.trials, rows, settings)
    traces: list[Trace] = []
    for key, part, colour in groups:
        traces += _share_traces(panel, part, escape_for_plotly(setting_text(settings, key) or "measured"), colour)
    if not traces:
        return None
    label = data.measurement(panel.measurement).label
    log = bool(rows[panel.x].min() > 0)
    layout = make_layout(Axes("x", "y", panel.x, label, x_log=log, y_log=False), [])
    layout["xaxis"] |= value_ticks(rows[panel.x]) if log else {}
    notes = [
        "At the last step. Bars: 95 % Wilson intervals over the observations of all trials, too narrow if trials differ. "
        "Dots: trials.",
        *omissions,
    ]
    return Plot(f"{label} against {panel.x}", traces, layout, notes)


def _share_traces(panel: SharePanel, part: pd.DataFrame, name: str, colour: str) -> list[Trace]:
    traces = [dots(part[panel.x], part[panel.measurement], name, colour, 0.3)]
    places: list[float] = []
    shares: list[float] = []
    for x in sorted(part[panel.x].unique()):
        at_x = part[part[panel.x] == x]
        weights = at_x[list(panel.observations)].prod(axis=1)
        share = float((at_x[panel.measurement] * weights).sum() / weights.sum())
        places.append(float(x))
        shares.append(share)
        bar = {"color": colour, "width": 2}
        count = float(weights.sum())
        interval = wilson_interval(min(count, share * count), count)
        traces.append(make_trace([x, x], interval, name, line=bar))
    line, marker = {"color": colour, "width": 2}, {"size": 6}
    traces.append(
        make_trace(places, shares, name, name=name, mode="lines+markers", line=line, marker=marker, hoverinfo="x+y")
    )
    return traces


def _profile(values: np.ndarray, group: str, *, label: str | None = None, **style: Any) -> Trace:
    """Return a line over the entries, counted from 1 and thinned evenly on the log axis, with gaps at values <= 0."""
    places = unique(int(place) for place in np.geomspace(1, len(values), 120).round())
    y = [float(values[place - 1]) if values[place - 1] > 0 else None for place in places]
    return make_trace(places, y, group, name=label, **style)


def _tables(data: ReportData) -> str:
    return "".join(verdict_table(data, panel) for panel in data.panels if isinstance(panel, VerdictPanel))


def _lead(data: ReportData) -> str:
    return escape(
        "Solid: measured, with light lines for trials or bands for their range. Dashed: prediction for a trial's parameters."
    )


SECTION = ReportSection(40, "Collapse and theory", declared_plots, _lead, tables=_tables)
