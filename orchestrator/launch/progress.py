"""The progress of a launch, as watchers receive it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from depthrate.orchestrator.launch.outcome import PackFailure
from depthrate.storage.attempts.heartbeats import Heartbeat
from depthrate.storage.attempts.records import Record
from depthrate.sweeps.packing import Pack


@dataclass(frozen=True)
class Progress:
    """The state of a running launch."""

    trials_done: int
    packs_running: list[tuple[Pack, Heartbeat]]
    """(pack, last heartbeat) of each running pack. The heartbeat is empty before the first."""
    packs_queued: list[Pack]
    packs_submitted: list[Pack]
    """Submitted packs that have not started as far as is known."""
    num_blocked: int
    """Number of queued packs that a peer launch is running."""
    blocking_attempts: list[Record] = field(default_factory=list)
    """Attempts of peer launches that run these packs."""
    packs_added: list[Pack] = field(default_factory=list)
    """Packs that a search has added since the launch started."""
    failures: Sequence[PackFailure] = ()
    """Packs that were given up."""


Watcher = Callable[[Progress], None]
"""Function that receives the progress of a launch from time to time."""
