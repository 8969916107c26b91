"""Plot training curves and metrics of the last layer by step."""

from dataclasses import replace

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.curve_groups import splits
from depthrate.orchestrator.report.line_plot import line_groups, lines_plot
from depthrate.orchestrator.report.plot import GREY, MAX_GROUPS, Axes, Plot, Trace, legend_entry, make_trace
from depthrate.orchestrator.report.report_data import ReportData, ReportSection
from depthrate.orchestrator.report.text import escape
from depthrate.tasks.metric import Metric


def curve_plots(data: ReportData) -> list[Plot]:
    """Plot the training curves by step, then the metrics of the last layer by step."""
    by = line_groups(data, data.x_name)
    plots = []
    for suffix, frame in splits(data.curves):
        for metric in data.panel_metrics("step"):
            plot = lines_plot(data, frame, _axes(metric, f"{metric.label}{suffix}"), by)
            plots.append(plot if plot is None else replace(plot, traces=plot.traces + _limit_traces(frame, metric)))
    last = data.metrics[data.metrics["is_last"].eq(True)] if "is_last" in data.metrics else pd.DataFrame()
    for suffix, frame in splits(last):
        for metric in map(data.measurement, data.layer_metrics):
            plots.append(lines_plot(data, frame, _axes(metric, f"{metric.label}, last layer{suffix}"), by))
    return [plot for plot in plots if plot is not None]


def _axes(metric: Metric, title: str) -> Axes:
    return Axes("step", metric.name, "Step", title, x_log=True, y_log=metric.axis == "log")


def _limit_traces(frame: pd.DataFrame, metric: Metric) -> list[Trace]:
    """Return lines at a metric's limit for infinite depth, which is the value minus its gap, if the task reports the gap."""
    if not metric.gap or not {metric.name, metric.gap, "step"} <= set(frame):
        return []
    limits = (frame[metric.name] - frame[metric.gap]).astype(float)
    distinct = sorted({float(f"{limit:.9g}") for limit in np.unique(limits[np.isfinite(limits)])})
    steps = frame["step"].astype(float)
    ends = [max(1.0, float(steps.min())), float(steps.max())]
    line = {"color": GREY, "width": 1.2, "dash": "dash"}
    traces = [make_trace(ends, [limit, limit], "limit", line=line) for limit in distinct[:MAX_GROUPS]]
    if traces:
        traces.append(legend_entry("limit (or lower bound) for infinite depth", "limit", **line))
    return traces


def _lead(data: ReportData) -> str:
    group = data.x_name if data.x_name in data.trials else "setting"
    return (
        f"Strong lines: mean over the trials per {escape(group)} (geometric on log axes). Light lines: trials. "
        "The axis starts at step 1."
    )


SECTION = ReportSection(50, "Training", curve_plots, _lead, "No training curves yet.")
