"""The attempts' records: one small file per attempt, or many records in one file after a compaction.

A record is only a hint: unreadable records are skipped, and a value of the wrong type counts as unknown.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from depthrate.storage.attempts.clocks import MAX_SKEW_S, is_time
from depthrate.storage.attempts.heartbeats import Heartbeat, NodeHeartbeats, with_heartbeat
from depthrate.storage.commits.manifest import Manifest
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.parquet import read_parquet
from depthrate.storage.files.paths import attempt_of_path, attempt_path, is_identity, sweep_of_path
from depthrate.storage.files.protocol import Stamp
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import ATTEMPTS, as_attempts
from depthrate.storage.tables.states import AttemptState, FailureKind

Record = dict[str, Any]
"""The columns of `storage.tables.schema.ATTEMPTS`, `code_hash`, `progress_at`, `beat_s` (seconds between heartbeats),
`packs_s` (seconds that its packs ran) and `step_s` (seconds per step). Every value has its column's type or is None, but
attempt_id, sweep, trial_ids, state (an `AttemptState`) and started_at are never None. error_kind is a `FailureKind`."""


def read_records(
    store: Store,
    snapshot: Snapshot,
    skip: Iterable[str] = (),
    on_invalid: Callable[[str], object] = lambda path: None,
    reader: RecordReader | None = None,
    *,
    sweep: str | None = None,
) -> list[Record]:
    """Read the attempts' records, of all sweeps or of one, except those of the attempts in `skip`.

    Args:
        on_invalid: Function called with the path of each unreadable record.
        reader: Cache of the records read.
    """
    skip = set(skip)
    manifests = [manifest for manifest in snapshot.manifests if sweep in (None, manifest.sweep)]
    compacted = _compacted_records(store, manifests, lambda attempt_id: attempt_id not in skip, on_invalid)
    records = {record["attempt_id"]: record for record in compacted}
    paths = [path for path in snapshot.attempts if sweep in (None, sweep_of_path(path))]
    loose = {path for path in paths if attempt_of_path(path) not in skip}
    if reader is None:
        read = dict(read_loose_records(store, sorted(loose), on_invalid))
    else:
        read = reader.refresh(loose.__contains__, on_invalid)
    return list((records | {record["attempt_id"]: record for record in read.values()}).values())


def records_of_attempts(store: Store, snapshot: Snapshot, attempt_ids: Collection[str]) -> dict[str, Record]:
    """Return attempt -> record for the readable records of these attempts."""
    wanted = set(attempt_ids)
    paths = sorted(path for path in snapshot.attempts if attempt_of_path(path) in wanted)
    records = {record["attempt_id"]: record for _, record in read_loose_records(store, paths)}
    remaining = wanted - records.keys()
    if remaining:
        compacted = _compacted_records(store, snapshot.manifests, remaining.__contains__, lambda path: None)
        records |= {record["attempt_id"]: record for record in compacted}
    return records


def read_loose_records(
    store: Store, paths: Iterable[str], on_invalid: Callable[[str], object] = lambda path: None
) -> Iterator[tuple[str, Record]]:
    """Yield (path, record) of the records in these files."""
    beats: Mapping[str, Heartbeat] | None = None
    for path, content in store.read_many(list(paths)):
        if isinstance(content, OSError):
            continue
        record = parse_record(content, path)
        if record is None:
            on_invalid(path)
            continue
        if record["state"] is AttemptState.RUNNING and beats is None:
            beats = NodeHeartbeats(store).poll()
        yield path, with_latest_heartbeat(store, path, record, beats or {})


def with_latest_heartbeat(store: Store, path: str, record: Record, beats: Mapping[str, Heartbeat]) -> Record:
    """Return the record at `path`, updated with its node's last heartbeat. The heartbeat's time is by the local clock.

    If the heartbeat's time is far from the local clock, the time at which the store received the record is used, since the
    record is written with every heartbeat.
    """
    updated, heartbeat_at = with_heartbeat(record, beats), record["heartbeat_at"]
    if updated is not record or record["state"] is not AttemptState.RUNNING or heartbeat_at is None:
        return updated
    if abs(time.time() - heartbeat_at) <= MAX_SKEW_S:
        return record
    received = store.modified(path)
    at = min(heartbeat_at, record["started_at"]) if received is None else received + store.clock_ahead_s
    return record | {"heartbeat_at": at}


class RecordReader:
    """Reader of the records in a folder that are not compacted. Unchanged files are not read again."""

    def __init__(self, store: Store, sweep: str | None = None, *, beats: bool = True):
        """Read the records of one sweep or of all. Without `beats`, a running attempt's record describes only its start."""
        self._store, self._folder = store, "attempts" if sweep is None else attempt_path.folder(sweep)
        self._beats = NodeHeartbeats(store, sweep) if beats else None
        self._cached: dict[str, tuple[Stamp, Record | None]] = {}
        self._reuses_listing = False
        self._stamps: dict[str, Stamp] | None = None
        self._latest_beats: Mapping[str, Heartbeat] | None = None
        """The listing and the heartbeats of `one_listing`."""

    @contextmanager
    def one_listing(self) -> Iterator[None]:
        """List the folder and the heartbeats at most once while the context is active."""
        self._reuses_listing, self._stamps, self._latest_beats = True, None, None
        try:
            yield
        finally:
            self._reuses_listing, self._stamps, self._latest_beats = False, None, None

    def refresh(
        self, wanted: Callable[[str], bool], on_invalid: Callable[[str], object] = lambda path: None
    ) -> dict[str, Record]:
        """Return path -> record of the wanted records.

        Args:
            wanted: Predicate on paths.
            on_invalid: Function called with the path of each unreadable record.
        """
        if self._stamps is None or not self._reuses_listing:
            listed = self._store.stamps(self._folder)
            self._stamps = {path: stamp for path, stamp in listed.items() if path.endswith(".json")}
        stamps = self._stamps
        selected = {path: stamp for path, stamp in stamps.items() if wanted(path)}
        self._cached = {path: entry for path, entry in self._cached.items() if entry[0] == stamps.get(path)}
        new = [path for path in selected if path not in self._cached]
        for path, content in self._store.read_many(new):
            if not isinstance(content, OSError):
                self._cached[path] = selected[path], parse_record(content, path)
        results = {path: self._cached[path][1] for path in selected if path in self._cached}
        records = {path: record for path, record in results.items() if record is not None}
        for path in results.keys() - records.keys():
            on_invalid(path)
        if self._beats is None:
            return records
        is_any_running = any(record["state"] is AttemptState.RUNNING for record in records.values())
        if is_any_running and (self._latest_beats is None or not self._reuses_listing):
            self._latest_beats = self._beats.poll()
        beats = self._latest_beats if is_any_running and self._latest_beats is not None else {}
        for path in records.keys() & set(new):  # only once, since reading a file's modification time costs a request
            records[path] = with_latest_heartbeat(self._store, path, records[path], beats)
            self._cached[path] = selected[path], records[path]
        return {path: with_heartbeat(record, beats) for path, record in records.items()}


