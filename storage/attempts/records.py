"""The attempts' records: one small file an attempt, or many in one where a compaction has put them together.

A record is a hint, never the truth: one that cannot be read is left out, and a detail of a wrong type counts as unknown.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from depthrate.storage.attempts.clocks import is_time, last_heartbeat_at
from depthrate.storage.attempts.heartbeats import Heartbeat, NodeHeartbeats, with_heartbeat
from depthrate.storage.commits.manifest import Manifest
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.parquet import read_parquet
from depthrate.storage.files.paths import attempt_of_path, attempts_folder, is_identity, sweep_of_path
from depthrate.storage.files.protocol import Stamp
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import ATTEMPTS, as_attempts
from depthrate.storage.tables.states import AttemptState, FailureKind

Record = dict[str, Any]
"""The columns of `storage.tables.schema.ATTEMPTS`, `code_hash`, `progress_at`, `beat_s` (seconds between its signs of life) and
`packs_s` (seconds that its packs ran), each of its type or None. Never None are attempt_id, sweep, trial_ids, state (an
`AttemptState`), started_at; error_kind is a `FailureKind`."""


def read_records(
    store: Store,
    snapshot: Snapshot,
    skip: Iterable[str] = (),
    ignored: Callable[[str], object] = lambda path: None,
    reader: RecordReader | None = None,
) -> list[Record]:
    """Return the attempts' records, without those of the attempts in `skip`.

    `ignored` is told the path of each record that is left out because it cannot be read; `reader` keeps what it read.
    """
    skip = set(skip)
    compacted = _compacted_records(store, snapshot.manifests, lambda attempt_id: attempt_id not in skip, ignored)
    records = {record["attempt_id"]: record for record in compacted}
    loose = {path for path in snapshot.attempts if attempt_of_path(path) not in skip}
    if reader is None:
        records |= {record["attempt_id"]: record for _, record in read_loose_records(store, sorted(loose), ignored)}
    else:
        records |= {record["attempt_id"]: record for record in reader.refresh(loose.__contains__, ignored).values()}
    return list(records.values())


def read_records_of(store: Store, snapshot: Snapshot, sweep: str, reader: RecordReader | None = None) -> list[Record]:
    """Return the records of all attempts of one sweep; `reader` keeps what it read."""
    manifests = [manifest for manifest in snapshot.manifests if manifest.sweep == sweep]
    compacted = _compacted_records(store, manifests, lambda attempt_id: True, lambda path: None)
    loose = {path for path in snapshot.attempts if sweep_of_path(path) == sweep}
    records = {record["attempt_id"]: record for record in compacted}
    read = (reader or RecordReader(store)).refresh(loose.__contains__).values()
    return list((records | {record["attempt_id"]: record for record in read}).values())


def records_of_attempts(store: Store, snapshot: Snapshot, attempt_ids: Collection[str]) -> dict[str, Record]:
    """Return attempt -> record of those of these attempts that can be read."""
    wanted = set(attempt_ids)
    paths = sorted(path for path in snapshot.attempts if attempt_of_path(path) in wanted)
    found = {record["attempt_id"]: record for _, record in read_loose_records(store, paths)}
    left = wanted - found.keys()
    if left:
        compacted = _compacted_records(store, snapshot.manifests, left.__contains__, lambda path: None)
        found |= {record["attempt_id"]: record for record in compacted}
    return found


def read_loose_records(
    store: Store, paths: Iterable[str], ignored: Callable[[str], object] = lambda path: None
) -> Iterator[tuple[str, Record]]:
    """Yield (path, record) of the records that stand in these files."""
    beats: Mapping[str, Heartbeat] | None = None
    for path, content in store.read_many(list(paths)):
        if isinstance(content, OSError):
            continue
        record = parse_record(content, path)
        if record is None:
            ignored(path)
            continue
        if record["state"] is AttemptState.RUNNING and beats is None:
            beats = NodeHeartbeats(store).poll()
        yield path, with_latest_heartbeat(store, path, record, beats or {})


def with_latest_heartbeat(store: Store, path: str, record: Record, beats: Mapping[str, Heartbeat]) -> Record:
    """Return the record at `path` with what its node said since, and its last sign of life by our clock."""
    now = with_heartbeat(record, beats)
    return now if now is not record else record | {"heartbeat_at": last_heartbeat_at(store, path, record)}


class RecordReader:
    """The loose records of a folder as they are again and again: what has not changed is not read again."""

    def __init__(self, store: Store, sweep: str | None = None, *, beats: bool = True):
        """Read the records of a sweep, or of all; without `beats` they say of a running attempt only that it has begun."""
        self._store, self._folder = store, "attempts" if sweep is None else attempts_folder(sweep)
        self._beats = NodeHeartbeats(store, sweep) if beats else None
        self._known: dict[str, tuple[Stamp, Record | None]] = {}
        self._is_kept = False
        self._stamps: dict[str, Stamp] | None = None
        self._beaten: Mapping[str, Heartbeat] | None = None
        """The listing and the signs of life of `one_listing`."""

    @contextmanager
    def one_listing(self) -> Iterator[None]:
        """In here the folder and the signs of life are listed once, however often they are looked at."""
        self._is_kept, self._stamps, self._beaten = True, None, None
        try:
            yield
        finally:
            self._is_kept, self._stamps, self._beaten = False, None, None

    def refresh(
        self, wanted: Callable[[str], bool], ignored: Callable[[str], object] = lambda path: None
    ) -> dict[str, Record]:
        """Return path -> record of those that are wanted; `wanted` is asked with each path, `ignored` told those that are none.

        Raises:
            OSError: the store cannot be listed just now.
        """
        if self._stamps is None or not self._is_kept:
            listed = self._store.stamps(self._folder)
            self._stamps = {path: stamp for path, stamp in listed.items() if path.endswith(".json")}
        stamps = self._stamps
        chosen = {path: stamp for path, stamp in stamps.items() if wanted(path)}
        self._known = {path: known for path, known in self._known.items() if known[0] == stamps.get(path)}
        new = [path for path in chosen if path not in self._known]
        for path, content in self._store.read_many(new):
            if not isinstance(content, OSError):
                self._known[path] = chosen[path], parse_record(content, path)
        found = {path: self._known[path][1] for path in chosen if path in self._known}
        records = {path: record for path, record in found.items() if record is not None}
        for path in found.keys() - records.keys():
            ignored(path)
        if self._beats is None:
            return records
        is_any_running = any(record["state"] is AttemptState.RUNNING for record in records.values())
        if is_any_running and (self._beaten is None or not self._is_kept):
            self._beaten = self._beats.poll()
        beats = self._beaten if is_any_running and self._beaten is not None else {}
        for path in records.keys() & set(new):  # once: what the store says of a file costs a request
            records[path] = with_latest_heartbeat(self._store, path, records[path], beats)
            self._known[path] = chosen[path], records[path]
        return {path: with_heartbeat(record, beats) for path, record in records.items()}


def parse_record(content: bytes, path: str) -> Record | None:
    """Return the record in a file at `path`; None where it is none, or that of another attempt."""
    try:
        fields = read_object(content, surrogates=True)
        record = _typed(fields)
    except ValueError:
        return None
    is_its_own = record is not None and (record["sweep"], record["attempt_id"]) == (
        sweep_of_path(path),
        attempt_of_path(path),
    )
    return record | {"is_newer": not fields.keys() <= _READERS.keys()} if record is not None and is_its_own else None


def compacted_log(store: Store, snapshot: Snapshot, attempt_id: str) -> bytes | None:
    """Return what an attempt printed, if a compaction holds it."""
    for manifest in snapshot.manifests:
        if attempt_id in manifest.logs:
            for file in manifest.files.get("attempts", ()):
                try:
                    table = read_parquet(file.read(store)).select(["attempt_id", "log"])
                except (pa.ArrowException, OSError, KeyError):
                    continue  # verify names it
                for row in table.to_pylist():
                    if row["attempt_id"] == attempt_id and row["log"] is not None:
                        return bytes(row["log"])
    return None


def _compacted_records(
    store: Store, manifests: Iterable[Manifest], wanted: Callable[[str], bool], ignored: Callable[[str], object]
) -> Iterator[Record]:
    for manifest in manifests:
        for file in manifest.files.get("attempts", ()):
            try:
                table = as_attempts(read_parquet(file.read(store))).select(ATTEMPTS.names)
            except (pa.ArrowException, OSError, KeyError):
                continue
            chosen = [wanted(attempt_id) for attempt_id in table["attempt_id"].to_pylist()]
            for fields in _rows(table, chosen):
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


def _time(value: object) -> float | None:
    return float(value) if is_time(value) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _ids(value: object) -> list[str] | None:
    values = [] if value is None else value
    return values if isinstance(values, list) and all(isinstance(value, str) for value in values) else None


def _member(value: object, known: Mapping[str, Any]) -> Any:
    return known.get(value) if isinstance(value, str) else None


_STATES: dict[str, AttemptState] = {state.value: state for state in AttemptState}
_KINDS: dict[str, FailureKind] = {kind.value: kind for kind in FailureKind}
_OF_TYPE: dict[Any, Callable[[object], Any]] = {pa.string(): _text, pa.float64(): _number, pa.int64(): _count}
_READERS: dict[str, Callable[[object], Any]] = {
    **{field.name: _OF_TYPE.get(field.type, _ids) for field in ATTEMPTS},
    "code_hash": _text,
    **dict.fromkeys(("started_at", "heartbeat_at", "ended_at", "progress_at"), _time),
    "beat_s": _number,
    "packs_s": _number,
    "needs_bytes": _count,
    "state": lambda value: _member(value, _STATES),
    "error_kind": lambda value: _member(value, _KINDS),
}
"""Of each value of a record, what it becomes."""
