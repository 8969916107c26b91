"""Several hundred things that users give by mistake: exit code 2, one message, nothing started or written, at once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from bad_inputs import bad_arguments, bad_sweeps
from here import TINY
from tests_rows import commit
from typer.testing import CliRunner

from depthrate.orchestrator.cli import app
from depthrate.storage.store import Store

SWEEPS = list(bad_sweeps())
STORE = "there"
ARGUMENTS = list(bad_arguments(STORE))
MOST_CPU_S = 2.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store in it, in which nothing may change."""
    made = tmp_path_factory.mktemp("bad")
    commit(Store(str(made / STORE)), "20260101T000000_aaaaaaaaaaaa", ["t1", "t2"])
    return made


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(folder: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Call the command line, check that it refuses and changes nothing, and return what it says."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("subprocess.Popen", _nothing_is_started)
    before, started = everything(folder), time.process_time()
    result = CliRunner().invoke(app, arguments)
    taken_s = time.process_time() - started
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 2, result.output
    assert everything(folder) == before, "something was written"
    assert "Traceback" not in result.output and result.output.count("depthrate: ") <= 1
    assert "depthrate: " in result.output or "Usage: " in result.output, "it says nothing"
    assert "\x1b[2J" not in result.output and "\0" not in result.output
    assert taken_s < MOST_CPU_S, f"{taken_s:.1f} s"
    return " ".join(result.output.replace("│", " ").split())  # the parser of options draws a box round its messages


def _nothing_is_started(*_: Any, **__: Any) -> None:
    raise AssertionError("a process was started")


@pytest.mark.parametrize(("change", "piece"), [row[1:] for row in SWEEPS], ids=[ascii(row[0]) for row in SWEEPS])
def test_a_bad_sweep(change: Any, piece: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = change if isinstance(change, str) else yaml.safe_dump(TINY | change, allow_unicode=False)
    path = folder / "bad.yaml"
    path.write_bytes(content.encode(errors="surrogatepass"))
    assert piece in refused(folder, ["run", "bad.yaml"], monkeypatch)
    os.unlink(path)


@pytest.mark.parametrize(
    ("arguments", "piece"), [row[1:] for row in ARGUMENTS], ids=[ascii(row[0]) for row in ARGUMENTS]
)
def test_bad_arguments(arguments: list[str], piece: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert piece in refused(folder, arguments, monkeypatch)


def test_they_are_many() -> None:
    assert len(SWEEPS) + len(ARGUMENTS) >= 500
    assert all(row[2] for row in (*SWEEPS, *ARGUMENTS)), "each has a piece of what is said"
    assert len({repr(row[1]) for row in (*SWEEPS, *ARGUMENTS)}) >= 500, "each is another one"
