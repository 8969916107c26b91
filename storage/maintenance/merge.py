"""Merging of a group's rows into few sorted files, followed by the manifest that makes them visible."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from depthrate.storage.attempts.records import read_loose_records
from depthrate.storage.commits.commit import join_rows
from depthrate.storage.commits.manifest import Manifest
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.commits.source import VisibleCommit, read_commit_of, resolve, visible_rows
from depthrate.storage.files.parquet import DataFile, read_parquet, write_table
from depthrate.storage.files.paths import attempt_of_path, compacted_path, log_path, manifest_path, name_of_path
from depthrate.storage.files.protocol import InvalidFileError
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compaction_groups import MERGE_FEATURES_BELOW, Group
from depthrate.storage.tables.schema import ATTEMPTS, as_attempts, concat_rows, empty_trials, row_keys

_RECORDS = ATTEMPTS.append(pa.field("log", pa.binary()))
ReadRows = Callable[[Store, VisibleCommit, DataFile], pa.Table]


class CorruptCommitFile(Exception):
    """A file of a commit is corrupt. The argument is its path."""


def write_group(store: Store, group: Group, snapshot: Snapshot, compaction_id: str) -> Manifest:
    """Write a group's rows and then the manifest that makes them visible.

    Raises:
        CorruptCommitFile: A file is corrupt. Nothing has changed.
        FileNotFoundError: Another compaction has replaced a file. Nothing has changed.
    """
    resolved = _resolved(store, group, snapshot)
    written = write_tables(store, group.sweep, resolved, compaction_id, read_rows)
    left_out = {key for source in resolved for key in row_keys(source.all_trials)}
    left_out -= {key for source in resolved for key in row_keys(source.trials)}
    replaced = [source.manifest for source in group.sources if source.manifest is not None]
    records, sizes, logs = _joined_records(store, group, replaced, snapshot)
    if records is not None:
        path = compacted_path("attempts", group.sweep, compaction_id)
        written["attempts"] = [write_table(store, path, "attempts", records)]
    manifest = Manifest(
        compaction_id=compaction_id,
        sweep=group.sweep,
        created_at=time.time(),
        files=written,
        commits=[name_of_path(source.path) for source in group.sources if source.manifest is None],
        compactions=sorted({m.compaction_id for m in replaced} | _undeleted(group.sweep, replaced, snapshot)),
        attempts=sizes,
        logs=logs,
        gone=_gone({attempt_id for _, attempt_id in left_out}, replaced),
    )
    manifest.write(store)
    return manifest


def _gone(attempts: set[str], replaced: Sequence[Manifest]) -> list[str] | None:
    """Return the attempts with rows left out, now or before, or None if an older version did not record them."""
    earlier = [manifest.gone for manifest in replaced]
    return None if None in earlier else sorted(attempts.union(*(names or () for names in earlier)))


def _undeleted(sweep: str, replaced: Sequence[Manifest], snapshot: Snapshot) -> set[str]:
    """Return the compactions that replaced compactions had replaced and that are not deleted yet."""
    earlier = {compaction_id for manifest in replaced for compaction_id in manifest.compactions}
    return {compaction_id for compaction_id in earlier if manifest_path(sweep, compaction_id) in snapshot.listing}


def _resolved(store: Store, group: Group, snapshot: Snapshot) -> list[VisibleCommit]:
    """Return a group's sources with the trials that have no earlier commit in the group and are not purged."""
    commits = []
    for source in group.sources:
        try:
            commits.append(read_commit_of(store, source))
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise CorruptCommitFile(source.path) from error
    return resolve(commits, removals=snapshot.removals.permanent_only())


def write_tables(
    store: Store, sweep: str, sources: Sequence[VisibleCommit], compaction_id: str, read: ReadRows
) -> dict[str, list[DataFile]]:
    """Write the visible rows of some sources, sorted, and return the files by table.

    The sources have all columns of their trials.
    """

    def path(table: str, part: int | None = None) -> str:
        return compacted_path(table, sweep, compaction_id, part)

    trials = concat_rows([empty_trials(), *(source.trials for source in sources)])
    order = pc.sort_indices(trials["trial_id"]).to_numpy()
    ids = trials["trial_id"].take(pa.array(order)).combine_chunks()
    written: dict[str, list[DataFile]] = {}
    if trials.num_rows:
        # first, so that the files of a killed compaction show which trials they hold
        written["trials"] = [write_table(store, path("trials"), "trials", trials, order)]
    for name in ("metrics", "curves"):
        table = _joined(name, [read(store, s, file) for s in sources for file in s.files.get(name, ())])
        if table is not None:
            custom = _custom_columns(sources, name, table)
            names_all = all(file.names_all for source in sources for file in source.files.get(name, ()))
            order = _order(name, table, ids)
            written[name] = [write_table(store, path(name), name, table, order, custom=custom, names_all=names_all)]
            del table  # free memory before the next is read
    features = _merge_features(store, sources, ids, path, read)
    return written | ({"features": features} if features else {})


