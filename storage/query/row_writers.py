"""Write a query's rows as CSV, JSON or Parquet for other programs."""

import csv
import json
import math
import re
from collections.abc import Iterator, Set
from datetime import date
from decimal import Decimal
from typing import IO, Any

import duckdb
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType

from depthrate.storage.files.controls import CONTROLS
from depthrate.storage.query.sql_checks import QueryError
from depthrate.storage.tables.custom_columns import quoted

BATCH_ROWS = 10_000
_NESTED = frozenset({"list", "array", "struct", "map", "union", "tuple"})
_FOREIGN_TO_PARQUET = frozenset({"interval", "union", "variant", "uhugeint"})
_FOREIGN_TO_TEXT = _FOREIGN_TO_PARQUET.union(
    ("blob", "bit", "bignum", "geometry", "time", "time with time zone", "time_ns", "timestamp_ns")
)
"""DuckDB types that a format does not support. They are replaced by DuckDB's strings."""
_FORMULA = re.compile(r"[=+\-@\t\n\uff1d\uff0b\uff0d\uff20]")
"""Pattern of the start of a formula, including the full-width characters of East Asian keyboards."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf")


def write_csv(relation: duckdb.DuckDBPyRelation, stream: IO[str]) -> None:
    """Write rows as CSV with a header.

    null is an empty field, lists are JSON, and no field is a formula (`_csv_text`).
    """
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([_csv_text(name) for name in relation.columns])
    for row in _rows(_without(relation, _FOREIGN_TO_TEXT)):
        writer.writerow([_csv_value(value) for value in row])


def write_json(relation: duckdb.DuckDBPyRelation, stream: IO[str]) -> None:
    """Write rows as a JSON list of objects. Numbers that JSON does not support become null."""
    stream.write("[")
    separator = "\n"
    for row in _rows(_without(relation, _FOREIGN_TO_TEXT)):
        fields = {name: _json_value(value) for name, value in zip(relation.columns, row, strict=True)}
        stream.write(separator + " " + json.dumps(fields, allow_nan=False))
        separator = ",\n"
    stream.write("\n]\n")


def write_parquet(relation: duckdb.DuckDBPyRelation, stream: IO[bytes]) -> None:
    """Write rows as Parquet, batch by batch.

    Raises:
        QueryError: A column has a type that Parquet does not support.
    """
    import pyarrow.parquet as pq

    reader = _without(relation, _FOREIGN_TO_PARQUET).to_arrow_reader(BATCH_ROWS)
    try:
        with pq.ParquetWriter(stream, reader.schema, compression="zstd", write_page_checksum=True) as writer:
            for batch in reader:
                writer.write_batch(batch)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise QueryError(
            f"Parquet does not support a column's type ({error}). Cast the column, as in x::varchar."
        ) from None


def _without(relation: duckdb.DuckDBPyRelation, types: Set[str]) -> duckdb.DuckDBPyRelation:
    """Return the same rows with DuckDB's strings in the columns that contain one of these types."""
    is_foreign = [bool(types & _types_in(kind)) for kind in relation.types]
    if not any(is_foreign):
        return relation
    columns = (
        f"#{number}::varchar as {quoted(name)}" if foreign else f"#{number}"
        for number, (name, foreign) in enumerate(zip(relation.columns, is_foreign, strict=True), start=1)
    )
    return relation.project(", ".join(columns))


def _types_in(kind: DuckDBPyType) -> Set[str]:
    """Return the names of a type and of the types nested in it."""
    children = [child for _, child in kind.children] if kind.id in _NESTED else []
    return {kind.id}.union(*(_types_in(child) for child in children if isinstance(child, DuckDBPyType)))


def _rows(relation: duckdb.DuckDBPyRelation) -> Iterator[tuple[Any, ...]]:
    try:
        for batch in relation.to_arrow_reader(BATCH_ROWS):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
    except OverflowError as error:
        raise QueryError(f"a date is outside the years 1 to 9999 ({error}). Cast it, as in x::varchar.") from None


def _csv_value(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(_json_value(value))
    if isinstance(value, str):
        return _csv_text(value)
    return value.isoformat() if isinstance(value, date) else value


def _csv_text(text: str) -> str:
    """Return a string that no spreadsheet takes for a formula and no terminal for a command. Numbers are unchanged.

    Following OWASP's advice on CSV injection, an apostrophe precedes the start of a formula. Control characters are
    escaped.
    """
    text = text.translate(CONTROLS)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value.isoformat() if isinstance(value, date) else value
