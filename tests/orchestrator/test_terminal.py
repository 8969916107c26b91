"""What tasks and stores hold reaches a terminal as letters, never as orders to it."""

from __future__ import annotations

import io
import sys

import pytest

from depthrate.orchestrator.terminal import format_value, make_console, print_table, printable


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
