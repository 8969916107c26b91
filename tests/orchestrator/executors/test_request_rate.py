"""How often a launch asks a controller, by a clock that is moved."""

import itertools
from collections import Counter
from collections.abc import Callable
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from depthrate.orchestrator.attempts.record import Attempt
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.executors.base import AttemptEnd
from depthrate.orchestrator.executors.errors import QueueFullError
from depthrate.orchestrator.executors.slurm import executor as executor_module
from depthrate.orchestrator.executors.slurm import submitter, watched_jobs
from depthrate.orchestrator.executors.slurm.executor import SlurmExecutor
from depthrate.orchestrator.executors.slurm.request_rate import RequestBudget
from depthrate.slurm.cluster_limits import JobGroup, Limits, Partition, SubmitLimits
from depthrate.slurm.errors import SubmitLimitError
from depthrate.slurm.job_states import JobState
from depthrate.slurm.profile import Profile
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState
from tests.support.clock import Clock
from tests.support.launches import spec_of

LIMITS = Limits("lab", 101, 1000, {"main": Partition("main", True, True, None, 8, 16.0, 0, 4)})


def looks_in(budget: RequestBudget, clock: Clock, seconds: int, took_s: float = 0.01, **given: Any) -> list[float]:
    """Return the times at which a launch polls if it polls whenever it may."""
    looks = []
    answered = given.pop("has_answered", True)
    for _ in range(seconds * 5):
        clock.now += 0.2
        if budget.may_poll(**given):
            looks.append(clock.now)
            budget.record_poll(took_s, has_answered=answered)
    return looks


def busiest_minute(poll_times: list[float]) -> int:
    """Return the most questions that any minute had."""
    return max(sum(begin <= at < begin + 60 for at in poll_times) for begin in poll_times)


@pytest.mark.parametrize(("poll_s", "is_news_due", "most"), [(None, False, 4), (None, True, 6), (30.0, True, 2)])
def test_no_minute_has_more_looks_than_six(poll_s: float | None, is_news_due: bool, most: int) -> None:
    clock = Clock()
    looks = looks_in(RequestBudget(clock, poll_s), clock, 300, is_news_due=is_news_due)
    assert busiest_minute(looks) <= most and len(looks) >= 300 / (poll_s or 15) - 1


def test_expected_changes_are_polled_at_once() -> None:
    clock = Clock()
    budget = RequestBudget(clock)
    assert len(looks_in(budget, clock, 110)) == 8
    clock.now += 3  # 8 s after the last
    assert not budget.may_poll() and budget.may_poll(is_news_due=True)
    budget.record_poll(0.1, has_answered=True)
    assert not budget.may_poll(is_news_due=True), "polls are at least five seconds apart"
    clock.now += 5
    assert budget.may_poll(is_news_due=True)


def test_a_count_of_jobs_is_a_question_too() -> None:
    clock = Clock()
    budget = RequestBudget(clock)
    poll_times = []
    for second in range(300):
        clock.now = float(second)
        if second % 31 == 0:
            budget.record_count()
            poll_times.append(clock.now)
        if budget.may_poll(is_news_due=True):
            budget.record_poll(0.1, has_answered=True)
            poll_times.append(clock.now)
    assert busiest_minute(poll_times) <= 6


@pytest.mark.parametrize("how", [{"has_answered": False}, {"took_s": 6.0}])
def test_failing_controller_is_polled_less(how: dict[str, Any]) -> None:
    clock = Clock()
    budget = RequestBudget(clock)
    looks = looks_in(budget, clock, 600, **how)
    gaps = [after - before for before, after in itertools.pairwise(looks)]
    assert len(looks) <= 6 and gaps == sorted(gaps) and gaps[0] > 29
    clock.now = looks[-1] + 1000
    assert budget.may_poll()
    budget.record_poll(0.1, has_answered=True)
    assert len(looks_in(budget, clock, 60)) >= 4, "it is well again"


