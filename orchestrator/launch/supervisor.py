"""Watch running attempts: their heartbeats, the free space in the store, and the consequences of their ends."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from depthrate.orchestrator.attempts.events import log_event
from depthrate.orchestrator.attempts.liveness import heartbeat_s, stale_after_s
from depthrate.orchestrator.attempts.options import JobOptions
from depthrate.orchestrator.attempts.record import classify_failure, lost_attempt, read_attempts, write_lost
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import AttemptEnd, Executor, RequeueReason
from depthrate.orchestrator.launch.batching import QueuedPack, split_failed
from depthrate.orchestrator.launch.failed_packs import FailedPacks
from depthrate.orchestrator.launch.node_monitor import NodeMonitor
from depthrate.orchestrator.launch.pack_queue import PackQueue
from depthrate.storage.attempts.heartbeats import Heartbeat, NodeHeartbeats
from depthrate.storage.attempts.records import Record
from depthrate.storage.files.full import free_bytes, size_text
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.states import AttemptState, FailureKind

log = logging.getLogger("depthrate")
MAX_NODES_PER_POLL = 100
"""Maximum number of nodes whose heartbeats are read in one poll."""
HEARTBEATS_PER_POLL = 2
"""Interval between two polls, in heartbeat intervals."""
MIN_PACK_BYTES = 16_000
"""Minimum number of bytes that a pack needs for its record, log and rows."""


class AttemptSupervisor:
    """Watches the attempts of a launch from their submission to their end."""

    def __init__(
        self,
        store: Store,
        sweep: str,
        executor: Executor,
        options: JobOptions,
        queue: PackQueue,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._store, self._sweep, self._executor, self._options = store, sweep, executor, options
        self._queue, self._clock = queue, clock
        self._nodes = NodeMonitor(store, sweep, executor, clock)
        self.failed = FailedPacks(store, queue, self._nodes.health, executor, clock)
        self.running: dict[str, QueuedPack] = {}
        """Attempt, as submitted by this launch or an adopted launch -> entry."""
        self.is_store_full = False
        """True if the store was full at the last update, so that no more packs should start."""
        self._heartbeats = NodeHeartbeats(store, sweep, max_files=MAX_NODES_PER_POLL)
        self._latest_heartbeats: Mapping[str, Heartbeat] = {}
        self._next_poll = float("-inf")
        self._ended: set[str] = set()
        """IDs under which the ended attempts ran."""

    @property
    def trial_ids(self) -> set[str]:
        """Running and submitted trials."""
        return {trial_id for entry in self.running.values() for trial_id in entry.trial_ids}

    def add(self, attempts: Mapping[str, QueuedPack]) -> None:
        """Watch submitted attempts."""
        self.running |= attempts
        self._queue.peers.register_attempts(self._sweep, *attempts)

    def adopt_submitted(self) -> None:
        """Watch the jobs that peer launches left in the scheduler."""
        jobs = self._executor.submitted(refresh=True)
        self.add(self._queue.adopt({name: jobs[name] for name in jobs.keys() - self.running.keys()}))

    def update(self) -> list[AttemptEnd]:
        """Read heartbeats and check the store and the nodes. Return the terminated attempts that no poll will return."""
        self._read_heartbeats()
        self._check_store()
        self._nodes.update()
        return self._terminate_stale()

    def _read_heartbeats(self) -> None:
        started = self._executor.running()
        if started and self._clock() >= self._next_poll:
            self._latest_heartbeats = self._heartbeats.poll()
            self._next_poll = self._clock() + HEARTBEATS_PER_POLL * heartbeat_s(self._store)
        for attempt_id, entry in self.running.items():
            if attempt_id not in started:
                entry.beat = entry.heartbeat_seen_at = None
                continue
            beat = self._latest_heartbeats.get(started[attempt_id]) or entry.beat or {}
            if entry.heartbeat_seen_at is None or beat.get("heartbeat_at") != (entry.beat or {}).get("heartbeat_at"):
                entry.heartbeat_seen_at = self._clock()
                self._nodes.record_speed(self._nodes.health.node_of(attempt_id), self._queue.shape_of(entry), beat)
            entry.beat = beat

    def _check_store(self) -> None:
        """Update `is_store_full`, and log an event if the store is full."""
        beats = [entry.beat for entry in self.running.values() if entry.beat is not None]
        waiting = [beat["needs_bytes"] for beat in beats if "needs_bytes" in beat]
        free = free_bytes(self._store.root) if self._store.local_folder else None
        needed = max(sum(waiting), MIN_PACK_BYTES * (len(self.running) + 1))
        is_short = free is not None and free < needed
        self.is_store_full = bool(waiting) or is_short
        if self.is_store_full:
            space = "" if free is None else f"{size_text(free)} free, "
            if free is not None and not is_short:  # the free space does not reflect a quota
                space = f"a write failed although {size_text(free)} are free (quota?), "
            buffered = f" {counted(len(waiting), 'running pack buffers', 'running packs buffer')} finished trials."
            log_event(
                "",
                f"store {self._store.url} is full: {space}about {size_text(needed)} needed.{buffered if waiting else ''}"
                " Nothing is lost. Free some space to continue.",
                is_state=True,
            )

    def _terminate_stale(self) -> list[AttemptEnd]:
        """Terminate attempts without a heartbeat for longer than --stall-minutes. A stopped worker cannot end itself."""
        if self._options.stall_minutes is None:
            return []
        now, interval_s = self._clock(), self._options.beat_s or heartbeat_s(self._store)
        limit_s = stale_after_s(interval_s, min_s=60 * self._options.stall_minutes)
        seen_at = {
            attempt_id: entry.heartbeat_seen_at
            for attempt_id, entry in self.running.items()
            if entry.heartbeat_seen_at is not None
        }
        stale_s = {attempt_id: now - at for attempt_id, at in seen_at.items() if now - at > limit_s}
        if not stale_s:
            return []
        try:
            self._store.check_writable()
        except StoreError as error:  # no attempt can write a heartbeat
            log.info("store not writable, no heartbeats expected: %s", error)
            for attempt_id in seen_at:
                self.running[attempt_id].heartbeat_seen_at = now
            return []
        ends = []
        for attempt_id, seconds in stale_s.items():
            self.running[attempt_id].heartbeat_seen_at = now  # do not terminate it again at the next update
            reason = f"no heartbeat for {seconds / 60:.3g} min: terminated by --stall-minutes"
            log.warning("attempt %s: %s", attempt_id, reason)
            last_attempt_id = self._executor.running().get(attempt_id)
            if not self._executor.terminate(attempt_id, reason):
                ends.append(AttemptEnd(attempt_id, reason, FailureKind.WORKER_LOST, last_attempt_id))
        return ends

    def settle(self, ends: Sequence[AttemptEnd], *, is_stopping: bool = False) -> bool:
        """Handle ended attempts with one read of the store. Return whether the remaining packs would fail in the same way."""
        self._queue.record_ended()
        unread = [end for end in ends if not isinstance(end.kind, RequeueReason) and end.record is None]
        names = [end.last_attempt_id for end in unread if end.attempt_id in self.running]
        records = read_attempts(self._store, self._sweep, names)
        self._ended |= {end.last_attempt_id for end in ends}
        is_hopeless = False
        for end in ends:
            is_hopeless |= self._settle(end, end.record or records.get(end.last_attempt_id), is_stopping)
        self._nodes.update()  # before anything is submitted again
        self.failed.report()
        return is_hopeless

    def _settle(self, end: AttemptEnd, record: Record | None, is_stopping: bool) -> bool:
        entry, health = self.running.pop(end.attempt_id, None), self._nodes.health
        if entry is None:  # an earlier launch's attempt outside this plan: committed since, or resubmitted
            if isinstance(end.kind, FailureKind):  # or an earlier start of a job that SLURM has restarted
                error, ago_s = end.exit_message or "", _seconds_since(end)
                health.record_failure(end.node, end.last_attempt_id, end.kind, error=error, ago_s=ago_s)
            return False
        state = None if record is None else record["state"]
        is_interrupted = state is AttemptState.INTERRUPTED
        if isinstance(end.kind, RequeueReason):
            if end.kind is RequeueReason.CUT_OFF:
                log_event("pack", "requeued at the job's time limit")
        elif record is not None and state is AttemptState.DONE:
            node = self._node_of(end, record)
            self._nodes.record_speed(node, self._queue.shape_of(entry), record)
            health.record_success(node, end.attempt_id)
            self._queue.record_done(entry, record)
            return False
        elif record is not None and is_interrupted and end.kind not in (FailureKind.CANCELLED, FailureKind.TIMEOUT):
            if not is_stopping:
                saved = ", checkpointed" if record["checkpoints"] else ""
                log_event("pack", f"interrupted{saved} and requeued", where=record["host"] or "")
        else:
            return self._handle_failure(entry, end, end.kind, record)
        health.forget_attempt(end.attempt_id)
        self._queue.put_back(self._queue.uncommitted(entry))
        return False

    def _handle_failure(self, entry: QueuedPack, end: AttemptEnd, kind: FailureKind, record: Record | None) -> bool:
        kind, error = classify_failure(kind, end.exit_message, record, self._store)
        if end.exit_message is not None and (record is not None or kind is not FailureKind.CANCELLED):
            facts = replace(
                end.scheduler_facts, pack_id=entry.pack.pack_id, trial_ids=entry.trial_ids, device=self._options.device
            )
            lost = lost_attempt(end.last_attempt_id, self._sweep, record, kind=kind, error=error, facts=facts)
            with contextlib.suppress(OSError):  # the record is informative only
                write_lost(self._store, lost)
        node = self._node_of(end, record)
        pack_id = (record or {}).get("pack_id") or entry.pack.pack_id
        self._nodes.health.record_failure(node, pack_id, kind, end.attempt_id, error or "", _seconds_since(end))
        failed, others = split_failed(self._queue.uncommitted(entry), kind, record)
        self._queue.put_back(others)
        self._queue.batching.record_failure()
        is_hopeless = [self.failed.add(failed_entry, kind, error, node) for failed_entry in failed]
        return any(is_hopeless)

    def _node_of(self, end: AttemptEnd, record: Record | None) -> str:
        """Return an attempt's node under the executor's name for it."""
        return end.node or self._nodes.health.node_of(end.attempt_id) or (record or {}).get("host") or ""

    def close(self) -> None:
        """Delete the heartbeats of ended attempts."""
        with contextlib.suppress(OSError):
            self._heartbeats.delete_ended(self._ended)


def _seconds_since(end: AttemptEnd) -> float:
    """Return the seconds since the end of an attempt, or 0.0 if the scheduler does not report it."""
    ended_at = end.scheduler_facts.ended_at
    return 0.0 if ended_at is None else max(0.0, time.time() - ended_at)
