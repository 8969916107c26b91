"""The executor contract. An executor runs packs. Their results are written to the store and never returned.

`ExecutorEntry` declares an executor: its name, options and `open` function. `executors/registry.py` lists the entries.
`open` returns a `ComputeTarget`, which is checked but not started, so that a plan can be made for it. An `Executor` takes packs
from the driver in this process. A `RemoteLauncher` takes the whole launch.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from depthrate.deprecated import rename_launch_options
from depthrate.errors import InputError
from depthrate.orchestrator.executors.options import JobOptions, LaunchOptions, Option
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

    counts: JobCounts
    unreported_ends: list[Record]
    """Records of attempts whose jobs ended without writing a record, and that no launch has written since."""


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
    """Queries the scheduler once. Returns None if the sweep has no jobs or the scheduler does not answer."""
    cancel_jobs: Callable[[Store, str], CancelledJobs | None]
    """Cancels all jobs, after the running jobs have saved a checkpoint. Returns None if the sweep has no jobs."""


BATCH_S = 0.5
"""Longest time in seconds for which a batched attempt starts further packs, and for which a finished pack stays uncommitted.
It bounds the work that is repeated when a worker is killed."""


@dataclass(frozen=True, kw_only=True)
class PackTrials:
    """A pack in the format that workers receive."""

    pack_id: str
    trial_ids: list[str]
    params: list[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class AttemptSpec(PackTrials):
    """Everything that a worker needs for one attempt at a pack or at several short packs, as plain JSON."""

    attempt_id: str
    sweep: str
    task: str
    """Task name, or a file with an absolute path."""
    options: JobOptions
    pruning: list[Mapping[str, Any] | None] | None = None
    """Pruning rule of each trial of a search: metric, maximize, and thresholds (step -> value below which the trial is pruned).
    The rule asha has from_step and factor instead, for a comparison across all trials of the study."""
    estimated_s: float | None = None
    """Estimated seconds on one core, which determine the planned length of a job."""
    then: Sequence[PackTrials] = ()
    """Further packs of a batched attempt. They start within `BATCH_S` of its start and are committed together."""
    avoid: Sequence[str] = ()
    """Nodes where the pack failed. Other nodes are preferred."""

    def packs(self) -> Iterator[AttemptSpec]:
        """Yield a separate spec for each pack."""
        yield replace(self, then=()) if self.then else self
        for pack in self.then:
            yield replace(self, pack_id=pack.pack_id, trial_ids=pack.trial_ids, params=pack.params, then=())

    @property
    def all_trial_ids(self) -> list[str]:
        """Trials of all packs of the attempt."""
        return [*self.trial_ids, *(trial_id for pack in self.then for trial_id in pack.trial_ids)]

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> AttemptSpec:
        """Parse the JSON of `to_json`."""
        fields = json.loads(text)
        then = [PackTrials(**pack) for pack in fields.get("then", ())]
        return AttemptSpec(**{**fields, "options": _job_options(fields["options"]), "then": then})


def _job_options(options: dict[str, Any]) -> JobOptions:
    """Return the options of a job, which an earlier version of depthrate may have submitted."""
    if "checkpoint_s" in options:
        stall_s = options.pop("stall_s", None)
        options["stall_minutes"] = None if stall_s is None else stall_s / 60
        options["code_version"] = options.pop("code_hash", None)
    return JobOptions(**rename_launch_options(options))


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
    scheduler_facts: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Fields of the record for which the executor has more precise values than this process: host, job_id, start and end."""

    @property
    def last_attempt_id(self) -> str:
        """ID of the attempt whose record describes the end."""
        return self.latest_id or self.attempt_id


class SubmitError(InputError):
    """A scheduler refused jobs. `unsubmitted` contains the jobs that it did not accept."""

    def __init__(self, message: str, unsubmitted: Sequence[AttemptSpec]):
        super().__init__(message)
        self.unsubmitted = unsubmitted


class QueueFullError(SubmitError):
    """A scheduler accepts no more jobs until some of its jobs end."""


class SubmitRateError(QueueFullError):
    """Submission is paused, although the scheduler would accept more jobs."""


class ExecutorError(InputError):
    """The requested executor is unknown, or an option is not valid for it."""


