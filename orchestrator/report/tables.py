"""Render the tables of failures, cost, searches and verdicts."""

import collections

import pandas as pd

from depthrate.orchestrator.monitor.cost import HOUR_LABELS, Hours, NodeCost, SweepCost, device_hours_unit
from depthrate.orchestrator.report.curve_groups import group_trials
from depthrate.orchestrator.report.html_table import Cell, long_cell, table
from depthrate.orchestrator.report.report_data import ReportData, SearchContent
from depthrate.orchestrator.report.text import escape, is_finite, number_text, value_text
from depthrate.orchestrator.report.trial_tables import MAX_TABLE_ROWS, cut_error, trial_cell
from depthrate.tasks.panel import VerdictPanel

HOUR_COLUMNS = {"held": "allocated"} | HOUR_LABELS
"""Attribute of `Hours` -> heading. Both are in hours."""
NODE_COLUMNS = ("node", "attempts", "done", "allocated (h)", "wasted (h)", "failures", "last error")


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
        rows.append([Cell(str(len(part)), is_number=True), long_cell(cut_error(error)), Cell(command)])
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
        content += (
            f"<h3>Failures by node</h3>{table(NODE_COLUMNS, [_node_row(node) for node in failed], sortable=True)}"
        )
    return content


def _node_row(node: NodeCost) -> list[Cell]:
    kinds = ", ".join(f"{kind} {number}" for kind, number in node.failures.most_common())
    numbers = (Cell(str(number), str(number), is_number=True) for number in (node.attempts, node.done))
    hours = _hours(node.hours), _hours(node.wasted_hours)
    return [Cell(escape(node.node)), *numbers, *hours, Cell(escape(kinds)), long_cell(cut_error(node.last_error))]


def _hours(hours: float) -> Cell:
    return Cell(number_text(hours), str(hours), is_number=True)


def _share(hours: Hours) -> Cell:
    return Cell("" if hours.efficiency is None else f"{hours.efficiency:.0%}", is_number=True)


def search_table(search: SearchContent) -> str:
    """Return the best proposals of each study."""
    rows = [[trial_cell(name, value) for name, value in zip(search.columns, row, strict=True)] for row in search.rows]
    return table(search.columns, rows, sortable=True)


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
        cells = [*(Cell(escape(value), value) for value in key), Cell(str(len(part)), is_number=True)]
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
