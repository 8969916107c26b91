"""Plot metrics against depth with theory: the limit, and the limit plus the cost of the explicit construction."""

from __future__ import annotations

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.curve_groups import group_trials, spread
from depthrate.orchestrator.report.plot import (
    GREY,
    MAX_GROUPS,
    Axes,
    Plot,
    Trace,
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
from depthrate.orchestrator.report.text import escape, escape_for_plotly, number_text
from depthrate.tasks.metric import Metric

FARTHEST_BOUND = 10.0
"""Multiple of the largest value above which a bound does not extend the axis."""


def limit_plots(data: ReportData) -> list[Plot]:
    """Plot each metric with a known limit at the last step against depth."""
    plots = [_limit_plot(data, measurement) for measurement in data.measurements.values() if measurement.gap]
    return [plot for plot in plots if plot is not None]


def _limit_plot(data: ReportData, metric: Metric) -> Plot | None:
    """Plot the values, their limit, and theory's line above it, scaled to the deepest mean."""
    frame = data.results
    if data.x_name != "depth" or not {metric.name, metric.gap, "depth"} <= set(frame):
        return None
    frame = pd.DataFrame({"trial_id": frame["trial_id"], "depth": frame["depth"]}).assign(
        value=frame[metric.name].astype(float), limit=(frame[metric.name] - frame[metric.gap]).astype(float)
    )
    frame = frame.assign(bound=_bound(data, metric)[0]).dropna(subset=["depth", "value", "limit"])
    if frame["depth"].nunique() < 2 or (frame["value"] <= 0).any():
        return None
    by = [name for name in data.group_names if name in data.trials]
    groups = group_trials(data.trials, frame, by)
    shown = spread(groups, MAX_GROUPS)
    traces: list[Trace] = []
    for index, ((key, part), colour) in enumerate(zip(shown, viridis(len(shown)), strict=True)):
        name = ", ".join(key) or metric.label.lower()
        traces += _group_traces(data, metric, part, f"o{index}", escape_for_plotly(name), colour)
    # for some networks the limit is only a lower bound
    is_limit = metric.reaches_limit is None or metric.reaches_limit(data.params_of(frame["trial_id"]))
    traces += _keys(traces, is_limit=is_limit)
    measured = [y for trace in traces for y in trace["y"] if y and trace["legendgroup"] != "bound"]
    bounds = [y for trace in traces for y in trace["y"] if y and trace["legendgroup"] == "bound"]
    outside = [y for y in bounds if y > FARTHEST_BOUND * max(measured)]
    drawn = measured + [y for y in bounds if y not in outside]
    layout = make_layout(Axes("x", "y", "depth", metric.label, x_log=True, y_log=True), drawn, legend=by)
    layout["legend"]["traceorder"] = "grouped"  # the groups' short names are in one row, with theory below
    notes = omission_notes(len(shown), len(groups))
    if outside:  # extending the axis would flatten the values
        layout["yaxis"] |= {"range": log_range(drawn, 0.07)}
        share = "" if len(outside) == len(bounds) else " partly"
        low, high = number_text(min(bounds)), number_text(max(bounds))
        extent = high if low == high else f"{low} to {high}"
        notes += [f"The theorem's bound is{share} above the figure: {extent}."]
    depths = frame["depth"].astype(float)
    layout["xaxis"] |= value_ticks(depths) | {"range": log_range(depths, 0.05)}
    return Plot(f"{metric.label} against depth, and its limit", traces, layout, notes)


def _group_traces(
    data: ReportData, metric: Metric, part: pd.DataFrame, group: str, name: str, colour: str
) -> list[Trace]:
    means = part.groupby("depth")[["value", "limit", "bound"]].mean().reset_index()
    line = {"color": colour, "width": 2}
    dashed = {"color": GREY, "width": 1.2, "dash": "dash"}
    traces = [
        dots(part["depth"], part["value"], group, colour, 0.5),
        make_trace(means["depth"], means["value"], group, name=name, line=line),
        make_trace(means["depth"], means["limit"], "limit", line=dashed),
    ]
    reference = _construction(data, metric, part, means)
    if reference is not None:
        dotted = {"color": colour, "width": 1.5, "dash": "dot"}
        traces.append(make_trace(means["depth"], reference, "construction", line=dotted))
    bound = means["limit"] + means["bound"]
    if bound.notna().any():
        has_bound = bound.notna()
        dashed = {"color": colour, "width": 1.5, "dash": "longdashdot"}
        traces.append(make_trace(means["depth"][has_bound], bound[has_bound], "bound", line=dashed))
    return traces


def _bound(data: ReportData, metric: Metric) -> tuple[pd.Series[float], str]:
    """Return the theorem's bound on each row's gap, and the reason if it does not apply to any row."""
    missing = pd.Series(np.nan, data.results.index)
    bound = data.results.get(metric.gap_bound, missing).astype(float)
    if bound.isna().all():
        return bound, ""
    reached = metric.optimum.reached_where if metric.optimum else ""
    of_optima = bound.where(data.results.get(reached, missing) == 1)
    if of_optima.isna().all():
        return of_optima, "it holds for optima, and no solver reports one for these trials"
    zero = None if metric.at_zero is None else metric.at_zero(data.params_of(data.results["trial_id"]))
    at_zero = missing if zero is None else pd.Series(np.array(zero, dtype=float), data.results.index)
    limit = (data.results[metric.name] - data.results[metric.gap]).astype(float)
    informative = of_optima.where(limit + of_optima < at_zero)
    reason = "zero weights are not above it" if zero is not None else "the value of zero weights is unknown"
    return informative, reason if informative.isna().all() else ""


def _construction(data: ReportData, metric: Metric, part: pd.DataFrame, means: pd.DataFrame) -> list[float] | None:
    """Return limit + predicted gap at each depth, with one factor fitted to the deepest mean."""
    if metric.excess is None:
        return None
    predicted = metric.excess(data.params_of(part["trial_id"]))
    gaps = means["value"] - means["limit"]
    if predicted is None or gaps.iloc[-1] <= 0:
        return None
    excess = pd.Series(predicted, index=part["depth"].to_numpy(), dtype=float).groupby(level=0).agg(["min", "max"])
    if (excess["min"] != excess["max"]).any() or excess["min"].iloc[-1] == 0:
        return None
    factor = float(gaps.iloc[-1]) / float(excess["min"].iloc[-1])
    return list(np.asarray(means["limit"]) + factor * np.asarray(excess["min"]))


def _keys(traces: list[Trace], *, is_limit: bool) -> list[Trace]:
    """Return legend entries for the theory's lines."""
    names = {
        "limit": ("limit for infinite depth" if is_limit else "lower bound", "dash"),
        "construction": ("construction's cost, scaled to the deepest", "dot"),
        "bound": ("the theorem's own bound", "longdashdot"),
    }
    drawn = {trace["legendgroup"] for trace in traces}
    return [legend_entry(name, group, width=1.2, dash=dash) for group, (name, dash) in names.items() if group in drawn]


def _lead(data: ReportData) -> str:
    return " ".join(
        f"{escape(metric.label)}: dashed the limit (a lower bound if the theorem assumes more than these trials), dotted the "
        "limit plus the order of the construction's cost, scaled to the deepest networks" + _bound_text(data, metric)
        for metric in data.measurements.values()
        if metric.gap and {metric.name, metric.gap} <= set(data.results)
    )


def _bound_text(data: ReportData, metric: Metric) -> str:
    bound, reason = _bound(data, metric)
    if reason:
        return f". The theorem's bound is not shown: {reason}."
    return "." if bound.isna().all() else ", dash-dotted the limit plus the theorem's bound, without a factor."


SECTION = ReportSection(20, "Rates", limit_plots, _lead)
