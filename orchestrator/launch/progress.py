"""What a watcher sees of a launch while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from depthrate.orchestrator.launch.outcome import PackFailure
from depthrate.storage.attempts.heartbeats import Heartbeat
from depthrate.storage.attempts.records import Record
from depthrate.sweeps.packing import Pack


@dataclass(frozen=True)
class Progress:
    """What a watcher sees of a launch."""

    trials_done: int
    packs_running: list[tuple[Pack, Heartbeat]]
    """With the last heartbeats of their attempts, empty before the first."""
    packs_queued: list[Pack]
    packs_submitted: list[Pack]
    """Not known to have started."""
    waiting_for_others: int
    """Queued packs that another launch is running."""
    blocking_attempts: list[Record] = field(default_factory=list)
    """The attempts that they wait for."""
    packs_added: list[Pack] = field(default_factory=list)
    """By a search, since the launch began."""
    failures: Sequence[PackFailure] = ()
    """Packs that were given up."""


class Watcher(Protocol):
    """Is told now and then how a launch is getting on."""

    def __call__(self, progress: Progress) -> None: ...
