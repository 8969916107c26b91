"""Plot the kinds of figures that tasks and sweeps request, one function per kind. A verdict is a table."""

import collections
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report.curve_groups import (
    Group,
    facet_groups,
    facets_of,
    group_trials,
    mean_array,
    setting_text,
    split_facets,
    spread,
    thin_indices,
    unique,
)
from depthrate.orchestrator.report.figure import (
    DASHES,
    MUTED,
    Axis,
    Facet,
    Figure,
    HeatMap,
    Key,
    Mark,
    Range,
    colours_of,
    is_log,
    map_facet,
    mean_line,
    numbers,
    omission_notes,
    trial_dots,
    value_axis,
    with_common_colours,
)
from depthrate.orchestrator.report.figures.collapse import collapse_plots
from depthrate.orchestrator.report.figures.last_layer import matrix_facet
from depthrate.orchestrator.report.html_table import Cell, table
from depthrate.orchestrator.report.report_data import FigureContent, ReportData, ReportSection
from depthrate.orchestrator.report.text import escape, number_text
from depthrate.orchestrator.report.trial_tables import MAX_TABLE_ROWS
from depthrate.orchestrator.sheet.fit_sheet import is_finite
from depthrate.orchestrator.sheet.names import shorten
from depthrate.tasks.figure_request import LAYER, STEP, FigureRequest
from depthrate.tasks.fits.proportions import wilson_interval

JITTER = 0.15
"""Horizontal offset of a distribution's points, to either side."""
MAX_COLUMNS = 12
"""Maximum number of groups of a distribution."""
MAX_ENTRIES = 120
"""Maximum number of entries of a vector that are shown."""
MAX_MAPS = 4
"""Maximum number of groups with a heat map."""
MAX_STEPS = 4
"""Maximum number of steps with a facet of points."""
MAX_DOTS = 3000
"""Maximum number of points of one step."""


def figures_section(place: int, title: str, lead: str, *, of_task: bool) -> ReportSection:
    """Return the section with the figures that the task requests, or the sweep."""

    def contents(data: ReportData) -> list[FigureContent]:
        return [content for content in data.figures if content.of_task == of_task and not content.problem]

    def plots(data: ReportData) -> list[Figure]:
        return [figure for content in contents(data) for figure in _plots_of(data, content)]

    def tables(data: ReportData) -> str:
        return "".join(verdict_table(data, content) for content in contents(data) if content.request.kind == "verdict")

    return ReportSection(place, title, plots, lambda data: lead, tables=tables)


def _plots_of(data: ReportData, content: FigureContent) -> list[Figure]:
    """Plot a request, if it has values to show, with its note as the first one."""
    request, rows = content.request, content.rows
    if request.kind in NUMERIC:
        rows = _finite_rows(rows)
    if rows.empty or request.kind not in PLOTS:
        return []
    figures = PLOTS[request.kind](data, request, rows)
    for figure in figures:
        figure.notes[:0] = [request.note] if request.note else []
    return figures