def _custom_columns(sources: Sequence[VisibleCommit], name: str, table: pa.Table) -> dict[str, str]:
    """Return the columns of a table that its files held beyond the standard ones, with their types."""
    custom = {column for source in sources for file in source.files.get(name, ()) for column in file.own_columns}
    return {column.name: str(column.type) for column in table.schema if column.name in custom}


def _joined(name: str, parts: list[pa.Table]) -> pa.Table | None:
    parts = [part for part in parts if part.num_rows]
    return join_rows(name, parts).combine_chunks() if parts else None


def read_rows(store: Store, source: VisibleCommit, file: DataFile) -> pa.Table:
    """Read the visible rows of a source's file.

    Raises:
        CorruptCommitFile: It is corrupt.
    """
    return visible_rows(source, _read_intact(store, file))


def _read_intact(store: Store, file: DataFile) -> pa.Table:
    content = file.read(store)
    if not file.has_content(content):
        raise CorruptCommitFile(file.path)
    try:
        return read_parquet(content)
    except (pa.ArrowException, OSError, ValueError) as error:  # not Parquet, though its digest is right
        raise CorruptCommitFile(file.path) from error


def _order(name: str, table: pa.Table, ids: pa.Array) -> np.ndarray:
    """Return an order with a trial's rows adjacent, by step and layer, and all last layers before the other layers.

    Most queries are about the last layers: statistics let them skip all other rows.
    """
    columns = ["layer", "step"] if name in ("metrics", "features") else ["step"]
    keys: list[Any] = [pc.fill_null(table[column], -1).to_numpy() for column in columns]
    keys.append(pc.index_in(table["trial_id"], ids).to_numpy())
    if name == "metrics":
        keys.append(~pc.fill_null(table["is_last"], False).to_numpy(zero_copy_only=False))
    return np.lexsort(keys)  # stable, the last key is the primary one


def _merge_features(
    store: Store,
    sources: Sequence[VisibleCommit],
    ids: pa.Array,
    path: Callable[[str, int | None], str],
    read: ReadRows,
) -> list[DataFile]:
    """Merge small files of features of one width, and name the large ones as they are."""
    files, parts = [], dict[str, list[pa.Table]]()
    for source in sources:
        for file in source.files.get("features", ()):
            if source.is_fully_visible and file.size >= MERGE_FEATURES_BELOW:
                files.append(file)
            elif (rows := read(store, source, file)).num_rows:
                parts.setdefault(str(rows.schema.field("feature").type), []).append(rows)
    for part, tables in enumerate(parts.values()):
        table = concat_rows(tables).combine_chunks()
        files.append(write_table(store, path("features", part), "features", table, _order("features", table, ids)))
    return files


def _read_records(store: Store, file: DataFile) -> pa.Table:
    try:
        table = as_attempts(_read_intact(store, file))
        newer = [field for field in table.schema if field.name not in _RECORDS.names]
        return table.select([*_RECORDS.names, *(field.name for field in newer)]).cast(pa.schema([*_RECORDS, *newer]))
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise CorruptCommitFile(file.path) from error


def _joined_records(
    store: Store, group: Group, replaced: Sequence[Manifest], snapshot: Snapshot
) -> tuple[pa.Table | None, dict[str, int], list[str]]:
    """Return the attempts' records with their logs, the bytes of each record read, and the attempts with a log."""
    parts = [_read_records(store, file) for manifest in replaced for file in manifest.files.get("attempts", ())]
    rows, sizes = [], dict[str, int]()
    logs = [attempt for manifest in replaced for attempt in manifest.logs]
    for path, record in read_loose_records(store, group.records):
        attempt = attempt_of_path(path)
        log = log_path(group.sweep, attempt)
        output = None
        if log in snapshot.listing:
            ((_, content),) = store.read_many([log])
            if isinstance(content, bytes):
                output = content
                logs.append(attempt)
            elif not isinstance(content, InvalidFileError):  # an invalid file was logged, and stays
                raise content
        rows.append({name: record.get(name) for name in ATTEMPTS.names} | {"log": output})
        sizes[attempt] = snapshot.listing[path]
    if rows:
        parts.append(pa.Table.from_pylist(rows, _RECORDS))
    return (concat_rows(parts) if parts else None), sizes, logs
