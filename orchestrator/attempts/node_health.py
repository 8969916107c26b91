"""Which nodes fail where others do not, judged by counts alone: nodes of a cluster or of Ray, or the GPUs of one machine.

`NodeHealth` judges attempts, `StartFailures` jobs that end before our program begins; `NodeMonitor` has executors avoid them.

A task with a bug fails everywhere and speaks against no node; a pack that fails on two healthy nodes is itself at fault.
What is left is compared: how likely is it that so many of all failures fall on one node by chance, given how many attempts
it had (Fisher's exact test, one-sided)? Attempts elsewhere that run for longer than it took to fail here count as gone well.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from depthrate.orchestrator.attempts.retry import RULES, Cause
from depthrate.orchestrator.executors.base import Executor
from depthrate.storage.attempts.records import Record
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import forgiven_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind

log = logging.getLogger("depthrate")
MAX_P_VALUE = 0.1
"""A node whose failures are less likely than this by chance is unhealthy; being wrong costs a node, not a trial."""
MIN_NODE_FAILURES, NODE_FAILURES_IN_A_ROW = 2, 3
"""Failures below which nothing is concluded; and those in a row that are enough where others work meanwhile."""
COOLDOWN_S = 120.0
"""How long nothing new is sent to a node on which an attempt has failed and none has gone well since, while others work."""
HISTORY_S = 24 * 3600.0
"""Age from which on records do not count; each launch judges by what it sees itself."""
SAME_NODE_LOSS_S = 5.0
"""What ended on a node within so long of each other, when that was lost, it lost by one death."""
MIN_START_FAILURES = 2
"""Jobs that must end on a node before our program begins, one after the other, before it is excluded."""
NOWHERE_AT = 3
"""Jobs that must end so, on two nodes or all there are, before the fault is taken to be no node's."""
POLL_INTERVAL_S = 5.0
"""Between two reads of which nodes were cleared, while any is excluded."""
_HARDWARE_ERRORS = (
    r"uncorrectable (?:ECC|NVLink) error|ECC error|double[- ]bit ECC|ECC_?UNCORRECTABLE",
    r"\bXid\b",
    r"(?:GPU|device) has fallen off the bus|GPU is lost",
    r"CUDA-capable device\(?s?\)? (?:is|are)(?:/are)? (?:busy|unavailable)|devices? unavailable",
    r"no CUDA-capable device is detected|No CUDA GPUs are available",
    r"CUDA (?:driver )?initiali[sz]ation (?:error|failed)|Failed to initialize NVML|cudaGetDeviceCount\(\)",
    r"CUDA driver (?:error|version is insufficient)|Driver/library version mismatch|CUDA unknown error",
    r"hipError(?:NoDevice|NotInitialized|ECC\w*)|HSA_STATUS_ERROR_(?:OUT_OF_RESOURCES|HARDWARE)\w*",
    r"\[Errno 28\]|No space left on device",
    r"\[Errno 5\]|Input/output error",
    r"\[Errno 30\]|Read-only file system",
    r"\[Errno 116\]|Stale file handle",
    r"Transport endpoint is not connected",
)
_HARDWARE = re.compile("|".join(_HARDWARE_ERRORS))


def read_cleared(store: Store, sweep: str) -> dict[str, float]:
    """Return node -> when a user said that it is repaired; empty where none did, or the store does not answer."""
    try:
        cleared = read_object(store.read(forgiven_path(sweep)))
    except (OSError, ValueError):
        return {}
    return {node: float(at) for node, at in cleared.items() if isinstance(at, int | float) and math.isfinite(at)}


def write_cleared(store: Store, sweep: str, node: str) -> None:
    """Record that a node is repaired: launches that run, and `depthrate nodes`, count its attempts from now on.

    Raises:
        OSError: the store refuses it.
    """
    store.write(forgiven_path(sweep), json.dumps(read_cleared(store, sweep) | {node: time.time()}).encode())


def is_hardware_error(error: str | None) -> bool:
    """Whether an error is known to come from a node's card, driver or local disk, whatever the task."""
    return error is not None and _HARDWARE.search(error) is not None


