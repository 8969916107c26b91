"""What to do when an attempt fails: pure, by kind of failure."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from depthrate.storage.states import FailureKind


class Decision(StrEnum):
    """What becomes of a pack whose attempt failed."""

    RETRY = "retry"
    HALVE = "halve"
    """In two packs of half its trials each."""
    GIVE_UP = "give up"


RETRIES: dict[FailureKind, int] = {
    FailureKind.TASK: 1,  # an exception in the task: once more, then it is reported
    FailureKind.TABLE: 0,  # a task that returns no table will not return one next time
    FailureKind.STORE: 3,  # a disk that was full, a server that was away
    FailureKind.WORKER_LOST: 3,  # a process that was killed resumes from its checkpoint
    FailureKind.NODE_LOST: 50,  # preemption, a node that failed: not the pack's doing
    FailureKind.TIMEOUT: 3,  # a time limit that came without a checkpoint having been saved on the way
    FailureKind.CANCELLED: 1,  # one job cancelled by hand; the same pack twice means it
    FailureKind.OUT_OF_MEMORY: 1,  # only counted for a pack of one: larger packs are halved
}
"""How often a pack that fails in this way is tried again."""
STOP_AFTER_PACKS = 3
"""Packs that gave up with the same error before the launch stops early."""


def decide(kind: FailureKind, failures: Counter[FailureKind], num_trials: int) -> Decision:
    """Return what to do with a pack that failed with `kind`, given its failures so far, this one included."""
    if kind is FailureKind.OUT_OF_MEMORY and num_trials > 1:
        return Decision.HALVE
    return Decision.RETRY if failures[kind] <= RETRIES[kind] else Decision.GIVE_UP
