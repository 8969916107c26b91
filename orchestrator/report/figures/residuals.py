"""Plot the residuals of the power law against x."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.report.curve_groups import thin_indices
from depthrate.orchestrator.report.line_styles import LineStyle, assign_line_styles, curve_sweeps, select_curves
from depthrate.orchestrator.report.plot import (
    GREY,
    MAX_GROUPS,
    MAX_POINTS,
    Axes,
    Plot,
    Trace,
    log_range,
    make_layout,
    make_trace,
    value_ticks,
)
from depthrate.orchestrator.report.text import (
    curve_label,
    escape_for_plotly,
    group_values,
    minus_signs,
    shorten,
)
from depthrate.tasks.fits.rates import predict


def residual_plot(curves: Sequence[FittedCurve]) -> Plot | None:
    """Plot log y minus the log of the fitted power law, for the curves of one metric and x, if any has a fit."""
    shown = select_curves([curve for curve in curves if curve.power], MAX_GROUPS)
    if not shown:
        return None
    traces: list[Trace] = []
    styles = assign_line_styles([curve.by for curve in shown], curve_sweeps(curves))
    for index, (curve, style) in enumerate(zip(shown, styles, strict=True)):
        traces += _group_traces(curve, style, f"g{index}", MAX_POINTS // len(shown))
    x_values = pd.concat([curve.points["x"] for curve in shown]).astype(float)
    label, x = curve_label(shown[0]), shown[0].x
    ends = [float(x_values.min()), float(x_values.max())]
    traces.append(make_trace(ends, [0, 0], "zero", line={"color": GREY, "width": 1.2, "dash": "dash"}))
    axes = Axes("x", "y", minus_signs(shorten(x)), f"ln {label} − fit", x_log=True, y_log=False)
    layout = make_layout(axes, [], legend=list(shown[0].by))
    layout["xaxis"] |= value_ticks(x_values) | {"range": log_range(x_values, 0.05)}
    title = f"Residuals of {label} from the power law"
    return Plot(title, traces, layout, [])


def _group_traces(curve: FittedCurve, style: LineStyle, group: str, budget: int) -> list[Trace]:
    power = curve.power
    assert power is not None
    points = curve.points.astype({"x": float, "y": float})
    points = points[(points["x"] > 0) & (points["y"] > 0)]
    points = points.assign(residual=np.log(points["y"]) - np.log(predict(power, points["x"].to_numpy())))
    points = points[np.isfinite(points["residual"])]
    means = points.groupby("x")["residual"].mean()
    thin = points.sort_values(["x", "residual"]).iloc[thin_indices(len(points), budget)]
    hover = [f"seed {escape_for_plotly(seed)}, trial {escape_for_plotly(trial)}" for seed, trial in
             zip(thin["seed"], thin["trial_id"], strict=True)]  # fmt: skip
    dots = {"color": style.colour, "size": 5, "opacity": 0.5, "symbol": style.symbol}
    line = {"color": style.colour, "width": 1, "dash": style.dash}
    name = escape_for_plotly(group_values(curve.by)) or None
    ring = {"size": 8, "color": style.colour, "symbol": style.symbol, "line": {"color": "#ffffff", "width": 1}}
    return [
        make_trace(thin["x"], thin["residual"], group, mode="markers", marker=dots, text=hover, hoverinfo="x+y+text"),
        make_trace(means.index, means, group, name=name, mode="lines+markers", line=line, marker=ring),
    ]
