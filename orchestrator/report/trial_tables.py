"""Render the tables of trials, excluded trials, failures, cost and searches."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.analysis.convergence import UNCONVERGED_RULE
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.monitor.cost import HOUR_LABELS, Hours, NodeCost, SweepCost, device_hours_unit
from depthrate.orchestrator.report.curve_groups import unique, varying_names
from depthrate.orchestrator.report.html_table import Cell, long_cell, number_cell, table, text_cell, without_empty
from depthrate.orchestrator.report.report_data import TRIAL_STATE_ORDER, ReportData
from depthrate.orchestrator.report.text import (
    curve_label,
    escape,
    group_phrase,
    group_text,
    is_null,
    number_text,
    shorten,
    value_text,
)
from depthrate.tasks.metric import Metric

HOUR_COLUMNS = {"held": "allocated"} | HOUR_LABELS
"""Attribute of `Hours` -> heading. Both are in hours."""
NODE_COLUMNS = ("node", "attempts", "done", "allocated (h)", "wasted (h)", "failures", "last error")
MAX_TABLE_ROWS = 500
MAX_IDS = 20
MAX_ERROR = 300
"""Maximum number of characters of an error or value. The logs contain the full error."""
MAX_COLUMNS = 13
"""Maximum number of columns of the table of trials, chosen for a laptop's screen. Metrics are omitted first."""


def trial_table(data: ReportData) -> str:
    """Return one row per trial: state, varying parameters and metrics. A click shows the rest."""
    if data.trials.empty:
        return "<p>No trials are planned.</p>"
    trials = _ordered(data.trials)
    shown = trials.head(MAX_TABLE_ROWS)
    differing = varying_names(data.trials, data.parameters)
    measured = _measured(data, MAX_COLUMNS - 4 - len(differing))
    values = _by_trial(data.results, [column for _, column in measured])
    has_errors = bool(shown["error"].notna().any())
    header = ["trial", "state", *differing, *(metric.label for metric, _ in measured), "wall time (s)"]
    header += ["error"] if has_errors else []
    rows = []
    for row in shown.to_dict("records"):
        trial_id, state = str(row["trial_id"]), str(row["state"])
        cells = [
            Cell(f"<code>{escape(trial_id)}</code>"),
            Cell(f'<span class="pill {escape(state)}">{escape(state)}</span>'),
        ]
        cells += [trial_cell(name, row[name]) for name in differing]
        numbers = [values.get(trial_id, {}).get(column) for _, column in measured]
        cells += [number_cell(number_text(number, zeros=True)) for number in numbers]
        cells += [trial_cell("wall_s", row["wall_s"]), *([trial_cell("error", row["error"])] if has_errors else [])]
        rows.append(cells)
    note = f"Log of a trial: <code>depthrate logs TRIAL --store {escape(data.store)}</code>."
    if len(trials) > len(rows):
        note += f" The first {counted(len(rows), 'trial')} of {len(trials)} are shown."
    content = table(header, rows, [f"trial-{trial_id}" for trial_id in shown["trial_id"]])
    same = group_text({name: data.trials[name].iloc[0] for name in data.parameters if name not in differing})
    return f"<p class=note>{note}</p>{content}" + (
        f"<p class=note>Common parameters: {escape(same)}.</p>" if same else ""
    )


def _ordered(trials: pd.DataFrame) -> pd.DataFrame:
    places = {state: place for place, state in enumerate(TRIAL_STATE_ORDER)}
    return trials.sort_values("state", key=lambda states: states.map(places), kind="stable")


def _measured(data: ReportData, max_columns: int) -> list[tuple[Metric, str]]:
    """Return the metrics of the table with their columns of the results, fitted metrics first."""
    curves = [metric.name for metric in data.panel_metrics("step")]
    names = unique([*(curve.metric for curve in data.fits), *curves, *data.layer_metrics])
    measured = []
    for name in names:
        # results name a measured column that a parameter hides (loss, lr) last_<name>
        column = f"last_{name}" if f"last_{name}" in data.results else name
        if column in data.results and pd.to_numeric(data.results[column], errors="coerce").notna().any():
            measured.append((data.measurement(name), column))
    return measured[: max(max_columns, 2)]


def _by_trial(results: pd.DataFrame, columns: Sequence[str]) -> Mapping[str, Mapping[str, float]]:
    if results.empty or not columns:
        return {}
    values = results.drop_duplicates("trial_id").set_index("trial_id")[list(columns)]
    values = values.apply(pd.to_numeric, errors="coerce")
    return {str(trial_id): row for trial_id, row in values.to_dict("index").items()}


def trial_cell(name: str, value: Any) -> Cell:
    """Return a cell of the table of trials."""
    if is_null(value):
        return Cell("", is_number=name == "wall_s")
    text = shorten(value_text(value), MAX_ERROR)
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if name == "error":
        return long_cell(text)
    return Cell(f"{value:.1f}" if name == "wall_s" and is_number else escape(text), is_number)


