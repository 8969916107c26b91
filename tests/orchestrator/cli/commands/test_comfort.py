"""What makes the command line easy to begin with: its version, its help, a start, a schema for editors, tables that fit."""

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.console.tables import print_rows
from depthrate.sweeps.json_schema import sweep_schema
from depthrate.sweeps.load import SHIPPED, load_sweep
from depthrate.tasks.registry import registered_tasks
from tests.support.here import printed


def test_version_help_and_completion() -> None:
    assert printed("--version") == f"{version('depthrate')}\n"
    assert printed("-h") == printed("--help") and "--install-completion" in printed("-h")
    assert "KEY=VALUE" in printed("run", "-h")


def test_init_runs_and_never_overwrites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed("init", "start")
    assert "mine: 12 trials, 0 done" in printed("plan", "start/sweep.yaml")
    own = yaml.safe_load((tmp_path / "start/sweep.yaml").read_text()) | {"task": "./my_task.py:power_law", "params": {}}
    (tmp_path / "start/own.yaml").write_text(yaml.safe_dump(own))
    assert "12 trials, 0 done" in printed("plan", "start/own.yaml")
    again = CliRunner().invoke(app, ["init", "start"])
    assert again.exit_code == 2 and "sweep.yaml exists already" in again.stderr
    monkeypatch.chdir(tmp_path / "start")
    for name in ("sweep.yaml", "my_task.py", "sweep.schema.json"):
        Path(name).unlink()
    printed("init")
    assert "mine: 12 trials, 0 done" in printed("plan", "sweep.yaml")


def test_the_schema_accepts_every_shipped_sweep(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="comes with nbclient of depthrate[dev]")
    schema = sweep_schema(registered_tasks())
    assert json.loads(printed("schema")) == schema
    validator = jsonschema.Draft202012Validator(schema)
    for path in SHIPPED.rglob("*.yaml"):
        assert not list(validator.iter_errors(yaml.safe_load(path.read_text()))), path
    assert len(printed("schema")) < 170_000, "each parameter stands there once"


def test_set_makes_another_sweep() -> None:
    assert load_sweep("quickstart", {"steps": 60}).name == "quickstart.steps-60"
    assert load_sweep("quickstart", {"depth": [2, 3]}).name == "quickstart.depth-2-3"
    assert load_sweep("quickstart", {"engine": "eager"}).name == "quickstart"
    assert load_sweep("quickstart", {"steps": 60, "name": "short"}).name == "short"
    long = [load_sweep("quickstart", {"depth": list(range(2, stop))}).name for stop in (50, 51)]
    assert long[0] != long[1] and max(map(len, long)) < 70


def test_columns_fit_the_terminal_unless_wide() -> None:
    columns, rows = [f"column_{number}" for number in range(20)], [list(range(20))]
    for wide, most in ((False, 80), (True, 100_000)):
        sink = io.StringIO()
        console = Console(file=sink, force_terminal=True, width=80, color_system=None)
        print_rows(console, columns, rows, wide=wide)
        text = sink.getvalue()
        assert max(map(len, text.splitlines())) <= most
        assert ("column_19" in text) == wide and ("--wide" in text) != wide, text


@pytest.mark.slow
def test_slow_plan_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    slow = """
        import time
        import numpy as np

        def make():
            time.sleep(1)
            return np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) % 2
    """
    Path("data.py").write_text(textwrap.dedent(slow))
    Path("s.yaml").write_text(
        'name: s\ntask: collapse\nparams: {arch: rn1, dataset: "./data.py:make", width: 8, steps: 2}\ngrid: {depth: [2]}\n'
    )
    script = "from depthrate.orchestrator.api import planning\nplanning.SLOW_NOTICE_AFTER_S = {}\nimport depthrate\n"
    script += "depthrate.load('s.yaml').plan()\n"
    for patience_s, is_terminal, is_said in ((0.2, True, True), (0.2, False, False), (60.0, True, False)):
        master, slave = pty.openpty() if is_terminal else os.pipe()
        command = [sys.executable, "-c", script.format(patience_s)]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=slave)
        os.close(slave)
        said = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while part := os.read(master, 4096):
                said += part
        os.close(master)
        assert running.wait() == 0 and (b"reading the sweep, its code and its data" in said) == is_said, said
