"""What is measured while networks train, by step: the training curves, and the last layer's measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.curve_groups import splits
from depthrate.orchestrator.report.line_plot import line_groups, lines_plot
from depthrate.orchestrator.report.plot import GREY, MAX_GROUPS, Axes, Plot, Trace, make_trace
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.section import ReportSection
from depthrate.orchestrator.report.text import escape
from depthrate.tasks.metric import Metric


def curve_plots(data: ReportData) -> list[Plot]:
    """Draw the training curves by step, then the fitted metrics of the last layer by step."""
    by = line_groups(data, data.x_name)
    plots = []
    for suffix, frame in splits(data.curves):
        for each in data.drawn("step"):
            plot = lines_plot(data, frame, _axes(each, f"{each.label}{suffix}"), by)
            plots.append(plot if plot is None else replace(plot, traces=plot.traces + _limit_traces(frame, each)))
    last = data.metrics[data.metrics["is_last"].eq(True)] if "is_last" in data.metrics else pd.DataFrame()
    for suffix, frame in splits(last):
        for each in map(data.measurement, data.layer_metrics):
            plots.append(lines_plot(data, frame, _axes(each, f"{each.label}, last layer{suffix}"), by))
    return [plot for plot in plots if plot is not None]


def _axes(each: Metric, title: str) -> Axes:
    return Axes("step", each.name, "Step", title, x_log=True, y_log=each.axis == "log")


def _limit_traces(frame: pd.DataFrame, each: Metric) -> list[Trace]:
    """The limit for infinite depth of a measurement that has one, where the task knows it: the value minus its gap."""
    if not each.gap or not {each.name, each.gap, "step"} <= set(frame):
        return []
    limits = (frame[each.name] - frame[each.gap]).astype(float)
    distinct = sorted({float(f"{limit:.9g}") for limit in np.unique(limits[np.isfinite(limits)])})
    steps = frame["step"].astype(float)
    ends = [max(1.0, float(steps.min())), float(steps.max())]
    line = {"color": GREY, "width": 1.2, "dash": "dash"}
    traces = [make_trace(ends, [limit, limit], "limit", line=line) for limit in distinct[:MAX_GROUPS]]
    if traces:
        traces.append(make_trace([None], [None], "limit", name="limit (or lower bound) for infinite depth", line=line))
    return traces


def _lead(data: ReportData) -> str:
    of_one = data.x_name if data.x_name in data.trials else "setting"
    return (
        f"Strong lines: mean over the trials of one {escape(of_one)} (geometric on log axes); light lines: single "
        "trials. The axis begins at step 1."
    )


TRAINING = ReportSection("Training", curve_plots, _lead, "No training curves yet.")
