"""Move aside what a verification found, so that the trials it held are pending again; nothing is ever deleted."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pyarrow as pa

from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.commits.manifest import Manifest
from depthrate.storage.commits.snapshot import named_files, replaced_files, take_snapshot
from depthrate.storage.commits.source import VisibleCommit, read_commit_of, visible_rows
from depthrate.storage.files.leftovers import is_unfinished, remove_unfinished
from depthrate.storage.files.parquet import DataFile, read_parquet, write_table
from depthrate.storage.files.paths import (
    DATA_TABLES,
    compacted_path,
    data_path,
    is_safe,
    new_name,
    quarantine_folder,
    sweep_of_path,
)
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.damage import BROKEN, read_intact_rows
from depthrate.storage.maintenance.findings import NEWER, ORPHANED_KINDS, Verification
from depthrate.storage.maintenance.merge import write_tables
from depthrate.storage.maintenance.type_conflicts import (
    read_column_types,
    rename_mistyped_columns,
    rename_mistyped_in_files,
)
from depthrate.storage.tables.schema import as_attempts, concat_rows, empty_trials


@dataclass
class Repair:
    """What a repair did."""

    quarantine: str
    """Folder of the store into which files were moved."""
    moved: list[str] = field(default_factory=list)
    saved: int = 0
    """Trials beside damaged ones that were written anew and still count."""
    pending: set[str] = field(default_factory=set)
    """Trials that were committed and have to run again."""


def repair(store: Store, found: Verification) -> Repair:
    """Move aside what `verify` found, and write anew what can be read beside it; nothing is deleted.

    Raises:
        ClockError: the clock of this machine is wrong, or the store's.
        OSError: the store refused; run `verify` and `repair` again.
    """
    require_clock(store)
    done = Repair(quarantine_folder(f"{datetime.now(UTC):%Y%m%dT%H%M%S}"))
    rest = take_snapshot(store, ignore=found.lost)
    elsewhere = rest.trial_ids()
    needed = {file.path for manifest in (*rest.manifests, *rest.superseded_manifests) for file in manifest.all_files()}
    replaced, named_now = replaced_files(rest), named_files(rest)
    for path, lost in found.lost.items():
        if path in replaced:
            continue  # by a compaction, since it was looked at
        source = found.sources.get(path)
        named = [] if source is None else [file.path for tables in source.files.values() for file in tables]
        if source is not None:
            done.saved += _save(store, source, lost | elsewhere)
        done.pending |= lost - elsewhere
        _move(store, done, path)  # the commit first: what it was committed with counts for nothing after that
        for data in (each for each in named if each not in needed):
            _move(store, done, data)
    for finding in found.findings:
        if not is_safe(finding.path) or finding.kind == NEWER:
            continue  # it would be another file than the one that was found, or nothing is wrong with it
        if finding.path.endswith(".trials"):
            continue  # without it purges would take the sweep to ask for nothing; the finding says what mends it
        if finding.path.startswith("checkpoints/"):
            for path in store.list(finding.path.rpartition("/")[0]):
                _move(store, done, path)
        elif finding.kind in ORPHANED_KINDS:
            if finding.path not in named_now and not _is_committed_now(store, finding.path):
                _move(store, done, finding.path)
                if _is_committed_now(store, finding.path):  # its attempt had only stood still
                    store.move(f"{done.quarantine}/{finding.path}", finding.path)
                    done.moved.remove(finding.path)
        elif finding.path not in needed or finding.kind == "damaged":
            _move(store, done, finding.path)
    return done


def _is_committed_now(store: Store, path: str) -> bool:
    """Whether a data file that no commit named has got one since."""
    table = path.partition("/")[0]
    return table in DATA_TABLES and store.size(data_path(path, "trials")) is not None


def _save(store: Store, source: VisibleCommit, without: set[str]) -> int:
    """Write those trials of a damaged commit anew that are whole and stand nowhere else, and return how many."""
    keep = [trial_id not in without for trial_id in source.trial_ids()]
    if not any(keep):
        return 0
    sweep, compaction_id = sweep_of_path(source.path), new_name()
    # counted as partial, so that rows of other trials in its files are left behind
    whole = replace(source, trials=source.trials.filter(pa.array(keep)), is_fully_visible=False)
    with contextlib.suppress(*BROKEN):  # with the columns of newer versions, where the file can be read
        whole = replace(whole, trials=visible_rows(whole, read_commit_of(store, source).trials))
    types = read_column_types(store)

    def read(store: Store, source: VisibleCommit, file: DataFile) -> pa.Table:
        return rename_mistyped_columns(_read_what_is_left(store, source, file), file.path.partition("/")[0], types)

    written = write_tables(store, sweep, [rename_mistyped_in_files(store, whole, types)], compaction_id, read)
    records = [table for file in source.files.get("attempts", ()) if (table := _records_left(store, file)) is not None]
    if records:
        path = compacted_path("attempts", sweep, compaction_id)
        written["attempts"] = [write_table(store, path, "attempts", concat_rows(records))]
    logs = source.manifest.logs if source.manifest is not None and records else []
    before = [] if source.manifest is None else source.manifest.gone
    gone = None if before is None else sorted({*before, *source.all_trials["attempt_id"].to_pylist()})
    Manifest(compaction_id, sweep, time.time(), written, logs=logs, gone=gone).write(store)
    return sum(keep)


def _read_what_is_left(store: Store, source: VisibleCommit, file: DataFile) -> pa.Table:
    try:
        return visible_rows(source, read_intact_rows(file.read(store)))
    except BROKEN:
        return empty_trials()  # all of its trials are among the lost ones


def _records_left(store: Store, file: DataFile) -> pa.Table | None:
    try:
        return as_attempts(read_parquet(file.read(store)))
    except (*BROKEN, KeyError):
        return None


def _move(store: Store, done: Repair, path: str) -> None:
    if is_unfinished(path):
        remove_unfinished(store, path)
    elif store.size(path) is None:
        return
    else:
        store.move(path, f"{done.quarantine}/{path}")
    done.moved.append(path)
