"""Plot the fitted rates: each metric against x with its power laws, and the residuals."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.preferred_model import adequate_power, preferred_models
from depthrate.orchestrator.report.curve_groups import sort_key, spread, thin_indices
from depthrate.orchestrator.report.plot import (
    GREY,
    LEGEND_LETTERS,
    MAX_GROUPS,
    MAX_POINTS,
    Axes,
    Plot,
    Trace,
    band,
    dots,
    legend_entry,
    log_range,
    make_layout,
    make_trace,
    omission_notes,
    value_ticks,
    viridis,
)
from depthrate.orchestrator.report.report_data import ReportData, ReportSection
from depthrate.orchestrator.report.text import (
    curve_label,
    escape_for_plotly,
    group_values,
    interval_of,
    is_number,
    minus_signs,
    shorten,
    signed_text,
    x_text,
)
from depthrate.tasks.fits.models import MODELS, POWER
from depthrate.tasks.fits.rates import predict

SLOPES = {"−½": 0.5, "−1": 1.0}
"""Exponents of the reference lines."""
NAMED_RIVALS = 4
"""Maximum number of groups whose rival models are named in the legend."""
LEAST_DECAY = 0.2
"""Minimum exponent of the fastest curve for the reference lines."""


def rate_plots(curves: Sequence[FittedCurve]) -> list[Plot]:
    """Plot one log-log figure per metric and x, one colour per group, and the residuals."""
    figures: dict[tuple[str, str], list[FittedCurve]] = {}
    for curve in curves:
        figures.setdefault((curve_label(curve), curve.x), []).append(curve)
    plots = []
    for (label, x), group in figures.items():
        plots += [_fit_plot(label, x, group), _residual_plot(label, x, group)]
    return [plot for plot in plots if plot is not None]


def _fit_plot(label: str, x: str, curves: list[FittedCurve]) -> Plot | None:
    drawable = {id(curve): points for curve in curves if not (points := _positive_points(curve)).empty}
    selected = _select([curve for curve in curves if id(curve) in drawable])
    shown = [(curve, drawable[id(curve)]) for curve in selected]
    if not shown:
        return None
    slopes = SLOPES if _decays(shown) else {}
    traces: list[Trace] = []
    for index, ((curve, points), colour) in enumerate(zip(shown, viridis(len(shown)), strict=True)):
        traces += _point_traces(curve, points, colour, f"g{index}", MAX_POINTS // len(shown))
        traces += _fit_traces(curve, points, colour, f"g{index}", names_rival=len(shown) <= NAMED_RIVALS)
    if len(shown) > NAMED_RIVALS and any(trace.get("meta") == "rival" for trace in traces):
        traces.append(legend_entry("another model, preferred by AICc", "rivals", dash="dot", width=2))
    x_values = pd.concat([points["x"] for _, points in shown]).astype(float)
    means, x_max = _mean_table(shown[0][1]), float(x_values.max())
    y_range = _extend_range(log_range([y for trace in traces for y in trace["y"] if y], 0.07), means, x_max, slopes)
    traces += _slope_traces(means, x_max, y_range, slopes) + _left_out_traces([curve for curve, _ in shown], y_range)
    axes = Axes("x", "y", minus_signs(shorten(x)), label, x_log=True, y_log=True)
    layout = make_layout(axes, 10 ** np.array(y_range), legend=list(shown[0][0].by))
    layout["xaxis"] |= value_ticks(x_values) | {"range": log_range(x_values, 0.05)}
    layout["yaxis"] |= {"range": y_range}
    layout["margin"]["r"] = 40  # leaves space for the names of the reference slopes
    notes = omission_notes(len(shown), len(curves), sum(len(c.points) - len(points) for c, points in shown), log=True)
    return Plot(f"{label} against {minus_signs(shorten(x))}", traces, layout, notes)


def _select(curves: list[FittedCurve]) -> list[FittedCurve]:
    """Return at most MAX_GROUPS curves in the order of their groups."""
    return spread(sorted(curves, key=lambda curve: sort_key(tuple(curve.by.values()))), MAX_GROUPS)


def _decays(shown: Sequence[tuple[FittedCurve, pd.DataFrame]]) -> bool:
    """Return whether a curve falls fast enough for the reference slopes."""
    rates = []
    for curve, points in shown:
        power, means = curve.power, _mean_table(points)
        span = math.log(means["x"].iloc[-1] / means["x"].iloc[0])
        if power is not None:
            rates.append(power.exponent)
        elif span:
            rates.append(math.log(means["mean"].iloc[0] / means["mean"].iloc[-1]) / span)
    return max(rates, default=0.0) >= LEAST_DECAY


def _positive_points(curve: FittedCurve) -> pd.DataFrame:
    """Return the points that log axes can show."""
    points = curve.points[["x", "y"]].astype(float)
    drawable = ((points > 0) & (points < np.inf)).all(axis=1)
    return curve.points.loc[drawable]


def _point_traces(curve: FittedCurve, points: pd.DataFrame, colour: str, group: str, budget: int) -> list[Trace]:
    """Return one group's band, points and mean."""
    means = _mean_table(points)
    line = {"color": colour, "width": 1}
    ring = {"size": 8, "line": {"color": "#ffffff", "width": 1}}
    unconverged = points[points["trial_id"].isin(list(curve.unconverged))]
    open_dots = {"color": colour, "size": 9, "symbol": "circle-open", "line": {"width": 1.2}}
    traces = [
        _trial_dots(points, "y", colour, group, budget),
        make_trace(means["x"], means["mean"], group, mode="lines+markers", line=line, marker=ring, hoverinfo="x+y"),
    ]
    if len(unconverged):
        traces.append(make_trace(unconverged["x"], unconverged["y"], group, mode="markers", marker=open_dots))
    if (means["count"] > 1).any():
        x, low, high = (means[name].tolist() for name in ("x", "low", "high"))
        traces.insert(0, band(x, low, high, group, colour, 0.15))
    return traces


