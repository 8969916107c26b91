"""Group small files so that a group fits into memory, and merge a group into a few sorted files and their manifest."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from depthrate.grouping import grouped
from depthrate.storage.attempts.records import read_loose_records
from depthrate.storage.catalog.removals import Removals
from depthrate.storage.commits.commit import join_rows
from depthrate.storage.commits.manifest import Manifest
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.commits.visible_commits import (
    Commit,
    VisibleCommit,
    read_trials,
    resolve,
    visible_rows,
    without_rows,
)
from depthrate.storage.files.parquet import DataFile, read_parquet, write_table
from depthrate.storage.files.paths import (
    attempt_of_path,
    compacted_path,
    is_compacted,
    log_path,
    manifest_path,
    name_of_path,
    sweep_of_path,
)
from depthrate.storage.files.protocol import InvalidFileError
from depthrate.storage.files.store import Store
from depthrate.storage.tables.parameters import as_type, common_type, type_name
from depthrate.storage.tables.schema import ATTEMPTS, TRIALS, as_attempts, concat_rows, row_keys
from depthrate.storage.tables.states import AttemptState

GROUP_BYTES = 100e6
"""Maximum bytes of one table in memory that are merged together (the process needs about three times as much)."""
GROUP_ROWS = 1_000_000
"""Maximum rows of one table in a group."""
FIRST_HIDDEN_PART = 5_000
"""Number of the first file of a compaction, per table, with rows that were not visible when it was written."""
GROUP_RECORDS = 5_000
"""Maximum attempts' records in a group."""
MERGE_FEATURES_BELOW = 8_000_000
"""Size in bytes above which files of features are not rewritten, since merging them gains nothing."""
SETTLED_S = 60.0
"""Seconds after an attempt's end when its record is final."""


Trials = dict[str, list[pa.Table]]
"""Commit or manifest -> its trials, visible or not, with all columns: a table per file, of one version of a task."""


@dataclass(frozen=True)
class Group:
    """Input of one set of merged files: the visible rows of some commits and compactions, and some records."""

    sweep: str
    sources: list[VisibleCommit]
    records: list[str]
    """Paths of attempts' records."""
    drops: bool = False
    """Whether some of the rows were permanently removed, or a file has visible and other rows and must not."""

    @property
    def is_work(self) -> bool:
        """Whether writing the group reduces the number of files or rows."""
        return self.drops or len(self.sources) + len(self.records) > 1


def plan_groups(
    store: Store, snapshot: Snapshot, at_least: int, group_bytes: float, *, splits: bool = False
) -> Iterator[Group]:
    """Yield the groups to merge: loose commits with small compactions, and redundant compactions with their originals.

    Args:
        splits: Whether to rewrite files with visible and other rows.
    """
    all_sources = (*snapshot.sources, *snapshot.superseded_commits)
    sources = grouped(all_sources, lambda source: sweep_of_path(source.path))
    records = _settled_records(store, snapshot)
    shrinking = {source.path for of_sweep in sources.values() for source in of_sweep if _has_gone(source, snapshot)}
    shrinking |= {source.path for source in snapshot.sources if splits and visible_files(source) is None}
    for sweep in sorted(sources.keys() | records.keys()):
        of_sweep = sources.get(sweep, [])
        small = [s for s in of_sweep if s.manifest is None or s.path in shrinking or _weight(s) < group_bytes / 2]
        loose = sum(source.manifest is None for source in small)
        is_enough = loose >= at_least or len(small) - loose > 1 or len(records.get(sweep, ())) >= at_least
        if is_enough or any(source.path in shrinking for source in small):
            yield from _cut(sweep, small, records.get(sweep, []), group_bytes, shrinking)
        taken = {source.path for source in small}
        yield from _copies(sweep, [source for source in of_sweep if source.path not in taken])


def _copies(sweep: str, large: list[VisibleCommit]) -> Iterator[Group]:
    """Yield each compaction that a concurrent one made redundant, together with the concurrent one."""
    originals = [source for source in large if source.trials.num_rows]
    for copy in (source for source in large if not source.trials.num_rows):
        trial_ids = set(copy.all_trials["trial_id"].to_pylist())
        original = next((source for source in originals if trial_ids <= set(source.trial_ids())), None)
        if original is not None:
            originals.remove(original)
            yield Group(sweep, [original, copy], [])


def _has_gone(source: VisibleCommit, snapshot: Snapshot) -> bool:
    """Return whether a source holds rows that were permanently removed."""
    counts = Removals(hidden=snapshot.removals.gone).visible_mask(source.all_trials)
    return counts is not None and not all(counts.to_pylist())


