"""Detect and repair commits with a column whose type or case differs from the store's. Compactions leave such commits alone.

A repair gives the column another name, for example `note_text`: every row keeps its value, and every trial stays
visible.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from depthrate.storage.commits.source import VisibleCommit
from depthrate.storage.files.parquet import DataFile
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.findings import Finding
from depthrate.storage.tables.custom_columns import TYPE_WORDS, claim_columns, conflicting_column, custom_columns
from depthrate.storage.tables.schema import MEASURED_TABLES

Types = Mapping[str, Mapping[str, str]]
"""Table -> custom column -> its type."""


def read_column_types(store: Store) -> Types:
    """Return the types of all columns that tasks added to a store."""
    return {table: custom_columns(store, table) for table in MEASURED_TABLES}


def mistyped_columns(table: str, file: DataFile, types: Types) -> dict[str, str]:
    """Return the columns of a file whose type or case differs from the store's, with their types."""
    return {c: kind for c, kind in file.own_columns.items() if conflicting_column(types.get(table, {}), c, kind)}


def is_mistyped(source: VisibleCommit, types: Types) -> bool:
    """Return whether a commit or a compaction has a mistyped column."""
    return any(mistyped_columns(table, file, types) for table, files in source.files.items() for file in files)


def find_type_conflicts(source: VisibleCommit, types: Types) -> Iterator[Finding]:
    """Yield a finding for each mistyped column."""
    for table, files in source.files.items():
        for file in files:
            for column, kind in mistyped_columns(table, file, types).items():
                other = conflicting_column(types[table], column, kind) or column
                here, in_store = TYPE_WORDS.get(kind, kind), TYPE_WORDS.get(types[table][other], "other")
                fault = f"column {column!r} is a {here}, but a {in_store} since an earlier commit"
                if other != column:
                    fault = f"column {column!r} has in SQL the name of column {other!r} of an earlier commit"
                yield Finding(file.path, "two types", f"{fault}. --repair renames it to {_other_name(column, kind)!r}")


def rename_mistyped_in_files(store: Store, source: VisibleCommit, types: Types) -> VisibleCommit:
    """Rename a source's mistyped columns in the entries of its files, and claim their types.

    Raises:
        TableError: Another column has that name already, with another type.
    """
    files: dict[str, list[DataFile]] = {}
    for table, named in source.files.items():
        files[table] = []
        for file in named:
            renamed = {
                _other_name(column, kind) if column in mistyped_columns(table, file, types) else column: kind
                for column, kind in file.own_columns.items()
            }
            if renamed != file.own_columns:
                claim_columns(store, table, renamed)
            files[table].append(replace(file, own_columns=renamed))
    return replace(source, files=files)


def rename_mistyped_columns(rows: pa.Table, table: str, types: Types) -> pa.Table:
    """Rename the mistyped columns of a file's rows."""
    store_types = types.get(table, {})
    columns = [(column.name, str(column.type)) for column in rows.schema]
    return rows.rename_columns(
        [_other_name(*column) if conflicting_column(store_types, *column) else column[0] for column in columns]
    )


def _other_name(column: str, kind: str) -> str:
    return f"{column}_{TYPE_WORDS.get(kind, 'other')}"
