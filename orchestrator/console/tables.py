"""Tables and numbers for a terminal."""

from __future__ import annotations

import datetime
import io
import json
import math
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from depthrate.storage.files.controls import CONTROLS

if TYPE_CHECKING:
    from depthrate.storage.commits.visible_commits import Problem


def printable(text: str) -> str:
    """Escape control characters in text from a task or a store, for a terminal."""
    return text.translate(CONTROLS).encode(errors="backslashreplace").decode()


ANY_WIDTH = 100_000
"""Width that disables wrapping and truncation."""
TEXT_WIDTH = 120
"""Width of tables with a column of prose in a file or a pipe, in characters."""
FILE_WIDTH = 200
"""Maximum width of a table in a file or a pipe, in characters, unless --wide requests every column."""


class PlainConsole(Console):
    """A console without markup that escapes control characters."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print strings, tables and other renderables."""
        super().print(*(printable(item) if isinstance(item, str) else item for item in objects), **options)


def make_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Create a console. Output to a file or a pipe is never wrapped. `quiet` prints nothing."""
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")  # escape characters that are missing from the encoding
    return PlainConsole(
        stderr=stderr, quiet=quiet, width=None if stream.isatty() else ANY_WIDTH, soft_wrap=not stream.isatty()
    )


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    title: str | None = None,
    *,
    numbers: Collection[str] = (),
) -> None:
    """Print a table. Numbers are right-aligned, with six digits. `numbers`: columns of formatted numbers."""
    rows = list(rows)
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        is_number = column in numbers or any(
            isinstance(row[index], int | float) and not isinstance(row[index], bool) for row in rows
        )
        table.add_column(
            Text(printable(column)),
            justify="right" if is_number else "left",
            no_wrap=not console.is_terminal,
            overflow="fold",  # wrap long names and paths instead of truncating them
        )
    for row in rows:
        table.add_row(*(Text(format_value(value)) for value in row))
    console.print(table)


def print_rows(
    console: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    optional: Collection[str] = (),
    numbers: Collection[str] = (),
    wide: bool = False,
    more: str = "--wide",
) -> None:
    """Print the first columns that fit the terminal (or `FILE_WIDTH`), or all of them with `wide`.

    Empty `optional` columns are left out. If some do not fit, empty columns come last. `numbers` as for `print_table`.
    `more` is the hint after the names of the omitted columns.
    """
    used = [i for i, name in enumerate(columns) if name not in optional or any(row[i] for row in rows)]
    columns, rows = [columns[i] for i in used], [[row[i] for i in used] for row in rows]
    width = console.width if console.is_terminal else FILE_WIDTH
    kept = len(columns) if wide else _columns_that_fit(columns, rows, width)
    if kept < len(columns) and rows:
        order = sorted(range(len(columns)), key=lambda index: all(row[index] is None for row in rows))
        columns, rows = [columns[i] for i in order], [[row[i] for i in order] for row in rows]
        kept = _columns_that_fit(columns, rows, width)
    shown = PlainConsole(file=console.file, width=ANY_WIDTH, soft_wrap=True) if wide else console
    print_table(shown, columns[:kept], [row[:kept] for row in rows], numbers=numbers)
    if kept < len(columns):
        left = ", ".join(columns[kept : kept + 8]) + (", ..." if len(columns) > kept + 8 else "")
        console.print(f"{counted(len(columns) - kept, 'more column')} ({printable(left)}): {more}")


def print_described(console: Console, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows whose last cell is prose, as a table if it fits and otherwise as one entry per row."""
    width = console.width if console.is_terminal else TEXT_WIDTH
    if _columns_that_fit(columns, rows, width) == len(columns):
        print_table(console, columns, rows)
        return
    console.print(Text(f"{columns[0]}s"))
    for name, *facts, text in rows:
        named = [
            f"{column}: {format_value(value)}" for column, value in zip(columns[1:-1], facts, strict=True) if value
        ]
        console.print(Text(printable(name), style="bold"))
        for line in filter(None, (printable(text), "; ".join(named))):
            console.print(Padding(Text(line), (0, 0, 0, 4), expand=False), width=width, soft_wrap=False)
    console.print()


def _columns_that_fit(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int) -> int:
    """Return the number of columns that fit, at least one."""
    used = 2
    for index, column in enumerate(columns):
        cells = [printable(column), *(format_value(row[index]) for row in rows)]
        used += max(cell_len(cell) for cell in cells) + (3 if index else 0)
        if used > width and index:
            return index
    return len(columns)


def format_value(value: Any) -> str:
    """Format a table cell: six significant digits, empty for None."""
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
    """Format a count with its noun: 1 trial, 2 trials."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


def listed(names: Sequence[str], limit: int) -> str:
    """Join the first names with commas, and count the remaining names."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def duration(seconds: float) -> str:
    """Format a duration: 2 h 05 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def print_line(text: str, *, stderr: bool = False) -> None:
    """Print a line with control characters escaped."""
    print(printable(text), file=sys.stderr if stderr else sys.stdout, flush=True)


def print_warnings(problems: Sequence[Problem | str]) -> None:
    """Print warnings, such as those about corrupt and foreign files, to stderr."""
    for problem in problems[:20]:
        print_line(f"warning: {problem}", stderr=True)
    if len(problems) > 20:
        print_line(f"warning: and {counted(len(problems) - 20, 'more damaged or foreign file')}", stderr=True)


def print_json(value: Any) -> None:
    """Print indented JSON."""
    print(json.dumps(finite(value), indent=1, default=str, allow_nan=False))


def finite(value: Any) -> Any:
    """Replace infinite and NaN numbers by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def json_text(value: Any) -> bytes:
    """Encode as compact JSON, with null for infinite and NaN numbers."""
    text = json.dumps(finite(value), separators=(",", ":"), default=str, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")
