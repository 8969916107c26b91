"""Checks of users' SQL, before anything is read, for input that DuckDB cannot process."""

import difflib
import re
from collections.abc import Mapping

import duckdb

from depthrate.errors import InputError
from depthrate.storage.commits.source import first_line
from depthrate.storage.tables.custom_columns import quoted


class QueryError(InputError):
    """An SQL query that cannot be executed."""


class QueryMemoryError(QueryError):
    """An SQL query that exceeds its memory limit."""


def require_characters(text: str) -> None:
    """Check that a str can be encoded for DuckDB.

    Raises:
        QueryError: It contains halves of surrogate pairs.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise QueryError(f"{text!r:.200} contains invalid characters (halves of surrogate pairs)") from None


def check_expression(text: str, columns: Mapping[str, str] | None) -> None:
    """Check that a str is one SQL expression.

    Args:
        columns: Column name -> SQL type, or None if they are unknown.

    Raises:
        QueryError: It is not.
    """
    require_characters(text)
    query = f"select (\n{text}\n) as value from results"
    try:
        duckdb.extract_statements(f"select\n{text}\n")  # the error message without the text that the query adds
        if not is_select(query):
            raise QueryError(f"{text!r} is not an SQL expression over results, expected for example a or log(a) + b")
        if columns is not None:
            connection = duckdb.connect(":memory:")
            connection.execute("set enable_external_access = false")
            listed = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
            connection.execute(f"create table results ({listed})")
            connection.sql(query)
    except duckdb.Error as error:
        reason = f"{candidates(error)} {first_line(error)}".strip()
        raise QueryError(f"{text!r} is not an SQL expression over results. {reason}") from None


def is_select(query: str) -> bool:
    """Return whether a query is one SELECT statement."""
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.ParserException:
        return False
    return len(statements) == 1 and statements[0].type == duckdb.StatementType.SELECT


def candidates(error: Exception) -> str:
    """Return a question with a similar column among those listed in DuckDB's error, or an empty str."""
    missing = re.search(r'Referenced column "([^"]+)"', str(error))
    listed = re.search(r'^Candidate bindings:[ :]*(".*")', str(error), re.MULTILINE)
    names = re.findall(r'"([^"]+)"', listed[1]) if listed else []
    similar = difflib.get_close_matches(missing[1], names, n=1) if missing else names[:1]
    return f' Did you mean "{similar[0]}"?' if similar else ""
