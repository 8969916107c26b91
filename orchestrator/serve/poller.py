"""A thread that polls the store for all browsers, while requests arrive."""

import logging
import threading
import time
from dataclasses import dataclass, field, replace

from depthrate.orchestrator.api.find_sweep import planned_trials
from depthrate.orchestrator.api.status import POLL_INTERVAL_S, StatusPoller, StatusSnapshot
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import print_warnings
from depthrate.orchestrator.monitor.status import SweepStatus
from depthrate.storage.catalog.specs import LaunchedSpec, newest_specs
from depthrate.storage.catalog.tags import Annotations, read_annotations
from depthrate.storage.commits.visible_commits import first_line
from depthrate.storage.files.protocol import Stamp
from depthrate.storage.files.store import Store, StoreError

log = logging.getLogger("depthrate")
POLLER_IDLE_TIMEOUT_S = 15.0
"""Seconds without a request after which polling pauses."""
SLOW_POLL_WARNING_S = 10.0
"""Seconds after which a running poll is reported as slow."""
PLAN_EVERY_POLLS = 3
"""Number of polls between two checks for new launches."""
SEARCH_READ_INTERVAL_S = 15.0
"""Seconds between two reads of the trials of searches, which grow without a new launch."""
MIN_POLL_INTERVAL_S = 2.0
"""Minimum seconds between two immediate polls for unknown sweeps."""
FIRST_POLL_TIMEOUT_S = 20.0
"""Time in seconds that a first request waits for the first poll."""


@dataclass(frozen=True)
class StoreView:
    """Result of the last successful poll, and any error since then."""

    number: int = 0
    """Number of the poll. Equal numbers have equal content."""
    status: StatusSnapshot | None = None
    specs: dict[str, LaunchedSpec] = field(default_factory=dict)
    """Sweep -> its newest launch."""
    annotations: Annotations = field(default_factory=lambda: Annotations({}, {}))
    """Tags and notes."""
    error: str = ""
    """Reason why the store does not answer. Empty if it answers."""
    read_at: float = 0.0
    """Time of the last successful poll, in seconds since 1970. 0 before it."""

    def stale_text(self, problem: str) -> str:
        """Return a problem with the store together with the time of the data that pages show meanwhile."""
        return problem + (
            f" Data of {time.strftime('%H:%M:%S %Z', time.localtime(self.read_at))}." if self.read_at else ""
        )


class Poller:
    """Polls a store every two seconds, for any number of requests."""

    def __init__(self, store: Store, every_s: float = POLL_INTERVAL_S):
        self.store = store
        self._every_s = every_s
        self._status_poller = StatusPoller(
            store, {}, with_costs=True, with_events=True, for_queries=True, is_sparing=True
        )
        self._stamps: dict[str, Stamp] | None = None
        self._tagged: dict[str, Stamp] | None = None
        self._annotations = StoreView().annotations
        self._specs: dict[str, LaunchedSpec] = {}
        self._planned_at = 0.0
        self._view, self._requested_at, self._began_at = StoreView(), time.monotonic(), 0.0
        self._forced_at, self._is_forced = -MIN_POLL_INTERVAL_S, False
        self._changed, self._is_ended = threading.Condition(), False

    def start(self) -> None:
        """Start polling."""
        threading.Thread(target=self._run, name="poller", daemon=True).start()

    def stop(self) -> None:
        """Stop polling."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def view(self) -> StoreView:
        """Return the result of the last poll, or of a new poll if polling was paused."""
        with self._changed:
            was_idle = time.monotonic() - self._requested_at > POLLER_IDLE_TIMEOUT_S
            self._requested_at = time.monotonic()
            last_number = self._view.number
            if was_idle:
                self._changed.notify_all()
            if was_idle or not last_number:
                timeout_s = FIRST_POLL_TIMEOUT_S if not last_number else SLOW_POLL_WARNING_S
                self._changed.wait_for(lambda: self._view.number != last_number or self._is_ended, timeout_s)
            took_s = time.monotonic() - self._began_at if self._began_at else 0.0
            if took_s < SLOW_POLL_WARNING_S or self._view.error:
                return self._view
            error = self._view.stale_text(f"{self.store.url} has not answered for {took_s:.0f} s. Waiting.")
            return replace(self._view, error=error)

    def refreshed_view(self) -> StoreView:
        """Poll now, including launches, and return the result. Used when a request names an unknown sweep."""
        with self._changed:
            if time.monotonic() - self._forced_at >= MIN_POLL_INTERVAL_S:
                self._forced_at, self._is_forced = time.monotonic(), True
                self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_forced or self._is_ended, SLOW_POLL_WARNING_S)
        return self.view()

    def _run(self) -> None:
        while True:
            with self._changed:
                is_idle = time.monotonic() - self._requested_at > POLLER_IDLE_TIMEOUT_S
                self._changed.wait(None if is_idle else self._every_s if self._view.number else 0.0)
                if self._is_ended:
                    return
                self._began_at = time.monotonic()
            self.refresh()

    def refresh(self) -> None:
        """Poll once."""
        previous, is_forced = self._view, self._is_forced
        try:
            if is_forced or previous.number % PLAN_EVERY_POLLS == 0 or previous.error:
                self._plan()
            view = StoreView(0, self._status_poller.poll(), self._specs, read_at=time.time())
        except Exception as error:  # one failed poll must not end polling
            is_expected = isinstance(error, OSError | StoreError)
            if not is_expected:
                log.exception("polling %s failed", self.store.url)
            problem = f"{'does not answer' if is_expected else 'could not be read'} ({first_line(error)})"
            view = replace(previous, error=previous.stale_text(f"{self.store.url} {problem}. Retrying."))
        with self._changed:
            self._show(view)
            self._began_at = 0.0
            self._is_forced = self._is_forced and not is_forced
            self._changed.notify_all()

    def read_annotations(self) -> None:
        """Read tags and notes again, after a change by a page."""
        annotations = read_annotations(self.store)
        with self._changed:
            self._annotations = annotations
            self._show(self._view)

    def _show(self, view: StoreView) -> None:
        """Publish a view under the next number. The lock is held."""
        self._view = replace(view, number=self._view.number + 1, annotations=self._annotations)

    def _plan(self) -> None:
        """Read the trials of all sweeps, if a launch has changed them."""
        self.store.require_exists()  # listing a missing folder would return no entries
        if (tagged := self.store.stamps("tags")) != self._tagged:
            self._annotations, self._tagged = read_annotations(self.store), tagged
        stamps = self.store.stamps("sweeps")
        is_search = any("search" in spec.spec for spec in self._specs.values())
        is_old = is_search and time.monotonic() - self._planned_at > SEARCH_READ_INTERVAL_S
        if stamps == self._stamps and not is_old:
            return
        self._specs = newest_specs(self.store)
        try:
            self._status_poller.planned = planned_trials(None, self.store, lambda text: print_warnings([text]))
        except UsageError:  # no sweep has been launched yet
            self._status_poller.planned = {}
        self._stamps, self._planned_at = stamps, time.monotonic()


def state_of(view: StoreView, sweep: str) -> SweepStatus:
    """Return the states of a sweep's trials.

    Raises:
        KeyError: The sweep was never launched.
    """
    for state in view.status.states if view.status else ():
        if state.name == sweep:
            return state
    raise KeyError(sweep)
