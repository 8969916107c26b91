"""The text of users' SQL: checks of input that DuckDB cannot process, the views and columns that it names, hints on errors."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import duckdb

from depthrate.errors import InputError
from depthrate.storage.commits.visible_commits import first_line
from depthrate.storage.tables.custom_columns import quoted

MAX_TIMED_CHARACTERS = 150_000
"""Maximum number of characters of a query with a time limit, more than one argument of a command can have on Linux."""
VIEWS = {
    "trials": "trial, with one column per parameter",
    "metrics": "layer of a trial at a measured step",
    "curves": "step of a trial",
    "features": "stored feature of a sample or a class mean",
    "live": "logged step of an uncommitted trial, running or killed",
    "attempts": "attempt (one execution of a pack)",
    "fits": "model fitted to a curve",
    "results": "trial, with its parameters and its metrics at the last step and last layer",
}
"""View -> meaning of a row."""
_SHOW_TABLES = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*", re.IGNORECASE)
_MISSING = re.compile(r'Referenced column "([^"]+)" not found|does not have a column named "([^"]+)"')
_OBJECTS_TO_TEXT = re.compile(r"VARCHAR|convert string", re.IGNORECASE)
_WORD = re.compile(r'"?([A-Za-z_][A-Za-z0-9_]*)"?')


class QueryError(InputError):
    """An SQL query that cannot be executed."""


class QueryMemoryError(QueryError):
    """An SQL query that exceeds its memory limit."""


def require_characters(text: str, *, is_timed: bool = False) -> None:
    """Check that a str can be encoded for DuckDB, and read in a short time if the query has a time limit.

    Raises:
        QueryError: It contains halves of surrogate pairs, or is too long.
    """
    if is_timed and len(text) > MAX_TIMED_CHARACTERS:
        raise QueryError(
            f"the query has {len(text)} characters, expected at most {MAX_TIMED_CHARACTERS} with a time limit, since its "
            "parsing cannot be interrupted. Select a range instead of a list, or join a subquery."
        )
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


def named_views(query: str) -> list[str]:
    """Return the views that a query may read."""
    return [name for name in VIEWS if re.search(rf"\b{name}\b", query, re.IGNORECASE)]


def is_show_tables(query: str) -> bool:
    """Return whether a query lists the views."""
    return _SHOW_TABLES.fullmatch(" ".join(_tokens(query))) is not None


def names_sweep(query: str) -> bool:
    """Return whether a query names the column `sweep`, so that a trial appears once per sweep it belongs to."""
    return "sweep" in names_in(query)


def compared_sweeps(query: str) -> set[str]:
    """Return the strings with which a query compares the column `sweep`."""
    strings, words = list[str](), list[str]()  # the place of a string stands for it: its own text may be long
    for token, kind in _tokens_with_kinds(query):
        if kind == duckdb.token_type.comment:
            continue
        is_string = kind == duckdb.token_type.string_const
        words.append(f"'{len(strings)}'" if is_string else token)
        strings += [token[1:-1].replace("''", "'")] if is_string else []
    text = " ".join(words)
    right = re.findall(r"""\bsweep"?\s*(?:==?|<>|!=|(?:not\s+)?in\s*\()\s*((?:'\d+'[\s,]*)+)""", text, re.IGNORECASE)
    left = re.findall(r"""('\d+')\s*(?:==?|<>|!=)\s*(?:\w+\s*\.\s*)?"?sweep\b""", text, re.IGNORECASE)
    return {strings[int(place)] for part in (*right, *left) for place in re.findall(r"\d+", part)}


def names_in(query: str) -> set[str]:
    """Return the words of a query that may be column names, in lower case."""
    return {match[1].casefold() for token in _tokens(query) if (match := _WORD.match(token))}


def _tokens(query: str) -> Iterator[str]:
    """Yield the tokens of a query, except comments and string literals."""
    left_out = (duckdb.token_type.string_const, duckdb.token_type.comment)
    return (token for token, kind in _tokens_with_kinds(query) if kind not in left_out)


def _tokens_with_kinds(query: str) -> Iterator[tuple[str, Any]]:
    encoded, tokens = query.encode(), duckdb.tokenize(query)  # positions are in bytes
    stops = [*(start for start, _ in tokens[1:]), len(encoded)]
    for (start, kind), stop in zip(tokens, stops, strict=False):  # an empty query has a stop, but no token
        yield encoded[start:stop].decode(errors="replace").strip(), kind


def renamed_hint(error: str, query: str, columns: Iterable[str]) -> str:
    """Return a hint with this view's names of columns that DuckDB's error reports as missing or of another type."""
    missing = _missing_column(error).casefold()
    known = {column.casefold(): column for column in columns}
    names = [missing] if missing else sorted(names_in(query) & known.keys()) if _OBJECTS_TO_TEXT.search(error) else []
    kinds = {"param_": "Parameter", "last_": "The last value of curve"}
    renamed = [(kind, name, known.get(prefix + name)) for name in names for prefix, kind in kinds.items()]
    return "".join(f" {kind} {name} is column {column} here." for kind, name, column in renamed if column)


def elsewhere_hint(error: str, of_trials: Iterable[str]) -> str:
    """Return a hint with the join that adds a column of `trials` that DuckDB's error reports as missing."""
    name = _missing_column(error).casefold()
    if name not in map(str.casefold, of_trials):
        return ""
    return f" {name} is a column of trials and results. Add `join trials using (trial_id)`."


def _missing_column(error: str) -> str:
    """Return the column that DuckDB's error reports as missing, or an empty str for other errors."""
    match = _MISSING.search(error)
    return (match[1] or match[2]) if match else ""
