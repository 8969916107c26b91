"""The seam between the driver and the machines: submit, poll, stop. Results never come back through it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """What all jobs of a launch share."""

    store: str
    data: str
    device: str
    checkpoint_s: float
    """Seconds of training between two checkpoints."""
    git_sha: str | None
    git_dirty: bool | None


@dataclass(frozen=True, kw_only=True)
class PackJob:
    """All that a worker needs to run one attempt of a pack; plain JSON."""

    attempt_id: str
    sweep: str
    task: str
    """A task's name; a file's path is absolute."""
    pack_id: str
    trial_ids: list[str]
    params: list[Mapping[str, Any]]
    options: LaunchOptions
    pruning: list[Mapping[str, Any] | None] | None = None
    """Of each trial of a search: metric, maximize, and thresholds (step -> value) below which it leaves its pack; for rule
    asha, with which whoever sees all trials of the study decides, from_step and factor."""
    estimated_s: float | None = None
    """Rough seconds on one core, for those who plan how long a job takes."""

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> PackJob:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        return PackJob(**{**fields, "options": LaunchOptions(**fields["options"])})


@dataclass(frozen=True)
class JobEnd:
    """A job is over; what it did stands in the store."""

    attempt_id: str
    """As it was submitted."""
    death: str | None = None
    """How the worker died, if it did not get to write its own end."""
    kind: str = "worker_lost"
    """The kind of failure that such a death is (`orchestrator.retry`); also `not_started` (its job ended before its turn)
    and `cancelled_all` (somebody cancelled everything that was left)."""
    ran_as: str | None = None
    """The last attempt, where a scheduler started the job anew under other names."""


class SubmitError(ValueError):
    """A scheduler did not take jobs; those in `left` are not on their way."""

    def __init__(self, message: str, left: Sequence[PackJob]):
        super().__init__(message)
        self.left = left


class Executor(Protocol):
    """Runs jobs somewhere. Only the driver's thread calls it."""

    @property
    def capacity(self) -> int:
        """Jobs worth submitting at once."""
        ...

    outlives_driver: bool
    """Whether its jobs go on when the driver ends, so that `stop` leaves them alone."""

    def submit(self, jobs: Sequence[PackJob]) -> None:
        """Start jobs, now or when there is room.

        Raises:
            SubmitError: a scheduler refused some of them or is away.
        """
        ...

    def running(self) -> Mapping[str, str]:
        """Return the attempts that have started: as submitted -> as they run now."""
        ...

    def poll(self, timeout_s: float) -> list[JobEnd]:
        """Wait up to `timeout_s` and return the jobs that ended since the last call, each once."""
        ...

    def stop(self) -> None:
        """Ask all running jobs to save a checkpoint and end; they end through `poll`."""
        ...

    def close(self) -> None:
        """Release everything; what still runs is killed."""
        ...
