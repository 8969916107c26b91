"""What follows when an attempt fails: pure, by one table over the kinds of failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from typing import NamedTuple

from depthrate.storage.tables.states import FailureKind


class FailureAction(StrEnum):
    """What becomes of a pack whose attempt failed."""

    RETRY = "retry"
    SPLIT = "split"
    """In two packs of half its trials each."""
    STOP = "stop"
    """Back into the queue, and this launch submits nothing more: its user can resume it."""
    GIVE_UP = "give up"


class Cause(Flag):
    """What may have caused a failure."""

    PACK = auto()
    """The pack that ran, and no other of its attempt."""
    NODE = auto()
    STORE = auto()
    SCHEDULER = auto()
    """Or its user, or a site on which nothing starts."""


@dataclass(frozen=True)
class Rule:
    """What follows from one kind of failure."""

    retries: int
    """How often a pack that fails in this way is tried again."""
    causes: Cause
    delays_s: tuple[float, float] = (0.0, 0.0)
    """Before a pack is tried again: at first, and at most; doubled with every failure."""
    only_elsewhere: bool = False
    """Whether it is tried again only where there is another node: this one would give the same error."""

    @property
    def is_external(self) -> bool:
        """Whether it says nothing about the trial."""
        return not self.causes & (Cause.PACK | Cause.STORE)


RULES: dict[FailureKind, Rule] = {
    FailureKind.TASK: Rule(1, Cause.PACK | Cause.NODE),  # an exception that may not occur again
    FailureKind.CODE: Rule(1, Cause.PACK | Cause.NODE, only_elsewhere=True),  # where libraries may have other versions
    FailureKind.TABLE: Rule(0, Cause.PACK),  # a task that returns no table will not return one next time
    FailureKind.STORE: Rule(3, Cause.STORE | Cause.NODE, (5.0, 40.0)),  # a disk that was full, a server that was away
    FailureKind.WORKER_LOST: Rule(3, Cause.PACK | Cause.NODE),  # resumes from its checkpoint
    FailureKind.NODE_LOST: Rule(50, Cause.NODE),
    FailureKind.PREEMPTED: Rule(50, Cause.SCHEDULER),
    FailureKind.HARDWARE: Rule(8, Cause.NODE),  # more often only where every node has it
    FailureKind.NOT_BEGUN: Rule(50, Cause.NODE, (10.0, 300.0)),  # until it is clear whether the node is the cause
    FailureKind.FAILED_TO_START_ANYWHERE: Rule(0, Cause.SCHEDULER),  # the next job would end like the others
    FailureKind.NOT_HERE: Rule(3, Cause.NODE, only_elsewhere=True),
    FailureKind.TIMEOUT: Rule(1, Cause.PACK),  # a whole job's time without a checkpoint: the next job gets no further
    FailureKind.CANCELLED: Rule(0, Cause.SCHEDULER),
    FailureKind.OUT_OF_MEMORY: Rule(1, Cause.PACK),  # only counted for a pack of one trial: larger packs are split
}
MAX_FAILURES_PER_PACK = 20
"""Before a pack is given up, those on unhealthy nodes included; kinds with more retries have that limit alone."""
STOP_AFTER_PACKS = 3
"""Packs that gave up with the same error before the launch stops early."""


class Failure(NamedTuple):
    """One failure of a pack."""

    node: str
    """Empty where that is not known, or there is one node only."""
    kind: FailureKind


def decide(
    failures: Sequence[Failure],
    num_trials: int,
    unhealthy: Collection[str] = (),
    has_other_nodes: Callable[[Collection[str]], bool] = lambda nodes: True,
) -> FailureAction:
    """Return what to do with a pack after the last of its failures; those on unhealthy nodes are not its own.

    `has_other_nodes` returns whether packs can run on a node that is not among these.
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
    """Return how long to wait before a pack is tried again after the last of its failures."""
    initial_s, max_s = RULES[failures[-1].kind].delays_s
    count = sum(failure.kind is failures[-1].kind for failure in failures)
    return min(max_s, initial_s * 2 ** (count - 1))


def error_pattern(error: str) -> str:
    """Return an error without what differs from job to job: two that have this in common are one error."""
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
    """How long a scheduler without room is left alone: a job leaves it a moment after its last pack, or after hours."""

    def __init__(self, clock: Callable[[], float], first_s: float = 3.0, longest_s: float = 30.0):
        self._clock, self._first_s, self._longest_s = clock, first_s, longest_s
        self._until, self._next_s = float("-inf"), first_s

    @property
    def is_waiting(self) -> bool:
        """Whether it is not the time yet."""
        return self._clock() < self._until

    def wait(self) -> None:
        """Begin a pause, twice as long as the last."""
        self._until = self._clock() + self._next_s
        self._next_s = min(self._longest_s, 2 * self._next_s)

    def reset(self) -> None:
        """End it: something has changed, so the next one is short."""
        self._until, self._next_s = float("-inf"), self._first_s