def _trial_dots(points: pd.DataFrame, y: str, colour: str, group: str, budget: int) -> Trace:
    """Return one dot per trial, with a name that is shown on hovering."""
    thin = points.sort_values(["x", y]).iloc[thin_indices(len(points), budget)]
    pairs = zip(thin["seed"], thin["trial_id"], strict=True)
    hover = [f"seed {escape_for_plotly(seed)}, trial {escape_for_plotly(trial)}" for seed, trial in pairs]
    trace = dots(thin["x"], thin[y], group, colour, 0.5)
    return trace | {"text": hover, "hoverinfo": "x+y+text"}


def _fit_traces(curve: FittedCurve, points: pd.DataFrame, colour: str, group: str, *, names_rival: bool) -> list[Trace]:
    """Return the lines of the power law, if it is adequate, and of the best other model that is not ruled out."""
    power, line = adequate_power(curve), {"color": colour, "width": 2.5}
    x = np.geomspace(points["x"].min(), points["x"].max(), 50)
    if power is None:
        missing = "no power law fits" if curve.power else "no fit"
        traces = [legend_entry(_legend_name(curve, missing), group, **line)]
    else:
        rate = f"{escape_for_plotly(x_text(curve.x))}<sup>{signed_text(-power.exponent, '.2f')}</sup>"
        if interval := interval_of(power):
            rate += f" [{', '.join(signed_text(end, '.2f') for end in interval)}]"
        name = _legend_name(curve, rate if curve.by else f"fit {rate}")
        traces = [make_trace(x, predict(power, x), group, name=name, line=line, meta="fit")]
    preference = preferred_models(curve)
    rival = next((fit for fit in preference.models if fit.model != POWER.name), None)
    if rival is not None:
        text = f"{MODELS[rival.model].words}, {'preferred' if preference.is_decided else 'not ruled out'}"
        name = _legend_name(curve, text) if names_rival else ""
        dotted = line | {"dash": "dot", "width": 2}
        traces.append(make_trace(x, predict(rival, x), group, name=name or None, line=dotted, meta="rival"))
    return traces


def _legend_name(curve: FittedCurve, text: str) -> str:
    """Return the group's values and the note, on two lines if a single line would not fit on a narrow screen."""
    by = escape_for_plotly(group_values(curve.by))
    length = len(by) + len(": ") + len(re.sub("<.*?>", "", text))
    return f"{by}:{'<br>' if length > LEGEND_LETTERS else ' '}{text}" if by else text


def _extend_range(y_range: list[float], means: pd.DataFrame, x_max: float, slopes: Mapping[str, float]) -> list[float]:
    """Extend the range to the end of a reference slope, if this costs the points little height."""
    (x0, y0), (low, high) = _first_mean(means), y_range
    ends = [math.log10(y0) - slope * math.log10(x_max / x0) - 0.06 * (high - low) for slope in slopes.values()]
    return [min([low, *(end for end in ends if low - end < 0.35 * (high - low))]), high]


def _first_mean(means: pd.DataFrame) -> tuple[float, float]:
    return float(means["x"].iloc[0]), float(means["mean"].iloc[0])


