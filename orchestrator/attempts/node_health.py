"""Which nodes fail where others do not, judged by counts alone: nodes of a cluster or of Ray, or the GPUs of one machine.

A task with a bug fails everywhere and speaks against no node; a pack that fails on two healthy nodes is itself at fault.
What is left is compared: how likely is it that so many of all failures fall on one node by chance, given how many attempts
it had (Fisher's exact test, one-sided)? Attempts elsewhere that run for longer than it took to fail here count as gone well.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from depthrate.storage.attempts.records import Record
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import forgiven_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind

CHANCE = 0.1
"""A node whose failures are less likely than this by chance is avoided; being wrong costs a node, not a trial."""
LEAST_FAILURES, MOST_FAILURES = 2, 3
"""Failures below which nothing is concluded; and those in a row that are enough where others work meanwhile."""
SUSPECT_S = 120.0
"""How long nothing new is sent to a node on which an attempt has failed and none has gone well since, while others work."""
HISTORY_S = 24 * 3600.0
"""What is on the books counts for so long; each launch judges by what it sees itself."""
BLAMES_NODE = frozenset(
    {
        FailureKind.TASK,
        FailureKind.CODE,
        FailureKind.STORE,
        FailureKind.WORKER_LOST,
        FailureKind.NODE_LOST,
        FailureKind.HARDWARE,
        FailureKind.NOT_BEGUN,
        FailureKind.NOT_HERE,
    }
)
"""Failures that may be a node's doing; memory, time, and what somebody cancelled or took away are not."""
DEATH_S = 5.0
"""What ended on a node within so long of each other, when that was lost, it lost by one death."""
_NEVER_THE_PACKS = frozenset({FailureKind.HARDWARE, FailureKind.NODE_LOST, FailureKind.NOT_BEGUN, FailureKind.NOT_HERE})
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


def read_forgiven(store: Store, sweep: str) -> dict[str, float]:
    """Return node -> when it was said that it is repaired; empty where nobody did, or the store does not answer."""
    try:
        said = read_object(store.read(forgiven_path(sweep)))
    except (OSError, ValueError):
        return {}
    return {node: float(at) for node, at in said.items() if isinstance(at, int | float) and math.isfinite(at)}


def write_forgiven(store: Store, sweep: str, node: str) -> None:
    """Say that a node is repaired: launches that run, and `depthrate nodes`, count what it does from now on.

    Raises:
        OSError: the store refuses it.
    """
    store.write(forgiven_path(sweep), json.dumps(read_forgiven(store, sweep) | {node: time.time()}).encode())


def is_hardware_error(error: str | None) -> bool:
    """Whether an error is known to come from a node's card, driver or local disk, whatever the task."""
    return error is not None and _HARDWARE.search(error) is not None


