"""Make a pack's trials visible, once: data first, the `trials` file last.

The trials file is the commit. Its metadata names the data files written before it, with their sizes, so that one listing shows
a reader whether a committed trial is complete.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from depthrate.storage.files.parquet import DataFile, write_table
from depthrate.storage.files.paths import DATA_TABLES, table_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.custom_columns import claim_columns
from depthrate.storage.tables.feature_file import FeatureFile
from depthrate.storage.tables.parameters import with_parameters
from depthrate.storage.tables.schema import SCHEMA_VERSION, TRIALS, Columns, TableError

METADATA_KEY = b"depthrate"
"""Footer key of a commit's metadata: schema version and data files."""
SUSPENDED_S = 60.0
"""Duration in seconds after which a commit checks, before its last write, that its files still exist."""


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

    If it fails or its process is killed before the last write, nothing that it wrote is visible.

    Args:
        trials: Values of the columns in `TRIALS`, with `params` as JSON. All trials have one task and version.
        features: Features that are not in `tables`.

    Raises:
        OSError: The store refused a write (a full disk, for example), or the response to it was lost. Then the commit
            may be visible nevertheless, and a retry needs a new `part`.
        TableError: A column has different types in these trials, or another type in this store.
    """
    started_at, commit_path = time.time(), table_path("trials", sweep, attempt_id, part)
    if part is not None and store.size(commit_path) is not None:  # without parts an attempt commits only once
        raise FileExistsError(f"cannot commit {commit_path}: it exists, and commits are never overwritten.")
    with_rows = {name: [part for part in tables.get(name, ()) if part.num_rows] for name in DATA_TABLES}
    joined = {name: join_rows(name, parts) for name, parts in with_rows.items() if parts}
    custom = {name: columns.not_standard(name, table.schema) for name, table in joined.items()}
    for name in joined:
        claim_columns(store, name, custom[name])
    written = {}
    for name, table in joined.items():
        path = table_path(name, sweep, attempt_id, part)
        written[name] = write_table(store, path, name, table, custom=custom[name])
    if features is not None and features.num_rows:
        written["features"] = features.write(store, table_path("features", sweep, attempt_id, part))
    metadata = {"schema_version": SCHEMA_VERSION, "files": {name: file.to_json() for name, file in written.items()}}
    # timestamp taken after the data are written: readers order the commits of a trial by it
    stamped = [{"committed_at": datetime.now(UTC), **row} for row in trials]
    rows = with_parameters(pa.Table.from_pylist(stamped, TRIALS), columns.parameters)
    rows = rows.replace_schema_metadata({METADATA_KEY: json.dumps(metadata).encode()})
    if time.time() - started_at > SUSPENDED_S:
        _check_files_exist(store, written.values())
    write_table(store, commit_path, "trials", rows, is_commit=True)
    try:
        if not store.uses_requests or time.time() - started_at > SUSPENDED_S:
            _check_files_exist(store, written.values())
    except FileNotFoundError:
        # a repair checks for a commit after moving a file, so one of the two sees the other
        store.delete_many([commit_path])
        raise


def _check_files_exist(store: Store, written: Iterable[DataFile]) -> None:
    """Check that this attempt's files were not moved aside because the attempt seemed lost."""
    for file in written:
        if store.size(file.path) != file.size:
            raise FileNotFoundError(
                f"{file.path} vanished before its commit: this process was suspended too long, or a clock is wrong."
            )


def join_rows(name: str, parts: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables, omitting the custom columns that are null in all of them.

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
