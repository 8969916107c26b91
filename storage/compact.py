"""Put many small files together into few large, sorted ones; readers see the same trials before, during and after.

A compaction writes its files under names of its own and then a manifest (`storage.manifest`), whose single write is the
switch. What it replaces is deleted later, when no reader can still be at it, and only after the new files were read
again and found whole. It takes no lock: two compactions at once may both hold a trial, and readers take it from one.
What makes that safe is that a compaction holds every trial of everything it replaces: it leaves a double out only for
an earlier commit that it holds itself. Trusting that another file holds it would lose the trial when that file's
compaction trusts this one at the same moment.
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

from depthrate.storage.commit import joined_rows
from depthrate.storage.layout import (
    attempt_of_path,
    compacted_path,
    compaction_of_path,
    is_compacted,
    log_path,
    manifest_path,
    name_of_path,
    sweep_of_path,
)
from depthrate.storage.manifest import Manifest
from depthrate.storage.parquet import DataFile, read_parquet, write_table
from depthrate.storage.records import read_loose_records
from depthrate.storage.schema import ATTEMPTS, no_rows
from depthrate.storage.snapshot import (
    Snapshot,
    SnapshotCache,
    Source,
    counting_rows,
    find_broken_files,
    read_commit_of,
    resolve,
    take_snapshot,
)
from depthrate.storage.states import AttemptState
from depthrate.storage.store import Store

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
"""Store of a compaction without a manifest are left over when they are this old."""
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
    """Store that were left alone, with all that was committed with them."""


@dataclass(frozen=True)
class Group:
    """What becomes one set of files: the rows of these commits and compactions that count, and these records."""

    sweep: str
    sources: list[Source]
    records: list[str]
    """Paths of attempts' records."""

    @property
    def is_work(self) -> bool:
        """Whether writing it leaves fewer files than there are."""
        return len(self.sources) + len(self.records) > 1


class DamagedFile(Exception):
    """A file of a commit is not what was committed; the argument is its path."""


