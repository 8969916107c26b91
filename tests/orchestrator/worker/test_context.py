"""The context of a pack: what its checkpoints record."""

import time

import pytest

from depthrate.orchestrator.attempts.record import Attempt
from depthrate.orchestrator.worker.context import StopFlag, WorkerContext
from depthrate.orchestrator.worker.pruning import Pruning
from depthrate.storage.files.data_folder import worker_data_folder
from depthrate.storage.files.json_objects import read_with_digest
from depthrate.storage.files.store import Store
from tests.support.launches import job_options, spec_of


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_checkpoint_time_is_per_pack(folder: Store, ahead_s: float) -> None:
    """Whatever became of the clock since the attempt began, and whatever else it ran before this pack."""
    job = spec_of(trial_ids=["t1"], params=[{}], options=job_options(folder))
    attempt = Attempt(attempt_id="a", sweep="s", pack_id="p", trial_ids=["t1"], device="cpu")
    attempt.started_at = time.time() + ahead_s
    data, pruning = worker_data_folder(""), Pruning(job)
    WorkerContext(folder, job, data, attempt, StopFlag(), ["t1"], pruning).save_checkpoint(b"state")
    assert 0 <= read_with_digest(folder.read("checkpoints/p/pack.json"))["wall_s"] < 60
