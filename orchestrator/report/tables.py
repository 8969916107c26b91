"""The tables of fits and trials."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from depthrate.orchestrator.convergence import UNCONVERGED_RULE
from depthrate.orchestrator.fitted_curve import FittedCurve
from depthrate.orchestrator.reckoning import Hours, NodeReckoning, Reckoning, device_word
from depthrate.orchestrator.report.data import STATE_COLUMNS, STATES, ReportData, SearchContent
from depthrate.orchestrator.report.groups import grouped, varying
from depthrate.orchestrator.report.words import (
    curve_label,
    escape,
    excluded_text,
    formula_markup,
    group_text,
    is_finite,
    is_null,
    number_text,
    p_text,
    signed_text,
    value_text,
)
from depthrate.tasks.fits.model import Parameter
from depthrate.tasks.fits.models import MODELS
from depthrate.tasks.fits.rate_fit import RateFit
from depthrate.tasks.panel import VerdictPanel

KINDS_OF_HOURS = ("held", "committed", "failed", "repeated", "around", "idle")
NODE_COLUMNS = ("node", "attempts", "done", "hours", "wasted", "kinds of failure", "last error")
MAX_TABLE_ROWS = 500
MAX_IDS = 20
MAX_ERROR = 300
"""Characters of an error; the whole is in the logs."""


@dataclass(frozen=True)
class _Cell:
    """One cell of a table."""

    content: str
    """HTML."""
    sort_key: str = ""
    is_number: bool = False


def fit_table(curves: Sequence[FittedCurve]) -> str:
    """Return all models of all curves; what holds for the whole curve stands in its first row."""
    rows = [_fit_row(curve, fit) for curve in curves for fit in curve.fits]
    if not rows:
        return "<p>No fits yet.</p>"
    header = [
        "metric",
        "group",
        "model",
        "a",
        "std. error",
        "95 % interval",
        "over",
        "spread of seeds",
        "profile interval",
        "pure power law, p(a = ½)",
        "p(a = 1)",
    ]
    header += ["c", *(parameter.symbol for parameter in _parameters()), "R²", "AICc", "weight", "n", "left out"]
    models = "; ".join(f"{model.words}: {formula_markup(model.formula)}" for model in MODELS.values())
    note = (
        f"Models of a metric y over x, fitted to log y of every trial: {models}. 95 % interval of a: over whole seeds "
        "(Student's t; all values of a seed belong together), ∞ where they leave that end open; spread of seeds: the "
        "standard deviation of a from seed to seed, noise included. Where each trial is a draw of its own: bootstrap over "
        "the trials at each x (BCa), or Student's t where no x has two, and the profile interval, where an F test of a "
        "reaches 5 %. p: of a pure power law with that exponent, which no theorem states. Weight: Akaike weight among the "
        "models of one curve, each seed at its own level. The table fits in the store has the same numbers with all "
        "their digits."
    )
    return f"<p class=note>{note}</p>{_table(*_without_empty(header, rows))}"


def _parameters() -> list[Parameter]:
    """The parameters that some model has besides c and a."""
    return list(dict.fromkeys(parameter for model in MODELS.values() for parameter in model.parameters))


def _without_empty(header: Sequence[str], rows: Sequence[Sequence[_Cell]]) -> tuple[list[str], list[list[_Cell]]]:
    """Leave out the columns in which nothing stands."""
    empty = ("", "—", "<div class=long></div>", "<div class=long>—</div>")
    kept = [i for i in range(len(header)) if any(row[i].content not in empty for row in rows)]
    return [header[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _fit_row(curve: FittedCurve, fit: RateFit) -> list[_Cell]:
    first = fit is curve.fits[0]
    weight = "—" if fit.weight is None else f"{fit.weight:.1%}" if fit.weight >= 0.001 else "< 0.1%"
    numbers = [
        number_text(fit.exponent),
        number_text(fit.stderr, 2),
        _ends_text(fit.ci_low, fit.ci_high) if fit.ci_method else "—",
        f"{fit.n_seeds} seeds" if fit.n_seeds is not None else "",
        number_text(fit.seed_spread, 2),
        _ends_text(fit.profile_low, fit.profile_high),
        p_text(fit.p_half),
        p_text(fit.p_one),
        number_text(fit.prefactor),
        *(number_text(fit.parameter(parameter.name)) for parameter in _parameters()),
        number_text(fit.r2),
        "—" if not is_finite(fit.aicc) else signed_text(fit.aicc, ".1f"),
        weight,
        str(fit.n_points),
    ]
    return [
        _text_cell(curve_label(curve) if first else ""),
        _text_cell(group_text(curve.by) if first else ""),
        _text_cell(MODELS[fit.model].words),
        *(_Cell(escape(number), is_number=True) for number in numbers),
        _Cell(f"<div class=long>{escape(excluded_text(curve.excluded) or '—') if first else ''}</div>"),
    ]


def _ends_text(low: float | None, high: float | None) -> str:
    """Return an interval; an end that the points leave open is infinite."""
    if low is None and high is None:
        return "—"
    return f"[{'−∞' if low is None else number_text(low)}, {'∞' if high is None else number_text(high)}]"


def sensitivity_table(curves: Sequence[FittedCurve]) -> str:
    """Return how the power law's exponent moves when the smallest x are left out; empty where none can be."""
    curves = [curve for curve in curves if len(curve.sensitivity) > 1]
    if not curves:
        return ""
    rows = []
    for curve in curves:
        for index, row in enumerate(curve.sensitivity):
            low, high = number_text(row["ci_low"]), number_text(row["ci_high"])
            cells = [number_text(row["exponent"]), f"[{low}, {high}]", str(row["n_points"])]
            rows.append(
                [
                    _text_cell(curve_label(curve) if index == 0 else ""),
                    _text_cell(group_text(curve.by) if index == 0 else ""),
                    _text_cell(f"{curve.x} ≥ {row['x_min']:g}"),
                    *(_Cell(escape(cell), is_number=True) for cell in cells),
                ]
            )
    lead = "The power law's exponent without the smallest values of x: a rate that keeps moving is not yet the limit."
    table = _table(*_without_empty(["metric", "group", "fitted", "a", "95 % interval", "n"], rows))
    return f"<h3>Without the smallest</h3><p class=note>{lead}</p>{table}"


