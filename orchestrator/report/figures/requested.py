"""Plot the figures that a sweep requests under `figures:`: points, lines, maps, spectra and matrices."""

import itertools
from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report.curve_groups import colour_groups, mean_array
from depthrate.orchestrator.report.plot import (
    DASHES,
    GREY,
    Axes,
    Plot,
    Trace,
    dots,
    heat_map,
    legend_entry,
    make_layout,
    make_trace,
    map_layout,
    mean_line,
    mean_map,
    omission_notes,
    share_traces,
    value_ticks,
    viridis,
)
from depthrate.orchestrator.report.report_data import FigureContent, ReportData, ReportSection
from depthrate.orchestrator.report.text import escape_for_plotly

LOG_FACTOR = 8
"""Minimum range of positive values for a log axis by default, as a factor."""
JITTER = 0.15
"""Horizontal offset of a distribution's points, to either side."""


def requested_plots(data: ReportData) -> list[Plot]:
    """Plot each requested figure that has values."""
    plot_functions = {"curve": _curve_plot, "share": _share_plot, "distribution": _distribution_plot}
    plot_functions |= {"map": _map_plot, "spectrum": _spectrum_plot}
    plots: list[Plot | None] = []
    for content in data.figures:
        if content.problem or content.rows.empty:
            continue
        make_plot = plot_functions.get(content.request.kind)
        plots += _matrix_plots(data, content) if make_plot is None else [make_plot(data, content)]
    return [plot for plot in plots if plot is not None]


def _is_log(requested: str, values: Iterable[float]) -> bool:
    """Return whether an axis is logarithmic, as requested or, without a request, according to its values."""
    array = np.asarray(list(values), dtype=np.float64)
    if requested:
        return requested == "log" and bool((array > 0).all())
    return array.size > 0 and bool(array.min() > 0) and bool(array.max() >= LOG_FACTOR * array.min())


def _metric_label_for(data: ReportData, name: str) -> str:
    """Return a metric's label, or the expression itself."""
    return data.measurement(name).label if name in data.measurements else name


def _with_positions(data: ReportData, content: FigureContent, names: Sequence[str]) -> pd.DataFrame:
    """Return the numeric values, with their trials' parameters in columns `at_<name>`."""
    numeric = ["value", *(f"line_{number}" for number, _ in enumerate(content.request.lines))]
    rows = content.rows.assign(
        **{name: pd.to_numeric(content.rows[name], errors="coerce").astype(float) for name in numeric}
    )
    parameters = data.trials.drop_duplicates("trial_id").set_index("trial_id")
    for name in names:
        rows[f"at_{name}"] = pd.to_numeric(rows["trial_id"].map(parameters[name]), errors="coerce")
    rows = rows.replace([np.inf, -np.inf], np.nan)
    return rows.dropna(subset=["value", *(f"at_{name}" for name in names)])


def _curve_plot(data: ReportData, content: FigureContent) -> Plot | None:
    """Plot a metric over a parameter: light points for trials, a line for their mean, dashed reference lines."""
    request = content.request
    rows = _with_positions(data, content, [request.x])
    if rows.empty:
        return None
    at = f"at_{request.x}"
    values = [*rows["value"], *_line_values(rows, request.lines)]
    y_log = _is_log(request.y_axis, values)
    axes = Axes(
        request.x, "value", request.x, _metric_label_for(data, request.metric), _is_log(request.x_axis, rows[at]), y_log
    )
    drawable = rows[rows["value"] > 0] if y_log else rows
    groups, omissions = colour_groups(data.trials, drawable, list(request.by), "groups")
    traces: list[Trace] = []
    for index, (key, part, colour) in enumerate(groups):
        group, name = f"g{index}", ", ".join(key) or "mean"
        mean = part.groupby(at)["value"].mean()
        traces.append(dots(part[at], part["value"], group, colour, 0.35, size=6))
        line = {"color": colour, "width": 2}
        traces.append(make_trace(mean.index, mean, group, name=escape_for_plotly(name), line=line, hoverinfo="x+y"))
        for number, dash in zip(range(len(request.lines)), DASHES[1:] * len(request.lines), strict=False):
            reference = part.groupby(at)[f"line_{number}"].mean()
            traces.append(
                make_trace(reference.index, reference, group, line={"color": colour, "dash": dash, "width": 1.5})
            )
    with_values = [name for number, name in enumerate(request.lines) if drawable[f"line_{number}"].notna().any()]
    traces += _line_names(request.lines, with_values)
    layout = make_layout(axes, drawable["value"], legend=request.by)
    _set_ticks(layout, axes, rows[at])
    missing = [f"No values of {name}." for name in request.lines if name not in with_values]
    notes = [_trials_note(drawable), *missing, *omissions, *omission_notes(0, 0, len(rows) - len(drawable), log=y_log)]
    return Plot(request.title or f"{axes.y_title} over {request.x}", traces, layout, notes)


