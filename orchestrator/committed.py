"""Which trials are committed, as a launch sees it again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from depthrate.storage.cache import SnapshotCache
from depthrate.storage.snapshot import Snapshot, take_snapshot
from depthrate.storage.store import Store, StoreError

log = logging.getLogger("depthrate")


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
