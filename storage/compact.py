"""Put many small files together into few large, sorted ones; readers see the same trials before, during and after.

A compaction writes its files under names of its own and then a manifest (`storage.manifest`), whose single write is the
switch. What it replaces is deleted later, when no reader can still be at it, and only after the new files were read
again and found whole. It takes no lock: two compactions at once may both hold a trial, and readers take it from one.
Killed at any point it leaves the store as it was, or one group of files further on; running it again goes on.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.commit import joined_rows
from storage.files import Files
from storage.layout import (
    attempt_of_path,
    compacted_path,
    compaction_of_path,
    is_compacted,
    log_path,
    manifest_path,
    name_of_path,
    sweep_of_path,
)
from storage.manifest import Manifest
from storage.parquet import DataFile, read_parquet, write_table
from storage.records import read_loose_records
from storage.schema import ATTEMPTS, no_rows
from storage.snapshot import (
    Snapshot,
    SnapshotCache,
    Source,
    counting_rows,
    find_broken_files,
    read_trials,
    take_snapshot,
)

GRACE_S = 3600.0
"""How long what was replaced stays for readers that found it before."""
COMPACT_AT = 512
"""A launch starts a compaction when a sweep has this many loose commits."""
GROUP_BYTES = 100e6
"""Of one table in memory: files are put together up to this much at once (the process needs about thrice that)."""
GROUP_ROWS = 1_000_000
GROUP_RECORDS = 5_000
MERGE_FEATURES_BELOW = 8_000_000
"""Bytes: larger files of features stay as they are, nothing would be gained by writing them anew."""
SETTLED_S = 60.0
"""An attempt's record is final this long after its end."""
ABANDONED_S = 3600.0
"""Files of a compaction without a manifest are left over when they are this old."""
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
    damaged: tuple[str, ...] = ()
    """Files that were left alone, with all that was committed with them."""


@dataclass(frozen=True)
class Group:
    """What becomes one set of files: the rows of these commits and compactions that count, and these records."""

    sweep: str
    sources: list[Source]
    records: list[str]
    """Paths of attempts' records."""

    @property
    def is_work(self) -> bool:
        """Whether writing it leaves fewer files than there are, or fewer rows that do not count."""
        return len(self.sources) + len(self.records) > 1 or any(not source.is_whole for source in self.sources)


class DamagedFile(Exception):
    """A file of a commit is not what was committed; the argument is its path."""


def compact(
    files: Files,
    *,
    grace_s: float = GRACE_S,
    at_least: int = 2,
    group_bytes: float = GROUP_BYTES,
    tell: Callable[[CompactionResult, int], None] = lambda result, num_groups: None,
) -> CompactionResult:
    """Put together what every sweep has in small files, then delete what was replaced longer than `grace_s` ago.

    A sweep with fewer than `at_least` loose commits is left alone. `tell` hears of each group that is done, and how
    many there are. Damaged files are left alone too: `storage.verify` names them and what to do.

    Raises:
        OSError: the store refused a read or a write; nothing is lost, run it again.
    """
    result, cache, damaged = CompactionResult(), SnapshotCache(), set[str]()
    for _ in range(ROUNDS):
        snapshot = take_snapshot(files, ignore=damaged, cache=cache)
        groups = list(plan_groups(files, snapshot, at_least, group_bytes))
        try:
            for group in groups:
                write_group(files, group, snapshot, new_compaction_id())
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
    result.deleted, result.waiting = delete_replaced(files, grace_s)
    return result


def new_compaction_id() -> str:
    """Return a name that no other compaction has and that sorts by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}_{secrets.token_hex(6)}"


def plan_groups(files: Files, snapshot: Snapshot, at_least: int, group_bytes: float) -> Iterator[Group]:
    """Yield what to put together: loose commits, what no longer counts, and compactions that are still small."""
    sources: dict[str, list[Source]] = {}
    for source in (*snapshot.sources, *snapshot.beaten):
        sources.setdefault(sweep_of_path(source.path), []).append(source)
    records = _settled_records(files, snapshot)
    for sweep in sorted(sources.keys() | records.keys()):
        of_sweep = sources.get(sweep, [])
        loose = sum(source.manifest is None for source in of_sweep)
        untidy = any(not source.is_whole for source in of_sweep)
        if loose < at_least and not untidy and len(records.get(sweep, ())) < at_least:
            continue
        small = [s for s in of_sweep if s.manifest is None or not s.is_whole or _weight(s) < group_bytes / 2]
        yield from _cut(sweep, small, records.get(sweep, []), group_bytes)


def _cut(sweep: str, sources: list[Source], records: list[str], group_bytes: float) -> Iterator[Group]:
    """Cut a sweep's sources into groups that fit into memory."""
    chosen: list[Source] = []
    weight, rows = 0.0, 0
    for source in sources:
        more_rows = max((file.rows for files in source.files.values() for file in files), default=0)
        if chosen and (weight + _weight(source) > group_bytes or rows + more_rows > GROUP_ROWS):
            yield Group(sweep, chosen, records[:GROUP_RECORDS])
            records, chosen, weight, rows = records[GROUP_RECORDS:], [], 0.0, 0
        chosen.append(source)
        weight, rows = weight + _weight(source), rows + more_rows
    while chosen or records:
        group = Group(sweep, chosen, records[:GROUP_RECORDS])
        if group.is_work:
            yield group
        records, chosen = records[GROUP_RECORDS:], []


