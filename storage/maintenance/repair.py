"""Move aside the files that a verification found, so that their trials are pending again. Nothing is ever deleted."""

import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pyarrow as pa

from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.commits.manifest import Manifest
from depthrate.storage.commits.snapshot import named_files, replaced_files, take_snapshot
from depthrate.storage.commits.source import VisibleCommit, read_trials, visible_rows
from depthrate.storage.files.parquet import UNREADABLE_ERRORS, DataFile, read_parquet, write_table
from depthrate.storage.files.paths import (
    DATA_TABLES,
    compacted_path,
    data_path,
    is_safe,
    new_name,
    quarantine_path,
    sweep_of_path,
)
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.findings import NEWER, ORPHANED_KINDS, Verification, read_intact_rows
from depthrate.storage.maintenance.merge import write_tables
from depthrate.storage.maintenance.type_conflicts import (
    read_column_types,
    rename_mistyped_columns,
    rename_mistyped_in_files,
)
from depthrate.storage.tables.parameters import with_parameters
from depthrate.storage.tables.schema import TRIALS, as_attempts, concat_rows, empty_trials


@dataclass
class Repair:
    """Files moved and trials affected by a repair."""

    quarantine: str
    """Folder of the store that holds the moved files."""
    moved: list[str] = field(default_factory=list)
    saved: int = 0
    """Trials from corrupt commits that were rewritten and are still visible."""
    pending: set[str] = field(default_factory=set)
    """Trials that were committed and must run again."""


def repair(store: Store, verification: Verification) -> Repair:
    """Move aside the files that `verify` found, and rewrite the intact rows of corrupt commits. Nothing is deleted.

    Raises:
        ClockError: The local clock or the store's is wrong.
        OSError: The store refused a read or a write. Run `verify` and `repair` again.
    """
    require_clock(store)
    result = Repair(quarantine_path.folder(f"{datetime.now(UTC):%Y%m%dT%H%M%S}"))
    intact = take_snapshot(store, ignore=verification.lost)
    elsewhere = intact.trial_ids()
    needed = {
        file.path for manifest in (*intact.manifests, *intact.superseded_manifests) for file in manifest.all_files()
    }
    replaced, named_now = replaced_files(intact), named_files(intact)
    for path, lost in verification.lost.items():
        if path in replaced:
            continue  # deleted by a compaction since the verification
        source = verification.sources.get(path)
        named = [] if source is None else [file.path for file in source.data_files()]
        if source is not None:
            result.saved += _save(store, source, lost | elsewhere)
        result.pending |= lost - elsewhere
        _move(store, result, path)  # the commit is moved first: after that its data files are not visible
        for data_file in (named_path for named_path in named if named_path not in needed):
            _move(store, result, data_file)
    for finding in verification.findings:
        if not is_safe(finding.path) or finding.kind == NEWER:
            continue  # moving it would move a different file, or the file is intact
        if finding.path.endswith(".trials"):
            continue  # without it, purges would assume that the sweep requests nothing. The finding gives the fix.
        if finding.path.startswith("checkpoints/"):
            for path in store.list(finding.path.rpartition("/")[0]):
                _move(store, result, path)
        elif finding.kind in ORPHANED_KINDS:
            if finding.path not in named_now and not _is_committed_now(store, finding.path):
                _move(store, result, finding.path)
                if _is_committed_now(store, finding.path):  # the file's attempt was only suspended
                    store.move(f"{result.quarantine}/{finding.path}", finding.path)
                    result.moved.remove(finding.path)
        elif finding.path not in needed or finding.kind == "damaged":
            _move(store, result, finding.path)
    return result


def _is_committed_now(store: Store, path: str) -> bool:
    """Return whether a data file that no commit named has since been committed."""
    table = path.partition("/")[0]
    return table in DATA_TABLES and store.size(data_path(path, "trials")) is not None


def _save(store: Store, source: VisibleCommit, without: set[str]) -> int:
    """Rewrite the trials of a corrupt commit that are intact and committed nowhere else, and return their number."""
    is_saved = [trial_id not in without for trial_id in source.trial_ids()]
    if not any(is_saved):
        return 0
    sweep, compaction_id = sweep_of_path(source.path), new_name()
    # marked as partial, so that rows of other trials in the commit's files are left out
    saved = replace(source, trials=source.trials.filter(pa.array(is_saved)), is_fully_visible=False)
    try:
        trials = [visible_rows(saved, table) for table in read_trials(store, source)]
    except UNREADABLE_ERRORS:
        if not set(TRIALS.names) <= set(saved.trials.column_names):
            return 0  # the verification read some of the columns, and the file has since become unreadable
        trials = [with_parameters(saved.trials.select(TRIALS.names))]
    types = read_column_types(store)

    def read(store: Store, source: VisibleCommit, file: DataFile) -> pa.Table:
        return rename_mistyped_columns(_read_intact(store, source, file), file.path.partition("/")[0], types)

    sources = [rename_mistyped_in_files(store, saved, types)]
    written = write_tables(store, sweep, sources, trials, compaction_id, read)
    records = [table for file in source.files.get("attempts", ()) if (table := _records_left(store, file)) is not None]
    if records:
        path = compacted_path("attempts", sweep, compaction_id)
        written["attempts"] = [write_table(store, path, "attempts", concat_rows(records))]
    logs = source.manifest.logs if source.manifest is not None and records else []
    earlier = [] if source.manifest is None else source.manifest.gone
    gone = sorted({*earlier, *source.all_trials["attempt_id"].to_pylist()})
    Manifest(compaction_id, sweep, time.time(), written, logs=logs, gone=gone).write(store)
    return sum(is_saved)


def _read_intact(store: Store, source: VisibleCommit, file: DataFile) -> pa.Table:
    try:
        return visible_rows(source, read_intact_rows(file.read(store)))
    except UNREADABLE_ERRORS:
        return empty_trials()  # all of its trials are lost


def _records_left(store: Store, file: DataFile) -> pa.Table | None:
    try:
        return as_attempts(read_parquet(file.read(store)))
    except UNREADABLE_ERRORS:
        return None


def _move(store: Store, result: Repair, path: str) -> None:
    if not store.remove_unfinished(path):
        if store.size(path) is None:
            return
        store.move(path, f"{result.quarantine}/{path}")
    result.moved.append(path)
