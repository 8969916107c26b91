"""The context of a pack: what its checkpoints record."""

import time

import pytest

from depthrate.orchestrator.attempts.record import Attempt, read_attempt
from depthrate.orchestrator.worker.context import StopFlag, WorkerContext
from depthrate.orchestrator.worker.pruning import Pruning
from depthrate.storage.attempts.heartbeats import write_heartbeats
from depthrate.storage.files.data_folder import worker_data_folder
from depthrate.storage.files.json_objects import read_with_digest
from depthrate.storage.files.store import Store
from tests.support.clock import Clock
from tests.support.launches import attempt_of, job_options, spec_of


def test_seconds_per_step_are_of_one_trial(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the time before the first step, as when a checkpoint was loaded, and without earlier trials."""
    clock, attempt, job = Clock(), attempt_of(), spec_of(options=job_options(folder))
    monkeypatch.setattr("depthrate.orchestrator.worker.context.time.monotonic", clock)
    context = WorkerContext(folder, job, worker_data_folder(""), attempt, StopFlag(), ["t"], Pruning(job))
    steps = [(60.0, 500, None), (0.5, 501, None), (0.5, 502, 0.5), (1.0, 504, 0.5), (9.0, 1, 0.5), (2.0, 2, 2.0)]
    for seconds, step, expected in steps:
        clock.now += seconds
        context.progress(step, 600)
        assert (attempt.step, attempt.step_s) == (step, expected)
    attempt.beat(folder)
    write_heartbeats(folder, "s", "n", {"a": {"heartbeat_at": time.time() + 1.0, "step_s": 3.0}})
    record = read_attempt(folder, "s", "a")
    assert record is not None and record["step_s"] == 3.0, "of the latest heartbeat"


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_checkpoint_time_is_per_pack(folder: Store, ahead_s: float) -> None:
    """Whatever became of the clock since the attempt began, and whatever else it ran before this pack."""
    job = spec_of(trial_ids=["t1"], params=[{}], options=job_options(folder))
    attempt = Attempt(attempt_id="a", sweep="s", pack_id="p", trial_ids=["t1"], device="cpu")
    attempt.started_at = time.time() + ahead_s
    data, pruning = worker_data_folder(""), Pruning(job)
    WorkerContext(folder, job, data, attempt, StopFlag(), ["t1"], pruning).save_checkpoint(b"state")
    assert 0 <= read_with_digest(folder.read("checkpoints/p/pack.json"))["wall_s"] < 60
