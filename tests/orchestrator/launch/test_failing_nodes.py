"""Excluded nodes: a node that fails where others do not is excluded, a node on which a buggy task fails is not."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from depthrate.orchestrator.attempts.record import SchedulerFacts, new_attempt_id, read_attempt
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.executors.base import AttemptEnd
from depthrate.orchestrator.executors.local import LocalExecutor
from depthrate.orchestrator.launch.launch import write_launch
from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.orchestrator.launch.outcome import Outcome
from depthrate.orchestrator.worker.attempt_runner import failure_kind
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.sweeps.load import sweep_of_spec
from tests.support.clock import Clock
from tests.support.here import printed
from tests.support.launches import OWN_TASKS, IdleExecutor, attempt_of, drive, plan_of, plan_of_depths, spec_of
from tests.support.tests_rows import commit

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def test_nodes_says_which_are_suspects(folder: Store) -> None:
    folder.write_format()
    now = time.time()
    for node, seconds_ago, error in (("n1", 30, None), ("n2", 60, ECC), ("n3", 30, None), ("n4", 300, ECC)):
        attempt = attempt_of(new_attempt_id(), pack_id=node, host=node)
        attempt.state = AttemptState.DONE if error is None else AttemptState.FAILED
        attempt.error, attempt.error_kind = error, None if error is None else FailureKind.HARDWARE
        attempt.started_at, attempt.ended_at = now - seconds_ago - 1, now - seconds_ago
        attempt.write(folder)
    write_launch(folder, plan_of(folder, grid={"depth": [2]}).checked)
    listed = json.loads(printed("nodes", "s", "--store", folder.url, "--json"))
    avoided = {node["node"]: node["avoided"] for node in listed}
    assert "1 of 1 attempts failed on n2" in avoided.pop("n2")
    assert set(avoided.values()) == {""}


class Cluster(IdleExecutor):
    """Four simulated nodes that run one pack each. Some of them fail."""

    workers, capacity, num_nodes = 4, 4, 4

    def __init__(self, store: Store, fails: Any):
        super().__init__()
        self._store, self._fails = store, fails
        self._open: dict[str, tuple[AttemptSpec, str]] = {}
        self._avoided: list[str] = []
        self.ran: list[tuple[str, str, bool]] = []
        """(pack, node, whether it failed) of each attempt."""

    def running(self) -> dict[str, str]:
        return {name: name for name in self._open}

    def nodes_by_attempt(self) -> dict[str, str]:
        return {name: node for name, (_, node) in self._open.items()}

    def exclude_nodes(self, nodes: Sequence[str]) -> None:
        self._avoided = list(nodes)

    def poll(self, timeout_s: float) -> list[AttemptEnd]:
        ends = [self._end(job, node) for job, node in self._open.values()]
        self._open = {}
        for node in ("n2", "n1", "n3", "n4"):  # the sick one is always free first
            if node in self._avoided:
                continue
            left = {"n1", "n2", "n3", "n4"}.difference(self._avoided)
            free = (job for job in self.jobs if node not in job.avoid or left.issubset(job.avoid))
            job = next(free, None)
            if job is not None:
                self.jobs.remove(job)
                self._open[job.attempt_id] = job, node
        return ends

    def _end(self, job: AttemptSpec, node: str) -> AttemptEnd:
        error = self._fails(job, node)
        self.ran.append((job.pack_id, node, error is not None))
        attempt = attempt_of(job.attempt_id, pack_id=job.pack_id, trial_ids=job.trial_ids, host=node)
        attempt.state = AttemptState.DONE if error is None else AttemptState.FAILED
        attempt.error, attempt.error_kind = error, None if error is None else failure_kind(RuntimeError(error))
        if error is None:
            commit(self._store, job.attempt_id, job.trial_ids)
        attempt.write(self._store)
        return AttemptEnd(job.attempt_id)


def drive_cluster(folder: Store, fails: Any, num_trials: int = 24, tick_s: float = 0.0) -> tuple[Outcome, Cluster]:
    executor, clock = Cluster(folder, fails), Clock(step_s=tick_s) if tick_s else time.monotonic
    return drive(plan_of_depths(folder, num_trials), folder, executor, clock=clock), executor


@pytest.mark.parametrize("error", ["it is broken here", ECC])
def test_unhealthy_node_costs_three_attempts(folder: Store, error: str) -> None:
    outcome, cluster = drive_cluster(folder, lambda job, node: error if node == "n2" else None)
    assert not outcome.failures and not outcome.stopped_early
    failed = Counter(node for _, node, has_failed in cluster.ran if has_failed)
    assert set(failed) == {"n2"} and failed["n2"] <= 3
    done = Counter(pack for pack, _, has_failed in cluster.ran if not has_failed)
    assert len(done) == 24 and set(done.values()) == {1}


def test_universal_bug_is_not_retried(folder: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="depthrate")
    outcome, cluster = drive_cluster(folder, lambda job, node: "it is broken everywhere")
    assert outcome.stopped_early and len(cluster.ran) == len(outcome.failures) == 4
    assert len({node for _, node, _ in cluster.ran}) == 4
    messages = [text for text in caplog.messages if "it is broken everywhere" in text]
    assert len(messages) == 4 and all("given up" in text for text in messages)


@pytest.mark.parametrize("works", ["another node", "another trial"])
def test_an_error_is_tried_again_where_anything_works(folder: Store, works: str) -> None:
    failed = Counter[str]()

    def fails_at_first(job: AttemptSpec, node: str) -> str | None:
        failed[job.pack_id] += 1
        is_exempt = node == "n4" if works == "another node" else len(failed) == 1
        return None if is_exempt or failed[job.pack_id] > 1 else "odd"

    outcome, _ = drive_cluster(folder, fails_at_first)
    assert not outcome.failures and not outcome.stopped_early


def test_hardware_that_fails_everywhere_ends_too(folder: Store) -> None:
    outcome, cluster = drive_cluster(folder, lambda job, node: ECC)
    assert outcome.stopped_early and len(cluster.ran) < 24 * 9


def test_lost_attempt_counts_for_its_node(folder: Store) -> None:
    """The record also has the job's id, although the driver writes it."""

    class Lost(Cluster):
        def _end(self, job: AttemptSpec, node: str) -> AttemptEnd:
            if self.ran:
                return super()._end(job, node)
            self.ran.append((job.pack_id, node, True))
            known = SchedulerFacts(host=node, job_id="17_0", pid=0, started_at=1000.0, ended_at=1060.0)
            return AttemptEnd(job.attempt_id, "job 17_0 ended", FailureKind.NODE_LOST, node=node, scheduler_facts=known)

    assert not drive(plan_of_depths(folder, 2), folder, Lost(folder, lambda job, node: None)).failures
    names = [path.rpartition("/")[2].removesuffix(".json") for path in folder.list("attempts/sweep=s")]
    records = [record for name in names if (record := read_attempt(folder, "s", name)) is not None]
    (lost,) = (record for record in records if record["state"] is AttemptState.LOST)
    assert (lost["host"], lost["job_id"], lost["started_at"], lost["ended_at"]) == ("n2", "17_0", 1000.0, 1060.0)


