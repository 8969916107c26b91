"""The attempts' records: one small file an attempt, or many in one where a compaction has put them together.

A record is a hint, never the truth: one that cannot be read is left out, and a detail of a wrong type counts as unknown.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from depthrate.storage.clocks import heartbeat_of
from depthrate.storage.json_file import read_object
from depthrate.storage.layout import attempt_of_path, is_identity, sweep_of_path
from depthrate.storage.parquet import read_parquet
from depthrate.storage.schema import ATTEMPTS
from depthrate.storage.snapshot import Snapshot
from depthrate.storage.states import AttemptState, FailureKind
from depthrate.storage.store import Store

_ADDED = ("engine", "compile_s")
"""Columns of attempts that files of older versions do not have."""
Record = dict[str, Any]
"""The columns of `storage.schema.ATTEMPTS`, `checkpoints` (how many it saved), `code_hash` and `progress_at`, each of its type
or None. Never None are attempt_id, sweep, trial_ids, state (an `AttemptState`), started_at; error_kind is a `FailureKind`."""


def read_records(
    store: Store,
    snapshot: Snapshot,
    skip: Iterable[str] = (),
    ignored: Callable[[str], object] = lambda path: None,
) -> list[Record]:
    """Return the attempts' records, without those of the attempts in `skip`.

    `ignored` is told the path of each record that is left out because it cannot be read.
    """
    skip = set(skip)
    records = {record["attempt_id"]: record for record in _compacted_records(store, snapshot, skip, ignored)}
    loose = [path for path in snapshot.attempts if attempt_of_path(path) not in skip]
    records |= {record["attempt_id"]: record for _, record in read_loose_records(store, loose, ignored)}
    return list(records.values())


def read_loose_records(
    store: Store, paths: Iterable[str], ignored: Callable[[str], object] = lambda path: None
) -> Iterator[tuple[str, Record]]:
    """Yield (path, record) of the records that stand in these files."""
    for path, content in store.read_many(list(paths)):
        if isinstance(content, OSError):
            continue
        record = parse_record(content, path)
        if record is None:
            ignored(path)
        else:
            yield path, record | {"heartbeat_at": heartbeat_of(store, path, record)}


def completed_attempts(table: pa.Table) -> pa.Table:
    """Return a table of attempts with null in the columns that older versions did not write.

    Raises:
        KeyError: it lacks a column that all versions write.
    """
    for name in _ADDED:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table), ATTEMPTS.field(name).type))
    if missing := set(ATTEMPTS.names) - set(table.column_names):
        raise KeyError(f"no column {', '.join(sorted(missing))}")
    return table.select([*ATTEMPTS.names, *(name for name in table.column_names if name not in ATTEMPTS.names)])


def parse_record(content: bytes, path: str) -> Record | None:
    """Return the record in a file at `path`; None where it is none, or that of another attempt."""
    try:
        record = _typed(read_object(content, surrogates=True))
    except ValueError:
        return None
    is_its_own = record is not None and (record["sweep"], record["attempt_id"]) == (
        sweep_of_path(path),
        attempt_of_path(path),
    )
    return record if is_its_own else None


def compacted_log(store: Store, snapshot: Snapshot, attempt_id: str) -> bytes | None:
    """Return what an attempt printed, if a compaction holds it."""
    for manifest in snapshot.manifests:
        if attempt_id in manifest.logs:
            for file in manifest.files.get("attempts", ()):
                table = read_parquet(store.read(file.path)).select(["attempt_id", "log"])
                for row in table.to_pylist():
                    if row["attempt_id"] == attempt_id and row["log"] is not None:
                        return bytes(row["log"])
    return None


def _compacted_records(
    store: Store, snapshot: Snapshot, skip: set[str], ignored: Callable[[str], object]
) -> Iterator[Record]:
    for manifest in snapshot.manifests:
        for file in manifest.files.get("attempts", ()):
            try:
                table = completed_attempts(read_parquet(store.read(file.path))).select(ATTEMPTS.names)
            except (pa.ArrowException, OSError, KeyError):
                continue
            wanted = [attempt not in skip for attempt in table["attempt_id"].to_pylist()]
            for fields in _rows(table, wanted):
                record = _typed(fields)
                if record is None:
                    ignored(file.path)
                else:
                    yield record


def _rows(table: pa.Table, wanted: Sequence[bool]) -> Iterator[dict[str, Any]]:
    """Yield some of a table's rows; by slices, since Arrow imports pandas to be told which rows."""
    start = 0
    for is_wanted, run in itertools.groupby(wanted):
        length = sum(1 for _ in run)
        if is_wanted:
            yield from table.slice(start, length).to_pylist()
        start += length


def _typed(fields: object) -> Record | None:
    """Return a record with every value of its type; None where one is wrong that it cannot do without."""
    if not isinstance(fields, Mapping):
        return None
    record: Record = {name: read(fields.get(name)) for name, read in _READERS.items()}
    if any(record[name] is None for name in ("attempt_id", "sweep", "trial_ids", "state", "started_at")):
        return None
    if not is_identity(record["attempt_id"]) or not is_identity(record["sweep"]):
        return None
    return record


def _text(value: object) -> str | None:
    # half of a surrogate pair is legal in JSON and can be written nowhere
    return value.encode(errors="replace").decode() if isinstance(value, str) else None


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number of 400 digits
        return None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _ids(value: object) -> list[str] | None:
    values = [] if value is None else value
    return values if isinstance(values, list) and all(isinstance(each, str) for each in values) else None


def _member(value: object, known: Mapping[str, Any]) -> Any:
    return known.get(value) if isinstance(value, str) else None


_STATES: dict[str, AttemptState] = {state.value: state for state in AttemptState}
_KINDS: dict[str, FailureKind] = {kind.value: kind for kind in FailureKind}
_OF_TYPE: dict[Any, Callable[[object], Any]] = {pa.string(): _text, pa.float64(): _number, pa.int64(): _count}
_READERS: dict[str, Callable[[object], Any]] = {
    **{field.name: _OF_TYPE.get(field.type, _ids) for field in ATTEMPTS},
    "checkpoints": _count,
    "code_hash": _text,
    "progress_at": _number,
    "state": lambda value: _member(value, _STATES),
    "error_kind": lambda value: _member(value, _KINDS),
}
"""Of each value of a record, what it becomes."""
