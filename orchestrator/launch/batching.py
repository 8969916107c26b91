"""Queued packs and batched attempts: one attempt runs several short packs in turn and commits them together.

The overhead of an attempt (two files, a record, a claim, a message to the worker and a reply) is then incurred only once. The
size of a batch follows from the duration of earlier packs. An attempt with too many packs returns the packs that it has not
started.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from depthrate.orchestrator.attempts.retry_policy import RULES, Cause, Failure
from depthrate.orchestrator.attempts.spec import BATCH_S, PackTrials
from depthrate.storage.attempts.heartbeats import Heartbeat
from depthrate.storage.attempts.records import Record
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.sweeps.packing import Pack

MAX_PACKS_PER_ATTEMPT = 64


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
    """True if the pack must not be batched, because its last batched attempt was lost or it is a half."""
    shares_memory: bool = True
    """False once the pack, or the pack that it is a half of, has run out of memory."""

    @property
    def trial_ids(self) -> list[str]:
        """Trials of its attempt, including the packs batched after it."""
        return [*self.pack.trial_ids, *(trial_id for entry in self.then for trial_id in entry.pack.trial_ids)]

    @property
    def avoid(self) -> list[str]:
        """Nodes that may have caused its failures."""
        return sorted({node for node, kind in self.failures if node and Cause.NODE in RULES[kind].causes})

    def unbatch(self) -> list[QueuedPack]:
        """Return this pack and the packs batched after it as separate entries."""
        entries, self.then = [self, *self.then], []
        return entries


class Batching:
    """Number of packs per attempt, which is one at first and grows while packs turn out to be short."""

    def __init__(self, *, is_possible: bool):
        self._is_possible = is_possible
        self._size = 1

    def size(self, waiting: int, workers: int) -> int:
        """Return the number of packs for the next attempt: few near the end, so that all workers finish together."""
        return max(1, min(self._size, waiting // (2 * workers)))

    def record_done(self, entries: list[QueuedPack], record: Record) -> tuple[list[QueuedPack], list[QueuedPack]]:
        """Record the packs' duration. Return the packs that the attempt ran and the packs that it returned."""
        started_ids = set(record["trial_ids"])
        # A single pack always counts as run, because other launches may have committed some of its trials.
        num_run = len(entries) if len(entries) == 1 else sum(started_ids.issuperset(e.pack.trial_ids) for e in entries)
        if self._is_possible and record.get("packs_s") is not None and num_run:
            pack_s = max(1e-6, record["packs_s"]) / num_run
            self._size = max(1, min(int(BATCH_S / pack_s), 2 * self._size, MAX_PACKS_PER_ATTEMPT))
        return entries[:num_run], entries[num_run:]

    def record_failure(self) -> None:
        """Go back to one pack per attempt, because the following packs may fail in the same way."""
        self._size = 1


def group_entries(entries: Iterable[QueuedPack], size: int, max_groups: int) -> list[list[QueuedPack]]:
    """Form at most `max_groups` groups of at most `size` packs from the first packs. A pack that failed forms its own group."""
    groups: list[list[QueuedPack]] = []
    for entry in entries:
        if groups and len(groups[-1]) < size and not any(e.runs_alone or e.failures for e in (entry, groups[-1][0])):
            groups[-1].append(entry)
        elif len(groups) < max_groups:
            groups.append([entry])
        else:
            break
    return groups


def to_pack_trials(pack: Pack) -> PackTrials:
    """Convert a pack to the format that workers receive."""
    return PackTrials(pack_id=pack.pack_id, trial_ids=pack.trial_ids, params=[trial.params for trial in pack.trials])


def split_failed(
    entries: list[QueuedPack], kind: FailureKind, record: Record | None
) -> tuple[list[QueuedPack], list[QueuedPack]]:
    """Split an attempt's uncommitted packs into packs that its failure counts against and all other packs.

    The record of a killed worker does not name the pack that was running. Each pack is then retried alone.
    """
    failed = None if record is None or record["state"] is not AttemptState.FAILED else record["pack_id"]
    if Cause.PACK not in RULES[kind].causes:  # the failure could have happened to any pack
        return entries, []
    if len(entries) == 1 and (entries[0].runs_alone or failed in (None, entries[0].pack.pack_id)):
        return entries, []  # otherwise another launch has committed the failed pack
    failed_entries = [entry for entry in entries if entry.pack.pack_id == failed]
    others = [entry for entry in entries if entry.pack.pack_id != failed]
    for entry in others if not failed_entries else ():
        entry.runs_alone = True
    return failed_entries, others
