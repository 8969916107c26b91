"""The objective against depth beside the theory: its limit, and the limit plus what the explicit construction costs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from depthrate.orchestrator.report.data import ReportData, grouped, spread
from depthrate.orchestrator.report.plotting import (
    Axes,
    Plot,
    Trace,
    log_range,
    make_layout,
    make_trace,
    value_ticks,
    viridis,
)
from depthrate.orchestrator.report.words import escape_for_plotly
from depthrate.tasks.collapse.theory import construction_line

MAX_GROUPS = 6
GREY = "#777777"


def limit_plots(data: ReportData) -> list[Plot]:
    """Draw the objective at the last step against depth, with its limit and the construction's line through the deepest."""
    frame = data.results
    if data.x_name != "depth" or not {"objective", "objective_gap", "depth"} <= set(frame):
        return []
    frame = frame[["trial_id", "depth", "objective", "objective_gap"]].astype(
        {"objective": float, "objective_gap": float}
    )
    frame = frame.dropna()
    if frame["depth"].nunique() < 2 or (frame["objective"] <= 0).any():
        return []
    frame = frame.assign(limit=frame["objective"] - frame["objective_gap"])
    by = [name for name in data.group_names if name in data.trials]
    groups = spread(grouped(data.trials, frame, by), MAX_GROUPS)
    traces: list[Trace] = []
    for index, ((key, part), colour) in enumerate(zip(groups, viridis(len(groups)), strict=True)):
        group = f"o{index}"
        means = part.groupby("depth")[["objective", "limit"]].mean().reset_index()
        name = ", ".join(f"{n} = {value}" for n, value in zip(by, key, strict=True)) or "objective"
        dots = {"color": colour, "size": 5, "opacity": 0.5}
        traces.append(make_trace(part["depth"], part["objective"], group, mode="markers", marker=dots))
        line = {"color": colour, "width": 2}
        traces.append(make_trace(means["depth"], means["objective"], group, name=escape_for_plotly(name), line=line))
        traces.append(
            make_trace(means["depth"], means["limit"], "limit", line={"color": GREY, "width": 1.2, "dash": "dash"})
        )
        reference = _construction(data, part, means)
        if reference is not None:
            dotted = {"color": colour, "width": 1.5, "dash": "dot"}
            traces.append(make_trace(means["depth"], reference, "construction", line=dotted))
    traces += _keys(traces)
    rows = 1 + sum(trace["showlegend"] for trace in traces) // 3
    drawn = [y for trace in traces for y in trace["y"] if y]
    layout = make_layout(Axes("x", "y", "depth", "Objective", x_log=True, y_log=True), drawn, rows)
    layout["xaxis"] |= value_ticks(frame["depth"].astype(float)) | {
        "range": log_range(frame["depth"].astype(float), 0.05)
    }
    return [Plot("Objective against depth, and its limit", traces, layout, rows, [])]


def _construction(data: ReportData, part: pd.DataFrame, means: pd.DataFrame) -> list[float] | None:
    """Return limit + construction cost at each depth, its one constant chosen so that it meets the deepest mean."""
    trials = data.trials.drop_duplicates("trial_id").set_index("trial_id")
    if not {"arch", "weight_decay"} <= set(trials):
        return None
    trials = trials.loc[part["trial_id"]]
    decays = trials.groupby("depth")["weight_decay"].agg(["min", "max"])
    depths = [int(depth) for depth in means["depth"]]
    gaps = means["objective"] - means["limit"]
    if trials["arch"].nunique() > 1 or (decays["min"] != decays["max"]).any() or min(depths) < 2 or gaps.iloc[-1] <= 0:
        return None
    decay = [float(value) for value in decays.loc[depths, "min"]]
    costs = construction_line(trials["arch"].iloc[0], depths, decay, float(gaps.iloc[-1]))
    return None if costs is None else list(np.asarray(means["limit"]) + np.asarray(costs))


def _keys(traces: list[Trace]) -> list[Trace]:
    """Name the theory's lines once."""
    names = {"limit": ("limit for infinite depth", "dash"), "construction": ("limit + construction's cost", "dot")}
    drawn = {trace["legendgroup"] for trace in traces}
    return [
        make_trace([None], [None], group, name=name, line={"color": GREY, "width": 1.2, "dash": dash})
        for group, (name, dash) in names.items()
        if group in drawn
    ]