def _finite_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose value and position are finite numbers. References may be missing."""
    required = [name for name in ("value", "x", "y", "along", "weight") if name in rows]
    references = [name for name in map(str, rows) if name.startswith(("line_", "column_"))]
    numeric = {name: pd.to_numeric(rows[name], errors="coerce").astype(float) for name in (*required, *references)}
    return rows.assign(**numeric).replace([np.inf, -np.inf], np.nan).dropna(subset=required)


def _dashes(request: FigureRequest) -> dict[str, str]:
    """Return the dash style of each reference line."""
    return dict(zip(request.lines, itertools.cycle(DASHES), strict=False))


def _line_values(rows: pd.DataFrame) -> list[float]:
    return [value for name in rows if str(name).startswith("line_") for value in rows[name].dropna()]


def _trials_note(rows: pd.DataFrame) -> str:
    return f"{counted(rows['trial_id'].nunique(), 'trial')}."


def _curve_plots(data: ReportData, request: FigureRequest, rows: pd.DataFrame) -> list[Figure]:
    """Plot a metric over an axis: light points for trials, a line for their mean, dashed reference lines."""
    rows = rows if request.along else rows.assign(along=rows["x"])
    y_log = is_log(request.y_axis, [*rows["value"], *_line_values(rows)])
    drawable = rows[rows["value"] > 0] if y_log else rows
    dashes = _dashes(request)
    with_values = [name for number, name in enumerate(request.lines) if drawable[f"line_{number}"].notna().any()]

    def marks(group: Group[pd.DataFrame]) -> list[Mark]:
        part, name, colour = group.content, group.name, group.colour
        means = part.groupby("along").mean(numeric_only=True)
        dots = trial_dots(part["x"], part["value"], name, colour, size=3 if request.along else 4)
        mean = mean_line(means["x"], means["value"], name, colour, symbol="dot" if request.along else "")
        looks = {"is_named": False, "symbol": "", "width": 1.4}
        lines = [
            mean_line(means["x"], means[f"line_{number}"], line, colour, dash=dash, **looks)
            for number, (line, dash) in enumerate(dashes.items())
        ]
        return [dots, mean, *lines]

    groups, omissions = facet_groups(data.trials, drawable, request.by, "groups")
    label, x_log = data.measurement(request.metric).label, is_log(request.x_axis, rows["x"])
    x_label, x = request.x, value_axis(request.x, rows["x"], is_log=x_log)
    if request.along:
        x_label = data.measurement(request.x).label
        x = Axis(title=shorten(x_label), is_log=x_log)
    facets = facets_of(groups, x, Axis(title=shorten(label), is_log=y_log), marks)
    missing = [f"No values of {name}." for name in request.lines if name not in with_values]
    notes = [
        _trials_note(drawable),
        *([f"Lines: along {request.along}. Dots: trials."] if request.along else []),
        *missing,
    ]
    notes += [*omissions, *omission_notes(0, 0, len(rows) - len(drawable), log=y_log)]
    keys = [Key(shorten(name), dash=dashes[name]) for name in with_values]
    return [Figure(request.title or f"{label} over {x_label}", facets, notes, keys)]


def _share_plots(data: ReportData, request: FigureRequest, rows: pd.DataFrame) -> list[Figure]:
    """Plot the share of trials with a condition, or of their observations, over a parameter, with Wilson's intervals."""
    if not request.observations:
        rows = rows.assign(value=(rows["value"] != 0).astype(float))

    def marks(group: Group[pd.DataFrame]) -> list[Mark]:
        part, name, colour = group.content, group.name, group.colour
        x, shares, ends = [], [], []
        for place, at_x in part.groupby("x"):
            total = float(at_x["weight"].sum())
            count = min(total, float((at_x["value"] * at_x["weight"]).sum()))
            x.append(place)
            shares.append(count / total)
            ends.append(wilson_interval(count, total))
        low, high = zip(*ends, strict=True)
        bars = Range(x=numbers(x), low=low, high=high, colour=colour, name=name, is_bars=True)
        dots = [trial_dots(part["x"], part["value"], name, colour)] if request.observations else []
        return [*dots, bars, mean_line(x, shares, name, colour)]

    groups, omissions = facet_groups(data.trials, rows, request.by)
    notes = ["At the last step. Bars: 95 % Wilson intervals over the observations of all trials.", *omissions]
    if request.observations:
        label = data.measurement(request.condition).label
        title = f"{label} over {request.x}"
        notes.append("The intervals are too narrow if trials differ. Dots: trials.")
    else:
        label, title = "Share of trials", f"Share of trials with {request.condition}"
        counts = [
            f"{(key and ', '.join(key) + ': ') or ''}{int(at_x['value'].sum())} of {len(at_x)} at {x:g}"
            for key, part in group_trials(data.trials, rows, list(request.by))
            for x, at_x in part.groupby("x")
        ]
        notes.append(f"Condition: {request.condition}. {'; '.join(counts[:24])}.")
    x_axis = value_axis(request.x, rows["x"], is_log=is_log(request.x_axis, rows["x"]))
    facets = facets_of(groups, x_axis, Axis(title=label, ends=(-0.03, 1.03)), marks)
    return [Figure(request.title or title, facets, notes)]