def _weight(source: Source) -> float:
    """Return about how many bytes a source's largest table takes in memory: its numbers, and what packs badly."""
    weights = [0.0]
    for table, named in source.files.items():
        merged = [file for file in named if table != "features" or file.size < MERGE_FEATURES_BELOW]
        weights.append(sum(150.0 * file.rows + 1.2 * file.size for file in merged))
    return max(weights)


def _settled_records(files: Files, snapshot: Snapshot) -> dict[str, list[str]]:
    """Return sweep -> paths of the records of attempts that ended a while ago."""
    settled: dict[str, list[str]] = {}
    now = time.time()
    for path, record in read_loose_records(files, snapshot.attempts):
        ended = record.get("ended_at")
        if record["state"] != "running" and isinstance(ended, int | float) and now - ended > SETTLED_S:
            settled.setdefault(sweep_of_path(path), []).append(path)
    return settled


def write_group(files: Files, group: Group, snapshot: Snapshot, compaction_id: str) -> Manifest:
    """Write a group's rows and then the manifest that makes them count.

    Raises:
        DamagedFile: a file is not what was committed; nothing has changed.
        FileNotFoundError: a file is gone, which another compaction has replaced; nothing has changed.
    """
    written = write_tables(files, group.sweep, group.sources, compaction_id, read_rows)
    replaced = [source.manifest for source in group.sources if source.manifest is not None]
    records, sizes, logs = _joined_records(files, group, replaced, snapshot)
    if records is not None:
        path = compacted_path("attempts", group.sweep, compaction_id)
        written["attempts"] = [write_table(files, path, "attempts", records)]
    manifest = Manifest(
        compaction_id=compaction_id,
        sweep=group.sweep,
        created_at=time.time(),
        files=written,
        commits=[name_of_path(source.path) for source in group.sources if source.manifest is None],
        # with those that these replaced in their turn: they may not be deleted yet
        compactions=sorted({i for m in replaced for i in (m.compaction_id, *m.compactions)}),
        attempts=sizes,
        logs=logs,
    )
    manifest.write(files)
    return manifest


ReadRows = Callable[[Files, Source, DataFile], pa.Table]


def write_tables(
    files: Files, sweep: str, sources: Sequence[Source], compaction_id: str, read: ReadRows
) -> dict[str, list[DataFile]]:
    """Write those rows of some sources that count, sorted, and return the files by table."""

    def path(table: str, part: int | None = None) -> str:
        return compacted_path(table, sweep, compaction_id, part)

    trials = pa.concat_tables([no_rows(), *(read_trials(files, source) for source in sources)])
    order = pc.sort_indices(trials["trial_id"]).to_numpy()
    ids = trials["trial_id"].take(pa.array(order)).combine_chunks()
    written: dict[str, list[DataFile]] = {}
    if trials.num_rows:
        # first, so that what a killed compaction leaves says by itself whose rows it is
        written["trials"] = [write_table(files, path("trials"), "trials", trials, order)]
    for name in ("metrics", "curves"):
        table = _joined(name, [read(files, s, file) for s in sources for file in s.files.get(name, ())])
        if table is not None:
            written[name] = [write_table(files, path(name), name, table, _order(name, table, ids))]
            del table  # before the next is read
    features = _merge_features(files, sources, ids, path, read)
    return written | ({"features": features} if features else {})


def _joined(name: str, parts: list[pa.Table]) -> pa.Table | None:
    parts = [part for part in parts if part.num_rows]
    return joined_rows(name, parts).combine_chunks() if parts else None


def read_rows(files: Files, source: Source, file: DataFile) -> pa.Table:
    """Return the rows of a source's file that count.

    Raises:
        DamagedFile: it is not what was committed.
    """
    content = files.read(file.path)
    if not file.has_content(content):
        raise DamagedFile(file.path)
    return counting_rows(source, read_parquet(content))


def _order(name: str, table: pa.Table, ids: pa.Array) -> np.ndarray:
    """Return the order in which a trial's rows lie together, by step and layer, and all last layers before the rest.

    Most questions are about the last layers: statistics let them skip all other rows.
    """
    columns = ["layer", "step"] if name in ("metrics", "features") else ["step"]
    keys: list[Any] = [pc.fill_null(table[column], -1).to_numpy() for column in columns]
    keys.append(pc.index_in(table["trial_id"], ids).to_numpy())
    if name == "metrics":
        keys.append(~pc.fill_null(table["is_last"], False).to_numpy(zero_copy_only=False))
    return np.lexsort(keys)  # the last key first; stable


