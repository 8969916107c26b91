"""The executor contract. An executor runs packs. Their results are written to the store and never returned.

`ExecutorEntry` declares an executor: its name, options and `open` function. `executors/registry.py` lists the entries.
`open` returns an `Executor` that is checked but not started, so that a plan can be made for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.attempts.options import LaunchOptions, Option
from depthrate.orchestrator.attempts.record import SchedulerFacts
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.storage.tables.states import FailureKind
from depthrate.tasks.interface import Engine

if TYPE_CHECKING:
    from depthrate.storage.attempts.records import Record
    from depthrate.storage.files.store import Store
    from depthrate.sweeps.packing import Pack
    from depthrate.sweeps.spec import SweepSpec

Estimate = Callable[["Pack"], float | None]
"""Returns an estimate of the seconds of a pack on one core, or None if unknown."""


@dataclass(frozen=True)
class JobCounts:
    """Counts of a sweep's jobs in a scheduler."""

    waiting: int
    running: int
    reasons: dict[str, int] = field(default_factory=dict)
    """Reason for waiting -> number of jobs, most frequent first."""
    advice: list[str] = field(default_factory=list)
    """Reasons that do not end by themselves, each with advice."""


@dataclass(frozen=True)
class SchedulerAnswer:
    """One answer of a scheduler about a sweep's jobs."""

    counts: JobCounts | None
    """None: the scheduler does not answer, or this machine cannot reach the scheduler of some jobs."""
    unreported_ends: list[Record]
    """Records of attempts whose jobs ended without writing a record, and that no launch has written since."""


Answers = Mapping[str, SchedulerAnswer | None]
"""Executor -> last answer of its scheduler about a sweep's jobs, or None if the sweep has no jobs."""


@dataclass(frozen=True)
class CancelledJobs:
    """Result of cancelling all jobs of a sweep."""

    count: int
    elsewhere: list[str]
    """Clusters that have more jobs of the sweep and cannot be reached from this machine."""


@dataclass(frozen=True)
class Scheduler:
    """Access to an executor's jobs without a launch. Its functions take the store and the sweep's name."""

    title: str
    """Display name."""
    poll: Callable[[Store, str], SchedulerAnswer | None]
    """Queries the scheduler once. Returns None if the sweep has no jobs."""
    cancel_jobs: Callable[[Store, str], CancelledJobs | None]
    """Cancels all jobs, after the running jobs have saved a checkpoint. Returns None if the sweep has no jobs."""


@dataclass(frozen=True)
class SubmittedPack:
    """A pack in a scheduler's job."""

    attempt_id: str
    pack_id: str
    trial_ids: list[str]
    code_hash: str | None = None
    """Version of the task's code, if known."""


class RequeueReason(StrEnum):
    """Reason an attempt is requeued without counting as a failure."""

    NOT_STARTED = "not_started"
    """The attempt ended before it started."""
    CUT_OFF = "cut_off"
    """The time limit ended the attempt, which resumes from a checkpoint or had run only briefly."""


@dataclass(frozen=True)
class AttemptEnd:
    """The end of an attempt. Its results are in the store."""

    attempt_id: str
    """ID under which the attempt was submitted."""
    exit_message: str | None = None
    """Description of the worker's exit, if the worker did not record its end."""
    kind: FailureKind | RequeueReason = FailureKind.WORKER_LOST
    """Failure kind of that exit, or the reason to requeue."""
    latest_id: str | None = None
    """ID of the last attempt, if a scheduler restarted the job under new IDs."""
    record: Record | None = field(default=None, compare=False)
    """Record of that attempt, including its end, if the executor has already read it."""
    node: str = field(default="", compare=False)
    """Node of the attempt, as in `Executor.nodes_by_attempt`. Empty if unknown, or if there is only one node."""
    scheduler_facts: SchedulerFacts = field(default=SchedulerFacts(), compare=False)
    """Facts about the attempt that the executor knows better than this process."""

    @property
    def last_attempt_id(self) -> str:
        """ID of the attempt whose record describes the end."""
        return self.latest_id or self.attempt_id


