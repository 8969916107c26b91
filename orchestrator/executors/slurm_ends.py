"""How a pack ended on a SLURM cluster: what its record says, and else what the scheduler says of its job.

What a job did stands in the store; what the scheduler says only matters for packs whose attempt has not written its own
end, and a pack counts as lost only when its heartbeat has stopped too.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from depthrate.orchestrator.attempt import heartbeat_s, nth_attempt_id, read_attempt
from depthrate.orchestrator.executors.executor import JobEnd, NoFailure
from depthrate.orchestrator.executors.slurm_queue import WatchedJob
from depthrate.orchestrator.executors.slurm_submissions import SubmittedPack
from depthrate.storage.records import Record
from depthrate.storage.states import AttemptState, FailureKind
from depthrate.storage.store import Store

log = logging.getLogger("depthrate")
SILENT_BEATS = 4
"""Heartbeats that a worker may miss before its silence counts."""
CANCELLED_S = 12.0
"""After a job was cancelled, how long others have to follow before it is submitted again."""
BAD_NODE_AT = 3
"""Packs that a node must fail, with no pack done on it, before it is left out."""
_MEMORY = re.compile(r"oom[-_ ]?kill|exceeded .*memory limit|out of memory", re.IGNORECASE)


class PackEnds:
    """Tells which packs of a job have ended, and how; counts what each node does well and badly."""

    def __init__(self, store: Store, sweep: str):
        self._store, self._sweep = store, sweep
        self.nodes = NodeCounts()

    def take_ended(self, job: WatchedJob, is_over: bool, slots: int) -> list[JobEnd]:
        """Take the packs that ended out of a job, of which `slots` run at once, and return how."""
        if job.state.phase == "waiting" and not is_over:
            if job.state.restarts == 0:
                return []
            job.current.clear()
        ends: list[JobEnd] = []
        left = []
        for position, pack in enumerate(job.packs):
            if not is_over and position >= slots + len(ends):
                left += job.packs[position:]  # packs run in order: these cannot have started
                break
            end = self._end_of(job, pack, is_over)
            if end is None:
                left.append(pack)
            else:
                ends.append(end)
                job.current.pop(pack.attempt_id, None)
        job.packs = left
        return ends

    def _end_of(self, job: WatchedJob, pack: SubmittedPack, is_over: bool) -> JobEnd | None:
        attempt_id, record = self._newest_record(pack, job.state.restarts or 0)
        state = record.get("state")
        job.has_begun = job.has_begun or state is not None
        if state in (AttemptState.DONE, AttemptState.FAILED, AttemptState.LOST):
            if state is not AttemptState.FAILED:  # an exception in the task is no node's doing
                self.nodes.count(job.state.node, state is AttemptState.DONE)
            return JobEnd(pack.attempt_id, ran_as=attempt_id)
        if state is AttemptState.INTERRUPTED and is_over:
            return _interrupted(job, pack, attempt_id, record)
        if state is not None:
            job.current[pack.attempt_id] = attempt_id
        if not is_over:
            return None
        silent_s = time.time() - (record.get("heartbeat_at") or 0.0)
        if state is AttemptState.RUNNING and silent_s < SILENT_BEATS * heartbeat_s(self._store):
            return None  # the scheduler says it is over, its heartbeat says it is not
        return self._lost(job, pack, attempt_id, has_record=state is not None)

    def _lost(self, job: WatchedJob, pack: SubmittedPack, attempt_id: str, *, has_record: bool) -> JobEnd:
        """Return the end of a pack whose job is over without a word of its own."""
        is_known = job.unknown_since is None
        how = f"job {job.job_id} ended as {job.state.state}" if is_known else f"job {job.job_id} is gone"
        how += f" on {job.state.node}" if job.state.node else ""
        printed = job.submission.printed_by(job.job_id)
        how += f": {_last_words(printed)}" if printed.strip() else ""
        kind: FailureKind | NoFailure = _kind(job, printed)
        had_no_time = job.has_begun and job.state.state in ("COMPLETED", "TIMEOUT")
        if not has_record and had_no_time and kind is not FailureKind.OUT_OF_MEMORY:
            kind = NoFailure.NOT_STARTED  # the job had no time left for this pack
        elif kind in (FailureKind.WORKER_LOST, FailureKind.NODE_LOST) or not job.has_begun:
            self.nodes.count(job.state.node, False)
        return JobEnd(pack.attempt_id, how, kind, attempt_id)

    def _newest_record(self, pack: SubmittedPack, restarts: int) -> tuple[str, Record]:
        """Return (attempt, record) of a pack's last start that left one."""
        for restart in range(restarts + 1, -1, -1):  # one more than we know of: it may have just been started anew
            attempt_id = nth_attempt_id(pack.attempt_id, restart)
            record = read_attempt(self._store, self._sweep, attempt_id)
            if record is not None:
                return attempt_id, record
        return pack.attempt_id, {}


