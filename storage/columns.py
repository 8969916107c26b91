"""The types of the columns that tasks add to the standard ones: one type a column and store, for ever."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from depthrate.storage.layout import column_of_path, column_path
from depthrate.storage.schema import KINDS, TableError
from depthrate.storage.store import Store

OWN_TYPES = {str(kind): kind for kind in (pa.string(), *KINDS.values())}
"""The types a task's own column can have, by the names they are written down with."""


def own_columns(store: Store, table: str) -> dict[str, str]:
    """Return the columns that tasks added to a table of this store, with their types."""
    return dict(column_of_path(path) for path in store.list(f"columns/{table}"))


def check_own_columns(store: Store, table: str, columns: Mapping[str, str]) -> None:
    """Write down the types of new columns, before any row with them is written.

    Raises:
        TableError: a column has another type in this store.
    """
    if not columns:
        return
    known = own_columns(store, table)
    new = columns.keys() - known.keys()
    for column, type_name in columns.items():
        if known.setdefault(column, type_name) != type_name:
            raise TableError(
                f"table {table!r}, column {column!r} holds {_words(type_name)}; in store {store.url} it holds "
                f"{_words(known[column])} since an earlier commit; give the new column a name of its own"
            )
    for column in sorted(new):
        store.write(column_path(table, column, columns[column]), b"")


def _words(type_name: str) -> str:
    words = {"double": "numbers", "string": "text", "list<item: double>": "lists of numbers"}
    return (words | {"list<item: float>": "matrices of numbers"}).get(type_name, type_name)
