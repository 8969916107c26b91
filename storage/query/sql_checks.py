"""SQL as users write it: refused before anything is read, where DuckDB cannot be asked it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

import duckdb

from depthrate.storage.commits.source import first_line
from depthrate.storage.tables.custom_columns import quoted


class QueryError(ValueError):
    """An SQL query that DuckDB refuses."""


class QueryMemoryError(QueryError):
    """An SQL query that takes more memory than it may."""


def require_characters(text: str) -> None:
    """Check that DuckDB can be given a text.

    Raises:
        QueryError: it has characters that are none.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise QueryError(f"{text!r:.200} has characters that are none (halves of surrogate pairs)") from None


def check_expression(text: str, columns: Mapping[str, str] | None) -> None:
    """Check that a text is one SQL expression over these columns (name -> SQL type); over any, where they are not known.

    Raises:
        QueryError: it is not.
    """
    require_characters(text)
    query = f"select (\n{text}\n) as value from results"
    try:
        duckdb.extract_statements(f"select\n{text}\n")  # an error in it does not mention what the query adds
        if not _is_select(query):
            raise QueryError(f"{text!r} is not an SQL expression over results, as in a or log(a) + b")
        if columns is not None:
            connection = duckdb.connect(":memory:")
            connection.execute("set enable_external_access = false")
            listed = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
            connection.execute(f"create table results ({listed})")
            connection.sql(query)
    except duckdb.Error as error:
        reason = f"{first_line(error)}{candidates(error)}"
        raise QueryError(f"{text!r} is not an SQL expression over results: {reason}") from None


def _is_select(query: str) -> bool:
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.ParserException:
        return False
    return len(statements) == 1 and statements[0].type == duckdb.StatementType.SELECT


def candidates(error: Exception) -> str:
    """Return the similar one of the columns that DuckDB lists below an error, as a question; none may be similar."""
    missing = re.search(r'Referenced column "([^"]+)"', str(error))
    listed = re.search(r'^Candidate bindings:[ :]*(".*")', str(error), re.MULTILINE)
    names = re.findall(r'"([^"]+)"', listed[1]) if listed else []
    similar = difflib.get_close_matches(missing[1], names, n=1) if missing else names[:1]
    return f'; did you mean "{similar[0]}"?' if similar else ""