def fisher_p_value(failed: int, succeeded: int, failed_elsewhere: int, succeeded_elsewhere: int) -> float:
    """Return how likely a node has so many of all failures, or more, if all nodes are alike (Fisher's exact test)."""
    attempts, failures = failed + succeeded, failed + failed_elsewhere
    total = attempts + failed_elsewhere + succeeded_elsewhere
    ways = sum(
        math.comb(attempts, here) * math.comb(total - attempts, failures - here)
        for here in range(failed, min(attempts, failures) + 1)
    )
    return ways / math.comb(total, failures)


def _ended_at(record: Record) -> float:
    return float(record["ended_at"] or record["started_at"])


@dataclass
class _Node:
    done: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Pack -> attempts that failed."""
    streak: list[str] = field(default_factory=list)
    """Packs that have failed since an attempt last went well."""
    done_elsewhere: int = 0
    """Attempts that had gone well elsewhere when the streak began."""
    failed_at: float = float("-inf")
    died_at: list[float] = field(default_factory=list)
    lasted_s: float = 0.0
    """The longest that an attempt ran that failed."""
    last_error: str = ""


class NodeHealth:
    """Attempts started, failed and done on each node, and which nodes to exclude."""

    def __init__(self, num_nodes: int | None = None, clock: Callable[[], float] = time.monotonic):
        self._num_nodes, self._clock = num_nodes, clock
        self._nodes: defaultdict[str, _Node] = defaultdict(_Node)
        self._running: dict[str, tuple[str, float]] = {}
        """Attempt -> its node, and since when."""
        self._failed_on: defaultdict[str, set[str]] = defaultdict(set)
        """Pack -> nodes."""
        self._numbers = itertools.count()
        self._faulty_packs: set[str] = set()
        """Packs that failed on two nodes of which neither was unhealthy."""
        self.unhealthy: list[str] = []
        """Nodes that fail where others do not, as last judged, the first found first."""

    def record_start(self, node: str, attempt_id: str) -> None:
        """Count an attempt that runs on a node."""
        if node:
            self._nodes[node]  # makes it one of `nodes`
            self._running.setdefault(attempt_id, (node, self._clock()))

    def node_of(self, attempt_id: str) -> str:
        """Return where an attempt runs, if its start was recorded; empty otherwise."""
        return self._running.get(attempt_id, ("", 0.0))[0]

    def forget_attempt(self, attempt_id: str) -> None:
        """Count an attempt no more: it is over in a way that says nothing about its node."""
        self._running.pop(attempt_id, None)

    def record_success(self, node: str, attempt_id: str = "") -> None:
        """Count an attempt that is done."""
        self._running.pop(attempt_id, None)
        if node:
            self._nodes[node].done += 1
            self._nodes[node].streak.clear()
            self._update_unhealthy()

    def record_failure(
        self, node: str, pack_id: str, kind: FailureKind, attempt_id: str = "", error: str = "", ago_s: float = 0.0
    ) -> None:
        """Count an attempt at a pack that failed so many seconds ago, if its node may be the cause."""
        _, since = self._running.pop(attempt_id, ("", self._clock()))
        causes = RULES[kind].causes
        if not node or Cause.NODE not in causes:
            return
        here = self._nodes[node]
        if kind is FailureKind.NODE_LOST:
            died_at = self._clock() - ago_s
            if any(abs(died_at - before) < SAME_NODE_LOSS_S for before in here.died_at):
                return
            here.died_at.append(died_at)
        if causes == Cause.NODE:
            pack_id = f"{pack_id} {next(self._numbers)}"  # of its own: not compared with how the pack does elsewhere
        if not here.streak:
            here.done_elsewhere = self._done_elsewhere(node)
        here.failed[pack_id] += 1
        here.streak.append(pack_id)
        here.failed_at = max(here.failed_at, self._clock() - ago_s)
        here.lasted_s = max(here.lasted_s, self._clock() - since)
        here.last_error = error
        self._failed_on[pack_id].add(node)
        if len(self._failed_on[pack_id].difference(self.unhealthy)) > 1:
            self._faulty_packs.add(pack_id)
        self._update_unhealthy()

    def clear(self, node: str) -> None:
        """Reset the history of a node that was repaired."""
        if node in self._nodes:
            self._nodes[node] = _Node()
            for nodes in self._failed_on.values():
                nodes.discard(node)
            self._update_unhealthy()

    def add_records(self, records: Iterable[Record], cleared: dict[str, float], now: float) -> None:
        """Count attempts that ended before, by their hosts; of a node that was cleared, those since then."""
        for record in sorted(records, key=_ended_at):
            node, ended_at = record["host"] or "", _ended_at(record)
            if ended_at < max(now - HISTORY_S, cleared.get(node, 0.0)):
                continue
            if record["state"] is AttemptState.DONE:
                self.record_success(node)
            elif record["state"] in (AttemptState.FAILED, AttemptState.LOST) and record["error_kind"] is not None:
                pack_id, error = record["pack_id"] or "", record["error"] or ""
                self.record_failure(node, pack_id, record["error_kind"], error=error, ago_s=now - ended_at)

    @property
    def nodes(self) -> set[str]:
        """Nodes on which any attempt has started."""
        return set(self._nodes)

    @property
    def excluded(self) -> list[str]:
        """Nodes on which nothing new is to start: those that are unhealthy, and those that cool down."""
        return [*self.unhealthy, *self.cooling_down]

    @property
    def cooling_down(self) -> list[str]:
        """Nodes that have failed and not gone well since, where most others do not: excluded for `COOLDOWN_S`."""
        now = self._clock()
        failing = [name for name, node in self._nodes.items() if set(node.streak) - self._faulty_packs]
        if 2 * len(failing) > max(len(self._nodes), 1):
            return []  # they fail everywhere
        recent = [name for name in failing if now - self._nodes[name].failed_at < COOLDOWN_S]
        return sorted(set(recent).difference(self.unhealthy))[: max(0, self._max_excluded() - len(self.unhealthy))]

    def fails_only_here(self, node: str) -> bool:
        """Whether attempts have gone well elsewhere, or run there for longer than any that failed on this node."""
        return self._done_elsewhere(node) + self._outlived(node) > 0

    def describe(self, node: str) -> str:
        """Return what a node did, compared with the others."""
        failed, done, failed_elsewhere, done_elsewhere = self._counts(node)
        text = f"{failed} of {failed + done} attempts failed on {node}, {failed_elsewhere} of "
        return text + f"{failed_elsewhere + done_elsewhere} elsewhere"

    def last_error(self, node: str) -> str:
        """Return what failed last on a node."""
        return self._nodes[node].last_error if node in self._nodes else ""

    def _update_unhealthy(self) -> None:
        failing = [node for node in self._nodes if self._fails_alone(node)]
        keep = [node for node in self.unhealthy if node in failing]
        self.unhealthy = [*keep, *(node for node in failing if node not in keep)][: self._max_excluded()]

    def _fails_alone(self, node: str) -> bool:
        failed, done, failed_elsewhere, done_elsewhere = self._counts(node)
        if failed < MIN_NODE_FAILURES or not done_elsewhere:
            return False
        here = self._nodes[node]
        in_a_row = sum(pack not in self._faulty_packs for pack in here.streak)
        since = done_elsewhere - (here.done_elsewhere if here.done else 0)
        if in_a_row >= NODE_FAILURES_IN_A_ROW and since > 0 and failed_elsewhere <= done_elsewhere:
            return True
        return bool(in_a_row) and fisher_p_value(failed, done, failed_elsewhere, done_elsewhere) <= MAX_P_VALUE

    def _counts(self, node: str) -> tuple[int, int, int, int]:
        """Return the attempts that failed and went well on a node, and elsewhere."""
        failures = {name: self._failures(name) for name in self._nodes}
        elsewhere = sum(failures.values()) - failures.get(node, 0)
        done_elsewhere = self._done_elsewhere(node) + self._outlived(node)
        return failures.get(node, 0), self._nodes[node].done, elsewhere, done_elsewhere

    def _failures(self, name: str) -> int:
        return sum(number for pack, number in self._nodes[name].failed.items() if pack not in self._faulty_packs)

    def _done_elsewhere(self, node: str) -> int:
        return sum(other.done for name, other in self._nodes.items() if name != node)

    def _outlived(self, node: str) -> int:
        """Return how many attempts elsewhere have run for longer than any that failed on this node."""
        longest_s, now = self._nodes[node].lasted_s, self._clock()
        return sum(name != node and now - since > longest_s for name, since in self._running.values())

    def _max_excluded(self) -> int:
        """Return how many nodes may be excluded: one is always left, and of many a half."""
        total = self._num_nodes or len(self._nodes)
        return max(0, total - 1) if total <= 3 else total // 2


class StartFailures:
    """Jobs that ended on each node before our program began: a node, or what is set up there, that starts nothing."""

    def __init__(self, num_nodes: int):
        self._num_nodes = num_nodes
        """One of them is never excluded."""
        self._works: set[str] = set()
        """Nodes on which our program has begun: a heartbeat there is a proof that jobs can run."""
        self._failed: defaultdict[str, set[str]] = defaultdict(set)
        """Node -> jobs that ended on it before that, since it last happened there."""
        self.excluded: list[str] = []
        """Nodes that jobs avoid."""

    def record_start(self, node: str, job_id: str) -> None:
        """Count a job in which our program runs, though it may have been counted as failed: what it writes comes late."""
        self._works.add(node)
        if self._failed.pop(node, None) and node in self.excluded:
            log.warning("node %s works: job %s begins there", node, job_id)
            self.excluded.remove(node)

    def record_failure(self, node: str, job_id: str) -> None:
        """Count a job that ended on a node without a sign of our program, and exclude the node if that is the rule."""
        if node:
            self._failed[node].add(job_id)
            is_possible = node not in self.excluded and len(self.excluded) + 1 < self._num_nodes
            if len(self._failed[node]) >= MIN_START_FAILURES and is_possible:
                self.excluded.append(node)
                how = "before our program began (a setup line, a file system that is not there, Python)"
                count = len(self._failed[node])
                log.warning("node %s ended %d jobs %s: jobs avoid it from now on", node, count, how)

    def starts_nowhere(self, running_on: Collection[str]) -> bool:
        """Whether no job can start anywhere, given the nodes on which jobs run now: they may be about to start."""
        if self._works:
            return False
        tried = {node for node, jobs in self._failed.items() if jobs}
        num_jobs = sum(len(jobs) for jobs in self._failed.values())
        return num_jobs >= NOWHERE_AT and len(tried) >= min(2, self._num_nodes) and tried.issuperset(running_on)


class NodeMonitor:
    """Keeps an executor away from nodes that fail where others do not, and tells the user."""

    def __init__(self, store: Store, sweep: str, executor: Executor, clock: Callable[[], float] = time.monotonic):
        self.health = NodeHealth(executor.num_nodes, clock)
        self._store, self._sweep, self._executor, self._clock = store, sweep, executor, clock
        self._excluded: list[str] = []
        self._reported: dict[str, str] = {}
        """Excluded node -> what the user was told of it."""
        self._cleared: dict[str, float] = {}
        """Node -> when a user cleared it, if that was taken into account."""
        self._started_at, self._next_read = time.time(), float("-inf")

    def update(self) -> None:
        """Have the executor start nothing on the nodes that are excluded now; call it once all that ended is counted."""
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
                reports[node] = f"nothing new begins there for {COOLDOWN_S / 60:.0f} min"
        for node in health.unhealthy:
            undo = f"depthrate nodes {shlex.quote(self._sweep)} --clear {shlex.quote(node)}"
            reports[node] = f"nothing more begins there (when it is repaired: {undo})"
        for node, text in reports.items():
            if self._reported.get(node) != text:
                done = f"{node}: {health.describe(node)}, the last with: {health.last_error(node)}"
                log.warning("%s; %s", done[:500], text)
        self._reported = reports
