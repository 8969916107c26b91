"""Wait for commits that were made and that the store's listing does not show yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Set

from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.store import Store

VISIBILITY_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Between two looks: a listing that is half a minute behind is waited for."""


def await_commits(store: Store, trial_ids: Set[str], sleep: Callable[[float], None] = time.sleep) -> Snapshot:
    """Return a snapshot with the commits of these trials, or the last of several if some are not to be seen.

    Raises:
        StoreError, OSError: the store cannot be read.
    """
    snapshot = take_snapshot(store)
    for pause_s in VISIBILITY_DELAYS_S:
        if trial_ids <= snapshot.trial_ids():
            break
        sleep(pause_s)
        snapshot = take_snapshot(store)
    return snapshot