def compact(
    store: Store,
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
    result.deleted, result.waiting = delete_replaced(store, grace_s)
    return result


def new_compaction_id() -> str:
    """Return a name that no other compaction has and that sorts by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}_{secrets.token_hex(6)}"


def plan_groups(store: Store, snapshot: Snapshot, at_least: int, group_bytes: float) -> Iterator[Group]:
    """Yield what to put together: loose commits with compactions that are still small, and copies with their originals."""
    sources: dict[str, list[Source]] = {}
    for source in (*snapshot.sources, *snapshot.beaten):
        sources.setdefault(sweep_of_path(source.path), []).append(source)
    records = _settled_records(store, snapshot)
    for sweep in sorted(sources.keys() | records.keys()):
        of_sweep = sources.get(sweep, [])
        small = [source for source in of_sweep if source.manifest is None or _weight(source) < group_bytes / 2]
        loose = sum(source.manifest is None for source in small)
        if loose >= at_least or len(small) - loose > 1 or len(records.get(sweep, ())) >= at_least:
            yield from _cut(sweep, small, records.get(sweep, []), group_bytes)
        taken = {source.path for source in small}
        yield from _copies(sweep, [source for source in of_sweep if source.path not in taken])


def _copies(sweep: str, large: list[Source]) -> Iterator[Group]:
    """Yield each compaction that another one, which ran at the same time, made superfluous, together with that one."""
    originals = [source for source in large if source.trials.num_rows]
    for copy in (source for source in large if not source.trials.num_rows):
        trial_ids = set(copy.held["trial_id"].to_pylist())
        original = next((source for source in originals if trial_ids <= set(source.trial_ids())), None)
        if original is not None:
            originals.remove(original)
            yield Group(sweep, [original, copy], [])


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


def _settled_records(store: Store, snapshot: Snapshot) -> dict[str, list[str]]:
    """Return sweep -> paths of the records of attempts that ended a while ago."""
    settled: dict[str, list[str]] = {}
    now = time.time()
    for path, record in read_loose_records(store, snapshot.attempts):
        ended = record["ended_at"]
        if record["state"] is not AttemptState.RUNNING and ended is not None and now - ended > SETTLED_S:
            settled.setdefault(sweep_of_path(path), []).append(path)
    return settled


def write_group(store: Store, group: Group, snapshot: Snapshot, compaction_id: str) -> Manifest:
    """Write a group's rows and then the manifest that makes them count.

    Raises:
        DamagedFile: a file is not what was committed; nothing has changed.
        FileNotFoundError: a file is gone, which another compaction has replaced; nothing has changed.
    """
    written = write_tables(store, group.sweep, _resolved(store, group), compaction_id, read_rows)
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
        compactions=sorted({m.compaction_id for m in replaced} | _still_there(group.sweep, replaced, snapshot)),
        attempts=sizes,
        logs=logs,
    )
    manifest.write(store)
    return manifest


def _still_there(sweep: str, replaced: Sequence[Manifest], snapshot: Snapshot) -> set[str]:
    """Return what replaced compactions replaced in their turn, and has not been deleted yet."""
    earlier = {compaction_id for manifest in replaced for compaction_id in manifest.compactions}
    return {compaction_id for compaction_id in earlier if manifest_path(sweep, compaction_id) in snapshot.listing}


def _resolved(store: Store, group: Group) -> list[Source]:
    """Return a group's sources with those of their trials that have no earlier commit within the group."""
    commits = []
    for source in group.sources:
        try:
            commits.append(read_commit_of(store, source))
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise DamagedFile(source.path) from error
    return resolve(commits)


ReadRows = Callable[[Store, Source, DataFile], pa.Table]


def write_tables(
    store: Store, sweep: str, sources: Sequence[Source], compaction_id: str, read: ReadRows
) -> dict[str, list[DataFile]]:
    """Write those rows of some sources that count, sorted, and return the files by table.

    The sources come with all columns of their trials.
    """

    def path(table: str, part: int | None = None) -> str:
        return compacted_path(table, sweep, compaction_id, part)

    trials = pa.concat_tables([no_rows(), *(source.trials for source in sources)])
    order = pc.sort_indices(trials["trial_id"]).to_numpy()
    ids = trials["trial_id"].take(pa.array(order)).combine_chunks()
    written: dict[str, list[DataFile]] = {}
    if trials.num_rows:
        # first, so that what a killed compaction leaves says by itself whose rows it is
        written["trials"] = [write_table(store, path("trials"), "trials", trials, order)]
    for name in ("metrics", "curves"):
        table = _joined(name, [read(store, s, file) for s in sources for file in s.files.get(name, ())])
        if table is not None:
            own = _own_columns(sources, name, table)
            written[name] = [write_table(store, path(name), name, table, _order(name, table, ids), own=own)]
            del table  # before the next is read
    features = _merge_features(store, sources, ids, path, read)
    return written | ({"features": features} if features else {})


def _own_columns(sources: Sequence[Source], name: str, table: pa.Table) -> dict[str, str]:
    """Return those of a table's columns that its files held beyond the standard ones, with their types."""
    own = {column for source in sources for file in source.files.get(name, ()) for column in file.own_columns}
    return {each.name: str(each.type) for each in table.schema if each.name in own}


def _joined(name: str, parts: list[pa.Table]) -> pa.Table | None:
    parts = [part for part in parts if part.num_rows]
    return joined_rows(name, parts).combine_chunks() if parts else None


def read_rows(store: Store, source: Source, file: DataFile) -> pa.Table:
    """Return the rows of a source's file that count.

    Raises:
        DamagedFile: it is not what was committed.
    """
    content = store.read(file.path)
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
    store: Store, sources: Sequence[Source], ids: pa.Array, path: Callable[[str, int | None], str], read: ReadRows
) -> list[DataFile]:
    """Put small files of features of one width together; name the large ones as they are."""
    kept, parts = [], dict[str, list[pa.Table]]()
    for source in sources:
        for file in source.files.get("features", ()):
            if source.is_whole and file.size >= MERGE_FEATURES_BELOW:
                kept.append(file)
            elif (rows := read(store, source, file)).num_rows:
                parts.setdefault(str(rows.schema.field("feature").type), []).append(rows)
    for part, tables in enumerate(parts.values()):
        table = pa.concat_tables(tables).combine_chunks()
        kept.append(write_table(store, path("features", part), "features", table, _order("features", table, ids)))
    return kept


