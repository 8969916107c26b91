"""The queue of pending packs of a plan and its search, without trials that are committed or that peer launches run."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from depthrate.orchestrator.attempts.liveness import POLL_BACKOFF_FACTOR, heartbeat_s
from depthrate.orchestrator.attempts.record import new_attempt_id
from depthrate.orchestrator.executors.base import Executor, SubmittedPack
from depthrate.orchestrator.launch.batching import Batching, QueuedPack, group_entries
from depthrate.orchestrator.launch.launch_plan import Plan
from depthrate.orchestrator.launch.peers import PeerLaunches
from depthrate.storage.attempts.records import Record
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.store import Store, StoreError
from depthrate.sweeps.packing import Pack
from depthrate.sweeps.trial import CanonicalWriter

log = logging.getLogger("depthrate")
SEARCH_RETRY_DELAY_S = 5.0
"""Seconds after which a search that could not read the store is polled again."""
PEER_POLL_INTERVAL_S = 5.0
"""Minimum seconds between two polls of peer launches. Without peers, a poll costs one request."""
PEER_SCAN_INTERVAL_S = 60.0
"""Seconds between two full scans of attempts and commits while no peer launch is known."""


class Feed(Protocol):
    """Source of further packs as results arrive, which is a search."""

    @property
    def is_over(self) -> bool:
        """True if no more packs will come."""
        ...

    def next_packs(self, given_up: Collection[str]) -> list[Pack]:
        """Return new packs that follow from the committed trials and the trials `given_up` by the launch."""
        ...

    def pruning(self, trial_id: str) -> Mapping[str, Any] | None:
        """Return a trial's pruning rule, for `AttemptSpec.pruning`."""
        ...


class CommittedTrials:
    """Cache of the committed trials. Each refresh also passes the snapshot to `upkeep`."""

    def __init__(self, store: Store, trial_ids: Iterable[str], upkeep: Callable[[Snapshot], object]):
        self._store, self._upkeep = store, upkeep
        self._cache = SnapshotCache()
        self._trial_ids = set(trial_ids)
        self._is_recent = False

    def invalidate(self) -> None:
        """Mark the cache as outdated, because an attempt has ended."""
        self._is_recent = False

    def current(self) -> set[str]:
        """Return the committed trials as of the last `invalidate` or later. Attempts that end together share one refresh."""
        return self._trial_ids if self._is_recent else self.refresh()

    def refresh(self) -> set[str]:
        """Read and return the committed trials. If the store does not answer, return the cached trials."""
        try:
            snapshot = take_snapshot(self._store, cache=self._cache)
            self._trial_ids = snapshot.trial_ids()
            self._is_recent = True
            self._upkeep(snapshot)
        except (OSError, StoreError) as error:
            log.warning("store not read: %s", error)
        return self._trial_ids


