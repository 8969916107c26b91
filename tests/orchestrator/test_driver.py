"""The driver with real worker processes: retries, halving, deaths, other launches, partial packs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from outcomes import committed, raw_rows, states
from tests_rows import commit

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.api.planning import plan_sentence
from depthrate.orchestrator.attempts.record import Attempt, read_attempt
from depthrate.orchestrator.executors.base import Executor, JobEnd, PackJob, SubmitRateError
from depthrate.orchestrator.executors.local import LocalExecutor
from depthrate.orchestrator.executors.options import JobOptions
from depthrate.orchestrator.launch.driver import Driver
from depthrate.orchestrator.launch.outcome import Outcome
from depthrate.orchestrator.launch.plan import Plan, check_sweep, make_plan
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.sweeps.load import sweep_of_spec

OWN_TASKS = Path(__file__).parents[1] / "support/own_tasks.py"
STEADY = OWN_TASKS.with_name("steady_task.py")


def drive(store: Store, task: str, workers: int = 1, **spec: Any) -> Outcome:
    where = task if ":" in task else f"{OWN_TASKS}:{task}"
    checked = check_sweep(sweep_of_spec({"name": "s", "task": where, **spec}))
    plan = make_plan(checked, store, workers=workers)
    executor = LocalExecutor(workers)
    options = JobOptions(store=store.root, data="", device="cpu", checkpoint_seconds=30, git_sha=None, git_dirty=None)
    try:
        return Driver(plan, store, executor, options, lambda progress: None).run()
    finally:
        executor.close()


@pytest.mark.slow
def test_a_users_own_task(folder: Store) -> None:
    outcome = drive(folder, "power_law", grid={"depth": [2, 4]}, params={"exponent": 1.0})
    assert not outcome.failures and committed(folder) == [(2, 0.5), (4, 0.25)]
    assert results_of(folder).sql("select distinct task from trials").fetchall() == [("own_tasks:power_law",)]
    assert folder.list("checkpoints") == {}


@pytest.mark.slow
def test_an_exception_is_tried_once_on_one_machine_and_spares_its_pack(folder: Store) -> None:
    outcome = drive(folder, "fails", grid={"depth": [2, 3, 4]})
    assert [depth for depth, _ in committed(folder)] == [2, 4], "the other trials of the pack are committed"
    (failure,) = outcome.failures
    assert failure.error == "RuntimeError: depth 3 is cursed" and len(failure.pack.trials) == 1
    assert states(folder).count("failed") == 1 and raw_rows(folder) == 2
    trace = results_of(folder).sql("select traceback from attempts where state = 'failed' limit 1").fetchall()[0][0]
    assert "is cursed" in trace and "trial " in trace


@pytest.mark.slow
def test_an_error_of_the_code_is_reported_at_once(folder: Store) -> None:
    outcome = drive(folder, "misspelt", grid={"depth": [2, 3, 4]})
    (failure,) = outcome.failures
    assert failure.error.startswith("AttributeError:") and states(folder).count("failed") == 1
    assert [depth for depth, _ in committed(folder)] == [2, 4]


@pytest.mark.slow
def test_halving_spares_what_is_committed(folder: Store) -> None:
    outcome = drive(
        folder, "forgetful", params={"flag": str(Path(folder.root).parent / "flag")}, grid={"depth": list(range(1, 17))}
    )
    assert not outcome.failures and len(committed(folder)) == 16 and raw_rows(folder) == 16


@pytest.mark.slow
def test_a_killed_worker_resumes_from_its_checkpoint(folder: Store, tmp_path: Path) -> None:
    outcome = drive(folder, "dies_once", params={"depth": 2, "flag": str(tmp_path / "flag")})
    assert not outcome.failures and committed(folder) == [(2, 5.0)] and states(folder) == ["done", "lost"]
    error = results_of(folder).sql("select error from attempts where state = 'lost'").fetchall()[0][0]
    assert "killed by signal 9" in error
    assert folder.list("checkpoints") == {}


@pytest.mark.slow
def test_a_task_that_returns_no_table_is_not_retried(folder: Store) -> None:
    outcome = drive(folder, "wrong", params={"depth": 2})
    assert "task returned list for a trial; return a mapping" in outcome.failures[0].error
    assert states(folder) == ["failed"]


@pytest.mark.slow
def test_the_same_error_from_many_packs_stops_the_launch(folder: Store) -> None:
    outcome = drive(folder, "wrong", grid={"depth": list(range(1, 40))}, workers=1)
    assert outcome.stopped_early and 3 <= len(outcome.failures) < 10


@pytest.mark.slow
def test_packs_of_another_live_launch_are_left_to_it(folder: Store) -> None:
    spec = {"name": "s", "task": f"{OWN_TASKS}:power_law", "grid": {"depth": [2, 3]}}
    trial_ids = [trial.trial_id for trial in check_sweep(sweep_of_spec(spec)).trials]
    other = Attempt(attempt_id="other", sweep="s", pack_id="p", trial_ids=trial_ids, device="cpu", host="elsewhere")
    other.heartbeat_at = time.time() - 57  # three seconds from counting as dead
    other.write(folder)
    started = time.monotonic()
    assert not drive(folder, "power_law", grid={"depth": [2, 3]}).failures
    assert time.monotonic() - started > 2 and len(committed(folder)) == 2
    assert json.loads(folder.read("attempts/sweep=s/other.json"))["state"] == "lost"


@pytest.mark.slow
def test_two_launches_at_the_same_moment_share_the_work(folder: Store, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    spec = {"params": {"trace": str(trace), "steps": 5}, "grid": {"depth": [2, 3, 5, 8, 13, 21]}}
    both = threading.Barrier(2)

    def launch() -> None:
        both.wait()
        assert not drive(folder, f"{STEADY}:steady", workers=2, **spec).failures

    with ThreadPoolExecutor(2) as pool:
        for launched in [pool.submit(launch) for _ in range(2)]:
            launched.result()
    steps = trace.read_text().splitlines()
    assert len(steps) == len(set(steps)) == 30 and raw_rows(folder) == 6 and states(folder) == ["done"] * 6
    assert not folder.list("claims")


def test_checkpointed_packs_are_formed_again(folder: Store) -> None:
    spec = {"name": "s", "task": "collapse", "params": {"arch": "rn1", "depth": 2, "samples_per_class": 20}, "seeds": 4}
    checked = check_sweep(sweep_of_spec(spec))
    (pack,) = make_plan(checked, folder).packs
    folder.write(f"checkpoints/{pack.pack_id}/pack.json", json.dumps({"trial_ids": pack.trial_ids[:3]}).encode())
    folder.write("checkpoints/torn/pack.json", b"{")
    packs = make_plan(checked, folder).packs
    assert {tuple(p.trial_ids) for p in packs} == {tuple(pack.trial_ids[:3]), tuple(pack.trial_ids[3:])}
    assert packs[0].pack_id == pack.pack_id
    assert (
        plan_sentence(make_plan(checked, folder))
        == "s: 4 trials, 0 done, 4 to run in 2 packs, 1 of which from a checkpoint"
    )


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_many_small_trials_are_committed_in_few_files(folder: Store, workers: int) -> None:
    outcome = drive(
        folder, "power_law", workers=workers, params={"noise": 0.1}, grid={"depth": [2, 3, 5, 8, 13]}, seeds=20
    )
    assert not outcome.failures and len(committed(folder)) == 100
    assert len(folder.list("trials")) <= 16


class Mute(Executor):
    """An executor whose workers see another store, or none: what they do leaves no trace here."""

    device, capacity, workers = "cpu", 1, 1

    def __init__(self) -> None:
        self.given: list[str] = []
        self._running: list[str] = []

    def submit(self, jobs: Sequence[PackJob]) -> None:
        self._running = [job.attempt_id for job in jobs]
        self.given += self._running

    def sentence(self) -> str:
        return "no machine"

    def running(self) -> dict[str, str]:
        return {}

    def poll(self, timeout_s: float) -> list[JobEnd]:
        ended, self._running = self._running, []
        return [JobEnd(attempt_id) for attempt_id in ended]

    def stop(self) -> None: ...

    def close(self) -> None: ...


def test_a_worker_that_leaves_no_trace_is_the_stores_doing(folder: Store) -> None:
    """So there is a pause before each new try, and the message names what to look at."""
    spec = {"name": "s", "task": f"{OWN_TASKS}:power_law", "grid": {"depth": [2]}}
    plan, executor, now = make_plan(check_sweep(sweep_of_spec(spec)), folder), Mute(), [0.0]
    options = JobOptions(store=folder.root, data="", device="cpu", checkpoint_seconds=30, git_sha=None, git_dirty=None)

    def clock() -> float:
        now[0] += 0.5
        return now[0]

    outcome = Driver(plan, folder, executor, options, lambda progress: None, clock=clock).run()
    assert "the store could not be written there, or what is there is another one" in outcome.failures[0].error
    assert len(executor.given) == 4 and now[0] > 2.5 * (2 + 4 + 8)


@pytest.mark.parametrize("is_first", [True, False])
def test_an_attempt_that_was_given_up_commits_late(folder: Store, is_first: bool) -> None:
    """Its node was cut off, and it computed on: the earlier commit counts, whole, and the trial once."""

    class CutOff(Mute):
        def submit(self, jobs: Sequence[PackJob]) -> None:
            super().submit(jobs)
            if len(self.given) == 1:
                Attempt(
                    attempt_id=self.given[0], sweep="s", pack_id="p", trial_ids=jobs[0].trial_ids, device="cpu"
                ).write(folder)
            else:  # the first is given up, and the second runs
                for attempt_id, is_late in zip(self.given, (True, False), strict=True):
                    hour, value = (1, 1.0) if is_late is is_first else (2, 2.0)
                    commit(folder, attempt_id, jobs[0].trial_ids, hour=hour, value=value)

        def poll(self, timeout_s: float) -> list[JobEnd]:
            ends = super().poll(timeout_s)
            if len(self.given) > 1:
                return ends
            death = "job 1 ended as NODE_FAIL on n2"
            return [JobEnd(end.attempt_id, death, FailureKind.NODE_LOST, node="n2") for end in ends]

    spec = {"name": "s", "task": f"{OWN_TASKS}:power_law", "grid": {"depth": [2]}}
    plan, executor = make_plan(check_sweep(sweep_of_spec(spec)), folder), CutOff()
    options = JobOptions(store=folder.root, data="", device="cpu", checkpoint_seconds=30, git_sha=None, git_dirty=None)
    outcome = Driver(plan, folder, executor, options, lambda progress: None).run()
    assert not outcome.failures and len(executor.given) == 2
    late, again = executor.given
    counts = late if is_first else again
    found = results_of(folder)
    assert found.sql("select attempt_id from trials").fetchall() == [(counts,)]
    assert found.sql("select distinct attempt_id from metrics").fetchall() == [(counts,)]
    assert raw_rows(folder) == 2, "both are there, and one is seen"
    assert set(found.sql("select state from attempts").fetchall()) == {("done",)}, (
        "it is no longer on the books as lost"
    )
    assert not make_plan(check_sweep(sweep_of_spec(spec)), folder).packs


def of_depths(store: Store, count: int) -> tuple[Plan, JobOptions]:
    """Return a plan of so many packs, and the options of their jobs."""
    spec = {"name": "s", "task": f"{OWN_TASKS}:power_law", "grid": {"depth": list(range(2, 2 + count))}}
    options = JobOptions(store=store.root, data="", device="cpu", checkpoint_seconds=30, git_sha=None, git_dirty=None)
    return make_plan(check_sweep(sweep_of_spec(spec)), store, workers=count), options


def test_after_a_cancellation_nothing_is_submitted_and_what_runs_goes_on(folder: Store) -> None:
    class Cancelled(Mute):
        capacity = 2

        def poll(self, timeout_s: float) -> list[JobEnd]:
            ends = super().poll(timeout_s)
            if len(ends) == 2:  # the other one needs a while
                self._running = [ends[1].attempt_id]
                how = "job 7_1 was cancelled"
                return [JobEnd(ends[0].attempt_id, how, FailureKind.CANCELLED)]
            for end in ends:
                commit(folder, end.attempt_id, next(job.trial_ids for job in jobs if job.attempt_id == end.attempt_id))
            return [JobEnd(end.attempt_id, record=read_attempt(folder, "s", end.attempt_id)) for end in ends]

        def submit(self, submitted: Sequence[PackJob]) -> None:
            super().submit(submitted)
            jobs.extend(submitted)

    jobs: list[PackJob] = []
    plan, options = of_depths(folder, 4)
    outcome = Driver(plan, folder, Cancelled(), options, lambda progress: None).run()
    assert outcome.cancelled and outcome.interrupted and not outcome.failures and not outcome.stopped_early
    assert len(jobs) == 2 and raw_rows(folder) == 1
    assert len(make_plan(check_sweep(plan.checked.sweep), folder, workers=4).packs) == 3, "another launch goes on"
    assert states(folder) == ["done"], "what had not begun is no attempt"


def test_a_detached_launch_waits_until_it_may_submit_the_rest(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Mute):
        capacity = 10

        def submit(self, jobs: Sequence[PackJob]) -> None:
            super().submit(jobs[:1])
            if len(jobs) > 1:
                raise SubmitRateError("sbatch is called 6 times per minute at most", jobs[1:])

    now = [0.0]
    monkeypatch.setattr("depthrate.orchestrator.launch.driver.time.sleep", lambda seconds: now.append(0.0))
    plan, options = of_depths(folder, 4)
    executor = Slow()
    driver = Driver(plan, folder, executor, options, lambda progress: None, clock=lambda: 10.0 * len(now))
    detached = driver.detach()
    assert len(executor.given) == 4 == detached.on_their_way and not detached.not_submitted


def test_what_ends_but_is_not_of_the_plan_is_nobodys_business(folder: Store) -> None:
    """A scheduler still has jobs of an earlier launch whose packs are committed, or were submitted once more."""

    class Talkative(Mute):
        def poll(self, timeout_s: float) -> list[JobEnd]:
            return [JobEnd("20260101T000000_000000000000"), *super().poll(timeout_s)]

    spec = {"name": "s", "task": f"{OWN_TASKS}:wrong", "params": {"depth": 2}}
    plan, now = make_plan(check_sweep(sweep_of_spec(spec)), folder), iter(range(0, 10_000, 100))
    options = JobOptions(store=folder.root, data="", device="cpu", checkpoint_seconds=30, git_sha=None, git_dirty=None)
    driver = Driver(plan, folder, Talkative(), options, lambda progress: None, clock=lambda: next(now))
    assert len(driver.run().failures) == 1


def test_each_of_many_failures_is_compared_once(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those before it, a hundred thousand of them would keep the driver busy for days."""

    class Odd(Mute):
        def poll(self, timeout_s: float) -> list[JobEnd]:
            record = {"state": AttemptState.FAILED, "error_kind": FailureKind.TABLE, "pack_id": "p"}
            return [
                JobEnd(end.attempt_id, record=record | {"error": "odd " * len(self.given)})
                for end in super().poll(timeout_s)
            ]

    compared = list[str]()
    monkeypatch.setattr(
        "depthrate.orchestrator.launch.failed_packs.error_pattern", lambda error: compared.append(error) or error
    )
    spec = {"name": "s", "task": f"{OWN_TASKS}:power_law", "grid": {"depth": list(range(2, 42))}}
    plan = make_plan(check_sweep(sweep_of_spec(spec)), folder, workers=40)
    options = JobOptions(store=folder.root, data="", device="cpu", checkpoint_seconds=30, git_sha=None, git_dirty=None)
    outcome = Driver(plan, folder, Odd(), options, lambda progress: None).run()
    assert len(outcome.failures) == len(plan.packs) == len(compared) == 40 and not outcome.stopped_early
