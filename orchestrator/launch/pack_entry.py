"""A pack in a launch, with its failures, its attempt's progress and the packs batched with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from depthrate.orchestrator.attempts.retry import RULES, Cause, Failure
from depthrate.storage.attempts.heartbeats import Heartbeat
from depthrate.sweeps.packing import Pack


@dataclass(eq=False)
class QueuedPack:
    """A queued or running pack."""

    pack: Pack
    failures: list[Failure] = field(default_factory=list)
    beat: Heartbeat | None = None
    """Progress of its attempt: empty before its first heartbeat, None before it has started."""
    heartbeat_seen_at: float | None = None
    """Time of its last heartbeat on the driver's clock, in seconds. None before it has started."""
    not_before: float = 0.0
    """Earliest start time on the driver's clock, in seconds."""
    then: list[QueuedPack] = field(default_factory=list)
    """Short packs that the same attempt runs after this one."""
    runs_alone: bool = False
    """True if the pack must not be batched, because its last batched attempt was lost."""

    @property
    def trial_ids(self) -> list[str]:
        """Trials of its attempt, including those of the packs batched after it."""
        return [*self.pack.trial_ids, *(trial_id for entry in self.then for trial_id in entry.pack.trial_ids)]

    @property
    def avoid(self) -> list[str]:
        """Nodes that may have caused its failures."""
        return sorted({node for node, kind in self.failures if node and Cause.NODE in RULES[kind].causes})

    def unbatch(self) -> list[QueuedPack]:
        """Return this pack and the packs batched after it as separate entries."""
        entries, self.then = [self, *self.then], []
        return entries
