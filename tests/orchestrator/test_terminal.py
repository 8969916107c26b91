"""What tasks and stores hold reaches a terminal as letters, never as orders to it."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from depthrate.orchestrator.terminal import (
    format_value,
    make_console,
    print_rows,
    print_table,
    print_with_room,
    printable,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\rb\x00\x7f", "a\\x0db\\x00\\x7f"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
        ("line\n\tnext é 深", "line\n\tnext é 深"),
    ],
)
def test_what_is_no_letter_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown and format_value(text) == shown


def test_a_table_prints_what_its_place_cannot_show(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    print_table(make_console(), ["a\x1b[1m", "[b]"], [["é", "\x1b[31mred"]])
    sys.stdout.flush()
    shown = raw.getvalue().decode()
    assert "\x1b" not in shown and "\\xe9" in shown and "\\x1b[31mred" in shown and "[b]" in shown


def on_terminal(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 55, 40])
def test_a_table_without_room_leaves_out_what_matters_least(width: int) -> None:
    columns, rows = (
        ["metric", "power law", "exponent", "R^2"],
        [["nc1", "0.326 depth^-0.556", "0.556 [0.541, 0.572]", 0.996]],
    )
    console = on_terminal(width)
    print_with_room(console, columns, rows, ["R^2", "power law"], "--wide has them")
    lines = text_of(console).splitlines()
    assert max(map(len, lines)) <= width
    assert any("nc1" in line and "0.556 [0.541, 0.572]" in line for line in lines), "no cell is broken"
    left_out = {80: [], 55: ["R^2"], 40: ["R^2", "power law"]}[width]
    assert [name for name in columns if name not in lines[1]] == sorted(left_out, key=columns.index)
    assert (f"for lack of room without {', '.join(left_out)}: --wide has them" in " ".join(lines)) == bool(left_out)
    print_with_room(wide := on_terminal(width), columns, rows, ["R^2"], "", wide=True)
    assert "0.996" in text_of(wide) and "for lack" not in text_of(wide)


def test_as_many_columns_as_a_terminal_has_room_for() -> None:
    columns, row = [f"column_{i}" for i in range(12)], ["12345678"] * 12
    print_rows(console := on_terminal(80), columns, [row])
    lines = text_of(console).splitlines()
    assert max(map(len, lines)) <= 80 and sum("12345678" in line for line in lines) == 1, "a row is a line"
    assert "more columns" in lines[-1]
