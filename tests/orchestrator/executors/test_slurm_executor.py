"""The SLURM executor with a scripted scheduler: states, waits, retries and requeues."""

import itertools
import logging
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from depthrate.orchestrator.attempts.node_health import NodeHealth
from depthrate.orchestrator.attempts.record import (
    Attempt,
    classify_failure,
    lost_attempt,
    nth_attempt_id,
    read_attempt,
    write_lost,
)
from depthrate.orchestrator.attempts.retry_policy import RULES
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.executors.base import AttemptEnd
from depthrate.orchestrator.executors.errors import QueueFullError, SubmitError
from depthrate.orchestrator.executors.slurm import (
    excluded_nodes,
    job_reports,
    outcomes,
    request_rate,
    submitter,
    watched_jobs,
)
from depthrate.orchestrator.executors.slurm import executor as executor_module
from depthrate.orchestrator.executors.slurm import folders as finished_folders
from depthrate.orchestrator.executors.slurm.executor import SlurmExecutor
from depthrate.orchestrator.executors.slurm.folders import check_jobs_folder
from depthrate.orchestrator.executors.slurm.job import _Bundle, requeue_job
from depthrate.orchestrator.executors.slurm.outcomes import list_unreported_ends
from depthrate.orchestrator.executors.slurm.submissions import jobs_folder, read_submissions
from depthrate.orchestrator.monitor.cost import span_s
from depthrate.orchestrator.monitor.status import sweep_status
from depthrate.slurm import in_job
from depthrate.slurm.cluster_limits import Limits, Partition
from depthrate.slurm.command import run_command
from depthrate.slurm.errors import SlurmError
from depthrate.slurm.job_states import SETUP_FAILED_CODE, JobState
from depthrate.slurm.profile import Profile
from depthrate.slurm.script import FAILED_STARTS
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind
from tests.support.launches import spec_of
from tests.support.tests_rows import commit

LIMITS = Limits("lab", 3, 100, {"main": Partition("main", True, True, None, 8, 16.0, 0, 4)})


class Scheduler:
    """A scheduler with scripted answers."""

    def __init__(self) -> None:
        self.queue: dict[str, JobState] = {}
        self.accounting: dict[str, JobState] = {}
        self.is_away = self.refuses = False
        self.arrays: list[list[list[str]]] = []
        self.names: dict[str, str] = {}
        self.excluded: list[str] = []
        self.kept_away: dict[str, list[str]] = {}
        self.cancelled: list[str] = []

    def keep_away(self, arrays: list[str], nodes: list[str]) -> None:
        self.kept_away |= dict.fromkeys(arrays, nodes)

    def cancel(self, job_ids: list[str]) -> None:
        self.cancelled += job_ids

    def squeue(self, job_ids: Any) -> dict[str, JobState]:
        if self.is_away:
            raise SlurmError("squeue failed: Unable to contact slurm controller")
        arrays = {job_id.partition("_")[0] for job_id in job_ids}
        return {job: state for job, state in self.queue.items() if job.partition("_")[0] in arrays}

    def unfinished(self, names: Any, timeout_s: float) -> set[str]:
        if self.is_away:
            raise SlurmError("squeue failed: Unable to contact slurm controller")
        alive = {job.partition("_")[0] for job, state in self.queue.items() if state.phase != "over"}
        return {name for name, array in self.names.items() if name in names and array in alive}

    def sacct(self, arrays: Any) -> dict[str, JobState]:
        if not self.accounting:
            raise SlurmError("sacct is not on the PATH")
        return self.accounting

    def submit(
        self, profile: Any, name: str, folder: Path, function: Any, arguments: list[list[str]], exclude: list[str]
    ) -> list[str]:
        if self.refuses:
            raise SlurmError("sbatch refused the jobs: no")
        self.arrays.append(arguments)
        self.excluded = list(exclude)
        self.names[name] = str(len(self.arrays))
        ids = [f"{len(self.arrays)}_{index}" for index in range(len(arguments))]
        self.queue |= {job_id: JobState("PENDING", 0) for job_id in ids}
        return ids


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    made = Scheduler()
    monkeypatch.setattr(watched_jobs, "squeue_states", made.squeue)
    monkeypatch.setattr(finished_folders, "unfinished_names", made.unfinished)
    monkeypatch.setattr(watched_jobs, "sacct_states", made.sacct)
    monkeypatch.setattr(submitter, "submit_array", made.submit)
    monkeypatch.setattr(excluded_nodes, "exclude_nodes", made.keep_away)
    monkeypatch.setattr(executor_module, "cancel_jobs", made.cancel)
    return made


@pytest.fixture
def executor(folder: Store, scheduler: Scheduler) -> SlurmExecutor:
    return SlurmExecutor(Profile(grace_s=0), LIMITS, folder, "s", clock=Clock())