class NodeCounts:
    """How often packs were done and failed on each node."""

    def __init__(self) -> None:
        self._done: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self.excluded: list[str] = []
        """Nodes that failed too often, which jobs avoid from then on."""

    def count(self, node: str, done: bool) -> None:
        """Note how a node does, and leave it out if all it does is fail."""
        if not node:
            return
        (self._done if done else self._failed)[node] += 1
        others_work = any(count for other, count in self._done.items() if other != node)
        if self._failed[node] >= BAD_NODE_AT and not self._done[node] and others_work and node not in self.excluded:
            self.excluded.append(node)
            log.warning("node %s failed %d packs and did none: jobs avoid it from now on", node, self._failed[node])


class CancelledEnds:
    """Keeps cancelled packs back until it is clear whether somebody cancelled one job or everything that was left."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._held: list[JobEnd] = []
        self._since = 0.0

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, ends: list[JobEnd], *, jobs_left: bool) -> list[JobEnd]:
        """Return the ends that can be told now; `jobs_left` says whether any job goes on."""
        others = [end for end in ends if end.kind is not FailureKind.CANCELLED]
        cancelled = [end for end in ends if end.kind is FailureKind.CANCELLED]
        if cancelled:
            self._held += cancelled
            self._since = self._clock()
        if self._held and not jobs_left:
            everything = len(self._held) > 1 and not others
            kind = NoFailure.CANCELLED_ALL if everything else FailureKind.CANCELLED
            others += [replace(end, kind=kind) for end in self._held]
            self._held = []
        elif self._clock() - self._since >= CANCELLED_S:
            others += self._held
            self._held = []
        return others


def _interrupted(job: WatchedJob, pack: SubmittedPack, attempt_id: str, record: Record) -> JobEnd:
    """Return the end of a pack that saved its state when its job was told to end."""
    if job.unknown_since is None and job.state.kind == FailureKind.CANCELLED:
        return JobEnd(pack.attempt_id, f"job {job.job_id} was cancelled", FailureKind.CANCELLED, attempt_id)
    got_nowhere = not record.get("checkpoints") and not record.get("trials_done")
    if got_nowhere and job.state.state in ("COMPLETED", "TIMEOUT"):
        how = f"job {job.job_id} had no time to save anything; a longer walltime_min is needed"
        return JobEnd(pack.attempt_id, how, FailureKind.TIMEOUT, attempt_id)
    return JobEnd(pack.attempt_id, ran_as=attempt_id)


def _kind(job: WatchedJob, printed: str) -> FailureKind:
    """Return the kind of failure of a job that is over, also where the scheduler hides that memory ran out."""
    if job.unknown_since is not None:
        return FailureKind.WORKER_LOST
    if job.state.kind == FailureKind.WORKER_LOST and _MEMORY.search(printed):
        return FailureKind.OUT_OF_MEMORY
    return FailureKind(job.state.kind)


def _last_words(printed: str) -> str:
    """Return the last lines of what a job printed, without what SLURM's own programs say about its end."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(("srun:", "slurmstepd"))]
    return " / ".join((own or lines)[-3:])
