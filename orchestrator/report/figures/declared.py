"""Plot the panels that a task declares: features as points, vectors and layers with predictions, shares and verdicts."""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report.curve_groups import (
    Group,
    facet_groups,
    facets_of,
    finite_arrays,
    group_trials,
    setting_text,
    spread,
    thin_indices,
)
from depthrate.orchestrator.report.figure import (
    Axis,
    Facet,
    Figure,
    Key,
    Mark,
    Range,
    colours_of,
    mean_line,
    numbers,
    trial_dots,
)
from depthrate.orchestrator.report.figures.kinds import map_figure, share_figure, vector_marks
from depthrate.orchestrator.report.html_table import Cell, table
from depthrate.orchestrator.report.report_data import ReportData, ReportSection
from depthrate.orchestrator.report.text import escape, number_text
from depthrate.orchestrator.report.trial_tables import MAX_TABLE_ROWS
from depthrate.orchestrator.sheet.fit_sheet import is_finite
from depthrate.tasks.metric import Metric
from depthrate.tasks.panel import (
    LayerMapPanel,
    Panel,
    PathPanel,
    ProfilePanel,
    ScatterPanel,
    SharePanel,
    TradeOffPanel,
    VerdictPanel,
)

MAX_SCATTERS = 6
"""Maximum number of settings with a figure of points."""
MAX_MAPS = 4
"""Maximum number of settings with a heat map."""
MAX_STEPS = 4
"""Maximum number of steps with a facet of points."""
MAX_DOTS = 3000
"""Maximum number of points of one step."""
PREDICTED = Key("predicted", dash="dash")


def declared_plots(data: ReportData) -> list[Figure]:
    """Plot the task's panels, in order."""
    plot_functions: dict[type[Panel], Callable[[ReportData, Any], Figure | list[Figure] | None]] = {
        **{ScatterPanel: _scatter_plots, LayerMapPanel: _layer_maps, ProfilePanel: _profile_plot},
        **{SharePanel: _share_plot, PathPanel: _path_plot, TradeOffPanel: _trade_off_plot},
    }
    plots = [plot_functions[type(panel)](data, panel) for panel in data.panels if type(panel) in plot_functions]
    return [figure for plot in plots if plot for figure in (plot if isinstance(plot, list) else [plot])]


def _scatter_plots(data: ReportData, panel: ScatterPanel) -> list[Figure]:
    if data.points.empty:
        return []
    points = data.points[data.points["kind"] == panel.kind]
    return [
        _scatter_plot(panel, part, setting_text(data.settings, key))
        for key, part in group_trials(data.trials, points, data.settings)
    ]


def _scatter_plot(panel: ScatterPanel, points: pd.DataFrame, setting: str) -> Figure:
    """Plot the points of some steps, with a facet per step."""
    labels = [f"{panel.group} {label}" for label in sorted(points["label"].dropna().unique())]
    points = points.assign(name=points["label"].map(lambda label: f"{panel.group} {label}"))
    colours = dict(zip(labels, colours_of(labels), strict=True))
    steps = spread(sorted(points["step"].unique()), MAX_STEPS)
    x, y = (Axis(title=title) for title in panel.axes)
    facets = []
    for step in steps:
        at_step = points[points["step"] == step]
        at_step = at_step.iloc[thin_indices(len(at_step), MAX_DOTS)]
        marks: list[Mark] = []
        for name, colour in colours.items():
            part = at_step[at_step["name"] == name]
            marks.append(trial_dots(part["x"], part["y"], name, colour, size=4, is_named=True))
        facets.append(Facet(title=f"step {step}" if len(steps) > 1 else "", x=x, y=y, marks=marks, is_square=True))
    last = f"Step {steps[-1]} of one trial, {len(points[points['step'] == steps[-1]])} points."
    notes = [*([panel.doc] if panel.doc else []), last]
    notes += ["Components per step."] if len(steps) > 1 else []
    return Figure(panel.title + (f", {setting}" if setting else ""), facets, notes, has_common_axes=False)


