"""How a launch ended, and the state of its sweep after that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depthrate.orchestrator.executors.base import LaunchJob
    from depthrate.sweeps.packing import Pack


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


@dataclass(frozen=True)
class PackFailure:
    """A pack that was given up."""

    pack: Pack
    attempt_id: str
    error: str
    node: str = ""
    """On which it was last tried, where that is known."""


@dataclass
class Outcome:
    """How a launch ended."""

    failures: list[PackFailure]
    interrupted: bool
    """Asked to stop, by a signal or a cancellation."""
    stopped_early: bool
    cancelled: bool = False
    """By `depthrate cancel`, or by the user or an administrator of a scheduler."""


@dataclass(frozen=True)
class Detached:
    """How many packs a launch left behind that submitted them and went."""

    submitted: int
    claimed_by_peers: int
    """Claimed or run by another launch, which was there first."""
    not_submitted: int
    """For lack of room, or because the scheduler went away meanwhile."""
    job: LaunchJob | None = None
    """That submits those."""
