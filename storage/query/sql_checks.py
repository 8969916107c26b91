"""SQL as users write it: refused before anything is read, where DuckDB cannot be asked it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import duckdb

from depthrate.storage.commits.source import first_line
from depthrate.storage.tables.own_columns import quoted


class QueryError(ValueError):
    """An SQL query that DuckDB refuses."""


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
        statements = duckdb.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise QueryError(f"{text!r} is not an SQL expression over the columns of results, as in a or log(a) + b")
        if columns is not None:
            connection = duckdb.connect(":memory:")
            connection.execute("set enable_external_access = false")
            listed = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
            connection.execute(f"create table results ({listed})")
            connection.sql(query)
    except duckdb.Error as error:
        raise QueryError(
            f"{text!r} is no SQL expression over results: {first_line(error)}{candidates(error)}"
        ) from None


def candidates(error: Exception) -> str:
    """Return which column may have been meant, as DuckDB says it below the error."""
    found = re.search(r'^Candidate bindings:[ :]*(".*")', str(error), re.MULTILINE)
    return f"; did you mean {found[1]}?" if found else ""