def _profile_plot(data: ReportData, panel: ProfilePanel) -> Figure | None:
    """Plot one colour per setting: the mean, the range over trials and the prediction as a dashed line."""
    measured = dict(finite_arrays(data.trials, data.lists, panel.measurement))
    predicted = dict(finite_arrays(data.trials, data.lists, panel.predicted)) if panel.predicted else {}
    if not any((vector > 0).any() for vector in measured.values()):
        return None
    metric = data.measurement(panel.measurement)

    def marks(group: Group[pd.DataFrame]) -> list[Mark]:
        ids = list(group.content["trial_id"])
        shown = vector_marks([measured[trial_id] for trial_id in ids], group.name, group.colour, is_log=True)
        theory = [predicted[trial_id] for trial_id in ids if trial_id in predicted]
        return shown + (vector_marks(theory, group.name, group.colour, is_log=True, dash="dash") if theory else [])

    groups, omissions = facet_groups(data.trials, pd.DataFrame({"trial_id": list(measured)}), data.settings)
    axes = Axis(title=metric.entry, is_log=True), Axis(title=metric.label, is_log=True)
    notes = [f"{metric.doc[:1].upper()}{metric.doc[1:]}. Last layer, last step.", *omissions]
    return Figure(metric.label, facets_of(groups, *axes, marks), notes, [PREDICTED] if predicted else [])


def _share_plot(data: ReportData, panel: SharePanel) -> Figure | None:
    """Plot one colour per setting: the share over all trials at each x with its interval, and light dots for trials."""
    if panel.measurement not in data.results or panel.x not in data.settings:
        return None
    names = [panel.x, *panel.observations]
    rows = (
        data.results[["trial_id", panel.measurement]].dropna().merge(data.trials[["trial_id", *dict.fromkeys(names)]])
    )
    if rows.empty:
        return None
    rows = rows.assign(
        x=rows[panel.x], share=rows[panel.measurement], weight=rows[list(panel.observations)].prod(axis=1)
    )
    label = data.measurement(panel.measurement).label
    settings = [name for name in data.settings if name != panel.x]
    figure = share_figure(data, rows, settings, f"{label} against {panel.x}", panel.x, label)
    figure.notes.append("The intervals are too narrow if trials differ. Dots: trials.")
    return figure


def _path_plot(data: ReportData, panel: PathPanel) -> Figure | None:
    """Plot one colour per setting: the mean over trials by layer, their range as a band, and a dashed mean prediction."""
    columns = [panel.x, panel.measurement, panel.predicted]
    if not {*columns, "step", "layer"} <= set(data.metrics):
        return None
    frame = data.metrics[
        data.metrics["step"] == data.metrics.groupby("trial_id", observed=True)["step"].transform("max")
    ]
    frame = frame.dropna(subset=columns)
    metric = data.measurement(panel.measurement)
    is_log = metric.axis == "log" and bool((frame[columns[1:]] > 0).all().all())
    if frame.empty:
        return None

    def marks(group: Group[pd.DataFrame]) -> list[Mark]:
        by_layer = group.content.groupby("layer")
        x = numbers(by_layer[panel.x].mean())
        low, high = (numbers(ends) for ends in (by_layer[panel.measurement].min(), by_layer[panel.measurement].max()))
        measured, predicted = (_means(group.content, column, is_log=is_log) for column in columns[1:])
        return [
            Range(x=x, low=low, high=high, colour=group.colour, name=group.name),
            mean_line(x, measured, group.name, group.colour, size=4),
            mean_line(x, predicted, group.name, group.colour, is_named=False, symbol="", dash="dash"),
        ]

    groups, omissions = facet_groups(data.trials, frame, data.settings)
    axes = Axis(title=data.measurement(panel.x).label), Axis(title=metric.label, is_log=is_log)
    notes = [f"Last step, {counted(frame['trial_id'].nunique(), 'trial')}. Bands: range over trials."]
    notes += [_error_note(frame, panel, metric, is_log=is_log), *omissions]
    title = f"{metric.label} along the path of features"
    return Figure(title, facets_of(groups, *axes, marks), notes, [PREDICTED])


def _means(part: pd.DataFrame, column: str, *, is_log: bool) -> list[float]:
    """Return the mean at each layer, geometric on a log axis."""
    values = np.log(part[column]) if is_log else part[column]
    means = values.groupby(part["layer"]).mean()
    return [float(value) for value in (np.exp(means) if is_log else means)]


def _error_note(frame: pd.DataFrame, panel: PathPanel, metric: Metric, *, is_log: bool) -> str:
    """Describe the error of the prediction between the ends. At the ends the prediction is exact by definition."""
    between = frame[(frame[panel.x] > 0) & (frame[panel.x] < 1)]
    if between.empty:
        return "No layers between the ends."
    measured, predicted = between[panel.measurement].to_numpy(), between[panel.predicted].to_numpy()
    if is_log:
        factor = float(np.exp(np.abs(np.log(predicted / measured)).mean()))
        return f"Between the ends the prediction of {metric.label} is off by a factor of {factor:.3g} on average."
    off = float(np.abs(predicted - measured).mean())
    return f"Between the ends the prediction of {metric.label} is off by {off:.3g} on average."


