"""The panels of layers: a measurement along a path beside its prediction, over steps and layers, and against another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report.curve_groups import grouped, spread
from depthrate.orchestrator.report.figures.requested_maps import heat_map
from depthrate.orchestrator.report.plot import (
    GREY,
    MAX_GROUPS,
    Axes,
    Plot,
    Trace,
    make_layout,
    make_trace,
    viridis,
)
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.text import escape_for_plotly
from depthrate.tasks.metric import Metric
from depthrate.tasks.panel import LayerMapPanel, PathPanel, TradeOffPanel

MAX_MAPS = 4
"""Settings that a heat map is drawn for, one figure each."""


def path_plots(data: ReportData, panel: PathPanel | LayerMapPanel | TradeOffPanel) -> list[Plot]:
    """Draw one of the panels; nothing where its columns are not measured, or its parameter does not vary."""
    if isinstance(panel, LayerMapPanel):
        return _layer_maps(data, panel)
    plot = _path_plot(data, panel) if isinstance(panel, PathPanel) else _trade_off_plot(data, panel)
    return [] if plot is None else [plot]


def _path_plot(data: ReportData, panel: PathPanel) -> Plot | None:
    """Draw a colour a setting: the mean over trials layer by layer, their range as a band, the prediction's mean dashed."""
    columns = [panel.x, panel.measurement, panel.predicted]
    if not {*columns, "step", "layer"} <= set(data.metrics):
        return None
    frame = data.metrics[
        data.metrics["step"] == data.metrics.groupby("trial_id", observed=True)["step"].transform("max")
    ]
    frame = frame.dropna(subset=columns)
    each = data.measurement(panel.measurement)
    is_log = each.axis == "log" and bool((frame[columns[1:]] > 0).all().all())
    groups = grouped(data.trials, frame, data.settings)
    shown = spread(groups, MAX_GROUPS)
    if frame.empty:
        return None
    traces: list[Trace] = []
    for (key, part), colour in zip(shown, viridis(len(shown)), strict=True):
        setting = ", ".join(f"{name} = {value}" for name, value in zip(data.settings, key, strict=True))
        traces += _path_traces(part, panel, escape_for_plotly(setting or "measured"), colour, is_log=is_log)
    traces.append(make_trace([None], [None], "predicted", name="predicted", line={"color": GREY, "dash": "dash"}))
    label = data.measurement(panel.x).label
    layout = make_layout(Axes("x", "y", label, each.label, x_log=False, y_log=is_log), frame[panel.measurement])
    notes = [f"Last step, {counted(frame['trial_id'].nunique(), 'trial')}; bands from the lowest to the highest trial."]
    notes.append(_error_note(frame, panel, each, is_log=is_log))
    notes += [f"{len(shown)} of {len(groups)} settings are drawn."] if len(shown) < len(groups) else []
    return Plot(f"{each.label} along the path of features", traces, layout, notes)


def _path_traces(part: pd.DataFrame, panel: PathPanel, name: str, colour: str, *, is_log: bool) -> list[Trace]:
    by_layer = part.groupby("layer")
    x = by_layer[panel.x].mean().tolist()
    low, high = by_layer[panel.measurement].min().tolist(), by_layer[panel.measurement].max().tolist()
    band: dict[str, Any] = {"fill": "toself", "fillcolor": colour, "opacity": 0.2, "line": {"width": 0}}
    line = {"color": colour, "width": 2}
    return [
        make_trace([*x, *reversed(x)], [*high, *reversed(low)], name, **band),
        make_trace(
            x,
            _means(part, panel.measurement, is_log=is_log),
            name,
            name=name,
            mode="lines+markers",
            line=line,
            marker={"size": 5},
            hoverinfo="x+y",
        ),
        make_trace(x, _means(part, panel.predicted, is_log=is_log), name, line=line | {"dash": "dash"}),
    ]


def _means(part: pd.DataFrame, column: str, *, is_log: bool) -> list[float]:
    """Return the mean at each layer, geometric on a log axis."""
    values = np.log(part[column]) if is_log else part[column]
    means = values.groupby(part["layer"]).mean()
    return [float(value) for value in (np.exp(means) if is_log else means)]


