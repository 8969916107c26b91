"""The jobs that a launch watches on a SLURM cluster, and their states: one query a look."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from depthrate.orchestrator.executors.slurm.request_budget import RequestBudget
from depthrate.orchestrator.executors.slurm.submissions import Submission, SubmittedPack
from depthrate.slurm.command import SlurmError
from depthrate.slurm.profile import GRACE_S
from depthrate.slurm.states import JobState, sacct_states, squeue_states

log = logging.getLogger("depthrate")
UNKNOWN_S = 20.0
"""How long a job may be unknown to squeue and sacct alike before its silence counts."""


@dataclass
class WatchedJob:
    """A job of an array, and its packs that have not ended."""

    job_id: str
    submission: Submission
    packs: list[SubmittedPack]
    state: JobState = field(default_factory=lambda: JobState("PENDING"))
    unknown_since: float | None = None
    over_since: float | None = None
    """When it was first seen to be over."""
    has_begun: bool = False
    """Whether any of its packs has ever left a record."""
    current: dict[str, str] = field(default_factory=dict)
    """Attempt as submitted -> attempt that runs, of packs that have started."""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its turn, as last seen."""
        return self.unknown_since is None and self.state.phase == "waiting"

    @property
    def is_running(self) -> bool:
        """Whether it runs, as last seen."""
        return self.unknown_since is None and self.state.phase == "running"


class JobQueue:
    """The jobs that are not over, as the controller and the accounting know them."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, grace_s: float = GRACE_S, poll_s: float | None = None
    ):
        self.jobs: dict[str, WatchedJob] = {}
        self.requests = RequestBudget(clock, poll_s)
        self._grace_s = grace_s
        self._clock = clock
        self._is_deaf = False
        self._answered_at = self._answered_at_time = float("-inf")
        """When the scheduler last answered, on our clock and in seconds since the epoch."""

    def states(self) -> dict[str, str]:
        """Return job -> state, as last seen."""
        return {job_id: job.state.state for job_id, job in self.jobs.items()}

    def is_over(self, job: WatchedJob) -> bool:
        """Whether a job is over, or has been unknown for so long that it must be."""
        if job.unknown_since is not None:
            return self._answered_at - job.unknown_since >= UNKNOWN_S
        return job.state.phase == "over"

    def is_settled(self, job: WatchedJob) -> bool:
        """Whether a job has been over for so long that all it wrote must be seen."""
        since = job.over_since if job.unknown_since is None else job.unknown_since
        return since is not None and self.is_over(job) and self._clock() - since >= self._grace_s

    def is_any_past(self, limit_s: float) -> bool:
        """Whether a job that is believed to run has had its whole time."""
        began = [job.state.started_at for job in self.jobs.values() if job.is_running]
        return min((at for at in began if at is not None), default=math.inf) + limit_s <= time.time()

    def past(self, limit_s: float) -> list[WatchedJob]:
        """Return the jobs that still ran after their whole time, when the scheduler last answered.

        It ends such a job up to half a minute late.
        """
        until = self._answered_at_time - limit_s
        return [job for job in self.jobs.values() if job.is_running and (job.state.started_at or math.inf) < until]

    def forget(self, job: WatchedJob) -> None:
        """Watch a job no longer."""
        del self.jobs[job.job_id]

    def look_if_due(self, *, is_news_due: bool = False) -> bool:
        """Update the jobs' states if the controller may be asked for them now; return whether they are as it last said."""
        return self.look() if self.requests.may_look(is_news_due=is_news_due) else not self._is_deaf

    def look(self) -> bool:
        """Update the jobs' states and return whether the scheduler answered."""
        began = time.monotonic()
        has_answered = self._look()
        self.requests.note_look(time.monotonic() - began, has_answered=has_answered)
        return has_answered

    def _look(self) -> bool:
        try:
            states = squeue_states(sorted({array_of(job_id) for job_id in self.jobs}))
        except SlurmError as error:
            if not self._is_deaf:
                log.warning("the queue cannot be seen, jobs go on meanwhile: %s", error)
            self._is_deaf = True
            return False
        self._is_deaf = False
        missing = [job_id for job_id in self.jobs if job_id not in states]
        states |= accounted_states(missing)
        self._answered_at = now = self._clock()
        self._answered_at_time = time.time()
        for job_id, job in self.jobs.items():
            if job_id in states:
                known = states[job_id]
                restarts = job.state.restarts if known.restarts is None else known.restarts
                job.state = replace(known, restarts=restarts, node=known.node or job.state.node)
                job.unknown_since = None
                job.over_since = None if known.phase != "over" else now if job.over_since is None else job.over_since
            else:
                job.unknown_since = now if job.unknown_since is None else job.unknown_since
        return True


def array_of(job_id: str) -> str:
    """Return the array that a job belongs to."""
    return job_id.partition("_")[0]


def accounted_states(job_ids: list[str]) -> dict[str, JobState]:
    """Return job -> state of those jobs, which the controller has forgotten, that the accounting knows to be over."""
    if not job_ids:
        return {}
    try:
        found = sacct_states(sorted({array_of(job_id) for job_id in job_ids}))
    except SlurmError as error:
        log.info("no accounting: %s", error)
        return {}
    # what the accounting still calls alive, the controller knows better: it has forgotten it
    return {job_id: found[job_id] for job_id in job_ids if job_id in found and found[job_id].phase == "over"}
