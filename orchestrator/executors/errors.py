"""Errors of executors. `ray/errors.py` has those of Ray.

InputError
├── ExecutorError            the executor is unknown, or an option is not valid for it
├── MachineError             the device or the number of workers is not available
└── SubmitError              a scheduler refused jobs
    └── QueueFullError       it accepts no more until some of its jobs end
        └── SubmitRateError  it would accept more, and submission is paused
"""

from collections.abc import Sequence

from depthrate.errors import InputError
from depthrate.orchestrator.attempts.spec import AttemptSpec


class ExecutorError(InputError):
    """The requested executor is unknown, or an option is not valid for it."""


class MachineError(InputError):
    """The requested device or number of workers is not available."""


class SubmitError(InputError):
    """A scheduler refused jobs. `unsubmitted` contains the jobs that it did not accept."""

    def __init__(self, message: str, unsubmitted: Sequence[AttemptSpec]):
        super().__init__(message)
        self.unsubmitted = unsubmitted


class QueueFullError(SubmitError):
    """A scheduler accepts no more jobs until some of its jobs end."""


class SubmitRateError(QueueFullError):
    """Submission is paused, although the scheduler would accept more jobs."""
