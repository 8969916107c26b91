"""Plot the panels that a task declares: features as points, vectors and layers with predictions, shares and verdicts."""

import collections
from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report.curve_groups import (
    colour_groups,
    finite_arrays,
    group_trials,
    mean_array,
    setting_text,
    spread,
    thin_indices,
    unique,
)
from depthrate.orchestrator.report.html_table import Cell, table
from depthrate.orchestrator.report.plot import (
    MAX_GROUPS,
    Axes,
    Plot,
    Trace,
    band,
    dots,
    legend_entry,
    make_layout,
    make_trace,
    mean_line,
    mean_map,
    share_traces,
    value_ticks,
    viridis,
)
from depthrate.orchestrator.report.report_data import ReportData, ReportSection
from depthrate.orchestrator.report.text import escape, escape_for_plotly, is_finite, number_text
from depthrate.orchestrator.report.trial_tables import MAX_TABLE_ROWS
from depthrate.tasks.metric import Metric
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
MAX_MAPS = 4
"""Maximum number of settings with a heat map."""
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
            plots += _layer_maps(data, panel)
        elif isinstance(panel, ProfilePanel):
            plots.append(_profile_plot(data, panel))
        elif isinstance(panel, SharePanel):
            plots.append(_share_plot(data, panel))
        elif isinstance(panel, PathPanel):
            plots.append(_path_plot(data, panel))
        elif isinstance(panel, TradeOffPanel):
            plots.append(_trade_off_plot(data, panel))
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
    tally = []
    for x, at_x in part.groupby(panel.x):
        weights = at_x[list(panel.observations)].prod(axis=1)
        total = float(weights.sum())
        tally.append((x, min(total, float((at_x[panel.measurement] * weights).sum())), total))
    return [*traces, *share_traces(tally, name, name, colour)]


def _profile(values: np.ndarray, group: str, *, label: str | None = None, **style: Any) -> Trace:
    """Return a line over the entries, counted from 1 and thinned evenly on the log axis, with gaps at values <= 0."""
    places = unique(int(place) for place in np.geomspace(1, len(values), 120).round())
    y = [float(values[place - 1]) if values[place - 1] > 0 else None for place in places]
    return make_trace(places, y, group, name=label, **style)


def _path_plot(data: ReportData, panel: PathPanel) -> Plot | None:
    """Plot one colour per setting: the mean over trials by layer, their range as a band, and a dashed mean prediction."""
    columns = [panel.x, panel.measurement, panel.predicted]
    if not {*columns, "step", "layer"} <= set(data.metrics):
        return None
    frame = data.metrics[
        data.metrics["step"] == data.metrics.groupby("trial_id", observed=True)["step"].transform("max")
    ]
    frame = frame.dropna(subset=columns)
    metric = data.measurement(panel.measurement)
    is_log = metric.axis == "log" and bool((frame[columns[1:]] > 0).all().all())
    if frame.empty:
        return None
    groups, omissions = colour_groups(data.trials, frame, data.settings)
    traces: list[Trace] = []
    for key, part, colour in groups:
        setting = setting_text(data.settings, key)
        traces += _path_traces(part, panel, escape_for_plotly(setting or "measured"), colour, is_log=is_log)
    traces.append(legend_entry("predicted", "predicted", dash="dash"))
    label = data.measurement(panel.x).label
    layout = make_layout(Axes("x", "y", label, metric.label, x_log=False, y_log=is_log), frame[panel.measurement])
    notes = [f"Last step, {counted(frame['trial_id'].nunique(), 'trial')}. Bands: range over trials."]
    notes += [_error_note(frame, panel, metric, is_log=is_log), *omissions]
    return Plot(f"{metric.label} along the path of features", traces, layout, notes)


def _path_traces(part: pd.DataFrame, panel: PathPanel, name: str, colour: str, *, is_log: bool) -> list[Trace]:
    by_layer = part.groupby("layer")
    x = by_layer[panel.x].mean().tolist()
    low, high = by_layer[panel.measurement].min().tolist(), by_layer[panel.measurement].max().tolist()
    predicted = _means(part, panel.predicted, is_log=is_log)
    return [
        band(x, low, high, name, colour, 0.2),
        mean_line(x, _means(part, panel.measurement, is_log=is_log), name, name, colour, size=5),
        make_trace(x, predicted, name, line={"color": colour, "width": 2, "dash": "dash"}),
    ]


def _means(part: pd.DataFrame, column: str, *, is_log: bool) -> list[float]:
    """Return the mean at each layer, geometric on a log axis."""
    values = np.log(part[column]) if is_log else part[column]
    means = values.groupby(part["layer"]).mean()
    return [float(value) for value in (np.exp(means) if is_log else means)]


def _error_note(frame: pd.DataFrame, panel: PathPanel, metric: Metric, *, is_log: bool) -> str:
    """Describe the error of the prediction between the ends. At the ends the prediction is exact by definition."""
    between = frame[(frame[panel.x] > 0) & (frame[panel.x] < 1)]
    if between.empty:
        return "No layers between the ends."
    measured, predicted = between[panel.measurement].to_numpy(), between[panel.predicted].to_numpy()
    if is_log:
        factor = float(np.exp(np.abs(np.log(predicted / measured)).mean()))
        return f"Between the ends the prediction of {metric.label} is off by a factor of {factor:.3g} on average."
    off = float(np.abs(predicted - measured).mean())
    return f"Between the ends the prediction of {metric.label} is off by {off:.3g} on average."


