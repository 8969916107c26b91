"""A measurement against depth beside the theory: its limit, and the limit plus what the explicit construction costs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.curve_groups import grouped, key_parts, spread_alike, unique
from depthrate.orchestrator.report.line_styles import LineStyle, assign_line_styles
from depthrate.orchestrator.report.plot import (
    GREY,
    MAX_GROUPS,
    Axes,
    Plot,
    Trace,
    drawn_notes,
    log_range,
    make_layout,
    make_trace,
    value_ticks,
)
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.section import ReportSection
from depthrate.orchestrator.report.text import escape, escape_for_plotly, number_text
from depthrate.tasks.metric import Metric

FARTHEST_BOUND = 10.0
"""Times the largest value: a bound above that does not stretch the axis."""


def limit_plots(data: ReportData) -> list[Plot]:
    """Draw each measurement that has a known limit at the last step against depth, with that limit."""
    plots = [_limit_plot(data, measurement) for measurement in data.measurements.values() if measurement.gap]
    return [plot for plot in plots if plot is not None]


def _limit_plot(data: ReportData, each: Metric) -> Plot | None:
    """The values, their limit, and theory's line above it, scaled so that it meets the deepest mean."""
    frame = data.results
    if data.x_name != "depth" or not {each.name, each.gap, "depth"} <= set(frame):
        return None
    frame = pd.DataFrame({"trial_id": frame["trial_id"], "depth": frame["depth"]}).assign(
        value=frame[each.name].astype(float), limit=(frame[each.name] - frame[each.gap]).astype(float)
    )
    frame = frame.assign(bound=_bound(data, each)[0]).dropna(subset=["depth", "value", "limit"])
    if frame["depth"].nunique() < 2 or (frame["value"] <= 0).any():
        return None
    by = [name for name in data.group_names if name in data.trials]
    groups = grouped(data.trials, frame, by)
    shown = spread_alike(groups, MAX_GROUPS, lambda group: key_parts(by, group[0]))
    sweeps = unique(key_parts(by, key)[0] or None for key, _ in groups)
    looks = assign_line_styles([dict(zip(by, key, strict=True)) for key, _ in shown], sweeps)
    traces: list[Trace] = []
    for index, ((key, part), look) in enumerate(zip(shown, looks, strict=True)):
        name = ", ".join(key) or each.label.lower()
        traces += _group_traces(data, each, part, f"o{index}", escape_for_plotly(name), look)
    traces += _keys(traces, is_limit=_is_limit(data, each, frame))
    measured = [y for trace in traces for y in trace["y"] if y and trace["legendgroup"] != "bound"]
    bounds = [y for trace in traces for y in trace["y"] if y and trace["legendgroup"] == "bound"]
    far = [y for y in bounds if y > FARTHEST_BOUND * max(measured)]
    drawn = measured + [y for y in bounds if y not in far]
    layout = make_layout(Axes("x", "y", "depth", each.label, x_log=True, y_log=True), drawn, legend=by)
    layout["legend"]["traceorder"] = "grouped"  # the groups' short names beside each other, those of theory below
    notes = drawn_notes(len(shown), len(groups), 0, log=True)
    if far:  # in the same figure it would press the values into a line
        layout["yaxis"] |= {"range": log_range(drawn, 0.07)}
        where = "" if len(far) == len(bounds) else " in part"
        least, most = number_text(min(bounds)), number_text(max(bounds))
        extent = most if least == most else f"{least} to {most}"
        notes += [f"The theorem's own bound lies{where} above the figure: {extent}."]
    depths = frame["depth"].astype(float)
    layout["xaxis"] |= value_ticks(depths) | {"range": log_range(depths, 0.05)}
    return Plot(f"{each.label} against depth, and its limit", traces, layout, notes)


def _group_traces(
    data: ReportData, each: Metric, part: pd.DataFrame, group: str, name: str, look: LineStyle
) -> list[Trace]:
    means = part.groupby("depth")[["value", "limit", "bound"]].mean().reset_index()
    dots = {"color": look.colour, "size": 5, "opacity": 0.5, "symbol": look.symbol}
    line = {"color": look.colour, "width": 2, "dash": look.dash}
    dashed = {"color": GREY, "width": 1.2, "dash": "dash"}
    traces = [
        make_trace(part["depth"], part["value"], group, mode="markers", marker=dots),
        make_trace(means["depth"], means["value"], group, name=name, line=line),
        make_trace(means["depth"], means["limit"], "limit", line=dashed),
    ]
    reference = _construction(data, each, part, means)
    if reference is not None:
        dotted = {"color": look.colour, "width": 1.5, "dash": "dot"}
        traces.append(make_trace(means["depth"], reference, "construction", line=dotted))
    bound = means["limit"] + means["bound"]
    if bound.notna().any():
        known = bound.notna()
        dashed = {"color": look.colour, "width": 1.5, "dash": "longdashdot"}
        traces.append(make_trace(means["depth"][known], bound[known], "bound", line=dashed))
    return traces


