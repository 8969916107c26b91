"""Make an executor exclude unhealthy nodes, and report each change to the user."""

import logging
import shlex
import time
from collections.abc import Callable

from depthrate.orchestrator.attempts.node_health import COOLDOWN_S, NodeHealth, read_cleared
from depthrate.orchestrator.executors.base import Executor
from depthrate.storage.files.store import Store

log = logging.getLogger("depthrate")
POLL_INTERVAL_S = 5.0
"""Seconds between reads of the cleared nodes while any node is excluded."""


class NodeMonitor:
    """Keeps an executor's list of excluded nodes up to date and reports each change to the user."""

    def __init__(self, store: Store, sweep: str, executor: Executor, clock: Callable[[], float] = time.monotonic):
        self.health = NodeHealth(executor.num_nodes, clock)
        self._store, self._sweep, self._executor, self._clock = store, sweep, executor, clock
        self._excluded: list[str] = []
        self._reported: dict[str, str] = {}
        """Excluded node -> last message about it."""
        self._cleared: dict[str, float] = {}
        """Node -> time of the last clearing that was applied."""
        self._started_at, self._next_read = time.time(), float("-inf")

    def update(self) -> None:
        """Pass the currently excluded nodes to the executor. Call this after counting all ended attempts."""
        health = self.health
        for attempt_id, node in self._executor.nodes_by_attempt().items():
            health.record_start(node, attempt_id)
        if health.excluded and self._clock() >= self._next_read:
            self._next_read = self._clock() + POLL_INTERVAL_S
            for node, at in read_cleared(self._store, self._sweep).items():
                if at > self._cleared.get(node, self._started_at):
                    health.clear(node)
                    self._cleared[node] = at
        if (excluded := health.excluded) != self._excluded:
            self._executor.exclude_nodes(excluded)
            self._excluded = excluded
        reports = {node: text for node, text in self._reported.items() if node in health.cooling_down}
        for node in health.cooling_down:
            if health.fails_only_here(node):
                reports[node] = f"Excluded for {COOLDOWN_S / 60:.0f} min."
        for node in health.unhealthy:
            undo = f"depthrate nodes {shlex.quote(self._sweep)} --clear {shlex.quote(node)}"
            reports[node] = f"Excluded. Once it is repaired: {undo}"
        for node, text in reports.items():
            if self._reported.get(node) != text:
                failures = f"{health.describe(node)}, last error: {health.last_error(node)}"
                log.warning("%s. %s", failures[:500], text)
        self._reported = reports
