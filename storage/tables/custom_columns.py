"""Custom columns, which tasks add to the standard ones: their names, and one permanent type per column and store.

The first writer of a column claims its type in a new file that is never overwritten. If claims have several types, the
claim that the store received first is valid for writers, readers, compactions and repairs alike. A commit whose claim came
later is refused.
"""

import math
import secrets
import time
from collections.abc import Iterable, Mapping

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
"""Stored name of a type -> its name in messages and in renamed columns."""


def custom_columns(store: Store, table: str) -> dict[str, str]:
    """Return the columns that tasks added to a table of this store, with their types."""
    return {column: claims[0][1] for column, claims in _claims(store, table).items()}


def late_claims(store: Store, table: str) -> dict[str, tuple[str, str, str]]:
    """Return path -> (column, its type, the valid type) of the claims that came after a claim of another type."""
    return {
        path: (column, kind, claims[0][1])
        for column, claims in _claims(store, table).items()
        for path, kind in claims
        if kind != claims[0][1]
    }


def _claims(store: Store, table: str) -> dict[str, list[tuple[str, str]]]:
    """Return column -> (path, type) of the claims to its type, starting with the valid one."""
    claims: dict[str, list[tuple[str, str]]] = {}
    for path in store.list(f"columns/{table}"):
        column, kind = column_of_path(path)
        claims.setdefault(column, []).append((path, kind))
    order = list(CUSTOM_TYPES)

    def age(claim: tuple[str, str]) -> tuple[float, int, str]:
        path, kind = claim
        written = store.modified(path)
        return math.inf if written is None else written, order.index(kind) if kind in order else len(order), path

    for of_column in claims.values():
        if len({kind for _, kind in of_column}) > 1:
            of_column.sort(key=age)
    return claims


def claim_columns(store: Store, table: str, columns: Mapping[str, str]) -> None:
    """Claim the types of new columns, before any row with them is written.

    Raises:
        TableError: A column has another type in this store.
    """
    if not columns:
        return
    types = custom_columns(store, table)
    new = [column for column in sorted(columns) if column not in types]
    claim_paths = {column: column_path(table, column, columns[column], secrets.token_hex(6)) for column in new}
    for path in claim_paths.values():
        store.write(path, b"", durable=True)
    if new:
        time.sleep(SETTLE_S + 2 * store.files.time_unit_s)
        types = custom_columns(store, table)
    for column, kind in columns.items():
        if types.get(column, kind) != kind:
            store.delete_many([claim_paths[column]] if column in claim_paths else [])
            raise TableError(
                f"table {table!r}, column {column!r} holds {_type_text(kind)}, but in store {store.url} it holds "
                f"{_type_text(types[column])} since an earlier commit. Rename the new column."
            )


def quoted(name: str) -> str:
    """Return a column's name quoted for SQL."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def column_name_error(name: object) -> str | None:
    """Return the reason why a name cannot be a column's name in SQL or a file, or None if it can."""
    if not isinstance(name, str) or not name.strip():
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
