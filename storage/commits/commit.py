"""Make a pack's trials visible, once: data first, the `trials` file last.

The trials file is the commit. Its metadata names the data files written before it, with their sizes, so that a reader
can tell from one listing whether a committed trial is complete.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.parquet import DataFile, open_parquet, pages_are_intact, write_table
from depthrate.storage.files.paths import DATA_TABLES, table_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.custom_columns import claim_columns
from depthrate.storage.tables.feature_file import FeatureFile
from depthrate.storage.tables.schema import (
    OPTIONAL_TRIALS_COLUMNS,
    SCHEMA_VERSION,
    TRIALS,
    Columns,
    TableError,
    as_trials,
)

METADATA_KEY = b"depthrate"
"""Footer key of a commit's metadata: schema version and data files."""
SUSPENDED_S = 60.0
"""Duration in seconds after which a commit also checks before its last write that its files still exist."""


def commit_trials(
    store: Store,
    *,
    sweep: str,
    attempt_id: str,
    part: int | None,
    trials: Sequence[Mapping[str, Any]],
    tables: Mapping[str, Sequence[pa.Table]],
    columns: Columns,
    features: FeatureFile | None = None,
) -> None:
    """Write the trials' rows, then commit them.

    If it is killed or fails at any point before its last write, nothing that it wrote is visible.

    Args:
        features: Features that are not in `tables`.

    Raises:
        OSError: The store refused a write (a full disk, for example), or the response to it was lost. Then the commit
            may be visible nevertheless, and a retry needs a new `part`.
        TableError: A column has different types in these trials, or another type in this store.
    """
    started_at, commit_path = time.time(), table_path("trials", sweep, attempt_id, part)
    if part is not None and store.size(commit_path) is not None:  # without parts an attempt commits but once
        raise FileExistsError(f"cannot commit {commit_path}: it exists, and commits are never overwritten.")
    joined = {name: join_rows(name, parts) for name in DATA_TABLES if (parts := _with_rows(tables.get(name, ())))}
    custom = {name: columns.not_standard(name, table.schema) for name, table in joined.items()}
    for name in joined:
        claim_columns(store, name, custom[name])
    written = {
        name: write_table(store, table_path(name, sweep, attempt_id, part), name, table, custom=custom[name])
        for name, table in joined.items()
    }
    if features is not None and features.num_rows:
        written["features"] = features.write(store, table_path("features", sweep, attempt_id, part))
    metadata = {
        "schema_version": SCHEMA_VERSION,
        "files": {name: file.to_json() for name, file in written.items()},
    }
    # stamped after the data are written: readers order the commits of a trial by it
    stamped = [{"committed_at": datetime.now(UTC), **row} for row in trials]
    schema = TRIALS.with_metadata({METADATA_KEY: json.dumps(metadata).encode()})
    if time.time() - started_at > SUSPENDED_S:
        _check_files_exist(store, written.values())
    write_table(store, commit_path, "trials", pa.Table.from_pylist(stamped, schema=schema))
    try:
        if not store.uses_requests or time.time() - started_at > SUSPENDED_S:
            _check_files_exist(store, written.values())
    except FileNotFoundError:
        # a repair checks for a commit after it moved a file: one of the two sees the other
        store.delete_many([commit_path])
        raise


def _check_files_exist(store: Store, written: Iterable[DataFile]) -> None:
    """Check that this attempt's files were not moved aside because it seemed lost.

    Raises:
        FileNotFoundError: A file was.
    """
    for file in written:
        if store.size(file.path) != file.size:
            raise FileNotFoundError(
                f"{file.path} vanished before its commit: this process was suspended too long, or a clock is wrong."
            )


def read_commit(
    content: bytes, columns: Sequence[str] = TRIALS.names, *, newer: bool = False
) -> tuple[pa.Table, dict[str, DataFile]]:
    """Return (trials, table -> data file) of a trials file.

    Args:
        columns: Columns of the trials to read.
        newer: Whether to include columns that this version does not know.

    Raises:
        NewerFile: Only newer versions can read it.
        pa.ArrowException, OSError: It is not Parquet, or corrupt.
        ValueError, KeyError, TypeError: It is Parquet, but not a commit.
    """
    with open_parquet(content) as parquet:
        metadata = parquet.metadata.metadata or {}
        raw = metadata.get(METADATA_KEY)
        if raw is None or not set(TRIALS.names) - OPTIONAL_TRIALS_COLUMNS <= set(parquet.schema_arrow.names):
            raise ForeignFile("is Parquet, but was not written by depthrate")
        fields = read_object(raw)
        if (version := fields.get("schema_version", SCHEMA_VERSION)) > SCHEMA_VERSION:
            raise NewerFile(
                f"was written by a newer version of depthrate (schema {version}, this one supports {SCHEMA_VERSION})"
            )
        is_intact = pages_are_intact(content, metadata)
        if is_intact is False:
            raise ValueError("its checksum differs")
        # without checksums of all pages in the footer, read every page, because reading checks it
        selected = None if newer else list(columns if is_intact else TRIALS.names)
        table = parquet.read(columns=selected, use_threads=False)
    data = {name: DataFile.from_fields(entry) for name, entry in fields["files"].items() if name in DATA_TABLES}
    return as_trials(table, columns, newer=newer), data


class ForeignFile(ValueError):
    """A file that depthrate did not write."""


class NewerFile(ValueError):
    """A file for which this version of depthrate is too old. The file is intact."""


def join_rows(name: str, parts: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables, without the custom columns that are null in all of them.

    Raises:
        TableError: A column has different types.
    """
    try:
        same_schema = all(part.schema.equals(parts[0].schema) for part in parts)
        table = pa.concat_tables(parts, promote_options="none" if same_schema else "default")
    except pa.ArrowTypeError as error:
        raise TableError(f"table {name!r}: a column has different types in different trials: {error}") from None
    empty = [field.name for field in table.schema if pa.types.is_null(field.type)]
    return table.drop_columns(empty) if empty else table


def _with_rows(parts: Sequence[pa.Table]) -> list[pa.Table]:
    return [table for table in parts if table.num_rows]