def visible_files(source: VisibleCommit) -> dict[str, list[DataFile]] | None:
    """Return the files of a source with visible rows, by table, or None if one of them has other rows as well."""
    if source.is_fully_visible:
        return source.files
    if source.manifest is None:
        return None
    visible, keys = set(row_keys(source.trials)), iter(row_keys(source.all_trials))
    for file in source.files.get("trials", ()):
        num_visible = sum(key in visible for key in itertools.islice(keys, file.rows))
        if num_visible != (0 if _is_hidden_part(file.path) else file.rows):
            return None
    return {table: [file for file in named if not _is_hidden_part(file.path)] for table, named in source.files.items()}


def _is_hidden_part(path: str) -> bool:
    return is_compacted(path) and name_of_path(path).partition("-")[2] >= f"{FIRST_HIDDEN_PART:04d}"


def _cut(
    sweep: str, sources: list[VisibleCommit], records: list[str], group_bytes: float, shrinking: Set[str]
) -> Iterator[Group]:
    """Split a sweep's sources into groups that fit into memory."""

    def group() -> Group:
        drops = any(source.path in shrinking for source in selected)
        return Group(sweep, selected, records[:GROUP_RECORDS], drops)

    selected: list[VisibleCommit] = []
    weight, rows = 0.0, 0
    for source in sources:
        more_rows = max((file.rows for files in source.files.values() for file in files), default=0)
        if selected and (weight + _weight(source) > group_bytes or rows + more_rows > GROUP_ROWS):
            yield group()
            records, selected, weight, rows = records[GROUP_RECORDS:], [], 0.0, 0
        selected.append(source)
        weight, rows = weight + _weight(source), rows + more_rows
    while selected or records:
        last = group()
        if last.is_work:
            yield last
        records, selected = records[GROUP_RECORDS:], []


def _weight(source: VisibleCommit) -> float:
    """Estimate the bytes of a source's largest table in memory from its numbers and from data that compress badly."""
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
        ended_at = record["ended_at"]
        if record.get("is_newer"):
            continue  # the table has no columns for fields of newer versions
        if record["state"] is not AttemptState.RUNNING and ended_at is not None and now - ended_at > SETTLED_S:
            settled.setdefault(sweep_of_path(path), []).append(path)
    return settled


_RECORDS = ATTEMPTS.append(pa.field("log", pa.binary()))


class CorruptCommitFile(Exception):
    """A file of a commit is corrupt. The argument is its path."""


def write_group(store: Store, group: Group, snapshot: Snapshot, compaction_id: str) -> Manifest:
    """Write a group's rows and then the manifest that makes them visible.

    Raises:
        CorruptCommitFile: A file is corrupt. Nothing has changed.
        FileNotFoundError: Another compaction has replaced a file. Nothing has changed.
    """
    trials = _read_trials(store, group)
    visible, others = _resolved(group, snapshot, trials)
    written = _write_tables(store, group.sweep, visible, trials, compaction_id)
    for table, files in _write_tables(store, group.sweep, others, trials, compaction_id, FIRST_HIDDEN_PART).items():
        written.setdefault(table, []).extend(files)
    replaced = [source.manifest for source in group.sources if source.manifest is not None]
    earlier = {compaction_id for manifest in replaced for compaction_id in manifest.compactions}
    undeleted = {c for c in earlier if manifest_path(group.sweep, c) in snapshot.listing}
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
        compactions=sorted({manifest.compaction_id for manifest in replaced} | undeleted),
        attempts=sizes,
        logs=logs,
    )
    manifest.write(store)
    return manifest


def _read_trials(store: Store, group: Group) -> Trials:
    trials: Trials = {}
    for source in group.sources:
        try:
            trials[source.path] = read_trials(store, source)
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise CorruptCommitFile(source.path) from error
    return trials


def _resolved(group: Group, snapshot: Snapshot, trials: Trials) -> tuple[list[VisibleCommit], list[VisibleCommit]]:
    """Return a group's sources with their visible trials, then with the others that stay.

    Of the commits of a trial by the same code, the first one stays, and the first removed one that can be restored.
    """
    commits = []
    for source in group.sources:
        rows = pa.concat_tables([table.select(TRIALS.names) for table in trials[source.path]])
        commits.append(Commit(source.path, rows, source.files, source.manifest))
    removals = snapshot.removals
    stored = frozenset(key for commit in commits for key in row_keys(commit.trials))
    kept = resolve(commits, removals=Removals(hidden=removals.hidden))
    restorable = (removals.hidden - removals.gone) & stored
    others = resolve(commits, removals=Removals(hidden=stored - restorable)) if restorable else []
    shown = {key for source in group.sources for key in row_keys(source.trials)}
    visible = [without_rows(source, stored - shown) for source in kept]
    others += [without_rows(source, shown) for source in kept]
    return [source for source in visible if source.trials.num_rows], [s for s in others if s.trials.num_rows]


