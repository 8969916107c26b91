"""What trials that run have logged so far: one small file a pack, written over while it trains. A hint, never a result.

A row counts only while its trial is not committed, and of several attempts of a trial only those of the newest. What cannot
be read is left out.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.parquet import read_parquet
from depthrate.storage.files.paths import is_identity, live_folder, live_path, name_of_path, sweep_of_path
from depthrate.storage.files.protocol import Stamp
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import CURVES, Columns

LIVE_FORGOTTEN_S = 3600.0
"""What nobody has written over for so long was left by an attempt that died."""
_METADATA = b"depthrate_live"
_ROWS = pa.schema([("trial_id", pa.string()), ("step", pa.int64()), ("split", pa.string())])
_KEY = frozenset(_ROWS.names)
_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)

Row = Mapping[str, Any]
"""Of the table `curves`, as tasks return it."""


@dataclass(frozen=True)
class LivePack:
    """What a pack had logged when it last said so."""

    path: str
    sweep: str
    """Whose launch runs it."""
    attempt_id: str
    written_at: float
    params: Mapping[str, Mapping[str, Any]]
    """Trial -> its parameters."""
    rows: pa.Table
    """trial_id, step, split, then what was logged, as numbers."""


def live_schema(columns: Columns) -> pa.Schema:
    """Return the columns that the view `live` always has; those of parameters, and of a task of one's own, come to them."""
    measured = [each for each in columns.schemas["curves"] if each.name not in CURVES.names]
    own = [pa.field(name, kind) for name, kind in columns.custom_types("curves").items()]
    numbers = [each for each in (*measured, *own) if pa.types.is_floating(each.type)]
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
    """Write what a pack has logged, in place of what it had logged before: (trial, row) of each of its trials in order.

    Raises:
        OSError: the store refuses it.
    """
    shared = _shared(list(params.values()))
    own = {
        trial_id: {name: value for name, value in each.items() if name not in shared}
        for trial_id, each in params.items()
    }
    said = {"attempt_id": attempt_id, "written_at": time.time(), "shared": shared, "trials": own}
    table = _table(rows).replace_schema_metadata({_METADATA: json.dumps(said).encode()})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_statistics=False)
    store.write(live_path(sweep, pack_id), buffer.getvalue())


def _shared(params: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters that all of them have alike."""
    first = params[0] if params else {}
    return {name: value for name, value in first.items() if all(parameter.get(name) == value for parameter in params)}


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
            continue  # a text, or a list
        if values.ndim == 1:
            arrays[str(name)] = pa.array(values, mask=~np.isfinite(values))
    return pa.table(arrays)


class LiveReader:
    """What running packs have logged, again and again: what has not changed is not read again."""

    def __init__(self, store: Store, sweep: str | None = None):
        self._store, self._folder = store, live_folder(sweep)
        self._known: dict[str, tuple[Stamp, LivePack | None]] = {}

    def refresh(self) -> list[LivePack]:
        """Return what is there; nothing if the store cannot be listed just now."""
        try:
            stamps = self._store.stamps(self._folder)
        except OSError:
            return []
        self._known = {path: known for path, known in self._known.items() if known[0] == stamps.get(path)}
        new = [path for path in stamps if path not in self._known and path.endswith(".parquet")]
        for path, content in self._store.read_many(new):
            if not isinstance(content, OSError):
                self._known[path] = stamps[path], _parsed(path, content)
        return [pack for _, pack in self._known.values() if pack is not None]


def _parsed(path: str, content: bytes) -> LivePack | None:
    try:
        table = read_parquet(content)
        said = read_object((table.schema.metadata or {})[_METADATA])
        sweep, attempt_id, written_at = sweep_of_path(path), said["attempt_id"], float(said["written_at"])
        if not (is_identity(sweep) and is_identity(attempt_id) and is_identity(name_of_path(path))):
            return None
        params = {str(trial_id): {**said["shared"], **own} for trial_id, own in said["trials"].items()}
        columns = {row.name: table[row.name].cast(row.type) for row in _ROWS}
        datetime.fromtimestamp(written_at, UTC)  # refuses what is no time
        if any(column.null_count for column in columns.values()):
            return None
        taken = {"sweep", "attempt_id", "written_at", *_KEY}
        columns |= {
            each.name: table[each.name]
            for each in table.schema
            if pa.types.is_float64(each.type) and each.name.casefold() not in taken
        }
        return LivePack(path, sweep, attempt_id, written_at, params, pa.table(columns))
    except _UNREADABLE:
        return None


def newest_live_rows(packs: Iterable[LivePack], committed: Set[str], wanted: Set[str] | None = None) -> list[LivePack]:
    """Return the packs with those rows alone that count: of trials that are not committed, each of its newest attempt.

    `wanted` leaves out other trials.
    """
    newest: dict[str, LivePack] = {}
    for pack in packs:
        for trial_id in pack.params:
            known = newest.get(trial_id)
            if known is None or (known.attempt_id, known.written_at) < (pack.attempt_id, pack.written_at):
                newest[trial_id] = pack
    counting: list[LivePack] = []
    for pack in {id(pack): pack for pack in newest.values()}.values():
        own = {t for t in pack.params if newest[t] is pack and t not in committed and (wanted is None or t in wanted)}
        if own:
            rows = pack.rows.filter(pa.array([t in own for t in pack.rows["trial_id"].to_pylist()], pa.bool_()))
            params = {trial_id: pack.params[trial_id] for trial_id in pack.params if trial_id in own}
            counting.append(LivePack(pack.path, pack.sweep, pack.attempt_id, pack.written_at, params, rows))
    return counting


def live_rows(packs: Sequence[LivePack], columns: Columns) -> pa.Table:
    """Return the rows of all as one table with the columns of `live_schema` in front."""
    schema = live_schema(columns)
    tables = [pa.Table.from_batches([], schema)]
    for pack in packs:
        written_at = datetime.fromtimestamp(pack.written_at, UTC)
        said = {"sweep": pack.sweep, "attempt_id": pack.attempt_id, "written_at": written_at}
        table = pack.rows
        for name, value in said.items():
            table = table.append_column(schema.field(name), pa.array([value] * table.num_rows, schema.field(name).type))
        tables.append(table)
    joined = pa.concat_tables(tables, promote_options="default")
    first = {name.casefold(): name for name in reversed(joined.column_names)}  # SQL ignores capitals
    return joined.select([name for name in joined.column_names if first[name.casefold()] == name])


def delete_ended_live(
    store: Store, committed: Set[str], *, sweep: str | None = None, silent_s: float | None = None
) -> int:
    """Delete what was left of packs whose trials are all committed, with `silent_s` also what was not written over for so
    long, and return how many files that were.

    Raises:
        OSError: the store refuses it.
    """
    over = []
    for pack in LiveReader(store, sweep).refresh():
        modified = None if silent_s is None else store.modified(pack.path)
        is_silent = modified is not None and time.time() - store.clock_ahead_s - modified > (silent_s or 0.0)
        if pack.params.keys() <= committed or is_silent:
            over.append(pack.path)
    if over:
        store.delete_many(over)
    return len(over)