class Executor(ABC):
    """A backend that takes packs from the driver. Only the driver's thread calls its methods."""

    device: str
    """Device of the packs: cpu or cuda."""
    workers: int
    """Largest number of parallel packs."""
    capacity: int
    """Number of jobs that are worth submitting in advance."""
    memory_bytes: float | None = None
    """Memory per pack in bytes, if known."""
    gpu_share: float = 1.0
    """Share of a GPU per pack, if packs run on GPUs."""
    num_nodes: int | None = 1
    """Nodes, or GPUs of one node, that packs can run on. None if nodes come and go."""
    outlives_driver: bool = False
    """True if submitted packs keep running when the driver exits, so that a launch can detach."""
    is_local: bool = False
    """True if packs run on the local machine."""
    takes_batches: bool = False
    """True if an attempt may contain several short packs, because starting a job costs more than a short pack."""
    scheduler_calls: Mapping[str, int] = MappingProxyType({})
    """Command of a scheduler -> number of calls."""
    waiting_reasons: Mapping[str, int] = MappingProxyType({})
    """A scheduler's reason why submitted jobs wait -> number of jobs."""

    def submitted(self, *, refresh: bool = False) -> Mapping[str, SubmittedPack]:
        """Map the attempts that other launches submitted to a scheduler, and that have not ended, to their packs.

        Args:
            refresh: Query the scheduler again, for jobs submitted since.
        """
        return {}

    def check(self, packs: Sequence[Pack], estimate_s: Estimate) -> None:
        """Reject packs that the executor would not run, without starting anything.

        Raises:
            ValueError: A limit is exceeded.
        """
        return None

    @abstractmethod
    def summary(self) -> str:
        """Return a one-line description for the user."""

    def details(self, packs: Sequence[Pack], estimate_s: Estimate) -> dict[str, Any]:
        """Return additional output for `depthrate plan`: name -> str or number."""
        return {}

    def start(self, num_packs: int | None) -> None:
        """Start the workers for `num_packs` packs. `num_packs` is None if a search adds packs. Called once, before `submit`.

        Raises:
            ValueError: The executor cannot be started.
        """
        return None

    @abstractmethod
    def submit(self, jobs: Sequence[AttemptSpec]) -> None:
        """Start jobs now, or when a slot is free.

        Raises:
            SubmitError: A scheduler refused some of them or does not answer.
        """

    @abstractmethod
    def running(self) -> Mapping[str, str]:
        """Map the submitted ID of each started attempt to the ID of its current attempt."""

    def nodes_by_attempt(self) -> Mapping[str, str]:
        """Map the submitted ID of each started attempt to its node. Return {} if there is a single node."""
        return {}

    def exclude_nodes(self, nodes: Sequence[str]) -> None:
        """Start nothing more on these nodes, and allow all other nodes again."""
        return None

    def terminate(self, attempt_id: str, reason: str) -> bool:
        """Terminate a stale attempt. Return whether `poll` will report its end."""
        return False

    @abstractmethod
    def poll(self, timeout_s: float) -> list[AttemptEnd]:
        """Wait up to `timeout_s` and return the attempts that ended since the last call. Each attempt is returned only once."""

    @abstractmethod
    def stop(self, *, is_hopeless: bool = False) -> None:
        """Ask all running jobs to save a checkpoint and exit. `poll` reports their ends.

        Jobs that outlive the driver keep running, except jobs that have not started if `is_hopeless`: they would fail too.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything. Running jobs are killed, unless they outlive the driver."""


def usable_engine(executor: Executor, requested: Engine) -> tuple[Engine, str | None]:
    """Return the engine that the executor's machines can use instead of the requested one, and the reason if they differ."""
    if not executor.is_local or executor.device != "cpu":  # kernels of a GPU need no compiler
        return requested, None
    from depthrate.tasks.training.engines.choice import available_engine  # a slow import that few commands need

    return available_engine(requested)


@dataclass(frozen=True, kw_only=True)
class ExecutorRequest:
    """A launch's request to an executor."""

    sweep: SweepSpec
    store: Store
    options: LaunchOptions
    """Options of the launch. `executor_options` contains only this executor's options, including defaults."""


@dataclass(frozen=True, kw_only=True)
class ExecutorEntry:
    """Declaration of an executor. It must be cheap to import, so `open` imports the backend."""

    name: str
    """Value of --executor."""
    open: Callable[[ExecutorRequest], Executor]
    """Inspects the machines and checks the options. Raises a ValueError that names the option or machine at fault."""
    options: tuple[Option, ...] = ()
    compares_running_trials: bool = False
    """True if it receives the reports of all packs during training, which the pruning rule asha requires."""
    scheduler: Scheduler | None = None
    """Access to its jobs, if they outlive their launch."""
