"""Tables and numbers for a terminal."""

from __future__ import annotations

import datetime
import io
import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from depthrate.storage.commits.source import Problem


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_CONTROLS |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""What makes a terminal do something other than show a letter: escape sequences, and signs that turn the direction."""


def printable(text: str) -> str:
    """Return a text from a task or a store as a terminal may have it: what is no letter there is written out."""
    return text.translate(_CONTROLS).encode(errors="backslashreplace").decode()


def make_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console that never wraps or cuts a table when its output goes to a file or a pipe; `quiet` prints nothing."""
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")  # a letter that this place does not know is no reason to end
    return Console(
        stderr=stderr, quiet=quiet, width=None if stream.isatty() else 100_000, soft_wrap=not stream.isatty()
    )


def print_table(
    console: Console, columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None
) -> None:
    """Print rows under their columns; numbers stand right, with six digits."""
    rows = list(rows)
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        is_number = any(isinstance(row[index], int | float) and not isinstance(row[index], bool) for row in rows)
        table.add_column(
            _escape(printable(column)),
            justify="right" if is_number else "left",
            no_wrap=not console.is_terminal,
            overflow="fold",  # a long word goes on in the next line: names and paths are to be read whole
        )
    for row in rows:
        table.add_row(*(_escape(format_value(value)) for value in row))
    console.print(table, highlight=False)


def print_rows(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, wide: bool = False, more: str = "--wide"
) -> None:
    """Print rows on a terminal with as many of their columns as it has room for, the first ones first; all with `wide`.

    What does not go to a terminal has all columns. `more` says how to see the others.
    """
    kept = len(columns) if wide or not console.is_terminal else _columns_that_fit(columns, rows, console.width)
    shown = Console(file=console.file, width=100_000, soft_wrap=True) if wide else console
    print_table(shown, columns[:kept], [row[:kept] for row in rows])
    if kept < len(columns):
        left = ", ".join(columns[kept : kept + 8]) + (", ..." if len(columns) > kept + 8 else "")
        hidden = len(columns) - kept
        counted = f"{hidden} more column{'s' if hidden > 1 else ''}"
        console.print(f"{counted} ({printable(left)}): {more}", highlight=False, markup=False)


def print_described(console: Console, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows whose last cell is a text: as a table, or where a terminal has no room for that an entry a row."""
    if not console.is_terminal or _columns_that_fit(columns, rows, console.width) == len(columns):
        print_table(console, columns, rows)
        return
    console.print(Text(f"{columns[0]}s"))
    for name, *facts, text in rows:
        named = [
            f"{column}: {format_value(value)}" for column, value in zip(columns[1:-1], facts, strict=True) if value
        ]
        console.print(Text(printable(name), style="bold"))
        for line in filter(None, (printable(text), "; ".join(named))):
            console.print(Padding(Text(line), (0, 0, 0, 4), expand=False), highlight=False)
    console.print()


def _columns_that_fit(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int) -> int:
    """Return how many columns a terminal has room for; one at least."""
    used = 2
    for index, column in enumerate(columns):
        cells = [printable(column), *(format_value(row[index]) for row in rows)]
        used += max(cell_len(cell) for cell in cells) + (3 if index else 0)
        if used > width and index:
            return index
    return len(columns)


def format_value(value: Any) -> str:
    """Return a table cell's text: six significant digits, an empty cell for null."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, datetime.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, list):
        shown = ", ".join(format_value(item) for item in value[:4])
        return f"[{shown}]" if len(value) <= 4 else f"[{shown}, ... {len(value)} values]"
    return printable(str(value))


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number of things in words: 1 trial, 2 trials."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


def duration(seconds: float) -> str:
    """Return a time in words."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def print_warnings(problems: Sequence[Problem]) -> None:
    """Name damaged and foreign files on standard error."""
    for problem in problems[:20]:
        print(f"warning: {printable(str(problem))}", file=sys.stderr)
    if len(problems) > 20:
        print(f"warning: and {counted(len(problems) - 20, 'more damaged or foreign file')}", file=sys.stderr)


def print_json(value: Any) -> None:
    """Print JSON for programs."""
    print(json.dumps(finite(value), indent=1, default=str, allow_nan=False))


def finite(value: Any) -> Any:
    """Return the value with null for numbers that JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


def json_text(value: Any) -> bytes:
    """Return the value as short JSON, with null for numbers that it has no word for."""
    text = json.dumps(finite(value), separators=(",", ":"), default=str, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
