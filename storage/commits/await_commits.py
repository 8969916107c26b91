"""Wait for commits that were made but that the store's listing does not show yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Set

from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.store import Store

VISIBILITY_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Delays in seconds between scans: long enough for a listing that lags by half a minute."""


def await_commits(store: Store, trial_ids: Set[str], sleep: Callable[[float], None] = time.sleep) -> Snapshot:
    """Return a snapshot with the commits of these trials, or the last of several if some do not become visible.

    Raises:
        StoreError, OSError: The store cannot be read.
    """
    snapshot = take_snapshot(store)
    for delay_s in VISIBILITY_DELAYS_S:
        if trial_ids <= snapshot.trial_ids():
            break
        sleep(delay_s)
        snapshot = take_snapshot(store)
    return snapshot