def _layer_maps(data: ReportData, panel: LayerMapPanel) -> Figure | None:
    """Plot a metric over steps and layers, one map per setting."""
    if panel.measurement not in data.layered or data.layered[panel.measurement].dropna().empty:
        return None
    metric = data.measurement(panel.measurement)
    groups = group_trials(data.trials, data.layered.dropna(subset=[panel.measurement]), data.settings)
    parts = [(setting_text(data.settings, key), part) for key, part in spread(groups, MAX_MAPS)]
    title, columns = f"{metric.label} over steps and layers", ("step", "layer", metric.name)
    return map_figure(title, parts, columns, ("Step", "Layer"), metric.label, is_log=metric.axis == "log")


def _trade_off_plot(data: ReportData, panel: TradeOffPanel) -> Figure | None:
    """Plot one colour per setting: means over trials, joined along the parameter, and light dots for trials."""
    if panel.along not in data.settings or not {panel.x, panel.y} <= set(data.results):
        return None
    rows = data.results[["trial_id", panel.x, panel.y]].dropna()
    rows = rows.merge(data.trials[["trial_id", panel.along]])
    if rows.empty:
        return None

    def marks(group: Group[pd.DataFrame]) -> list[Mark]:
        name, colour, part = group.name, group.colour, group.content
        means = part.groupby(panel.along)[[panel.x, panel.y]].mean().sort_index()
        trials = trial_dots(part[panel.x], part[panel.y], name, colour)
        return [trials, mean_line(means[panel.x], means[panel.y], name, colour)]

    others = [name for name in data.settings if name not in (panel.along, "data_seed")]
    groups, omissions = facet_groups(data.trials, rows, others)
    x, y = data.measurement(panel.x), data.measurement(panel.y)
    axes = Axis(title=x.label), Axis(title=y.label, is_log=y.axis == "log" and bool((rows[panel.y] > 0).all()))
    notes = [f"Last layer, last step. Lines: along {panel.along}. Dots: trials.", *omissions]
    return Figure(f"{y.label} against {x.label}", facets_of(groups, *axes, marks), notes)


def verdict_table(data: ReportData, panel: VerdictPanel) -> str:
    """Return a panel's verdict per setting, and metrics with their predictions."""
    if panel.measurement not in data.results or data.results[panel.measurement].dropna().empty:
        return ""
    settings = data.settings
    columns = [(column, "") if isinstance(column, str) else column for column in panel.columns]
    columns = [
        (name, predicted) for name, predicted in columns if name in data.results and data.results[name].notna().any()
    ]
    groups = group_trials(data.trials, data.results.dropna(subset=[panel.measurement]), settings)
    rows = []
    for key, part in groups[:MAX_TABLE_ROWS]:
        codes = collections.Counter(int(code) for code in part[panel.measurement])
        verdicts = [
            panel.words.get(code, str(code)) + (f" ({count} of {len(part)})" if count < len(part) else "")
            for code, count in sorted(codes.items())
        ]
        cells = [*(Cell(escape(value)) for value in key), Cell(str(len(part)), is_number=True)]
        cells.append(Cell(escape("; ".join(verdicts))))
        rows.append([*cells, *(_mean_cell(part, name, predicted) for name, predicted in columns)])
    labels = [data.measurement(name).label for name, _ in columns]
    label = data.measurement(panel.measurement).label
    note = f"{escape(label)}: {escape(panel.doc)} Numbers are means over trials, with predictions in brackets."
    return f"<p class=note>{note}</p>{table([*settings, 'trials', label, *labels], rows)}"


def _mean_cell(part: pd.DataFrame, name: str, predicted: str) -> Cell:
    values = [float(part[column].mean()) for column in (name, predicted) if column in part]
    texts = [number_text(value, 4, zeros=True) for value in values if is_finite(value)]
    return Cell(texts[0] + (f" [{texts[1]}]" if len(texts) > 1 else "") if texts else "—", is_number=True)


def _tables(data: ReportData) -> str:
    return "".join(verdict_table(data, panel) for panel in data.panels if isinstance(panel, VerdictPanel))


def _lead(data: ReportData) -> str:
    return escape("Solid: measured, with bands for the range over trials. Dashed: prediction for a trial's parameters.")


SECTION = ReportSection(40, "Collapse and theory", declared_plots, _lead, tables=_tables)
