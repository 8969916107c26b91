"""A third-party executor needs one file and one entry in the registry."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.executors import registry
from depthrate.storage.files.store import Store
from tests.support.launches import committed
from tests.support.one_by_one import TOY


def test_it_runs_a_sweep_from_the_command_line(folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.executors(), "toy", TOY)
    for verb in ("run", "plan"):  # which declare their options when they are imported
        monkeypatch.delitem(sys.modules, f"depthrate.orchestrator.cli.commands.{verb}", raising=False)

    def call(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, list(words), catch_exceptions=False, env={"COLUMNS": "200"})
        assert result.exit_code == code, result.output
        return result.output

    task = Path(__file__).parents[2] / "support/own_tasks.py"
    sweep = tmp_path / "s.yaml"
    sweep.write_text(f"name: s\ntask: {task}:power_law\nparams: {{exponent: 1.0}}\ngrid: {{depth: [1, 2, 4]}}\n")
    words = (str(sweep), "--store", folder.root, "--executor")
    helped = call("run", "--help")
    assert "--nice-level" in helped and "local, ray, slurm or toy" in helped
    assert "one by one" not in call("plan", *words, "toy")
    refused = call("run", *words, "local", "--nice-level", "7", code=2)
    assert "--nice-level needs --executor toy, but --executor is local" in refused
    assert "toy workers end with their launch" in call("run", *words, "toy", "--detach", code=2)
    assert "one by one, 7 times nice" in call("run", *words, "toy", "--nice-level", "7")
    assert committed(folder) == [(1, 1.0), (2, 0.5), (4, 0.25)]
    assert "s: 2 TOY jobs waiting (Play 2), 1 running" in call("status", "--store", folder.root)
    assert "launches of s stop" in call("cancel", "s", "--store", folder.root)
