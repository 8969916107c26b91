"""What a search adds to a launch: it is asked for more packs whenever something has ended."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from depthrate.orchestrator.progress import Feed, PackFailure
from depthrate.storage.store import StoreError
from depthrate.sweeps.packing import Pack

log = logging.getLogger("depthrate")
AGAIN_AFTER_S = 5.0
"""Seconds after which a search is asked again that could not read the store."""


class Feeding:
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
