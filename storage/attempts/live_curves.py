"""Rows logged by running trials: one small file per pack, overwritten while it trains. A hint, never a result.

A row is visible only while its trial is not committed. If a trial has several attempts, only the newest one's rows are visible.
Unreadable files are ignored.
"""

import io
import json
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.parquet import UNREADABLE_ERRORS, read_parquet
from depthrate.storage.files.paths import is_identity, live_path, name_of_path, sweep_of_path
from depthrate.storage.files.protocol import Stamp
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import CURVES, Columns

LIVE_FORGOTTEN_S = 3600.0
"""Age in seconds from which a file is stale: an attempt that has ended left it behind."""
_METADATA = b"depthrate_live"
_ROWS = pa.schema([("trial_id", pa.string()), ("step", pa.int64()), ("split", pa.string())])
_KEY = frozenset(_ROWS.names)

Row = Mapping[str, Any]
"""A row of the table `curves`, as tasks return it."""


@dataclass(frozen=True)
class LivePack:
    """The logged rows of a pack at its last write."""

    path: str
    sweep: str
    """Sweep whose launch runs it."""
    attempt_id: str
    written_at: float
    params: Mapping[str, Mapping[str, Any]]
    """Trial -> its parameters."""
    rows: pa.Table
    """Table of trial_id, step, split and the logged numbers."""

    def rows_of(self, trial_ids: Set[str]) -> pa.Table:
        """Return the rows of some trials."""
        return self.rows.filter(pa.array([t in trial_ids for t in self.rows["trial_id"].to_pylist()], pa.bool_()))


def live_schema(columns: Columns) -> pa.Schema:
    """Return the columns that the view `live` always has.

    Parameters and undeclared custom columns are added to them.
    """
    measured = [column for column in columns.schemas["curves"] if column.name not in CURVES.names]
    custom = [pa.field(name, kind) for name, kind in columns.custom_types("curves").items()]
    numbers = [column for column in (*measured, *custom) if pa.types.is_floating(column.type)]
    last = [("sweep", pa.string()), ("attempt_id", pa.string()), ("written_at", pa.timestamp("us", tz="UTC"))]
    return pa.schema([*_ROWS, *numbers, *last])


def write_live(
    store: Store,
    sweep: str,
    pack_id: str,
    attempt_id: str,
    params: Mapping[str, Mapping[str, Any]],
    rows: Sequence[tuple[str, Row]],
) -> None:
    """Write a pack's logged rows, (trial, row) in the order of its trials, replacing the previous file."""
    shared = dict(next(iter(params.values()), {}))
    for of_trial in params.values():
        shared = {name: value for name, value in shared.items() if of_trial.get(name) == value}
    by_trial = {
        trial_id: {name: value for name, value in of_trial.items() if name not in shared}
        for trial_id, of_trial in params.items()
    }
    metadata = {"attempt_id": attempt_id, "written_at": time.time(), "shared": shared, "trials": by_trial}
    table = _table(rows).replace_schema_metadata({_METADATA: json.dumps(metadata).encode()})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_statistics=False)
    store.write(live_path(sweep, pack_id), buffer.getvalue())


def _table(rows: Sequence[tuple[str, Row]]) -> pa.Table:
    import numpy as np

    arrays = {
        "trial_id": pa.array([trial_id for trial_id, _ in rows], pa.string()),
        "step": pa.array([int(row.get("step") or 0) for _, row in rows], pa.int64()),
        "split": pa.array([str(row.get("split") or "train") for _, row in rows], pa.string()),
    }
    for name in dict.fromkeys(name for _, row in rows for name in row if name not in _KEY):
        try:
            values = np.array([row.get(name) for _, row in rows], dtype=np.float64)
        except (TypeError, ValueError):
            continue  # a str or a list
        if values.ndim == 1:
            arrays[str(name)] = pa.array(values, mask=~np.isfinite(values))
    return pa.table(arrays)


