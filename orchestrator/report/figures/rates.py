"""The figures: rates, training curves, and metrics layer by layer."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.aggregate import FittedCurve
from depthrate.orchestrator.report.data import ReportData, grouped, sort_key, splits, spread, thin_indices, unique
from depthrate.orchestrator.report.figures.geometry import spectrum_frame
from depthrate.orchestrator.report.figures.residuals import residual_plot
from depthrate.orchestrator.report.plotting import (
    Axes,
    Plot,
    Trace,
    faded,
    log_range,
    make_layout,
    make_trace,
    value_ticks,
    viridis,
)
from depthrate.orchestrator.report.words import (
    CLEAR_AICC,
    best_rival,
    curve_label,
    escape_for_plotly,
    group_text,
    interval_of,
    is_number,
    metric_label,
    power_law,
    shorten,
    signed_text,
)
from depthrate.tasks.fits.models import MODELS
from depthrate.tasks.fits.rates import predict

CURVES = {"objective": "log", "loss": "log", "accuracy": "linear", "grad_norm": "log"}
"""The training curves drawn, each with its scale."""
SLOPES = {"−½": 0.5, "−1": 1.0}
"""The theory's reference lines."""
GREY = "#777777"
DASHES = ("solid", "dash", "dot", "dashdot")
MAX_GROUPS = 12
MAX_POINTS = 20_000
"""Of one figure."""
MAX_LINES = 100
"""Single trials drawn in one figure; each line may have MAX_POINTS / MAX_LINES points."""


def fit_plots(curves: Sequence[FittedCurve]) -> list[Plot]:
    """Draw one log-log figure per metric and x, one colour per group, and the residuals beside it."""
    figures: dict[tuple[str, str], list[FittedCurve]] = {}
    for curve in curves:
        figures.setdefault((curve_label(curve), curve.x), []).append(curve)
    plots = []
    for (label, x), group in figures.items():
        plots += [_fit_plot(label, x, group), residual_plot(group)]
    return [plot for plot in plots if plot is not None]