def _by_parameters(tables: Iterable[pa.Table]) -> list[pa.Table]:
    """Join trials of one version of a task with the same parameters."""
    alike: dict[tuple[Any, ...], list[pa.Table]] = {}
    for table in tables:
        if table.num_rows:
            of_task = (table["task"][0].as_py(), table["task_version"][0].as_py())
            alike.setdefault((*of_task, *sorted(table.column_names)), []).append(table)
    joined = []
    for parts in alike.values():
        names = [name for name in parts[0].column_names if name not in TRIALS.names]
        kinds = {name: common_type(part.schema.field(name).type for part in parts) for name in names}
        columns = [[*p.select(TRIALS.names).columns, *(as_type(p[n], kinds[n]) for n in names)] for p in parts]
        joined.append(pa.concat_tables([pa.Table.from_arrays(c, [*TRIALS.names, *names]) for c in columns]))
    return joined


def _write_tables(
    store: Store,
    sweep: str,
    sources: Sequence[VisibleCommit],
    trials: Trials,
    compaction_id: str,
    first_part: int = 0,
) -> dict[str, list[DataFile]]:
    """Write the visible rows of some sources, sorted, and return the files by table."""

    def path(table: str, part: int | None = None) -> str:
        return compacted_path(table, sweep, compaction_id, first_part + (part or 0) if part or first_part else part)

    ids = pa.array(sorted(trial_id for source in sources for trial_id in source.trial_ids()), pa.string())
    written: dict[str, list[DataFile]] = {}
    # written first, so that the files of a killed compaction show which trials they hold
    parts = _by_parameters(visible_rows(source, table) for source in sources for table in trials[source.path])
    for part, table in enumerate(parts):
        custom = {field.name: type_name(field.type) for field in table.schema if field.name not in TRIALS.names}
        path_of_part = path("trials", part if len(parts) > 1 else None)
        file = write_table(store, path_of_part, "trials", table.sort_by("trial_id"), custom=custom)
        written.setdefault("trials", []).append(file)
    for name in ("metrics", "curves"):
        named = [(source, file) for source in sources for file in source.files.get(name, ())]
        rows = [rows for source, file in named if (rows := _read_rows(store, source, file)).num_rows]
        if rows:
            table = join_rows(name, rows).combine_chunks()
            del rows  # free memory
            own = {column: kind for _, file in named for column, kind in file.own_columns.items()}
            custom = {column: kind for column, kind in own.items() if column in table.schema.names}
            order = _order(name, table, ids)
            written[name] = [write_table(store, path(name), name, table, order, custom=custom)]
            del table
    features = _merge_features(store, sources, ids, path)
    return written | ({"features": features} if features else {})


def _read_rows(store: Store, source: VisibleCommit, file: DataFile) -> pa.Table:
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
    """Return an order of the rows: all last layers before the other layers, a trial's rows adjacent, by step and layer.

    Most queries read only the last layers, and statistics let them skip all other rows.
    """
    columns = ["layer", "step"] if name in ("metrics", "features") else ["step"]
    keys: list[Any] = [pc.fill_null(table[column], -1).to_numpy() for column in columns]
    keys.append(pc.index_in(table["trial_id"], ids).to_numpy())
    if name == "metrics":
        keys.append(~pc.fill_null(table["is_last"], False).to_numpy(zero_copy_only=False))
    return np.lexsort(keys)  # the sort is stable, and the last key is the primary one


def _merge_features(
    store: Store,
    sources: Sequence[VisibleCommit],
    ids: pa.Array,
    path: Callable[[str, int | None], str],
) -> list[DataFile]:
    """Merge small files of features of the same width, and refer to the large files without rewriting them."""
    files, parts = [], dict[str, list[pa.Table]]()
    for source in sources:
        for file in source.files.get("features", ()):
            if source.is_fully_visible and file.size >= MERGE_FEATURES_BELOW:
                files.append(file)
            elif (rows := _read_rows(store, source, file)).num_rows:
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
            elif not isinstance(content, InvalidFileError):  # an invalid file has been logged and is not deleted
                raise content
        rows.append({name: record.get(name) for name in ATTEMPTS.names} | {"log": output})
        sizes[attempt] = snapshot.listing[path]
    if rows:
        parts.append(pa.Table.from_pylist(rows, _RECORDS))
    return (concat_rows(parts) if parts else None), sizes, logs
