"""Render sheets of fits as HTML and for the explorer: tables, with the intervals of estimates drawn, and texts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from depthrate.orchestrator.report.drawing.render import explorer_panel
from depthrate.orchestrator.report.drawing.scale import Scale, padded, ticks
from depthrate.orchestrator.report.drawing.style import PAGE
from depthrate.orchestrator.report.drawing.svg import SvgPen
from depthrate.orchestrator.report.figure import HALF, Axis, Figure
from depthrate.orchestrator.report.html_table import Cell, Group, grouped_table, table
from depthrate.orchestrator.report.text import markup
from depthrate.orchestrator.sheet.fit_sheet import Column, FitSheet, IntervalValue, Kind, Value, is_finite
from depthrate.orchestrator.sheet.markup import plain, typeset

STRIP_WIDTH, STRIP_HEIGHT = 150, 24


def sheet_table(sheet: FitSheet) -> str:
    """Return a sheet's rows as a table, in groups if the sheet names a column for their titles. Empty without rows."""
    columns = [column for column in sheet.used if column.key != sheet.grouped_by]
    header = [typeset(column.heading) for column in columns]
    groups = [
        Group(markup(title), [list(map(_cell, columns, texts)) for texts in part.cells(columns)])
        for title, part in sheet.groups
    ]
    if not sheet.rows:
        return ""
    return grouped_table(header, groups) if sheet.grouped_by else table(header, groups[0].rows)


def _cell(column: Column, text: str) -> Cell:
    if column.is_detail and not column.is_number:
        return Cell(f"<div class=long>{markup(text)}</div>")
    return Cell(markup(text) or ("—" if column.is_number else ""), is_number=column.is_number)


def paragraphs(texts: Iterable[str], kind: str = "") -> str:
    """Return texts as paragraphs."""
    return "".join(f"<p{kind and f' class={kind}'}>{markup(text)}</p>" for text in texts)


def sheet_panel(sheet: FitSheet, figure: Figure | None) -> dict[str, Any]:
    """Return a sheet for the explorer, with a figure."""
    columns = sheet.used
    header = [typeset(column.heading) for column in columns] if sheet.rows else []
    rows = [list(map(typeset, row)) for row in sheet.cells(columns)]
    return explorer_panel(typeset(sheet.title), header, rows, list(map(typeset, sheet.remarks)), figure)


def drawn_table(sheet: FitSheet, colours: Mapping[str, str]) -> str:
    """Return a sheet as a table in which estimates are drawn.

    Args:
        colours: Colours of rows in the figure next to it, by the texts of their names, such as `width 64`.
    """
    columns = sheet.used
    scales = {column.key: _scale(row.get(column.key) for row in sheet.rows) for column in columns if _is_drawn(column)}
    heads = "".join(_head(column, scales) for column in columns)
    names = [column for column in columns if column.is_name]
    rows, previous = [], ""
    for row, texts in zip(sheet.rows, sheet.cells(columns), strict=True):
        by_key = {column.key: text for column, text in zip(columns, texts, strict=True)}
        phrases = [plain(f"{column.heading} {by_key[column.key]}") for column in names]
        whole = ", ".join(phrases)
        colour = next((colours[phrase] for phrase in (*phrases, whole) if phrase in colours), "ink")
        first = by_key[names[0].key]
        is_first, previous = first != previous or len(names) == 1, first
        cells = []
        for place, (column, text) in enumerate(zip(columns, texts, strict=True)):
            if column.is_name:
                is_key = phrases[place] in colours or (place == len(names) - 1 and whole in colours)
                is_again = place == 0 and not is_first
                cells.append(f"<td class='{'key ' * is_key}{'again' * is_again}'>{markup(text)}</td>")
            else:
                cells.append(_drawn_cell(column, row.get(column.key), text, scales, colour))
        rows.append(f"<tr style='--c:var(--{colour})'{' class=first' * is_first}>{''.join(cells)}</tr>")
    caption = f"<caption>{markup(sheet.title)}.</caption>"
    notes = paragraphs([" ".join(sheet.notes)] if sheet.notes else [], "note")
    body = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll" tabindex="0"><table class=groups>{caption}{body}</table>{notes}</div>'


def _is_drawn(column: Column) -> bool:
    return column.kind is Kind.INTERVAL


def _head(column: Column, scales: Mapping[str, Scale]) -> str:
    kinds = f"{'number ' * column.is_number}{'spare' * column.is_spare}"
    head = f"<th class='{kinds}'>{markup(column.heading)}</th>"
    if column.key not in scales:
        return head
    pen, scale = SvgPen(PAGE), scales[column.key]
    for value, text in ticks(Axis(title=""), scale.low, scale.high):
        pen.text(float(scale([value])[0]), 12, text, 11, "muted", "middle")
    axis = pen.element(STRIP_WIDTH, STRIP_HEIGHT, f"{plain(column.heading)}, drawn")
    return f"<th class=spare>{axis}</th><th class=nowrap>{markup(column.heading)}</th>"


def _drawn_cell(column: Column, value: Value, text: str, scales: Mapping[str, Scale], colour: str) -> str:
    kinds = f"{'number ' * column.is_number}{'spare' * column.is_spare}"
    if column.key not in scales:
        return f"<td class='{kinds}'>{markup(text) or '—' * column.is_number}</td>"
    content = markup(text) if isinstance(value, IntervalValue) else f"<i>{markup(text)}</i>"
    return f"<td class=spare>{_strip(scales[column.key], value, colour)}</td><td>{content}</td>"


def _scale(values: Iterable[Value]) -> Scale:
    """Return an axis with 0, all estimates and their intervals. Intervals much wider than the rest end at its edge."""
    estimates = [value for value in values if isinstance(value, IntervalValue)]
    middles = [0.0, *(estimate.value for estimate in estimates)]
    ends = [end for estimate in estimates for end in _ends(estimate)]
    margin = max(max(middles) - min(middles), 0.5)
    lowest, highest = min(middles) - margin, max(middles) + margin
    low, high = padded(np.clip([*middles, *ends], lowest, highest), is_log=False)
    return Scale(low, high, 0, STRIP_WIDTH)


def _ends(estimate: IntervalValue) -> Sequence[float]:
    return (estimate.low, estimate.high) if is_finite(estimate.low) and is_finite(estimate.high) else ()


def _strip(scale: Scale, value: Value, colour: str) -> str:
    """Return a symbol at the estimate and a line over its interval, with the value ½ dotted."""
    pen, middle = SvgPen(PAGE), STRIP_HEIGHT / 2
    if scale.low < HALF < scale.high:
        x = float(scale([HALF])[0])
        pen.lines([np.array([(x, 0), (x, STRIP_HEIGHT)])], "muted", 0.8, "dot")
    if isinstance(value, IntervalValue):
        ends = scale(_ends(value))
        pen.lines([np.array([(x, middle) for x in ends])] if len(ends) else [], colour, 1.8)
        pen.spots(np.array([(scale([value.value])[0], middle)]), colour, 7, "ring" if value.is_hollow else "dot")
    return pen.element(STRIP_WIDTH, STRIP_HEIGHT, "")