def _slope_traces(means: pd.DataFrame, x_max: float, y_range: list[float], slopes: Mapping[str, float]) -> list[Trace]:
    """Return the lines x^-1/2 and x^-1 through the first mean, named at their ends."""
    if not slopes:
        return []
    x0, y0 = _first_mean(means)
    y_bottom = 10 ** (y_range[0] + 0.05 * (y_range[1] - y_range[0]))  # leaves space for the name above the axis
    line = {"color": GREY, "width": 1.2, "dash": "dash"}
    traces = [legend_entry("slopes −½ and −1", "slopes", **line)]
    for name, slope in slopes.items():
        x1 = min(x_max, x0 * (y0 / y_bottom) ** (1 / slope))
        if x1 > x0:
            ends = make_trace([x0, x1], [y0, y0 * (x1 / x0) ** -slope], "slopes", mode="lines+text", line=line)
            font = {"color": "#555555", "size": 12}
            names = {"text": ["", f" {name}"], "textposition": "middle right", "textfont": font, "cliponaxis": False}
            traces.append(ends | names)
    return traces


def _left_out_traces(curves: Sequence[FittedCurve], y_range: list[float]) -> list[Trace]:
    """Return triangles on the bottom edge at the x of excluded trials: diverged, zero, negative."""
    excluded = [
        point
        for curve in curves
        for point in curve.left_out
        if point["reason"] != "below the cut-off" and is_number(point["x"]) and point["x"] > 0
    ]
    if not excluded:
        return []
    bottom = 10 ** (y_range[0] + 0.015 * (y_range[1] - y_range[0]))
    hover = [escape_for_plotly(f"{point['reason']}, trial {point['trial_id']}") for point in excluded[:MAX_POINTS]]
    marker = {"color": "#b35900", "size": 8, "symbol": "triangle-up"}
    style = {"mode": "markers", "marker": marker, "text": hover, "hoverinfo": "text", "cliponaxis": False}
    x = [point["x"] for point in excluded[:MAX_POINTS]]
    return [make_trace(x, [bottom] * len(x), "lost", name="excluded", **style)]


def _mean_table(points: pd.DataFrame) -> pd.DataFrame:
    """Return, per x, the geometric mean, and this mean multiplied and divided by e^(standard deviation of log y)."""
    log_y = pd.Series(np.log(points["y"].astype(float)))
    logs = log_y.groupby(points["x"].astype(float)).agg(["mean", "std", "count"])
    deviation = logs["std"].fillna(0.0)
    table = {"mean": np.exp(logs["mean"]), "low": np.exp(logs["mean"] - deviation)}
    return pd.DataFrame(table | {"high": np.exp(logs["mean"] + deviation), "count": logs["count"]}).reset_index()


def _residual_plot(label: str, x: str, curves: Sequence[FittedCurve]) -> Plot | None:
    """Plot log y minus the log of the fitted power law, for the curves of one metric and x, if any curve has a fit."""
    shown = _select([curve for curve in curves if curve.power])
    if not shown:
        return None
    traces: list[Trace] = []
    for index, (curve, colour) in enumerate(zip(shown, viridis(len(shown)), strict=True)):
        traces += _residual_traces(curve, colour, f"g{index}", MAX_POINTS // len(shown))
    x_values = pd.concat([curve.points["x"] for curve in shown]).astype(float)
    ends = [float(x_values.min()), float(x_values.max())]
    traces.append(make_trace(ends, [0, 0], "zero", line={"color": GREY, "width": 1.2, "dash": "dash"}))
    axes = Axes("x", "y", minus_signs(shorten(x)), f"ln {label} − fit", x_log=True, y_log=False)
    layout = make_layout(axes, [], legend=list(shown[0].by))
    layout["xaxis"] |= value_ticks(x_values) | {"range": log_range(x_values, 0.05)}
    return Plot(f"Residuals of {label} from the power law", traces, layout, [])


def _residual_traces(curve: FittedCurve, colour: str, group: str, budget: int) -> list[Trace]:
    assert curve.power is not None
    points = curve.points.astype({"x": float, "y": float})
    points = points[(points["x"] > 0) & (points["y"] > 0)]
    points = points.assign(residual=np.log(points["y"]) - np.log(predict(curve.power, points["x"].to_numpy())))
    points = points[np.isfinite(points["residual"])]
    means = points.groupby("x")["residual"].mean()
    line = {"color": colour, "width": 1}
    name = escape_for_plotly(group_values(curve.by)) or None
    ring = {"size": 8, "color": colour, "line": {"color": "#ffffff", "width": 1}}
    return [
        _trial_dots(points, "residual", colour, group, budget),
        make_trace(means.index, means, group, name=name, mode="lines+markers", line=line, marker=ring),
    ]


def _lead(data: ReportData) -> str:
    return (
        "At the last step. Small dots: trials (ringed: unconverged). Triangles: excluded trials. Large dots and band: mean "
        "and one standard deviation of log values. Thick line: adequate power law, with the 95 % interval of its exponent a "
        "in the legend. Grey dashes: slopes −½ and −1 through the first mean. "
        "Residuals of ln y: 0.1 is about 10 %. A bend common to all seeds suggests another law, or too small x."
    )


SECTION = ReportSection(10, "Rates", lambda data: rate_plots(data.fits), _lead, "No fits yet.")
