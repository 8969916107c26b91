"""The loop that brings a plan to its end: submit, poll, retry, until nothing is pending."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from depthrate.orchestrator.attempts.cancellation import forced_attempts, read_cancel_mark
from depthrate.orchestrator.attempts.liveness import heartbeat_s, stale_after_s
from depthrate.orchestrator.attempts.node_health import NodeMonitor
from depthrate.orchestrator.attempts.record import failure_of, new_attempt_id, read_attempts, write_lost
from depthrate.orchestrator.attempts.retry import (
    STOP_AFTER_PACKS,
    Backoff,
    Decision,
    Failure,
    decide,
    error_pattern,
    retry_delay_s,
)
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import (
    Executor,
    JobEnd,
    NoFailure,
    NoRoomError,
    PackJob,
    SubmitError,
    SubmitRateError,
)
from depthrate.orchestrator.executors.options import JobOptions
from depthrate.orchestrator.launch.batching import Batching, blamed, grouped, trials_of
from depthrate.orchestrator.launch.events import GIVEN_UP, note
from depthrate.orchestrator.launch.peers import PeerLaunches
from depthrate.orchestrator.launch.plan import Plan, halved
from depthrate.orchestrator.launch.progress import Detached, Feed, Outcome, PackEntry, PackFailure, Watcher, progress_of
from depthrate.storage.attempts.heartbeats import Beat, Beats
from depthrate.storage.attempts.records import Record
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.full import free_bytes, size_text
from depthrate.storage.files.paths import checkpoint_folder
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.sweeps.packing import Pack

log = logging.getLogger("depthrate")


AGAIN_AFTER_S = 5.0
"""Seconds after which a search is asked again that could not read the store."""


class SearchQueue:
    """Asks a search for packs; without one there are never any."""

    def __init__(self, feed: Feed | None, *, is_due: bool):
        self._feed, self._is_due = feed, is_due
        self._not_before = float("-inf")
        self.added: list[Pack] = []
        """Packs that the search gave."""

    @property
    def has_more(self) -> bool:
        """Whether the search may give more, now that something has ended."""
        return self._feed is not None and self._is_due and not self._feed.is_over

    def note_end(self) -> None:
        """Note that something has ended since the search was last asked."""
        self._is_due = True

    def next_packs(self, now: float, failures: Iterable[PackFailure]) -> Sequence[Pack]:
        """Return what the search proposes now that something has ended."""
        if self._feed is None or not self._is_due or now < self._not_before:
            return ()
        given_up = {trial_id for failure in failures for trial_id in failure.pack.trial_ids}
        try:
            packs = self._feed.next_packs(given_up)
        except (OSError, StoreError) as error:
            log.warning("search: store not read: %s", error)
            self._not_before = now + AGAIN_AFTER_S
            return ()
        self._is_due = False
        self.added += packs
        return packs

    def pruning(self, trial_ids: Iterable[str]) -> list[Mapping[str, Any] | None] | None:
        """Return of each trial by which rule it may leave its pack; None without a search."""
        return None if self._feed is None else [self._feed.pruning(trial_id) for trial_id in trial_ids]


BEATS_A_LOOK, BEATS_HEARD = 100, 2
"""Nodes that are asked at most for their progress in one look, and every how many of the shortest heartbeats."""


class HeartbeatReader:
    """Listens to the nodes on which a launch's attempts run."""

    def __init__(self, store: Store, sweep: str, clock: Callable[[], float]):
        self._store, self._clock = store, clock
        self._beats = Beats(store, sweep, most=BEATS_A_LOOK)
        self._heard: Mapping[str, Beat] = {}
        self._next = float("-inf")
        self._ended: set[str] = set()
        """Attempts, as they ran, that are over."""

    def hear(self, started: Mapping[str, str], known: Mapping[str, Beat | None]) -> dict[str, Beat | None]:
        """Return attempt -> how far it is: empty before that was heard, None before it has started.

        `started` is attempt -> as what it runs, `known` what was returned before.
        """
        if started and self._clock() >= self._next:
            self._heard = self._beats.look()
            self._next = self._clock() + BEATS_HEARD * heartbeat_s(self._store)
        return {
            attempt: self._heard.get(started[attempt]) or before or {} if attempt in started else None
            for attempt, before in known.items()
        }

    def note_end(self, attempt: str) -> None:
        """Note that an attempt is over."""
        self._ended.add(attempt)

    def leave(self) -> None:
        """Take away what nodes said of attempts that are over."""
        with contextlib.suppress(OSError):
            self._beats.delete_ended(self._ended)


