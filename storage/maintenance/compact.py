"""Merge many small files into few large, sorted ones. Readers see the same trials before, during and after.

A compaction writes its files under unique names and then a manifest (`storage.commits.manifest`), whose single write is
the switch. The files it replaces are deleted later, when no reader can still be using them, and only after the new
files were read again and found intact. It takes no lock: two concurrent compactions may both hold a trial, and readers
take the trial from one of them. This is safe because a compaction holds every trial of everything it replaces: it omits a
duplicate only if it holds the earlier commit itself, and omits a row only if the row was permanently removed
(`storage.catalog.removals`). If it relied on another file to hold the trial, the trial would be lost if that file's compaction
relied on this one at the same moment. If a compaction is killed at any point, the store is unchanged or some groups of files
are already merged. Running it again continues.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.attempts.heartbeats import NodeHeartbeats
from depthrate.storage.attempts.live_curves import LIVE_FORGOTTEN_S, delete_ended_live
from depthrate.storage.catalog.requested_trials import CorruptFileError
from depthrate.storage.catalog.tags import merge_annotations
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.paths import new_name
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.delta_log import has_delta_logs, named_by_delta_logs, update_delta_logs
from depthrate.storage.maintenance.merge import GROUP_BYTES, CorruptCommitFile, plan_groups, write_group
from depthrate.storage.maintenance.purge import delete_purge_records, purge_removals
from depthrate.storage.maintenance.replaced_files import delete_replaced_files
from depthrate.storage.tables.custom_columns import conflicting_column, custom_columns
from depthrate.storage.tables.schema import MEASURED_TABLES

RETENTION_S = 3600.0
"""Retention in seconds of replaced files, for readers that listed them before the replacement."""
MAX_PLANS = 5
"""Maximum number of times that a compaction plans, if other processes damage or delete files that it was about to read."""


@dataclass
class CompactionResult:
    """Counts and faults of a compaction."""

    groups: int = 0
    commits: int = 0
    trials: int = 0
    records: int = 0
    deleted: int = 0
    """Replaced files that were deleted."""
    waiting: int = 0
    """Replaced files kept until their retention has passed."""
    refused: tuple[str, ...] = ()
    """Reasons why something was not purged or deleted."""
    damaged: tuple[str, ...] = ()
    """Corrupt files, which were left alone together with all files of the same commit."""


def compact(
    store: Store,
    *,
    grace_s: float = RETENTION_S,
    purge: bool = False,
    delta: bool = False,
    at_least: int = 2,
    group_bytes: float = GROUP_BYTES,
    on_progress: Callable[[CompactionResult, int], None] = lambda result, num_groups: None,
) -> CompactionResult:
    """Merge the small files of every sweep, then delete files that were replaced more than `grace_s` seconds ago.

    Corrupt files are left alone. `storage.maintenance.verify` reports them and how to fix them.

    An unreadable file stops every operation that depends on it: nothing is purged unless every list of trials can be read, and
    nothing is deleted unless every manifest can be read. `refused` holds the reasons.

    Args:
        grace_s: Retention of replaced files, and of removed rows, in seconds.
        purge: Whether to delete removed rows permanently.
        delta: Whether to write Delta logs of the tables. If the store has them, they are updated in any case.
        at_least: Minimum number of loose commits. A sweep with fewer is left alone.
        group_bytes: Maximum size of a group of one table in memory.
        on_progress: Function called after each group with the result so far and the number of groups.

    Raises:
        ClockError: The local clock or the store's is wrong.
        OSError: The store refused a read or a write. Nothing is lost. Run it again.
    """
    require_clock(store)
    result, cache = CompactionResult(), SnapshotCache()
    first = take_snapshot(store, cache=cache)
    refused = []
    try:
        if purge and purge_removals(store, first.removals, grace_s):
            first = take_snapshot(store, cache=cache)
    except CorruptFileError as error:
        refused.append(f"nothing was purged: {error}")
    mistyped, delta = frozenset(_mistyped_commits(store, first)), delta or has_delta_logs(store)
    corrupt = set(mistyped)
    for _ in range(MAX_PLANS):
        snapshot = take_snapshot(store, ignore=corrupt, cache=cache)
        groups = list(plan_groups(store, snapshot, at_least, group_bytes, splits=delta))
        try:
            for group in groups:
                write_group(store, group, snapshot, new_name())
                result.groups += 1
                result.commits += sum(source.manifest is None for source in group.sources)
                result.trials += sum(source.trials.num_rows for source in group.sources)
                result.records += len(group.records)
                on_progress(result, len(groups))
            break
        except CorruptCommitFile as error:
            corrupt.add(str(error))
        except FileNotFoundError:
            continue  # another compaction has replaced and deleted the file: plan again with the current files
    result.damaged = tuple(sorted(corrupt))
    merge_annotations(store)
    try:
        if delta and not update_delta_logs(store, corrupt - mistyped, cache):
            refused.append(
                "the Delta logs were not updated: other processes changed the store at the same time. Run it again"
            )
        result.deleted, result.waiting = delete_replaced_files(store, grace_s, named_by_delta_logs(store))
    except CorruptFileError as error:
        refused.append(f"nothing was deleted: {error}")
    result.refused = tuple(refused)
    if refused:
        return result
    if first.removals.purges and not result.waiting:
        delete_purge_records(store, take_snapshot(store, cache=cache))
    beats = NodeHeartbeats(store)
    beats.poll()
    beats.delete_ended(())  # files of nodes whose launch did not notice their end
    delete_ended_live(store, first.trial_ids(), stale_s=LIVE_FORGOTTEN_S)
    return result


def _mistyped_commits(store: Store, snapshot: Snapshot) -> Iterator[str]:
    """Yield the commits and compactions with a column whose type or case differs from the store's. They cannot be merged."""
    types = {table: custom_columns(store, table) for table in MEASURED_TABLES}
    for source in (*snapshot.sources, *snapshot.superseded_commits):
        columns = (
            (t, *column) for t, of in types.items() for f in source.files.get(t, ()) for column in f.own_columns.items()
        )
        if any(conflicting_column(types[table], column, kind) for table, column, kind in columns):
            yield source.path
