"""Plot the figures that a sweep requests under `figures:`: points, lines, maps, spectra, matrices and collapses."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report.curve_groups import (
    Group,
    facet_groups,
    facets_of,
    group_trials,
    split_facets,
    spread,
)
from depthrate.orchestrator.report.figure import (
    DASHES,
    MUTED,
    Axis,
    Facet,
    Figure,
    Key,
    Mark,
    colours_of,
    is_log,
    mean_line,
    numbers,
    omission_notes,
    trial_dots,
    value_axis,
)
from depthrate.orchestrator.report.figures.collapse import collapse_plot
from depthrate.orchestrator.report.figures.kinds import map_figure, share_figure, vector_marks
from depthrate.orchestrator.report.figures.last_layer import matrix_facet
from depthrate.orchestrator.report.report_data import FigureContent, ReportData, ReportSection
from depthrate.orchestrator.sheet.names import shorten

JITTER = 0.15
"""Horizontal offset of a distribution's points, to either side."""
MAX_COLUMNS = 12
"""Maximum number of groups of a distribution."""


def requested_plots(data: ReportData) -> list[Figure]:
    """Plot each requested figure that has values."""
    plot_functions = {"curve": _curve_plot, "share": _share_plot, "distribution": _distribution_plot}
    plot_functions |= {"collapse": collapse_plot, "map": _map_plot, "spectrum": _spectrum_plot, "matrix": _matrix_plot}
    contents = [content for content in data.figures if not content.problem and not content.rows.empty]
    figures = [plot_functions[content.request.kind](data, content) for content in contents]
    return [figure for figure in figures if figure is not None]


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


def _curve_plot(data: ReportData, content: FigureContent) -> Figure | None:
    """Plot a metric over a parameter: light points for trials, a line for their mean, dashed reference lines."""
    request = content.request
    rows = _with_positions(data, content, [request.x])
    if rows.empty:
        return None
    at = f"at_{request.x}"
    y_log = is_log(request.y_axis, [*rows["value"], *_line_values(rows, request.lines)])
    drawable = rows[rows["value"] > 0] if y_log else rows
    dashes = dict(zip(request.lines, itertools.cycle(DASHES), strict=False))
    with_values = [name for number, name in enumerate(request.lines) if drawable[f"line_{number}"].notna().any()]

    def marks(group: Group[pd.DataFrame]) -> list[Mark]:
        part, name, colour = group.content, group.name, group.colour
        means = part.groupby(at).mean(numeric_only=True)
        dots = trial_dots(part[at], part["value"], name, colour, size=4)
        lines: list[Mark] = [
            mean_line(
                means.index, means[f"line_{number}"], line, colour, is_named=False, symbol="", dash=dash, width=1.4
            )
            for number, (line, dash) in enumerate(dashes.items())
        ]
        return [dots, mean_line(means.index, means["value"], name, colour, symbol=""), *lines]

    groups, omissions = facet_groups(data.trials, drawable, list(request.by), "groups")
    label = data.measurement(request.metric).label
    x = value_axis(request.x, rows[at], is_log=is_log(request.x_axis, rows[at]))
    facets = facets_of(groups, x, Axis(title=shorten(label), is_log=y_log), marks)
    missing = [f"No values of {name}." for name in request.lines if name not in with_values]
    notes = [_trials_note(drawable), *missing, *omissions, *omission_notes(0, 0, len(rows) - len(drawable), log=y_log)]
    keys = [Key(shorten(name), dash=dashes[name]) for name in with_values]
    return Figure(request.title or f"{label} over {request.x}", facets, notes, keys)


def _share_plot(data: ReportData, content: FigureContent) -> Figure | None:
    """Plot the share of trials with a condition over a parameter, with Wilson's 95 % intervals."""
    request = content.request
    rows = _with_positions(data, content, [request.x])
    if rows.empty:
        return None
    rows = rows.assign(x=rows[f"at_{request.x}"], share=(rows["value"] != 0).astype(float), weight=1)
    title = request.title or f"Share of trials with {request.condition}"
    figure = share_figure(data, rows, request.by, title, request.x, "Share of trials", request.x_axis)
    counts = [
        f"{(key and ', '.join(key) + ': ') or ''}{int(at_x['share'].sum())} of {len(at_x)} at {x:g}"
        for key, part in group_trials(data.trials, rows, list(request.by))
        for x, at_x in part.groupby("x")
    ]
    figure.notes.append(f"Condition: {request.condition}. {'; '.join(counts[:24])}.")
    return figure


