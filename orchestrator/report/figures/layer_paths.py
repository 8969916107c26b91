"""Plot panels of layers: a metric along a path with its prediction, over steps and layers, and against another metric."""

from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report.curve_groups import group_trials, setting_text, spread
from depthrate.orchestrator.report.line_styles import colour_groups
from depthrate.orchestrator.report.plot import (
    Axes,
    Plot,
    Trace,
    band,
    dots,
    heat_map,
    legend_entry,
    make_layout,
    make_trace,
    map_layout,
)
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.text import escape_for_plotly
from depthrate.tasks.metric import Metric
from depthrate.tasks.panel import LayerMapPanel, PathPanel, TradeOffPanel

MAX_MAPS = 4
"""Maximum number of settings with a heat map."""


def path_plot(data: ReportData, panel: PathPanel) -> Plot | None:
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
    means, line = _means(part, panel.measurement, is_log=is_log), {"color": colour, "width": 2}
    style: dict[str, Any] = {"mode": "lines+markers", "line": line, "marker": {"size": 5}, "hoverinfo": "x+y"}
    return [
        band(x, low, high, name, colour, 0.2),
        make_trace(x, means, name, name=name, **style),
        make_trace(x, _means(part, panel.predicted, is_log=is_log), name, line=line | {"dash": "dash"}),
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


def layer_maps(data: ReportData, panel: LayerMapPanel) -> list[Plot]:
    """Plot a metric over steps and layers, one map per setting."""
    if panel.measurement not in data.layered or data.layered[panel.measurement].dropna().empty:
        return []
    metric = data.measurement(panel.measurement)
    groups = group_trials(data.trials, data.layered.dropna(subset=[panel.measurement]), data.settings)
    return [_layer_map(data, metric, key, part) for key, part in spread(groups, MAX_MAPS)]


def _layer_map(data: ReportData, metric: Metric, key: tuple[str, ...], part: pd.DataFrame) -> Plot:
    table = part.pivot_table(index="layer", columns="step", values=metric.name, aggfunc="mean")
    table = table.sort_index(ascending=False)  # the last layer is on top
    is_log = metric.axis == "log" and bool((table > 0).all().all())
    label = f"log10 {metric.label}" if is_log else metric.label
    values = np.log10(table.to_numpy()) if is_log else table.to_numpy()
    names = ([f"{place:g}" for place in places] for places in (table.columns, table.index))
    layout = map_layout("Step", "Layer", *names)
    setting = setting_text(data.settings, key)
    title = f"{metric.label} over steps and layers{', ' if setting else ''}{setting}"
    return Plot(title, [heat_map(values, label)], layout, [f"Mean of {counted(part['trial_id'].nunique(), 'trial')}."])


def trade_off_plot(data: ReportData, panel: TradeOffPanel) -> Plot | None:
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
        style = {"mode": "lines+markers", "line": {"color": colour, "width": 2}, "marker": {"size": 7}}
        hover = {"hovertext": text, "hoverinfo": "x+y+text"}
        traces.append(make_trace(means[panel.x], means[panel.y], name, name=name, **style, **hover))
    if rows.empty:
        return None
    x, y = data.measurement(panel.x), data.measurement(panel.y)
    is_log = y.axis == "log" and bool((rows[panel.y] > 0).all())
    layout = make_layout(Axes("x", "y", x.label, y.label, x_log=False, y_log=is_log), rows[panel.y])
    notes = [f"Last layer, last step. Lines: along {panel.along}. Dots: trials."]
    return Plot(f"{y.label} against {x.label}", traces, layout, notes)
