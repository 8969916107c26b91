"""Launches of the tests: a plan, its job options, a driver with an executor of the test, and what a launch left."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.attempts.options import JobOptions
from depthrate.orchestrator.attempts.record import Attempt
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.executors.base import AttemptEnd, Executor
from depthrate.orchestrator.executors.local import LocalExecutor
from depthrate.orchestrator.launch.driver import Driver
from depthrate.orchestrator.launch.launch_plan import Plan, check_sweep, make_plan
from depthrate.orchestrator.launch.outcome import Outcome, Watcher
from depthrate.storage.files.format import FORMAT_FILE
from depthrate.storage.files.store import Store
from depthrate.sweeps.load import sweep_of_spec

OWN_TASKS = Path(__file__).with_name("own_tasks.py")


def job_options(store: Store | None = None, **options: Any) -> JobOptions:
    """Options of jobs on one core; those that a test is about are given."""
    basic = {"data": "", "device": "cpu", "checkpoint_seconds": 30, "git_sha": None, "git_dirty": None}
    return JobOptions(**{"store": "" if store is None else store.address, **basic, **options})


def spec_of(attempt_id: str = "a", **fields: Any) -> AttemptSpec:
    """An attempt of one pack of one trial; what a test is about is given."""
    usual = {"sweep": "s", "task": "t", "pack_id": "p", "trial_ids": ["t"], "params": [], "options": job_options()}
    return AttemptSpec(attempt_id=attempt_id, **(usual | fields))


def attempt_of(attempt_id: str = "a", **fields: Any) -> Attempt:
    """The state of an attempt of one trial; what a test is about is given."""
    usual = {"sweep": "s", "pack_id": "p", "trial_ids": ["t"], "device": "cpu"}
    return Attempt(attempt_id=attempt_id, **(usual | fields))


def plan_of(store: Store, task: str = "power_law", workers: int = 1, **spec: Any) -> Plan:
    """Plan a sweep named s of a task in own_tasks.py, or of one that is given with its file."""
    where = task if ":" in task else f"{OWN_TASKS}:{task}"
    return make_plan(check_sweep(sweep_of_spec({"name": "s", "task": where, **spec})), store, workers=workers)


def plan_of_depths(store: Store, count: int) -> Plan:
    """Plan so many packs of one trial each."""
    return plan_of(store, workers=count, grid={"depth": list(range(2, 2 + count))})


class IdleExecutor(Executor):
    """An executor that only notes what it is given: a test says what becomes of it."""

    device, capacity, workers = "cpu", 1, 1

    def __init__(self) -> None:
        self.jobs: list[AttemptSpec] = []
        """That were submitted and have not ended."""
        self.submitted_ids: list[str] = []

    def summary(self) -> str:
        """Say what this is."""
        return "no machine"

    def submit(self, jobs: Sequence[AttemptSpec]) -> None:
        """Note jobs."""
        self.jobs += jobs
        self.submitted_ids += [job.attempt_id for job in jobs]

    def running(self) -> dict[str, str]:
        """Return nothing: no attempt is known to have started."""
        return {}

    def poll(self, timeout_s: float) -> list[AttemptEnd]:
        """End all at once."""
        ended, self.jobs = self.jobs, []
        return [AttemptEnd(job.attempt_id) for job in ended]

    def stop(self, *, is_hopeless: bool = False) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def write_missing_format(store: Store) -> None:
    """Write the store's format, as a launch does first."""
    if store.size(FORMAT_FILE) is None:
        store.write_format()


def drive(
    plan: Plan,
    store: Store,
    executor: Executor | None = None,
    watch: Watcher = lambda progress: None,
    clock: Callable[[], float] = time.monotonic,
    workers: int = 1,
) -> Outcome:
    """Run a plan to its end, with worker processes unless an executor is given."""
    executor = executor or LocalExecutor(workers)
    write_missing_format(store)
    try:
        return Driver(plan, store, executor, job_options(store, device=executor.device), watch, clock).run()
    finally:
        executor.close()


def drive_task(store: Store, task: str, workers: int = 1, **spec: Any) -> Outcome:
    """Run a task's sweep to its end with worker processes."""
    return drive(plan_of(store, task, workers, **spec), store, workers=workers)


def committed(store: Store) -> list[tuple[Any, ...]]:
    """(depth, nc1) of each committed trial."""
    return results_of(store).sql("select depth, nc1 from results order by depth, nc1").fetchall()


def raw_rows(store: Store) -> int:
    """Rows of all trials files as they lie there: a view would hide a trial that was run twice."""
    return sum(pq.read_metadata(store.full_path(path)).num_rows for path in store.list("trials"))


def states(store: Store) -> list[str]:
    """The states of all attempts."""
    return sorted(row[0] for row in results_of(store).sql("select state from attempts").fetchall())