def chance_of(failed: int, succeeded: int, failed_elsewhere: int, succeeded_elsewhere: int) -> float:
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
    """Attempts begun, failed and done on each node, and which nodes to avoid."""

    def __init__(self, num_nodes: int | None = None, clock: Callable[[], float] = time.monotonic):
        self._num_nodes, self._clock = num_nodes, clock
        self._nodes: defaultdict[str, _Node] = defaultdict(_Node)
        self._running: dict[str, tuple[str, float]] = {}
        """Attempt -> its node, and since when."""
        self._failed_on: defaultdict[str, set[str]] = defaultdict(set)
        """Pack -> nodes."""
        self._numbers = itertools.count()
        self._at_fault: set[str] = set()
        """Packs that failed on two nodes of which neither was avoided."""
        self.sick: list[str] = []
        """Nodes that fail where others do not, as last judged, the first found first."""

    def begins(self, node: str, attempt_id: str) -> None:
        """Note that an attempt runs on a node."""
        if node:
            self._nodes[node]  # known from now on
            self._running.setdefault(attempt_id, (node, self._clock()))

    def node_of(self, attempt_id: str) -> str:
        """Return where an attempt runs or ran, as far as that was noted; empty otherwise."""
        return self._running.get(attempt_id, ("", 0.0))[0]

    def leaves(self, attempt_id: str) -> None:
        """Note that an attempt is over in a way that says nothing about its node."""
        self._running.pop(attempt_id, None)

    def succeeds(self, node: str, attempt_id: str = "") -> None:
        """Note that an attempt went well."""
        self._running.pop(attempt_id, None)
        if node:
            self._nodes[node].done += 1
            self._nodes[node].streak.clear()
            self._judge()

    def fails(
        self, node: str, pack_id: str, kind: FailureKind, attempt_id: str = "", error: str = "", ago_s: float = 0.0
    ) -> None:
        """Note that an attempt at a pack failed, so many seconds ago, if that may be the node's doing."""
        _, since = self._running.pop(attempt_id, ("", self._clock()))
        if not node or kind not in BLAMES_NODE:
            return
        here = self._nodes[node]
        if kind is FailureKind.NODE_LOST:
            died_at = self._clock() - ago_s
            if any(abs(died_at - before) < DEATH_S for before in here.died_at):
                return
            here.died_at.append(died_at)
        if kind in _NEVER_THE_PACKS:
            pack_id = f"{pack_id} {next(self._numbers)}"  # of its own: not compared with how the pack does elsewhere
        if not here.streak:
            here.done_elsewhere = self._done_elsewhere(node)
        here.failed[pack_id] += 1
        here.streak.append(pack_id)
        here.failed_at = max(here.failed_at, self._clock() - ago_s)
        here.lasted_s = max(here.lasted_s, self._clock() - since)
        here.last_error = error
        self._failed_on[pack_id].add(node)
        if len(self._failed_on[pack_id].difference(self.sick)) > 1:
            self._at_fault.add(pack_id)
        self._judge()

    def forgive(self, node: str) -> None:
        """Forget what a node did: somebody has repaired it."""
        if node in self._nodes:
            self._nodes[node] = _Node()
            for nodes in self._failed_on.values():
                nodes.discard(node)
            self._judge()

    def learn(self, records: Iterable[Record], forgiven: dict[str, float], now: float) -> None:
        """Take account of attempts that ended before, by their hosts; of a node that was forgiven, of those since then."""
        for record in sorted(records, key=_ended_at):
            node, ended_at = record["host"] or "", _ended_at(record)
            if ended_at < max(now - HISTORY_S, forgiven.get(node, 0.0)):
                continue
            if record["state"] is AttemptState.DONE:
                self.succeeds(node)
            elif record["state"] in (AttemptState.FAILED, AttemptState.LOST) and record["error_kind"] is not None:
                pack_id, error = record["pack_id"] or "", record["error"] or ""
                self.fails(node, pack_id, record["error_kind"], error=error, ago_s=now - ended_at)

    @property
    def known(self) -> set[str]:
        """Nodes on which any attempt has begun."""
        return set(self._nodes)

    @property
    def avoided(self) -> list[str]:
        """Nodes on which nothing new is to begin: those that are sick, and for a while those that have just failed."""
        return [*self.sick, *self.suspects]

    @property
    def suspects(self) -> list[str]:
        """Nodes that have failed and not gone well since, where most others do not: avoided for `SUSPECT_S`."""
        now = self._clock()
        failing = [name for name, each in self._nodes.items() if set(each.streak) - self._at_fault]
        if 2 * len(failing) > max(len(self._nodes), 1):
            return []  # they fail everywhere
        fresh = [name for name in failing if now - self._nodes[name].failed_at < SUSPECT_S and name not in self.sick]
        return sorted(fresh)[: max(0, self._most() - len(self.sick))]

    def fails_alone_so_far(self, node: str) -> bool:
        """Whether attempts have gone well elsewhere, or run there for longer than any that failed on this node."""
        return self._done_elsewhere(node) + self._outlived(node) > 0

    def describe(self, node: str) -> str:
        """Say what a node did beside the others."""
        failed, done, failed_elsewhere, done_elsewhere = self._counts(node)
        text = f"{failed} of {failed + done} attempts failed on {node}, {failed_elsewhere} of "
        return text + f"{failed_elsewhere + done_elsewhere} elsewhere"

    def last_error(self, node: str) -> str:
        """Return what failed last on a node."""
        return self._nodes[node].last_error if node in self._nodes else ""

    def _judge(self) -> None:
        found = [node for node in self._nodes if self._fails_alone(node)]
        keep = [node for node in self.sick if node in found]
        self.sick = [*keep, *(node for node in found if node not in keep)][: self._most()]

    def _fails_alone(self, node: str) -> bool:
        failed, done, failed_elsewhere, done_elsewhere = self._counts(node)
        if failed < LEAST_FAILURES or not done_elsewhere:
            return False
        here = self._nodes[node]
        in_a_row = sum(pack not in self._at_fault for pack in here.streak)
        since = done_elsewhere - (here.done_elsewhere if here.done else 0)
        if in_a_row >= MOST_FAILURES and since > 0 and failed_elsewhere <= done_elsewhere:
            return True
        return bool(in_a_row) and chance_of(failed, done, failed_elsewhere, done_elsewhere) <= CHANCE

    def _counts(self, node: str) -> tuple[int, int, int, int]:
        """Return the attempts that failed and went well on a node, and elsewhere."""
        failures = {name: self._failures(name) for name in self._nodes}
        elsewhere = sum(failures.values()) - failures.get(node, 0)
        done_elsewhere = self._done_elsewhere(node) + self._outlived(node)
        return failures.get(node, 0), self._nodes[node].done, elsewhere, done_elsewhere

    def _failures(self, name: str) -> int:
        return sum(number for pack, number in self._nodes[name].failed.items() if pack not in self._at_fault)

    def _done_elsewhere(self, node: str) -> int:
        return sum(other.done for name, other in self._nodes.items() if name != node)

    def _outlived(self, node: str) -> int:
        """Return how many attempts elsewhere have run for longer than any that failed on this node."""
        longest_s, now = self._nodes[node].lasted_s, self._clock()
        return sum(name != node and now - since > longest_s for name, since in self._running.values())

    def _most(self) -> int:
        """Return how many nodes may be avoided: one is always left, and of many a half."""
        total = self._num_nodes or len(self._nodes)
        return max(0, total - 1) if total <= 3 else total // 2
