"""Plot training curves and metrics of the last layer by step."""

from dataclasses import replace

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.curve_groups import splits
from depthrate.orchestrator.report.figure import MAX_LINES, MUTED, Axis, Figure, Key, Series
from depthrate.orchestrator.report.line_plot import line_groups, lines_plot
from depthrate.orchestrator.report.report_data import ReportData, ReportSection
from depthrate.orchestrator.report.text import escape
from depthrate.tasks.metric import Metric

STEP = Axis(title="Step", is_log=True)


def curve_plots(data: ReportData) -> list[Figure]:
    """Plot the training curves by step, then the metrics of the last layer by step."""
    by = line_groups(data, data.x_name)
    figures = []
    for suffix, frame in splits(data.curves):
        for metric in data.panel_metrics("step"):
            figure = lines_plot(data, frame, ("step", metric.name), _axes(metric, f"{metric.label}{suffix}"), by)
            figures.append(figure and _with_limits(figure, frame, metric))
    last = data.metrics[data.metrics["is_last"].eq(True)] if "is_last" in data.metrics else pd.DataFrame()
    for suffix, frame in splits(last):
        for metric in map(data.measurement, data.layer_metrics):
            axes = _axes(metric, f"{metric.label}, last layer{suffix}")
            figures.append(lines_plot(data, frame, ("step", metric.name), axes, by))
    return [figure for figure in figures if figure is not None]


def _axes(metric: Metric, title: str) -> tuple[Axis, Axis]:
    return STEP, Axis(title=title, is_log=metric.axis == "log")


def _with_limits(figure: Figure, frame: pd.DataFrame, metric: Metric) -> Figure:
    """Add a metric's limits for infinite depth, which are the values minus the gaps, if the task reports the gap."""
    if not metric.gap or not {metric.name, metric.gap, "step"} <= set(frame):
        return figure
    limits = (frame[metric.name] - frame[metric.gap]).astype(float)
    distinct = sorted({float(f"{limit:.9g}") for limit in np.unique(limits[np.isfinite(limits)])})
    steps = frame["step"].astype(float)
    ends = [max(1.0, float(steps.min())), float(steps.max())]
    name = "limit (or lower bound) for infinite depth"
    lines = [
        Series(x=ends, y=[limit, limit], name=name, colour=MUTED, width=1.2, dash="dash")
        for limit in distinct[:MAX_LINES]
    ]
    facets = [replace(facet, marks=[*facet.marks, *lines]) for facet in figure.facets]
    return replace(figure, facets=facets, keys=[Key(name, dash="dash")] if lines else [])


def _lead(data: ReportData) -> str:
    group = data.x_name if data.x_name in data.trials else "setting"
    return (
        f"Lines: mean over the trials per {escape(group)} (geometric on log axes). Bands: range over trials. "
        "The axis starts at step 1."
    )


SECTION = ReportSection(50, "Training", curve_plots, _lead, "No training curves yet.")
