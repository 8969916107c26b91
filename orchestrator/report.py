"""Fits, curves and states in, one HTML file out: it opens from disk, without a network.

Everything a user named (sweep, parameters, errors) is text here: escaped for HTML, for JSON inside <script>, and once
more where plotly draws it, because plotly reads some HTML tags in labels.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar

import numpy as np
import pandas as pd
import yaml

if TYPE_CHECKING:
    from orchestrator.aggregate import FittedCurve
    from tasks.fit import RateFit

T = TypeVar("T")
Trace: TypeAlias = dict[str, Any]

STATE_COLUMNS = ("trial_id", "state", "wall_s", "steps_done", "device", "host", "committed_at", "error")
"""The columns of `ReportData.trials` that are not parameters (`steps` is one of the task collapse)."""
STATES = ("failed", "diverged", "running", "pending", "ok")
"""In the order of the table of trials: what needs a look comes first."""
LABELS = {
    "nc1": "NC1",
    "nc1_pinv": "NC1 (pseudo-inverse)",
    "nc2a": "NC2A",
    "nc2b": "NC2B",
    "nc3": "NC3",
    "ncc_accuracy": "NCC accuracy",
    "pfc2": "PFC2",
    "objective_gap": "Objective gap",
    "objective": "Objective",
    "loss": "Loss",
    "accuracy": "Accuracy",
    "grad_norm": "Gradient norm",
}
MODELS = {
    "power": ("power law", "c x<sup>−a</sup>"),
    "power_floor": ("power law with floor", "c x<sup>−a</sup> + floor"),
    "exponential": ("exponential", "c e<sup>−a x</sup>"),
    "log_linear": ("log-linear", "c (1 − a log x)"),
}
CURVES = {"objective": "log", "loss": "log", "accuracy": "linear", "grad_norm": "log"}
"""The training curves drawn, each with its scale."""
CLEAR_AICC = 2.0
"""Below this difference of AICc two models count as not told apart (Burnham and Anderson 2002, section 2.6)."""
SLOPES = {"−½": 0.5, "−1": 1.0}
"""The theory's reference lines."""
MAX_GROUPS = 12
MAX_POINTS = 20_000
"""Of one figure."""
MAX_LINES = 100
"""Single trials drawn in one figure; each line may have MAX_POINTS / MAX_LINES points."""
MAX_TABLE_ROWS = 500
MAX_LABEL = 40
"""Characters of a user's text in a legend; longer ones would push the axes aside."""
MAX_ERROR = 300
"""Characters of an error in the table of trials; the whole is in the logs."""
VIRIDIS = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#85cf3a")
"""matplotlib's viridis, cut before the yellows that vanish on white."""
GREY = "#777777"
DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class ReportData:
    """All that the report shows; parameters are the columns beside those named."""

    name: str
    """Name of the sweep."""
    spec: dict[str, Any]
    """The sweep as in its file."""
    trials: pd.DataFrame
    """A row per planned trial: STATE_COLUMNS, then the parameters; state is one of STATES."""
    results: pd.DataFrame
    """A row per committed trial: measurements of the last step and layer."""
    metrics: pd.DataFrame
    """trial_id, step, split, layer, is_last, measurements: all layers at the last step, the last layer at all steps."""
    curves: pd.DataFrame
    """trial_id, step, split, loss, objective, objective_gap, accuracy, grad_norm, lr."""
    fits: list[FittedCurve]
    store: str
    commands: list[str]
    """Shell commands that make this report again."""
    versions: dict[str, str]
    git: str | None
    created_at: str
    problems: list[str]
    """Damaged files and the like, shown as a warning."""

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters."""
        return [str(column) for column in self.trials.columns if column not in STATE_COLUMNS]


@dataclass(frozen=True)
class _Axes:
    """Which columns of a table to draw against each other, and how."""

    x: str
    y: str
    x_title: str
    y_title: str
    x_log: bool
    y_log: bool


@dataclass(frozen=True)
class _Plot:
    """One figure: plotly's traces and layout, and what stands below them."""

    title: str
    traces: list[Trace]
    layout: dict[str, Any]
    legend_rows: int
    notes: list[str]
    """Plain sentences, escaped when drawn."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    content: str
    """HTML."""
    sort_key: str = ""
    is_number: bool = False


def render_report(data: ReportData) -> str:
    """Return the whole report as one HTML text; missing parts are said, never an error."""
    numbers = itertools.count(1)
    x = _text(_x_name(data))
    fits = _figures(
        "At the last step. Small dots: trials; large dots and band: their mean and one standard deviation, both of log "
        "values; thick line: fitted power law, its exponent and 95 % interval in the legend.",
        _fit_plots(data.fits),
        numbers,
        "No fit to draw yet.",
    )
    curves = _figures(
        f"Strong lines: mean over the trials of one {x} (geometric on log axes); light lines: single trials. "
        "The axis begins at step 1.",
        _curve_plots(data),
        numbers,
        "No training curves yet.",
    )
    layers = _figures(
        "At each trial's last step, from the first measured layer (left) to the last (right); lines as above.",
        _layer_plots(data),
        numbers,
        "No measurements of more than one layer yet.",
    )
    body = [
        _summary(data),
        _states(data),
        _section("Rates", fits),
        _section("All fits", _fit_table(data.fits)),
        _section("Training", curves),
        _section("Layer by layer", layers),
        _section("Trials", _trial_table(data)),
        _section("How to reproduce", _reproduce(data)),
    ]
    return _page(data.name, "\n".join(body))


# Words --------------------------------------------------------------------------------------------------------------


def fit_sentence(curve: FittedCurve) -> str:
    """Say one fitted curve in words, as HTML: the power law first, then what speaks against it."""
    by = _by_text(curve.by)
    start = _text(_label(curve.metric)) + (f" at {_text(by)}" if by else "")
    power = _power(curve)
    excluded = _excluded_text(curve.excluded)
    left_out = f" Left out: {_text(excluded)}." if excluded else ""
    if power is None:
        return f"{start}: no fit ({_text(curve.note or 'too few points')}).{left_out}"
    trials = "trial" if power.n_points == 1 else "trials"
    parts = [f"{_rate_words(power, curve.x)}, {_interval_words(power)}"]
    parts += [f"R² {power.r2:.2f}"] if _finite(power.r2) else []
    parts += [f"{power.n_points} {trials}"]
    return f"{start} {', '.join(parts)}; {_preference(power, curve.fits)}.{left_out}"


def _rate_words(power: RateFit, x: str) -> str:
    verb = "grows" if power.exponent < 0 else "falls"
    return f"<strong>{verb} as {_text(x)}<sup>{_signed(-power.exponent, '.2f')}</sup></strong>"


def _interval_words(power: RateFit) -> str:
    """The interval is of the exponent's size, as the sentence says whether it falls or grows."""
    interval = _interval(power)
    if interval is None:
        return "no interval (too few points)"
    low, high = interval
    if low <= 0 <= high:
        range_text = f"[{_signed(-high, '.2f')}, {_signed(-low, '.2f')}]"
        return f"95 % interval {range_text} of the exponent, which holds 0: no rate is established"
    low, high = sorted((abs(low), abs(high)))
    return f"95 % interval [{low:.2f}, {high:.2f}]"


