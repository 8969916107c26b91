"""Short packs go to a worker several at once: one attempt runs them in turn and commits them together.

What a pack costs beside its training (two files on the disk, a record, a claim, a message there and back) is then paid once
for all of them. How many go together follows from how long those before them took; an attempt that was given too many gives
back what it has not begun.
"""

from __future__ import annotations

from collections.abc import Iterable

from depthrate.orchestrator.attempts.retry import RULES, Cause
from depthrate.orchestrator.executors.base import BATCH_S, PackTrials
from depthrate.orchestrator.launch.pack_entry import QueuedPack
from depthrate.storage.attempts.records import Record
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.sweeps.packing import Pack

MAX_PACKS_PER_ATTEMPT = 64
"""In one attempt."""


class Batching:
    """How many packs go together: one at first, and more as long as they turn out to be short."""

    def __init__(self, *, is_possible: bool):
        self._is_possible = is_possible
        self._size = 1

    def size(self, waiting: int, workers: int) -> int:
        """Return how many packs the next attempt gets; towards the end few, so that all workers end at the same time."""
        return max(1, min(self._size, waiting // (2 * workers)))

    def record_done(self, entries: list[QueuedPack], record: Record) -> tuple[list[QueuedPack], list[QueuedPack]]:
        """Return which of its packs an attempt ran and which it gave back, and note how long those it ran took."""
        begun = set(record["trial_ids"])
        # of a single pack others may have committed trials meanwhile
        ran = len(entries) if len(entries) == 1 else sum(begun.issuperset(entry.pack.trial_ids) for entry in entries)
        if self._is_possible and record.get("packs_s") is not None and ran:
            each_s = max(1e-6, record["packs_s"]) / ran
            self._size = max(1, min(int(BATCH_S / each_s), 2 * self._size, MAX_PACKS_PER_ATTEMPT))
        return entries[:ran], entries[ran:]

    def record_failure(self) -> None:
        """Note that an attempt has failed: what is tried again goes alone, and what follows may be like it."""
        self._size = 1


def group_entries(entries: Iterable[QueuedPack], size: int, max_groups: int) -> list[list[QueuedPack]]:
    """Return the first of these packs in up to `most` groups of up to `size`; one that failed before is a group by itself."""
    groups: list[list[QueuedPack]] = []
    for entry in entries:
        may_join = groups and len(groups[-1]) < size and not any(map(_runs_alone, (entry, groups[-1][0])))
        if may_join:
            groups[-1].append(entry)
        elif len(groups) < max_groups:
            groups.append([entry])
        else:
            break
    return groups


def _runs_alone(entry: QueuedPack) -> bool:
    return entry.runs_alone or bool(entry.failures)


def to_pack_trials(pack: Pack) -> PackTrials:
    """Return a pack as a worker needs to know it."""
    return PackTrials(pack_id=pack.pack_id, trial_ids=pack.trial_ids, params=[trial.params for trial in pack.trials])


def split_failed(
    entries: list[QueuedPack], kind: FailureKind, record: Record | None
) -> tuple[list[QueuedPack], list[QueuedPack]]:
    """Return for which of the uncommitted packs of an attempt its failure counts, and the others.

    A worker that was killed leaves no word about which pack it was at: each of them is then to go alone.
    """
    failed = None if record is None or record["state"] is not AttemptState.FAILED else record["pack_id"]
    if Cause.PACK not in RULES[kind].causes:  # it would have happened to each of them
        return entries, []
    if len(entries) == 1 and (entries[0].runs_alone or failed in (None, entries[0].pack.pack_id)):
        return entries, []  # else it failed in a pack that others have committed meanwhile
    failed_entries = [entry for entry in entries if entry.pack.pack_id == failed]
    others = [entry for entry in entries if entry.pack.pack_id != failed]
    for entry in others if not failed_entries else ():
        entry.runs_alone = True
    return failed_entries, others
