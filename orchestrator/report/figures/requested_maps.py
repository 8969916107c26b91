"""Plot requested heat maps and spectra: a metric over two parameters, a vector by layer, a matrix in two orders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report.curve_groups import mean_array
from depthrate.orchestrator.report.figure_data import FigureContent
from depthrate.orchestrator.report.figures.requested_points import is_log, metric_label_for, with_positions
from depthrate.orchestrator.report.plot import Axes, Plot, heat_map_trace, make_layout, make_trace, viridis
from depthrate.orchestrator.report.report_data import ReportData

MAX_COLUMNS = 8
"""Maximum number of columns of a map with numbers in its cells. With more they are too small."""


def map_plot(data: ReportData, content: FigureContent) -> Plot | None:
    """Plot a metric over two parameters, averaged over the trials of a cell."""
    request = content.request
    rows = with_positions(data, content, [request.x, request.y])
    if rows.empty:
        return None
    table = rows.pivot_table(index=f"at_{request.y}", columns=f"at_{request.x}", values="value", aggfunc="mean")
    table = table.sort_index(ascending=False)  # the largest on top
    counts = rows.groupby([f"at_{request.y}", f"at_{request.x}"]).size()
    label = metric_label_for(data, request.metric)
    trace = heat_map(table.to_numpy(), label)
    layout = _square_layout(Axes("x", "y", request.x, request.y, False, False), is_square=False)
    for axis, places in (("xaxis", table.columns), ("yaxis", table.index)):
        layout[axis] |= {"tickvals": list(range(len(places))), "ticktext": [f"{place:g}" for place in places]}
    few, many = int(counts.min()), int(counts.max())
    notes = [f"Mean of {few if few == many else f'{few} to {many}'} {'trial' if many == 1 else 'trials'} per cell."]
    return Plot(request.title or f"{label} over {request.x} and {request.y}", [trace], layout, notes)


def spectrum_plot(data: ReportData, content: FigureContent) -> Plot | None:
    """Plot a vector by entry, one line per layer, averaged over trials."""
    request = content.request
    columns = (content.rows[name].tolist() for name in ("layer", "value"))
    vectors = [
        (int(layer), np.asarray(vector, dtype=np.float64))
        for layer, vector in zip(*columns, strict=True)
        if _is_list(vector)
    ]
    layers = sorted({layer for layer, _ in vectors})
    if not layers:
        return None
    by_layer = [mean_array([vector for index, vector in vectors if index == layer]) for layer in layers]
    positive = [value for values in by_layer for value in values if value > 0]
    y_log = is_log(request.y_axis, positive)
    label = metric_label_for(data, request.metric)
    axes = Axes("index", "value", "Index", label, False, y_log)
    traces = []
    for layer, values, colour in zip(layers, by_layer, viridis(len(layers)), strict=True):
        style = {"mode": "lines+markers", "line": {"color": colour, "width": 2}, "marker": {"size": 5, "color": colour}}
        drawn = [value if value > 0 or not y_log else None for value in values]
        traces.append(
            make_trace(range(1, len(values) + 1), drawn, f"l{layer}", name=str(layer), hoverinfo="x+y", **style)
        )
    layout = make_layout(axes, positive, legend=["layer"])
    notes = [f"Mean of {counted(content.rows['trial_id'].nunique(), 'trial')}."]
    return Plot(request.title or f"{label}, layer by layer", traces, layout, notes)


def _is_list(value: Any) -> bool:
    """Return whether a value is a vector or matrix. pandas has several nulls for missing ones."""
    return isinstance(value, list | np.ndarray)


def matrix_plots(data: ReportData, content: FigureContent) -> list[Plot]:
    """Plot one trial's square matrix over the mean of its diagonal, and again in the requested order."""
    request = content.request
    rows = content.rows[content.rows["value"].map(_is_list)]
    if rows.empty:
        return []
    heights = pd.to_numeric(rows["height"], errors="coerce").fillna(np.inf)
    row = rows.iloc[int(np.argmin(heights.to_numpy()))]
    flat = np.asarray(row["value"], dtype=np.float64)
    size = round(len(flat) ** 0.5)
    if size**2 != len(flat):
        return []
    matrix, label = flat.reshape(size, size), metric_label_for(data, request.metric)
    scale = float(np.mean(np.diag(matrix)))
    matrix = matrix / scale if scale > 0 else matrix
    title = request.title or label
    source = f"Trial {row['trial_id']}" + (f" with the lowest {request.lowest}" if request.lowest else "")
    order = row.get("places")
    plots = [_matrix_plot(matrix, title, list(range(size)), f"{source}, divided by the mean of the diagonal.")]
    if request.order and _is_list(order):
        places = [int(place) for place in np.asarray(order)]
        note = f"Same matrix in the order {request.order}."
        plots.append(_matrix_plot(matrix[np.ix_(places, places)], f"{title}, in another order", places, note))
    elif request.order:
        plots[0].notes.append(f"No {request.order} for this trial.")
    return plots


def _matrix_plot(matrix: np.ndarray, title: str, names: list[int], note: str) -> Plot:
    layout = _square_layout(Axes("x", "y", "Class", "Class", False, False), is_square=True)
    for axis in ("xaxis", "yaxis"):
        layout[axis] |= {"tickvals": list(range(len(names))), "ticktext": [str(name) for name in names]}
    return Plot(title, [heat_map(matrix, "", low=min(0.0, float(matrix.min())))], layout, [note])


def heat_map(values: np.ndarray, label: str, low: float | None = None) -> dict[str, Any]:
    """Return plotly's heat map of values row by row, with numbers in its cells if there are few."""
    finite = values[np.isfinite(values)]
    z = [[None if not np.isfinite(value) else float(f"{value:.6g}") for value in row] for row in values]
    trace = heat_map_trace(z, (float(finite.min()) if low is None else low, float(finite.max())), "Viridis", label)
    if values.shape[1] <= MAX_COLUMNS:
        trace |= {
            "text": [["" if value is None else f"{value:.3g}" for value in row] for row in z],
            "texttemplate": "%{text}",
        }
    return trace


def _square_layout(axes: Axes, *, is_square: bool) -> dict[str, Any]:
    layout = make_layout(axes, [])
    layout["xaxis"] |= {"showgrid": False, "constrain": "domain"}
    layout["yaxis"] |= {"showgrid": False, "autorange": "reversed"} | ({"scaleanchor": "x"} if is_square else {})
    return layout
