"""Make a pack's trials visible, once: data first, the `trials` file last.

The trials file is the commit. In its metadata it names the data files written before it, with their sizes, so that a
reader knows from one listing whether a committed trial is whole.
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
SUSPENDED_S = 60.0
"""A commit that takes longer looks whether its files are still there before it is made, too."""


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
    """Write the trials' rows, then commit them; `features` are those that are not among the tables.

    Killed or failed at any point before its last write, it leaves nothing that a reader sees.

    Raises:
        OSError: the store refused a write (a full disk, say), or the answer to it was lost: then it may be visible all the
            same, and trying again takes a new `part`.
        TableError: a column has different types in these trials, or another one in this store.
    """
    began, commit_path = time.time(), table_path("trials", sweep, attempt_id, part)
    if part is not None and store.size(commit_path) is not None:  # without parts an attempt commits but once
        raise FileExistsError(f"{commit_path} is committed already; a commit is never written over")
    joined = {name: join_rows(name, parts) for name in DATA_TABLES if (parts := _with_rows(tables.get(name, ())))}
    own = {name: columns.not_standard(name, table.schema) for name, table in joined.items()}
    for name in joined:
        claim_columns(store, name, own[name])
    written = {
        name: write_table(store, table_path(name, sweep, attempt_id, part), name, table, own=own[name])
        for name, table in joined.items()
    }
    if features is not None and features.num_rows:
        written["features"] = features.write(store, table_path("features", sweep, attempt_id, part))
    metadata = {
        "schema_version": SCHEMA_VERSION,
        "files": {name: file.to_json() for name, file in written.items()},
    }
    # stamped when the data are there: readers decide by it which of several commits came first
    stamped = [{"committed_at": datetime.now(UTC), **row} for row in trials]
    schema = TRIALS.with_metadata({METADATA_KEY: json.dumps(metadata).encode()})
    if time.time() - began > SUSPENDED_S:
        _check_still_there(store, written.values())
    write_table(store, commit_path, "trials", pa.Table.from_pylist(stamped, schema=schema))
    try:
        if store.is_local or time.time() - began > SUSPENDED_S:  # elsewhere each look is a request
            _check_still_there(store, written.values())
    except FileNotFoundError:
        store.delete_many(
            [commit_path]
        )  # a repair looks once more after it moved a file: one of the two sees the other
        raise


def _check_still_there(store: Store, written: Iterable[DataFile]) -> None:
    """Check that nobody took this attempt for a dead one, and moved aside what it had written.

    Raises:
        FileNotFoundError: somebody did.
    """
    for file in written:
        if store.size(file.path) != file.size:
            raise FileNotFoundError(
                f"{file.path} vanished before it was committed: this process stood still too long, or a clock is wrong"
            )


def read_commit(
    content: bytes, columns: Sequence[str] = TRIALS.names, *, newer: bool = False
) -> tuple[pa.Table, dict[str, DataFile]]:
    """Return (trials, table -> data file) of a trials file, with some columns of the trials or all.

    With `newer` columns that this version does not know come with them.

    Raises:
        NewerFile: only newer versions can read it.
        pa.ArrowException, OSError: it is no Parquet, or damaged.
        ValueError, KeyError, TypeError: it is Parquet, but no commit.
    """
    with open_parquet(content) as parquet:
        metadata = parquet.metadata.metadata or {}
        raw = metadata.get(METADATA_KEY)
        if raw is None or not set(TRIALS.names) - OPTIONAL_TRIALS_COLUMNS <= set(parquet.schema_arrow.names):
            raise ForeignFile("is Parquet, but not written by depthrate")
        said = read_object(raw)
        if (version := said.get("schema_version", SCHEMA_VERSION)) > SCHEMA_VERSION:
            raise NewerFile(
                f"was written by a newer version of depthrate (schema {version}, this one knows {SCHEMA_VERSION})"
            )
        sound = pages_are_intact(content, metadata)
        if sound is False:
            raise ValueError("its checksum differs")
        # where the file does not vouch for all of its pages, all are read, because then each is checked
        chosen = None if newer else list(columns if sound else TRIALS.names)
        table = parquet.read(columns=chosen, use_threads=False)
    data = {name: DataFile.from_fields(entry) for name, entry in said["files"].items() if name in DATA_TABLES}
    return as_trials(table, columns, newer=newer), data


class ForeignFile(ValueError):
    """A file that depthrate did not write."""


class NewerFile(ValueError):
    """A file that this version of depthrate is too old for: nothing is wrong with it."""


def join_rows(name: str, parts: Sequence[pa.Table]) -> pa.Table:
    """Return several tables' rows as one table, without the own columns that are null in all of them.

    Raises:
        TableError: a column has different types.
    """
    try:
        alike = all(part.schema.equals(parts[0].schema) for part in parts)
        table = pa.concat_tables(parts, promote_options="none" if alike else "default")
    except pa.ArrowTypeError as error:
        raise TableError(f"table {name!r}: a column has different types in different trials: {error}") from None
    empty = [field.name for field in table.schema if pa.types.is_null(field.type)]
    return table.drop_columns(empty) if empty else table


def _with_rows(parts: Sequence[pa.Table]) -> list[pa.Table]:
    return [table for table in parts if table.num_rows]
