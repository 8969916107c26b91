"""Analysis of a query: the views it names, and whether it uses the sweeps that trials belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import duckdb

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


def named_views(query: str) -> list[str]:
    """Return the views that a query may read."""
    return [name for name in VIEWS if re.search(rf"\b{name}\b", query, re.IGNORECASE)]


def is_show_tables(query: str) -> bool:
    """Return whether a query lists the views."""
    return _SHOW_TABLES.fullmatch(query) is not None


def renamed_hint(error: str, query: str, columns: Iterable[str]) -> str:
    """Return a hint on the names in this view of columns that DuckDB's error reports as missing or of another type."""
    missing = _missing_column(error).casefold()
    known = {column.casefold(): column for column in columns}
    names = [missing] if missing else sorted(names_in(query) & known.keys()) if _OBJECTS_TO_TEXT.search(error) else []
    kinds = {"param_": "Parameter", "last_": "The last value of curve"}
    renamed = [(kind, name, known.get(prefix + name)) for name in names for prefix, kind in kinds.items()]
    return "".join(f" {kind} {name} is column {column} here." for kind, name, column in renamed if column)


def elsewhere_hint(error: str, of_trials: Iterable[str]) -> str:
    """Return a hint on the join that adds a column of the trials that DuckDB's error reports as missing."""
    name = _missing_column(error).casefold()
    if name not in map(str.casefold, of_trials):
        return ""
    return f" {name} is a column of trials and results. Add `join trials using (trial_id)`."


def _missing_column(error: str) -> str:
    """Return the column that DuckDB's error reports as missing, or an empty str for other errors."""
    match = _MISSING.search(error)
    return (match[1] or match[2]) if match else ""


def names_sweep(query: str) -> bool:
    """Return whether a query names the column `sweep`, so that a trial appears once per sweep it belongs to."""
    return "sweep" in names_in(query)


def names_in(query: str) -> set[str]:
    """Return the words of a query that may be column names, in lower case."""
    return {word.casefold() for word in _words(query)}


def _words(query: str) -> Iterator[str]:
    encoded = query.encode()  # positions are in bytes
    tokens = duckdb.tokenize(query)
    for (start, kind), (stop, _) in zip(tokens, [*tokens[1:], (len(encoded), None)], strict=True):
        text = encoded[start:stop].decode(errors="replace").strip()
        if kind not in (duckdb.token_type.string_const, duckdb.token_type.comment) and (match := _WORD.match(text)):
            yield match[1]