def _interval(fit: RateFit) -> tuple[float, float] | None:
    return (fit.ci_low, fit.ci_high) if _finite(fit.ci_low) and _finite(fit.ci_high) else None


def _preference(power: RateFit, fits: Sequence[RateFit]) -> str:
    """Compare the power law with the best other model by AICc."""
    rival = _rival(power, fits)
    if rival is None:
        return "no other model to compare with (too few different values or points)"
    best, delta = rival
    name, by = _text(_model_name(best.model)), f"<span class=nowrap>ΔAICc {abs(delta):.1f}</span>"
    if abs(delta) < CLEAR_AICC:
        return f"power law and {name} are not told apart ({by})"
    if delta > 0:
        return f"power law preferred over {name} by {by}"
    if best.model == "power_floor":
        name += f" (exponent {_signed(best.exponent, '.2f')}, floor {_number(best.floor)})"
    return f"but {name} is preferred over the power law by {by}"


def _rival(power: RateFit, fits: Sequence[RateFit]) -> tuple[RateFit, float] | None:
    """The best model beside the power law, and how far its AICc is above the power law's."""
    others = [(fit, fit.aicc) for fit in fits if fit.model != "power" and _finite(fit.aicc)]
    if not others or not _finite(power.aicc):
        return None
    best, aicc = min(others, key=lambda other: other[1])
    return best, aicc - power.aicc


def _label(metric: str) -> str:
    return LABELS.get(metric, metric)


def _model_name(model: str) -> str:
    return MODELS[model][0] if model in MODELS else model


def _summary(data: ReportData) -> str:
    sentences = [f"<li>{fit_sentence(curve)}</li>" for curve in data.fits]
    accuracy = _values(data.results, "accuracy")
    if accuracy.size:
        numbers = f"mean {accuracy.mean():.3f}, lowest {accuracy.min():.3f} of {accuracy.size} trials"
        sentences.append(f"<li>Accuracy at the last step: {numbers}.</li>")
    if not data.fits:
        sentences.insert(0, "<li>No fits yet: the sweep asks for none, or no trial has been committed.</li>")
    warning = ""
    if data.problems:
        items = "".join(f"<li>{_text(problem)}</li>" for problem in data.problems)
        warning = (
            f'<div class="warning" role="alert"><strong>Not everything could be read.</strong><ul>{items}</ul></div>'
        )
    return (
        f"<header><h1>{_text(data.name)}</h1><p class=meta>depthrate report, {_text(data.created_at)}</p></header>"
        f"{warning}<section class=summary><h2>Summary</h2><ul>{''.join(sentences)}</ul></section>"
    )


def _states(data: ReportData) -> str:
    if data.trials.empty:
        return _section("State of the sweep", "<p>No trials are planned.</p>")
    counts = data.trials["state"].value_counts()
    pills = "".join(
        f'<span class="pill {state}"><b>{counts[state]}</b> {state}</span>'
        for state in reversed(STATES)
        if state in counts
    )
    wall_s = _values(data.trials, "wall_s")
    sentence = f"{len(data.trials)} trials planned."
    if wall_s.size:
        sentence += (
            f" {_number(wall_s.sum() / 3600)} trial-hours in all; one trial took {_duration(float(np.median(wall_s)))}"
            f" (median), {_duration(float(wall_s.max()))} at most."
        )
    committed = sorted(str(time) for time in data.trials["committed_at"].dropna())
    if committed:
        sentence += f" First commit {_text(committed[0])}, last {_text(committed[-1])}."
    return _section("State of the sweep", f"<p class=pills>{pills}</p><p>{sentence}</p>")


