"""The types of the columns that tasks add to the standard ones: one type a column and store, for ever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from depthrate.storage.layout import column_of_path, column_path
from depthrate.storage.schema import KINDS, TableError
from depthrate.storage.store import Store

LONGEST_NAME = 60
"""Characters of a column's name: it is part of the name of a file."""
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


def quoted(name: str) -> str:
    """Return a column's name as SQL has it."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def fault_of_name(name: object) -> str | None:
    """Return why SQL or a file could not name a column so; None where both can."""
    if not isinstance(name, str) or not name.strip():
        return "is empty"
    if not name.isprintable():
        return "has characters that cannot be printed"
    if '"' in name:
        return "has a quotation mark"
    return f"has more than {LONGEST_NAME} characters" if len(name) > LONGEST_NAME else None


def check_names(table: str, names: Iterable[str], standard: Iterable[str] = ()) -> None:
    """Check the names of a task's own columns of a table; `standard` are those that it has besides.

    Raises:
        TableError: one cannot be the name of a column, or differs from another one only in capitals, which SQL ignores.
    """
    known = {name.casefold(): name for name in standard}
    for name in names:
        fault = fault_of_name(name)
        if fault is not None:
            raise TableError(
                f"table {table!r}, column {name!r:.80} {fault}; allowed: up to {LONGEST_NAME} printable characters"
            )
        same = known.setdefault(name.casefold(), name)
        if same != name:
            raise TableError(
                f"table {table!r}: columns {name!r} and {same!r} are one name in SQL; give one of them another"
            )


def _words(type_name: str) -> str:
    words = {"double": "numbers", "string": "text", "list<item: double>": "lists of numbers"}
    return (words | {"list<item: float>": "matrices of numbers"}).get(type_name, type_name)
