"""The attempts' records: one small file an attempt, or many in one where a compaction has put them together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from depthrate.storage.clocks import heartbeat_of
from depthrate.storage.json_file import read_object
from depthrate.storage.layout import attempt_of_path, is_identity, sweep_of_path
from depthrate.storage.parquet import read_parquet
from depthrate.storage.schema import ATTEMPTS
from depthrate.storage.snapshot import Snapshot
from depthrate.storage.store import Store

Record = dict[str, Any]
"""attempt_id, sweep, trial_ids, state, started_at, heartbeat_at, ... (`storage.schema.ATTEMPTS`)."""


def read_records(store: Store, snapshot: Snapshot, skip: Iterable[str] = ()) -> list[Record]:
    """Return the attempts' records, without those of the attempts in `skip`.

    A record that cannot be read or is not ours is left out: it is a hint, never the truth.
    """
    skip = set(skip)
    records = {str(record["attempt_id"]): record for record in _compacted_records(store, snapshot, skip)}
    loose = [path for path in snapshot.attempts if attempt_of_path(path) not in skip]
    records |= {str(record["attempt_id"]): record for _, record in read_loose_records(store, loose)}
    return list(records.values())


def read_loose_records(store: Store, paths: Iterable[str]) -> Iterator[tuple[str, Record]]:
    """Yield (path, record) of the records that stand in these files."""
    for path, content in store.read_many(list(paths)):
        try:
            if isinstance(content, OSError):
                continue
            record = read_object(content)
        except ValueError:
            continue
        if {"attempt_id", "sweep", "trial_ids", "state", "started_at"} <= record.keys():
            if (record["sweep"], record["attempt_id"]) == (sweep_of_path(path), attempt_of_path(path)):
                yield path, record | {"heartbeat_at": heartbeat_of(store, path, record)}


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


def _compacted_records(store: Store, snapshot: Snapshot, skip: set[str]) -> Iterator[Record]:
    for manifest in snapshot.manifests:
        for file in manifest.files.get("attempts", ()):
            try:
                table = read_parquet(store.read(file.path)).select(ATTEMPTS.names)
            except (pa.ArrowException, OSError, KeyError):
                continue
            rows = [
                row
                for row, attempt in enumerate(table["attempt_id"].to_pylist())
                if is_identity(attempt) and attempt not in skip
            ]
            yield from table.take(pa.array(rows, pa.int64())).to_pylist()