class Clock:
    """A clock that jumps ahead at every poll."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 2.5
        return self.now


class LaggingStore(Store):
    """A view of a folder that refreshes every `lag_s` seconds of a clock."""

    def __init__(self, store: Store, lag_s: float, clock: Clock):
        super().__init__(store.url)
        self._lag_s, self._lag_clock = lag_s, clock
        self._seen: dict[tuple[str, str], tuple[float, Any]] = {}

    def _as_seen(self, what: str, path: str, look: Callable[[], Any]) -> Any:
        when, answer = self._seen.get((what, path), (-1e9, None))
        if self._lag_clock.now - when >= self._lag_s:
            try:
                answer = look()
            except OSError as error:
                answer = error
            self._seen[what, path] = (self._lag_clock.now, answer)
        if isinstance(answer, OSError):
            raise answer
        return answer

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        return bytes(self._as_seen("read", path, lambda: Store.read(self, path, max_bytes)))

    def list(self, folder: str = "") -> dict[str, int]:
        return dict(self._as_seen("list", folder, lambda: Store.list(self, folder)))


def jobs(*names: str) -> list[AttemptSpec]:
    return [spec_of(f"20260101T000000_{name * 12}", pack_id=name, trial_ids=[f"t{name}"]) for name in names]


def submit_one(executor: SlurmExecutor) -> AttemptSpec:
    (job,) = jobs("a")
    executor.submit([job])
    return job


def record(store: Store, attempt_id: str, state: str, heartbeat_ago_s: float = 0.0, **fields: Any) -> None:
    made = Attempt(attempt_id=attempt_id, sweep="s", pack_id="p", trial_ids=["t"], device="cpu", state=state, **fields)
    made.heartbeat_at = time.time() - heartbeat_ago_s
    made.write(store)


def ends_of(
    executor: SlurmExecutor, looks: int = 30, until: Callable[[list[AttemptEnd]], bool] = bool
) -> list[AttemptEnd]:
    ends: list[AttemptEnd] = []
    for _ in range(looks):
        ends += executor.poll(0)
        if until(ends):
            break
    return ends


def test_arrays_are_split_and_kept_in_the_store(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    executor.submit(jobs("a", "b", "c"))
    assert [len(array) for array in scheduler.arrays] == [2, 1]
    stored = sorted(read_submissions(folder, ["s"]), key=lambda submission: submission.job_ids)
    assert [submission.job_ids for submission in stored] == [["1_0", "1_1"], ["2_0"]]
    assert [pack.pack_id for submission in stored for job in submission.packs for pack in job] == ["a", "b", "c"]


def test_plan_shows_the_job_name(
    executor: SlurmExecutor, folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    packs: list[Any] = jobs("a", "b")
    script = executor.details(packs, lambda pack: 1.0)["batch_script"]
    planned = re.search(r"--job-name=(\S+)", script)
    executor.submit(packs)
    (submission,) = read_submissions(folder, ["s"])
    assert planned is not None
    form = re.escape(planned[1]).replace("TIME_ID", r"\d{8}T\d{6}_[0-9a-f]{12}")
    assert re.fullmatch(form, submission.name)
    assert submission.folder.replace(submission.name, planned[1]) in script


def test_done_pack_needs_no_scheduler(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    job = submit_one(executor)
    scheduler.queue["1_0"] = JobState("RUNNING", 0, "n1")
    record(folder, job.attempt_id, "running")
    assert ends_of(executor, 3) == [] and executor.running() == {job.attempt_id: job.attempt_id}
    record(folder, job.attempt_id, "done")
    assert ends_of(executor) == [AttemptEnd(job.attempt_id, latest_id=job.attempt_id)]
    assert read_submissions(folder, ["s"]) == [] and executor.running() == {}


@pytest.mark.parametrize("state", ["done", "failed"])
def test_job_records_precede_the_controller(
    executor: SlurmExecutor, scheduler: Scheduler, folder: Store, state: str
) -> None:
    job = submit_one(executor)
    assert scheduler.queue["1_0"].phase == "waiting" and ends_of(executor, 3) == []
    record(folder, job.attempt_id, state)
    assert ends_of(executor) == [AttemptEnd(job.attempt_id, latest_id=job.attempt_id)]


def test_restarted_job_has_another_name(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    job = submit_one(executor)
    again = nth_attempt_id(job.attempt_id, 1)
    record(folder, job.attempt_id, "interrupted")
    scheduler.queue["1_0"] = JobState("PENDING", 1)
    assert ends_of(executor, 5) == [], "it is in the queue again"
    scheduler.queue["1_0"] = JobState("RUNNING", 1, "n2")
    record(folder, again, "running")
    ends_of(executor, 3)
    assert executor.running() == {job.attempt_id: again}
    record(folder, again, "done")
    assert ends_of(executor) == [AttemptEnd(job.attempt_id, latest_id=again)]


def test_a_heartbeat_outweighs_the_scheduler(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    job = submit_one(executor)
    scheduler.queue["1_0"] = JobState("NODE_FAIL", 0, "n1")
    record(folder, job.attempt_id, "running")
    assert ends_of(executor, 20) == [], "its node is unreachable, but the attempt runs and may commit"
    record(folder, job.attempt_id, "running", heartbeat_ago_s=50)
    (end,) = ends_of(executor)
    assert end.kind == "node_lost" and end.exit_message == "job 1_0 ended as NODE_FAIL on n1"


def test_unknown_job_is_lost_eventually(executor: SlurmExecutor, scheduler: Scheduler) -> None:
    submit_one(executor)
    del scheduler.queue["1_0"]
    assert ends_of(executor, 2) == [], "sacct is slow, squeue forgets"
    (end,) = ends_of(executor)
    assert end.kind == "worker_lost" and end.exit_message == "job 1_0 is gone"


def test_accounting_is_asked_for_what_the_queue_forgot(executor: SlurmExecutor, scheduler: Scheduler) -> None:
    executor.submit(jobs("a", "b"))
    scheduler.queue = {}
    scheduler.accounting = {"1_0": JobState("NODE_FAIL", None, "n1"), "1_1": JobState("OUT_OF_MEMORY", None, "n1")}
    ends = ends_of(executor, until=lambda ends: len(ends) == 2)
    assert [end.kind for end in ends] == ["node_lost", "out_of_memory"]


def test_packs_behind_others_had_no_time(scheduler: Scheduler, folder: Store) -> None:
    """The first timeout is requeued for free. Without counting, the pack would be requeued forever."""
    executor = SlurmExecutor(Profile(array_parallelism=1, job_min=60, grace_s=0), LIMITS, folder, "s", clock=Clock())
    first, behind = (replace(job, estimated_s=1.0) for job in jobs("a", "b"))
    executor.submit([first, behind])
    scheduler.queue = dict.fromkeys(scheduler.queue, JobState("TIMEOUT", 0, "n1"))
    record(folder, first.attempt_id, "interrupted", checkpoints=1)
    ends = {end.attempt_id: end for end in ends_of(executor, until=lambda ends: len(ends) == 2)}
    assert ends[first.attempt_id].exit_message is None and ends[behind.attempt_id].kind == "not_started"
    (silent,) = jobs("c")
    executor.submit([silent])
    scheduler.queue["2_0"] = JobState("TIMEOUT", 0, "n1")
    (end,) = ends_of(executor)
    assert end.kind == "timeout" and "ended as TIMEOUT on n1" in str(end.exit_message)


def test_early_time_limit_counts(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    job = submit_one(executor)
    scheduler.queue["1_0"] = JobState("COMPLETED", 0, "n1")
    record(folder, job.attempt_id, "interrupted", started_at=time.time() - 3000)
    (end,) = ends_of(executor)
    assert end.kind == "timeout" and "Increase walltime_min" in str(end.exit_message)


@pytest.mark.parametrize(
    ("ran_min", "checkpoints", "kind"), [(55, 0, "timeout"), (55, 3, "cut_off"), (5, 0, "cut_off")]
)
def test_no_checkpoint_within_the_time_limit(
    executor: SlurmExecutor, scheduler: Scheduler, folder: Store, ran_min: int, checkpoints: int, kind: str
) -> None:
    """It never checks for a stop request, so its job is killed. A pack that started late in a job had no chance."""
    job = submit_one(executor)
    scheduler.queue["1_0"] = JobState("TIMEOUT", 0, "n1")
    began = time.time() - 60 * ran_min - 60
    record(folder, job.attempt_id, "running", heartbeat_ago_s=50, started_at=began, checkpoints=checkpoints)
    (end,) = ends_of(executor)
    assert end.kind == kind
    if kind == "timeout":
        assert "job 1_0 reached its time limit of 60 min before the task saved anything" in str(end.exit_message)


def test_a_controller_that_is_away_ends_nothing(
    executor: SlurmExecutor, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    executor.submit(jobs("a"))
    scheduler.is_away = True
    with caplog.at_level(logging.WARNING):
        assert ends_of(executor, 50) == []
    assert caplog.text.count("cannot poll the SLURM queue") == 1, "said once"


def test_a_refusal_names_what_was_not_submitted(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    scheduler.refuses = True
    with pytest.raises(SubmitError, match="sbatch refused") as caught:
        executor.submit(jobs("a", "b", "c"))
    assert [job.pack_id for job in caught.value.unsubmitted] == ["a", "b", "c"] and not folder.list("jobs")


def test_a_node_that_only_fails_is_left_out(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    good, *bad = jobs("a", "b", "c", "d")
    minutes = itertools.count()
    health = NodeHealth(executor.num_nodes, clock=lambda: 60.0 * next(minutes))
    executor.submit([good])
    scheduler.queue["1_0"] = JobState("COMPLETED", 0, "n1")
    record(folder, good.attempt_id, "done", host="n1")
    (end,) = ends_of(executor)
    health.record_success(end.node)
    for number, job in enumerate(bad, start=2):
        executor.submit([job])
        scheduler.queue[f"{number}_0"] = JobState("NODE_FAIL", 0, "n2")
        (end,) = ends_of(executor)
        assert (end.kind, end.node, end.scheduler_facts.host, end.scheduler_facts.job_id) == (
            "node_lost",
            "n2",
            "n2",
            f"{number}_0",
        )
        health.record_failure(end.node, job.pack_id, FailureKind.NODE_LOST)
    assert health.unhealthy == ["n2"]
    executor.submit(jobs("w"))
    executor.exclude_nodes(health.excluded)
    assert scheduler.kept_away == {"5": ["n2"]}
    executor.submit(jobs("e"))
    assert scheduler.excluded == ["n2"]
    executor.submit([replace(job, avoid=["n3"]) for job in jobs("f")])
    assert scheduler.excluded == ["n2", "n3"], "where it has failed before"
    executor.submit([replace(job, avoid=["n1", "n3", "n4"]) for job in jobs("g")])
    assert scheduler.excluded == ["n2"], "it has failed everywhere"


def test_the_last_node_that_meets_the_keys_stays(scheduler: Scheduler, folder: Store) -> None:
    """Without it sbatch would refuse the jobs."""
    members = [Partition(f"n{i}", False, True, None, 8, 16.0, 0, 1, features=frozenset("ab"[i > 2])) for i in range(5)]
    partition = replace(LIMITS.partitions["main"], features=frozenset("ab"), nodes=5, members=tuple(members))
    limits = replace(LIMITS, partitions={"main": partition})
    executor = SlurmExecutor(Profile(constraint="b", exclude=("n0",)), limits, folder, "s", clock=Clock())
    executor.submit([replace(job, avoid=["n3"]) for job in jobs("a")])
    assert scheduler.excluded == ["n3"] and executor.num_nodes == 2
    executor.submit([replace(job, avoid=["n3", "n4"]) for job in jobs("b")])
    assert scheduler.excluded == [] and executor.num_nodes == 2


def test_broken_node_is_excluded_first(scheduler: Scheduler, folder: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Jobs that wait are kept away from it too, and no pack is charged: our program never ran."""
    executor = SlurmExecutor(Profile(exclude=("n9",), grace_s=200), LIMITS, folder, "s", clock=Clock())
    first, second, running, *_ = submitted = jobs("a", "b", "c", "d", "e")
    executor.submit(submitted)
    scheduler.queue |= dict.fromkeys(("1_0", "1_1"), JobState("FAILED", 0, "n2", exit_code=7))
    scheduler.queue["2_0"] = JobState("RUNNING", 0, "n1")
    record(folder, running.attempt_id, "running")
    assert ends_of(executor, 2) == [], "their records may not be visible yet"
    assert scheduler.kept_away == {"2": ["n2", "n9"], "3": ["n2", "n9"]}
    assert "node n2: 2 jobs ended before depthrate started" in caplog.text
    ends = ends_of(executor, 200)
    assert {end.attempt_id: end.kind for end in ends} == dict.fromkeys(
        (first.attempt_id, second.attempt_id), "not_begun"
    )
    assert RULES[FailureKind.NOT_BEGUN].retries >= 50 and not executor._start_failures.starts_nowhere([])
    executor.submit(jobs("f"))
    assert scheduler.excluded == ["n2"]