class LiveReader:
    """Reader of the logged rows of running packs. Unchanged files are not read again."""

    def __init__(self, store: Store, sweep: str | None = None):
        self._store, self._folder = store, live_path.folder(*filter(None, [sweep]))
        self._cached: dict[str, tuple[Stamp, LivePack | None]] = {}

    def refresh(self) -> list[LivePack]:
        """Return the current packs, or an empty list if the store cannot be listed at the moment."""
        try:
            stamps = self._store.stamps(self._folder)
        except OSError:
            return []
        self._cached = {path: entry for path, entry in self._cached.items() if entry[0] == stamps.get(path)}
        new = [path for path in stamps if path not in self._cached and path.endswith(".parquet")]
        for path, content in self._store.read_many(new):
            if not isinstance(content, OSError):
                self._cached[path] = stamps[path], _parse_live(path, content)
        return [pack for _, pack in self._cached.values() if pack is not None]


def _parse_live(path: str, content: bytes) -> LivePack | None:
    try:
        table = read_parquet(content)
        metadata = read_object((table.schema.metadata or {})[_METADATA])
        sweep, attempt_id, written_at = sweep_of_path(path), metadata["attempt_id"], float(metadata["written_at"])
        if not (is_identity(sweep) and is_identity(attempt_id) and is_identity(name_of_path(path))):
            return None
        params = {str(trial_id): {**metadata["shared"], **other} for trial_id, other in metadata["trials"].items()}
        columns = {row.name: table[row.name].cast(row.type) for row in _ROWS}
        datetime.fromtimestamp(written_at, UTC)  # raises for invalid times
        if any(column.null_count for column in columns.values()):
            return None
        taken = {"sweep", "attempt_id", "written_at", *_KEY}
        columns |= {
            column.name: table[column.name]
            for column in table.schema
            if pa.types.is_float64(column.type) and column.name.casefold() not in taken
        }
        return LivePack(path, sweep, attempt_id, written_at, params, pa.table(columns))
    except UNREADABLE_ERRORS:
        return None


def newest_live_rows(packs: Iterable[LivePack], committed: Set[str], wanted: Set[str] | None = None) -> list[LivePack]:
    """Return the packs with only their visible rows: rows of uncommitted trials, from each trial's newest attempt.

    Args:
        wanted: Trials to include. Default: all.
    """
    newest: dict[str, LivePack] = {}
    for pack in packs:
        for trial_id in pack.params:
            other = newest.get(trial_id)
            if other is None or (other.attempt_id, other.written_at) < (pack.attempt_id, pack.written_at):
                newest[trial_id] = pack
    visible: list[LivePack] = []
    for pack in {id(pack): pack for pack in newest.values()}.values():
        ids = {t for t in pack.params if newest[t] is pack and t not in committed and (wanted is None or t in wanted)}
        if ids:
            params = {trial_id: pack.params[trial_id] for trial_id in pack.params if trial_id in ids}
            visible.append(replace(pack, params=params, rows=pack.rows_of(ids)))
    return visible


def live_rows(packs: Sequence[LivePack], columns: Columns) -> pa.Table:
    """Concatenate the packs' rows into one table that starts with the columns of `live_schema`."""
    schema = live_schema(columns)
    tables = [pa.Table.from_batches([], schema)]
    for pack in packs:
        written_at = datetime.fromtimestamp(pack.written_at, UTC)
        constants = {"sweep": pack.sweep, "attempt_id": pack.attempt_id, "written_at": written_at}
        table = pack.rows
        for name, value in constants.items():
            table = table.append_column(schema.field(name), pa.array([value] * table.num_rows, schema.field(name).type))
        tables.append(table)
    joined = pa.concat_tables(tables, promote_options="default")
    first = {name.casefold(): name for name in reversed(joined.column_names)}  # SQL ignores capitals
    return joined.select([name for name in joined.column_names if first[name.casefold()] == name])


def delete_ended_live(
    store: Store, committed: Set[str], *, sweep: str | None = None, stale_s: float | None = None
) -> int:
    """Delete the files of packs whose trials are all committed, and return the number of files.

    Args:
        stale_s: Age in seconds after which files that are no longer written are deleted too.
    """
    ended = []
    for pack in LiveReader(store, sweep).refresh():
        modified = None if stale_s is None else store.modified(pack.path)
        is_stale = modified is not None and time.time() - store.clock_ahead_s - modified > (stale_s or 0.0)
        if pack.params.keys() <= committed or is_stale:
            ended.append(pack.path)
    if ended:
        store.delete_many(ended)
    return len(ended)