def left_out_table(data: ReportData) -> str:
    """Return the excluded and unconverged trials, one line per reason."""
    reasons: dict[str, dict[frozenset[str], list[FittedCurve]]] = {}
    for curve in data.fits:
        for reason, doubtful in _doubts(curve):
            reasons.setdefault(reason, {}).setdefault(frozenset(doubtful), []).append(curve)
    for reason, parts in reasons.items():
        is_whole_curve = [
            trial_ids == {row["trial_id"] for row in curve.rows}
            for trial_ids, curves in parts.items()
            for curve in curves
        ]
        if all(is_whole_curve) and len(is_whole_curve) == len(data.fits):  # one line for all groups
            reasons[reason] = {frozenset().union(*parts): list(data.fits)}
    if not reasons:
        return "<p>None. Every committed trial is in its fits and converged.</p>"
    names = _setting_names(data)
    places = {trial_id: place for place, trial_id in enumerate(names)}
    rows = []
    for reason, parts in reasons.items():
        for trial_ids, curves in parts.items():
            ordered = sorted(trial_ids, key=lambda trial_id: places.get(trial_id, len(names)))
            links = Cell(f"<div class=long>{_links(ordered, names)}</div>")
            count = number_cell(str(len(trial_ids)))
            rows.append([long_cell(reason), text_cell(_curves_text(curves, data.fits)), count, links])
    return table(*without_empty(["reason", "fits", "trials", "settings"], rows))


def _doubts(curve: FittedCurve) -> Iterable[tuple[str, list[str]]]:
    reasons: dict[str, list[str]] = {}
    for point in curve.left_out:
        reasons.setdefault(str(point["reason"]), []).append(str(point["trial_id"]))
    yield from reasons.items()
    if curve.unconverged:
        yield f"included, but unconverged: {UNCONVERGED_RULE}", sorted(curve.unconverged)
    if curve.above:
        share = f"{max(curve.above.values()):.1%}"
        yield (
            f"included, but the objective is above a shallower network's, by up to {share} of its gap",
            sorted(curve.above),
        )


def _curves_text(curves: Sequence[FittedCurve], fits: Sequence[FittedCurve]) -> str:
    """Name the curves, without groups if all curves are included."""
    is_all = len(curves) == len(fits)
    groups = ["" if is_all else group_text(curve.by) for curve in curves]
    names = [curve_label(curve) + (f" ({by})" if by else "") for curve, by in zip(curves, groups, strict=True)]
    return ", ".join(unique(names))


def _setting_names(data: ReportData) -> dict[str, str]:
    """Return each trial's varying parameters, as in `depth 5, seed 1`, in the order of the table."""
    differing = varying_names(data.trials, data.parameters)
    rows = data.trials[["trial_id", *differing]].to_dict("records")
    return {
        str(row["trial_id"]): group_phrase({name: row[name] for name in differing}) or str(row["trial_id"])
        for row in rows
    }


def _links(trial_ids: Sequence[str], names: Mapping[str, str]) -> str:
    """List trials by their settings, linked to their rows."""
    if len(trial_ids) > 1 and set(trial_ids) >= set(names):
        return "all"
    links = "; ".join(
        f'<a href="#trial-{escape(trial_id)}">{escape(names[trial_id])}</a>' if trial_id in names else escape(trial_id)
        for trial_id in trial_ids[:MAX_IDS]
    )
    return links + (f" and {len(trial_ids) - MAX_IDS} more" if len(trial_ids) > MAX_IDS else "")


def failure_table(data: ReportData) -> str:
    """Return the errors of failed trials, most frequent first. Empty without failures."""
    if data.trials.empty or not (data.trials["state"] == "failed").any():
        return ""
    failed = data.trials[data.trials["state"] == "failed"]
    groups = sorted(failed.groupby(failed["error"].map(value_text)), key=lambda group: -len(group[1]))
    rows = []
    for error, part in groups[:MAX_TABLE_ROWS]:
        first = str(part["trial_id"].iloc[0])
        command = f"<code>depthrate logs {escape(first)} --store {escape(data.store)}</code>"
        rows.append([Cell(str(len(part)), is_number=True), long_cell(shorten(error, MAX_ERROR)), Cell(command)])
    return f"<h3>Failures</h3>{table(['trials', 'error', 'logs'], rows)}"


def cost_tables(cost: SweepCost) -> str:
    """Return the allocated hours by device and use, and the failures by node."""
    rows = [
        [
            Cell(escape(device_hours_unit(device))),
            *(_hours(getattr(hours, kind)) for kind in HOUR_COLUMNS),
            _share(hours),
        ]
        for device, hours in sorted(cost.devices.items())
    ]
    content = table(["", *(f"{name} (h)" for name in HOUR_COLUMNS.values()), "useful / allocated"], rows)
    failed = sorted((node for node in cost.nodes.values() if node.failures), key=lambda node: -node.wasted_hours)
    if failed:
        content += f"<h3>Failures by node</h3>{table(NODE_COLUMNS, list(map(_node_row, failed)))}"
    return content


def _node_row(node: NodeCost) -> list[Cell]:
    kinds = ", ".join(f"{kind} {number}" for kind, number in node.failures.most_common())
    numbers = (number_cell(str(number)) for number in (node.attempts, node.done))
    hours = _hours(node.hours), _hours(node.wasted_hours)
    return [
        Cell(escape(node.node)),
        *numbers,
        *hours,
        Cell(escape(kinds)),
        long_cell(shorten(node.last_error, MAX_ERROR)),
    ]


def _hours(hours: float) -> Cell:
    return number_cell(number_text(hours))


def _share(hours: Hours) -> Cell:
    return Cell("" if hours.efficiency is None else f"{hours.efficiency:.0%}", is_number=True)


def search_table(columns: list[str], rows: list[list[Any]]) -> str:
    """Return the best proposals of each study."""
    cells = [[trial_cell(name, value) for name, value in zip(columns, row, strict=True)] for row in rows]
    return table(columns, cells)
