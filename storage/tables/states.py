"""Values in attempt records: an attempt's state, and the failure kinds that determine the next action."""

from enum import StrEnum


class AttemptState(StrEnum):
    """State of an attempt, the `state` of its record."""

    RUNNING = "running"
    """Started, and its record does not contain an end."""
    DONE = "done"
    """Ended with all trials committed."""
    INTERRUPTED = "interrupted"
    """Stopped on request, after saving a checkpoint."""
    FAILED = "failed"
    """Ended with an error that it recorded."""
    LOST = "lost"
    """Ended without recording its end. Another process recorded it."""


class FailureKind(StrEnum):
    """Cause of an attempt's failure, the `error_kind` of its record."""

    TASK = "task"
    """An exception in the task that may not recur on the same node: a file, a connection or a GPU failed."""
    CODE = "code"
    """Any other exception in the task. The same code would raise it again on the same node."""
    TABLE = "table"
    """The task returned an invalid table."""
    STORE = "store"
    """The store could not be written: a full disk or an unreachable server."""
    WORKER_LOST = "worker_lost"
    """The worker process exited unexpectedly."""
    NODE_LOST = "node_lost"
    """The node failed."""
    PREEMPTED = "preempted"
    """The job was preempted by another, or requeued."""
    HARDWARE = "hardware"
    """A GPU, a driver or a local disk of the node failed, according to a known error."""
    TIMEOUT = "timeout"
    """The job reached its time limit before anything was saved."""
    CANCELLED = "cancelled"
    """The job was cancelled by hand."""
    OUT_OF_MEMORY = "out_of_memory"
    """Memory of the node, the job or the GPU ran out."""
    NOT_BEGUN = "not_begun"
    """The job ended before depthrate started, because of the node or its setup."""
    FAILED_TO_START_ANYWHERE = "begins_nowhere"
    """Jobs ended before depthrate started, on every node that was tried."""
    NOT_HERE = "not_here"
    """The node lacked a requirement of the task that another node may have, for example a compiler."""