class PackQueue:
    """Pending packs in starting order."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        executor: Executor,
        clock: Callable[[], float],
        upkeep: Callable[[Snapshot], object] = lambda snapshot: None,
        feed: Feed | None = None,
    ):
        self._store, self._executor, self._clock, self._feed = store, executor, clock, feed
        self.entries = deque(QueuedPack(pack) for pack in plan.packs)
        self.packs_added: list[Pack] = []
        """Packs that the search has added."""
        self.peers = PeerLaunches(store, plan.checked.sweep.name, new_attempt_id())
        self.batching = Batching(is_possible=executor.takes_batches and feed is None)
        self.trials_done = self._initial_done = len(plan.done)
        schema = plan.checked.task.schema
        self._shapes = CanonicalWriter(schema.keys() - schema.fusible - {"seed"})
        self._committed = CommittedTrials(store, plan.done, upkeep)
        self._is_search_due, self._next_search = not plan.packs, float("-inf")
        self._next_poll = self._next_scan = float("-inf")
        self._idle_until = float("-inf")
        """Time on the driver's clock until which no entry can become ready without an event."""

    @property
    def has_more(self) -> bool:
        """True if packs are queued, or the search may add some now."""
        return bool(self.entries) or (self._feed is not None and self._is_search_due and not self._feed.is_over)

    @property
    def has_progressed(self) -> bool:
        """True if any trial was committed since the launch started."""
        return self.trials_done > self._initial_done

    def add_proposals(self, given_up: Iterable[Pack]) -> None:
        """Append the packs that the search proposes after attempts have ended."""
        if self._feed is None or not self._is_search_due or self._clock() < self._next_search:
            return
        try:
            packs = self._feed.next_packs({trial_id for pack in given_up for trial_id in pack.trial_ids})
        except (OSError, StoreError) as error:
            log.warning("search: store not read, retrying: %s", error)
            self._next_search = self._clock() + SEARCH_RETRY_DELAY_S
            return
        self._is_search_due = False
        self.packs_added += packs
        self.entries.extend(QueuedPack(pack) for pack in packs)

    def pruning(self, pack: Pack) -> list[Mapping[str, Any] | None] | None:
        """Return each trial's pruning rule, or None without a search."""
        return None if self._feed is None else [self._feed.pruning(trial_id) for trial_id in pack.trial_ids]

    def shape_of(self, entry: QueuedPack) -> str:
        """Return a key of the parameters that determine the seconds per step. Empty if first and last trial differ in it."""
        trials = [trial for pack in (entry, *entry.then) for trial in pack.pack.trials]
        shapes = {self._shapes.write(trial.params) for trial in trials[:1] + trials[-1:]}
        return f"{len(trials)} {shapes.pop()}" if len(shapes) == 1 else ""

    def poll_peers(self) -> bool:
        """Poll peer launches if due. Return whether they may have left submitted jobs in the scheduler."""
        now = self._clock()
        if now < self._next_poll:
            return False
        self._idle_until = float("-inf")
        may_have_jobs = False
        if now < self._next_scan and self.peers.is_alone:
            self.peers.claims.refresh()
        if now >= self._next_scan or not self.peers.is_alone:
            may_have_jobs = self._scan_peers(is_first=self._next_scan == float("-inf"))
            self._next_scan = now + PEER_SCAN_INTERVAL_S
        min_interval_s = heartbeat_s(self._store) if self.peers.is_alone else 0.0
        self._next_poll = now + max(PEER_POLL_INTERVAL_S, min_interval_s, POLL_BACKOFF_FACTOR * (self._clock() - now))
        return may_have_jobs

    def _scan_peers(self, *, is_first: bool) -> bool:
        try:
            released = self.peers.poll()
        except OSError as error:
            log.warning("attempts of other launches not listed: %s", error)
            return False
        committed = self._committed.refresh()  # last: any released trial that is done is committed by now
        for entry in self.entries:
            self._drop_committed(entry, committed)
        self.entries = deque(entry for entry in self.entries if entry.pack.trials)
        return is_first or any(released.intersection(entry.pack.trial_ids) for entry in self.entries)

    def adopt(self, jobs: Mapping[str, SubmittedPack]) -> dict[str, QueuedPack]:
        """Remove from the queue the trials that peer launches submitted.

        Args:
            jobs: Attempt -> pack, for the submitted jobs.
        Returns:
            Attempt -> entry, for jobs with pending trials.
        """
        pending = {trial.trial_id: trial for entry in self.entries for trial in entry.pack.trials}
        packs = {
            attempt_id: Pack(job.pack_id, tuple(pending[trial_id] for trial_id in job.trial_ids if trial_id in pending))
            for attempt_id, job in jobs.items()
        }
        adopted = {attempt_id: QueuedPack(pack) for attempt_id, pack in packs.items() if pack.trials}
        adopted_ids = {trial_id for entry in adopted.values() for trial_id in entry.trial_ids}
        for entry in self.entries if adopted_ids else ():
            entry.pack = Pack(entry.pack.pack_id, tuple(t for t in entry.pack.trials if t.trial_id not in adopted_ids))
        self.entries = deque(entry for entry in self.entries if entry.pack.trials)
        return adopted

    def take(self, free_slots: int, running: Iterable[QueuedPack]) -> list[list[QueuedPack]]:
        """Claim packs for up to `free_slots` attempts and remove them from the queue. Each returned group is one attempt."""
        now = self._clock()
        if now < self._idle_until:
            return []
        size = self.batching.size(len(self.entries), self._executor.workers)
        num_ahead = max(free_slots, self._executor.capacity // 4)  # claim in advance, to request claims rarely
        candidates = list(islice(self._ready(now, running), free_slots * size + num_ahead))
        count = sum(map(len, group_entries(candidates, size, free_slots)))
        if not (entries := self._claim(candidates[:count], candidates[count:], running)):
            self._idle_until = min((e.not_before for e in self.entries if e.not_before > now), default=float("inf"))
        return group_entries(entries, size, free_slots)

    def _ready(self, now: float, running: Iterable[QueuedPack]) -> Iterator[QueuedPack]:
        """Yield the entries that may start, and at most one that ran out of memory if attempts share the memory of a node."""
        is_separate, busy = self._executor.outlives_driver, self.peers.busy  # jobs of a scheduler have their own memory
        is_taken = not is_separate and not all(entry.shares_memory for entry in running)
        for entry in self.entries:
            is_free = entry.shares_memory or not is_taken
            if is_free and now >= entry.not_before and busy.isdisjoint(entry.pack.trial_ids):
                yield entry
                is_taken |= not (is_separate or entry.shares_memory)

    def _claim(
        self, chosen: Sequence[QueuedPack], following: Sequence[QueuedPack], running: Iterable[QueuedPack]
    ) -> list[QueuedPack]:
        """Claim the chosen entries, remove those that were claimed from the queue, and return them."""
        packs, later = [entry.pack for entry in chosen], [entry.pack for entry in following]
        running_ids = {trial_id for entry in running for trial_id in entry.trial_ids}
        if self.peers.claim(packs, later, running_ids) and self.peers.claims.has_peers:
            committed = self._committed.refresh()  # the previous holder of a claim may just have committed
            for entry in chosen:
                self._drop_committed(entry, committed)
        claimed = [entry for entry in chosen if self.peers.claims.holds(entry.pack.trial_ids)]
        self.remove(claimed)
        return [entry for entry in claimed if entry.pack.trials]

    def put_back(self, entries: Sequence[QueuedPack]) -> None:
        """Put entries at the front of the queue."""
        self.entries.extendleft(reversed(entries))

    def remove(self, entries: Iterable[QueuedPack]) -> set[QueuedPack]:
        """Remove entries from the queue, and return the entries that were in it."""
        removed = set(entries).intersection(self.entries)
        if removed:
            self.entries = deque(entry for entry in self.entries if entry not in removed)
        return removed

    def record_ended(self) -> None:
        """Record that attempts have ended, so that commits, ready entries and proposals are checked again."""
        self._committed.invalidate()
        self._idle_until = float("-inf")
        self._is_search_due = True

    def record_done(self, entry: QueuedPack, record: Record) -> None:
        """Count the trials of an attempt's finished packs, and requeue the packs that it did not start."""
        finished, not_started = self.batching.record_done(entry.unbatch(), record)
        self.trials_done += sum(len(done.pack.trials) for done in finished)
        self.put_back(not_started)

    def uncommitted(self, entry: QueuedPack) -> list[QueuedPack]:
        """Return an attempt's packs without their committed trials. An attempt may commit some trials before it fails."""
        entries = entry.unbatch()
        for unbatched in entries:
            self._drop_committed(unbatched, self._committed.current())
        return [unbatched for unbatched in entries if unbatched.pack.trials]

    def _drop_committed(self, entry: QueuedPack, committed: set[str]) -> None:
        """Remove the committed trials from an entry and count them as done."""
        remaining = tuple(trial for trial in entry.pack.trials if trial.trial_id not in committed)
        if num_done := len(entry.pack.trials) - len(remaining):
            entry.pack = Pack(entry.pack.pack_id, remaining)
            self.trials_done += num_done
            self._is_search_due = True
