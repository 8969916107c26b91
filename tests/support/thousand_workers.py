"""A sweep on a thousand machines, without them: the real driver and store, the real writing of results, invented time.

The driver runs as it is, in this process, and waits for each of its requests. Workers are events: each runs the real code of
an attempt at the moment at which it would end, and what it asks of the store is counted and takes the driver no time, since
it would happen elsewhere. Between two looks of the driver the clock jumps to where its executor would wake it.
"""

import heapq
import random
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from depthrate.orchestrator.attempts.liveness import heartbeat_s
from depthrate.orchestrator.attempts.node_health import StartFailures
from depthrate.orchestrator.attempts.record import Attempt
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.executors.base import AttemptEnd, Executor
from depthrate.orchestrator.executors.slurm.outcomes import PackOutcomes
from depthrate.orchestrator.executors.slurm.submissions import Submission, SubmittedPack
from depthrate.orchestrator.executors.slurm.watched_jobs import WatchedJob
from depthrate.orchestrator.launch.driver import Driver
from depthrate.orchestrator.launch.launch_plan import Plan, check_sweep
from depthrate.orchestrator.worker.attempt_runner import AttemptRunner
from depthrate.orchestrator.worker.context import StopFlag
from depthrate.slurm.job_states import JobState
from depthrate.storage.attempts.heartbeats import HEARTBEAT_FIELDS, write_heartbeats
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.paths import log_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState
from depthrate.sweeps.load import sweep_of_spec
from depthrate.sweeps.packing import make_pack
from depthrate.tasks.interface import Task
from tests.support import counted_files  # noqa: F401 - registers the filesystem
from tests.support.clock import Clock, running_clock
from tests.support.launches import job_options

TASK = """
import depthrate

@depthrate.task(version=1)
def little(*, index: int, context):
    context.load_checkpoint()
    return {"metrics": [{"layer": 1, "nc1": 1.0}], "curves": [{"step": 0, "loss": 1.0}]}
"""


@dataclass
class _Worker:
    node: int
    job: AttemptSpec | None = None
    attempt: Attempt | None = None


