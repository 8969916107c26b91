"""The README tells the truth: its sweep, its Python, its commands and its queries work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from depthrate.orchestrator.cli import app

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_snippets_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook, sweep_in_python, own_task = blocks("python")
    Path("my_task.py").write_text(own_task)
    Path("my_sweep.py").write_text(sweep_in_python)
    Path("own.yaml").write_text(
        "name: own\ntask: ./my_task.py:power_law\ngrid: {depth: [2, 4, 8, 16]}\nseeds: 4\nfit: [{metric: nc1}]\n"
    )
    assert "nc1" in invoke("run", "own.yaml", "--workers", "1")
    namespace: dict[str, object] = {}
    exec(notebook.replace("depthrate.open(", "frame = depthrate.open("), namespace)
    assert list(namespace["frame"]["depth"]) == [2, 4, 8, 16]  # type: ignore[index]
    assert "50 trials" in invoke("plan", "my_sweep.py:wd")


def test_the_sweep_file_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wd.yaml").write_text(blocks("yaml")[0])
    assert "wd: 75 trials" in invoke("plan", "wd.yaml")
    fit, tuned = blocks("yaml")[1:3]
    Path("fit.yaml").write_text(
        "name: f\ntask: collapse\nparams: {arch: rn1}\ngrid: {depth: [2, 3], width: [16, 32]}\n" + fit
    )
    assert "f: 4 trials" in invoke("plan", "fit.yaml")
    Path("tuned.yaml").write_text(tuned)
    assert "search: 5 studies of 20 proposals" in invoke("plan", "tuned.yaml")


def test_the_first_screen() -> None:
    lines = README.splitlines()
    commands = [block.strip() for block in blocks("bash")]
    assert len(lines[2]) > 50 and all("\n" not in command for command in commands[:2])
    assert commands[0].endswith("depthrate run quickstart") and "&& pytest" in commands[1]
    assert lines.index("```text") < 20


def test_every_command_is_documented() -> None:
    for command in app.registered_commands:
        name = command.name or command.callback.__name__  # type: ignore[union-attr]
        assert f"depthrate {name}" in README, name
