"""Unhealthy nodes: nodes of SLURM or Ray, or GPUs of one machine, that fail where others do not, judged by counts.

`NodeHealth` counts attempts, and `StartFailures` counts jobs that end before depthrate starts in them.

A bug in a task fails on every node and counts against no node. A pack that fails on two healthy nodes counts as faulty, and its
failures count against no node. A one-sided Fisher test compares the remaining failures of a node with the failures elsewhere. A
running attempt elsewhere counts as a success once it has run longer than the failed attempts on the node.
"""

import itertools
import json
import logging
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from depthrate.orchestrator.attempts.retry_policy import RULES, Cause
from depthrate.storage.attempts.records import Record
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import cleared_nodes_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind

log = logging.getLogger("depthrate")
MAX_P_VALUE = 0.1
"""Largest Fisher p-value of an unhealthy node. A false alarm costs one node, never trials."""
MIN_NODE_FAILURES = 2
"""Minimum number of failures of an unhealthy node."""
NODE_FAILURES_IN_A_ROW = 3
"""Consecutive failures that make a node unhealthy while others succeed."""
COOLDOWN_S = 120.0
"""Seconds without new attempts after a failure on a node, until an attempt succeeds there, while other nodes work."""
HISTORY_S = 24 * 3600.0
"""Age in seconds from which records are ignored. Later events are counted as a launch observes them."""
SAME_NODE_LOSS_S = 5.0
"""Longest time in seconds between losses on one node that count as a single loss of the node."""
MIN_START_FAILURES = 2
"""Number of consecutive jobs that end on a node before depthrate starts in them, at which the node is excluded."""
MIN_FAILURES_ANYWHERE = 3
"""Number of early ends, on at least two nodes or on every node, from which on no single node can be the cause."""
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
    """Map each cleared node to the time at which a user cleared it. Return {} without cleared nodes or a readable store."""
    try:
        cleared = read_object(store.read(cleared_nodes_path(sweep)))
    except (OSError, ValueError):
        return {}
    return {node: float(at) for node, at in cleared.items() if isinstance(at, int | float) and math.isfinite(at)}


def write_cleared(store: Store, sweep: str, node: str) -> None:
    """Clear a repaired node: launches and `depthrate nodes` ignore its attempts up to now.

    Raises:
        OSError: The store is not writable.
    """
    store.write(cleared_nodes_path(sweep), json.dumps(read_cleared(store, sweep) | {node: time.time()}).encode())


def is_hardware_error(error: str | None) -> bool:
    """Return whether an error is known to come from a node's GPU, driver or local disk, whatever the task."""
    return error is not None and _HARDWARE.search(error) is not None


def fisher_p_value(failed: int, succeeded: int, failed_elsewhere: int, succeeded_elsewhere: int) -> float:
    """Return the one-sided Fisher p-value of a node's failures."""
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
    """Pack -> failed attempts."""
    streak: list[str] = field(default_factory=list)
    """Packs that failed since the last success."""
    done_elsewhere: int = 0
    """Successes on other nodes when the streak started."""
    failed_at: float = float("-inf")
    lost_at: list[float] = field(default_factory=list)
    longest_failed_s: float = 0.0
    """Longest run time of a failed attempt, in seconds."""
    last_error: str = ""