def left_out_table(curves: Sequence[FittedCurve]) -> str:
    """Return which trials were left out of fits or are in doubt, and why."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for curve in curves:
        for point in curve.left_out:
            key = (curve_label(curve), group_text(curve.by), str(point["reason"]))
            reasons.setdefault(key, []).append(str(point["trial_id"]))
        if curve.unconverged:
            key = (curve_label(curve), group_text(curve.by), f"kept, but unconverged: {UNCONVERGED_RULE}")
            reasons.setdefault(key, []).extend(sorted(curve.unconverged))
        if curve.above:
            why = f"kept, but its objective is above a shallower network's, by up to {max(curve.above.values()):.1%} of its gap"
            reasons.setdefault((curve_label(curve), group_text(curve.by), why), []).extend(sorted(curve.above))
    if not reasons:
        return "<p>Nothing: every committed trial is in its fits, and none is unconverged.</p>"
    rows = [[*map(_text_cell, key[:2]), _long_cell(key[2]), _Cell(str(len(trial_ids)), is_number=True),
             _Cell(f"<div class=long>{_trial_ids(trial_ids)}</div>")] for key, trial_ids in reasons.items()]  # fmt: skip
    return _table(*_without_empty(["metric", "group", "why", "trials", "which"], rows))


def failure_table(data: ReportData) -> str:
    """Return what failed trials failed with, the most frequent first; empty where none has."""
    if data.trials.empty or not (data.trials["state"] == "failed").any():
        return ""
    failed = data.trials[data.trials["state"] == "failed"]
    groups = sorted(failed.groupby(failed["error"].map(value_text)), key=lambda group: -len(group[1]))
    rows = []
    for error, part in groups[:MAX_TABLE_ROWS]:
        first = str(part["trial_id"].iloc[0])
        text = error if len(error) <= MAX_ERROR else f"{error[:MAX_ERROR]} …"
        command = f"<code>depthrate logs {escape(first)} --store {escape(data.store)}</code>"
        rows.append([_Cell(str(len(part)), is_number=True), _long_cell(text), _Cell(command)])
    return f"<h3>Failures</h3>{_table(['trials', 'error', 'see'], rows)}"


def cost_tables(cost: Reckoning) -> str:
    """Return what was held and for what, by device, and what failed, by node."""
    rows = [
        [_Cell(escape(device_word(device))), *(_hours(getattr(hours, kind)) for kind in KINDS_OF_HOURS), _share(hours)]
        for device, hours in sorted(cost.devices.items())
    ]
    content = _table(["", *KINDS_OF_HOURS, "committed / held"], rows)
    failed = sorted((node for node in cost.nodes.values() if node.failures), key=lambda node: -node.wasted_hours)
    if failed:
        content += (
            f"<h3>Failures by node</h3>{_table(NODE_COLUMNS, [_node_row(each) for each in failed], sortable=True)}"
        )
    return content


def _node_row(node: NodeReckoning) -> list[_Cell]:
    kinds = ", ".join(f"{kind} {number}" for kind, number in node.failures.most_common())
    numbers = (_Cell(str(number), str(number), is_number=True) for number in (node.attempts, node.done))
    error = node.last_error if len(node.last_error) <= MAX_ERROR else f"{node.last_error[:MAX_ERROR]} …"
    hours = _hours(node.hours), _hours(node.wasted_hours)
    return [_Cell(escape(node.node)), *numbers, *hours, _Cell(escape(kinds)), _long_cell(error)]


def _hours(hours: float) -> _Cell:
    return _Cell(number_text(hours), str(hours), is_number=True)


def _share(hours: Hours) -> _Cell:
    return _Cell("" if hours.efficiency is None else f"{hours.efficiency:.0%}", is_number=True)


def _trial_ids(trial_ids: Sequence[str]) -> str:
    shown = " ".join(f"<code>{escape(trial_id)}</code>" for trial_id in trial_ids[:MAX_IDS])
    return shown + (f" and {len(trial_ids) - MAX_IDS} more" if len(trial_ids) > MAX_IDS else "")


def _long_cell(text: str) -> _Cell:
    return _Cell(f"<div class=long>{escape(text)}</div>")


def search_table(search: SearchContent) -> str:
    """Return the best proposals of each study."""
    rows = [[_trial_cell(name, value) for name, value in zip(search.columns, row, strict=True)] for row in search.rows]
    return _table(search.columns, rows, sortable=True)


def trial_table(data: ReportData) -> str:
    """Return states and times of the trials, with the parameters that differ between them."""
    if data.trials.empty:
        return "<p>No trials are planned.</p>"
    places = {state: place for place, state in enumerate(STATES)}
    trials = data.trials.sort_values("state", key=lambda states: states.map(places), kind="stable")
    differing = varying(trials, data.parameters)
    columns = [name for name in (*STATE_COLUMNS[:2], *differing, *STATE_COLUMNS[2:]) if name in trials]
    rows = [
        [_trial_cell(name, value) for name, value in zip(columns, row, strict=True)]
        for row in trials[columns].head(MAX_TABLE_ROWS).itertuples(index=False, name=None)
    ]
    more = len(trials) - len(rows)
    note = "Click a header to sort." + (f" The first {len(rows)} trials; {more} more are not shown." if more else "")
    same = [f"{name} = {value_text(trials[name].iloc[0])}" for name in data.parameters if name not in differing]
    details = f"<details><summary>Parameters that all trials share</summary><p>{escape(', '.join(same))}</p></details>"
    return f"<p class=note>{note}</p>{_table(columns, rows, sortable=True)}{details if same else ''}"


def _trial_cell(name: str, value: Any) -> _Cell:
    if is_null(value):
        return _Cell("", is_number=name in ("wall_s", "steps_done"))
    text = value_text(value)
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if name == "state":
        return _Cell(f'<span class="pill {escape(value)}">{escape(value)}</span>', text)
    if name == "trial_id":
        return _Cell(f"<code>{escape(value)}</code>", text)
    if name == "error":
        text = text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]} …"
        return _Cell(f"<div class=long>{escape(text)}</div>", text)
    if name == "wall_s" and is_number:
        return _Cell(f"{value:.1f}", text, is_number)
    return _Cell(escape(text), text, is_number)


def _text_cell(value: str) -> _Cell:
    return _Cell(escape(value))


def verdict_table(data: ReportData, panel: VerdictPanel) -> str:
    """Return what a panel says of each setting: its code in words, and measurements beside their predictions."""
    if panel.measurement not in data.results or data.results[panel.measurement].dropna().empty:
        return ""
    settings = data.settings
    columns = [(each, "") if isinstance(each, str) else each for each in panel.columns]
    columns = [(name, beside) for name, beside in columns if name in data.results and data.results[name].notna().any()]
    found = data.results.dropna(subset=[panel.measurement])
    groups = grouped(data.trials, found, settings)
    rows = []
    for key, part in groups[:MAX_TABLE_ROWS]:
        codes = collections.Counter(int(code) for code in part[panel.measurement])
        said = [
            panel.words.get(code, str(code)) + (f" ({count} of {len(part)})" if count < len(part) else "")
            for code, count in sorted(codes.items())
        ]
        cells = [*(_Cell(escape(value), value) for value in key), _Cell(str(len(part)), is_number=True)]
        cells.append(_Cell(escape("; ".join(said))))
        rows.append([*cells, *(_mean_cell(part, name, beside) for name, beside in columns)])
    labels = [data.measurement(name).label for name, _ in columns]
    label = data.measurement(panel.measurement).label
    note = f"{escape(label)}: {escape(panel.doc)} Numbers are means over the trials, in brackets what theory predicts."
    return f"<p class=note>{note}</p>{_table([*settings, 'trials', label, *labels], rows)}"


def _mean_cell(part: pd.DataFrame, name: str, beside: str) -> _Cell:
    values = [float(part[column].mean()) for column in (name, beside) if column in part]
    texts = [number_text(value, 4) for value in values if is_finite(value)]
    return _Cell(texts[0] + (f" [{texts[1]}]" if len(texts) > 1 else "") if texts else "—", is_number=True)


def _table(header: Sequence[str], rows: Sequence[Sequence[_Cell]], *, sortable: bool = False) -> str:
    """A table that scrolls inside its own box; a column of numbers has its header on their side."""
    heads = []
    for name, cell in zip(header, rows[0], strict=True):
        label = f'<button type="button">{escape(name)}</button>' if sortable else escape(name)
        heads.append(f'<th scope="col"{_number_class(cell)}>{label}</th>')
    lines = []
    for row in rows:
        keys = [f' data-key="{escape(cell.sort_key)}"' if sortable else "" for cell in row]
        cells = [f"<td{_number_class(cell)}{key}>{cell.content}</td>" for cell, key in zip(row, keys, strict=True)]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    kind = " class=sortable" if sortable else ""
    head, body = f"<thead><tr>{''.join(heads)}</tr></thead>", f"<tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll" tabindex="0"><table{kind}>{head}{body}</table></div>'


def _number_class(cell: _Cell) -> str:
    return " class=number" if cell.is_number else ""