def _merge_features(
    files: Files, sources: Sequence[Source], ids: pa.Array, path: Callable[[str, int | None], str], read: ReadRows
) -> list[DataFile]:
    """Put small files of features of one width together; name the large ones as they are."""
    kept, parts = [], dict[str, list[pa.Table]]()
    for source in sources:
        for file in source.files.get("features", ()):
            if source.is_whole and file.size >= MERGE_FEATURES_BELOW:
                kept.append(file)
            elif (rows := read(files, source, file)).num_rows:
                parts.setdefault(str(rows.schema.field("feature").type), []).append(rows)
    for part, tables in enumerate(parts.values()):
        table = pa.concat_tables(tables).combine_chunks()
        kept.append(write_table(files, path("features", part), "features", table, _order("features", table, ids)))
    return kept


_RECORDS = ATTEMPTS.append(pa.field("log", pa.binary()))


def _joined_records(
    files: Files, group: Group, replaced: Sequence[Manifest], snapshot: Snapshot
) -> tuple[pa.Table | None, dict[str, int], list[str]]:
    """Return the attempts' records with what they printed, the bytes of each record read, and whose log is there."""
    parts = [
        read_parquet(files.read(file.path)).select(_RECORDS.names).cast(_RECORDS)
        for manifest in replaced
        for file in manifest.files.get("attempts", ())
    ]
    rows, sizes = [], dict[str, int]()
    logs = [attempt for manifest in replaced for attempt in manifest.logs]
    for path, record in read_loose_records(files, group.records):
        attempt = attempt_of_path(path)
        log = log_path(group.sweep, attempt)
        printed = None
        if log in snapshot.listing:
            printed = files.read(log)
            logs.append(attempt)
        rows.append({name: record.get(name) for name in ATTEMPTS.names} | {"log": printed})
        sizes[attempt] = snapshot.listing[path]
    if rows:
        parts.append(pa.Table.from_pylist(rows, _RECORDS))
    return (pa.concat_tables(parts) if parts else None), sizes, logs


def delete_replaced(files: Files, grace_s: float) -> tuple[int, int]:
    """Delete what compactions replaced longer than `grace_s` ago and return how many files that were, and how many wait.

    Before anything is deleted the compaction's own files are read again: only what is there, bit for bit, replaces.
    """
    snapshot = take_snapshot(files)
    named = {file.path for manifest in snapshot.manifests for file in manifest.all_files()}
    deleted = waiting = 0
    for manifest in snapshot.manifests:
        doomed = [p for p in manifest.replaced_paths() if p in snapshot.listing and p not in named]
        doomed += _doomed_records(manifest, snapshot)
        for old in (old for old in snapshot.superseded if old.compaction_id in manifest.compactions):
            doomed += [p for p in old.replaced_paths() if p in snapshot.listing and p not in named]
            doomed += _doomed_records(old, snapshot)
            # its manifest before its files: a reader finds it whole or not at all
            doomed += [old.path, *(file.path for file in old.all_files() if file.path not in named)]
        doomed = list(dict.fromkeys(path for path in doomed if path in snapshot.listing))
        if not doomed:
            continue
        if time.time() - manifest.created_at < grace_s or not _is_sound(files, manifest):
            waiting += len(doomed)
            continue
        for path in (path for path in doomed if path.startswith("manifest/")):
            files.delete(path)
        files.delete_many([path for path in doomed if not path.startswith("manifest/")])
        deleted += len(doomed)
    abandoned = _abandoned(files, snapshot)
    files.delete_many(abandoned)
    return deleted + len(abandoned), waiting


def _doomed_records(manifest: Manifest, snapshot: Snapshot) -> list[str]:
    """Return the records and logs that a compaction holds, without those that were written anew since it read them."""
    records = manifest.replaced_records().items()
    return [path for path, size in records if size is None or snapshot.listing.get(path) == size]


def _is_sound(files: Files, manifest: Manifest) -> bool:
    """Whether every file of a compaction holds what was written."""
    written = [file for file in manifest.all_files() if is_compacted(file.path)]
    return not find_broken_files(files, written)


def _abandoned(files: Files, snapshot: Snapshot) -> list[str]:
    """Return what killed compactions left: old, without a manifest, and all of it committed elsewhere."""
    manifests = {path for path in snapshot.listing if path.startswith("manifest/")}
    left: dict[tuple[str, str], list[str]] = {}
    for path in snapshot.listing:
        if is_compacted(path):
            sweep, compaction_id = sweep_of_path(path), compaction_of_path(path)
            if manifest_path(sweep, compaction_id) not in manifests:
                left.setdefault((sweep, compaction_id), []).append(path)
    abandoned: list[str] = []
    for paths in left.values():
        trials = [path for path in paths if path.startswith("trials/")]
        ages = [time.time() - modified for path in paths if (modified := files.modified(path)) is not None]
        if not trials or not ages or min(ages) < ABANDONED_S:
            continue
        try:
            ids = {i for path in trials for i in read_parquet(files.read(path))["trial_id"].to_pylist()}
        except (pa.ArrowException, OSError, KeyError):
            continue  # `verify` names it
        if ids <= snapshot.trial_ids():
            abandoned += paths
    return abandoned
