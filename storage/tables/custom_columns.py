"""Custom columns, which tasks add to the standard ones: their names, and one permanent type per column and store.

The first writer of a column claims its type in a new file that is never overwritten. If claims have several types, the
claim that the store received first is valid for writers, readers, compactions and repairs alike. A commit whose claim came
later is refused. The same holds for columns that differ only in case, which SQL ignores.
"""

import math
import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

import pyarrow as pa

from depthrate.storage.files.paths import column_of_path, column_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import ARROW_TYPE_BY_KIND, TableError

MAX_NAME_LENGTH = 60
"""Maximum number of characters in a column's name, which is part of a file's name."""
CUSTOM_TYPES = {str(kind): kind for kind in (pa.string(), *ARROW_TYPE_BY_KIND.values())}
"""Types that a custom column can have, by their stored names."""
SETTLE_S = 0.05
"""Seconds between a claim and the check for other claims, longer than the resolution of a local store's file times."""
TYPE_WORDS = {"double": "number", "string": "text", "list<item: double>": "list", "list<item: float>": "matrix"}
"""Stored name of a type -> its name in messages."""


def custom_columns(store: Store, table: str) -> dict[str, str]:
    """Return the columns that tasks added to a table of this store, with their types."""
    claims: dict[str, list[tuple[str, str, str]]] = {}
    for path in store.list(f"columns/{table}"):
        column, kind = column_of_path(path)
        claims.setdefault(column.casefold(), []).append((path, column, kind))
    order = list(CUSTOM_TYPES)

    def age(claim: tuple[str, str, str]) -> tuple[float, int, str]:
        path, _, kind = claim
        written = store.modified(path)
        return math.inf if written is None else written, order.index(kind) if kind in order else len(order), path

    valid = (min(of_column, key=age) if len(of_column) > 1 else of_column[0] for of_column in claims.values())
    return {column: kind for _, column, kind in valid}


def conflicting_column(types: Mapping[str, str], column: str, kind: str) -> str | None:
    """Return the column of `types` (column -> type) with this name in SQL, if its spelling or its type differs."""
    if column in types:
        return column if types[column] != kind else None
    return next((name for name in types if name.casefold() == column.casefold()), None)


def _require_free(types: Mapping[str, str], table: str, columns: Mapping[str, str], store: Store) -> None:
    for column, kind in columns.items():
        if (other := conflicting_column(types, column, kind)) is not None:
            is_case = f"has in SQL the name of column {other!r}, which is in store {store.url}"
            is_type = f"holds {_type_text(kind)}, but in store {store.url} it holds {_type_text(types[other])}"
            raise TableError(
                f"table {table!r}, column {column!r} {is_type if other == column else is_case} since an earlier commit or "
                "trial. Rename the new column."
            )


def add_columns(store: Store, types: dict[str, dict[str, str]], tables: Mapping[str, Mapping[str, str]]) -> None:
    """Add one trial's columns (table -> column -> type) to `types`, those of the store and of trials to be committed with it.

    Raises:
        TableError: A column has another type, or differs from another column only in case.
    """
    for table, columns in tables.items():
        if columns and table not in types:
            with suppress(OSError):  # the commit checks again
                types[table] = custom_columns(store, table)
        _require_free(types.get(table, {}), table, columns, store)
    for table, columns in tables.items():
        types.setdefault(table, {}).update(columns)


def claim_columns(store: Store, table: str, columns: Mapping[str, str]) -> None:
    """Claim the types of new columns, before any row with them is written.

    Raises:
        TableError: A column has another type in this store, or differs from another column only in case.
    """
    if not columns:
        return
    types = custom_columns(store, table)
    _require_free(types, table, columns, store)
    new = [column for column in sorted(columns) if column not in types]
    claim_paths = {column: column_path(table, column, columns[column], secrets.token_hex(6)) for column in new}
    for path in claim_paths.values():
        store.write(path, b"", durable=True)
    if new:
        time.sleep(SETTLE_S + 2 * store.files.time_unit_s)
        types = custom_columns(store, table)
        lost = [path for name, path in claim_paths.items() if conflicting_column(types, name, columns[name])]
        store.delete_many(lost)
        _require_free(types, table, columns, store)


def quoted(name: str) -> str:
    """Return a column's name quoted for SQL."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def quoted_text(value: str) -> str:
    """Return a string quoted for SQL."""
    escaped = value.replace("'", "''")
    return f"'{escaped}'"


def column_name_error(name: object) -> str | None:
    """Return the reason why a name cannot be a column's name in SQL or a file, or None if it can."""
    if not isinstance(name, str):
        return f"is of type {type(name).__name__}, not str"
    if not name.strip():
        return "is empty"
    if not name.isprintable():
        return "has characters that cannot be printed"
    if '"' in name:
        return "has a quotation mark"
    return f"has more than {MAX_NAME_LENGTH} characters" if len(name) > MAX_NAME_LENGTH else None


def check_names(table: str, names: Iterable[str], standard: Iterable[str] = ()) -> None:
    """Check the names of a table's custom columns.

    Args:
        standard: Names of its other columns.

    Raises:
        TableError: A name is invalid, or differs from another only in case, which SQL ignores.
    """
    names_by_sql = {name.casefold(): name for name in standard}
    for name in names:
        error = column_name_error(name)
        if error is not None:
            raise TableError(
                f"table {table!r}, column name {name!r:.80} {error}, expected up to {MAX_NAME_LENGTH} printable characters"
            )
        same = names_by_sql.setdefault(name.casefold(), name)
        if same != name:
            raise TableError(f"table {table!r}: columns {name!r} and {same!r} have the same name in SQL. Rename one.")


def _type_text(type_name: str) -> str:
    words = {"number": "numbers", "list": "lists of numbers", "matrix": "matrices of numbers"}
    word = TYPE_WORDS.get(type_name, type_name)
    return words.get(word, word)
