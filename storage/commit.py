"""Make a pack's trials visible, once: data first, the `trials` file last.

The trials file is the commit. In its metadata it names the data files written before it, with their sizes, so that a
reader knows from one listing whether a committed trial is whole.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.files import Files
from storage.layout import DATA_TABLES, table_path
from storage.schema import SCHEMA_VERSION, STANDARD, TRIALS, TableError

METADATA_KEY = b"depthrate"


def commit_trials(
    files: Files,
    *,
    sweep: str,
    attempt_id: str,
    part: int | None,
    trials: Sequence[Mapping[str, Any]],
    tables: Mapping[str, Sequence[pa.Table]],
) -> None:
    """Write the trials' rows, then commit them.

    Killed or failed at any point before its last write, it leaves nothing that a reader sees.

    Raises:
        OSError: the store refused a write (a full disk, say); nothing became visible.
    """
    written = {}
    for name in DATA_TABLES:
        parts = [table for table in tables.get(name, ()) if table.num_rows]
        if not parts:
            continue
        table = _joined(name, parts)
        content = _feature_bytes(table) if name == "features" else _table_bytes(table)
        path = table_path(name, sweep, attempt_id, part)
        files.write(path, content, durable=True)
        own = {field.name: str(field.type) for field in table.schema if field.name not in STANDARD[name].names}
        digest = hashlib.sha256(content).hexdigest()
        written[name] = {
            "path": path,
            "bytes": len(content),
            "sha256": digest,
            "rows": table.num_rows,
            "own_columns": own,
        }
    metadata = {METADATA_KEY: json.dumps({"schema_version": SCHEMA_VERSION, "files": written}).encode()}
    # stamped when the data are there: readers decide by it which of several commits came first
    stamped = [{"committed_at": datetime.now(UTC), **row} for row in trials]
    rows = pa.Table.from_pylist(stamped, schema=TRIALS.with_metadata(metadata))
    files.write(table_path("trials", sweep, attempt_id, part), _table_bytes(rows), durable=True)


def _joined(name: str, parts: Sequence[pa.Table]) -> pa.Table:
    """Return the trials' rows as one table; a task's own column that is null in all of them is a number."""
    try:
        table = pa.concat_tables(parts, promote_options="default")
    except pa.ArrowTypeError as error:
        raise TableError(f"table {name!r}: a column has different types in different trials: {error}") from None
    for index, field in enumerate(table.schema):
        if pa.types.is_null(field.type):
            table = table.set_column(index, field.name, pa.nulls(table.num_rows, pa.float64()))
    return table


def _table_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", compression_level=1, write_page_checksum=True)
    return sink.getvalue()


def _feature_bytes(table: pa.Table) -> bytes:
    """Lay features out so that one layer can be read alone: a row group a layer, byte streams split."""
    sink = io.BytesIO()
    others = [name for name in table.column_names if name != "feature"]
    leaf = "feature.list.element"
    width = table.schema.field("feature").type
    split = [leaf] if width.value_type == pa.float32() else []
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=others,
        use_byte_stream_split=split,
        write_page_checksum=True,
    ) as writer:
        for start, stop in _runs(table):
            writer.write_table(table.slice(start, stop - start))
    return sink.getvalue()


def _runs(table: pa.Table) -> list[tuple[int, int]]:
    """Return the row ranges over which trial and layer stay the same."""
    keys = list(zip(table["trial_id"].to_pylist(), table["layer"].to_pylist(), strict=True))
    starts = [row for row, key in enumerate(keys) if row == 0 or key != keys[row - 1]]
    return list(zip(starts, [*starts[1:], len(keys)], strict=True))
