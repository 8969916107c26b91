"""The driver with real worker processes: retries, splits, killed workers, peer launches, partial packs."""

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.attempts.record import read_attempt
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.cli.launch_output import plan_summary
from depthrate.orchestrator.executors.base import AttemptEnd
from depthrate.orchestrator.executors.errors import SubmitRateError
from depthrate.orchestrator.launch.driver import Driver
from depthrate.orchestrator.launch.launch_plan import check_sweep, make_plan
from depthrate.storage.files.json_objects import with_digest
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.sweeps.load import sweep_of_spec
from tests.support.clock import Clock
from tests.support.launches import (
    OWN_TASKS,
    IdleExecutor,
    attempt_of,
    committed,
    drive,
    drive_task,
    job_options,
    plan_of,
    plan_of_depths,
    raw_rows,
    states,
)
from tests.support.tests_rows import commit

STEADY = OWN_TASKS.with_name("steady_task.py")


@pytest.mark.slow
def test_code_error_is_reported_at_once(folder: Store) -> None:
    outcome = drive_task(folder, "misspelt", grid={"depth": [2, 3, 4]})
    (failure,) = outcome.failures
    assert failure.error.startswith("AttributeError:") and states(folder).count("failed") == 1
    assert [depth for depth, _ in committed(folder)] == [2, 4]


@pytest.mark.slow
def test_halving_spares_what_is_committed(folder: Store) -> None:
    outcome = drive_task(
        folder, "forgetful", params={"flag": str(Path(folder.root).parent / "flag")}, grid={"depth": list(range(1, 17))}
    )
    assert not outcome.failures and len(committed(folder)) == 16 and raw_rows(folder) == 16


@pytest.mark.slow
def test_missing_table_is_not_retried(folder: Store) -> None:
    outcome = drive_task(folder, "wrong", params={"depth": 2})
    assert "task returned list for a trial, expected a mapping" in outcome.failures[0].error
    assert states(folder) == ["failed"]


@pytest.mark.slow
def test_equal_errors_stop_the_launch(folder: Store) -> None:
    outcome = drive_task(folder, "wrong", grid={"depth": list(range(1, 40))}, workers=1)
    assert outcome.stopped_early and 3 <= len(outcome.failures) < 10


@pytest.mark.slow
def test_live_peers_keep_their_packs(folder: Store) -> None:
    trial_ids = [trial.trial_id for trial in plan_of(folder, grid={"depth": [2, 3]}).checked.trials]
    other = attempt_of("other", trial_ids=trial_ids, host="elsewhere")
    other.heartbeat_at = time.time() - 57  # three seconds from counting as dead
    other.write(folder)
    started = time.monotonic()
    assert not drive_task(folder, "power_law", grid={"depth": [2, 3]}).failures
    assert time.monotonic() - started > 2 and len(committed(folder)) == 2
    assert json.loads(folder.read("attempts/sweep=s/other.json"))["state"] == "lost"