_RECORDS = ATTEMPTS.append(pa.field("log", pa.binary()))


def _joined_records(
    store: Store, group: Group, replaced: Sequence[Manifest], snapshot: Snapshot
) -> tuple[pa.Table | None, dict[str, int], list[str]]:
    """Return the attempts' records with what they printed, the bytes of each record read, and whose log is there."""
    parts = [
        read_parquet(store.read(file.path)).select(_RECORDS.names).cast(_RECORDS)
        for manifest in replaced
        for file in manifest.files.get("attempts", ())
    ]
    rows, sizes = [], dict[str, int]()
    logs = [attempt for manifest in replaced for attempt in manifest.logs]
    for path, record in read_loose_records(store, group.records):
        attempt = attempt_of_path(path)
        log = log_path(group.sweep, attempt)
        printed = None
        if log in snapshot.listing:
            printed = store.read(log)
            logs.append(attempt)
        rows.append({name: record.get(name) for name in ATTEMPTS.names} | {"log": printed})
        sizes[attempt] = snapshot.listing[path]
    if rows:
        parts.append(pa.Table.from_pylist(rows, _RECORDS))
    return (pa.concat_tables(parts) if parts else None), sizes, logs


def delete_replaced(store: Store, grace_s: float) -> tuple[int, int]:
    """Delete what compactions replaced longer than `grace_s` ago and return how many files that were, and how many wait.

    Before anything is deleted the compaction's own files are read again: only what is there, bit for bit, replaces.
    """
    snapshot = take_snapshot(store)
    ready, waiting = set(), 0
    for manifest in snapshot.manifests:
        doomed = _doomed(manifest, snapshot)
        if doomed and time.time() - manifest.created_at >= grace_s and _is_sound(store, manifest):
            ready.add(manifest.compaction_id)
        else:
            waiting += len(doomed)
    if ready:
        snapshot = take_snapshot(store)  # reading took a while: what another compaction names since then stays
    doomed = [path for m in snapshot.manifests if m.compaction_id in ready for path in _doomed(m, snapshot)]
    abandoned = _abandoned(store, snapshot)
    # manifests before their files: a reader finds a compaction whole or not at all
    for path in (path for path in doomed if path.startswith("manifest/")):
        store.delete(path)
    store.delete_many([path for path in (*doomed, *abandoned) if not path.startswith("manifest/")])
    return len(doomed) + len(abandoned), waiting


def _doomed(manifest: Manifest, snapshot: Snapshot) -> list[str]:
    """Return what is there of all that a compaction replaced."""
    named = {file.path for current in snapshot.manifests for file in current.all_files()}
    doomed = [*manifest.replaced_paths(), *_doomed_records(manifest, snapshot)]
    for old in (old for old in snapshot.superseded if old.compaction_id in manifest.compactions):
        doomed += [*old.replaced_paths(), *_doomed_records(old, snapshot)]
        doomed += [old.path, *(file.path for file in old.all_files())]
    return [path for path in dict.fromkeys(doomed) if path in snapshot.listing and path not in named]


def _doomed_records(manifest: Manifest, snapshot: Snapshot) -> list[str]:
    """Return the records and logs that a compaction holds, without those that were written anew since it read them."""
    records = manifest.replaced_records().items()
    return [path for path, size in records if size is None or snapshot.listing.get(path) == size]


def _is_sound(store: Store, manifest: Manifest) -> bool:
    """Whether every file of a compaction holds what was written."""
    written = [file for file in manifest.all_files() if is_compacted(file.path)]
    return not find_broken_files(store, written)


def _abandoned(store: Store, snapshot: Snapshot) -> list[str]:
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
        ages = [time.time() - modified for path in paths if (modified := store.modified(path)) is not None]
        if not trials or not ages or min(ages) < ABANDONED_S:
            continue
        try:
            ids = {i for path in trials for i in read_parquet(store.read(path))["trial_id"].to_pylist()}
        except (pa.ArrowException, OSError, KeyError):
            continue  # `verify` names it
        if ids <= snapshot.trial_ids():
            abandoned += paths
    return abandoned
