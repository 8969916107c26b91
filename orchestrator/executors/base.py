"""The contract of an executor: machines that run packs. Results never come back through it, only through the store.

`ExecutorEntry` declares one (its name, its options, how it is opened; `executors/registry.py` lists them). To open one gives
a `ComputeTarget`: looked at and checked, nothing started, so that a plan can be cut for it. It is of two kinds: an `Executor`
takes packs from the driver in this process; a `RemoteLauncher` takes the whole launch.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from depthrate.deprecated import rename_launch_options
from depthrate.orchestrator.executors.options import JobOptions, LaunchOptions, Option
from depthrate.storage.tables.states import FailureKind
from depthrate.tasks.interface import Engine

if TYPE_CHECKING:
    from depthrate.storage.attempts.records import Record
    from depthrate.storage.files.store import Store
    from depthrate.sweeps.packing import Pack
    from depthrate.sweeps.spec import SweepSpec

    Estimate = Callable[[Pack], float | None]
    """Gives the rough seconds of a pack on one core."""


@dataclass(frozen=True)
class JobCounts:
    """How many of a sweep's jobs a scheduler has."""

    waiting: int
    running: int
    reasons: dict[str, int] = field(default_factory=dict)
    """Why they wait, the most frequent first."""


@dataclass(frozen=True)
class SchedulerAnswer:
    """One answer of a scheduler about a sweep's jobs."""

    counts: JobCounts
    deaths: list[Record]
    """How those attempts ended whose job is over without a word of theirs, and which no launch has written down."""


@dataclass(frozen=True)
class CancelledJobs:
    """What became of a sweep's jobs when all were cancelled."""

    count: int
    elsewhere: list[str]
    """Clusters that have more of them and cannot be reached from here."""


@dataclass(frozen=True)
class Scheduler:
    """What keeps an executor's jobs when no launch looks after them; all functions take the store and a sweep's name."""

    title: str
    """As people write it."""
    look: Callable[[Store, str], SchedulerAnswer | None]
    """Asks it once; None where the sweep has no jobs, or the scheduler is silent."""
    cancel_jobs: Callable[[Store, str], CancelledJobs | None]
    """Cancels all; running ones save their state first. None where the sweep has none."""


BATCH_S = 0.5
"""How long an attempt of several short packs begins another one, and how long one that is done waits for the next: so much
work is repeated at most when a worker is killed."""