@dataclass
class Looks:
    """What the driver did between two waits."""

    longest_s: float = 0.0
    cpu_s: float = 0.0
    number: int = 0
    elsewhere_cpu_s: float = 0.0
    _began: tuple[float, float] | None = None

    def begin(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def end(self) -> None:
        if self._began is not None:
            self.longest_s = max(self.longest_s, time.perf_counter() - self._began[0])
            self.cpu_s += time.process_time() - self._began[1]
            self.number += 1
        self._began = None


class SimulatedWorkers(Executor):
    """Workers of whom nothing is there but what they do to the store."""

    device = "cpu"

    def __init__(
        self, store: Store, task: Task, clock: Clock, *, workers: int, per_node: int, pack_s: float, seed: int
    ):
        self.workers, self.capacity = workers, 2 * workers
        self._store, self._task, self._clock = store, task, clock
        self._pack_s, self._random = pack_s, random.Random(seed)
        self._idle = [_Worker(number // per_node) for number in range(workers)]
        self._busy: dict[str, _Worker] = {}
        self._waiting: deque[AttemptSpec] = deque()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._ended: list[AttemptEnd] = []
        self._beating: set[int] = set()
        self.looks = Looks()

    def summary(self) -> str:
        """Say what this is."""
        return f"{self.workers} simulated workers"

    def submit(self, jobs: Sequence[AttemptSpec]) -> None:
        """Give jobs to idle workers."""
        self._waiting.extend(jobs)
        self._start_idle()

    def running(self) -> Mapping[str, str]:
        """Return what runs."""
        return {attempt_id: attempt_id for attempt_id in self._busy}

    def poll(self, timeout_s: float) -> list[AttemptEnd]:
        """Let time pass until something ends, and return what ended."""
        self.looks.end()
        before = time.process_time()
        with self._clock.standing_still():
            until = self._clock() + timeout_s
            self._clock.sleep(timeout_s)
            self._pass_time(until)
        ended, self._ended = self._ended, []
        self.looks.elsewhere_cpu_s += time.process_time() - before
        self.looks.begin()
        return ended

    def _pass_time(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            heapq.heappop(self._events)[2]()

    def _at(self, when: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, act))

    def _start_idle(self) -> None:
        while self._waiting and self._idle:
            self._start(self._idle.pop(), self._waiting.popleft())

    def _start(self, worker: _Worker, job: AttemptSpec) -> None:
        worker.job = job
        given = {name: getattr(job, name) for name in ("attempt_id", "sweep", "pack_id", "trial_ids")}
        where = {"device": "cpu", "host": f"node{worker.node}", "pid": 0, "beat_s": job.options.beat_s}
        worker.attempt = Attempt(**given, **where)
        self._busy[job.attempt_id] = worker
        with self._clock.standing_still(), self._store.fs.acting("workers"):
            worker.attempt.beat(self._store)
        if worker.node not in self._beating:
            self._beating.add(worker.node)
            self._at(self._clock() + self._random.uniform(0, self._beat_s(job)), lambda: self._beat(worker.node))
        self._at(self._clock() + self._random.lognormvariate(0, 0.5) * self._pack_s, lambda: self._end(worker))

    def _beat_s(self, job: AttemptSpec) -> float:
        return job.options.beat_s or heartbeat_s(self._store)

    def _beat(self, node: int) -> None:
        """Tell the store of all workers of a node, as the one does that holds its lock."""
        here = [worker for worker in self._busy.values() if worker.node == node]
        if not here:
            self._beating.discard(node)
            return
        words = {w.attempt.attempt_id: {n: getattr(w.attempt, n) for n in HEARTBEAT_FIELDS} for w in here if w.attempt}
        for beat in words.values():
            beat["heartbeat_at"] = self._clock()
        with self._store.fs.acting("beats"):
            write_heartbeats(self._store, "s", f"node{node}", words)
        assert here[0].job is not None
        self._at(self._clock() + self._beat_s(here[0].job), lambda: self._beat(node))

    def _end(self, worker: _Worker) -> None:
        job, attempt = worker.job, worker.attempt
        assert job is not None and attempt is not None
        with self._store.fs.acting("workers"):
            AttemptRunner(job, self._task, self._store, attempt, StopFlag()).run()
            self._store.write(log_path(job.sweep, job.attempt_id), b"printed\n")
            attempt.state, attempt.ended_at = AttemptState.DONE, self._clock()
            attempt.beat(self._store)
        del self._busy[job.attempt_id]
        self._idle.append(worker)
        self._note_end(job)
        self._start_idle()

    def _note_end(self, job: AttemptSpec) -> None:
        self._ended.append(AttemptEnd(job.attempt_id))

    def stop(self, *, is_hopeless: bool = False) -> None:
        """Nothing stops."""

    def close(self) -> None:
        """Nothing is held."""


class SimulatedJobs(SimulatedWorkers):
    """The same as jobs of a scheduler, of whose packs is known only what stands in the store."""

    outlives_driver = True

    def __init__(self, store: Store, task: Task, clock: Clock, *, per_node: int, **how: Any):
        super().__init__(store, task, clock, per_node=per_node, **how)
        self.capacity = 1_000_000
        self._slots = per_node
        self._ends = PackOutcomes(store, "s", StartFailures(1000))
        self._jobs: list[WatchedJob] = []
        self._next_look = 0.0

    def submit(self, jobs: Sequence[AttemptSpec]) -> None:
        """Bundle packs as a launch does: those of one job run one after another on its slots."""
        at_once = max(1, self.workers // self._slots)
        submission = Submission("depthrate-s-x", "s", "simulated", "/nowhere/s/depthrate-s-x", [])
        for number in range(at_once):
            packs = [SubmittedPack(job.attempt_id, job.pack_id, job.trial_ids) for job in jobs[number::at_once]]
            if packs:
                self._jobs.append(WatchedJob(f"1_{number}", submission, packs, JobState("RUNNING", 0, f"n{number}")))
        super().submit(jobs)

    def running(self) -> Mapping[str, str]:
        """Return what has left a record."""
        return {given: now for job in self._jobs for given, now in job.current.items()}

    def poll(self, timeout_s: float) -> list[AttemptEnd]:
        """Look at the records, at the rhythm of a launch on a cluster."""
        super().poll(timeout_s)
        if self._clock() < self._next_look:
            return []
        began = self._clock()
        self._ends.refresh(self._jobs)
        ends = []
        for job in self._jobs:
            ends += self._ends.pop_ended(job, self._slots, is_over=False, is_settled=False)
        self._jobs = [job for job in self._jobs if job.packs]
        self._next_look = began + max(2.0, 20 * (self._clock() - began))
        return ends

    def _note_end(self, job: AttemptSpec) -> None:
        """Nobody is told."""


@dataclass
class Result:
    """What a simulated launch cost."""

    packs: int
    took_s: float
    """Of invented time."""
    looks: Looks
    requests: dict[str, int] = field(default_factory=dict)
    """Who asked the store -> how often."""
    kinds: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def per_pack(self) -> float:
        """Requests to the store for each pack that was committed."""
        return sum(self.requests.values()) / self.packs

    @property
    def cpu_share(self) -> float:
        """Part of one core that the driver used."""
        return self.looks.cpu_s / self.took_s


def simulate(
    folder: Path,
    *,
    workers: int,
    packs: int,
    per_node: int = 8,
    pack_s: float = 120.0,
    delay_s: float = 0.02,
    as_jobs: bool = False,
    seed: int = 0,
) -> Result:
    """Run a sweep of so many packs to its end, and return what it cost."""
    (folder / "little.py").write_text(TASK)
    spec = {"name": "s", "task": f"{folder / 'little.py'}:little", "grid": {"index": list(range(packs))}}
    checked = check_sweep(sweep_of_spec(spec))
    store = Store(f"counted://{uuid.uuid4().hex}")
    store.fs.delay_s, clock = delay_s, running_clock()
    store.fs.requests.clear()
    snapshot = take_snapshot(store)
    plan = Plan(checked, snapshot, set(), [make_pack([trial]) for trial in checked.trials], {}, [])
    kind = SimulatedJobs if as_jobs else SimulatedWorkers
    how = {"workers": workers, "per_node": per_node, "pack_s": pack_s, "seed": seed}
    executor = kind(store, checked.task, clock, **how)
    options = job_options(store, beat_s=heartbeat_s(store, is_local=False))
    with mock.patch("time.time", clock):
        began = clock()
        outcome = Driver(plan, store, executor, options, lambda progress: None, clock).run()
        took_s = clock() - began
    assert not outcome.failures
    requests = {who: store.fs.count(who) for who in ("driver", "workers", "beats")}
    with store.fs.acting("check"):
        assert len(take_snapshot(store).trial_ids()) == packs
    kinds = {key: number for key, number in store.fs.requests.items() if key[0] in requests}
    return Result(packs, took_s, executor.looks, requests, kinds)
