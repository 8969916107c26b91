"""What a record of an attempt may say: how it stands, and the kinds of failure by which it is decided what comes next."""

from __future__ import annotations

from enum import StrEnum


class AttemptState(StrEnum):
    """How an attempt stands, as the `state` of its record."""

    RUNNING = "running"
    DONE = "done"
    INTERRUPTED = "interrupted"
    """Asked to end, it saved a checkpoint and did."""
    FAILED = "failed"
    """It wrote down its own error."""
    LOST = "lost"
    """It died without a word, which somebody else wrote down."""


class FailureKind(StrEnum):
    """Why an attempt did not do its work, as the `error_kind` of its record."""

    TASK = "task"
    """An exception in the task that may not occur again on the same machine: a file, a connection or a GPU failed."""
    CODE = "code"
    """Any other exception in the task: the same code raises it again on the same machine."""
    TABLE = "table"
    """The task returned what is no table."""
    STORE = "store"
    """The store could not be written: a full disk, a server that was away."""
    WORKER_LOST = "worker_lost"
    """Its process died."""
    NODE_LOST = "node_lost"
    """Its machine failed."""
    PREEMPTED = "preempted"
    """Its job was taken away for another, or put back into the queue."""
    HARDWARE = "hardware"
    """A card, a driver or a local disk of its machine failed, by an error that is known for that."""
    TIMEOUT = "timeout"
    """Its job's time limit came before anything was saved."""
    CANCELLED = "cancelled"
    """Its job was cancelled by hand."""
    OUT_OF_MEMORY = "out_of_memory"
    NOT_BEGUN = "not_begun"
    """Its job ended before our program began: by its node, or by what is set up there."""
    FAILED_TO_START_ANYWHERE = "begins_nowhere"
    """As before, on every node that was tried."""
    NOT_HERE = "not_here"
    """The task lacked something on its machine, a compiler, and another may have it."""
