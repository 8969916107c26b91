"""A store that others write does not choose whose code is executed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from tests_rows import commit
from typer.testing import CliRunner

from depthrate.orchestrator.cli import find_sweep
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.launch.plan import check_sweep
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.files.store import Store
from depthrate.sweeps.sweep_file import load_sweep
from depthrate.tasks import user_module

LAW = """
from pathlib import Path
import depthrate

Path(__file__).with_name("executed").touch()

@depthrate.task(version=1)
def law(*, depth: int):
    return {"metrics": [{"layer": depth, "nc1": 1 / depth}]}
"""
ME, COLLEAGUE = 1000, 1001


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task, a sweep, and a store in which it was launched and committed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "law.py").write_text(LAW)
    content = {"name": "s", "task": "./law.py:law", "grid": {"depth": [2, 3, 4]}, "fit": [{"metric": "nc1"}]}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(content))
    checked, store = check_sweep(load_sweep("s.yaml")), Store("store")
    write_spec(store, "s", checked.sweep.spec_hash(), checked.sweep.spec(), [each.trial_id for each in checked.trials])
    for number, trial in enumerate(checked.trials):
        commit(store, f"20260101T000000_{number:012d}", [trial.trial_id], sweep="s", params=dict(trial.params))
    (tmp_path / "executed").unlink()
    user_module._run_file.cache_clear()  # whoever loads the task executes its file again
    return tmp_path


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*arguments, "--store", "store"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize(
    "words", [["fit", "s"], ["report", "s", "-o", "r.html"], ["debug", "1"], ["export", "s", "sqlite:///x.db"]]
)
def test_a_file_of_another_user_is_executed_only_by_who_names_its_sweep(
    words: list[str], launched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: ME)
    monkeypatch.setattr(find_sweep, "_owner_of", lambda path: COLLEAGUE)
    code, output = call(*words)
    assert code == 2 and f"{launched / 'law.py'}, which belongs to another user (id {COLLEAGUE})" in output
    assert not (launched / "executed").exists()
    if words[0] != "debug":
        assert call(words[0], "s.yaml", *words[2:])[0] == (2 if words[0] == "export" else 0)
        assert (launched / "executed").exists()


@pytest.mark.parametrize(("me", "owner"), [(ME, ME), (ME, find_sweep.ROOT), (find_sweep.ROOT, COLLEAGUE), (ME, None)])
def test_ones_own_and_the_systems_files_are_executed(
    me: int, owner: int | None, launched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: me)
    monkeypatch.setattr(find_sweep, "_owner_of", lambda path: owner)
    assert call("fit", "s")[0] == 0 and (launched / "executed").exists()


def test_status_executes_nothing(launched: Path) -> None:
    assert call("status")[0] == 0 and call("logs", "")[0] == 0
    assert not (launched / "executed").exists()
