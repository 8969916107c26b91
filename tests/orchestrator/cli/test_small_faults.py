"""Faults that cost little and annoyed much: what could have been known before, and what is no failure."""

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from depthrate.orchestrator.attempts.record import Attempt
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.launch.launch import delete_checkpoints
from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.orchestrator.worker.context import StopFlag, WorkerContext
from depthrate.orchestrator.worker.pruning import Pruning
from depthrate.storage.files.data_folder import worker_data_folder
from depthrate.storage.files.json_objects import read_with_digest
from depthrate.storage.files.store import Store, StoreError
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.load import sweep_of_spec
from depthrate.tasks.interface import TaskError
from tests.support.here import TINY
from tests.support.launches import IdleExecutor, clock_of, drive, job_options, plan_of_depths, spec_of

OWN_TASKS = Path(__file__).parents[2] / "support/own_tasks.py"


@pytest.mark.parametrize("where", ["nc1 > 0 and depth in (2, 3)", "weight_decay > 0", "status = 'ok'"])
def test_filter_over_any_column(where: str) -> None:
    check_sweep(sweep_of_spec({**TINY, "fit": [{"metric": "nc1", "where": where}]}))


@pytest.mark.parametrize("task", ["./a\0b.py:f", "./a\x1bb.py:f", "a\0b", "pack\0age:f"])
def test_task_name_without_valid_characters(task: str, tmp_path: Path) -> None:
    with pytest.raises((TaskError, SweepError), match="unprintable characters"):
        check_sweep(sweep_of_spec({**TINY, "task": task}, folder=tmp_path))


@pytest.mark.slow
def test_undeletable_checkpoint_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, store = tmp_path / "s.yaml", str(tmp_path / "store")
    sweep.write_text(f"name: s\ntask: {OWN_TASKS}:power_law\ngrid: {{depth: [2, 3]}}\n")

    def refuse(self: Store, path: str) -> None:
        if path.startswith("checkpoints/"):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(Store, "delete", refuse)
    result = CliRunner().invoke(app, ["run", str(sweep), "--store", store, "--workers", "1"])
    assert result.exit_code == 0 and "all 2 trials are committed" in result.output


def test_a_full_disk_is_called_one(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Store) -> None:
        raise StoreError(f"store {self.url!r} cannot be written: [Errno 28] No space left on device")

    monkeypatch.setattr(Store, "check_writable", full)
    outcome = drive(plan_of_depths(folder, 1), folder, IdleExecutor(), clock=clock_of(5.0))
    assert "No space left on device" in outcome.failures[0].error


def test_rays_folder_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from depthrate.orchestrator.executors.ray import session

    given: dict[str, Any] = {}
    monkeypatch.setattr(session.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(session.ray, "init", lambda **options: given.update(options))
    ray_session = session.Session(address=None, workers=1)
    ray_session.connect()
    outer = Path(given["_temp_dir"]).parent
    try:
        assert stat.S_IMODE(os.stat(outer).st_mode) == 0o700 and outer.name.startswith("dr-ray-")
    finally:
        ray_session._clean_up()
    assert not outer.exists()


def test_only_checkpoints_that_are_there_are_deleted(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an object store each costs a request or two, and a large sweep has a hundred thousand packs."""
    for pack_id in ("p7", "p8"):
        folder.write(f"checkpoints/{pack_id}/pack.json", b"")
    deleted, delete = list[str](), Store.delete
    monkeypatch.setattr(Store, "delete", lambda self, path: (deleted.append(path), delete(self, path)))
    delete_checkpoints((f"p{number}" for number in range(1000) if number != 8), folder)
    assert deleted == ["checkpoints/p7"] and list(folder.list("checkpoints")) == ["checkpoints/p8/pack.json"]


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_checkpoint_time_is_per_pack(folder: Store, ahead_s: float) -> None:
    """Whatever became of the clock since the attempt began, and whatever else it ran before this pack."""
    job = spec_of(trial_ids=["t1"], params=[{}], options=job_options(folder))
    attempt = Attempt(attempt_id="a", sweep="s", pack_id="p", trial_ids=["t1"], device="cpu")
    attempt.started_at = time.time() + ahead_s
    WorkerContext(folder, job, worker_data_folder(""), attempt, StopFlag(), ["t1"], Pruning(job)).save_checkpoint(
        b"state"
    )
    assert 0 <= read_with_digest(folder.read("checkpoints/p/pack.json"))["wall_s"] < 60