class ComputeTarget(ABC):
    """Capacity for packs, as far as a plan needs it."""

    device: str
    """Device of the packs: cpu or cuda."""
    workers: int
    """Largest number of parallel packs."""
    memory_bytes: float | None = None
    """Memory per pack in bytes, if known."""
    gpu_share: float = 1.0
    """Share of a GPU per pack, if packs run on GPUs."""
    num_nodes: int | None = 1
    """Nodes, or GPUs of one node, that the executor can choose between. None if nodes come and go."""
    outlives_driver: bool = False
    """True if submitted packs keep running when the driver exits, so that a launch can detach."""
    is_local: bool = False
    """True if packs run on the local machine."""

    def engine(self, requested: Engine) -> tuple[Engine, str | None]:
        """Return the engine to use instead of the requested one, and the reason if they differ."""
        if not self.is_local:
            return requested, None
        from depthrate.tasks.training.engines.choice import available_engine  # a slow import that few commands need

        return available_engine(requested)

    def max_parallel(self, packs: int) -> int:
        """Return the number of packs out of `packs` that can run in parallel."""
        return min(packs, self.workers)

    @property
    def submitted(self) -> Mapping[str, SubmittedPack]:
        """Attempt -> pack, for packs that earlier launches submitted and that have not ended."""
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


class Executor(ComputeTarget):
    """A backend that takes packs from the driver. Only the driver's thread calls its methods."""

    def scheduler_calls(self) -> Mapping[str, int]:
        """Return the number of calls per scheduler command."""
        return {}

    def waiting_reasons(self) -> Mapping[str, int]:
        """Return the scheduler's reasons why submitted jobs wait, each with its number of jobs."""
        return {}

    capacity: int
    """Number of jobs that are worth submitting in advance."""
    takes_batches: bool = False
    """True if an attempt may contain several short packs, because starting a job costs more than a short pack."""

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

    def supervise(self, packs: Sequence[Pack], estimate_s: Estimate, options: JobOptions) -> LaunchJob | None:
        """Submit a supervisor, or find an existing one, if the queue has no space for all packs now.

        Returns None if everything fits, or if the executor has no supervisor.

        Raises:
            SubmitError: The scheduler refused the supervisor.
        """
        return None

    def adopt_submitted(self) -> Mapping[str, SubmittedPack]:
        """Adopt attempts submitted by peer launches and return attempt -> pack."""
        return {}

    @abstractmethod
    def running(self) -> Mapping[str, str]:
        """Map the submitted ID of each started attempt to the ID of its current attempt."""

    def nodes_by_attempt(self) -> Mapping[str, str]:
        """Map the submitted ID of each started attempt to its node. Return {} if there is a single node."""
        return {}

    def has_other_nodes(self, nodes: Collection[str]) -> bool:
        """Return whether packs can run on a node outside `nodes`."""
        return self.num_nodes is None or self.num_nodes > len(nodes)

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
    def stop(self) -> None:
        """Ask all running jobs to save a checkpoint and exit. `poll` reports their ends."""

    def cancel_waiting(self) -> None:
        """Cancel jobs that have not started, because they would fail in the same way."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release everything. Running jobs are killed, unless they outlive the driver."""


@dataclass(frozen=True)
class LaunchJob:
    """A scheduler's job that runs a whole launch."""

    job_id: str
    folder: str
    """Folder with the job's files and output, disposable once all trials are committed."""


class RemoteLauncher(ComputeTarget):
    """A backend that runs the whole launch as one job, independent of this process."""

    outlives_driver = True

    @abstractmethod
    def send_launch(self, options: LaunchOptions) -> LaunchJob:
        """Return the job of an existing remote launch of the sweep, or submit one with these options.

        Raises:
            ValueError: The scheduler refused the job or does not answer.
        """

    @abstractmethod
    def follow(self, job: LaunchJob, show: Callable[[str], None]) -> str:
        """Wait for the end of the job while passing its state to `show`, and return a description of the end."""


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
    open: Callable[[ExecutorRequest], ComputeTarget]
    """Inspects the machines and checks the options. Raises a ValueError that names the option or machine at fault."""
    options: tuple[Option, ...] = ()
    detach: str | None = None
    """Value of --executor in messages about --detach. None if jobs end with their launch."""
    compares_running_trials: bool = False
    """True if it receives the reports of all packs during training, which the pruning rule asha requires."""
    scheduler: Scheduler | None = None
