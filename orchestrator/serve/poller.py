"""A thread that polls the store for all browsers, while requests arrive."""

import logging
import threading
import time
from dataclasses import dataclass, field, replace

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
"""Seconds without a request after which polling pauses."""
SLOW_POLL_WARNING_S = 10.0
"""Seconds after which a running poll is reported as slow."""
PLAN_EVERY_LOOKS = 3
"""Number of polls between two checks for new launches."""
SEARCH_EVERY_S = 15.0
"""Seconds between two reads of the trials of searches, which grow without a new launch."""
AGAIN_EVERY_S = 2.0
"""Minimum seconds between two immediate polls for unknown sweeps."""
FIRST_LOOK_S = 20.0
"""Time in seconds that a first request waits for the first poll."""


@dataclass(frozen=True)
class StoreView:
    """Result of the last successful poll, and any error since then."""

    number: int = 0
    """Number of the poll. Equal numbers have equal content."""
    status: StatusSnapshot | None = None
    specs: dict[str, LaunchedSpec] = field(default_factory=dict)
    """Sweep -> its newest launch."""
    error: str = ""
    """Reason why the store does not answer. Empty if it answers."""


class Poller:
    """Polls a store every two seconds, for any number of requests."""

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
        """Start polling."""
        threading.Thread(target=self._run, name="poller", daemon=True).start()

    def stop(self) -> None:
        """Stop polling."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def seen(self) -> StoreView:
        """Return the result of the last poll, or of a new poll if polling was paused."""
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
            return replace(self._seen, error=f"{self.store.url} has not answered for {took_s:.0f} s. Waiting.")

    def seen_again(self) -> StoreView:
        """Poll now, including launches, and return the result. Used when a request names an unknown sweep."""
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
        """Poll once."""
        before, is_wanted = self._seen, self._is_wanted
        try:
            if is_wanted or before.number % PLAN_EVERY_LOOKS == 0 or before.error:
                self._plan()
            now = StoreView(before.number + 1, self._watched.poll(), self._specs)
        except Exception as error:  # one failed poll must not end polling
            is_known = isinstance(error, OSError | StoreError)
            if not is_known:
                log.exception("polling %s failed", self.store.url)
            problem = f"{'does not answer' if is_known else 'could not be read'} ({first_line(error)})"
            now = replace(before, number=before.number + 1, error=f"{self.store.url} {problem}. Retrying.")
        with self._changed:
            self._seen, self._began_at = now, 0.0
            self._is_wanted = self._is_wanted and not is_wanted
            self._changed.notify_all()

    def _plan(self) -> None:
        """Read the trials of all sweeps, if a launch has changed them."""
        self.store.require_exists()  # listing a missing folder would return no entries
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
