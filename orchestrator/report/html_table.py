"""Render tables as HTML. A table wider than the screen scrolls in its box."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from depthrate.orchestrator.report.text import escape
from depthrate.orchestrator.sheet.names import shorten

EMPTY = ("", "—", "<div class=long></div>", "<div class=long>—</div>")


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    content: str
    """HTML."""
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


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]], ids: Sequence[str] = ()) -> str:
    """Return a table. Headers are aligned like their columns. `ids` are the rows' HTML ids, for links."""
    names = ids or [""] * len(rows)
    body = "".join(_row(row, name) for row, name in zip(rows, names, strict=True))
    return _box(header, rows[0], f"<tbody>{body}</tbody>")


def grouped_table(header: Sequence[str], groups: Sequence[Group]) -> str:
    """Return a table in groups, without empty columns."""
    rows = [row for group in groups for row in group.rows]
    filled = filled_columns(header, rows)
    bodies = []
    for group in groups:
        title = f'<tr class=group><th colspan="{len(filled)}" scope="rowgroup">{group.title}</th></tr>'
        bodies.append(f"<tbody>{title}{''.join(_row([row[i] for i in filled]) for row in group.rows)}</tbody>")
    return _box([header[i] for i in filled], [rows[0][i] for i in filled], "".join(bodies))


def filled_columns(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[int]:
    """Return the indices of columns with content."""
    rows = list(rows)
    return [i for i in range(len(header)) if any(row[i].content not in EMPTY for row in rows)]


def without_empty(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> tuple[list[str], list[list[Cell]]]:
    """Remove empty columns."""
    filled = filled_columns(header, rows)
    return [header[i] for i in filled], [[row[i] for i in filled] for row in rows]


def _box(header: Sequence[str], first: Sequence[Cell], bodies: str) -> str:
    names = zip(header, first, strict=True)
    heads = "".join(f'<th scope="col"{_number_class(cell)}>{escape(shorten(name))}</th>' for name, cell in names)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead>{bodies}</table></div>'


def _row(row: Sequence[Cell], name: str = "") -> str:
    cells = "".join(f"<td{_number_class(cell)}>{cell.content}</td>" for cell in row)
    identity = f' id="{escape(name)}"' if name else ""
    return f"<tr{identity}>{cells}</tr>"


def _number_class(cell: Cell) -> str:
    return " class=number" if cell.is_number else ""
