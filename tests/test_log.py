"""LOG.md: one table of what holds today, each row with command, machine and day, and none that a later day contradicts."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DAYS = {path.stem: path.read_text() for path in (ROOT / "log").glob("*.md")}
HEADER = ["what", "figure", "command", "machine", "day"]


def rows() -> list[list[str]]:
    lines = (ROOT / "LOG.md").read_text().rstrip("\n").partition("\n|")[2].split("\n")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == HEADER and set("".join(cells[1])) == {"-"}, "the table of LOG.md begins otherwise"
    assert all(len(row) == len(HEADER) for row in cells), "a line of LOG.md's table has other columns, or is empty"
    return cells[2:]


def program(row: list[str]) -> str:
    """Return what a row's command runs, as the log names it: a file of ours, or the whole command."""
    command = re.search(r"`([^`]+)`", row[2])
    assert command is not None, f"{row[0]}: no command"
    file = re.search(r"(?:benchmarks|tests|papers)[\w./-]*?/([\w-]+(?:\.py)?)(?= |$)|-m (benchmarks\.\w+)", command[1])
    return command[1] if file is None else file[1] or file[2]


def test_the_table_has_a_row_a_matter() -> None:
    matters = [row[0] for row in rows()]
    assert len(matters) > 20 and len(set(matters)) == len(matters)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_a_row_has_command_machine_and_day_and_no_later_day_has_its_command(row: list[str]) -> None:
    matter, figure, _, machine, day = row
    if "never run" in figure:
        return
    assert figure and machine and datetime.date.fromisoformat(day)
    name = program(row)
    assert name in DAYS.get(day, ""), f"{matter}: log/{day}.md does not name `{name}`"
    later = [other for other, text in DAYS.items() if other > day and name in text]
    assert not later, f"{matter}: measured again on {later}; take the newer figure into LOG.md"