class CommittedTrials:
    """Looks at a store; each look shows the snapshot also to who keeps the store tidy."""

    def __init__(self, store: Store, known: Iterable[str], upkeep: Callable[[Snapshot], object]):
        self._store, self._upkeep = store, upkeep
        self._cache = SnapshotCache()
        self._last = set(known)
        self._is_recent = False

    def forget(self) -> None:
        """Note that something has ended, so that what was seen before it is no answer any more."""
        self._is_recent = False

    def since_then(self) -> set[str]:
        """Return what was committed when `forget` was called or later; one look does for all that ended together."""
        return self._last if self._is_recent else self.look()

    def look(self) -> set[str]:
        """Return what is committed, as last seen if the store does not answer just now."""
        try:
            snapshot = take_snapshot(self._store, cache=self._cache)
            self._last = snapshot.trial_ids()
            self._is_recent = True
            self._upkeep(snapshot)
        except (OSError, StoreError) as error:
            log.warning("store not read: %s", error)
        return self._last


SUBMIT_PAUSE_S = 30.0
"""Before a scheduler that took nothing is asked again."""
LOOK_AT_OTHERS_S, LOOK_ALONE_S = 5.0, 60.0
"""Seconds between two looks at what other launches run and have committed: while there are any, and while none has shown
itself, which costs one request to see."""
ROOM_A_PACK = 16_000
"""Bytes that a pack writes at least: its record, its log, its rows."""
REST = 20
"""Looks take at most this part of a launch's time: what took a second is not done again for so many seconds."""


@dataclass
class _Failed:
    """A pack whose attempt failed, and what becomes of it."""

    entry: PackEntry
    """As it waits to be tried again, if it does."""
    attempt_id: str
    node: str
    error: str
    outcome: str = "tried again"