def _layer_maps(data: ReportData, panel: LayerMapPanel) -> list[Plot]:
    """Plot a metric over steps and layers, one map per setting."""
    if panel.measurement not in data.layered or data.layered[panel.measurement].dropna().empty:
        return []
    metric = data.measurement(panel.measurement)
    groups = group_trials(data.trials, data.layered.dropna(subset=[panel.measurement]), data.settings)
    return [_layer_map(data, metric, key, part) for key, part in spread(groups, MAX_MAPS)]


def _layer_map(data: ReportData, metric: Metric, key: tuple[str, ...], part: pd.DataFrame) -> Plot:
    columns = ("step", "layer", metric.name)
    trace, layout = mean_map(part, columns, ("Step", "Layer"), metric.label, is_log=metric.axis == "log")
    setting = setting_text(data.settings, key)
    title = f"{metric.label} over steps and layers{', ' if setting else ''}{setting}"
    return Plot(title, [trace], layout, [f"Mean of {counted(part['trial_id'].nunique(), 'trial')}."])


def _trade_off_plot(data: ReportData, panel: TradeOffPanel) -> Plot | None:
    """Plot one colour per setting: means over trials, joined along the parameter, and light dots for trials."""
    if panel.along not in data.settings or not {panel.x, panel.y} <= set(data.results):
        return None
    rows = data.results[["trial_id", panel.x, panel.y]].dropna()
    rows = rows.merge(data.trials[["trial_id", panel.along]])
    others = [name for name in data.settings if name not in (panel.along, "data_seed")]
    traces: list[Trace] = []
    for key, part, colour in colour_groups(data.trials, rows, others)[0]:
        name = escape_for_plotly(setting_text(others, key) or "measured")
        traces.append(dots(part[panel.x], part[panel.y], name, colour, 0.3))
        means = part.groupby(panel.along)[[panel.x, panel.y]].mean().sort_index()
        text = [escape_for_plotly(f"{panel.along} = {value:g}") for value in means.index]
        trace = mean_line(means[panel.x], means[panel.y], name, name, colour)
        traces.append(trace | {"hovertext": text, "hoverinfo": "x+y+text"})
    if rows.empty:
        return None
    x, y = data.measurement(panel.x), data.measurement(panel.y)
    is_log = y.axis == "log" and bool((rows[panel.y] > 0).all())
    layout = make_layout(Axes("x", "y", x.label, y.label, x_log=False, y_log=is_log), rows[panel.y])
    notes = [f"Last layer, last step. Lines: along {panel.along}. Dots: trials."]
    return Plot(f"{y.label} against {x.label}", traces, layout, notes)


def verdict_table(data: ReportData, panel: VerdictPanel) -> str:
    """Return a panel's verdict per setting, and metrics with their predictions."""
    if panel.measurement not in data.results or data.results[panel.measurement].dropna().empty:
        return ""
    settings = data.settings
    columns = [(column, "") if isinstance(column, str) else column for column in panel.columns]
    columns = [
        (name, predicted) for name, predicted in columns if name in data.results and data.results[name].notna().any()
    ]
    groups = group_trials(data.trials, data.results.dropna(subset=[panel.measurement]), settings)
    rows = []
    for key, part in groups[:MAX_TABLE_ROWS]:
        codes = collections.Counter(int(code) for code in part[panel.measurement])
        verdicts = [
            panel.words.get(code, str(code)) + (f" ({count} of {len(part)})" if count < len(part) else "")
            for code, count in sorted(codes.items())
        ]
        cells = [*(Cell(escape(value), value) for value in key), Cell(str(len(part)), is_number=True)]
        cells.append(Cell(escape("; ".join(verdicts))))
        rows.append([*cells, *(_mean_cell(part, name, predicted) for name, predicted in columns)])
    labels = [data.measurement(name).label for name, _ in columns]
    label = data.measurement(panel.measurement).label
    note = f"{escape(label)}: {escape(panel.doc)} Numbers are means over trials, with predictions in brackets."
    return f"<p class=note>{note}</p>{table([*settings, 'trials', label, *labels], rows)}"


def _mean_cell(part: pd.DataFrame, name: str, predicted: str) -> Cell:
    values = [float(part[column].mean()) for column in (name, predicted) if column in part]
    texts = [number_text(value, 4, zeros=True) for value in values if is_finite(value)]
    return Cell(texts[0] + (f" [{texts[1]}]" if len(texts) > 1 else "") if texts else "—", is_number=True)


def _tables(data: ReportData) -> str:
    return "".join(verdict_table(data, panel) for panel in data.panels if isinstance(panel, VerdictPanel))


def _lead(data: ReportData) -> str:
    return escape(
        "Solid: measured, with light lines for trials or bands for their range. Dashed: prediction for a trial's parameters."
    )


SECTION = ReportSection(40, "Collapse and theory", declared_plots, _lead, tables=_tables)