def _bound(data: ReportData, each: Metric) -> tuple[pd.Series[float], str]:
    """Return the theorem's own bound on each row's gap where it says something, and a sentence where it does so of none."""
    missing = pd.Series(np.nan, data.results.index)
    bound = data.results.get(each.gap_bound, missing).astype(float)
    if bound.isna().all():
        return bound, ""
    reached = each.optimum.reached_where if each.optimum else ""
    of_optima = bound.where(data.results.get(reached, missing) == 1)
    if of_optima.isna().all():
        return of_optima, "it speaks of optima, and of none of these trials a solver says that it has reached one"
    trials = data.trials.drop_duplicates("trial_id").set_index("trial_id").loc[data.results["trial_id"]]
    rows = [{str(name): value for name, value in row.items()} for row in trials[data.parameters].to_dict("records")]
    zero = None if each.at_zero is None else each.at_zero(rows)
    most = missing if zero is None else pd.Series(np.array(zero, dtype=float), data.results.index)
    limit = (data.results[each.name] - data.results[each.gap]).astype(float)
    said = of_optima.where(limit + of_optima < most)
    why = "weights of zero are no higher than it" if zero is not None else "it is not known what weights of zero have"
    return said, why if said.isna().all() else ""


def _construction(data: ReportData, each: Metric, part: pd.DataFrame, means: pd.DataFrame) -> list[float] | None:
    """Return limit + what theory says of the gap at each depth, its one factor chosen so that it meets the deepest mean."""
    if each.excess is None:
        return None
    trials = data.trials.drop_duplicates("trial_id").set_index("trial_id")
    chosen = trials.loc[part["trial_id"], data.parameters].to_dict("records")
    said = each.excess([{str(name): value for name, value in params.items()} for params in chosen])
    gaps = means["value"] - means["limit"]
    if said is None or gaps.iloc[-1] <= 0:
        return None
    excess = pd.Series(said, index=part["depth"].to_numpy(), dtype=float).groupby(level=0).agg(["min", "max"])
    if (excess["min"] != excess["max"]).any() or excess["min"].iloc[-1] == 0:
        return None
    factor = float(gaps.iloc[-1]) / float(excess["min"].iloc[-1])
    return list(np.asarray(means["limit"]) + factor * np.asarray(excess["min"]))


def _is_limit(data: ReportData, each: Metric, frame: pd.DataFrame) -> bool:
    """Whether what the gaps are above is a limit as depth grows: for some networks it is a lower bound alone."""
    trials = data.trials.drop_duplicates("trial_id").set_index("trial_id").loc[frame["trial_id"]]
    params = [{str(name): value for name, value in row.items()} for row in trials[data.parameters].to_dict("records")]
    return each.reaches_limit is None or each.reaches_limit(params)


def _keys(traces: list[Trace], *, is_limit: bool) -> list[Trace]:
    """Name the theory's lines once."""
    names = {
        "limit": ("limit for infinite depth" if is_limit else "lower bound", "dash"),
        "construction": ("construction's cost, scaled to the deepest", "dot"),
        "bound": ("the theorem's own bound", "longdashdot"),
    }
    drawn = {trace["legendgroup"] for trace in traces}
    return [
        make_trace([None], [None], group, name=name, line={"color": GREY, "width": 1.2, "dash": dash})
        for group, (name, dash) in names.items()
        if group in drawn
    ]


def _lead(data: ReportData) -> str:
    return " ".join(
        f"{escape(each.label)}: dashed its limit (a lower bound where the theorem asks for more than these trials have), "
        "dotted that plus the order of the construction's cost, scaled so that it meets the deepest networks"
        + _bound_words(data, each)
        for each in data.measurements.values()
        if each.gap and {each.name, each.gap} <= set(data.results)
    )


def _bound_words(data: ReportData, each: Metric) -> str:
    bound, why = _bound(data, each)
    if why:
        return f". The theorem's own bound is not drawn: {why}."
    return "." if bound.isna().all() else ", dash-dotted that plus the theorem's own bound, with no factor chosen."


LIMITS = ReportSection("Rates", limit_plots, _lead)
