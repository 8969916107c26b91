"""A pack on its way through a launch: how it failed before, what its attempt has reported, and what runs behind it."""

from __future__ import annotations

from dataclasses import dataclass, field

from depthrate.orchestrator.attempts.retry import RULES, Cause, Failure
from depthrate.storage.attempts.heartbeats import Heartbeat
from depthrate.sweeps.packing import Pack


@dataclass(eq=False)
class QueuedPack:
    """A pack that waits or runs."""

    pack: Pack
    failures: list[Failure] = field(default_factory=list)
    beat: Heartbeat | None = None
    """Progress of its attempt: empty before its first heartbeat, None before it has started."""
    heartbeat_seen_at: float | None = None
    """When its last heartbeat was seen, on the driver's clock; None before it has started."""
    not_before: float = 0.0
    """When it may start, on the driver's clock."""
    then: list[QueuedPack] = field(default_factory=list)
    """Short packs that the same attempt runs after this one."""
    runs_alone: bool = False
    """Whether it is to have an attempt of its own: one of several in which it was lost."""

    @property
    def trial_ids(self) -> list[str]:
        """The trials that its attempt has, those of the packs behind it included."""
        return [*self.pack.trial_ids, *(trial_id for entry in self.then for trial_id in entry.pack.trial_ids)]

    @property
    def avoid(self) -> list[str]:
        """Nodes on which it has failed and that may be the cause."""
        return sorted({node for node, kind in self.failures if node and Cause.NODE in RULES[kind].causes})

    def unbatch(self) -> list[QueuedPack]:
        """Return this pack and those behind it, each on its own again."""
        entries, self.then = [self, *self.then], []
        return entries