def parse_record(content: bytes, path: str) -> Record | None:
    """Parse the record in the file at `path`. Return None if it is invalid, or belongs to another attempt."""
    try:
        fields = read_object(content, surrogates=True)
    except ValueError:
        return None
    record = _typed(fields)
    if record is None or (record["sweep"], record["attempt_id"]) != (sweep_of_path(path), attempt_of_path(path)):
        return None
    return record | {"is_newer": not fields.keys() <= _READERS.keys()}


def compacted_log(store: Store, snapshot: Snapshot, attempt_id: str) -> bytes | None:
    """Return an attempt's output if it is compacted, else None."""
    for manifest in snapshot.manifests:
        if attempt_id in manifest.logs:
            for file in manifest.files.get("attempts", ()):
                try:
                    table = read_parquet(file.read(store)).select(["attempt_id", "log"])
                except (pa.ArrowException, OSError, KeyError):
                    continue  # verify reports it
                for row in table.to_pylist():
                    if row["attempt_id"] == attempt_id and row["log"] is not None:
                        return bytes(row["log"])
    return None


def _compacted_records(
    store: Store, manifests: Iterable[Manifest], wanted: Callable[[str], bool], on_invalid: Callable[[str], object]
) -> Iterator[Record]:
    for manifest in manifests:
        for file in manifest.files.get("attempts", ()):
            try:
                table = as_attempts(read_parquet(file.read(store))).select(ATTEMPTS.names)
            except (pa.ArrowException, OSError, KeyError):
                continue
            is_wanted = [wanted(attempt_id) for attempt_id in table["attempt_id"].to_pylist()]
            for fields in _rows(table, is_wanted):
                record = _typed(fields)
                if record is None:
                    on_invalid(file.path)
                else:
                    yield record


def _rows(table: pa.Table, wanted: Sequence[bool]) -> Iterator[dict[str, Any]]:
    """Yield some of a table's rows from slices, since selecting rows in Arrow imports pandas."""
    start = 0
    for is_wanted, run in itertools.groupby(wanted):
        length = sum(1 for _ in run)
        if is_wanted:
            yield from table.slice(start, length).to_pylist()
        start += length


def _typed(fields: Mapping[str, Any]) -> Record | None:
    """Return a record in which every value has its column's type, or None if a required value is invalid."""
    record: Record = {name: read(fields.get(name)) for name, read in _READERS.items()}
    is_complete = all(record[name] is not None for name in ("trial_ids", "state", "started_at"))
    return record if is_complete and is_identity(record["attempt_id"]) and is_identity(record["sweep"]) else None


def _text(value: object) -> str | None:
    # half of a surrogate pair is legal in JSON but cannot be encoded
    return value.encode(errors="replace").decode() if isinstance(value, str) else None


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an int of 400 digits
        return None


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
    **dict.fromkeys(
        ("started_at", "heartbeat_at", "ended_at", "progress_at"),
        lambda value: float(value) if is_time(value) else None,
    ),
    "beat_s": _number,
    "packs_s": _number,
    "step_s": _number,
    "needs_bytes": _count,
    "state": lambda value: _member(value, _STATES),
    "error_kind": lambda value: _member(value, _KINDS),
}
"""Field of a record -> function that converts its value."""
