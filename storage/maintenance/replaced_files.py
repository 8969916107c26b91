"""Delete the files that compactions replaced, and the files of killed compactions."""

import time
from collections.abc import Set

import pyarrow as pa

from depthrate.storage.attempts.clocks import age_s
from depthrate.storage.commits.manifest import Manifest
from depthrate.storage.commits.snapshot import Snapshot, require_intact, take_snapshot
from depthrate.storage.commits.visible_commits import find_corrupt_files
from depthrate.storage.files.parquet import read_parquet
from depthrate.storage.files.paths import compaction_of_path, is_compacted, manifest_path, sweep_of_path
from depthrate.storage.files.store import Store

ABANDONED_S = 3600.0
"""Age in seconds from which files of a compaction without a manifest are orphaned."""


def delete_replaced_files(store: Store, grace_s: float, retained: Set[str]) -> tuple[int, int]:
    """Delete files that compactions replaced more than `grace_s` seconds ago.

    Return the numbers of deleted and waiting files. Before a deletion the compaction's own files are read again, and the files
    they replace are deleted only if its files are identical to what was written. `retained` files stay.

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
    deleted = [path for path in (*expired, *_abandoned_files(store, snapshot)) if path not in retained]
    # manifests are deleted before their files, so a reader finds either a complete compaction or none
    for path in (path for path in deleted if path.startswith("manifest/")):
        store.delete(path)
    store.delete_many([path for path in deleted if not path.startswith("manifest/")])
    return len(deleted), waiting


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


def _abandoned_files(store: Store, snapshot: Snapshot) -> list[str]:
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
