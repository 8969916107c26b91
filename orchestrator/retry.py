"""What to do when an attempt fails: pure, by kind of failure."""

from __future__ import annotations

from collections import Counter
from typing import Literal

Decision = Literal["retry", "halve", "give up"]

LIMITS = {
    "task": 1,  # an exception in the task: once more, then it is reported
    "table": 0,  # a task that returns no table will not return one next time
    "store": 3,  # a disk that was full, a server that was away
    "worker_lost": 3,  # a process that was killed resumes from its checkpoint
    "node_lost": 50,  # preemption, a node that failed: not the pack's doing
    "timeout": 3,  # a time limit that came without a checkpoint having been saved on the way
    "cancelled": 1,  # one job cancelled by hand; the same pack twice means it
    "out_of_memory": 1,  # only counted for a pack of one: larger packs are halved
}
STOP_AFTER_PACKS = 3
"""Packs that gave up with the same error before the launch stops early."""


def decide(kind: str, failures: Counter[str], num_trials: int) -> Decision:
    """Return what to do with a pack that failed with `kind`, given its failures so far, this one included."""
    if kind == "out_of_memory" and num_trials > 1:
        return "halve"
    return "retry" if failures[kind] <= LIMITS.get(kind, 0) else "give up"
