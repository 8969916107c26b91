"""What waits to run: the packs of a plan and of its search, less what is committed and what peer launches run."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from depthrate.orchestrator.attempts.liveness import heartbeat_s
from depthrate.orchestrator.attempts.record import new_attempt_id
from depthrate.orchestrator.executors.base import Executor
from depthrate.orchestrator.launch.batching import Batching, group_entries
from depthrate.orchestrator.launch.launch_plan import Plan
from depthrate.orchestrator.launch.pack_entry import QueuedPack
from depthrate.orchestrator.launch.peers import PeerLaunches
from depthrate.storage.attempts.records import Record
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.store import Store, StoreError
from depthrate.sweeps.packing import Pack

log = logging.getLogger("depthrate")
SEARCH_RETRY_DELAY_S = 5.0
"""Before a search is asked again that could not read the store."""
PEER_POLL_INTERVAL_S, PEER_SCAN_INTERVAL_S = 5.0, 60.0
"""Seconds between two scans of what peer launches run and have committed: while there are any, and while none has shown
itself, which costs one request to see."""
POLL_BACKOFF_FACTOR = 20
"""What took a second is not done again for so many: polling takes at most this part of a launch's time."""


class Feed(Protocol):
    """Gives a launch more packs as results come in: a search."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        ...

    def next_packs(self, given_up: Collection[str]) -> list[Pack]:
        """Return packs that are new to the launch, given what is committed and which trials it gave up."""
        ...

    def pruning(self, trial_id: str) -> Mapping[str, Any] | None:
        """Return when a trial leaves its pack, for `AttemptSpec.pruning`."""
        ...


class CommittedTrials:
    """Cache of the committed trials. Each refresh also passes the snapshot to `upkeep`."""

    def __init__(self, store: Store, trial_ids: Iterable[str], upkeep: Callable[[Snapshot], object]):
        self._store, self._upkeep = store, upkeep
        self._cache = SnapshotCache()
        self._trial_ids = set(trial_ids)
        self._is_recent = False

    def invalidate(self) -> None:
        """Note that something has ended since the last refresh."""
        self._is_recent = False

    def current(self) -> set[str]:
        """Return what was committed when `invalidate` was called or later; one refresh does for all that ended together."""
        return self._trial_ids if self._is_recent else self.refresh()

    def refresh(self) -> set[str]:
        """Return what is committed, as last seen if the store does not answer just now."""
        try:
            snapshot = take_snapshot(self._store, cache=self._cache)
            self._trial_ids = snapshot.trial_ids()
            self._is_recent = True
            self._upkeep(snapshot)
        except (OSError, StoreError) as error:
            log.warning("store not read: %s", error)
        return self._trial_ids


class PackQueue:
    """Packs that are pending, in the order in which they start."""

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
        """By the search."""
        self.peers = PeerLaunches(store, plan.checked.sweep.name, new_attempt_id())
        self.batching = Batching(is_possible=executor.takes_batches and feed is None)
        self.trials_done = self._initial_done = len(plan.done)
        self._committed = CommittedTrials(store, plan.done, upkeep)
        self._is_search_due, self._next_search = not plan.packs, float("-inf")
        self._next_poll = self._next_scan = float("-inf")
        self._idle_until = float("-inf")
        """Until when no entry can become ready by itself."""

    @property
    def has_more(self) -> bool:
        """Whether packs wait, or the search may add some now."""
        return bool(self.entries) or (self._feed is not None and self._is_search_due and not self._feed.is_over)

    @property
    def has_progressed(self) -> bool:
        """Whether any trial was committed since the launch began."""
        return self.trials_done > self._initial_done

    def add_proposals(self, given_up: Iterable[Pack]) -> None:
        """Append what the search proposes now that something has ended."""
        if self._feed is None or not self._is_search_due or self._clock() < self._next_search:
            return
        try:
            packs = self._feed.next_packs({trial_id for pack in given_up for trial_id in pack.trial_ids})
        except (OSError, StoreError) as error:
            log.warning("search: store not read: %s", error)
            self._next_search = self._clock() + SEARCH_RETRY_DELAY_S
            return
        self._is_search_due = False
        self.packs_added += packs
        self.entries.extend(QueuedPack(pack) for pack in packs)

    def pruning(self, pack: Pack) -> list[Mapping[str, Any] | None] | None:
        """Return for each trial the rule by which it may leave its pack; None without a search."""
        return None if self._feed is None else [self._feed.pruning(trial_id) for trial_id in pack.trial_ids]

    def poll_peers(self) -> bool:
        """See what peer launches run and have committed, if that is due; return whether they may have left jobs behind."""
        now = self._clock()
        if now < self._next_poll:
            return False
        self._idle_until = float("-inf")
        has_left = False
        if now < self._next_scan and self.peers.is_alone:
            self.peers.detect_peers()
        if now >= self._next_scan or not self.peers.is_alone:
            has_left = self._scan_peers(is_first=self._next_scan == float("-inf"))
            self._next_scan = now + PEER_SCAN_INTERVAL_S
        pause_s = heartbeat_s(self._store) if self.peers.is_alone else 0.0
        self._next_poll = now + max(PEER_POLL_INTERVAL_S, pause_s, POLL_BACKOFF_FACTOR * (self._clock() - now))
        return has_left

    def _scan_peers(self, *, is_first: bool) -> bool:
        try:
            given_back = self.peers.poll()
        except OSError as error:
            log.warning("attempts not listed: %s", error)
            return False
        committed = self._committed.refresh()  # last: what was given back is committed by now, or was not done
        for entry in self.entries:
            self._drop_committed(entry, committed)
        self.entries = deque(entry for entry in self.entries if entry.pack.trials)
        return is_first or any(given_back.intersection(entry.pack.trial_ids) for entry in self.entries)

    def adopt(self, jobs: Mapping[str, tuple[str, Sequence[str]]]) -> dict[str, QueuedPack]:
        """Take out of the queue what other launches submitted, attempt -> (pack, trials); return attempt -> entry."""
        pending = {trial.trial_id: trial for entry in self.entries for trial in entry.pack.trials}
        packs = {
            attempt_id: Pack(pack_id, tuple(pending[trial_id] for trial_id in trial_ids if trial_id in pending))
            for attempt_id, (pack_id, trial_ids) in jobs.items()
        }
        adopted = {attempt_id: QueuedPack(pack) for attempt_id, pack in packs.items() if pack.trials}
        own = {trial_id for entry in adopted.values() for trial_id in entry.trial_ids}
        for entry in self.entries if own else ():
            entry.pack = Pack(entry.pack.pack_id, tuple(t for t in entry.pack.trials if t.trial_id not in own))
        self.entries = deque(entry for entry in self.entries if entry.pack.trials)
        return adopted

    def take(self, room: int, running: Iterable[QueuedPack]) -> list[list[QueuedPack]]:
        """Take the packs of up to `room` attempts, beside those that run, if no peer has them; each group is an attempt."""
        now = self._clock()
        if now < self._idle_until:
            return []
        busy, size = self.peers.busy, self.batching.size(len(self.entries), self._executor.workers)
        ready = (e for e in self.entries if now >= e.not_before and busy.isdisjoint(e.pack.trial_ids))
        ahead = max(room, self._executor.capacity // 4)  # claims are asked for rarely
        candidates = list(islice(ready, room * size + ahead))
        count = sum(map(len, group_entries(candidates, size, room)))
        if not (entries := self._claim(candidates[:count], candidates[count:], running)):
            self._idle_until = min((e.not_before for e in self.entries if e.not_before > now), default=float("inf"))
        return group_entries(entries, size, room)

    def _claim(
        self, chosen: Sequence[QueuedPack], following: Sequence[QueuedPack], running: Iterable[QueuedPack]
    ) -> list[QueuedPack]:
        """Return those of the chosen entries that are this launch's to run, taken from the queue."""
        packs, later = [entry.pack for entry in chosen], [entry.pack for entry in following]
        own = {trial_id for entry in running for trial_id in entry.trial_ids}
        if self.peers.claim(packs, later, own) and self.peers.had_peers:
            committed = self._committed.refresh()  # by the one that held one of them before, perhaps just now
            for entry in chosen:
                self._drop_committed(entry, committed)
        claimed = [entry for entry in chosen if self.peers.is_claimed(entry.pack)]
        self.remove(claimed)
        return [entry for entry in claimed if entry.pack.trials]

    def put_back(self, entries: Sequence[QueuedPack]) -> None:
        """Put entries before all others."""
        self.entries.extendleft(reversed(entries))

    def remove(self, entries: Iterable[QueuedPack]) -> set[QueuedPack]:
        """Take entries out of the queue; return those that were in it."""
        removed = set(entries).intersection(self.entries)
        if removed:
            self.entries = deque(entry for entry in self.entries if entry not in removed)
        return removed

    def record_ended(self) -> None:
        """Note that attempts have ended: what is committed, ready or proposed may be more now."""
        self._committed.invalidate()
        self._idle_until = float("-inf")
        self._is_search_due = True

    def record_done(self, entry: QueuedPack, record: Record) -> None:
        """Count what an attempt has done, and put back what it had no time for."""
        ran, given_back = self.batching.record_done(entry.unbatch(), record)
        self.trials_done += sum(len(done.pack.trials) for done in ran)
        self.put_back(given_back)

    def uncommitted(self, entry: QueuedPack) -> list[QueuedPack]:
        """Return what an attempt has left of its packs: those whose trials run in turn commit some before they fail."""
        entries = entry.unbatch()
        for each in entries:
            self._drop_committed(each, self._committed.current())
        return [each for each in entries if each.pack.trials]

    def _drop_committed(self, entry: QueuedPack, committed: set[str]) -> None:
        """Leave an entry the trials that are not committed, and count the others as done."""
        left = tuple(trial for trial in entry.pack.trials if trial.trial_id not in committed)
        if num_done := len(entry.pack.trials) - len(left):
            entry.pack = Pack(entry.pack.pack_id, left)
            self.trials_done += num_done
            self._is_search_due = True
