"""What a query means: which views it names, and whether it asks for the sweeps that trials belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import duckdb

VIEWS = {
    "trials": "a trial; every parameter is a column of its own",
    "metrics": "a layer of a trial at a measured step",
    "curves": "a trial at a step",
    "features": "a kept feature, of a sample or a class mean",
    "live": "a step that a trial has logged which is not committed: it runs, or was killed",
    "attempts": "one execution of a pack",
    "fits": "a model fitted to a curve",
    "results": "a trial: its parameters beside what was measured at its last step and last layer",
}
"""View -> what a row of it is."""
_SHOW_TABLES = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*", re.IGNORECASE)
_MISSING = re.compile(r'Referenced column "([^"]+)" not found|does not have a column named "([^"]+)"')
_OBJECTS_TO_TEXT = re.compile(r"VARCHAR|convert string", re.IGNORECASE)
_WORD = re.compile(r'"?([A-Za-z_][A-Za-z0-9_]*)"?')


def named_views(query: str) -> list[str]:
    """Return the views that a query may read."""
    return [name for name in VIEWS if re.search(rf"\b{name}\b", query, re.IGNORECASE)]


def is_show_tables(query: str) -> bool:
    """Whether a query asks which views there are."""
    return _SHOW_TABLES.fullmatch(query) is not None


def renamed_hint(error: str, query: str, columns: Iterable[str]) -> str:
    """Return what the columns of a name are called here that an error of DuckDB misses, or to whose type it objects."""
    missed = _missing_column(error).casefold()
    known = {column.casefold(): column for column in columns}
    names = [missed] if missed else sorted(names_in(query) & known.keys()) if _OBJECTS_TO_TEXT.search(error) else []
    kinds = {"param_": "the parameter", "last_": "the last value of the curve"}
    called = [(kind, name, known.get(prefix + name)) for name in names for prefix, kind in kinds.items()]
    return "".join(f"; {kind} {name} is called {column} here" for kind, name, column in called if column)


def elsewhere_hint(error: str, of_trials: Iterable[str]) -> str:
    """Return how a column of the trials that an error of DuckDB misses in another view is got there."""
    name = _missing_column(error).casefold()
    known = name in map(str.casefold, of_trials)
    return f"; {name} is a column of trials and results: add `join trials using (trial_id)`" if known else ""


def _missing_column(error: str) -> str:
    """Return the column that an error of DuckDB misses; empty where it is about something else."""
    found = _MISSING.search(error)
    return (found[1] or found[2]) if found else ""


def names_sweep(query: str) -> bool:
    """Whether a query names the column `sweep`, so that a trial is there once for each sweep it belongs to."""
    return "sweep" in names_in(query)


def names_in(query: str) -> set[str]:
    """Return the words of a query that may be names of columns, in lower case."""
    return {word.casefold() for word in _words(query)}


def _words(query: str) -> Iterator[str]:
    encoded = query.encode()  # positions are those of bytes
    tokens = duckdb.tokenize(query)
    for (start, kind), (stop, _) in zip(tokens, [*tokens[1:], (len(encoded), None)], strict=True):
        text = encoded[start:stop].decode(errors="replace").strip()
        if kind not in (duckdb.token_type.string_const, duckdb.token_type.comment) and (found := _WORD.match(text)):
            yield found[1]