# Figures ------------------------------------------------------------------------------------------------------------


def _fit_plots(curves: Sequence[FittedCurve]) -> list[_Plot]:
    """One log-log figure per metric and x, one colour per group."""
    figures: dict[tuple[str, str], list[FittedCurve]] = {}
    for curve in curves:
        figures.setdefault((curve.metric, curve.x), []).append(curve)
    plots = [_fit_plot(metric, x, group) for (metric, x), group in figures.items()]
    return [plot for plot in plots if plot is not None]


def _fit_plot(metric: str, x: str, curves: list[FittedCurve]) -> _Plot | None:
    groups = [(curve, _positive_points(curve)) for curve in curves]
    groups = [(curve, points) for curve, points in groups if not points.empty]
    groups.sort(key=lambda group: _sort_key(tuple(group[0].by.values())))
    shown = _spread(groups, MAX_GROUPS)
    if not shown:
        return None
    traces: list[Trace] = []
    for index, ((curve, points), colour) in enumerate(zip(shown, _colours(len(shown)), strict=True)):
        traces += _point_traces(curve, points, colour, f"g{index}", MAX_POINTS // len(shown))
        traces += _fit_traces(curve, points, colour, f"g{index}")
    x_values = pd.concat([points["x"] for _, points in shown]).astype(float)
    means, x_max = _mean_table(shown[0][1]), float(x_values.max())
    y_range = _make_room(_log_range([y for trace in traces for y in trace["y"] if y], 0.07), means, x_max)
    traces += _slope_traces(means, x_max, y_range)
    legend_rows = sum(1 + trace["name"].count("<br>") for trace in traces if trace["showlegend"])
    axes = _Axes("x", "y", _short(x), _label(metric), x_log=True, y_log=True)
    layout = _layout(axes, 10 ** np.array(y_range), legend_rows)
    layout["xaxis"] |= _value_ticks(x_values) | {"range": _log_range(x_values, 0.05)}
    layout["yaxis"] |= {"range": y_range}
    layout["margin"]["r"] = 40  # the names of the reference slopes stand there
    notes = _drawn_notes(len(shown), len(curves), sum(len(c.points) - len(points) for c, points in shown), log=True)
    return _Plot(f"{_label(metric)} against {_short(x)}", traces, layout, legend_rows, notes)


def _positive_points(curve: FittedCurve) -> pd.DataFrame:
    """The points that have a place on log axes."""
    points = curve.points[["x", "y"]].astype(float)
    drawable = ((points > 0) & (points < np.inf)).all(axis=1)
    return curve.points.loc[drawable]


def _point_traces(curve: FittedCurve, points: pd.DataFrame, colour: str, group: str, budget: int) -> list[Trace]:
    """One group's band, points and mean."""
    means = _mean_table(points)
    thin = points.sort_values(["x", "y"]).iloc[_thin(len(points), budget)]
    pairs = zip(thin["seed"], thin["trial_id"], strict=True)
    hover = [f"seed {_plot_text(seed)}, trial {_plot_text(trial)}" for seed, trial in pairs]
    dots = {"color": colour, "size": 5, "opacity": 0.5}
    line, ring = {"color": colour, "width": 1}, {"size": 8, "line": {"color": "white", "width": 1}}
    traces = [
        _trace(thin["x"], thin["y"], group, mode="markers", marker=dots, text=hover, hoverinfo="x+y+text"),
        _trace(means["x"], means["mean"], group, mode="lines+markers", line=line, marker=ring, hoverinfo="x+y"),
    ]
    if (means["count"] > 1).any():
        x, y = [*means["x"], *means["x"][::-1]], [*means["high"], *means["low"][::-1]]
        traces.insert(0, _trace(x, y, group, line={"width": 0}, fill="toself", fillcolor=_faded(colour, 0.15)))
    return traces


def _fit_traces(curve: FittedCurve, points: pd.DataFrame, colour: str, group: str) -> list[Trace]:
    """The fitted power law and, where AICc clearly prefers another model, that one."""
    from tasks.fit import predict

    power = _power(curve)
    if power is None:
        return [_trace([None], [None], group, name=_legend_name(curve, "no fit"), line={"color": colour, "width": 2.5})]
    rate = f"{_plot_text(curve.x)}<sup>{_signed(-power.exponent, '.2f')}</sup>"
    if interval := _interval(power):
        rate += f" [{_signed(-interval[1], '.2f')}, {_signed(-interval[0], '.2f')}]"
    x = np.geomspace(points["x"].min(), points["x"].max(), 50)
    name, line = _legend_name(curve, rate if curve.by else f"fit {rate}"), {"color": colour, "width": 2.5}
    traces = [_trace(x, predict(power, x), group, name=name, line=line, meta="fit")]
    rival = _rival(power, curve.fits)
    if rival and rival[1] < -CLEAR_AICC:
        name = _legend_name(curve, f"{_plot_text(_model_name(rival[0].model))}, preferred by AICc")
        traces.append(_trace(x, predict(rival[0], x), group, name=name, line=line | {"dash": "dot", "width": 2}))
    return traces


def _legend_name(curve: FittedCurve, text: str) -> str:
    """The group and what its line is: on two lines where one would not fit on a narrow screen."""
    by = _plot_text(_by_text(curve.by))
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
    traces = [_trace([None], [None], "slopes", name="slopes −½ and −1", line=line)]
    for name, slope in SLOPES.items():
        x1 = min(x_max, x0 * (y0 / y_bottom) ** (1 / slope))
        if x1 > x0:
            ends = _trace([x0, x1], [y0, y0 * (x1 / x0) ** -slope], "slopes", mode="lines+text", line=line)
            font = {"color": "#555555", "size": 12}
            names = {"text": ["", f" {name}"], "textposition": "middle right", "textfont": font, "cliponaxis": False}
            traces.append(ends | names)
    return traces


def _mean_table(points: pd.DataFrame) -> pd.DataFrame:
    """Per x the geometric mean, and it times and over e^(standard deviation of log y)."""
    log_y = pd.Series(np.log(points["y"].astype(float)))
    logs = log_y.groupby(points["x"].astype(float)).agg(["mean", "std", "count"])
    deviation = logs["std"].fillna(0.0)
    table = {"mean": np.exp(logs["mean"]), "low": np.exp(logs["mean"] - deviation)}
    return pd.DataFrame(table | {"high": np.exp(logs["mean"] + deviation), "count": logs["count"]}).reset_index()


def _curve_plots(data: ReportData) -> list[_Plot]:
    """Training curves by step, then the fitted metrics of the last layer by step."""
    by = [name for name in _unique([_x_name(data), *_by_names(data)]) if name in data.trials]
    plots = []
    for suffix, frame in _splits(data.curves):
        for column, scale in CURVES.items():
            axes = _Axes("step", column, "Step", f"{_label(column)}{suffix}", x_log=True, y_log=scale == "log")
            plots.append(_lines_plot(data, frame, axes, by))
    last = data.metrics[data.metrics["is_last"].eq(True)] if "is_last" in data.metrics else pd.DataFrame()
    for suffix, frame in _splits(last):
        for metric in _profile_metrics(data):
            title = f"{_label(metric)}, last layer{suffix}"
            plots.append(_lines_plot(data, frame, _Axes("step", metric, "Step", title, x_log=True, y_log=True), by))
    return [plot for plot in plots if plot is not None]


def _layer_plots(data: ReportData) -> list[_Plot]:
    """Each fitted metric against layer / depth, at each trial's last step."""
    frame = data.metrics
    if frame.empty or "layer" not in frame:
        return []
    frame = frame[frame["step"] == frame.groupby("trial_id")["step"].transform("max")]
    last_layer = frame.groupby("trial_id")["layer"].transform("max")
    frame = frame.assign(relative_layer=frame["layer"] / last_layer.where(last_layer > 0, 1))
    by = _unique(["depth" if "depth" in data.trials else _x_name(data), *_by_names(data)])
    by = [name for name in by if name in data.trials]
    plots = []
    for suffix, part in _splits(frame):
        for metric in _profile_metrics(data):
            # a measurement of the last weight matrix is the same at every layer: no profile
            if part.groupby("trial_id")[metric].nunique().max() > 1:
                title = f"{_label(metric)}{suffix}"
                axes = _Axes("relative_layer", metric, "Layer / depth", title, x_log=False, y_log=True)
                plots.append(_lines_plot(data, part, axes, by))
    return [plot for plot in plots if plot is not None]


def _lines_plot(data: ReportData, frame: pd.DataFrame, axes: _Axes, by: list[str]) -> _Plot | None:
    """One colour per value of the first name in `by`, one dash per value of the rest: means strong, trials light."""
    if axes.y not in frame:
        return None
    frame = frame.assign(**{axes.y: pd.to_numeric(frame[axes.y], errors="coerce")}).dropna(subset=[axes.x, axes.y])
    frame = frame[frame[axes.x] >= 1] if axes.x_log else frame  # step 0 has no place on a log axis
    drawable = frame[np.isfinite(frame[axes.y]) & ((frame[axes.y] > 0) | (not axes.y_log))]
    if drawable.empty:
        return None
    finished = data.trials.loc[data.trials["state"] == "ok", "trial_id"]
    groups = _grouped(data.trials, drawable.assign(of_finished=drawable["trial_id"].isin(finished)), by)
    firsts = _spread(_unique(key[:1] for key, _ in groups), MAX_GROUPS)
    rests = _spread(_unique(key[1:] for key, _ in groups), len(DASHES))
    shown = [(key, part) for key, part in groups if key[:1] in firsts and key[1:] in rests]
    colours = dict(zip(firsts, _colours(len(firsts)), strict=True))
    dashes = dict(zip(rests, DASHES, strict=False))
    traces: list[Trace] = []
    for key, part in shown:
        group = f"g{firsts.index(key[:1])}"
        line = {"color": colours[key[:1]], "dash": dashes[key[1:]]}
        light, strong = _trial_line(part, axes, MAX_LINES // len(shown)), _mean_line(part, axes)
        traces.append(_trace(*light, group, line=line | {"width": 1}, opacity=0.3))
        mode = "lines" if axes.x_log else "lines+markers"
        text = _plot_text(", ".join(f"{name} = {value}" for name, value in zip(by, key, strict=True)))
        hover = {"hovertext": text, "hoverinfo": "x+y+text"}
        traces.append(_trace(*strong, group, mode=mode, line=line | {"width": 2}, marker={"size": 5}) | hover)
    keys = _line_keys(by, colours, dashes)
    layout = _layout(axes, drawable[axes.y], rows := math.ceil(len(keys) / 4) + 1)
    layout["legend"]["title"] = {"text": _plot_text(by[0]) if by else "", "side": "top", "font": {"size": 12}}
    notes = _drawn_notes(len(shown), len(groups), len(frame) - len(drawable), log=axes.y_log)
    return _Plot(axes.y_title, traces + keys, layout, rows, notes)


def _line_keys(by: list[str], colours: dict[tuple[str, ...], str], dashes: dict[tuple[str, ...], str]) -> list[Trace]:
    """What the colours mean, then what the dashes mean."""
    keys = []
    for index, (key, colour) in enumerate(colours.items()):
        keys += [_trace([None], [None], f"g{index}", name=_plot_text(value), line={"color": colour}) for value in key]
    if len(dashes) > 1:
        for key, dash in dashes.items():
            text = _plot_text(", ".join(f"{name} = {value}" for name, value in zip(by[1:], key, strict=True)))
            keys.append(_trace([None], [None], "dashes", name=text, line={"color": GREY, "dash": dash}))
    return keys


def _trial_line(part: pd.DataFrame, axes: _Axes, num_trials: int) -> tuple[list[Any], list[Any]]:
    """So many trials of a group, evenly chosen, as one line with gaps."""
    x: list[Any] = []
    y: list[Any] = []
    for trial_id in _spread(_unique(part["trial_id"]), num_trials):
        rows = part[part["trial_id"] == trial_id].sort_values(axes.x)
        thin = rows.iloc[_thin(len(rows), MAX_POINTS // MAX_LINES)]
        x += [*thin[axes.x], None]
        y += [*thin[axes.y], None]
    return x, y


def _mean_line(part: pd.DataFrame, axes: _Axes) -> tuple[Any, Any]:
    """The mean over finished trials, or over all where none has finished; geometric on a log axis."""
    # a trial that stops half-way would bend the mean
    good = part[part["of_finished"]] if part["of_finished"].any() else part
    values = np.log(good[axes.y]) if axes.y_log else good[axes.y]
    mean = values.groupby(good[axes.x]).mean()
    mean = mean.iloc[_thin(len(mean), MAX_POINTS // MAX_LINES)]
    return mean.index, np.exp(mean) if axes.y_log else mean


def _trace(x: Iterable[Any], y: Iterable[Any], group: str, *, name: str | None = None, **style: Any) -> Trace:
    """A line unless the style says otherwise; in the legend if it has a name."""
    shared = {"type": "scatter", "x": _numbers(x), "y": _numbers(y), "mode": "lines", "hoverinfo": "skip"}
    return shared | {"legendgroup": group, "showlegend": name is not None, "name": name or ""} | style


def _layout(axes: _Axes, y_values: Iterable[float], legend_rows: int) -> dict[str, Any]:
    x_scale = {"type": "log", "exponentformat": "power", "minorloglabels": "none"} if axes.x_log else {}
    y_scale = {"type": "log"} | _log_ticks(y_values) if axes.y_log else {}
    axis = {"showline": True, "linecolor": "#333333", "gridcolor": "#e8e8e8", "zeroline": False, "automargin": True}
    axis |= {"ticks": "outside", "ticklen": 4}
    # the legend stands on the figure's bottom edge, as wide as the figure, and pushes the axes up
    legend = {"orientation": "h", "xref": "container", "yref": "container", "x": 0, "y": 0, "yanchor": "bottom"}
    return {
        "xaxis": axis | x_scale | {"title": {"text": _plot_text(axes.x_title), "standoff": 6}},
        "yaxis": axis | y_scale | {"title": {"text": _plot_text(axes.y_title), "standoff": 8}},
        "legend": legend | {"font": {"size": 12}, "tracegroupgap": 0},
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13, "color": "#222222"},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": {"l": 56, "r": 14, "t": 28, "b": 44 + 20 * legend_rows},
        "hoverlabel": {"namelength": MAX_LABEL},
    }


def _log_ticks(values: Iterable[float]) -> dict[str, Any]:
    """Powers of ten, or plain numbers within two decades."""
    decades = float(np.ptp(np.log10(list(values))))
    if decades > 2:
        return {"exponentformat": "power", "minorloglabels": "none"}
    # plotly would label 1, 2, 3 ... 9; told to make this few, it takes 1, 2, 5
    return {"tickformat": "~g", "nticks": max(3, int(decades / 0.31)) if decades > 0.9 else 5}


def _value_ticks(values: Iterable[float]) -> dict[str, Any]:
    """Ticks at the values themselves where these are few, else at 1, 2, 5; none too near to the one before."""
    unique = sorted({float(value) for value in values})
    low, high = unique[0], unique[-1]
    if len(unique) > 10:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        unique = [lead * 10.0**decade for decade in decades for lead in (1, 2, 5)]
        unique = [value for value in unique if low <= value <= high]
    kept: list[float] = []
    for value in unique:
        if not kept or math.log(value / kept[-1]) > 0.06 * math.log(high / low):
            kept.append(value)
    return {"tickvals": kept, "ticktext": [f"{value:g}" for value in kept]} if kept else {}


def _drawn_notes(num_shown: int, num_groups: int, num_dropped: int, *, log: bool) -> list[str]:
    notes = [f"{num_shown} of {num_groups} groups are drawn."] if num_shown < num_groups else []
    if num_dropped:
        why = "zero, negative or not finite and cannot stand on a log axis" if log else "not finite and not drawn"
        notes.append(f"{num_dropped} {'value is' if num_dropped == 1 else 'values are'} {why}.")
    return notes


def _figures(lead: str, plots: list[_Plot], numbers: Iterator[int], empty: str) -> str:
    if not plots:
        return f"<p>{empty}</p>"
    drawn = "\n".join(_figure(plot, next(numbers)) for plot in plots)
    return f'<p class=note>{lead}</p><div class="figures">{drawn}</div>'


def _figure(plot: _Plot, number: int) -> str:
    caption, content = " ".join([f"{plot.title}.", *plot.notes]), _json({"data": plot.traces, "layout": plot.layout})
    style = f'style="--rows:{plot.legend_rows}" role="img" aria-label="{_text(plot.title)}"'
    return (
        f'<figure><div class="plot" {style}></div><script type="application/json" class="plot-data">{content}</script>'
        f"<figcaption><b>Figure {number}.</b> {_text(caption)}</figcaption></figure>"
    )


# Tables -------------------------------------------------------------------------------------------------------------


def _fit_table(curves: Sequence[FittedCurve]) -> str:
    """All models of all curves; what holds for the whole curve stands in its first row."""
    rows = [_fit_row(curve, fit) for curve in curves for fit in curve.fits]
    if not rows:
        return "<p>No fits yet.</p>"
    header = ["metric", "group", "model", "a", "std. error", "95 % interval", "c", "floor"]
    header += ["R²", "AICc", "weight", "n", "left out"]
    models = "; ".join(f"{name}: {formula}" for name, formula in MODELS.values())
    note = (
        f"Models of a metric y over x, fitted to log y: {models}. Interval of a: bootstrap over the trials at each x, "
        "or Student's t where no x has two. Weight: Akaike weight among the models of one curve."
    )
    return f"{_table(header, rows)}<p class=note>{note}</p>"


def _fit_row(curve: FittedCurve, fit: RateFit) -> list[Cell]:
    first = fit is curve.fits[0]
    interval = _interval(fit)
    weight = "<0.001" if fit.weight is not None and fit.weight < 0.001 else _number(fit.weight)
    return [
        _cell(f"{_label(curve.metric)} over {curve.x}" if first else ""),
        _cell((_by_text(curve.by) or "all") if first else ""),
        _cell(_model_name(fit.model)),
        Cell(_signed(fit.exponent, ".3f"), is_number=True),
        Cell(_number(fit.stderr, 2), is_number=True),
        _cell(f"[{_signed(interval[0], '.3f')}, {_signed(interval[1], '.3f')}]" if interval else "—"),
        *(Cell(_number(value), is_number=True) for value in (fit.prefactor, fit.floor, fit.r2)),
        Cell("—" if not _finite(fit.aicc) else _signed(fit.aicc, ".1f"), is_number=True),
        Cell(_text(weight), is_number=True),
        Cell(str(fit.n_points), is_number=True),
        Cell(f"<div class=long>{_text(_excluded_text(curve.excluded) or '—') if first else ''}</div>"),
    ]


def _trial_table(data: ReportData) -> str:
    """States and times of the trials, with the parameters that differ between them."""
    if data.trials.empty:
        return "<p>No trials are planned.</p>"
    order = data.trials["state"].map({state: place for place, state in enumerate(STATES)})
    trials = data.trials.iloc[np.argsort(order.fillna(len(STATES)), kind="stable")]
    varying = [name for name in data.parameters if trials[name].map(_value_text).nunique() > 1]
    columns = [name for name in (*STATE_COLUMNS[:2], *varying, *STATE_COLUMNS[2:]) if name in trials]
    rows = [
        [_trial_cell(name, value) for name, value in zip(columns, row, strict=True)]
        for row in trials[columns].head(MAX_TABLE_ROWS).itertuples(index=False, name=None)
    ]
    more = len(trials) - len(rows)
    note = "Click a header to sort." + (f" The first {len(rows)} trials; {more} more are not shown." if more else "")
    same = [f"{name} = {_value_text(trials[name].iloc[0])}" for name in data.parameters if name not in varying]
    details = f"<details><summary>Parameters that all trials share</summary><p>{_text(', '.join(same))}</p></details>"
    return f"<p class=note>{note}</p>{_table(columns, rows, sortable=True)}{details if same else ''}"


def _trial_cell(name: str, value: Any) -> Cell:
    if value is None or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return Cell("", is_number=name in ("wall_s", "steps_done"))
    text = _value_text(value)
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if name == "state":
        return Cell(f'<span class="pill {_text(value)}">{_text(value)}</span>', text)
    if name == "trial_id":
        return Cell(f"<code>{_text(value)}</code>", text)
    if name == "error":
        text = text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]} …"
        return Cell(f"<div class=long>{_text(text)}</div>", text)
    if name == "wall_s" and is_number:
        return Cell(f"{value:.1f}", text, is_number)
    return Cell(_text(text), text, is_number)


def _cell(value: str) -> Cell:
    return Cell(_text(value))


def _table(header: Sequence[str], rows: Sequence[Sequence[Cell]], *, sortable: bool = False) -> str:
    """A table that scrolls inside its own box; a column of numbers has its header on their side."""
    heads = []
    for name, cell in zip(header, rows[0], strict=True):
        label = f'<button type="button">{_text(name)}</button>' if sortable else _text(name)
        heads.append(f'<th scope="col"{_number_class(cell)}>{label}</th>')
    lines = []
    for row in rows:
        keys = [f' data-key="{_text(cell.sort_key)}"' if sortable else "" for cell in row]
        cells = [f"<td{_number_class(cell)}{key}>{cell.content}</td>" for cell, key in zip(row, keys, strict=True)]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    kind = " class=sortable" if sortable else ""
    head, body = f"<thead><tr>{''.join(heads)}</tr></thead>", f"<tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll" tabindex="0"><table{kind}>{head}{body}</table></div>'


def _number_class(cell: Cell) -> str:
    return " class=number" if cell.is_number else ""


def _reproduce(data: ReportData) -> str:
    spec = yaml.safe_dump(data.spec, sort_keys=False, allow_unicode=True, width=100)
    facts = {"store": data.store, "git": data.git or "not in a git checkout", **data.versions}
    items = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.items())
    return (
        f"<h3>Sweep</h3><pre>{_text(spec)}</pre><h3>Commands</h3><pre>{_text(chr(10).join(data.commands))}</pre>"
        f"<h3>Versions</h3><dl>{items}</dl>"
    )


# Groups, colours, numbers -------------------------------------------------------------------------------------------


def _x_name(data: ReportData) -> str:
    return data.fits[0].x if data.fits else "depth"


def _by_names(data: ReportData) -> list[str]:
    return _unique([name for curve in data.fits for name in curve.by])


def _profile_metrics(data: ReportData) -> list[str]:
    names = _unique(["nc1", *(curve.metric for curve in data.fits)])
    return [name for name in names if name in data.metrics]


def _splits(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """One part per split; the suffix names it where there are several."""
    if frame.empty or "split" not in frame:
        return []
    parts = list(frame.groupby("split", sort=False))
    return [(f" ({split})" if len(parts) > 1 else "", part) for split, part in parts]


def _grouped(trials: pd.DataFrame, frame: pd.DataFrame, by: list[str]) -> list[tuple[tuple[str, ...], pd.DataFrame]]:
    """Groups in the order of their parameters' values; keys are these values as text: lists and null can be keys."""
    if not by:
        return [((), frame)]
    # from the table of trials, as a parameter may have the name of a measurement (loss: ce)
    values = trials.drop_duplicates("trial_id").set_index("trial_id")[by].loc[frame["trial_id"]].set_index(frame.index)
    groups = [(_as_tuple(key), part) for key, part in frame.groupby([values[name].map(_value_text) for name in by])]
    return sorted(groups, key=lambda group: _sort_key(tuple(values.loc[group[1].index[0]])))


def _as_tuple(key: Any) -> tuple[str, ...]:
    return tuple(key) if isinstance(key, tuple) else (key,)


def _sort_key(values: tuple[Any, ...]) -> list[tuple[bool, float, str]]:
    """Numbers by size, then everything else by its text."""
    numeric = [isinstance(value, int | float | np.number) and math.isfinite(value) for value in values]
    return [(not n, float(v) if n else 0.0, "" if n else str(v)) for n, v in zip(numeric, values, strict=True)]


def _unique(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _spread(values: list[T], limit: int) -> list[T]:
    """At most `limit` of the values, first and last among them."""
    return [values[index] for index in _thin(len(values), limit)]


def _thin(length: int, limit: int) -> list[int]:
    """At most `limit` indices, evenly spread, first and last among them."""
    if length <= limit:
        return list(range(length))
    return sorted(set(np.linspace(0, length - 1, max(limit, 2)).round().astype(int).tolist()))


def _colours(num: int) -> list[str]:
    """Viridis from dark to light; a single colour is the blue of its middle."""
    if num == 1:
        return [VIRIDIS[2]]
    stops = np.array([_rgb(colour) for colour in VIRIDIS])
    places = np.linspace(0, len(stops) - 1, num)
    channels = [np.interp(places, np.arange(len(stops)), stops[:, channel]) for channel in range(3)]
    return ["#" + "".join(f"{round(value):02x}" for value in rgb) for rgb in zip(*channels, strict=True)]


def _rgb(colour: str) -> list[int]:
    return [int(colour[start : start + 2], 16) for start in (1, 3, 5)]


def _faded(colour: str, alpha: float) -> str:
    return f"rgba({','.join(str(channel) for channel in _rgb(colour))},{alpha})"


def _log_range(values: Iterable[float], padding: float) -> list[float]:
    """The axis range in decades, with a share of padding on both sides."""
    logs = np.log10([value for value in values if value > 0])
    low, high = float(logs.min()), float(logs.max())
    extra = padding * (high - low) or 0.2
    return [low - extra, high + extra]


def _values(frame: pd.DataFrame, column: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    if column not in frame:
        return np.array([])
    values = np.asarray(pd.to_numeric(frame[column], errors="coerce"), dtype=np.float64)
    return values[np.isfinite(values)]


def _power(curve: FittedCurve) -> RateFit | None:
    return curve.power if curve.power and _finite(curve.power.exponent) else None


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _numbers(values: Iterable[Any]) -> list[float | None]:
    """As JSON holds them; six digits are finer than a pixel."""
    return [float(f"{value:.6g}") if _finite(value) else None for value in values]


# Text ---------------------------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    """Escape for HTML; halves of surrogate pairs become question marks, as no file could hold them."""
    return html.escape(str(value).encode("utf-8", "replace").decode())


def _short(text: str) -> str:
    return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"


def _plot_text(value: object) -> str:
    """Escape what plotly would read as a tag or an entity; plotly turns entities back into characters."""
    return html.escape(_short(str(value)), quote=False)


def _json(value: Any) -> str:
    """JSON that cannot end a <script>: no <, no >, no &."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda match: f"\\u{ord(match.group()):04x}", text)


def _value_text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "null"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _by_text(by: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {_value_text(value)}" for name, value in by.items())


def _excluded_text(excluded: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in excluded.items() if count)


def _signed(value: float, form: str) -> str:
    return format(value, form).replace("-", "−")


def _number(value: float | None, digits: int = 3) -> str:
    return _signed(value, f".{digits}g") if _finite(value) else "—"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# The page -----------------------------------------------------------------------------------------------------------


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>\n{content}</section>"


def _page(name: str, body: str) -> str:
    from plotly.offline import get_plotlyjs

    scripts = [get_plotlyjs().replace("\r\n", "\n"), SCRIPT]
    # the policy lets these two scripts run and nothing else: no network, and no script that came in with a user's text
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{policy}"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(name)} · depthrate</title><style>{STYLE}</style></head><body><main>{body}</main>"
        f"<noscript><p>The figures need JavaScript.</p></noscript>"
        f"<script>{scripts[0]}</script><script>{scripts[1]}</script></body></html>\n"
    )


STYLE = """
:root { --ink: #222; --soft: #5a5a5a; --rule: #ddd; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: var(--ink); }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 20px 64px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.2em 0 .7em; padding-bottom: .25em; border-bottom: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.4em 0 .4em; }
.meta, .note { color: var(--soft); font-size: .875rem; margin: .3em 0; }
.summary li, .warning li { margin: .35em 0; overflow-wrap: anywhere; }
.summary ul, .warning ul { padding-left: 1.2em; margin: .4em 0; }
.warning { border-left: 4px solid #b35900; background: #fff6ea; padding: .7em 1em; margin: 1.2em 0; }
sup { line-height: 0; }
.nowrap { white-space: nowrap; }
.pill { display: inline-block; border-radius: 4px; padding: .05em .55em; margin-right: .4em; font-size: .875rem; }
.pill { background: #eee; } .pill.ok { background: #e0efe8; } .pill.running { background: #dde8f5; }
.pill.failed { background: #f9dcd6; } .pill.diverged { background: #fbe9c9; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); gap: 28px 32px; }
figure { margin: 0; min-width: 0; break-inside: avoid; }
figcaption { margin-top: .4em; font-size: .875rem; line-height: 1.45; color: var(--soft); overflow-wrap: anywhere; }
.plot { width: 100%; height: calc(330px + var(--rows, 1) * 22px); }
.scroll { overflow-x: auto; max-height: 70vh; overflow-y: auto; border: 1px solid var(--rule); }
table { border-collapse: collapse; font-size: .81rem; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .32em .6em; text-align: left; white-space: nowrap; border-bottom: 1px solid #eee; }
th { position: sticky; top: 0; background: #f6f6f6; font-weight: 600; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid #365c8d; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.number { text-align: right; } .long { white-space: pre-line; width: max-content; max-width: 28em; }
td .pill { margin: 0; }
details { margin: .8em 0; font-size: .875rem; overflow-wrap: anywhere; }
pre { background: #f6f6f6; padding: .8em 1em; overflow-x: auto; }
pre { font: .84rem/1.5 ui-monospace, Menlo, Consolas, monospace; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15em 1.2em; font-size: .875rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media print {
  main { max-width: none; padding: 0; } .scroll { max-height: none; overflow: visible; border: 0; }
  .figures { display: block; } figure { margin-bottom: 1.5em; } h2 { break-after: avoid; } tr { break-inside: avoid; }
  table { font-size: .58rem; } th, td { padding: .3em .4em; white-space: normal; } .modebar { display: none; }
  .number { white-space: nowrap; } td .pill { font-size: inherit; } .long { width: auto; }
}
"""

SCRIPT = """
(() => {
  const plots = [];
  for (const block of document.querySelectorAll("script.plot-data")) {
    const target = block.previousElementSibling, figure = JSON.parse(block.textContent);
    // plotly's "Share chart" button sends the data to its maker's server: none of that
    const config = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
                     toImageButtonOptions: { format: "svg" }, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
    Plotly.newPlot(target, figure.data, figure.layout, config);
    plots.push(target);
  }
  const fit = () => plots.forEach((target) => Plotly.Plots.resize(target));
  addEventListener("beforeprint", fit);
  addEventListener("afterprint", fit);
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    if (a === "" || b === "") return (a === "") - (b === "");
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, column) => head.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.key;
      const rows = [...body.rows].sort((a, b) => compare(key(a), key(b)) * (falling ? -1 : 1));
      body.append(...rows);
    }));
  }
})();
"""
