"""Put many small files together into few large, sorted ones; readers see the same trials before, during and after.

A compaction writes its files under names of its own and then a manifest (`storage.commits.manifest`), whose single write is the
switch. What it replaces is deleted later, when no reader can still be at it, and only after the new files were read
again and found whole. It takes no lock: two compactions at once may both hold a trial, and readers take it from one.
What makes that safe is that a compaction holds every trial of everything it replaces: it leaves a double out only for
an earlier commit that it holds itself, and a row that was removed for good (`storage.catalog.removals`). Trusting that another
file holds it would lose the trial when that file's compaction trusts this one at the same moment.
Killed at any point it leaves the store as it was, or one group of files further on; running it again goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.attempts.heartbeats import NodeHeartbeats
from depthrate.storage.attempts.live_curves import LIVE_FORGOTTEN_S, delete_ended_live
from depthrate.storage.catalog.requested_trials import CorruptFileError
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.paths import new_name as new_compaction_id
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compaction_groups import GROUP_BYTES, plan_groups
from depthrate.storage.maintenance.garbage import delete_replaced
from depthrate.storage.maintenance.merge import DamagedFile, write_group
from depthrate.storage.maintenance.purge import delete_empty_seals, seal_removals
from depthrate.storage.maintenance.type_conflicts import is_mistyped, read_column_types

RETENTION_S = 3600.0
"""How long what was replaced stays for readers that found it before."""
ROUNDS = 5
"""How often a compaction plans anew when others damage or delete what it was about to read."""


@dataclass
class CompactionResult:
    """What a compaction did."""

    groups: int = 0
    commits: int = 0
    trials: int = 0
    records: int = 0
    deleted: int = 0
    """Replaced files that are gone now."""
    waiting: int = 0
    """Replaced files that stay until the grace period is over."""
    refused: tuple[str, ...] = ()
    """Why something was not purged or deleted."""
    damaged: tuple[str, ...] = ()
    """Files that were left alone, with all that was committed with them."""


def compact(
    store: Store,
    *,
    grace_s: float = RETENTION_S,
    at_least: int = 2,
    group_bytes: float = GROUP_BYTES,
    tell: Callable[[CompactionResult, int], None] = lambda result, num_groups: None,
) -> CompactionResult:
    """Put together what every sweep has in small files, then delete what was replaced longer than `grace_s` ago.

    A sweep with fewer than `at_least` loose commits is left alone. `tell` hears of each group that is done, and how
    many there are. Damaged files are left alone too: `storage.maintenance.verify` names them and what to do.

    What cannot be read stops what relies on it: without every list of trials nothing is purged, without every manifest nothing
    is deleted, and `refused` says so.

    Raises:
        ClockError: the clock of this machine is wrong, or the store's.
        OSError: the store refused a read or a write; nothing is lost, run it again.
    """
    require_clock(store)
    result, cache, types = CompactionResult(), SnapshotCache(), read_column_types(store)
    first = take_snapshot(store, cache=cache)
    refused = []
    try:
        if seal_removals(store, first.removals, grace_s):
            first = take_snapshot(store, cache=cache)
    except CorruptFileError as error:
        refused.append(f"nothing was purged: {error}")
    damaged = {source.path for source in (*first.sources, *first.superseded_commits) if is_mistyped(source, types)}
    for _ in range(ROUNDS):
        snapshot = take_snapshot(store, ignore=damaged, cache=cache)
        groups = list(plan_groups(store, snapshot, at_least, group_bytes))
        try:
            for group in groups:
                write_group(store, group, snapshot, new_compaction_id())
                result.groups += 1
                result.commits += sum(source.manifest is None for source in group.sources)
                result.trials += sum(source.trials.num_rows for source in group.sources)
                result.records += len(group.records)
                tell(result, len(groups))
            break
        except DamagedFile as error:
            damaged.add(str(error))
        except FileNotFoundError:
            continue  # another compaction has replaced and deleted it: plan with what is there now
    result.damaged = tuple(sorted(damaged))
    try:
        result.deleted, result.waiting = delete_replaced(store, grace_s)
    except CorruptFileError as error:
        refused.append(f"nothing was deleted: {error}")
    result.refused = tuple(refused)
    if refused:
        return result
    if first.removals.seals and not result.waiting:
        delete_empty_seals(store, take_snapshot(store, cache=cache))
    beats = NodeHeartbeats(store)
    beats.poll()
    beats.delete_ended(())  # what nodes left behind whose launch did not see their end
    delete_ended_live(store, first.trial_ids(), silent_s=LIVE_FORGOTTEN_S)
    return result
