"""The tables of fits and trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.aggregate import FittedCurve
from orchestrator.report_content import STATE_COLUMNS, STATES, ReportData
from orchestrator.report_search import SearchContent
from orchestrator.report_text import (
    MODEL_NAMES,
    escape,
    excluded_text,
    group_text,
    interval_of,
    is_finite,
    is_null,
    metric_label,
    number_text,
    signed_text,
    value_text,
)
from tasks.fit import RateFit

MODEL_FORMULAS = {
    "power": "c x<sup>−a</sup>",
    "power_floor": "c x<sup>−a</sup> + floor",
    "exponential": "c e<sup>−a x</sup>",
    "log_linear": "c (1 − a log x)",
}
MAX_TABLE_ROWS = 500
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
    header = ["metric", "group", "model", "a", "std. error", "95 % interval", "c", "floor"]
    header += ["R²", "AICc", "weight", "n", "left out"]
    models = "; ".join(f"{MODEL_NAMES[model]}: {formula}" for model, formula in MODEL_FORMULAS.items())
    note = (
        f"Models of a metric y over x, fitted to log y: {models}. Interval of a: bootstrap over the trials at each x, "
        "or Student's t where no x has two. Weight: Akaike weight among the models of one curve."
    )
    return f"{_table(header, rows)}<p class=note>{note}</p>"


def _fit_row(curve: FittedCurve, fit: RateFit) -> list[_Cell]:
    first = fit is curve.fits[0]
    interval = interval_of(fit)
    weight = "<0.001" if fit.weight is not None and fit.weight < 0.001 else number_text(fit.weight)
    return [
        _text_cell(f"{metric_label(curve.metric)} over {curve.x}" if first else ""),
        _text_cell((group_text(curve.by) or "all") if first else ""),
        _text_cell(MODEL_NAMES[fit.model]),
        _Cell(signed_text(fit.exponent, ".3f"), is_number=True),
        _Cell(number_text(fit.stderr, 2), is_number=True),
        _text_cell(f"[{signed_text(interval[0], '.3f')}, {signed_text(interval[1], '.3f')}]" if interval else "—"),
        *(_Cell(number_text(value), is_number=True) for value in (fit.prefactor, fit.floor, fit.r2)),
        _Cell("—" if not is_finite(fit.aicc) else signed_text(fit.aicc, ".1f"), is_number=True),
        _Cell(escape(weight), is_number=True),
        _Cell(str(fit.n_points), is_number=True),
        _Cell(f"<div class=long>{escape(excluded_text(curve.excluded) or '—') if first else ''}</div>"),
    ]


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
    varying = [name for name in data.parameters if trials[name].map(value_text).nunique() > 1]
    columns = [name for name in (*STATE_COLUMNS[:2], *varying, *STATE_COLUMNS[2:]) if name in trials]
    rows = [
        [_trial_cell(name, value) for name, value in zip(columns, row, strict=True)]
        for row in trials[columns].head(MAX_TABLE_ROWS).itertuples(index=False, name=None)
    ]
    more = len(trials) - len(rows)
    note = "Click a header to sort." + (f" The first {len(rows)} trials; {more} more are not shown." if more else "")
    same = [f"{name} = {value_text(trials[name].iloc[0])}" for name in data.parameters if name not in varying]
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
