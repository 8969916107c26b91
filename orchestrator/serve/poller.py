"""The one who looks at the store for everybody: a thread that looks again and again while somebody wants to know."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

from depthrate.orchestrator.api.find_sweep import planned_trials
from depthrate.orchestrator.api.status import POLL_INTERVAL_S, StatusPoller, StatusSnapshot
from depthrate.orchestrator.console.errors import UsageError
from depthrate.storage.catalog.specs import LaunchedSpec, newest_specs
from depthrate.storage.commits.source import first_line
from depthrate.storage.files.protocol import Stamp
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.tables.schema import TRIALS

log = logging.getLogger("depthrate")
POLLER_IDLE_TIMEOUT_S = 15.0
"""Nobody has asked for so long: the store is left alone until somebody does."""
SLOW_POLL_WARNING_S = 10.0
"""A look that takes longer is told of."""
PLAN_EVERY_LOOKS = 3
"""Launches are looked for at every third look."""
SEARCH_EVERY_S = 15.0
"""Searches propose trials without a new launch, so that what they ask for is read again."""
AGAIN_EVERY_S = 2.0
"""What is not known is looked for at once, and no more often than this."""
FIRST_LOOK_S = 20.0
"""For so long a first question waits for the first look."""


@dataclass(frozen=True)
class StoreView:
    """What the last look that succeeded found, and what has gone wrong since."""

    number: int = 0
    """Of the look: what has the same number is the same."""
    look: StatusSnapshot | None = None
    specs: dict[str, LaunchedSpec] = field(default_factory=dict)
    """Sweep -> its newest launch."""
    error: str = ""
    """Why the store does not answer now; empty where it does."""


class Poller:
    """Looks at a store every two seconds, however many ask."""

    def __init__(self, store: Store, every_s: float = POLL_INTERVAL_S):
        self.store = store
        self._every_s = every_s
        self._watched = StatusPoller(
            store, {}, with_costs=True, with_events=True, columns=TRIALS.names, is_sparing=True
        )
        self._stamps: dict[str, Stamp] | None = None
        self._specs: dict[str, LaunchedSpec] = {}
        self._planned_at = 0.0
        self._seen, self._asked_at, self._began_at = StoreView(), time.monotonic(), 0.0
        self._again_at, self._is_wanted = -AGAIN_EVERY_S, False
        self._changed, self._is_ended = threading.Condition(), False

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="poller", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def seen(self) -> StoreView:
        """Return what the last look found; who asks after a while without questions gets a new one."""
        with self._changed:
            was_idle = time.monotonic() - self._asked_at > POLLER_IDLE_TIMEOUT_S
            self._asked_at = time.monotonic()
            before = self._seen.number
            if was_idle:
                self._changed.notify_all()
            if was_idle or not before:
                patience = FIRST_LOOK_S if not before else SLOW_POLL_WARNING_S
                self._changed.wait_for(lambda: self._seen.number != before or self._is_ended, patience)
            took_s = time.monotonic() - self._began_at if self._began_at else 0.0
            if took_s < SLOW_POLL_WARNING_S or self._seen.error:
                return self._seen
            said = f"{self.store.url} has not answered for {took_s:.0f} s; it is waited for"
            return StoreView(self._seen.number, self._seen.look, self._seen.specs, said)

    def seen_again(self) -> StoreView:
        """Return what is found by a look that begins now and reads the launches: for who asks for what is not known."""
        with self._changed:
            if time.monotonic() - self._again_at >= AGAIN_EVERY_S:
                self._again_at, self._is_wanted = time.monotonic(), True
                self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_wanted or self._is_ended, SLOW_POLL_WARNING_S)
        return self.seen()

    def _run(self) -> None:
        while True:
            with self._changed:
                is_idle = time.monotonic() - self._asked_at > POLLER_IDLE_TIMEOUT_S
                self._changed.wait(None if is_idle else self._every_s if self._seen.number else 0.0)
                if self._is_ended:
                    return
                self._began_at = time.monotonic()
            self.refresh()

    def refresh(self) -> None:
        """Look once."""
        before, is_wanted = self._seen, self._is_wanted
        try:
            if is_wanted or before.number % PLAN_EVERY_LOOKS == 0 or before.error:
                self._plan()
            now = StoreView(before.number + 1, self._watched.poll(), self._specs)
        except (OSError, StoreError) as error:
            said = f"{self.store.url} does not answer ({first_line(error)}); it is asked again"
            now = StoreView(before.number + 1, before.look, before.specs, said)
        except Exception as error:  # one look that fails must not end all looking
            log.exception("a look at %s failed", self.store.url)
            said = f"{self.store.url} could not be read ({first_line(error)}); it is asked again"
            now = StoreView(before.number + 1, before.look, before.specs, said)
        with self._changed:
            self._seen, self._began_at = now, 0.0
            self._is_wanted = self._is_wanted and not is_wanted
            self._changed.notify_all()

    def _plan(self) -> None:
        """Read which trials the sweeps ask for, where a launch has changed that."""
        self.store.require_exists()  # no folder would list as one without launches
        stamps = self.store.stamps("sweeps")
        is_search = any("search" in spec.spec for spec in self._specs.values())
        is_old = is_search and time.monotonic() - self._planned_at > SEARCH_EVERY_S
        if stamps == self._stamps and not is_old:
            return
        self._specs = newest_specs(self.store)
        try:
            self._watched.planned = planned_trials(None, self.store)
        except UsageError:  # no sweep has been launched yet
            self._watched.planned = {}
        self._stamps, self._planned_at = stamps, time.monotonic()
