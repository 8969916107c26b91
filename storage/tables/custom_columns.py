"""The columns that tasks add to the standard ones: their names, and one type a column and store, for ever.

Who writes a column first claims its type, in a file of its own that nobody writes over. Of claims of several types the one
that the store got first holds, for writers, readers, compactions and repairs alike; the commit of a later one is refused.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterable, Mapping

import pyarrow as pa

from depthrate.storage.files.paths import column_of_path, column_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import ARROW_TYPE_BY_KIND, TableError

MAX_NAME_LENGTH = 60
"""Characters of a column's name: it is part of the name of a file."""
CUSTOM_TYPES = {str(kind): kind for kind in (pa.string(), *ARROW_TYPE_BY_KIND.values())}
"""The types a task's own column can have, by the names they are written down with."""


SETTLE_S, REMOTE_SETTLE_S = 0.05, 2.0
"""How long a claim waits before it looks for others: longer than the ticks of the clock that stamps a store's files."""
TYPE_WORDS = {"double": "number", "string": "text", "list<item: double>": "list", "list<item: float>": "matrix"}


def custom_columns(store: Store, table: str) -> dict[str, str]:
    """Return the columns that tasks added to a table of this store, with their types."""
    return {column: held[0][1] for column, held in _claims(store, table).items()}


def late_claims(store: Store, table: str) -> dict[str, tuple[str, str, str]]:
    """Return path -> (column, its type, the type that holds) of the claims that came after one of another type."""
    return {
        path: (column, kind, held[0][1])
        for column, held in _claims(store, table).items()
        for path, kind in held
        if kind != held[0][1]
    }


def _claims(store: Store, table: str) -> dict[str, list[tuple[str, str]]]:
    """Return column -> (path, type) of the claims of its type, the one that holds first."""
    claims: dict[str, list[tuple[str, str]]] = {}
    for path in store.list(f"columns/{table}"):
        column, kind = column_of_path(path)
        claims.setdefault(column, []).append((path, kind))
    order = list(CUSTOM_TYPES)

    def age(claim: tuple[str, str]) -> tuple[float, int, str]:
        path, kind = claim
        written = store.modified(path)
        return math.inf if written is None else written, order.index(kind) if kind in order else len(order), path

    for held in claims.values():
        if len({kind for _, kind in held}) > 1:
            held.sort(key=age)
    return claims


def claim_columns(store: Store, table: str, columns: Mapping[str, str]) -> None:
    """Claim the types of new columns, before any row with them is written.

    Raises:
        TableError: a column has another type in this store.
    """
    if not columns:
        return
    known = custom_columns(store, table)
    new = [column for column in sorted(columns) if column not in known]
    ours = {column: column_path(table, column, columns[column], secrets.token_hex(6)) for column in new}
    for path in ours.values():
        store.write(path, b"", durable=True)
    if new:
        time.sleep(SETTLE_S if store.is_local or not store.is_shared else REMOTE_SETTLE_S)
        known = custom_columns(store, table)
    for column, kind in columns.items():
        if known.get(column, kind) != kind:
            store.delete_many([ours[column]] if column in ours else [])
            raise TableError(
                f"table {table!r}, column {column!r} holds {_words(kind)}; in store {store.url} it holds "
                f"{_words(known[column])} since an earlier commit; give the new column a name of its own"
            )


def quoted(name: str) -> str:
    """Return a column's name as SQL has it."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def column_name_error(name: object) -> str | None:
    """Return why SQL or a file could not name a column so; None where both can."""
    if not isinstance(name, str) or not name.strip():
        return "is empty"
    if not name.isprintable():
        return "has characters that cannot be printed"
    if '"' in name:
        return "has a quotation mark"
    return f"has more than {MAX_NAME_LENGTH} characters" if len(name) > MAX_NAME_LENGTH else None


def check_names(table: str, names: Iterable[str], standard: Iterable[str] = ()) -> None:
    """Check the names of a task's own columns of a table; `standard` are those that it has besides.

    Raises:
        TableError: one cannot be the name of a column, or differs from another one only in capitals, which SQL ignores.
    """
    known = {name.casefold(): name for name in standard}
    for name in names:
        fault = column_name_error(name)
        if fault is not None:
            raise TableError(
                f"table {table!r}, column {name!r:.80} {fault}; allowed: up to {MAX_NAME_LENGTH} printable characters"
            )
        same = known.setdefault(name.casefold(), name)
        if same != name:
            raise TableError(
                f"table {table!r}: columns {name!r} and {same!r} are one name in SQL; give one of them another"
            )


def _words(type_name: str) -> str:
    words = {"number": "numbers", "list": "lists of numbers", "matrix": "matrices of numbers", "text": "text"}
    return words[TYPE_WORDS[type_name]] if type_name in TYPE_WORDS else type_name
