"""How far the packs of a launch are, as their nodes say in the store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from depthrate.orchestrator.attempt import heartbeat_s
from depthrate.storage.beats import Beat, Beats
from depthrate.storage.store import Store

BEATS_A_LOOK, BEATS_HEARD = 100, 2
"""Nodes that are asked at most for their progress in one look, and every how many of the shortest heartbeats."""


class Hearing:
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
