"""Make an executor exclude unhealthy nodes, and report each change to the user."""

import logging
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from depthrate.orchestrator.attempts.node_health import COOLDOWN_S, NodeHealth, read_cleared
from depthrate.orchestrator.executors.base import Executor
from depthrate.storage.files.store import Store

log = logging.getLogger("depthrate")
SLOW_FACTOR = 3.0
"""Seconds per step of a slow node, as a multiple of the median over the nodes."""
MIN_NODES_COMPARED = 3
TIMES_SLOW = 3
"""Consecutive heartbeats or ended packs after which a slow node is reported."""
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
        self._step_s = defaultdict[str, dict[str, float]](dict)
        """Shape of packs -> (node -> last seconds per step)."""
        self._times_slow = Counter[str]()
        """Node -> consecutive times that it was slow."""

    def record_speed(self, node: str, shape: str, progress: Mapping[str, Any]) -> None:
        """Compare the seconds per step in a heartbeat or record with other nodes, and report a much slower node once."""
        step_s = progress.get("step_s")
        if not node or not shape or not step_s or self._times_slow[node] == TIMES_SLOW:
            return
        by_node = self._step_s[shape]
        by_node[node] = step_s
        usual_s = median(by_node.values())
        is_slow = len(by_node) >= MIN_NODES_COMPARED and step_s >= SLOW_FACTOR * usual_s
        self._times_slow[node] = self._times_slow[node] + 1 if is_slow else 0
        if self._times_slow[node] == TIMES_SLOW:
            speeds = f"{step_s:.3g} s per step, median of {len(by_node)} nodes {usual_s:.3g} s"
            log.warning("node %s is %.1f times slower than others: %s. Check its load.", node, step_s / usual_s, speeds)

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