@dataclass(frozen=True, kw_only=True)
class PackTrials:
    """A pack, as a worker needs to know it."""

    pack_id: str
    trial_ids: list[str]
    params: list[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class AttemptSpec(PackTrials):
    """All that a worker needs to run one attempt of a pack, or of several short ones; plain JSON."""

    attempt_id: str
    sweep: str
    task: str
    """A task's name; a file's path is absolute."""
    options: JobOptions
    pruning: list[Mapping[str, Any] | None] | None = None
    """Of each trial of a search: metric, maximize, and thresholds (step -> value) below which it leaves its pack; for rule
    asha, with which whoever sees all trials of the study decides, from_step and factor."""
    estimated_s: float | None = None
    """Rough seconds on one core, for those who plan how long a job takes."""
    then: Sequence[PackTrials] = ()
    """Packs that the same attempt runs after this one, as long as it has taken less than `BATCH_S`, and commits with it."""
    avoid: Sequence[str] = ()
    """Nodes on which it failed before: it goes elsewhere if there is any other."""

    def packs(self) -> Iterator[AttemptSpec]:
        """Yield this job for each of its packs, as if it had no other."""
        yield replace(self, then=()) if self.then else self
        for each in self.then:
            yield replace(self, pack_id=each.pack_id, trial_ids=each.trial_ids, params=each.params, then=())

    @property
    def all_trial_ids(self) -> list[str]:
        """The trials of all of its packs."""
        return [*self.trial_ids, *(trial_id for each in self.then for trial_id in each.trial_ids)]

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> AttemptSpec:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        then = [PackTrials(**each) for each in fields.get("then", ())]
        return AttemptSpec(**{**fields, "options": _job_options(fields["options"]), "then": then})


def _job_options(options: dict[str, Any]) -> JobOptions:
    """Return the options of a job, also of one that an earlier version submitted and that begins now."""
    if "checkpoint_s" in options:
        stall_s = options.pop("stall_s", None)
        options["stall_minutes"] = None if stall_s is None else stall_s / 60
        options["code_version"] = options.pop("code_hash", None)
    return JobOptions(**rename_launch_options(options))


class RequeueReason(StrEnum):
    """Why a job ended without its work being done, though nothing failed: it goes back into the queue."""

    NOT_STARTED = "not_started"
    """It ended before its turn."""
    CUT_OFF = "cut_off"
    """Its time was up, and what it had saved goes on, or it had had little of it."""


@dataclass(frozen=True)
class AttemptEnd:
    """A job is over; what it did stands in the store."""

    attempt_id: str
    """As it was submitted."""
    exit_message: str | None = None
    """How the worker died, if it did not get to write its own end."""
    kind: FailureKind | RequeueReason = FailureKind.WORKER_LOST
    """What such a death is."""
    ran_as: str | None = None
    """The last attempt, where a scheduler started the job anew under other names."""
    record: Record | None = field(default=None, compare=False)
    """Of that attempt, where the executor has read it already and it says how it ended."""
    node: str = field(default="", compare=False)
    """Where it ran, as `Executor.running_on` names it; empty where that is not known, or there is one node only."""
    known: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What else of the attempt's record the executor knows better than this process: host, job_id, when it began and ended."""

    @property
    def last_attempt_id(self) -> str:
        """The attempt whose record says how the job ended."""
        return self.ran_as or self.attempt_id


class SubmitError(ValueError):
    """A scheduler did not take jobs; those in `left` are not on their way."""

    def __init__(self, message: str, left: Sequence[AttemptSpec]):
        super().__init__(message)
        self.left = left


class QueueFullError(SubmitError):
    """A scheduler takes no more for now; it will when some of what it has is over."""


class SubmitRateError(QueueFullError):
    """A scheduler is asked no more often just now; it would take more."""


class ExecutorError(ValueError):
    """The executor that was asked for is unknown, or its options do not fit it."""


class ComputeTarget(ABC):
    """Where packs run, as a plan sees it."""

    device: str
    """What packs compute on: cpu or cuda."""
    workers: int
    """Packs that may run at once."""
    memory_bytes: float | None = None
    """Memory that one pack may use, if that is known."""
    gpu_share: float = 1.0
    """Part of a GPU that each pack has, where they compute on GPUs."""
    num_nodes: int | None = 1
    """Nodes, or parts of one, between which the executor chooses where a pack runs; None where they come and go."""
    outlives_driver: bool = False
    """Whether what was submitted goes on when the driver ends, so that a launch may leave it alone."""
    is_here: bool = False
    """Whether packs run on this very machine: what it lacks, they lack."""

    def engine(self, asked: Engine) -> tuple[Engine, str | None]:
        """Return the engine to ask for where a sweep asks for this one, and, where it is another, why."""
        if not self.is_here:
            return asked, None
        from depthrate.tasks.training.engines.choice import available_engine  # here: most commands ask no machine

        return available_engine(asked)

    def max_parallel(self, packs: int) -> int:
        """Return how many of so many packs may run at the same moment."""
        return min(packs, self.workers)

    @property
    def submitted(self) -> Mapping[str, tuple[str, list[str]]]:
        """Attempt -> (pack, trials) of what earlier launches submitted and is still on its way."""
        return {}

    @property
    def submitted_codes(self) -> Mapping[str, str | None]:
        """Attempt -> version of the task's code of what earlier launches submitted, where that is known."""
        return {}

    def check(self, packs: Sequence[Pack], estimate_s: Estimate) -> None:
        """Refuse packs that these machines would not run; nothing is started. Most take everything.

        Raises:
            ValueError: naming the limit.
        """
        return None

    @abstractmethod
    def summary(self) -> str:
        """Say where packs run."""

    def details(self, packs: Sequence[Pack], estimate_s: Estimate) -> dict[str, Any]:
        """Return what `depthrate plan` adds about these machines: name -> text or number."""
        return {}


class Executor(ComputeTarget):
    """Machines that take packs from the driver. Only the driver's thread calls what follows."""

    def scheduler_calls(self) -> Mapping[str, int]:
        """Return how often each of a scheduler's commands was called; most have none."""
        return {}

    capacity: int
    """Jobs worth submitting at once."""
    takes_batches: bool = False
    """Whether a job may hold several short packs: where jobs are handed over one by one, and cost more than such packs."""

    def start(self, num_packs: int | None) -> None:
        """Start what so many packs need to run (null: a search adds more); called once, before the first `submit`.

        Raises:
            ValueError: it cannot be started.
        """
        return None

    @abstractmethod
    def submit(self, jobs: Sequence[AttemptSpec]) -> None:
        """Start jobs, now or when there is room.

        Raises:
            SubmitError: a scheduler refused some of them or is away.
        """

    def supervise(self, packs: Sequence[Pack], estimate_s: Estimate, options: JobOptions) -> LaunchJob | None:
        """Send the launch away, or find it on its way, if it must stay to submit what there is no room for now.

        None where everything fits, or nothing can be left behind that would drive the rest.

        Raises:
            SubmitError: the scheduler does not take it.
        """
        return None

    def adopt_submitted(self) -> Mapping[str, tuple[str, list[str]]]:
        """Watch what other launches of the sweep have submitted since, too: attempt -> (pack, trials). Most leave nothing."""
        return {}

    @abstractmethod
    def running(self) -> Mapping[str, str]:
        """Return the attempts that have started: as submitted -> as they run now."""

    def nodes_by_attempt(self) -> Mapping[str, str]:
        """Return attempt, as submitted -> the node that it runs on, of those that have started. Most have one node only."""
        return {}

    def has_other_nodes(self, nodes: Collection[str]) -> bool:
        """Whether packs can run on a node that is not among these."""
        return self.num_nodes is None or self.num_nodes > len(nodes)

    def exclude_nodes(self, nodes: Sequence[str]) -> None:
        """Begin nothing more on these nodes, and again on all others. Most have one node only."""
        return None

    def terminate(self, attempt_id: str, why: str) -> bool:
        """End an attempt that gives no sign of life; return whether `poll` will tell of its end, else nobody waits for it."""
        return False

    @abstractmethod
    def poll(self, timeout_s: float) -> list[AttemptEnd]:
        """Wait up to `timeout_s` and return the jobs that ended since the last call, each once."""

    @abstractmethod
    def stop(self) -> None:
        """Ask all running jobs to save a checkpoint and end; they end through `poll`."""

    def cancel_waiting(self) -> None:
        """Take back what has not started, because it would fail like the rest. Most start at once and have nothing."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release everything; what still runs is killed, unless it outlives its driver."""


@dataclass(frozen=True)
class LaunchJob:
    """A job of a scheduler in which a whole launch runs."""

    job_id: str
    folder: str
    """What it is made of and prints; of no more use once all is done."""


class RemoteLauncher(ComputeTarget):
    """Machines that take the whole launch: it is submitted as one job, goes on without us, and can be followed."""

    outlives_driver = True

    @abstractmethod
    def send_launch(self, options: LaunchOptions) -> LaunchJob:
        """Return the job in which a launch of this sweep is on its way already, or submit one with these options.

        Raises:
            ValueError: the scheduler refused, or does not answer.
        """

    @abstractmethod
    def follow(self, job: LaunchJob, show: Callable[[str], None]) -> str:
        """Wait for the job's end, show its state on the way, and say how it ended."""


@dataclass(frozen=True, kw_only=True)
class ExecutorRequest:
    """What a launch asks an executor for."""

    sweep: SweepSpec
    store: Store
    options: LaunchOptions
    """With those of the executor alone in `executor_options`, each with its value or its default."""


@dataclass(frozen=True, kw_only=True)
class ExecutorEntry:
    """An executor, as it is declared: cheap to import, so what it needs is imported when it is opened."""

    name: str
    """As --executor names it."""
    open: Callable[[ExecutorRequest], ComputeTarget]
    """Looks at what is there and checks the options; raises a ValueError that names what does not fit."""
    options: tuple[Option, ...] = ()
    detach: str | None = None
    """What follows --executor where --detach makes sense; None where jobs end with their launch."""
    compares_running_trials: bool = False
    """Whether it sees the reports of all packs while they train, as the pruning rule asha needs."""
    scheduler: Scheduler | None = None
