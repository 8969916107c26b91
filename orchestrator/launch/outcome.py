"""The progress of a launch, its end, and the state of its sweep after it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from depthrate.storage.attempts.heartbeats import Heartbeat
from depthrate.storage.attempts.records import Record
from depthrate.sweeps.packing import Pack


class RunState(Enum):
    """State of a sweep after a run."""

    COMPLETE = "complete"
    """All trials are committed."""
    DETACHED = "detached"
    """Jobs continue without this process."""
    PROBED = "probed"
    """The packs of a pilot run are committed. The others have not started."""
    INCOMPLETE = "incomplete"
    """Some trials failed or were not submitted."""
    NO_METRIC = "no metric"
    """All trials are committed, and none has the metric of a requested fit."""
    INTERRUPTED = "interrupted"
    """The user stopped the run. It can be resumed."""


@dataclass(frozen=True)
class PackFailure:
    """A pack that was given up."""

    pack: Pack
    error: str
    node: str = ""
    """Node of the last attempt. Empty if unknown."""


@dataclass
class Outcome:
    """The end of a launch."""

    failures: list[PackFailure]
    interrupted: bool
    """True if a signal or a cancellation stopped the launch."""
    stopped_early: bool
    """True if the launch stopped because the remaining packs would fail in the same way."""
    cancelled: bool = False
    """True if `depthrate cancel`, or a user or administrator of the scheduler, cancelled the launch."""


@dataclass(frozen=True)
class Detached:
    """Counts of packs after a launch that submitted packs and ended."""

    submitted: int
    claimed_by_peers: int
    """Packs that a peer launch has claimed or runs."""
    not_submitted: int
    """Packs not submitted, because of a submit limit or an unreachable scheduler."""
    refusal: str
    """Message of that limit, with the jobs that fill it, or of the scheduler. Empty if it refused no pack."""


@dataclass(frozen=True)
class Progress:
    """The state of a running launch."""

    trials_done: int
    packs_running: list[tuple[Pack, Heartbeat]]
    """(pack, last heartbeat) of each running pack. The heartbeat is empty before the first."""
    packs_queued: list[Pack]
    packs_submitted: list[Pack]
    """Submitted packs that, as far as is known, have not started."""
    num_blocked: int
    """Number of queued packs that a peer launch is running."""
    blocking_attempts: list[Record] = field(default_factory=list)
    """Attempts of peer launches that run these packs."""
    blocking_launches: list[str] = field(default_factory=list)
    """Peer launches that claim these packs or run them: host, process, and the time to a take-over."""
    waiting_reasons: Mapping[str, int] = field(default_factory=dict)
    """Scheduler's reason why submitted packs wait -> number of jobs."""
    packs_added: list[Pack] = field(default_factory=list)
    """Packs that a search has added since the launch started."""
    failures: Sequence[PackFailure] = ()
    """Packs that were given up."""


Watcher = Callable[[Progress], None]
"""Function that receives the progress of a launch from time to time."""