def _share_plot(data: ReportData, content: FigureContent) -> Plot | None:
    """Plot the share of trials with a condition over a parameter, with Wilson's 95 % intervals."""
    request = content.request
    rows = _with_positions(data, content, [request.x])
    if rows.empty:
        return None
    at = f"at_{request.x}"
    title = request.title or f"Share of trials with {request.condition}"
    axes = Axes(request.x, "share", request.x, "Share of trials", _is_log(request.x_axis, rows[at]), False)
    traces: list[Trace] = []
    counts = []
    for index, (key, part, colour) in enumerate(colour_groups(data.trials, rows, list(request.by))[0]):
        tally = [(x, int((at_x["value"] != 0).sum()), len(at_x)) for x, at_x in part.groupby(at)]
        counts += [f"{(key and ', '.join(key) + ': ') or ''}{k} of {n} at {x:g}" for x, k, n in tally]
        name = escape_for_plotly(", ".join(key) or "share, 95 % interval")
        traces += share_traces(tally, f"g{index}", name, colour)
    layout = make_layout(axes, [0, 1], legend=request.by)
    _set_ticks(layout, axes, rows[at])
    layout["yaxis"]["range"] = [-0.03, 1.03]
    notes = [f"Condition: {request.condition}. {'; '.join(counts[:24])}."]
    return Plot(title, traces, layout, notes)


def _distribution_plot(data: ReportData, content: FigureContent) -> Plot | None:
    """Plot the values of a metric, one point per trial, with reference lines."""
    request = content.request
    rows = _with_positions(data, content, [])
    if rows.empty:
        return None
    groups, _ = colour_groups(data.trials, rows, list(request.by))
    y_log = _is_log(request.y_axis, [*rows["value"], *_line_values(rows, request.lines)])
    axes = Axes("x", "value", ", ".join(request.by), _metric_label_for(data, request.metric), False, y_log)
    traces: list[Trace] = []
    notes = []
    dashes = (DASHES[1:] * (1 + len(request.lines)))[: len(request.lines)]
    for index, (key, part, colour) in enumerate(groups):
        ordered = part.sort_values("value")
        # points of similar height go to different sides, reproducibly
        offsets = JITTER * np.array([(-1) ** i * ((i % 5) / 4) for i in range(len(ordered))])
        traces.append(dots(index + offsets, ordered["value"], f"g{index}", colour, 0.8, size=6) | {"hoverinfo": "y"})
        for number, (name, dash) in enumerate(zip(request.lines, dashes, strict=True)):
            height = pd.to_numeric(part[f"line_{number}"], errors="coerce").mean()
            if np.isfinite(height):
                line = {"color": GREY, "dash": dash, "width": 1.5}
                traces.append(make_trace([index - 0.4, index + 0.4], [height] * 2, f"g{index}", line=line))
                below = int((part["value"] < height * (1 - 1e-9)).sum())
                notes.append(
                    f"{', '.join(key) + ': ' if key else ''}{below} of {len(part)} below {name} ({height:.6g})."
                )
    traces += _line_names(request.lines)
    layout = make_layout(axes, rows["value"])
    names = [escape_for_plotly(", ".join(key) if key else "all trials") for key, _, _ in groups]
    layout["xaxis"] |= {"tickvals": list(range(len(groups))), "ticktext": names, "range": [-0.5, len(groups) - 0.5]}
    title = request.title or f"{axes.y_title} of each trial"
    return Plot(title, traces, layout, [_trials_note(rows), *notes])


