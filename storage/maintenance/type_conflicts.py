"""Commits that hold a column with another type than the store has for it: found, left alone by compactions, and mended.

Mending gives the column a name of its own, as in `note_text`: every row keeps its value, and every trial counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from depthrate.storage.commits.source import VisibleCommit
from depthrate.storage.files.parquet import DataFile
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.findings import Finding
from depthrate.storage.tables.custom_columns import TYPE_WORDS, claim_columns, custom_columns
from depthrate.storage.tables.schema import MEASURED_TABLES

Types = Mapping[str, Mapping[str, str]]
"""Table -> column of the tasks' own -> its type."""


def read_column_types(store: Store) -> Types:
    """Return the types of all columns that tasks added to a store."""
    return {table: custom_columns(store, table) for table in MEASURED_TABLES}


def mistyped_columns(table: str, file: DataFile, types: Types) -> dict[str, str]:
    """Return those of a file's columns, with their types, that have another type in the store."""
    held = types.get(table, {})
    return {column: kind for column, kind in file.own_columns.items() if held.get(column, kind) != kind}


def is_mistyped(source: VisibleCommit, types: Types) -> bool:
    """Whether a commit or a compaction has such a column."""
    return any(mistyped_columns(table, file, types) for table, files in source.files.items() for file in files)


def find_type_conflicts(source: VisibleCommit, types: Types) -> Iterator[Finding]:
    """Yield a finding for each such column."""
    for table, files in source.files.items():
        for file in files:
            for column, kind in mistyped_columns(table, file, types).items():
                words, of_store = TYPE_WORDS.get(kind, kind), TYPE_WORDS.get(types[table][column], "other")
                what = f"column {column!r} is a {words} here and a {of_store} since an earlier commit"
                yield Finding(file.path, "two types", f"{what}; --repair calls it {_other_name(column, kind)!r}")


def rename_mistyped_in_files(store: Store, source: VisibleCommit, types: Types) -> VisibleCommit:
    """Return a source whose mistyped columns are called otherwise, in what is said of its files; claim their types.

    Raises:
        OSError: the store refused a write.
        TableError: another column has that name already, with another type.
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
    """Return rows of a file with their mistyped columns called otherwise."""
    held = types.get(table, {})
    names = [
        _other_name(each.name, str(each.type)) if held.get(each.name, str(each.type)) != str(each.type) else each.name
        for each in rows.schema
    ]
    return rows.rename_columns(names)


def _other_name(column: str, kind: str) -> str:
    return f"{column}_{TYPE_WORDS.get(kind, 'other')}"
