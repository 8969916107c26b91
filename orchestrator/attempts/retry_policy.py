"""The retry policy: one table from failure kind to action."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from typing import NamedTuple

from depthrate.storage.tables.states import FailureKind


class FailureAction(StrEnum):
    """Next step for a pack whose attempt failed."""

    RETRY = "retry"
    SPLIT = "split"
    """Split into two packs of half the trials."""
    STOP = "stop"
    """Requeue the pack and submit nothing more in this launch. The user can resume it."""
    GIVE_UP = "give up"


class Cause(Flag):
    """Possible cause of a failure."""

    PACK = auto()
    """The pack itself, and no other pack of the attempt."""
    NODE = auto()
    STORE = auto()
    SCHEDULER = auto()
    """The scheduler, its user, or a site that starts no jobs."""


@dataclass(frozen=True)
class Rule:
    """Consequences of one failure kind."""

    retries: int
    """Retries of a pack that fails with this kind."""
    causes: Cause
    delays_s: tuple[float, float] = (0.0, 0.0)
    """Initial and largest delay before a retry, in seconds. The delay doubles with each failure."""
    only_elsewhere: bool = False
    """True if a retry needs another node, because it would fail again on the same node."""

    @property
    def is_external(self) -> bool:
        """Whether the failure reveals nothing about the trial."""
        return not self.causes & (Cause.PACK | Cause.STORE)


RULES: dict[FailureKind, Rule] = {
    FailureKind.TASK: Rule(1, Cause.PACK | Cause.NODE),  # the exception may be transient
    FailureKind.CODE: Rule(1, Cause.PACK | Cause.NODE, only_elsewhere=True),  # other nodes may have other libraries
    FailureKind.TABLE: Rule(0, Cause.PACK),  # a task that returned no table will not return one next time
    FailureKind.STORE: Rule(3, Cause.STORE | Cause.NODE, (5.0, 40.0)),  # disk full or server unavailable
    FailureKind.WORKER_LOST: Rule(3, Cause.PACK | Cause.NODE),  # resumes from its checkpoint
    FailureKind.NODE_LOST: Rule(50, Cause.NODE),
    FailureKind.PREEMPTED: Rule(50, Cause.SCHEDULER),
    FailureKind.HARDWARE: Rule(8, Cause.NODE),  # reached only if every node has the fault
    FailureKind.NOT_BEGUN: Rule(50, Cause.NODE, (10.0, 300.0)),  # until it is clear whether the node is the cause
    FailureKind.FAILED_TO_START_ANYWHERE: Rule(0, Cause.SCHEDULER),  # the next job would end in the same way
    FailureKind.NOT_HERE: Rule(3, Cause.NODE, only_elsewhere=True),
    FailureKind.TIMEOUT: Rule(1, Cause.PACK),  # a whole job without a checkpoint: the next job gets no further
    FailureKind.CANCELLED: Rule(0, Cause.SCHEDULER),
    FailureKind.OUT_OF_MEMORY: Rule(1, Cause.PACK),  # only for packs of one trial, since larger packs are split
}
MAX_FAILURES_PER_PACK = 20
"""Number of failures, including failures on unhealthy nodes, after which a pack is given up. Kinds that allow more retries have
only their own limit.
"""
STOP_AFTER_PACKS = 3
"""Number of packs given up with the same error at which the launch stops early."""


class Failure(NamedTuple):
    """One failure of a pack."""

    node: str
    """Node of the attempt. Empty if unknown, or if there is only one node."""
    kind: FailureKind


def decide(
    failures: Sequence[Failure],
    num_trials: int,
    unhealthy: Collection[str] = (),
    has_other_nodes: Callable[[Collection[str]], bool] = lambda nodes: True,
) -> FailureAction:
    """Return the next step for a pack after its latest failure. Failures on unhealthy nodes do not count against it.

    Args:
        failures: All failures of the pack, oldest first.
        num_trials: Trials in the pack.
        unhealthy: Unhealthy nodes.
        has_other_nodes: Returns whether packs can run on a node other than the given nodes.
    """
    kind = failures[-1].kind
    same_kind = [failure.node for failure in failures if failure.kind is kind]
    if kind is FailureKind.CANCELLED:
        return FailureAction.STOP
    if sum(RULES[failure.kind].retries <= MAX_FAILURES_PER_PACK for failure in failures) > MAX_FAILURES_PER_PACK:
        return FailureAction.GIVE_UP
    if RULES[kind].only_elsewhere and not has_other_nodes({*unhealthy, *same_kind}):
        return FailureAction.GIVE_UP
    if kind is FailureKind.OUT_OF_MEMORY and num_trials > 1:
        return FailureAction.SPLIT
    num_charged = sum(node not in unhealthy for node in same_kind)
    return FailureAction.RETRY if num_charged <= RULES[kind].retries else FailureAction.GIVE_UP


def retry_delay_s(failures: Sequence[Failure]) -> float:
    """Return the seconds to wait before retrying a pack after its latest failure."""
    initial_s, max_s = RULES[failures[-1].kind].delays_s
    count = sum(failure.kind is failures[-1].kind for failure in failures)
    return min(max_s, initial_s * 2 ** (count - 1))


def error_pattern(error: str) -> str:
    """Return an error without the parts that differ between jobs, so that equal errors compare equal."""
    for pattern, general in _VARIABLE_PARTS:
        error = pattern.sub(general, error)
    return error


_VARIABLE_PARTS = (
    (re.compile(r"\S*/job\d+/"), ""),  # "/var/spool/slurmd/n1/job00017/slurm_script"
    (re.compile(r"\bjob \d+(?:_\d+)?"), "job"),
    (re.compile(r"( ended as \w+| was cancelled) on [^\s:]+"), r"\1"),
    (re.compile(r"\d{3,}"), "#"),  # processes, times
)


class Backoff:
    """Growing pause before the next submission to a full scheduler, where a slot may open in seconds or in hours."""

    def __init__(self, clock: Callable[[], float], initial_s: float = 3.0, max_s: float = 30.0):
        self._clock, self._initial_s, self._max_s = clock, initial_s, max_s
        self._until, self._next_s = float("-inf"), initial_s

    @property
    def is_waiting(self) -> bool:
        """Whether the pause is still in effect."""
        return self._clock() < self._until

    def wait(self) -> None:
        """Start a pause that is twice as long as the previous pause."""
        self._until = self._clock() + self._next_s
        self._next_s = min(self._max_s, 2 * self._next_s)

    def reset(self) -> None:
        """End the pause after a change, so that the next pause is short again."""
        self._until, self._next_s = float("-inf"), self._initial_s