def test_failures_while_others_compute_are_a_nodes_doing(
    executor: SlurmExecutor, scheduler: Scheduler, folder: Store
) -> None:
    """A heartbeat on another node is sufficient evidence, even before any attempt finishes."""
    alive, *bad = jobs("a", "b", "c", "d")
    now = [0.0]
    health = NodeHealth(executor.num_nodes, clock=lambda: now[0])
    executor.submit([alive])
    scheduler.queue["1_0"] = JobState("RUNNING", 0, "n1")
    record(folder, alive.attempt_id, "running")
    ends_of(executor, 1)
    for number, job in enumerate(bad, start=2):
        for attempt_id, node in executor.nodes_by_attempt().items():
            health.record_start(node, attempt_id)
        now[0] += 10
        executor.submit([job])
        scheduler.queue[f"{number}_0"] = JobState("FAILED", 0, "n2")
        record(folder, job.attempt_id, "running", heartbeat_ago_s=50)
        (end,) = ends_of(executor)
        assert end.kind == "worker_lost"
        health.record_failure(end.node, job.pack_id, FailureKind.WORKER_LOST)
    assert health.unhealthy == ["n2"]


def test_failing_setup_lines_give_up(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    executor.submit(jobs("a", "b", "c", "d", "e"))
    scheduler.queue["1_0"] = JobState("FAILED", 0, "n1", exit_code=SETUP_FAILED_CODE)
    assert [end.kind for end in ends_of(executor)] == ["not_begun"], "one job is not enough"
    scheduler.queue["1_1"] = JobState("FAILED", 0, "n2", exit_code=SETUP_FAILED_CODE)
    scheduler.queue["2_0"] = JobState("FAILED", 0, "n2", exit_code=SETUP_FAILED_CODE)
    ends = ends_of(executor, until=lambda ends: len(ends) == 2)
    assert {end.kind for end in ends} == {"begins_nowhere"}
    executor.stop(is_hopeless=True)
    assert scheduler.cancelled == ["2_1", "3_0"] and executor.poll(0) == []


def test_a_file_system_that_lags_makes_nothing_lost(
    scheduler: Scheduler, folder: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Nodes see their own writes immediately, the driver half a minute later, as with cached attributes on NFS."""
    clock = Clock()
    seen_late = LaggingStore(folder, 30.0, clock)
    executor = SlurmExecutor(Profile(array_parallelism=1, job_min=60), LIMITS, seen_late, "s", clock=clock)
    running, unseen, committed = (replace(job, estimated_s=1.0) for job in jobs("a", "b", "c"))
    executor.submit([running, unseen, committed])
    scheduler.queue["1_0"] = JobState("RUNNING", 0, "n1")
    record(folder, running.attempt_id, "running", heartbeat_ago_s=50)
    executor._polls.next_at = 0
    assert executor.poll(0) == [] and list(executor.running()) == [running.attempt_id]
    for job in (unseen, running):
        record(folder, job.attempt_id, "done")
        commit(folder, job.attempt_id, job.trial_ids)
    commit(folder, f"20260101T000001_{'9' * 12}", committed.trial_ids)  # by another launch
    scheduler.queue["1_0"] = JobState("COMPLETED", 0, "n1")
    ends = {end.attempt_id: end for end in ends_of(executor, 100, until=lambda ends: len(ends) == 3)}
    assert [ends[job.attempt_id].exit_message for job in (unseen, running, committed)] == [None] * 3
    assert ends[committed.attempt_id].kind == "not_started" and "node" not in caplog.text
    for job in (unseen, running):
        write_lost(folder, lost_attempt(job.attempt_id, "s", None, kind=FailureKind.WORKER_LOST, error="gone"))
        stored = read_attempt(folder, "s", job.attempt_id)
        assert stored is not None and stored["state"] == "done", "the end in its record is never overwritten"


def test_end_written_since_the_last_poll_counts(
    executor: SlurmExecutor, scheduler: Scheduler, folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit_one(executor)
    scheduler.queue["1_0"] = JobState("NODE_FAIL", 0, "n1")
    record(folder, job.attempt_id, "running", heartbeat_ago_s=500)
    monkeypatch.setattr(outcomes, "read_attempt", lambda *_: {**(read_attempt(*_) or {}), "state": AttemptState.DONE})
    (end,) = ends_of(executor)
    assert end.exit_message is None and end.record is not None and end.record["state"] == "done"


def test_silent_pack_is_lost_after_grace(scheduler: Scheduler, folder: Store) -> None:
    clock = Clock()
    executor = SlurmExecutor(Profile(grace_s=90), LIMITS, folder, "s", clock=clock)
    job = submit_one(executor)
    scheduler.queue["1_0"] = JobState("NODE_FAIL", 0, "n1")
    record(folder, job.attempt_id, "running", heartbeat_ago_s=50)
    assert executor.poll(0) == []
    began = clock.now
    (end,) = ends_of(executor, 1000)
    assert end.kind == "node_lost" and 80 < clock.now - began < 200


def test_fresh_store_needs_no_grace(scheduler: Scheduler, folder: Store) -> None:
    clock = Clock()
    executor = SlurmExecutor(Profile(grace_s=90), LIMITS, folder, "s", clock=clock)
    job = submit_one(executor)
    scheduler.queue["1_0"] = JobState("RUNNING", 0, "n1")
    ends_of(executor, 3)  # reads the store while it is empty
    time.sleep(0.01)
    record(folder, job.attempt_id, "running")
    ends_of(executor, 6)
    assert executor.running()
    began = clock.now
    scheduler.queue["1_0"] = JobState("OUT_OF_MEMORY", 0, "n1", exit_code=0, signal=9)
    (end,) = ends_of(executor, 100)
    assert end.kind == "out_of_memory" and clock.now - began < 60 and "Increase mem_gb" in str(end.exit_message)


def test_earlier_starts_are_closed(
    executor: SlurmExecutor, scheduler: Scheduler, folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost attempts count against their node."""
    job = submit_one(executor)
    names = [nth_attempt_id(job.attempt_id, restart) for restart in range(3)]
    record(folder, names[0], "running", heartbeat_ago_s=50, host="n1", job_id="1_0", started_at=1004.0)
    record(folder, names[1], "running", heartbeat_ago_s=50, host="n2", job_id="1_0", started_at=2007.0)
    record(folder, names[2], "running", host="n3")
    starts = [
        JobState("NODE_FAIL", node="n1", started_at=1000.0, ended_at=1060.0),
        JobState("PREEMPTED", node="n2", started_at=2000.0, ended_at=2030.0),
    ]
    monkeypatch.setattr(outcomes, "earlier_starts", lambda job_ids: dict.fromkeys(job_ids, starts))
    scheduler.queue["1_0"] = JobState("RUNNING", 2, "n3")
    ends = ends_of(executor, 8)
    assert [(end.kind, end.node, end.latest_id) for end in ends] == [
        ("node_lost", "n1", names[0]),
        ("preempted", "n2", names[1]),
    ]
    assert job.attempt_id not in {end.attempt_id for end in ends}, "its job keeps running and is not resubmitted"
    stored = [read_attempt(folder, "s", name) for name in names]
    assert [entry and entry["state"] for entry in stored] == ["lost", "lost", "running"]
    assert stored[0] is not None
    assert stored[0]["ended_at"] == 1060.0
    assert "ended as NODE_FAIL on n1" in stored[0]["error"]
    assert stored[1] is not None and span_s(stored[1], time.time()) == 30.0, "as the accounting counts it"


def test_earlier_start_without_accounting_has_no_known_cause(
    executor: SlurmExecutor, scheduler: Scheduler, folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit_one(executor)
    again = nth_attempt_id(job.attempt_id, 1)
    record(folder, job.attempt_id, "running", heartbeat_ago_s=50, host="n1", job_id="1_0")
    record(folder, again, "running", host="n3")
    monkeypatch.setattr(outcomes, "earlier_starts", lambda job_ids: {name: [] for name in job_ids})
    scheduler.queue["1_0"] = JobState("RUNNING", 1, "n3")
    (end,) = ends_of(executor, 8)
    expected = "job 1_0 ended for an unknown cause on n1, and was restarted"
    assert (end.kind, end.exit_message) == ("preempted", expected), "a kind that counts against no node"


def test_scheduler_outranks_a_dying_worker(folder: Store) -> None:
    record(folder, "a", "interrupted", error="asked to stop")
    expected = "job 1_0 reached its time limit of 1 min. Increase walltime_min."
    there = read_attempt(folder, "s", "a")
    assert classify_failure(FailureKind.TIMEOUT, expected, there, folder) == ("timeout", expected)
    write_lost(folder, lost_attempt("a", "s", there, kind=FailureKind.TIMEOUT, error=expected))
    stored = read_attempt(folder, "s", "a")
    assert stored is not None and (stored["state"], stored["error"]) == ("lost", expected), "as logs and status show it"


def test_waiting_reasons_are_explained(
    executor: SlurmExecutor, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "depthrate")
    executor.submit(jobs("a", "b"))
    scheduler.queue = {job: JobState("PENDING", 0, reason="PartitionDown") for job in scheduler.queue}
    ends_of(executor, 2)
    (line,) = [text for text in caplog.messages if text.startswith("2 jobs waiting: PartitionDown. ")]
    assert "set another partition" in line
    assert executor.waiting_reasons == {"PartitionDown": 2}
    scheduler.queue = {job: JobState("TIMEOUT", 0, "n1") for job in scheduler.queue}
    executor.profile = replace(executor.profile, grace_s=60)
    executor._queue._grace_s = 60
    ends_of(executor, 3)
    assert any("ended as TIMEOUT (probably walltime_min was too short), waiting" in text for text in caplog.messages)


def test_a_failed_start_ends_before_slurm_lists_it(
    executor: SlurmExecutor, scheduler: Scheduler, folder: Store
) -> None:
    """The job keeps its node for `failed_start_s`, so SLURM still lists it as running."""
    executor.submit(jobs("a", "b"))
    scheduler.queue |= {"1_0": JobState("RUNNING", 1, "n1"), "1_1": JobState("RUNNING", 0, "n2")}
    (submission,) = read_submissions(folder, ["s"])
    reports = Path(submission.folder) / FAILED_STARTS
    reports.mkdir()
    for name in ("1_0-0", "1_1-0"):
        (reports / name).write_text("127 n2\nbash: python9: command not found\n")
    (end,) = ends_of(executor, 3)
    assert end.attempt_id == jobs("b")[0].attempt_id, "the report about 1_0 is of an earlier start"
    assert (end.kind, end.node) == (FailureKind.NOT_BEGUN, "n2")
    assert end.exit_message == "job 1_1 ended as FAILED on n2 with exit code 127: bash: python9: command not found"


def test_restarts_and_suspensions_are_reported(
    executor: SlurmExecutor, scheduler: Scheduler, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "depthrate")
    executor.submit(jobs("a", "b"))
    scheduler.queue |= {"1_0": JobState("RUNNING", 0, "n1"), "1_1": JobState("RUNNING", 0, "n2")}
    ends_of(executor, 3)
    starts = {"1_0": [JobState("PREEMPTED", node="n1")], "1_1": [JobState("NODE_FAIL", node="n2")]}
    monkeypatch.setattr(job_reports, "earlier_starts", lambda job_ids: {name: starts[name] for name in job_ids})
    executor.store.write("checkpoints/a/pack", b"")
    scheduler.queue |= {"1_0": JobState("PENDING", 1, reason="BeginTime"), "1_1": JobState("PENDING", 1)}
    ends_of(executor, 8)
    assert [text for text in caplog.messages if "requeued" in text] == [
        "1 job on n1 preempted, requeued and resuming from their checkpoints",
        "1 job on n2 lost with their node, requeued",
    ]
    scheduler.queue |= {"1_0": JobState("SUSPENDED", 1, "n1"), "1_1": JobState("SUSPENDED", 1, "n3")}
    ends_of(executor, 8)
    assert "2 jobs on n1, n3 suspended until SLURM resumes them" in caplog.messages
    assert len([text for text in caplog.messages if "requeued" in text]) == 2, "each restart is reported once"


@pytest.mark.parametrize(
    ("accounted", "restart", "expected"),
    [
        ("REQUEUED", 1, "requeued by themselves after SIGUSR2"),
        ("REQUEUED", 12, "requeued for an unknown cause"),  # the job's log is about an earlier restart
        (None, 2, "requeued for an unknown cause"),
        ("NODE_FAIL", 2, "requeued for an unknown cause"),  # the accounting does not have the last start yet
        ("NODE_FAIL", 1, "lost with their node, requeued"),
    ],
)
def test_causes_of_restarts_are_stated_only_if_known(
    executor: SlurmExecutor,
    scheduler: Scheduler,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    accounted: str | None,
    restart: int,
    expected: str,
) -> None:
    caplog.set_level(logging.INFO, "depthrate")
    monkeypatch.setenv("DEPTHRATE_WARNING_S", "60")
    monkeypatch.setattr(in_job, "seconds_left", lambda: 100.0)
    monkeypatch.setattr(in_job, "is_ending", lambda: False)
    monkeypatch.setattr(in_job, "requeue", lambda: False)
    requeue_job(signal.SIGUSR2, "1 pack resumes", has_progressed=True)
    submit_one(executor)
    (submission,) = read_submissions(executor.store, ["s"])
    (Path(submission.folder) / "1_0_0_log.err").write_text(f"2026-01-01 00:00:00 INFO {caplog.messages[0]}\n")
    scheduler.queue["1_0"] = JobState("RUNNING", restart - 1, "n1")
    ends_of(executor, 3)
    caplog.clear()
    starts = [] if accounted is None else [JobState(accounted, node="n1")]
    monkeypatch.setattr(job_reports, "earlier_starts", lambda job_ids: dict.fromkeys(job_ids, starts))
    scheduler.queue["1_0"] = JobState("PENDING", restart, "n1")
    ends_of(executor, 8)
    assert [text for text in caplog.messages if "requeued" in text] == [f"1 job on n1 {expected}"]


@pytest.mark.parametrize("path", ["/dev/null/jobs", "/proc/jobs", f"/tmp/{'x' * 300}"])
def test_an_impossible_folder_is_refused(folder: Store, path: str) -> None:
    with pytest.raises(SlurmError, match=f"folder of the jobs is {path}, which cannot be used"):
        check_jobs_folder(Profile(folder=path), folder, "s")


def test_a_possible_folder_is_left_as_it_was(folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    check_jobs_folder(Profile(folder="a/../new jobs/b"), folder, "s")
    assert sorted(tmp_path.iterdir()) == before
    assert jobs_folder(Profile(folder="a/../new jobs/b"), folder, "s") == tmp_path / "new jobs/b/s"


def test_time_limit_signal_is_reported(
    executor: SlurmExecutor, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """A controller waits for KillWait, and longer, until it calls that TIMEOUT."""
    caplog.set_level(logging.INFO, "depthrate")
    executor.submit(jobs("a", "b"))
    scheduler.queue["1_0"] = JobState("COMPLETING", 0, "n1", reason="TimeLimit")
    scheduler.queue["1_1"] = JobState("COMPLETING", 0, "n2")
    ends_of(executor, 3)
    assert "1 job on n1 ending: TimeLimit (probably walltime_min was too short)" in caplog.messages
    assert not [text for text in caplog.messages if "n2" in text], "that one just ends"


def test_overrun_is_reported_early(scheduler: Scheduler, folder: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "depthrate")
    executor = SlurmExecutor(Profile(grace_s=0, walltime_min=2), LIMITS, folder, "s", clock=Clock())
    executor.submit(jobs("a", "b"))
    scheduler.queue["1_0"] = JobState("RUNNING", 0, "n1", started_at=time.time() - 121)
    scheduler.queue["1_1"] = JobState("RUNNING", 0, "n2", started_at=time.time() - 60)
    ends_of(executor, 3)
    expected = "1 job on n1 over the time limit of 2 min and about to be killed. Increase walltime_min, or save"
    assert [text for text in caplog.messages if text.startswith(expected)], caplog.messages
    assert not [text for text in caplog.messages if "n2" in text]
    scheduler.queue["1_0"] = replace(scheduler.queue["1_0"], state="COMPLETING", reason="TimeLimit")
    ends_of(executor, 8)
    assert not [text for text in caplog.messages if "TimeLimit" in text], "that was said"
    caplog.clear()
    other = SlurmExecutor(Profile(grace_s=0, walltime_min=2), LIMITS, folder, "s", clock=Clock())
    other.adopt(read_submissions(folder, ["s"]), scheduler.queue)
    ends_of(other, 3)
    assert not [text for text in caplog.messages if "time limit" in text], "another cluster file may have given it more"


@pytest.mark.parametrize("why", ["it has had its time", "its pack saved its state to end", ""])
def test_expected_changes_precede_polling(
    scheduler: Scheduler, folder: Store, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    now, real = [0.0], time.time()
    executor = SlurmExecutor(Profile(grace_s=0, walltime_min=2), LIMITS, folder, "s", clock=lambda: now[0])
    job = submit_one(executor)
    scheduler.queue["1_0"] = JobState("RUNNING", 0, "n1", started_at=real if why == "it has had its time" else None)
    record(folder, job.attempt_id, "running")
    looked = []

    def squeue(arrays: Any) -> dict[str, JobState]:
        looked.append(now[0])
        return scheduler.squeue(arrays)

    monkeypatch.setattr(watched_jobs, "squeue_states", squeue)
    monkeypatch.setattr(watched_jobs.time, "time", lambda: real + now[0])
    while now[0] < 145:
        now[0] += 0.5
        executor.poll(0)
        if now[0] == 120 and why == "its pack saved its state to end":
            record(folder, job.attempt_id, "interrupted")
    assert len([at for at in looked if at < 16]) == 3, "new jobs may end in their first seconds"
    gaps = [after - before for before, after in itertools.pairwise(at for at in looked if at > 30)]
    assert (min(gaps) < 12) == bool(why)


def test_cancellation_is_known_at_once(scheduler: Scheduler, folder: Store) -> None:
    executor = SlurmExecutor(Profile(array_parallelism=1, job_min=60), LIMITS, folder, "s", clock=Clock())
    submitted = [replace(job, estimated_s=1.0) for job in jobs("a", "b", "c")]
    executor.submit(submitted)
    scheduler.queue["1_0"] = JobState("RUNNING", 0, "n1")
    record(folder, submitted[0].attempt_id, "running")
    ends_of(executor, 2)
    record(folder, submitted[0].attempt_id, "interrupted", checkpoints=1)
    scheduler.queue["1_0"] = JobState("CANCELLED", 0, "n1")
    ends = ends_of(executor)
    assert [end.kind for end in ends] == ["cancelled"] * 3, "also of packs that had not started"
    assert {end.exit_message for end in ends} == {"job 1_0 was cancelled on n1"}


def test_unwatched_deaths_are_reported(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    """After `--detach` no launch writes the end."""
    executor.submit([*jobs("a", "b"), *jobs("c", "d", "e")])
    now = time.time()
    scheduler.queue["1_0"] = JobState("FAILED", 0, "n1", exit_code=SETUP_FAILED_CODE, ended_at=now)
    scheduler.queue["1_1"] = JobState("FAILED", 0, "n2", exit_code=SETUP_FAILED_CODE, ended_at=now)
    scheduler.queue["2_0"] = JobState("FAILED", 0, "n1", exit_code=1, ended_at=now)
    scheduler.queue["2_1"] = JobState("FAILED", 0, "n1", exit_code=1, ended_at=now - 100)
    deaths = list_unreported_ends(folder, "s", read_submissions(folder, ["s"]), scheduler.queue)
    status = sweep_status("s", ["ta", "tb", "tc", "td", "te"], take_snapshot(folder), folder, deaths)
    assert not folder.list("attempts"), "polling writes nothing"
    states = ["failed", "failed", "pending", "failed", "pending"]
    assert list(status.states.values()) == states, "the third may still be heard of, the last waits"
    assert list(status.errors().values()) == [2, 1], "errors that differ only in job and node are one"


def test_what_a_job_printed_says_why(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    executor.submit(jobs("a", "b", "c"))
    printed = {
        "1_0": "slurmstepd: error: Exceeded job memory limit\n",
        "1_1": "bash: module: command not found\nsrun: error: n1\n",
        "2_0": "slurmstepd-n1: error: StepId=1.0 exceeded memory limit (899883008 > 838860800), being killed\n",
    }
    for submission in read_submissions(folder, ["s"]):
        for job_id in submission.job_ids:
            (Path(submission.folder) / f"{job_id}_0_log.err").write_text(printed[job_id])
    scheduler.queue = dict.fromkeys(printed, JobState("FAILED", 0, "n1"))
    scheduler.queue["2_0"] = JobState("FAILED", 0, "n1", exit_code=137, signal=9)
    memory, module_line, measured = ends_of(executor, until=lambda ends: len(ends) == 3)
    assert memory.kind == measured.kind == "out_of_memory"
    assert module_line.exit_message == "job 1_1 ended as FAILED on n1: bash: module: command not found"
    assert measured.exit_message == (
        "job 2_0 ended as FAILED on n1 by signal 9 (SIGKILL): out of memory, 0.838 of 0.781 GB used. "
        "Increase mem_gb, or use smaller packs."
    )


def test_cancelled_waiting_element(executor: SlurmExecutor, scheduler: Scheduler) -> None:
    """SLURM 22.05 lists it neither in squeue nor in sacct. A job that ran and is unknown may have any state."""
    executor.submit(jobs("a", "b", "c"))
    scheduler.queue["1_0"] = JobState("RUNNING", 0, "n1")
    assert ends_of(executor, 3) == []
    del scheduler.queue["1_1"], scheduler.queue["2_0"]
    ends = ends_of(executor, until=lambda ends: len(ends) == 2)
    assert {end.attempt_id[-1]: end.kind for end in ends} == {"b": "cancelled", "c": "worker_lost"}


def test_own_cancellations_are_not_the_user_s(executor: SlurmExecutor, scheduler: Scheduler) -> None:
    silent, waiting, other = jobs("a", "b", "c")
    executor.submit([silent, waiting, other])
    scheduler.queue["1_0"] = scheduler.queue["2_0"] = JobState("RUNNING", 0, "n1")
    record(executor.store, silent.attempt_id, "running")
    ends_of(executor, 3)
    assert not executor.terminate(silent.attempt_id, "no heartbeat")
    executor.stop(is_hopeless=True)
    assert scheduler.cancelled == ["1_0", "1_1"]
    scheduler.queue |= dict.fromkeys(scheduler.cancelled, JobState("CANCELLED", 0, "n1"))
    assert ends_of(executor, 20) == []


@pytest.mark.parametrize("how", ["hangs", "fails"])
def test_store_is_read_without_a_controller(
    executor: SlurmExecutor, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The end comes from the attempt's record, or from a commit without a record."""
    recorded, committed, running = jobs("a", "b", "c")
    executor.submit([recorded, committed, running])
    scheduler.queue |= dict.fromkeys(scheduler.queue, JobState("RUNNING", 0, "n1"))
    for job in (recorded, committed, running):
        record(executor.store, job.attempt_id, "running")
    ends_of(executor, 4)
    answered, scheduler.is_away = threading.Event(), how == "fails"
    if how == "hangs":
        monkeypatch.setattr(watched_jobs, "ANSWER_WAIT_S", 0.01)
        monkeypatch.setattr(watched_jobs, "squeue_states", lambda ids: answered.wait(60) and scheduler.squeue(ids))
    assert ends_of(executor, 10) == []
    record(executor.store, recorded.attempt_id, "done")
    commit(executor.store, f"20260101T000001_{'9' * 12}", committed.trial_ids)
    ends = ends_of(executor, until=lambda ends: len(ends) == 2)
    assert {end.attempt_id: end.kind for end in ends} == {
        recorded.attempt_id: "worker_lost",  # the kind of every end without another: its record has the state done
        committed.attempt_id: "not_started",
    }
    assert list(executor.running()) == [running.attempt_id]
    with pytest.raises(QueueFullError, match="does not answer"):
        executor.submit(jobs("d"))
    answered.set()
    scheduler.is_away = False
    scheduler.queue["2_0"] = JobState("OUT_OF_MEMORY", 0, "n1")
    record(executor.store, running.attempt_id, "running", heartbeat_ago_s=100)
    (end,) = ends_of(executor, 500)
    assert end.kind == "out_of_memory", "a late answer is used"


def test_slow_controller_stops_no_polling(scheduler: Scheduler, folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backoff counts only the poll's own time: a slow squeue once caused a wait of 20 times its duration."""
    now = [0.0]
    executor = SlurmExecutor(Profile(grace_s=0), LIMITS, folder, "s", clock=lambda: now[0])
    submit_one(executor)

    def squeue(job_ids: Any) -> dict[str, JobState]:
        run_command(["sh", "-c", "sleep 0.4"])
        return scheduler.squeue(job_ids)

    def slow_exclude(arrays: Any, nodes: Any) -> None:
        run_command(["sh", "-c", "sleep 0.4"])

    monkeypatch.setattr(watched_jobs, "squeue_states", squeue)
    monkeypatch.setattr(excluded_nodes, "exclude_nodes", slow_exclude)
    executor._nodes.unhealthy = ["n2"]
    now[0] += request_rate.MIN_RECORD_POLL_INTERVAL_S
    executor.poll(0)
    assert executor._nodes._applied == ["n2"] and executor._polls.next_at - now[0] < 20 * 0.4


def test_the_next_launch_takes_over(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    executor.submit(jobs("a", "b", "c"))
    scheduler.queue["1_0"] = JobState("COMPLETED", 0, "n1")
    scheduler.queue["2_0"] = JobState("TIMEOUT", 0, "n1")
    other = SlurmExecutor(Profile(grace_s=0), LIMITS, folder, "s")
    other.adopt(read_submissions(folder, ["s"]), scheduler.queue)
    (held,) = other.submitted().values()
    assert (held.pack_id, held.trial_ids) == ("b", ["tb"]), "only what still waits or runs"
    other.close()
    assert [submission.job_ids for submission in read_submissions(folder, ["s"])] == [["1_0", "1_1"]], (
        "finished jobs are forgotten"
    )


def test_next_launch_spares_committed_trials(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    first, second, third = jobs("a", "b", "c")
    executor = SlurmExecutor(Profile(array_parallelism=1, job_min=60, grace_s=0), LIMITS, folder, "s", clock=Clock())
    executor.submit([replace(job, estimated_s=1.0) for job in (first, second, third)])
    scheduler.queue["1_0"] = JobState("RUNNING", 0, "n1")
    commit(folder, first.attempt_id, first.trial_ids)
    record(folder, first.attempt_id, "done")
    other = SlurmExecutor(Profile(grace_s=0), LIMITS, folder, "s", clock=Clock())
    other.adopt(read_submissions(folder, ["s"]), scheduler.queue)
    assert list(other.submitted()) == [second.attempt_id, third.attempt_id]
    record(folder, second.attempt_id, "done")
    assert [end.attempt_id for end in ends_of(other)] == [second.attempt_id], "its plan does not have the first"


def test_last_submission_holds_a_trial(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    """Its first job still runs other packs. Mistaking it for the current one would submit the trial a third time."""
    (job,) = jobs("a")
    again = replace(job, attempt_id=f"20260101T000009_{'b' * 12}")
    executor.submit([job])
    executor.submit([again])
    other = SlurmExecutor(Profile(grace_s=0), LIMITS, folder, "s", clock=Clock())
    submissions = sorted(read_submissions(folder, ["s"]), key=lambda submission: submission.job_ids)
    other.adopt(submissions, scheduler.queue)
    assert list(other.submitted()) == [again.attempt_id, job.attempt_id], "the plan takes the first pack with the trial"


def test_finished_folders_go_and_failed_stay(
    executor: SlurmExecutor, scheduler: Scheduler, folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        finished_folders.time, "sleep", lambda seconds: scheduler.queue.pop("4_0", None) if seconds else None
    )
    names = ("a", "b", "c", "d")
    folders = {}
    for name in names:
        executor.submit(jobs(name))
        (submission,) = [made for made in read_submissions(folder, ["s"]) if made.packs[0][0].pack_id == name]
        folders[name] = Path(submission.folder)
        (folders[name] / "log.err").touch()
    done, failed, interrupted, ending = (job.attempt_id for job in jobs(*names))
    commit(folder, done, ["ta"])
    record(folder, failed, "failed")
    record(folder, interrupted, "interrupted")
    commit(folder, ending, ["td"])
    scheduler.queue |= {"1_0": JobState("COMPLETED", 0, "n1"), "2_0": JobState("COMPLETED", 0, "n1")}
    scheduler.queue |= {"3_0": JobState("RUNNING", 0, "n1"), "4_0": JobState("RUNNING", 0, "n1")}
    assert len(ends_of(executor, until=lambda ends: len(ends) == 3)) == 3
    assert all(folder.is_dir() for folder in folders.values()), "the folder stays until the end"
    executor.close()
    assert [name for name in names if folders[name].exists()] == ["b", "c"], "one failed, one keeps running"


def test_running_or_unreachable_jobs_keep_folders(
    executor: SlurmExecutor, scheduler: Scheduler, folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished_folders.time, "sleep", lambda seconds: None)
    job = submit_one(executor)
    (submission,) = read_submissions(folder, ["s"])
    Path(submission.folder).mkdir(parents=True, exist_ok=True)
    commit(folder, job.attempt_id, job.trial_ids)
    scheduler.queue["1_0"] = JobState("RUNNING", 0, "n1")
    assert len(ends_of(executor)) == 1
    executor.close()
    assert Path(submission.folder).is_dir(), "its record may still appear"
    scheduler.is_away = True
    (Path(submission.folder) / "work_0.pkl").touch()
    executor.close()
    assert Path(submission.folder).is_dir()
    (Path(submission.folder) / "work_0.ended").touch()
    executor.close()
    assert not Path(submission.folder).exists(), "the job leaves an end marker"


def test_failed_folders_go_after_success(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    """It once stayed forever, because its submission was deleted before its trials were committed."""
    first, again = jobs("a", "b")
    again = replace(again, trial_ids=first.trial_ids)
    executor.submit([first])
    record(folder, first.attempt_id, "failed")
    ends_of(executor)
    scheduler.queue["1_0"] = JobState("COMPLETED", 0, "n1")
    executor.close()
    there = [path.name for path in Path(folder.root).glob("slurm/s/*")]
    assert len(there) == 1 and not read_submissions(folder, ["s"]), "its logs show the error"
    executor.submit([again])
    commit(folder, again.attempt_id, again.trial_ids)
    ends_of(executor)
    scheduler.queue["2_0"] = JobState("COMPLETED", 0, "n1")
    executor.close()
    assert not list(Path(folder.root).glob("slurm/s/*"))


@pytest.mark.slow
def test_next_launch_removes_unreachable_folders(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    job = submit_one(executor)
    commit(folder, job.attempt_id, job.trial_ids)
    ends_of(executor)
    scheduler.is_away = True
    executor.close()
    stored = Path(folder.root) / "slurm/s" / f"depthrate-s-{job.attempt_id}"
    stored.mkdir()
    assert len(list(stored.parent.iterdir())) == 2 and not read_submissions(folder, ["s"])
    scheduler.is_away, scheduler.queue = False, {}
    SlurmExecutor(Profile(), LIMITS, folder, "s").close()
    assert list(stored.parent.iterdir()) == [stored], "folders from an earlier version do not list their trials"


def test_next_launch_removes_finished_folders(executor: SlurmExecutor, scheduler: Scheduler, folder: Store) -> None:
    job = submit_one(executor)
    (submission,) = read_submissions(folder, ["s"])
    Path(submission.folder).mkdir(parents=True, exist_ok=True)
    commit(folder, job.attempt_id, job.trial_ids)
    scheduler.queue = {}
    other = SlurmExecutor(Profile(grace_s=0), LIMITS, folder, "s")
    other.adopt(read_submissions(folder, ["s"]), {})
    assert other.submitted() == {} and Path(submission.folder).exists(), "planning only reads"
    other.close()
    assert not Path(submission.folder).exists() and not read_submissions(folder, ["s"])


def test_job_skips_committed_trials(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    done, fresh = submitted = [replace(job, options=replace(job.options, store=folder.root)) for job in jobs("a", "b")]
    commit(folder, f"20260101T000001_{'9' * 12}", done.trial_ids)
    assert [job.attempt_id for job in _Bundle(submitted).waiting] == [fresh.attempt_id]


@pytest.mark.parametrize("shares_memory", [True, False])
def test_packs_that_ran_out_of_memory_get_own_jobs(scheduler: Scheduler, folder: Store, shares_memory: bool) -> None:
    executor = SlurmExecutor(Profile(cpus=2), LIMITS, folder, "s", clock=Clock())
    executor.submit([replace(job, shares_memory=shares_memory) for job in jobs("a", "b")])
    assert [len(bundle) for array in scheduler.arrays for bundle in array] == ([2] if shares_memory else [1, 1])


def test_packs_that_did_not_start_have_not_run_out_of_memory(scheduler: Scheduler, folder: Store) -> None:
    executor = SlurmExecutor(Profile(array_parallelism=1, job_min=60, grace_s=0), LIMITS, folder, "s", clock=Clock())
    first, behind = (replace(job, estimated_s=1.0) for job in jobs("a", "b"))
    executor.submit([first, behind])
    scheduler.queue["1_0"] = JobState("OUT_OF_MEMORY", 0, "n1")
    record(folder, first.attempt_id, "running", heartbeat_ago_s=50)
    ends = ends_of(executor, until=lambda ends: len(ends) == 2)
    assert [(end.attempt_id, end.kind) for end in ends] == [
        (first.attempt_id, "out_of_memory"),
        (behind.attempt_id, "not_started"),
    ]


def test_restarted_job_leaves_failures(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has resubmitted them. Running them here too would run them twice with one checkpoint."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    done, failed, lost, interrupted, fresh = submitted = [
        replace(job, options=replace(job.options, store=folder.root)) for job in jobs("a", "b", "c", "d", "e")
    ]
    commit(folder, done.attempt_id, done.trial_ids)
    record(folder, failed.attempt_id, "failed")
    record(folder, lost.attempt_id, "interrupted")
    record(folder, nth_attempt_id(lost.attempt_id, 1), "lost")
    record(folder, interrupted.attempt_id, "interrupted")
    waiting = [job.attempt_id for job in _Bundle(submitted).waiting]
    assert waiting == [nth_attempt_id(job.attempt_id, 2) for job in (interrupted, fresh)]