def _distribution_plots(data: ReportData, request: FigureRequest, rows: pd.DataFrame) -> list[Figure]:
    """Plot the values of a metric, one point per trial, with reference lines."""
    groups = spread(group_trials(data.trials, rows, list(request.by)), MAX_COLUMNS)
    names = [", ".join(key) if key else "all trials" for key, _ in groups]
    dashes = _dashes(request)
    marks: list[Mark] = []
    notes = [_trials_note(rows)]
    for index, ((_, part), name, colour) in enumerate(zip(groups, names, colours_of(names), strict=True)):
        ordered = numbers(part["value"].sort_values())
        # points of similar height go to different sides, reproducibly
        offsets = [index + JITTER * (-1) ** i * ((i % 5) / 4) for i in range(len(ordered))]
        marks.append(trial_dots(offsets, ordered, name, colour, size=5))
        for number, line in enumerate(request.lines):
            height = float(part[f"line_{number}"].mean())
            if np.isfinite(height):
                ends, looks = [index - 0.4, index + 0.4], {"symbol": "", "dash": dashes[line], "width": 1.4}
                marks.append(mean_line(ends, [height] * 2, line, MUTED, is_named=False, **looks))
                below = int((part["value"] < height * (1 - 1e-9)).sum())
                group = f"{name}: " if len(names) > 1 else ""
                notes.append(f"{group}{below} of {len(part)} below {line} ({height:.6g}).")
    y_log = is_log(request.y_axis, [*rows["value"], *_line_values(rows)])
    label = data.measurement(request.metric).label
    x = Axis(
        title=", ".join(request.by),
        ticks=tuple(range(len(names))),
        names=tuple(map(shorten, names)),
        ends=(-0.5, len(names) - 0.5),
    )
    facet = Facet(x=x, y=Axis(title=shorten(label), is_log=y_log), marks=marks)
    keys = [Key(shorten(name), dash=dash) for name, dash in dashes.items()]
    return [Figure(request.title or f"{label} of each trial", [facet], notes, keys)]


def _map_plots(data: ReportData, request: FigureRequest, rows: pd.DataFrame) -> list[Figure]:
    """Plot a metric over two axes, averaged over the trials of a cell, with one facet per group. The largest y is on top."""
    label = data.measurement(request.metric).label
    titles = [{STEP: "Step", LAYER: "Layer"}.get(name, name) for name in (request.x, request.y)]

    def facet(name: str, part: pd.DataFrame) -> Facet:
        grid = part.pivot_table(index="y", columns="x", values="value", aggfunc="mean").sort_index(ascending=False)
        has_logs = is_log(request.colours or "linear", grid.to_numpy().ravel())
        values = np.log10(grid.to_numpy()) if has_logs else grid.to_numpy()
        names = ([f"{place:g}" for place in places] for places in (grid.columns, grid.index))
        finite, name_of_values = values[np.isfinite(values)], f"log₁₀ {label}" if has_logs else label
        heat = HeatMap(values=values, label=name_of_values, low=float(finite.min()), high=float(finite.max()))
        return map_facet(heat, *titles, *names, title=name)

    groups = spread(group_trials(data.trials, rows, list(request.by)), MAX_MAPS)
    facets = [facet(setting_text(request.by, key), part) for key, part in groups]
    counts = [part.groupby(["y", "x"])["trial_id"].nunique() for _, part in groups]
    few, many = min(int(count.min()) for count in counts), max(int(count.max()) for count in counts)
    note = f"Mean of {'' if few == many else f'{few} to '}{counted(many, 'trial')} per cell."
    title = request.title or f"{label} over {titles[0]} and {titles[1]}"
    return [Figure(title, with_common_colours(facets), [note], has_common_axes=False)]


def _spectrum_plots(data: ReportData, request: FigureRequest, rows: pd.DataFrame) -> list[Figure]:
    """Plot a vector by entry, averaged over trials, one line per group and layer, with dashed reference vectors."""
    rows = rows[rows["value"].map(_is_vector)]
    if rows.empty:
        return []
    by, noun, groups = list(request.by), "settings", group_trials(data.trials, rows, list(request.by))
    if request.layer is None:
        by, noun = [*by, "layer"], "layers"
        groups = [
            ((*key, str(layer)), part) for key, rows_of_key in groups for layer, part in rows_of_key.groupby("layer")
        ]
    shown, omissions = split_facets(by, groups, noun)
    entries = np.concatenate(list(rows["value"]))
    y_log = bool((entries > 0).any()) and is_log(request.y_axis, entries[entries > 0])
    columns = {f"line_{number}": dash for number, dash in enumerate(_dashes(request).values())}
    keys = [
        Key(shorten(name), dash=columns[f"line_{number}"])
        for number, name in enumerate(request.lines)
        if rows[f"line_{number}"].map(_is_vector).any()
    ]

    def marks(group: Group[pd.DataFrame]) -> list[Mark]:
        result = _vector_marks(group.content["value"], group.name, group.colour, is_log=y_log)
        for column, dash in columns.items():
            vectors = group.content.loc[group.content[column].map(_is_vector), column]
            result += _vector_marks(vectors, group.name, group.colour, is_log=y_log, dash=dash) if len(vectors) else []
        return result

    label = data.measurement(request.metric).label
    axes = Axis(title=request.x or "Index", is_log=request.x_axis == "log"), Axis(title=shorten(label), is_log=y_log)
    notes = [f"Mean of {counted(rows['trial_id'].nunique(), 'trial')}, with the range over trials.", *omissions]
    title = request.title or (f"{label}, layer by layer" if request.layer is None else label)
    return [Figure(title, facets_of(shown, *axes, marks), notes, keys)]


