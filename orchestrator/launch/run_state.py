"""The state of a sweep after a run."""

from enum import Enum


class RunState(Enum):
    """State of a sweep after a run."""

    COMPLETE = "complete"
    """All trials are committed."""
    DETACHED = "detached"
    """Jobs continue without this process."""
    PROBED = "probed"
    """The packs of a probe are committed. The others have not started."""
    INCOMPLETE = "incomplete"
    """Trials are left: they failed, or were not submitted."""
    INTERRUPTED = "interrupted"
    """The user stopped the run. It can be resumed."""
