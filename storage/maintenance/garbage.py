"""Deletion of files that compactions replaced or orphaned, when no reader can still be using them."""

from __future__ import annotations

import time

import pyarrow as pa

from depthrate.storage.attempts.clocks import age_s
from depthrate.storage.commits.manifest import Manifest
from depthrate.storage.commits.snapshot import Snapshot, require_intact, take_snapshot
from depthrate.storage.commits.source import find_corrupt_files
from depthrate.storage.files.parquet import read_parquet
from depthrate.storage.files.paths import compaction_of_path, is_compacted, manifest_path, sweep_of_path
from depthrate.storage.files.store import Store

ABANDONED_S = 3600.0
"""Age in seconds at which files of a compaction without a manifest are orphaned."""


def delete_replaced(store: Store, grace_s: float) -> tuple[int, int]:
    """Delete files that compactions replaced longer than `grace_s` ago.

    Return the numbers of deleted and waiting files.

    Before a deletion the compaction's own files are read again: only files that are identical to what was written
    replace others.

    Raises:
        CorruptFileError: A manifest cannot be read, which may name files of others.
    """
    snapshot = take_snapshot(store)
    require_intact(snapshot, ("manifest/",))
    ready, waiting = set(), 0
    for manifest in snapshot.manifests:
        expired = _expired_paths(manifest, snapshot)
        if expired and age_s(store, manifest.path, manifest.created_at) >= grace_s and _is_intact(store, manifest):
            ready.add(manifest.compaction_id)
        else:
            waiting += len(expired)
    if ready:
        snapshot = take_snapshot(store)  # reading took a while: files that another compaction has named since then stay
    expired = [path for m in snapshot.manifests if m.compaction_id in ready for path in _expired_paths(m, snapshot)]
    abandoned = _abandoned(store, snapshot)
    # manifests before their files: a reader finds either a complete compaction or none
    for path in (path for path in expired if path.startswith("manifest/")):
        store.delete(path)
    store.delete_many([path for path in (*expired, *abandoned) if not path.startswith("manifest/")])
    return len(expired) + len(abandoned), waiting


def _expired_paths(manifest: Manifest, snapshot: Snapshot) -> list[str]:
    """Return the existing files that a compaction replaced."""
    named = {file.path for current in snapshot.manifests for file in current.all_files()}
    expired = [*manifest.replaced_paths(), *_expired_records(manifest, snapshot)]
    for old in (old for old in snapshot.superseded_manifests if old.compaction_id in manifest.compactions):
        expired += [*old.replaced_paths(), *_expired_records(old, snapshot)]
        expired += [old.path, *(file.path for file in old.all_files())]
    return [path for path in dict.fromkeys(expired) if path in snapshot.listing and path not in named]


def _expired_records(manifest: Manifest, snapshot: Snapshot) -> list[str]:
    """Return the records and logs that a compaction holds, except those rewritten since it read them."""
    records = manifest.replaced_records().items()
    return [path for path, size in records if size is None or snapshot.listing.get(path) == size]


def _is_intact(store: Store, manifest: Manifest) -> bool:
    """Return whether no file of a compaction is corrupt."""
    written = [file for file in manifest.all_files() if is_compacted(file.path)]
    return not find_corrupt_files(store, written)


def _abandoned(store: Store, snapshot: Snapshot) -> list[str]:
    """Return orphaned files of killed compactions: old, without a manifest, with all trials committed elsewhere."""
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
        ages = [
            time.time() - store.clock_ahead_s - modified
            for path in paths
            if (modified := store.modified(path)) is not None
        ]
        if not trials or not ages or min(ages) < ABANDONED_S:
            continue
        try:
            ids = {i for path in trials for i in read_parquet(store.read(path))["trial_id"].to_pylist()}
        except (pa.ArrowException, OSError, KeyError):
            continue  # `verify` reports it
        if ids <= snapshot.trial_ids() | snapshot.removals.trial_ids():
            abandoned += paths
    return abandoned