@pytest.mark.slow
def test_concurrent_launches_share_work(folder: Store, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    spec = {"params": {"trace": str(trace), "steps": 5}, "grid": {"depth": [2, 3, 5, 8, 13, 21]}}
    both = threading.Barrier(2)

    def launch() -> None:
        both.wait()
        assert not drive_task(folder, f"{STEADY}:steady", workers=2, **spec).failures

    with ThreadPoolExecutor(2) as pool:
        for launched in [pool.submit(launch) for _ in range(2)]:
            launched.result()
    steps = trace.read_text().splitlines()
    assert len(steps) == len(set(steps)) == 30 and raw_rows(folder) == 6 and states(folder) == ["done"] * 6
    assert not folder.list("claims")


def test_checkpointed_packs_are_formed_again(folder: Store) -> None:
    params = {"arch": "rn1", "depth": 2, "samples_per_class": 20}
    checked = check_sweep(sweep_of_spec({"name": "s", "task": "collapse", "params": params, "seeds": 4}))
    (pack,) = make_plan(checked, folder).packs
    folder.write(f"checkpoints/{pack.pack_id}/pack.json", with_digest({"trial_ids": pack.trial_ids[:3]}))
    folder.write("checkpoints/torn/pack.json", b"{")
    packs = make_plan(checked, folder).packs
    assert {tuple(p.trial_ids) for p in packs} == {tuple(pack.trial_ids[:3]), tuple(pack.trial_ids[3:])}
    assert packs[0].pack_id == pack.pack_id
    assert (
        plan_summary(make_plan(checked, folder))
        == "s: 4 trials, 0 done, 4 to run in 2 packs, 1 of them from a checkpoint"
    )


@pytest.mark.slow
def test_many_small_trials_are_committed_in_few_files(folder: Store) -> None:
    spec = {"params": {"noise": 0.1}, "grid": {"depth": [2, 3, 5, 8, 13]}, "seeds": 20}
    outcome = drive_task(folder, "power_law", workers=2, **spec)
    assert not outcome.failures and len(committed(folder)) == 100
    assert len(folder.list("trials")) < 50, "some 12, more the busier this machine is"


def test_traceless_worker_blames_the_store(folder: Store) -> None:
    """Each retry is delayed, and the message names the possible causes."""
    executor, clock = IdleExecutor(), Clock(step_s=0.5)
    outcome = drive(plan_of_depths(folder, 1), folder, executor, clock=clock)
    assert "its node could not write to the store, or has another store at this path" in outcome.failures[0].error
    assert len(executor.submitted_ids) == 4 and clock() > 2.5 * (2 + 4 + 8)


@pytest.mark.parametrize("is_first", [True, False])
def test_an_attempt_that_was_given_up_commits_late(folder: Store, is_first: bool) -> None:
    """The attempt's node was cut off and kept computing: the earlier commit is visible and each trial appears once."""

    class CutOff(IdleExecutor):
        def submit(self, jobs: Sequence[AttemptSpec]) -> None:
            super().submit(jobs)
            if len(self.submitted_ids) == 1:
                attempt_of(self.submitted_ids[0], trial_ids=jobs[0].trial_ids).write(folder)
            else:  # the first is given up, and the second runs
                for attempt_id, is_late in zip(self.submitted_ids, (True, False), strict=True):
                    hour, value = (1, 1.0) if is_late is is_first else (2, 2.0)
                    commit(folder, attempt_id, jobs[0].trial_ids, hour=hour, value=value)

        def poll(self, timeout_s: float) -> list[AttemptEnd]:
            ends = super().poll(timeout_s)
            if len(self.submitted_ids) > 1:
                return ends
            death = "job 1 ended as NODE_FAIL on n2"
            return [AttemptEnd(end.attempt_id, death, FailureKind.NODE_LOST, node="n2") for end in ends]

    executor = CutOff()
    outcome = drive(plan_of_depths(folder, 1), folder, executor)
    assert not outcome.failures and len(executor.submitted_ids) == 2
    late, again = executor.submitted_ids
    counts = late if is_first else again
    results = results_of(folder)
    assert results.sql("select attempt_id from trials").fetchall() == [(counts,)]
    assert results.sql("select distinct attempt_id from metrics").fetchall() == [(counts,)]
    assert raw_rows(folder) == 2, "both are there, and one is seen"
    assert set(results.sql("select state from attempts").fetchall()) == {("done",)}, "it is no longer recorded as lost"
    assert not plan_of_depths(folder, 1).packs


def test_cancellation_submits_nothing_more(folder: Store) -> None:
    class Cancelled(IdleExecutor):
        capacity = 2

        def poll(self, timeout_s: float) -> list[AttemptEnd]:
            if len(self.jobs) == 2:  # the other one needs a while
                cancelled = self.jobs.pop(0)
                return [AttemptEnd(cancelled.attempt_id, "job 7_1 was cancelled", FailureKind.CANCELLED)]
            for job in self.jobs:
                commit(folder, job.attempt_id, job.trial_ids)
            ends = super().poll(timeout_s)
            return [AttemptEnd(end.attempt_id, record=read_attempt(folder, "s", end.attempt_id)) for end in ends]

    executor, plan = Cancelled(), plan_of_depths(folder, 4)
    outcome = drive(plan, folder, executor)
    assert outcome.cancelled and outcome.interrupted and not outcome.failures and not outcome.stopped_early
    assert len(executor.submitted_ids) == 2 and raw_rows(folder) == 1
    assert len(make_plan(check_sweep(plan.checked.sweep), folder, workers=4).packs) == 3, "the peer launch continues"
    assert states(folder) == ["done"], "a pack that was not started is no attempt"


@pytest.mark.parametrize("has_jobs", [True, False])
def test_halves_share_no_memory_at_the_same_time(folder: Store, has_jobs: bool) -> None:
    class Small(IdleExecutor):
        capacity, most = 8, 0

        def poll(self, timeout_s: float) -> list[AttemptEnd]:
            self.most = max(self.most, sum(not job.shares_memory for job in self.jobs))
            fits = {job.attempt_id: len(job.trial_ids) == 1 for job in self.jobs}
            for job in self.jobs:
                if fits[job.attempt_id]:
                    assert job.shares_memory is False
                    commit(folder, job.attempt_id, job.trial_ids)
            kinds = {True: FailureKind.WORKER_LOST, False: FailureKind.OUT_OF_MEMORY}
            return [
                AttemptEnd(
                    end.attempt_id,
                    None if fits[end.attempt_id] else "out of memory",
                    kinds[fits[end.attempt_id]],
                    record=read_attempt(folder, "s", end.attempt_id),
                )
                for end in super().poll(timeout_s)
            ]

    executor = Small()
    executor.outlives_driver = has_jobs
    outcome = drive(plan_of(folder, f"{STEADY}:hungry", params={"depth": 2}, seeds=4), folder, executor)
    assert not outcome.failures and raw_rows(folder) == 4
    assert executor.most == (4 if has_jobs else 1)


@pytest.mark.parametrize("depths", [[2], [2, 3, 4, 5, 6, 7, 8, 9]])
def test_slow_node_is_found_among_packs_of_one_shape(
    folder: Store, caplog: pytest.LogCaptureFixture, depths: list[int]
) -> None:
    """Deeper networks take longer on any node."""

    class Cluster(IdleExecutor):
        capacity, num_nodes = 4, 4

        def poll(self, timeout_s: float) -> list[AttemptEnd]:
            ends = []
            for number, end in enumerate(super().poll(timeout_s), start=1):
                commit(folder, end.attempt_id, trial_ids := self.trial_ids[end.attempt_id])
                record = {"state": AttemptState.DONE, "trial_ids": trial_ids, "step_s": 0.5 if number == 2 else 0.1}
                ends.append(AttemptEnd(end.attempt_id, record=record, node=f"n{number}"))
            return ends

        def submit(self, jobs: Sequence[AttemptSpec]) -> None:
            super().submit(jobs)
            self.trial_ids = {job.attempt_id: job.trial_ids for job in jobs}

    plan = plan_of(folder, params={"noise": 0.1}, grid={"depth": depths}, workers=16, seeds=16 // len(depths))
    drive(plan, folder, Cluster())
    reports = [text for text in caplog.messages if text.startswith("node n2 is 5.0 times slower")]
    assert len(plan.packs) == 16 and len(reports) == (1 if len(depths) == 1 else 0), caplog.messages


@pytest.mark.parametrize("checkpoints", [0, 2])
def test_interruption_names_a_checkpoint_only_if_there_is_one(
    folder: Store, caplog: pytest.LogCaptureFixture, checkpoints: int
) -> None:
    class Restless(IdleExecutor):
        def poll(self, timeout_s: float) -> list[AttemptEnd]:
            state = AttemptState.INTERRUPTED if len(self.submitted_ids) == 1 else AttemptState.DONE
            record = {"state": state, "host": "n1", "checkpoints": checkpoints, "trial_ids": []}
            return [AttemptEnd(end.attempt_id, record=record) for end in super().poll(timeout_s)]

    caplog.set_level("INFO", "depthrate")
    drive(plan_of_depths(folder, 1), folder, Restless())
    (text,) = [text for text in caplog.messages if "interrupted" in text]
    assert text == f"1 pack on n1 interrupted{', checkpointed' if checkpoints else ''} and requeued"


def test_detached_launch_waits_for_overflow(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(IdleExecutor):
        capacity = 10

        def submit(self, jobs: Sequence[AttemptSpec]) -> None:
            super().submit(jobs[:1])
            if len(jobs) > 1:
                raise SubmitRateError("sbatch is called 6 times per minute at most", jobs[1:])

    executor, clock, watch = Slow(), Clock(), lambda progress: None
    monkeypatch.setattr("depthrate.orchestrator.launch.driver.time.sleep", lambda seconds: clock.sleep(10.0))
    driver = Driver(plan_of_depths(folder, 4), folder, executor, job_options(folder), watch, clock)
    detached = driver.detach()
    assert len(executor.submitted_ids) == 4 == detached.submitted and not detached.not_submitted


def test_unplanned_ends_are_ignored(folder: Store) -> None:
    """A scheduler still has jobs of an earlier launch whose packs are committed or were submitted again."""

    class Talkative(IdleExecutor):
        def poll(self, timeout_s: float) -> list[AttemptEnd]:
            return [AttemptEnd("20260101T000000_000000000000"), *super().poll(timeout_s)]

    plan = plan_of(folder, "wrong", params={"depth": 2})
    assert len(drive(plan, folder, Talkative(), clock=Clock(step_s=100.0)).failures) == 1


def test_each_of_many_failures_is_compared_once(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """With quadratic cost, a hundred thousand attempts would keep the driver busy for days."""

    class Odd(IdleExecutor):
        def poll(self, timeout_s: float) -> list[AttemptEnd]:
            record = {"state": AttemptState.FAILED, "error_kind": FailureKind.TABLE, "pack_id": "p"}
            record |= {"error": "odd " * len(self.submitted_ids)}
            return [AttemptEnd(end.attempt_id, record=record) for end in super().poll(timeout_s)]

    compared = list[str]()
    monkeypatch.setattr(
        "depthrate.orchestrator.launch.failed_packs.error_pattern", lambda error: compared.append(error) or error
    )
    plan = plan_of_depths(folder, 40)
    outcome = drive(plan, folder, Odd())
    assert len(outcome.failures) == len(plan.packs) == len(compared) == 40 and not outcome.stopped_early
