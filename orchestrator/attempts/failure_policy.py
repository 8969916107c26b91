"""What to do when an attempt fails: pure, by kind of failure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

from depthrate.storage.tables.states import FailureKind


class Decision(StrEnum):
    """What becomes of a pack whose attempt failed."""

    RETRY = "retry"
    HALVE = "halve"
    """In two packs of half its trials each."""
    STOP = "stop"
    """Back into the queue, and this launch submits nothing more: its user can resume it."""
    GIVE_UP = "give up"


RETRIES: dict[FailureKind, int] = {
    FailureKind.TASK: 1,  # an exception that may not occur again: once more, then it is reported
    FailureKind.CODE: 1,  # another machine may have other versions of imported libraries
    FailureKind.TABLE: 0,  # a task that returns no table will not return one next time
    FailureKind.STORE: 3,  # a disk that was full, a server that was away
    FailureKind.WORKER_LOST: 3,  # a process that was killed resumes from its checkpoint
    FailureKind.NODE_LOST: 50,  # a node that failed: not the pack's doing
    FailureKind.PREEMPTED: 50,  # taken away: not the pack's doing
    FailureKind.HARDWARE: 8,  # not the pack's doing, and more often only where every node has it
    FailureKind.NOT_BEGUN: 50,  # a node, or what is set up there: not the pack's doing
    FailureKind.FAILED_TO_START_ANYWHERE: 0,  # the next job would end like the others
    FailureKind.NOT_HERE: 3,  # what this machine lacks, another may have
    FailureKind.TIMEOUT: 1,  # a whole job's time in which nothing was saved: the next job gets no further
    FailureKind.CANCELLED: 0,  # by its user or an administrator, who mean it
    FailureKind.OUT_OF_MEMORY: 1,  # only counted for a pack of one: larger packs are halved
}
"""How often a pack that fails in this way is tried again."""
ONLY_ELSEWHERE = (FailureKind.CODE, FailureKind.NOT_HERE)
"""What is tried again only where there is another machine: this one would say the same."""
PAUSES_S: dict[FailureKind, tuple[float, float]] = {
    FailureKind.STORE: (5.0, 40.0),
    FailureKind.NOT_BEGUN: (10.0, 300.0),  # until it is clear whether it is a node's doing
}
"""Before a pack is tried again: at first, and at most; doubled with every failure. Else at once."""
MOST_FAILURES = 20
"""Of one pack, those included that are a node's doing, before it is given up all the same; being taken away is none."""
TAKEN_AWAY = (
    FailureKind.CANCELLED,
    FailureKind.NODE_LOST,
    FailureKind.PREEMPTED,
    FailureKind.HARDWARE,
    FailureKind.NOT_BEGUN,
    FailureKind.FAILED_TO_START_ANYWHERE,
)
"""Deaths that say nothing about the trial."""
STOP_AFTER_PACKS = 3
"""Packs that gave up with the same error before the launch stops early."""


def decide(
    kind: FailureKind, failures: Counter[FailureKind], num_trials: int, *, has_other_nodes: bool = True
) -> Decision:
    """Return what to do with a pack that failed with `kind`, given its failures so far, this one included."""
    if kind is FailureKind.CANCELLED:
        return Decision.STOP
    if kind in ONLY_ELSEWHERE and not has_other_nodes:
        return Decision.GIVE_UP
    if kind is FailureKind.OUT_OF_MEMORY and num_trials > 1:
        return Decision.HALVE
    return Decision.RETRY if failures[kind] <= RETRIES[kind] else Decision.GIVE_UP


def pause_s(kind: FailureKind, failures: Counter[FailureKind]) -> float:
    """Return how long to wait before a pack that failed with `kind` is tried again."""
    first_s, longest_s = PAUSES_S.get(kind, (0.0, 0.0))
    return min(longest_s, first_s * 2 ** (failures[kind] - 1))


def error_pattern(error: str) -> str:
    """Return an error without what differs from job to job: two that have this in common are one error."""
    for pattern, general in _DIFFERS:
        error = pattern.sub(general, error)
    return error


_DIFFERS = (
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
    def is_on(self) -> bool:
        """Whether it is not the time yet."""
        return self._clock() < self._until

    def wait(self) -> None:
        """Begin a pause, twice as long as the last."""
        self._until = self._clock() + self._next_s
        self._next_s = min(self._longest_s, 2 * self._next_s)

    def end(self) -> None:
        """End it: something has changed, so the next one is short."""
        self._until, self._next_s = float("-inf"), self._first_s
