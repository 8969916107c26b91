"""The jobs that a launch watches on a SLURM cluster, and their states: one query for all, in a thread of its own."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from depthrate.orchestrator.executors.slurm.request_budget import RequestBudget
from depthrate.orchestrator.executors.slurm.submissions import Submission, SubmittedPack
from depthrate.slurm.command import SlurmError
from depthrate.slurm.job_states import JobState, parse_array_id, sacct_states, squeue_states
from depthrate.slurm.profile import CHECKPOINT_GRACE_S

log = logging.getLogger("depthrate")
UNKNOWN_S = 20.0
"""How long a job may be unknown to squeue and sacct alike before its silence counts."""
QUICK_ANSWER_S = 1.0
"""How long a poll waits for the controller's answer, which usually takes a tenth of that; a later poll takes a slower one."""


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


class _Query(threading.Thread):
    """Asks the controller for the states of jobs, and the accounting for those that it has forgotten."""

    def __init__(self, job_ids: Collection[str]):
        super().__init__(daemon=True)
        self.job_ids = list(job_ids)
        self.states: dict[str, JobState] = {}
        self.error: Exception | None = None
        self.took_s = 0.0

    def run(self) -> None:
        began = time.monotonic()
        try:
            self.states = squeue_states(self.job_ids)
            self.took_s = time.monotonic() - began
            self.states |= accounted_states([job_id for job_id in self.job_ids if job_id not in self.states])
        except Exception as error:
            self.took_s = time.monotonic() - began
            self.error = error


class JobQueue:
    """The jobs that are not over, as the controller and the accounting know them."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        grace_s: float = CHECKPOINT_GRACE_S,
        poll_s: float | None = None,
    ):
        self.jobs: dict[str, WatchedJob] = {}
        self.requests = RequestBudget(clock, poll_s)
        self._grace_s = grace_s
        self._clock = clock
        self._query: _Query | None = None
        self._has_failed = False
        """Whether the last query that ended got no answer, which was logged."""
        self.is_away = False
        """Whether the controller has not answered the last query, or takes longer than usual to."""
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

    def overdue(self, limit_s: float) -> list[WatchedJob]:
        """Return the jobs that still ran after their whole time, when the scheduler last answered.

        It ends such a job up to half a minute late.
        """
        until = self._answered_at_time - limit_s
        return [job for job in self.jobs.values() if job.is_running and (job.state.started_at or math.inf) < until]

    def forget(self, job: WatchedJob) -> None:
        """Watch a job no longer."""
        del self.jobs[job.job_id]

    def poll_if_due(self, *, is_news_due: bool = False) -> None:
        """Ask for the jobs' states if the controller may be asked now, and take its answer if it has given one."""
        if self._query is not None:
            self._take_answer(0.0)
        elif self.requests.may_poll(is_news_due=is_news_due):
            self._query = _Query(self.jobs)
            self._query.start()
            self._take_answer(QUICK_ANSWER_S)

    def _take_answer(self, timeout_s: float) -> None:
        if self._query is None:
            return
        self._query.join(timeout_s)
        if self._query.is_alive():
            self.is_away = True
            return
        query, self._query = self._query, None
        self.requests.note_look(query.took_s, has_answered=query.error is None)
        if query.error is not None and not isinstance(query.error, SlurmError):
            raise query.error
        if query.error is not None and not self._has_failed:
            log.warning("the queue cannot be seen, jobs go on meanwhile: %s", query.error)
        self.is_away = self._has_failed = query.error is not None
        if not self.is_away:
            self._update(query)

    def _update(self, query: _Query) -> None:
        self._answered_at = now = self._clock()
        self._answered_at_time = time.time()
        arrays = {parse_array_id(job_id) for job_id in query.states}
        for job_id in query.job_ids:
            job = self.jobs.get(job_id)
            if job is None:
                continue
            known = query.states.get(job_id)
            if known is None and job.is_waiting and not job.state.restarts and parse_array_id(job_id) in arrays:
                known = JobState("CANCELLED")  # an element cancelled alone while it waited is listed nowhere
            if known is None:
                job.unknown_since = now if job.unknown_since is None else job.unknown_since
                continue
            restarts = job.state.restarts if known.restarts is None else known.restarts
            job.state = replace(known, restarts=restarts, node=known.node or job.state.node)
            job.unknown_since = None
            job.over_since = None if known.phase != "over" else now if job.over_since is None else job.over_since


def accounted_states(job_ids: Collection[str]) -> dict[str, JobState]:
    """Return job -> state of those jobs, which the controller has forgotten, that the accounting knows to be over."""
    try:
        found = sacct_states(job_ids) if job_ids else {}
    except SlurmError as error:
        log.info("no accounting: %s", error)
        return {}
    # what the accounting still calls alive, the controller knows better: it has forgotten it
    return {job_id: found[job_id] for job_id in job_ids if job_id in found and found[job_id].phase == "over"}