def test_a_gpu_that_fails_gets_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack that has failed on one node is first retried on another."""
    executor = LocalExecutor(3, ("0", "1", "2"), device="cuda")
    executor.start(None)
    started: list[int] = []

    class Started:
        def __init__(self, slot: int):
            self.job, self.process = None, self
            self.stdin = self

        def poll(self) -> None: ...
        def write(self, text: str) -> None: ...
        def flush(self) -> None: ...

    def start(slot: int) -> Any:
        started.append(slot)
        executor._workers[slot] = Started(slot)  # type: ignore[assignment]
        return executor._workers[slot]

    monkeypatch.setattr(executor, "_start", start)
    executor.submit([spec_of("a", pack_id="a", avoid=["GPU 0"])])
    assert started == [1] and executor.nodes_by_attempt() == {"a": "GPU 1"}
    executor.exclude_nodes(["GPU 0"])
    assert executor.capacity == 2
    executor.submit([spec_of("b", pack_id="b")])
    assert started == [1, 2]


@pytest.mark.slow
def test_nodes_says_what_is_avoided_and_forgives(folder: Store) -> None:
    outcome, cluster = drive_cluster(folder, lambda job, node: ECC if node == "n2" else None, 60, tick_s=20.0)
    assert not outcome.failures and 2 <= sum(has_failed for _, _, has_failed in cluster.ran) <= 3
    checked = check_sweep(sweep_of_spec({"name": "s", "task": f"{OWN_TASKS}:power_law", "grid": {"depth": [2]}}))
    write_launch(folder, checked)
    command = ("nodes", "s", "--store", folder.url)
    output = printed(*command)
    assert "node n2 is excluded: " in output and "--clear n2" in output.replace("\n", " ")
    assert "n1, n2, n3, n4" in printed(*command, "--clear", "n7", code=2)
    output = printed(*command, "--clear", "n2")
    assert "node n2: failures cleared" in output and "is excluded" not in output
