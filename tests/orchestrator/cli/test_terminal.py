"""What tasks and stores hold reaches a terminal as letters, never as orders to it."""

import ast
import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

import depthrate.orchestrator
from depthrate.orchestrator.console.tables import (
    ANY_WIDTH,
    FILE_WIDTH,
    TEXT_WIDTH,
    PlainConsole,
    format_value,
    make_console,
    print_described,
    print_line,
    print_rows,
    print_table,
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


def test_output_has_no_markup_or_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print("store a[bold]b:tada:\x1b[31m")
    print_line("store a[bold]b:tada:\x1b[31m", stderr=True)
    out, err = capsys.readouterr()
    assert out == err == "store a[bold]b:tada:\\x1b[31m\n"


def test_whatever_is_printed_goes_through_one_place() -> None:
    """Printed elsewhere are versions, JSON and YAML of our own, and requests to a process of ours."""
    elsewhere = {"app.py", "schema.py", "show.py", "tables.py", "__main__.py"}
    elsewhere |= {"render_process.py", "renderer.py", "sql_process.py"}
    folder = Path(depthrate.orchestrator.__path__[0])
    for file in folder.rglob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        named = {call.id for call in calls if isinstance(call, ast.Name)}
        assert "Console" not in named and ("print" not in named or file.name in elsewhere), file


def on_terminal(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)


def make_piped() -> Console:
    return PlainConsole(file=io.StringIO(), width=ANY_WIDTH, soft_wrap=True)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_columns_fit_the_terminal() -> None:
    columns, row = [f"column_{i}" for i in range(12)], ["12345678"] * 12
    print_rows(console := on_terminal(80), columns, [row])
    lines = text_of(console).splitlines()
    assert max(map(len, lines)) <= 80 and sum("12345678" in line for line in lines) == 1, "a row is a line"
    assert "more columns" in lines[-1]
    print_rows(console := on_terminal(80), columns, [row], wide=True)
    assert "column_11" in text_of(console) and "more columns" not in text_of(console)
    wide_columns, wide_row = [f"column {number}" for number in range(60)], ["x" * 9] * 60
    print_rows(console := Console(file=io.StringIO(), width=100_000), wide_columns, [wide_row], more="--wide")
    lines = text_of(console).splitlines()
    assert max(map(len, lines)) <= FILE_WIDTH and "more columns" in lines[-1] and "--wide" in lines[-1]
    print_rows(console := on_terminal(30), ["a", "b"], [["1" * 20] * 2])
    assert "1 more column (b): --wide" in text_of(console)
    print_rows(console := on_terminal(30), ["none", "a", "b"], [[None, "1" * 20, "2" * 20]])
    assert "1" * 20 in text_of(console) and "2 more columns (b, none)" in text_of(console), "empty columns come last"
    print_table(console := on_terminal(30), ["name", "where"], [["digits", "a/" + "long_name" * 5]])
    assert text_of(console).replace(" ", "").replace("\n", "").endswith("a/" + "long_name" * 5), "nothing is cut"


def test_narrow_terminals_get_entries() -> None:
    columns, rows = ["parameter", "allowed", "default", "meaning"], [["a_long_name", "one of b, c", "", "word " * 30]]
    print_described(console := on_terminal(60), columns, rows)
    lines = text_of(console).splitlines()
    assert lines[:2] == ["parameters", "a_long_name"] and max(map(len, lines)) <= 60
    assert lines[-2].strip() == "allowed: one of b, c"
    assert text_of(console).count("word") == 30, "nothing is cut"
    print_described(console := make_piped(), columns, rows)
    assert max(map(len, text_of(console).splitlines())) <= TEXT_WIDTH and text_of(console).count("word") == 30
    print_described(console := on_terminal(300), columns, rows)
    assert "parameter" in text_of(console)
