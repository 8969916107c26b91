"""Plot metrics against depth with theory: the limit, and the limit plus the cost of the explicit construction."""

from __future__ import annotations

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.curve_groups import Group, facet_groups, facets_of
from depthrate.orchestrator.report.figure import (
    MUTED,
    Axis,
    Figure,
    Key,
    Mark,
    Series,
    mean_line,
    numbers,
    trial_dots,
    value_axis,
)
from depthrate.orchestrator.report.report_data import ReportData, ReportSection
from depthrate.orchestrator.report.text import escape, number_text
from depthrate.tasks.metric import Metric

FARTHEST_BOUND = 10.0
"""Multiple of the largest value above which a bound does not extend the axis."""


def limit_plots(data: ReportData) -> list[Figure]:
    """Plot each metric with a known limit at the last step against depth."""
    figures = [_limit_plot(data, measurement) for measurement in data.measurements.values() if measurement.gap]
    return [figure for figure in figures if figure is not None]


def _limit_plot(data: ReportData, metric: Metric) -> Figure | None:
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
    groups, notes = facet_groups(data.trials, frame, by, "groups")
    bounds = (frame["limit"] + frame["bound"]).dropna()
    highest = FARTHEST_BOUND * float(frame["value"].max())
    if (bounds > highest).any():  # extending the axis would flatten the values
        share = "" if (bounds > highest).all() else " partly"
        low, high = number_text(float(bounds.min())), number_text(float(bounds.max()))
        extent = high if low == high else f"{low} to {high}"
        notes = [*notes, f"The theorem's bound is{share} above the figure: {extent}."]
    axes = value_axis("depth", frame["depth"], is_log=True), Axis(title=metric.label, is_log=True)
    facets = facets_of(groups, *axes, lambda group: _group_marks(data, metric, group, highest))
    # for some networks the limit is only a lower bound
    is_limit = metric.reaches_limit is None or metric.reaches_limit(data.params_of(frame["trial_id"]))
    names = {
        "limit": ("limit for infinite depth" if is_limit else "lower bound", "dash"),
        "construction": ("construction's cost, scaled to the deepest", "dot"),
        "bound": ("the theorem's own bound", "dashdot"),
    }
    drawn = {mark.name for facet in facets for mark in facet.marks if isinstance(mark, Series)}
    keys = [Key(text, dash=dash) for name, (text, dash) in names.items() if name in drawn]
    return Figure(f"{metric.label} against depth, and its limit", facets, notes, keys)


def _group_marks(data: ReportData, metric: Metric, group: Group[pd.DataFrame], highest: float) -> list[Mark]:
    part, name, colour = group.content, group.name, group.colour
    means = part.groupby("depth")[["value", "limit", "bound"]].mean().reset_index()
    x = numbers(means["depth"])
    marks: list[Mark] = [
        trial_dots(part["depth"], part["value"], name, colour),
        mean_line(x, means["value"], name, colour, symbol=""),
        Series(x=x, y=numbers(means["limit"]), colour=MUTED, name="limit", width=1.2, dash="dash"),
    ]
    reference = _construction(data, metric, part, means)
    if reference is not None:
        marks.append(Series(x=x, y=numbers(reference), colour=colour, name="construction", width=1.4, dash="dot"))
    bound = means["limit"] + means["bound"]
    if (visible := bound.where(bound <= highest)).notna().any():
        marks.append(Series(x=x, y=numbers(visible), colour=colour, name="bound", width=1.4, dash="dashdot"))
    return marks


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


SECTION = ReportSection(20, "Limits at infinite depth", limit_plots, _lead)
