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

import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from depthrate.storage.attempts.clocks import age_s, require_clock
from depthrate.storage.attempts.heartbeats import NodeHeartbeats
from depthrate.storage.attempts.live_curves import LIVE_FORGOTTEN_S, delete_ended_live
from depthrate.storage.catalog.requested_trials import CorruptFileError
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.manifest import Manifest
from depthrate.storage.commits.snapshot import Snapshot, require_intact, take_snapshot
from depthrate.storage.commits.source import find_corrupt_files
from depthrate.storage.files.parquet import read_parquet
from depthrate.storage.files.paths import compaction_of_path, is_compacted, manifest_path, new_name, sweep_of_path
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.merge import GROUP_BYTES, CorruptCommitFile, plan_groups, write_group
from depthrate.storage.maintenance.purge import delete_empty_seals, seal_removals
from depthrate.storage.maintenance.type_conflicts import is_mistyped, read_column_types

RETENTION_S = 3600.0
"""Retention in seconds of replaced files, for readers that listed them before the replacement."""
MAX_PLANS = 5
"""Maximum number of times that a compaction plans, if other processes damage or delete files that it was about to read."""


ABANDONED_S = 3600.0
"""Age in seconds from which files of a compaction without a manifest are orphaned."""


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
    at_least: int = 2,
    group_bytes: float = GROUP_BYTES,
    on_progress: Callable[[CompactionResult, int], None] = lambda result, num_groups: None,
) -> CompactionResult:
    """Merge the small files of every sweep, then delete files that were replaced more than `grace_s` seconds ago.

    Corrupt files are left alone. `storage.maintenance.verify` reports them and how to fix them.

    An unreadable file stops every operation that depends on it: nothing is purged unless every list of trials can be read, and
    nothing is deleted unless every manifest can be read. `refused` holds the reasons.

    Args:
        grace_s: Retention of replaced files in seconds.
        at_least: Minimum number of loose commits. A sweep with fewer is left alone.
        group_bytes: Maximum size of a group of one table in memory.
        on_progress: Function called after each group with the result so far and the number of groups.

    Raises:
        ClockError: The local clock or the store's is wrong.
        OSError: The store refused a read or a write. Nothing is lost. Run it again.
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
    corrupt = {source.path for source in (*first.sources, *first.superseded_commits) if is_mistyped(source, types)}
    for _ in range(MAX_PLANS):
        snapshot = take_snapshot(store, ignore=corrupt, cache=cache)
        groups = list(plan_groups(store, snapshot, at_least, group_bytes))
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
    try:
        result.deleted, result.waiting = _delete_replaced(store, grace_s)
    except CorruptFileError as error:
        refused.append(f"nothing was deleted: {error}")
    result.refused = tuple(refused)
    if refused:
        return result
    if first.removals.seals and not result.waiting:
        delete_empty_seals(store, take_snapshot(store, cache=cache))
    beats = NodeHeartbeats(store)
    beats.poll()
    beats.delete_ended(())  # files of nodes whose launch did not notice their end
    delete_ended_live(store, first.trial_ids(), stale_s=LIVE_FORGOTTEN_S)
    return result


def _delete_replaced(store: Store, grace_s: float) -> tuple[int, int]:
    """Delete files that compactions replaced more than `grace_s` seconds ago.

    Return the numbers of deleted and waiting files. Before a deletion the compaction's own files are read again, and the files
    they replace are deleted only if its files are identical to what was written.

    Raises:
        CorruptFileError: A manifest cannot be read, which may name files of other commits.
    """
    snapshot = take_snapshot(store)
    require_intact(snapshot, ("manifest/",))
    ready, waiting = set(), 0
    for manifest in snapshot.manifests:
        expired = _expired_paths(manifest, snapshot)
        written = [file for file in manifest.all_files() if is_compacted(file.path)]
        is_due = expired and age_s(store, manifest.path, manifest.created_at) >= grace_s
        if is_due and not find_corrupt_files(store, written):
            ready.add(manifest.compaction_id)
        else:
            waiting += len(expired)
    if ready:
        snapshot = take_snapshot(store)  # reading took a while: keep files that another compaction has named since
    expired = [path for m in snapshot.manifests if m.compaction_id in ready for path in _expired_paths(m, snapshot)]
    abandoned = _abandoned(store, snapshot)
    # manifests are deleted before their files, so a reader finds either a complete compaction or none
    for path in (path for path in expired if path.startswith("manifest/")):
        store.delete(path)
    store.delete_many([path for path in (*expired, *abandoned) if not path.startswith("manifest/")])
    return len(expired) + len(abandoned), waiting


def _expired_paths(manifest: Manifest, snapshot: Snapshot) -> list[str]:
    """Return the existing files that a compaction replaced, except records and logs rewritten since it read them."""
    named = {file.path for current in snapshot.manifests for file in current.all_files()}
    earlier = [old for old in snapshot.superseded_manifests if old.compaction_id in manifest.compactions]
    expired = []
    for replacing in (manifest, *earlier):
        expired += replacing.replaced_paths()
        records = replacing.replaced_records().items()
        expired += [path for path, size in records if size is None or snapshot.listing.get(path) == size]
    expired += [path for old in earlier for path in (old.path, *(file.path for file in old.all_files()))]
    return [path for path in dict.fromkeys(expired) if path in snapshot.listing and path not in named]


def _abandoned(store: Store, snapshot: Snapshot) -> list[str]:
    """Return orphaned files of killed compactions: old files without a manifest whose trials are all committed elsewhere."""
    manifests = {path for path in snapshot.listing if path.startswith("manifest/")}
    orphaned: dict[tuple[str, str], list[str]] = {}
    for path in snapshot.listing:
        if is_compacted(path):
            sweep, compaction_id = sweep_of_path(path), compaction_of_path(path)
            if manifest_path(sweep, compaction_id) not in manifests:
                orphaned.setdefault((sweep, compaction_id), []).append(path)
    abandoned: list[str] = []
    for paths in orphaned.values():
        trials = [path for path in paths if path.startswith("trials/")]
        times = [modified for path in paths if (modified := store.modified(path)) is not None]
        if not trials or not times or time.time() - store.clock_ahead_s - max(times) < ABANDONED_S:
            continue
        try:
            ids = {i for path in trials for i in read_parquet(store.read(path))["trial_id"].to_pylist()}
        except (pa.ArrowException, OSError, KeyError):
            continue  # `verify` reports it
        if ids <= snapshot.trial_ids() | snapshot.removals.trial_ids():
            abandoned += paths
    return abandoned