def _line_values(rows: pd.DataFrame, lines: Iterable[str]) -> list[float]:
    names = [f"line_{number}" for number, _ in enumerate(lines)]
    values = [pd.to_numeric(rows[name], errors="coerce").dropna() for name in names]
    return [float(value) for column in values for value in column]


def _line_names(lines: Iterable[str], shown: Container[str] | None = None) -> list[Trace]:
    """Return legend entries for the reference lines, by default for all of them."""
    return [
        legend_entry(escape_for_plotly(name), f"line{name}", dash=dash)
        for name, dash in zip(lines, itertools.cycle(DASHES[1:]), strict=False)
        if shown is None or name in shown
    ]


def _set_ticks(layout: dict[str, Any], axes: Axes, values: pd.Series) -> None:
    """Set ticks at the parameter's values."""
    if (axes.x_log or values.nunique() <= 10) and values.min() > 0:
        layout["xaxis"] |= value_ticks(values)


def _trials_note(rows: pd.DataFrame) -> str:
    return f"{counted(rows['trial_id'].nunique(), 'trial')}."


def _map_plot(data: ReportData, content: FigureContent) -> Plot | None:
    """Plot a metric over two parameters, averaged over the trials of a cell."""
    request = content.request
    rows = _with_positions(data, content, [request.x, request.y])
    if rows.empty:
        return None
    counts = rows.groupby([f"at_{request.y}", f"at_{request.x}"]).size()
    label = _metric_label_for(data, request.metric)
    columns = (f"at_{request.x}", f"at_{request.y}", "value")
    trace, layout = mean_map(rows, columns, (request.x, request.y), label)
    few, many = int(counts.min()), int(counts.max())
    notes = [f"Mean of {few if few == many else f'{few} to {many}'} {'trial' if many == 1 else 'trials'} per cell."]
    return Plot(request.title or f"{label} over {request.x} and {request.y}", [trace], layout, notes)


def _spectrum_plot(data: ReportData, content: FigureContent) -> Plot | None:
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
    y_log = _is_log(request.y_axis, positive)
    label = _metric_label_for(data, request.metric)
    axes = Axes("index", "value", "Index", label, False, y_log)
    traces = []
    for layer, values, colour in zip(layers, by_layer, viridis(len(layers)), strict=True):
        drawn = [value if value > 0 or not y_log else None for value in values]
        traces.append(mean_line(range(1, len(values) + 1), drawn, f"l{layer}", str(layer), colour, size=5))
    layout = make_layout(axes, positive, legend=["layer"])
    notes = [f"Mean of {counted(content.rows['trial_id'].nunique(), 'trial')}."]
    return Plot(request.title or f"{label}, layer by layer", traces, layout, notes)


def _is_list(value: Any) -> bool:
    """Return whether a value is a vector or matrix. pandas represents missing values by several null values."""
    return isinstance(value, list | np.ndarray)


def _matrix_plots(data: ReportData, content: FigureContent) -> list[Plot]:
    """Plot one trial's square matrix divided by the mean of its diagonal, and once more in the requested order."""
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
    matrix, label = flat.reshape(size, size), _metric_label_for(data, request.metric)
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
    texts = [str(name) for name in names]
    layout = map_layout("Class", "Class", texts, texts, is_square=True)
    return Plot(title, [heat_map(matrix, "", low=min(0.0, float(matrix.min())))], layout, [note])


def _lead(data: ReportData) -> str:
    return "Requested under <code>figures:</code>, at each trial's last step."


SECTION = ReportSection(30, "Requested figures", requested_plots, _lead)