class Cluster:
    """A cluster that accepts six jobs, runs their packs of 5 s one after another, and counts requests."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self.clock, self.store, self.sbatches, self.num_jobs = clock, store, 0, 0
        self.squeues: list[float] = []
        self.ends: dict[str, float] = {}
        self.packs: dict[str, float] = {}
        """Attempt -> time of its end, for attempts that have not ended."""

    def submit(self, profile: Any, name: str, folder: Path, function: Any, arguments: Any, exclude: Any) -> list[str]:
        self.sbatches += 1
        if sum(end > self.clock() for end in self.ends.values()) + len(arguments) > 6:
            raise SubmitLimitError("AssocMaxSubmitJobLimit")
        ids = [f"{self.sbatches}_{index}" for index in range(len(arguments))]
        for job_id, packs in zip(ids, arguments, strict=True):
            ends = [self.clock() + 1.0 + 5.0 * number for number in range(1, len(packs) + 1)]
            self.packs |= {AttemptSpec.from_json(pack).attempt_id: end for pack, end in zip(packs, ends, strict=True)}
            self.ends[job_id] = ends[-1] + 0.5
        self.num_jobs += len(ids)
        return ids

    def run(self) -> None:
        """Write down which packs have ended."""
        for name in [name for name, end in self.packs.items() if end <= self.clock()]:
            del self.packs[name]
            fields: dict[str, Any] = {"attempt_id": name, "sweep": "s", "pack_id": name, "trial_ids": [name]}
            Attempt(**fields, device="cpu", state=AttemptState.DONE, started_at=100.0, ended_at=105.0).write(self.store)

    def squeue(self, arrays: Any) -> dict[str, JobState]:
        self.squeues.append(self.clock())
        phase: Callable[[float], str] = lambda end: "RUNNING" if end > self.clock() else "COMPLETED"  # noqa: E731
        return {job: JobState(phase(end), 0, "n1") for job, end in self.ends.items()}

    def count(self) -> int:
        self.squeues.append(self.clock())
        return sum(end > self.clock() for end in self.ends.values())


@pytest.mark.parametrize("estimated_s", [None, 5.0])
def test_200_packs_in_six_jobs(folder: Store, monkeypatch: pytest.MonkeyPatch, estimated_s: float | None) -> None:
    """A launch that submits whenever it may, as the driver does: at most 6 squeue and 2 sbatch a minute."""
    clock = Clock()
    cluster = Cluster(clock, folder)
    monkeypatch.setattr(watched_jobs, "squeue_states", cluster.squeue)
    monkeypatch.setattr(submitter, "submit_array", cluster.submit)
    monkeypatch.setattr(JobGroup, "count", lambda group: Counter({getuser(): cluster.count()}))
    monkeypatch.setattr(executor_module.time, "sleep", lambda seconds: None)
    profile = Profile(job_min=0, grace_s=0)
    executor = SlurmExecutor(profile, LIMITS, folder, "s", clock=clock, submit_limits=SubmitLimits({JobGroup(): 6}))
    names = [f"20260101T000000_{number:012d}" for number in range(200)]
    left = [spec_of(name, pack_id=name, trial_ids=[name], estimated_s=estimated_s) for name in names]
    ended: list[AttemptEnd] = []
    while len(ended) < 200:
        try:
            if left:
                executor.submit(left)
                left = []
        except QueueFullError as error:
            left = list(error.unsubmitted)
        cluster.run()
        ended += executor.poll(0)
        clock.now += 0.5
    assert {end.attempt_id for end in ended} == set(names)
    minutes = clock() / 60
    print(f"{minutes:.1f} min, {len(cluster.squeues)} squeue, {cluster.sbatches} sbatch, {cluster.num_jobs} jobs")
    assert busiest_minute(cluster.squeues) <= 6 and cluster.sbatches <= 2 * minutes
    assert clock() < 1.5 * 200 * 5 / 6, "nor does it wait for long with room to spare"