def _vector_marks(values: Iterable[Any], name: str, colour: str, *, is_log: bool, dash: str = "") -> list[Mark]:
    """Return the mean of vectors by entry, and their range as a band if they are several.

    Args:
        is_log: Whether the axis of the values is logarithmic.
        dash: Dash style of the mean. With one, the line is not named and has no band.
    """
    vectors = [np.asarray(value, dtype=np.float64) for value in values]
    mean = mean_array(vectors)
    places = unique(int(place) for place in np.geomspace(1, len(mean), MAX_ENTRIES).round())
    x = [float(place) for place in places]

    def at_places(values: np.ndarray) -> list[float]:
        return [float(v) if v > 0 or not is_log else float("nan") for v in (values[place - 1] for place in places)]

    line = mean_line(x, at_places(mean), name, colour, symbol="", dash=dash, is_named=bool(name) and not dash)
    if dash or len(vectors) == 1:
        return [line]
    same = np.array([vector for vector in vectors if vector.shape == mean.shape])
    ends = at_places(same.min(axis=0)), at_places(same.max(axis=0))
    return [Range(x=x, low=ends[0], high=ends[1], colour=colour, name=name), line]


def _is_list(value: Any) -> bool:
    """Return whether a value is a vector or matrix. pandas represents missing values by several null values."""
    return isinstance(value, list | np.ndarray)


def _is_vector(value: Any) -> bool:
    return _is_list(value) and bool(np.isfinite(np.asarray(value, dtype=np.float64)).all())


def _matrix_plots(data: ReportData, request: FigureRequest, rows: pd.DataFrame) -> list[Figure]:
    """Plot one trial's square matrix divided by the mean of its diagonal, and once more in the requested order."""
    rows = rows[rows["value"].map(_is_list)]
    if rows.empty:
        return []
    heights = pd.to_numeric(rows["height"], errors="coerce").fillna(np.inf)
    row = rows.iloc[int(np.argmin(heights.to_numpy()))]
    flat = np.asarray(row["value"], dtype=np.float64)
    size = round(len(flat) ** 0.5)
    if size**2 != len(flat):
        return []
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
    return [Figure(request.title or data.measurement(request.metric).label, facets, notes, has_common_axes=False)]


def _path_plots(data: ReportData, request: FigureRequest, rows: pd.DataFrame) -> list[Figure]:
    """Plot the mean over trials by layer, their range as a band, and dashed means of the reference lines."""
    dashes = _dashes(request)
    rows = rows.dropna(subset=[f"line_{number}" for number in range(len(dashes))])
    if rows.empty:
        return []
    y_log = is_log(request.y_axis, [*rows["value"], *_line_values(rows)])

    def means(part: pd.DataFrame, column: str) -> list[float]:
        """Return the mean at each layer, geometric on a log axis."""
        by_layer = (np.log(part[column]) if y_log else part[column]).groupby(part["layer"]).mean()
        return numbers(np.exp(by_layer) if y_log else by_layer)

    def marks(group: Group[pd.DataFrame]) -> list[Mark]:
        part, name, colour = group.content, group.name, group.colour
        by_layer = part.groupby("layer")
        x, low, high = (
            numbers(values) for values in (by_layer["x"].mean(), by_layer["value"].min(), by_layer["value"].max())
        )
        return [
            Range(x=x, low=low, high=high, colour=colour, name=name),
            mean_line(x, means(part, "value"), name, colour, size=4),
            *(
                mean_line(x, means(part, f"line_{number}"), name, colour, is_named=False, symbol="", dash=dash)
                for number, dash in enumerate(dashes.values())
            ),
        ]

    groups, omissions = facet_groups(data.trials, rows, request.by)
    label, x_label = (data.measurement(name).label for name in (request.metric, request.x))
    notes = [f"Last step, {counted(rows['trial_id'].nunique(), 'trial')}. Bands: range over trials."]
    notes += [
        _error_note(rows, f"line_{number}", f"{name} {label}", is_log=y_log) for number, name in enumerate(dashes)
    ]
    facets = facets_of(groups, Axis(title=shorten(x_label)), Axis(title=shorten(label), is_log=y_log), marks)
    keys = [Key(shorten(name), dash=dash) for name, dash in dashes.items()]
    return [Figure(request.title or f"{label} over {x_label}", facets, [*notes, *omissions], keys)]