class Driver:
    """Runs the packs of a plan through an executor; what is done is only ever read from the store."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        executor: Executor,
        options: JobOptions,
        watch: Watcher,
        clock: Callable[[], float] = time.monotonic,
        upkeep: Callable[[Snapshot], object] = lambda snapshot: None,
        estimate_s: Callable[[Pack], float | None] = lambda pack: None,
        feed: Feed | None = None,
    ):
        self.store, self.executor, self.options, self.watch, self._clock = store, executor, options, watch, clock
        self._estimate_s = estimate_s
        """Gives the rough seconds of a pack on one core."""
        self._search_queue = SearchQueue(feed, is_due=not plan.packs)
        self.sweep = plan.checked.sweep
        self.queue = deque(PackEntry(pack) for pack in plan.packs)
        self.running = {attempt_id: PackEntry(pack) for attempt_id, pack in plan.underway.items()}
        """By the attempt as it was submitted, by this launch or by one that this launch goes on from."""
        self.failures: list[PackFailure] = []
        self._errors = Counter[str]()
        self._done_before = self.trials_done = len(plan.done)
        self._untried = defaultdict[str, list[_Failed]](list)
        """Error of a task -> packs that have met it, before anything has gone well."""
        self._to_tell: list[_Failed] = []
        """Packs that failed, as long as others that ended with them are looked at."""
        self.stopping = self.stopped_early = self.cancelled = self._has_submitted = False
        self._cancel_mark = read_cancel_mark(store, self.sweep.name)
        self._others = PeerLaunches(store, self.sweep.name, new_attempt_id())
        self._batching = Batching(is_possible=executor.takes_batches and feed is None)
        self._others.note_own(self.sweep.name, *self.running)
        self._nodes = NodeMonitor(store, self.sweep.name, executor, clock)
        self._health = self._nodes.health
        self._no_room = Backoff(clock)
        self._waits_for_rate = False
        """Whether that is only because the scheduler is asked no more often."""
        self._is_store_full = False
        self._next_look = self._next_full_look = self._next_tick = float("-inf")
        self._nothing_before = float("-inf")
        """Until when no pack in the queue can become ready by itself."""
        self._committed = CommittedTrials(store, plan.done, upkeep)
        self._heartbeats = HeartbeatReader(store, self.sweep.name, clock)

    def stop(self) -> None:
        """Start nothing more; let what runs save a checkpoint and end, or go on without us where it can."""
        if not self.stopping:
            self.stopping = True
            self.executor.stop()

    def run(self) -> Outcome:
        """Bring every pack to its commit, or give it up."""
        with self._others:
            while (self.running and not self._may_leave()) or (self._has_more() and not self._is_draining):
                if not self._is_draining:
                    packs = self._search_queue.next_packs(self._clock(), self.failures)
                    self.queue.extend(PackEntry(pack) for pack in packs)
                    self._submit(self._clock())
                self._handle_all(self.executor.poll(timeout_s=0.2))
                if self._clock() >= self._next_tick:
                    self._tick(self._clock())
        self._tell()
        self._heartbeats.leave()
        return Outcome(self.failures, self._is_draining and not self.stopped_early, self.stopped_early, self.cancelled)

    def _tick(self, now: float) -> None:
        """Look at what goes on while packs run, and show it."""
        self._stop_if_cancelled()
        self._others.renew(self._own_trials())
        self._read_progress()
        self._look_for_room()
        self._nodes.update()
        self._end_what_is_silent(now)
        self._tell()
        self._next_tick = now + max(heartbeat_s(self.store) / 2, REST * (self._clock() - now))

    def detach(self) -> Detached:
        """Submit what is pending and fits; the jobs go on without us."""
        with self._others:
            self._submit(self._clock())
            while self._waits_for_rate:
                time.sleep(0.2)
                self._others.renew(self._own_trials())
                self._submit(self._clock())
        elsewhere = sum(not self._others.busy.isdisjoint(entry.pack.trial_ids) for entry in self.queue)
        return Detached(len(self.running), elsewhere, len(self.queue) - elsewhere)

    def _may_leave(self) -> bool:
        return self.stopping and self.executor.outlives_driver

    @property
    def _is_draining(self) -> bool:
        """Whether nothing more begins: asked to stop, or jobs were cancelled, beside which the others go on."""
        return self.stopping or self.cancelled

    def _has_more(self) -> bool:
        return bool(self.queue) or self._search_queue.has_more

    def _stop_if_cancelled(self) -> None:
        mark = read_cancel_mark(self.store, self.sweep.name)
        if mark in (None, self._cancel_mark):
            return
        self._cancel_mark = mark
        if forced_attempts(mark) & self.running.keys() and not self.executor.outlives_driver:
            raise KeyboardInterrupt  # as a second Ctrl-C: workers that hang hear nothing else
        self.cancelled = True
        self.stop()

    def _submit(self, now: float) -> None:
        """Fill the executor; packs that another launch runs wait, and are dropped when it has committed them."""
        if not self.queue or len(self.running) >= self.executor.capacity or self._no_room.is_on:
            return
        if self._is_store_full:
            return
        if now >= self._next_look:
            self._look_for_others(now)
        if now < self._nothing_before:
            return
        self._waits_for_rate = False
        room = self.executor.capacity - len(self.running)
        busy, size = self._others.busy, self._batching.size(len(self.queue), self.executor.workers)
        ready = (e for e in self.queue if now >= e.not_before and busy.isdisjoint(e.pack.trial_ids))
        ahead = max(room, self.executor.capacity // 4)  # claims are asked for rarely
        first = list(islice(ready, room * size + ahead))
        if not self._is_draining and (entries := self._claimed(first, sum(map(len, grouped(first, size, room))))):
            self._submit_jobs([self._job_of(*group) for group in grouped(entries, size, room)])
        else:
            self._nothing_before = min((e.not_before for e in self.queue if e.not_before > now), default=float("inf"))
        if self.stopping:  # asked to while these were on their way
            self.executor.stop()

    def _look_for_room(self) -> None:
        """See whether the store's file system is full, so that nothing more should begin, and say so."""
        holding = [
            entry.beat["needs_bytes"] for entry in self.running.values() if entry.beat and "needs_bytes" in entry.beat
        ]
        free = free_bytes(self.store.root) if self.store.is_local else None
        needed = max(sum(holding), ROOM_A_PACK * (len(self.running) + 1))
        self._is_store_full = bool(holding) or (free is not None and free < needed)
        if self._is_store_full:
            there = "" if free is None else f"{size_text(free)} free, "
            if free is not None and free >= needed:  # a quota, say, which the file system's free space does not show
                there = f"a write failed although {size_text(free)} are free (a quota?), "
            full = f"no room in store {self.store.url}: {there}about {size_text(needed)} needed now"
            kept = f"{counted(len(holding), 'running pack holds', 'running packs hold')} what has finished, "
            note("", f"{full}; {kept if holding else ''}nothing is lost: make room there and it goes on", is_state=True)

    def _claimed(self, ready: list[PackEntry], count: int) -> list[PackEntry]:
        """Return those of the first `count` entries that are this launch's to run, taken from the queue."""
        chosen = ready[:count]
        packs, following = [entry.pack for entry in chosen], [entry.pack for entry in ready[count:]]
        if self._others.claim(packs, following, self._own_trials()) and self._others.were_there:
            committed = self._committed.look()  # by whoever held one of them before, perhaps just now
            for entry in chosen:
                entry.pack = self._without(entry.pack, committed)
        ours = {id(entry) for entry in chosen if self._others.are_ours(entry.pack)}
        self.queue = deque(entry for entry in self.queue if id(entry) not in ours)
        return [entry for entry in chosen if id(entry) in ours and entry.pack.trials]

    def _own_trials(self) -> set[str]:
        return {trial_id for entry in self.running.values() for trial_id in entry.trial_ids}

    def _submit_jobs(self, jobs: list[PackJob]) -> None:
        """Hand jobs over; where a scheduler has taken some before, one that is away is asked again later."""
        try:
            self.executor.submit(jobs)
        except NoRoomError as error:
            self.queue.extendleft(reversed([self.running.pop(job.attempt_id) for job in error.left]))
            note("pack", f"waiting to be submitted: {error}", count=len(error.left), is_state=True)
            self._no_room.wait()
            self._waits_for_rate = isinstance(error, SubmitRateError)
        except SubmitError as error:
            entries = [self.running.pop(job.attempt_id) for job in error.left]
            if not self.running and not self._has_submitted:
                raise
            log.warning("%d packs wait to be submitted again: %s", len(entries), error)
            for entry in entries:
                entry.not_before = self._clock() + SUBMIT_PAUSE_S
            self.queue.extend(entries)
        self._has_submitted = True

    def _job_of(self, entry: PackEntry, *then: PackEntry) -> PackJob:
        """Return a new attempt of a pack, and of those behind it, noted as running."""
        job = PackJob(
            attempt_id=new_attempt_id(),
            sweep=self.sweep.name,
            task=self.sweep.loaded_task,
            **vars(trials_of(entry.pack)),
            pruning=self._search_queue.pruning(entry.pack.trial_ids),
            options=self.options,
            estimated_s=self._estimate_s(entry.pack),
            avoid=entry.avoid,
            then=[trials_of(each.pack) for each in then],
        )
        entry.beat, entry.heard_at, entry.then = None, None, list(then)
        self.running[job.attempt_id] = entry
        self._others.note_own(job.sweep, job.attempt_id)
        return job

    def _handle_all(self, ends: Sequence[JobEnd]) -> None:
        """Decide what becomes of packs that ended, with one look at the store for all."""
        if not ends:
            return
        self._nothing_before = float("-inf")
        self._committed.forget()
        unread = [end for end in ends if not isinstance(end.kind, NoFailure) and end.record is None]
        names = [end.ran_as or end.attempt_id for end in unread if end.attempt_id in self.running]
        records = read_attempts(self.store, self.sweep.name, names)
        for end in ends:
            self._heartbeats.note_end(end.ran_as or end.attempt_id)
            self._handle(end, end.record or records.get(end.ran_as or end.attempt_id))
        self._nodes.update()  # before anything is submitted again
        for failed in self._to_tell:
            note("pack", failed.error or "it left no word", where=failed.node, outcome=failed.outcome)
        self._to_tell.clear()

    def _handle(self, end: JobEnd, record: Record | None) -> None:
        entry = self.running.pop(end.attempt_id, None)
        self._search_queue.note_end()
        self._no_room.end()
        if entry is None:  # an earlier launch's, and not of this plan: committed since, or submitted once more
            if isinstance(end.kind, FailureKind):  # or of a job that was started anew, and goes on
                name = end.ran_as or end.attempt_id
                self._health.record_failure(end.node, name, end.kind, error=end.death or "", ago_s=_ago_s(end))
            return
        if isinstance(end.kind, NoFailure):
            self._health.forget_attempt(end.attempt_id)
            self._requeue(entry)
            if end.kind is NoFailure.CUT_OFF:
                note("pack", "cut off by its job's time limit, to go on in another job")
            return
        state = None if record is None else record["state"]
        if record is not None and state is AttemptState.DONE:
            self._health.record_success(self._node_of(end, record), end.attempt_id)
            self._note_done(entry, record)
        elif state is AttemptState.INTERRUPTED and end.kind not in (FailureKind.CANCELLED, FailureKind.TIMEOUT):
            self._health.forget_attempt(end.attempt_id)
            self._requeue(entry)
            if not self.stopping:
                note(
                    "pack",
                    "told to end, its state saved, to go on in another job",
                    where=record["host"] if record else "",
                )
        else:
            self._handle_failure(entry, end, end.kind, record)

    def _note_done(self, entry: PackEntry, record: Record) -> None:
        ran, given_back = self._batching.note_done(entry.apart(), record)
        self.trials_done += sum(len(each.pack.trials) for each in ran)
        self.queue.extendleft(reversed(given_back))

    def _handle_failure(self, entry: PackEntry, end: JobEnd, kind: FailureKind, record: Record | None) -> None:
        attempt_id = end.ran_as or end.attempt_id
        kind, error = failure_of(kind, end.death, record, self.store)
        if end.death is not None and (record is not None or kind is not FailureKind.CANCELLED):
            known = {"attempt_id": attempt_id, "sweep": self.sweep.name, "device": self.options.device, **end.known}
            packs = {"pack_id": entry.pack.pack_id, "trial_ids": entry.trial_ids}
            over = {"heartbeat_at": end.known.get("ended_at"), "started_at": end.known.get("started_at")}
            with contextlib.suppress(OSError):  # a hint: a store that refuses it stops nothing
                write_lost(self.store, known, packs, record or {}, over, kind=kind, error=error)
        node = self._node_of(end, record)
        pack_id = (record or {}).get("pack_id") or entry.pack.pack_id
        self._health.record_failure(node, pack_id, kind, end.attempt_id, error or "", _ago_s(end))
        guilty, others = blamed(self._uncommitted(entry), kind, record)
        self.queue.extendleft(reversed(others))
        self._batching.note_failure()
        for each in guilty:
            each.failures.append(Failure(node, kind))
            self._retry(each, attempt_id, kind, error, node)

    def _node_of(self, end: JobEnd, record: Record | None) -> str:
        """Return where an attempt ran, as the executor names it."""
        return end.node or self._health.node_of(end.attempt_id) or (record or {}).get("host") or ""

    def _retry(self, entry: PackEntry, attempt_id: str, kind: FailureKind, error: str | None, node: str) -> None:
        """Do what is to be done with a pack that failed, and note what that is."""
        decision = decide(entry.failures, len(entry.pack.trials), self._health.unhealthy, self.executor.has_other_nodes)
        failed = _Failed(entry, attempt_id, node, error or "")
        self._to_tell.append(failed)
        match decision:
            case Decision.GIVE_UP:
                failed.outcome = GIVEN_UP
                self._give_up(entry, attempt_id, kind, error or "the attempt left no record", node)
            case Decision.STOP:
                failed.outcome = "put back, and nothing more is submitted"
                self.queue.appendleft(entry)
                self.cancelled = True
            case Decision.SPLIT:
                with contextlib.suppress(OSError):
                    self.store.delete(checkpoint_folder(entry.pack.pack_id))
                others = [failure for failure in entry.failures if failure.kind is not kind]
                failed.outcome = "halved"
                self.queue.extendleft(PackEntry(half, list(others)) for half in halved(entry.pack))
            case Decision.RETRY if entry.pack.trials:
                not_before = self._clock() + retry_delay_s(entry.failures)
                failed.entry = PackEntry(entry.pack, entry.failures, not_before=not_before)
                self.queue.appendleft(failed.entry)
                if kind in (FailureKind.TASK, FailureKind.CODE) and self.trials_done == self._done_before:
                    self._give_up_what_fails_everywhere(failed)

    def _give_up_what_fails_everywhere(self, failed: _Failed) -> None:
        """Give up the packs that have met an error once, where every node has shown it and no trial has gone well anywhere.

        To try them again would only tell the same, the time of another job later.
        """
        alike = self._untried[error_pattern(failed.error)]
        alike.append(failed)
        nodes, packs = {each.node for each in alike if each.node}, {each.entry.pack.pack_id for each in alike}
        if len(packs) < STOP_AFTER_PACKS or len(nodes) < 2 or not self._health.nodes <= nodes:
            return
        waiting = {id(entry) for entry in self.queue}
        given_up = [each for each in alike if id(each.entry) in waiting]
        self.queue = deque(entry for entry in self.queue if all(entry is not each.entry for each in given_up))
        for each in given_up:
            each.outcome = GIVEN_UP
            self.failures.append(PackFailure(each.entry.pack, each.attempt_id, each.error, each.node))
        self._stop_early()

    def _requeue(self, entry: PackEntry) -> None:
        self.queue.extendleft(reversed(self._uncommitted(entry)))

    def _uncommitted(self, entry: PackEntry) -> list[PackEntry]:
        """Return what an attempt has left of its packs: those whose trials run in turn commit some before they fail."""
        entries = entry.apart()
        for each in entries:
            each.pack = self._without(each.pack, self._committed.since_then())
        return [entry for entry in entries if entry.pack.trials]

    def _give_up(self, entry: PackEntry, attempt_id: str, kind: FailureKind, error: str, node: str) -> None:
        """Report a pack; the same error from several packs stops the launch, since the others would fail alike."""
        self.failures.append(PackFailure(entry.pack, attempt_id, error, node))
        self._errors[pattern := error_pattern(error)] += 1
        if self._errors[pattern] >= STOP_AFTER_PACKS or kind is FailureKind.FAILED_TO_START_ANYWHERE:
            self._stop_early()

    def _stop_early(self) -> None:
        """Start nothing more, since what is left would fail like what has, where anything is left."""
        not_started = self.running.keys() - self.executor.running().keys()
        if (self.queue or not_started) and not self.stopping:
            self.stopped_early = True
            self.executor.withdraw()
            self.stop()

    def _without(self, pack: Pack, committed: set[str]) -> Pack:
        """Return the pack's trials that are not committed, and count the others as done."""
        left = tuple(trial for trial in pack.trials if trial.trial_id not in committed)
        self.trials_done += len(pack.trials) - len(left)
        if len(left) < len(pack.trials):
            self._search_queue.note_end()
        return Pack(pack.pack_id, left)

    def _look_for_others(self, now: float) -> None:
        """Look at what other launches do, now and then also where none has shown itself."""
        self._nothing_before = float("-inf")
        if now < self._next_full_look and self._others.is_alone:
            self._others.look_for_company()
        if now >= self._next_full_look or not self._others.is_alone:
            is_first = self._next_full_look == float("-inf")
            self._look_at_others(is_first)
            self._next_full_look = now + LOOK_ALONE_S
        pause_s = heartbeat_s(self.store) if self._others.is_alone else 0.0
        self._next_look = now + max(LOOK_AT_OTHERS_S, pause_s, REST * (self._clock() - now))

    def _look_at_others(self, is_first: bool) -> None:
        """See which pending trials other launches run, and drop those that they have committed."""
        try:
            given_back = self._others.look()
        except OSError as error:
            log.warning("attempts not listed: %s", error)
            return
        committed = self._committed.look()  # last: what was given back above is committed by now, or was not done
        for entry in self.queue:
            entry.pack = self._without(entry.pack, committed)
        left = is_first or any(given_back.intersection(entry.pack.trial_ids) for entry in self.queue)
        if left and self.executor.outlives_driver:
            self._take_over()
        self.queue = deque(entry for entry in self.queue if entry.pack.trials)

    def _take_over(self) -> None:
        """Go on from the jobs of a launch that left, perhaps since this one was planned, where a scheduler still has them."""
        pending = {trial.trial_id: trial for entry in self.queue for trial in entry.pack.trials}
        for attempt_id, (pack_id, trial_ids) in self.executor.take_over().items():
            trials = tuple(pending[trial_id] for trial_id in trial_ids if trial_id in pending)
            if trials and attempt_id not in self.running:
                self.running[attempt_id] = PackEntry(Pack(pack_id, trials))
                self._others.note_own(self.sweep.name, attempt_id)
        own = self._own_trials()
        for entry in self.queue:
            entry.pack = Pack(entry.pack.pack_id, tuple(t for t in entry.pack.trials if t.trial_id not in own))

    def _read_progress(self) -> None:
        known = {attempt_id: entry.beat for attempt_id, entry in self.running.items()}
        for attempt_id, beat in self._heartbeats.hear(self.executor.running(), known).items():
            entry = self.running[attempt_id]
            if beat is None:
                entry.heard_at = None
            elif entry.heard_at is None or beat.get("heartbeat_at") != (entry.beat or {}).get("heartbeat_at"):
                entry.heard_at = self._clock()
            entry.beat = beat

    def _end_what_is_silent(self, now: float) -> None:
        """End attempts that gave no sign of life for longer than they may stall: one that is stopped cannot end itself."""
        if self.options.stall_minutes is None:
            return
        beat_s = self.options.beat_s or heartbeat_s(self.store)
        longest_s = stale_after_s(beat_s, min_s=60 * self.options.stall_minutes)
        heard = {attempt_id: entry.heard_at for attempt_id, entry in self.running.items()}
        silent = [attempt_id for attempt_id, at in heard.items() if at is not None and now - at > longest_s]
        if not silent:
            return
        try:
            self.store.check_writable()
        except StoreError as error:  # then nobody can give a sign of life
            log.info("signs of life cannot be expected: %s", error)
            for entry in self.running.values():
                entry.heard_at = None if entry.heard_at is None else now
            return
        for attempt_id in silent:
            silent_s, entry = now - (heard[attempt_id] or now), self.running[attempt_id]
            entry.heard_at = now  # once
            why = f"no sign of life for {silent_s / 60:.3g} min: ended by --stall-minutes"
            log.warning("attempt %s: %s", attempt_id, why)
            if not self.executor.end(attempt_id, why):
                ran_as = self.executor.running().get(attempt_id)
                self._handle_all([JobEnd(attempt_id, why, FailureKind.WORKER_LOST, ran_as)])

    def _tell(self) -> None:
        running = list(self.running.values())
        counts = {
            "trials_done": self.trials_done,
            "packs_added": self._search_queue.added,
            "failures": tuple(self.failures),
        }
        self.watch(progress_of(running, self.queue, self._others.busy, self._others.holders, **counts))


def _ago_s(end: JobEnd) -> float:
    """Return how long ago an attempt ended, where its scheduler knows."""
    ended_at = end.known.get("ended_at")
    return 0.0 if ended_at is None else max(0.0, time.time() - ended_at)