def _error_note(frame: pd.DataFrame, panel: PathPanel, each: Metric, *, is_log: bool) -> str:
    """Say how far the prediction is off between the ends, where it is no prediction."""
    between = frame[(frame[panel.x] > 0) & (frame[panel.x] < 1)]
    if between.empty:
        return "No layers between the ends."
    measured, predicted = between[panel.measurement].to_numpy(), between[panel.predicted].to_numpy()
    if is_log:
        factor = float(np.exp(np.abs(np.log(predicted / measured)).mean()))
        return f"Between the ends the prediction of {each.label} is off by a factor of {factor:.3g} on average."
    off = float(np.abs(predicted - measured).mean())
    return f"Between the ends the prediction of {each.label} is off by {off:.3g} on average."


def _layer_maps(data: ReportData, panel: LayerMapPanel) -> list[Plot]:
    if panel.measurement not in data.layered or data.layered[panel.measurement].dropna().empty:
        return []
    each = data.measurement(panel.measurement)
    groups = grouped(data.trials, data.layered.dropna(subset=[panel.measurement]), data.settings)
    return [_layer_map(data, each, key, part) for key, part in spread(groups, MAX_MAPS)]


def _layer_map(data: ReportData, each: Metric, key: tuple[str, ...], part: pd.DataFrame) -> Plot:
    table = part.pivot_table(index="layer", columns="step", values=each.name, aggfunc="mean")
    table = table.sort_index(ascending=False)  # the last layer on top
    is_log = each.axis == "log" and bool((table > 0).all().all())
    label = f"log10 {each.label}" if is_log else each.label
    values = np.log10(table.to_numpy()) if is_log else table.to_numpy()
    layout = make_layout(Axes("x", "y", "Step", "Layer", x_log=False, y_log=False), [])
    for axis, places in (("xaxis", table.columns), ("yaxis", table.index)):
        ticks: dict[str, Any] = {"tickvals": list(range(len(places))), "ticktext": [f"{place:g}" for place in places]}
        layout[axis] |= {"showgrid": False, **ticks}
    layout["yaxis"] |= {"autorange": "reversed"}
    setting = ", ".join(f"{name} = {value}" for name, value in zip(data.settings, key, strict=True))
    title = f"{each.label} over steps and layers{', ' if setting else ''}{setting}"
    return Plot(title, [heat_map(values, label)], layout, [f"Mean of {counted(part['trial_id'].nunique(), 'trial')}."])


def _trade_off_plot(data: ReportData, panel: TradeOffPanel) -> Plot | None:
    """Draw a colour a setting: means over its trials, joined along the parameter; single trials as light dots."""
    if panel.along not in data.settings or not {panel.x, panel.y} <= set(data.results):
        return None
    found = data.results[["trial_id", panel.x, panel.y]].dropna()
    found = found.merge(data.trials[["trial_id", panel.along]])
    others = [name for name in data.settings if name not in (panel.along, "data_seed")]
    groups = grouped(data.trials, found, others)
    shown = spread(groups, MAX_GROUPS)
    traces: list[Trace] = []
    for (key, part), colour in zip(shown, viridis(len(shown)), strict=True):
        setting = ", ".join(f"{name} = {value}" for name, value in zip(others, key, strict=True))
        name = escape_for_plotly(setting or "measured")
        dots = {"color": colour, "size": 5, "opacity": 0.3}
        traces.append(make_trace(part[panel.x], part[panel.y], name, mode="markers", marker=dots))
        means = part.groupby(panel.along)[[panel.x, panel.y]].mean().sort_index()
        text = [escape_for_plotly(f"{panel.along} = {value:g}") for value in means.index]
        style = {"mode": "lines+markers", "line": {"color": colour, "width": 2}, "marker": {"size": 7}}
        hover = {"hovertext": text, "hoverinfo": "x+y+text"}
        traces.append(make_trace(means[panel.x], means[panel.y], name, name=name, **style, **hover))
    if found.empty:
        return None
    x, y = data.measurement(panel.x), data.measurement(panel.y)
    is_log = y.axis == "log" and bool((found[panel.y] > 0).all())
    layout = make_layout(Axes("x", "y", x.label, y.label, x_log=False, y_log=is_log), found[panel.y])
    notes = [f"Last layer, last step; along {panel.along}. Dots: single trials."]
    return Plot(f"{y.label} against {x.label}", traces, layout, notes)
