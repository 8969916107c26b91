"""Render tables as HTML. On a narrow screen each row is a paragraph."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from depthrate.orchestrator.report.text import escape

EMPTY = ("", "—", "<div class=long></div>", "<div class=long>—</div>")


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    content: str
    """HTML."""
    sort_key: str = ""
    is_number: bool = False


@dataclass(frozen=True)
class Group:
    """Rows below a common title."""

    title: str
    """HTML."""
    rows: Sequence[Sequence[Cell]]


def text_cell(value: str) -> Cell:
    """Return a cell with escaped content."""
    return Cell(escape(value))


def number_cell(text: str) -> Cell:
    """Return a right-aligned cell with a number."""
    return Cell(escape(text), is_number=True)


def long_cell(text: str) -> Cell:
    """Return a cell whose content may wrap."""
    return Cell(f"<div class=long>{escape(text)}</div>")


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    ids: Sequence[str] = (),
) -> str:
    """Return a table. Headers are aligned like their columns. `ids` are the rows' HTML ids, for links."""
    names = ids or [""] * len(rows)
    body = "".join(_row(header, row, name=name) for row, name in zip(rows, names, strict=True))
    return _box(header, rows[0], f"<tbody>{body}</tbody>")


def grouped_table(header: Sequence[str], groups: Sequence[Group]) -> str:
    """Return a table in groups, without empty columns."""
    rows = [row for group in groups for row in group.rows]
    filled = filled_columns(header, rows)
    names = [header[i] for i in filled]
    bodies = []
    for group in groups:
        title = f'<tr class=group><th colspan="{len(filled)}" scope="rowgroup">{group.title}</th></tr>'
        bodies.append(f"<tbody>{title}{''.join(_row(names, [row[i] for i in filled]) for row in group.rows)}</tbody>")
    return _box(names, [rows[0][i] for i in filled], "".join(bodies))


def filled_columns(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[int]:
    """Return the indices of columns with content."""
    rows = list(rows)
    return [i for i in range(len(header)) if any(row[i].content not in EMPTY for row in rows)]


def without_empty(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> tuple[list[str], list[list[Cell]]]:
    """Remove empty columns."""
    filled = filled_columns(header, rows)
    return [header[i] for i in filled], [[row[i] for i in filled] for row in rows]


def _box(header: Sequence[str], first: Sequence[Cell], bodies: str) -> str:
    heads = [f'<th scope="col"{_number_class(cell)}>{escape(n)}</th>' for n, cell in zip(header, first, strict=True)]
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{"".join(heads)}</tr></thead>{bodies}</table></div>'


def _row(header: Sequence[str], row: Sequence[Cell], *, name: str = "") -> str:
    """Return a row. Each cell has its column's name, which a narrow screen shows."""
    cells = []
    for label, cell in zip(header, row, strict=True):
        kind = " class=none" if cell.content in EMPTY else _number_class(cell)
        cells.append(f'<td{kind} data-label="{escape(label)}">{cell.content}</td>')
    identity = f' id="{escape(name)}"' if name else ""
    return f"<tr{identity}>{''.join(cells)}</tr>"


def _number_class(cell: Cell) -> str:
    return " class=number" if cell.is_number else ""