def _distribution_plot(data: ReportData, content: FigureContent) -> Figure | None:
    """Plot the values of a metric, one point per trial, with reference lines."""
    request = content.request
    rows = _with_positions(data, content, [])
    if rows.empty:
        return None
    groups = spread(group_trials(data.trials, rows, list(request.by)), MAX_COLUMNS)
    names = [", ".join(key) if key else "all trials" for key, _ in groups]
    dashes = dict(zip(request.lines, itertools.cycle(DASHES), strict=False))
    marks: list[Mark] = []
    notes = [_trials_note(rows)]
    for index, ((_, part), name, colour) in enumerate(zip(groups, names, colours_of(names), strict=True)):
        ordered = numbers(part["value"].sort_values())
        # points of similar height go to different sides, reproducibly
        offsets = [index + JITTER * (-1) ** i * ((i % 5) / 4) for i in range(len(ordered))]
        marks.append(trial_dots(offsets, ordered, name, colour, size=5))
        for number, line in enumerate(request.lines):
            height = float(pd.to_numeric(part[f"line_{number}"], errors="coerce").mean())
            if np.isfinite(height):
                ends, looks = [index - 0.4, index + 0.4], {"symbol": "", "dash": dashes[line], "width": 1.4}
                marks.append(mean_line(ends, [height] * 2, line, MUTED, is_named=False, **looks))
                below = int((part["value"] < height * (1 - 1e-9)).sum())
                group = f"{name}: " if len(names) > 1 else ""
                notes.append(f"{group}{below} of {len(part)} below {line} ({height:.6g}).")
    y_log = is_log(request.y_axis, [*rows["value"], *_line_values(rows, request.lines)])
    label = data.measurement(request.metric).label
    x = Axis(
        title=", ".join(request.by),
        ticks=tuple(range(len(names))),
        names=tuple(map(shorten, names)),
        ends=(-0.5, len(names) - 0.5),
    )
    facet = Facet(x=x, y=Axis(title=shorten(label), is_log=y_log), marks=marks)
    keys = [Key(shorten(name), dash=dash) for name, dash in dashes.items()]
    return Figure(request.title or f"{label} of each trial", [facet], notes, keys)


def _line_values(rows: pd.DataFrame, lines: Iterable[str]) -> list[float]:
    names = [f"line_{number}" for number, _ in enumerate(lines)]
    values = [pd.to_numeric(rows[name], errors="coerce").dropna() for name in names]
    return [float(value) for column in values for value in column]


def _trials_note(rows: pd.DataFrame) -> str:
    return f"{counted(rows['trial_id'].nunique(), 'trial')}."


def _map_plot(data: ReportData, content: FigureContent) -> Figure | None:
    """Plot a metric over two parameters, averaged over the trials of a cell."""
    request = content.request
    rows = _with_positions(data, content, [request.x, request.y])
    if rows.empty:
        return None
    label = data.measurement(request.metric).label
    columns = (f"at_{request.x}", f"at_{request.y}", "value")
    title = request.title or f"{label} over {request.x} and {request.y}"
    return map_figure(title, [("", rows)], columns, (request.x, request.y), label)


def _spectrum_plot(data: ReportData, content: FigureContent) -> Figure | None:
    """Plot a vector by entry, one line per layer, averaged over trials."""
    request = content.request
    layers: dict[int, list[np.ndarray]] = {}
    for layer, vector in zip(content.rows["layer"].tolist(), content.rows["value"].tolist(), strict=True):
        if _is_list(vector):
            layers.setdefault(int(layer), []).append(np.asarray(vector, dtype=np.float64))
    if not layers:
        return None
    vectors = [vector for part in layers.values() for vector in part]
    positive = np.concatenate(vectors)[np.concatenate(vectors) > 0]
    y_log = is_log(request.y_axis, positive)
    groups, omissions = split_facets(["layer"], [((str(layer),), layers[layer]) for layer in sorted(layers)], "layers")
    label = data.measurement(request.metric).label
    facets = facets_of(
        groups,
        Axis(title="Index"),
        Axis(title=shorten(label), is_log=y_log),
        lambda group: vector_marks(group.content, group.name, group.colour, is_log=y_log),
    )
    notes = [f"Mean of {counted(content.rows['trial_id'].nunique(), 'trial')}, with the range over trials.", *omissions]
    return Figure(request.title or f"{label}, layer by layer", facets, notes)


def _is_list(value: Any) -> bool:
    """Return whether a value is a vector or matrix. pandas represents missing values by several null values."""
    return isinstance(value, list | np.ndarray)


def _matrix_plot(data: ReportData, content: FigureContent) -> Figure | None:
    """Plot one trial's square matrix divided by the mean of its diagonal, and once more in the requested order."""
    request = content.request
    rows = content.rows[content.rows["value"].map(_is_list)]
    if rows.empty:
        return None
    heights = pd.to_numeric(rows["height"], errors="coerce").fillna(np.inf)
    row = rows.iloc[int(np.argmin(heights.to_numpy()))]
    flat = np.asarray(row["value"], dtype=np.float64)
    size = round(len(flat) ** 0.5)
    if size**2 != len(flat):
        return None
    matrix, order = flat.reshape(size, size), row.get("places")
    scale = float(np.mean(np.diag(matrix)))
    matrix = matrix / scale if scale > 0 else matrix
    lowest = f" with the lowest {request.lowest}" if request.lowest else ""
    notes = [f"Trial {row['trial_id']}{lowest}, divided by the mean of the diagonal."]
    facets = [matrix_facet(matrix, "", "Class", is_diverging=False)]
    if request.order and _is_list(order):
        places = [int(place) for place in np.asarray(order)]
        names, title = [str(place) for place in places], f"in the order {request.order}"
        facets.append(
            matrix_facet(matrix[np.ix_(places, places)], shorten(title), "Class", names=names, is_diverging=False)
        )
    elif request.order:
        notes.append(f"No {request.order} for this trial.")
    return Figure(request.title or data.measurement(request.metric).label, facets, notes, has_common_axes=False)


def _lead(data: ReportData) -> str:
    return "Requested under <code>figures:</code>, at each trial's last step."


SECTION = ReportSection(30, "Requested figures", requested_plots, _lead)