class NodeHealth:
    """Attempts started, failed and done per node, and the nodes to exclude."""

    def __init__(self, num_nodes: int | None = None, clock: Callable[[], float] = time.monotonic):
        self._num_nodes, self._clock = num_nodes, clock
        self._nodes: defaultdict[str, _Node] = defaultdict(_Node)
        self._running: dict[str, tuple[str, float]] = {}
        """Attempt -> (node, start on our clock)."""
        self._failed_on: defaultdict[str, set[str]] = defaultdict(set)
        """Pack -> nodes where it failed."""
        self._serials = itertools.count()
        self._faulty_packs: set[str] = set()
        """Packs that failed on two nodes, neither of them unhealthy at the time."""
        self.unhealthy: list[str] = []
        """Nodes that fail where others do not, in the order of detection."""

    def record_start(self, node: str, attempt_id: str) -> None:
        """Count an attempt that runs on a node."""
        if node:
            self._nodes[node]  # adds it to `nodes`
            self._running.setdefault(attempt_id, (node, self._clock()))

    def node_of(self, attempt_id: str) -> str:
        """Return the node of an attempt whose start was recorded, or an empty str."""
        return self._running.get(attempt_id, ("", 0.0))[0]

    def forget_attempt(self, attempt_id: str) -> None:
        """Forget an attempt whose end reveals nothing about its node."""
        self._running.pop(attempt_id, None)

    def record_success(self, node: str, attempt_id: str = "") -> None:
        """Count a successful attempt."""
        self._running.pop(attempt_id, None)
        if node:
            self._nodes[node].done += 1
            self._nodes[node].streak.clear()
            self._update_unhealthy()

    def record_failure(
        self, node: str, pack_id: str, kind: FailureKind, attempt_id: str = "", error: str = "", ago_s: float = 0.0
    ) -> None:
        """Count an attempt that failed `ago_s` seconds ago, if its node may be the cause."""
        _, since = self._running.pop(attempt_id, ("", self._clock()))
        causes = RULES[kind].causes
        if not node or Cause.NODE not in causes:
            return
        here = self._nodes[node]
        if kind is FailureKind.NODE_LOST:
            lost_at = self._clock() - ago_s
            if any(abs(lost_at - previous) < SAME_NODE_LOSS_S for previous in here.lost_at):
                return
            here.lost_at.append(lost_at)
        if causes == Cause.NODE:
            pack_id = (
                f"{pack_id} {next(self._serials)}"  # unique: failures of this pack on other nodes must not excuse it
            )
        if not here.streak:
            here.done_elsewhere = self._done_elsewhere(node)
        here.failed[pack_id] += 1
        here.streak.append(pack_id)
        here.failed_at = max(here.failed_at, self._clock() - ago_s)
        here.longest_failed_s = max(here.longest_failed_s, self._clock() - since)
        here.last_error = error
        self._failed_on[pack_id].add(node)
        if len(self._failed_on[pack_id].difference(self.unhealthy)) > 1:
            self._faulty_packs.add(pack_id)
        self._update_unhealthy()

    def clear(self, node: str) -> None:
        """Reset the history of a repaired node."""
        if node in self._nodes:
            self._nodes[node] = _Node()
            for nodes in self._failed_on.values():
                nodes.discard(node)
            self._update_unhealthy()

    def add_records(self, records: Iterable[Record], cleared: dict[str, float], now: float) -> None:
        """Count attempts that ended earlier, by host. On a cleared node, count only attempts that ended after the clearing."""
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
        """Nodes where an attempt has started."""
        return set(self._nodes)

    @property
    def excluded(self) -> list[str]:
        """Nodes that get no new attempts: unhealthy or in cooldown."""
        return [*self.unhealthy, *self.cooling_down]

    @property
    def cooling_down(self) -> list[str]:
        """Nodes with a failure in the last `COOLDOWN_S` and no success since, unless most nodes fail."""
        now = self._clock()
        failing = [name for name, node in self._nodes.items() if set(node.streak) - self._faulty_packs]
        if 2 * len(failing) > max(len(self._nodes), 1):
            return []  # failures everywhere: no node is the cause
        recent = [name for name in failing if now - self._nodes[name].failed_at < COOLDOWN_S]
        return sorted(set(recent).difference(self.unhealthy))[: max(0, self._max_excluded() - len(self.unhealthy))]

    def fails_only_here(self, node: str) -> bool:
        """Return whether attempts elsewhere succeeded, or have run longer than the failed attempts on this node."""
        return self._done_elsewhere(node) + self._count_outlasting(node) > 0

    def describe(self, node: str) -> str:
        """Return a node's failures compared with the other nodes."""
        failed, done, failed_elsewhere, done_elsewhere = self._counts(node)
        total_elsewhere = failed_elsewhere + done_elsewhere
        return (
            f"{failed} of {failed + done} attempts failed on {node} (elsewhere {failed_elsewhere} of {total_elsewhere})"
        )

    def last_error(self, node: str) -> str:
        """Return the error of the last failure on a node."""
        return self._nodes[node].last_error if node in self._nodes else ""

    def _update_unhealthy(self) -> None:
        failing = [node for node in self._nodes if self._is_unhealthy(node)]
        still = [node for node in self.unhealthy if node in failing]
        self.unhealthy = [*still, *(node for node in failing if node not in still)][: self._max_excluded()]

    def _is_unhealthy(self, node: str) -> bool:
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
        """Return (failures, successes, failures elsewhere, successes elsewhere) of a node."""
        failures = {name: self._failures(name) for name in self._nodes}
        elsewhere = sum(failures.values()) - failures.get(node, 0)
        done_elsewhere = self._done_elsewhere(node) + self._count_outlasting(node)
        return failures.get(node, 0), self._nodes[node].done, elsewhere, done_elsewhere

    def _failures(self, name: str) -> int:
        return sum(number for pack, number in self._nodes[name].failed.items() if pack not in self._faulty_packs)

    def _done_elsewhere(self, node: str) -> int:
        return sum(other.done for name, other in self._nodes.items() if name != node)

    def _count_outlasting(self, node: str) -> int:
        """Return the number of attempts on other nodes that have run longer than the failed attempts on this node."""
        longest_s, now = self._nodes[node].longest_failed_s, self._clock()
        return sum(name != node and now - since > longest_s for name, since in self._running.values())

    def _max_excluded(self) -> int:
        """Return the number of nodes that may be excluded: all but one of up to three nodes, or half of more nodes."""
        total = self._num_nodes or len(self._nodes)
        return max(0, total - 1) if total <= 3 else total // 2


