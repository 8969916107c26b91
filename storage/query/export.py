"""A query's rows as text or bytes for other programs: CSV, JSON, Parquet."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from datetime import date, datetime
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

BATCH_ROWS = 10_000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FORMULA = re.compile(r"[=+\-@\t\n\uff1d\uff0b\uff0d\uff20]")
"""Begins a formula, also in full width as East Asian keyboards write it."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf")


def write_csv(relation: duckdb.DuckDBPyRelation, stream: IO[str]) -> None:
    """Write rows as CSV with a header; null is an empty field, lists are JSON, and no text is a formula (`_csv_text`)."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([_csv_text(name) for name in relation.columns])
    for row in _rows(relation):
        writer.writerow([_csv_value(value) for value in row])


def write_json(relation: duckdb.DuckDBPyRelation, stream: IO[str]) -> None:
    """Write rows as a JSON list of objects; numbers that JSON has no word for are null."""
    stream.write("[")
    separator = "\n"
    for row in _rows(relation):
        fields = {name: _json_value(value) for name, value in zip(relation.columns, row, strict=True)}
        stream.write(separator + " " + json.dumps(fields, allow_nan=False))
        separator = ",\n"
    stream.write("\n]\n")


def write_parquet(relation: duckdb.DuckDBPyRelation, stream: IO[bytes]) -> None:
    """Write rows as Parquet, batch after batch."""
    import pyarrow.parquet as pq

    reader = relation.to_arrow_reader(BATCH_ROWS)
    with pq.ParquetWriter(stream, reader.schema, compression="zstd", write_page_checksum=True) as writer:
        for batch in reader:
            writer.write_batch(batch)


def _rows(relation: duckdb.DuckDBPyRelation) -> Iterator[tuple[Any, ...]]:
    for batch in relation.to_arrow_reader(BATCH_ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _csv_value(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(_json_value(value))
    if isinstance(value, str):
        return _csv_text(value)
    return value.isoformat() if isinstance(value, date) else value


def _csv_text(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula and no terminal for a command; one that is a number stays.

    As OWASP advises for CSV injection: an apostrophe before what begins a formula. Control characters are written out.
    """
    text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    return value.isoformat() if isinstance(value, date | datetime) else value
