"""Render the tables of trials, excluded trials, failures and searches."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.analysis.convergence import UNCONVERGED_RULE
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report.curve_groups import unique, varying_names
from depthrate.orchestrator.report.html_table import Cell, long_cell, number_cell, table, text_cell, without_empty
from depthrate.orchestrator.report.report_data import TRIAL_STATE_ORDER, ReportData
from depthrate.orchestrator.report.text import escape, number_text
from depthrate.orchestrator.sheet.markup import typeset
from depthrate.orchestrator.sheet.names import curve_label, group_phrase, is_null, shorten, value_text
from depthrate.tasks.metric import Metric

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
    same = group_phrase({name: data.trials[name].iloc[0] for name in data.parameters if name not in differing})
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
    reasons: dict[str, tuple[set[str], set[str]]] = {}
    for curve in data.fits:
        for reason, doubtful in _doubts(curve):
            metrics, trial_ids = reasons.setdefault(reason, (set(), set()))
            metrics.add(typeset(curve_label(curve)))
            trial_ids.update(doubtful)
    if not reasons:
        return "<p>None. Every committed trial is in its fits and converged.</p>"
    names, rows = _setting_names(data), []
    places = {trial_id: place for place, trial_id in enumerate(names)}
    for reason, (metrics, trial_ids) in reasons.items():
        ordered = sorted(trial_ids, key=lambda trial_id: places.get(trial_id, len(names)))
        links = Cell(f"<div class=long>{_links(ordered, names)}</div>")
        rows.append([long_cell(reason), text_cell(", ".join(sorted(metrics))), number_cell(str(len(trial_ids))), links])
    return table(*without_empty(["reason", "fits", "trials", "settings"], rows))


def _doubts(curve: FittedGroup) -> Iterable[tuple[str, Iterable[str]]]:
    for point in curve.left_out:
        yield str(point["reason"]), [str(point["trial_id"])]
    if curve.unconverged:
        yield f"included, but unconverged: {UNCONVERGED_RULE}", curve.unconverged
    if curve.above:
        yield "included, but the objective is above a shallower network's", curve.above


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


def search_table(columns: list[str], rows: list[list[Any]]) -> str:
    """Return the best proposals of each study."""
    cells = [[trial_cell(name, value) for name, value in zip(columns, row, strict=True)] for row in rows]
    return table(columns, cells)