def _fit_plot(label: str, x: str, curves: list[FittedCurve]) -> Plot | None:
    groups = [(curve, _positive_points(curve)) for curve in curves]
    groups = [(curve, points) for curve, points in groups if not points.empty]
    groups.sort(key=lambda group: sort_key(tuple(group[0].by.values())))
    shown = spread(groups, MAX_GROUPS)
    if not shown:
        return None
    traces: list[Trace] = []
    for index, ((curve, points), colour) in enumerate(zip(shown, viridis(len(shown)), strict=True)):
        traces += _point_traces(curve, points, colour, f"g{index}", MAX_POINTS // len(shown))
        traces += _fit_traces(curve, points, colour, f"g{index}")
    x_values = pd.concat([points["x"] for _, points in shown]).astype(float)
    means, x_max = _mean_table(shown[0][1]), float(x_values.max())
    y_range = _make_room(log_range([y for trace in traces for y in trace["y"] if y], 0.07), means, x_max)
    traces += _slope_traces(means, x_max, y_range) + _left_out_traces([curve for curve, _ in shown], y_range)
    legend_rows = sum(1 + trace["name"].count("<br>") for trace in traces if trace["showlegend"])
    axes = Axes("x", "y", shorten(x), label, x_log=True, y_log=True)
    layout = make_layout(axes, 10 ** np.array(y_range), legend_rows)
    layout["xaxis"] |= value_ticks(x_values) | {"range": log_range(x_values, 0.05)}
    layout["yaxis"] |= {"range": y_range}
    layout["margin"]["r"] = 40  # the names of the reference slopes stand there
    notes = _drawn_notes(len(shown), len(curves), sum(len(c.points) - len(points) for c, points in shown), log=True)
    return Plot(f"{label} against {shorten(x)}", traces, layout, legend_rows, notes)


def _positive_points(curve: FittedCurve) -> pd.DataFrame:
    """The points that have a place on log axes."""
    points = curve.points[["x", "y"]].astype(float)
    drawable = ((points > 0) & (points < np.inf)).all(axis=1)
    return curve.points.loc[drawable]


def _point_traces(curve: FittedCurve, points: pd.DataFrame, colour: str, group: str, budget: int) -> list[Trace]:
    """One group's band, points and mean."""
    means = _mean_table(points)
    thin = points.sort_values(["x", "y"]).iloc[thin_indices(len(points), budget)]
    pairs = zip(thin["seed"], thin["trial_id"], strict=True)
    hover = [f"seed {escape_for_plotly(seed)}, trial {escape_for_plotly(trial)}" for seed, trial in pairs]
    dots = {"color": colour, "size": 5, "opacity": 0.5}
    line, ring = {"color": colour, "width": 1}, {"size": 8, "line": {"color": "white", "width": 1}}
    falling = points[points["trial_id"].isin(list(curve.unconverged))]
    open_dots = {"color": colour, "size": 9, "symbol": "circle-open", "line": {"width": 1.2}}
    traces = [
        make_trace(thin["x"], thin["y"], group, mode="markers", marker=dots, text=hover, hoverinfo="x+y+text"),
        make_trace(means["x"], means["mean"], group, mode="lines+markers", line=line, marker=ring, hoverinfo="x+y"),
    ]
    if len(falling):
        traces.append(make_trace(falling["x"], falling["y"], group, mode="markers", marker=open_dots))
    if (means["count"] > 1).any():
        x, y = [*means["x"], *means["x"][::-1]], [*means["high"], *means["low"][::-1]]
        traces.insert(0, make_trace(x, y, group, line={"width": 0}, fill="toself", fillcolor=faded(colour, 0.15)))
    return traces


def _fit_traces(curve: FittedCurve, points: pd.DataFrame, colour: str, group: str) -> list[Trace]:
    """The fitted power law and, where AICc clearly prefers another model, that one."""
    power, line = power_law(curve), {"color": colour, "width": 2.5}
    if power is None:
        return [make_trace([None], [None], group, name=_legend_name(curve, "no fit"), line=line)]
    rate = f"{escape_for_plotly(curve.x)}<sup>{signed_text(-power.exponent, '.2f')}</sup>"
    if interval := interval_of(power):
        rate += f" [{signed_text(-interval[1], '.2f')}, {signed_text(-interval[0], '.2f')}]"
    x = np.geomspace(points["x"].min(), points["x"].max(), 50)
    name = _legend_name(curve, rate if curve.by else f"fit {rate}")
    traces = [make_trace(x, predict(power, x), group, name=name, line=line, meta="fit")]
    rival = best_rival(power, curve.fits)
    if rival and rival[1] < -CLEAR_AICC:
        name = _legend_name(curve, f"{MODELS[rival[0].model].words}, preferred by AICc")
        traces.append(make_trace(x, predict(rival[0], x), group, name=name, line=line | {"dash": "dot", "width": 2}))
    return traces


def _legend_name(curve: FittedCurve, text: str) -> str:
    """The group and what its line is: on two lines where one would not fit on a narrow screen."""
    by = escape_for_plotly(group_text(curve.by))
    length = len(by) + len(re.sub("<.*?>", "", text))
    return f"{by}:{'<br>' if length > 46 else ' '}{text}" if by else text


def _make_room(y_range: list[float], means: pd.DataFrame, x_max: float) -> list[float]:
    """Lower the range's end to that of a reference slope, where the points lose little height by it."""
    (x0, y0), (low, high) = _first_mean(means), y_range
    ends = [math.log10(y0) - slope * math.log10(x_max / x0) - 0.06 * (high - low) for slope in SLOPES.values()]
    return [min([low, *(end for end in ends if low - end < 0.35 * (high - low))]), high]


def _first_mean(means: pd.DataFrame) -> tuple[float, float]:
    return float(means["x"].iloc[0]), float(means["mean"].iloc[0])


def _slope_traces(means: pd.DataFrame, x_max: float, y_range: list[float]) -> list[Trace]:
    """The theory's lines x^-1/2 and x^-1 through the first mean, named at their ends."""
    x0, y0 = _first_mean(means)
    y_bottom = 10 ** (y_range[0] + 0.05 * (y_range[1] - y_range[0]))  # room for the name above the axis
    line = {"color": GREY, "width": 1.2, "dash": "dash"}
    traces = [make_trace([None], [None], "slopes", name="slopes −½ and −1", line=line)]
    for name, slope in SLOPES.items():
        x1 = min(x_max, x0 * (y0 / y_bottom) ** (1 / slope))
        if x1 > x0:
            ends = make_trace([x0, x1], [y0, y0 * (x1 / x0) ** -slope], "slopes", mode="lines+text", line=line)
            font = {"color": "#555555", "size": 12}
            names = {"text": ["", f" {name}"], "textposition": "middle right", "textfont": font, "cliponaxis": False}
            traces.append(ends | names)
    return traces


def _left_out_traces(curves: Sequence[FittedCurve], y_range: list[float]) -> list[Trace]:
    """Triangles on the bottom edge at the x of trials without a place on the axes: diverged, zero, negative."""
    lost = [p for curve in curves for p in curve.left_out if p["reason"] != "below the cut-off" and is_number(p["x"])]
    lost = [point for point in lost if point["x"] > 0]
    if not lost:
        return []
    bottom = 10 ** (y_range[0] + 0.015 * (y_range[1] - y_range[0]))
    hover = [escape_for_plotly(f"{point['reason']}, trial {point['trial_id']}") for point in lost[:MAX_POINTS]]
    marker = {"color": "#b35900", "size": 8, "symbol": "triangle-up"}
    style = {"mode": "markers", "marker": marker, "text": hover, "hoverinfo": "text", "cliponaxis": False}
    x = [point["x"] for point in lost[:MAX_POINTS]]
    return [make_trace(x, [bottom] * len(x), "lost", name="left out", **style)]


def _mean_table(points: pd.DataFrame) -> pd.DataFrame:
    """Per x the geometric mean, and it times and over e^(standard deviation of log y)."""
    log_y = pd.Series(np.log(points["y"].astype(float)))
    logs = log_y.groupby(points["x"].astype(float)).agg(["mean", "std", "count"])
    deviation = logs["std"].fillna(0.0)
    table = {"mean": np.exp(logs["mean"]), "low": np.exp(logs["mean"] - deviation)}
    return pd.DataFrame(table | {"high": np.exp(logs["mean"] + deviation), "count": logs["count"]}).reset_index()


def curve_plots(data: ReportData) -> list[Plot]:
    """Draw the training curves by step, then the fitted metrics of the last layer by step."""
    by = [name for name in unique([data.x_name, *data.group_names]) if name in data.trials]
    plots = []
    for suffix, frame in splits(data.curves):
        for column, scale in CURVES.items():
            axes = Axes("step", column, "Step", f"{metric_label(column)}{suffix}", x_log=True, y_log=scale == "log")
            plot = _lines_plot(data, frame, axes, by)
            limits = _limit_traces(data, frame) if plot is not None and column == "objective" else []
            plots.append(plot if plot is None else replace(plot, traces=plot.traces + limits))
    last = data.metrics[data.metrics["is_last"].eq(True)] if "is_last" in data.metrics else pd.DataFrame()
    for suffix, frame in splits(last):
        for metric in data.layer_metrics:
            title = f"{metric_label(metric)}, last layer{suffix}"
            plots.append(_lines_plot(data, frame, Axes("step", metric, "Step", title, x_log=True, y_log=True), by))
    return [plot for plot in plots if plot is not None]


def _limit_traces(data: ReportData, frame: pd.DataFrame) -> list[Trace]:
    """The objective's limit for infinite depth, where the task knows it: the objective minus its gap."""
    if not {"objective", "objective_gap", "step"} <= set(frame):
        return []
    limits = (frame["objective"] - frame["objective_gap"]).astype(float)
    distinct = sorted({float(f"{limit:.9g}") for limit in limits[np.isfinite(limits)]})
    steps = frame["step"].astype(float)
    ends = [max(1.0, float(steps.min())), float(steps.max())]
    line = {"color": GREY, "width": 1.2, "dash": "dash"}
    traces = [make_trace(ends, [limit, limit], "limit", line=line) for limit in distinct[:MAX_GROUPS]]
    if traces:
        traces.append(make_trace([None], [None], "limit", name="limit for infinite depth", line=line))
    return traces


def spectrum_plots(data: ReportData) -> list[Plot]:
    """Draw the singular values of the last layer's class means, over the largest."""
    by = [name for name in unique([data.x_name, *data.group_names]) if name in data.trials]
    axes = Axes("index", "share", "Index", "Singular value / largest", x_log=False, y_log=True)
    plot = _lines_plot(data, spectrum_frame(data), axes, by)
    return [] if plot is None else [replace(plot, title="Singular values of the class means, last layer")]


def layer_plots(data: ReportData) -> list[Plot]:
    """Draw each fitted metric against layer / depth, at each trial's last step."""
    frame = data.metrics
    if frame.empty or "layer" not in frame:
        return []
    frame = frame[frame["step"] == frame.groupby("trial_id")["step"].transform("max")]
    last_layer = frame.groupby("trial_id")["layer"].transform("max")
    frame = frame.assign(relative_layer=frame["layer"] / last_layer.where(last_layer > 0, 1))
    by = unique(["depth" if "depth" in data.trials else data.x_name, *data.group_names])
    by = [name for name in by if name in data.trials]
    plots = []
    for suffix, part in splits(frame):
        for metric in data.layer_metrics:
            # a measurement of the last weight matrix is the same at every layer: no profile
            if part.groupby("trial_id")[metric].nunique().max() > 1:
                title = f"{metric_label(metric)}{suffix}"
                axes = Axes("relative_layer", metric, "Layer / depth", title, x_log=False, y_log=True)
                plots.append(_lines_plot(data, part, axes, by))
    return [plot for plot in plots if plot is not None]


def _lines_plot(data: ReportData, frame: pd.DataFrame, axes: Axes, by: list[str]) -> Plot | None:
    """One colour per value of the first name in `by`, one dash per value of the rest: means strong, trials light."""
    if axes.y not in frame:
        return None
    frame = frame.assign(**{axes.y: pd.to_numeric(frame[axes.y], errors="coerce")}).dropna(subset=[axes.x, axes.y])
    frame = frame[frame[axes.x] >= 1] if axes.x_log else frame  # step 0 has no place on a log axis
    drawable = frame[np.isfinite(frame[axes.y]) & ((frame[axes.y] > 0) | (not axes.y_log))]
    if drawable.empty:
        return None
    finished = data.trials.loc[data.trials["state"] == "ok", "trial_id"]
    groups = grouped(data.trials, drawable.assign(of_finished=drawable["trial_id"].isin(finished)), by)
    firsts = spread(unique(key[:1] for key, _ in groups), MAX_GROUPS)
    rests = spread(unique(key[1:] for key, _ in groups), len(DASHES))
    shown = [(key, part) for key, part in groups if key[:1] in firsts and key[1:] in rests]
    colours = dict(zip(firsts, viridis(len(firsts)), strict=True))
    dashes = dict(zip(rests, DASHES, strict=False))
    traces: list[Trace] = []
    for key, part in shown:
        group = f"g{firsts.index(key[:1])}"
        line = {"color": colours[key[:1]], "dash": dashes[key[1:]]}
        light, strong = _trial_line(part, axes, MAX_LINES // len(shown)), _mean_line(part, axes)
        traces.append(make_trace(*light, group, line=line | {"width": 1}, opacity=0.3))
        mode = "lines" if axes.x_log else "lines+markers"
        text = escape_for_plotly(", ".join(f"{name} = {value}" for name, value in zip(by, key, strict=True)))
        hover = {"hovertext": text, "hoverinfo": "x+y+text"}
        traces.append(make_trace(*strong, group, mode=mode, line=line | {"width": 2}, marker={"size": 5}) | hover)
    keys = _line_keys(by, colours, dashes)
    layout = make_layout(axes, drawable[axes.y], rows := math.ceil(len(keys) / 4) + 1)
    layout["legend"]["title"] = {"text": escape_for_plotly(by[0]) if by else "", "side": "top", "font": {"size": 12}}
    notes = _drawn_notes(len(shown), len(groups), len(frame) - len(drawable), log=axes.y_log)
    return Plot(axes.y_title, traces + keys, layout, rows, notes)


def _line_keys(by: list[str], colours: dict[tuple[str, ...], str], dashes: dict[tuple[str, ...], str]) -> list[Trace]:
    """What the colours mean, then what the dashes mean."""
    keys = []
    for index, (key, colour) in enumerate(colours.items()):
        names = [escape_for_plotly(value) for value in key]
        keys += [make_trace([None], [None], f"g{index}", name=name, line={"color": colour}) for name in names]
    if len(dashes) > 1:
        for key, dash in dashes.items():
            text = escape_for_plotly(", ".join(f"{name} = {value}" for name, value in zip(by[1:], key, strict=True)))
            keys.append(make_trace([None], [None], "dashes", name=text, line={"color": GREY, "dash": dash}))
    return keys


def _trial_line(part: pd.DataFrame, axes: Axes, num_trials: int) -> tuple[list[Any], list[Any]]:
    """So many trials of a group, evenly chosen, as one line with gaps."""
    ordered = part[["trial_id", axes.x, axes.y]].sort_values(axes.x, kind="stable")
    all_x, all_y = ordered[axes.x].to_numpy(), ordered[axes.y].to_numpy()
    rows_of = ordered.groupby("trial_id").indices
    x: list[Any] = []
    y: list[Any] = []
    for trial_id in spread(unique(part["trial_id"]), num_trials):
        rows = rows_of[trial_id]
        thin = np.asarray(rows)[thin_indices(len(rows), MAX_POINTS // MAX_LINES)]
        x += [*all_x[thin], None]
        y += [*all_y[thin], None]
    return x, y


def _mean_line(part: pd.DataFrame, axes: Axes) -> tuple[Any, Any]:
    """The mean over finished trials, or over all where none has finished; geometric on a log axis."""
    # a trial that stops half-way would bend the mean
    good = part[part["of_finished"]] if part["of_finished"].any() else part
    values = np.log(good[axes.y]) if axes.y_log else good[axes.y]
    mean = values.groupby(good[axes.x]).mean()
    mean = mean.iloc[thin_indices(len(mean), MAX_POINTS // MAX_LINES)]
    return mean.index, np.exp(mean) if axes.y_log else mean


def _drawn_notes(num_shown: int, num_groups: int, num_dropped: int, *, log: bool) -> list[str]:
    notes = [f"{num_shown} of {num_groups} groups are drawn."] if num_shown < num_groups else []
    if num_dropped:
        why = "zero, negative or not finite and cannot stand on a log axis" if log else "not finite and not drawn"
        notes.append(f"{num_dropped} {'value is' if num_dropped == 1 else 'values are'} {why}.")
    return notes
