"""The attempts that run: their heartbeats, the room that they need in the store, and what becomes of those that ended."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from depthrate.orchestrator.attempts.liveness import heartbeat_s, stale_after_s
from depthrate.orchestrator.attempts.node_health import NodeMonitor
from depthrate.orchestrator.attempts.record import classify_failure, read_attempts, write_lost
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import AttemptEnd, Executor, RequeueReason
from depthrate.orchestrator.executors.options import JobOptions
from depthrate.orchestrator.launch.batching import split_failed
from depthrate.orchestrator.launch.events import log_event
from depthrate.orchestrator.launch.failed_packs import FailedPacks
from depthrate.orchestrator.launch.pack_entry import QueuedPack
from depthrate.orchestrator.launch.pack_queue import PackQueue
from depthrate.storage.attempts.heartbeats import Heartbeat, NodeHeartbeats
from depthrate.storage.attempts.records import Record
from depthrate.storage.files.full import free_bytes, size_text
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.states import AttemptState, FailureKind

log = logging.getLogger("depthrate")
MAX_NODES_PER_POLL, HEARTBEATS_PER_POLL = 100, 2
"""Nodes whose heartbeats are read at most in one poll, and every how many heartbeats there is one."""
MIN_PACK_BYTES = 16_000
"""That a pack writes at least: its record, its log, its rows."""


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
        self.failed = FailedPacks(store, queue, self._nodes.health, executor.has_other_nodes, clock)
        self.running: dict[str, QueuedPack] = {}
        """By the attempt as it was submitted, by this launch or by one that this launch takes over."""
        self.is_store_full = False
        """Whether the store's file system was full at the last update, so that nothing more should start."""
        self._beats = NodeHeartbeats(store, sweep, max_files=MAX_NODES_PER_POLL)
        self._newest: Mapping[str, Heartbeat] = {}
        self._next_poll = float("-inf")
        self._ended: set[str] = set()
        """Attempts, as they ran, that are over."""

    @property
    def trial_ids(self) -> set[str]:
        """The trials that run, or are submitted."""
        return {trial_id for entry in self.running.values() for trial_id in entry.trial_ids}

    def add(self, attempts: Mapping[str, QueuedPack]) -> None:
        """Watch attempts that are submitted."""
        self.running |= attempts
        self._queue.peers.register_attempts(self._sweep, *attempts)

    def take_over(self) -> None:
        """Watch the jobs of a launch that left, perhaps since this one was planned, where a scheduler still has them."""
        jobs = self._executor.adopt_submitted()
        self.add(self._queue.adopt({name: jobs[name] for name in jobs.keys() - self.running.keys()}))

    def update(self) -> list[AttemptEnd]:
        """Read heartbeats, check the store and the nodes; return the silent attempts that were ended and no poll returns."""
        self._read_heartbeats()
        self._check_store()
        self._nodes.update()
        return self._end_silent()

    def _read_heartbeats(self) -> None:
        started = self._executor.running()
        if started and self._clock() >= self._next_poll:
            self._newest = self._beats.poll()
            self._next_poll = self._clock() + HEARTBEATS_PER_POLL * heartbeat_s(self._store)
        for attempt_id, entry in self.running.items():
            if attempt_id not in started:
                entry.beat = entry.heartbeat_seen_at = None
                continue
            beat = self._newest.get(started[attempt_id]) or entry.beat or {}
            if entry.heartbeat_seen_at is None or beat.get("heartbeat_at") != (entry.beat or {}).get("heartbeat_at"):
                entry.heartbeat_seen_at = self._clock()
            entry.beat = beat

    def _check_store(self) -> None:
        """See whether the store's file system is full, and tell the user."""
        beats = [entry.beat for entry in self.running.values() if entry.beat is not None]
        waiting = [beat["needs_bytes"] for beat in beats if "needs_bytes" in beat]
        free = free_bytes(self._store.root) if self._store.is_local else None
        needed = max(sum(waiting), MIN_PACK_BYTES * (len(self.running) + 1))
        is_short = free is not None and free < needed
        self.is_store_full = bool(waiting) or is_short
        if self.is_store_full:
            there = "" if free is None else f"{size_text(free)} free, "
            if free is not None and not is_short:  # a quota, say, which the file system's free space does not show
                there = f"a write failed although {size_text(free)} are free (a quota?), "
            full = f"no room in store {self._store.url}: {there}about {size_text(needed)} needed now"
            kept = f"{counted(len(waiting), 'running pack holds', 'running packs hold')} what has finished, "
            log_event(
                "", f"{full}; {kept if waiting else ''}nothing is lost: make room there and it goes on", is_state=True
            )

    def _end_silent(self) -> list[AttemptEnd]:
        """End attempts without a heartbeat for longer than they may stall: one that is stopped cannot end itself."""
        if self._options.stall_minutes is None:
            return []
        now, interval_s = self._clock(), self._options.beat_s or heartbeat_s(self._store)
        limit_s = stale_after_s(interval_s, min_s=60 * self._options.stall_minutes)
        heard = {
            attempt_id: entry.heartbeat_seen_at
            for attempt_id, entry in self.running.items()
            if entry.heartbeat_seen_at is not None
        }
        silent_s = {attempt_id: now - at for attempt_id, at in heard.items() if now - at > limit_s}
        if not silent_s:
            return []
        try:
            self._store.check_writable()
        except StoreError as error:  # then no attempt can write a heartbeat
            log.info("heartbeats cannot be expected: %s", error)
            for attempt_id in heard:
                self.running[attempt_id].heartbeat_seen_at = now
            return []
        ends = []
        for attempt_id, seconds in silent_s.items():
            self.running[attempt_id].heartbeat_seen_at = now  # once
            why = f"no sign of life for {seconds / 60:.3g} min: ended by --stall-minutes"
            log.warning("attempt %s: %s", attempt_id, why)
            ran_as = self._executor.running().get(attempt_id)
            if not self._executor.terminate(attempt_id, why):
                ends.append(AttemptEnd(attempt_id, why, FailureKind.WORKER_LOST, ran_as))
        return ends

    def settle(self, ends: Sequence[AttemptEnd], *, is_stopping: bool = False) -> bool:
        """Decide what becomes of packs whose jobs ended, with one look at the store for all.

        Returns whether the packs that are left would fail like these.
        """
        self._queue.note_ended()
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
        if entry is None:  # an earlier launch's, and not of this plan: committed since, or submitted once more
            if isinstance(end.kind, FailureKind):  # or of a job that was started anew, and goes on
                error, ago_s = end.exit_message or "", _seconds_since(end)
                health.record_failure(end.node, end.last_attempt_id, end.kind, error=error, ago_s=ago_s)
            return False
        state = None if record is None else record["state"]
        is_told_to_end = state is AttemptState.INTERRUPTED
        if isinstance(end.kind, RequeueReason):
            if end.kind is RequeueReason.CUT_OFF:
                log_event("pack", "cut off by its job's time limit, to go on in another job")
        elif record is not None and state is AttemptState.DONE:
            health.record_success(self._node_of(end, record), end.attempt_id)
            self._queue.record_done(entry, record)
            return False
        elif record is not None and is_told_to_end and end.kind not in (FailureKind.CANCELLED, FailureKind.TIMEOUT):
            if not is_stopping:
                how = "told to end, its state saved, to go on in another job"
                log_event("pack", how, where=record["host"] or "")
        else:
            return self._handle_failure(entry, end, end.kind, record)
        health.forget_attempt(end.attempt_id)
        self._queue.put_back(self._queue.uncommitted(entry))
        return False

    def _handle_failure(self, entry: QueuedPack, end: AttemptEnd, kind: FailureKind, record: Record | None) -> bool:
        kind, error = classify_failure(kind, end.exit_message, record, self._store)
        if end.exit_message is not None and (record is not None or kind is not FailureKind.CANCELLED):
            known = {
                "attempt_id": end.last_attempt_id,
                "sweep": self._sweep,
                "device": self._options.device,
                **end.known,
            }
            packs = {"pack_id": entry.pack.pack_id, "trial_ids": entry.trial_ids}
            over = {"heartbeat_at": end.known.get("ended_at"), "started_at": end.known.get("started_at")}
            with contextlib.suppress(OSError):  # a hint: a store that refuses it stops nothing
                write_lost(self._store, known, packs, record or {}, over, kind=kind, error=error)
        node = self._node_of(end, record)
        pack_id = (record or {}).get("pack_id") or entry.pack.pack_id
        self._nodes.health.record_failure(node, pack_id, kind, end.attempt_id, error or "", _seconds_since(end))
        failed, others = split_failed(self._queue.uncommitted(entry), kind, record)
        self._queue.put_back(others)
        self._queue.batching.note_failure()
        is_hopeless = [self.failed.add(each, kind, end.last_attempt_id, error, node) for each in failed]
        return any(is_hopeless)

    def _node_of(self, end: AttemptEnd, record: Record | None) -> str:
        """Return where an attempt ran, as the executor names it."""
        return end.node or self._nodes.health.node_of(end.attempt_id) or (record or {}).get("host") or ""

    def close(self) -> None:
        """Delete the heartbeats of attempts that are over."""
        with contextlib.suppress(OSError):
            self._beats.delete_ended(self._ended)


def _seconds_since(end: AttemptEnd) -> float:
    """Return how long ago an attempt ended, where its scheduler knows."""
    ended_at = end.known.get("ended_at")
    return 0.0 if ended_at is None else max(0.0, time.time() - ended_at)