def _error_note(rows: pd.DataFrame, column: str, name: str, *, is_log: bool) -> str:
    """Describe the error of a reference line between the ends of the path, where a prediction is exact by definition."""
    between = rows[(rows["x"] > rows["x"].min()) & (rows["x"] < rows["x"].max())]
    if between.empty:
        return "No layers between the ends."
    if is_log:
        off = f"a factor of {float(np.exp(np.abs(np.log(between[column] / between['value'])).mean())):.3g}"
    else:
        off = f"{float(np.abs(between[column] - between['value']).mean()):.3g}"
    return f"Between the ends, {name} is off by {off} on average."


def _scatter_plots(data: ReportData, request: FigureRequest, rows: pd.DataFrame) -> list[Figure]:
    """Plot points coloured by label for some steps, one figure per group."""
    groups = group_trials(data.trials, rows, list(request.by))
    return [_scatter_plot(request, part, setting_text(request.by, key)) for key, part in groups]


def _scatter_plot(request: FigureRequest, points: pd.DataFrame, setting: str) -> Figure:
    labels = [f"{request.label} {label}" for label in sorted(points["label"].dropna().unique())]
    points = points.assign(name=points["label"].map(lambda label: f"{request.label} {label}"))
    colours = dict(zip(labels, colours_of(labels), strict=True))
    steps = spread(sorted(points["step"].unique()), MAX_STEPS)
    x, y = Axis(title=request.x or "First component"), Axis(title=request.y or "Second component")
    facets = []
    for step in steps:
        at_step = points[points["step"] == step]
        at_step = at_step.iloc[thin_indices(len(at_step), MAX_DOTS)]
        marks: list[Mark] = []
        for name, colour in colours.items():
            part = at_step[at_step["name"] == name]
            marks.append(trial_dots(part["x"], part["y"], name, colour, size=4, is_named=True))
        facets.append(Facet(title=f"step {step}" if len(steps) > 1 else "", x=x, y=y, marks=marks, is_square=True))
    notes = [f"Step {steps[-1]} of one trial, {len(points[points['step'] == steps[-1]])} points."]
    notes += ["Components per step."] if len(steps) > 1 else []
    title = request.title or f"Features {request.features}"
    return Figure(title + (f", {setting}" if setting else ""), facets, notes, has_common_axes=False)


def verdict_table(data: ReportData, content: FigureContent) -> str:
    """Return the verdicts of each group and the means of other metrics, with references in brackets, as HTML."""
    request, rows = content.request, _finite_rows(content.rows)
    if rows.empty:
        return ""
    references = {name: f"line_{number}" for number, name in enumerate(request.lines)}
    columns = {name: f"column_{number}" for number, name in enumerate(request.columns)}
    columns = {name: column for name, column in columns.items() if rows[column].notna().any()}
    lines = []
    for key, part in group_trials(data.trials, rows, list(request.by))[:MAX_TABLE_ROWS]:
        codes = collections.Counter(int(code) for code in part["value"])
        verdicts = [
            (request.words[code] if 0 <= code < len(request.words) else str(code))
            + (f" ({count} of {len(part)})" if count < len(part) else "")
            for code, count in sorted(codes.items())
        ]
        cells = [*(Cell(escape(value)) for value in key), Cell(str(len(part)), is_number=True)]
        cells.append(Cell(escape("; ".join(verdicts))))
        lines.append([*cells, *(_mean_cell(part, column, references.get(name)) for name, column in columns.items())])
    label = request.title or data.measurement(request.metric).label
    means = "Numbers are means over trials, with predictions in brackets."
    note = escape(" ".join(filter(None, [f"{label}:", request.note, means])))
    heads = [*request.by, "trials", label, *(data.measurement(name).label for name in columns)]
    return f"<p class=note>{note}</p>{table(heads, lines)}"


def _mean_cell(part: pd.DataFrame, column: str, reference: str | None) -> Cell:
    values = [float(part[name].mean()) for name in (column, reference) if name is not None]
    texts = [number_text(value, 4, zeros=True) for value in values if is_finite(value)]
    return Cell(texts[0] + (f" [{texts[1]}]" if len(texts) > 1 else "") if texts else "—", is_number=True)


PLOTS: dict[str, Callable[[ReportData, FigureRequest, pd.DataFrame], list[Figure]]] = {
    "curve": _curve_plots,
    "share": _share_plots,
    "map": _map_plots,
    "distribution": _distribution_plots,
    "spectrum": _spectrum_plots,
    "matrix": _matrix_plots,
    "collapse": collapse_plots,
    "path": _path_plots,
    "scatter": _scatter_plots,
}
"""Kind -> function that plots the rows of a request. A verdict is a table."""
NUMERIC = ("curve", "share", "map", "distribution", "path")
"""Kinds whose rows hold numbers."""