class StartFailures:
    """Jobs per node that ended before depthrate started in them, because of a broken node or broken setup lines."""

    def __init__(self, num_nodes: int):
        self._num_nodes = num_nodes
        """Nodes of the partition. At least one node is never excluded."""
        self._works: set[str] = set()
        """Nodes with a heartbeat from depthrate, which proves that jobs can start there."""
        self._failed: defaultdict[str, set[str]] = defaultdict(set)
        """Node -> jobs that ended too early since depthrate last started on the node."""
        self.excluded: list[str] = []
        """Nodes to exclude from new jobs."""

    def record_start(self, node: str, job_id: str) -> None:
        """Count a job that runs depthrate, even if it was counted as failed, since its record may become visible late."""
        self._works.add(node)
        if self._failed.pop(node, None) and node in self.excluded:
            log.warning("node %s works again: job %s has started there", node, job_id)
            self.excluded.remove(node)

    def record_failure(self, node: str, job_id: str) -> None:
        """Count a job that ended on a node without a record from depthrate, and exclude the node at the limit."""
        if node:
            self._failed[node].add(job_id)
            is_possible = node not in self.excluded and len(self.excluded) + 1 < self._num_nodes
            if len(self._failed[node]) >= MIN_START_FAILURES and is_possible:
                self.excluded.append(node)
                count = len(self._failed[node])
                log.warning(
                    "node %s: %d jobs ended before depthrate started (failing setup line, missing file system or Python). "
                    "Excluded from new jobs.",
                    *(node, count),
                )

    def starts_nowhere(self, running_on: Collection[str]) -> bool:
        """Return whether no node can start jobs. A job on an untried node in `running_on` may still start."""
        if self._works:
            return False
        tried = {node for node, jobs in self._failed.items() if jobs}
        num_jobs = sum(len(jobs) for jobs in self._failed.values())
        return (
            num_jobs >= MIN_FAILURES_ANYWHERE and len(tried) >= min(2, self._num_nodes) and tried.issuperset(running_on)
        )
