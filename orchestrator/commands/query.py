"""The rows of a query: on the terminal, or as CSV, JSON or Parquet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from depthrate.orchestrator.output_file import check_output, output_file
from depthrate.orchestrator.results import open_results
from depthrate.orchestrator.terminal import make_console, print_table, print_warnings
from depthrate.orchestrator.usage import UsageError
from depthrate.storage.export import write_csv, write_json, write_parquet

if TYPE_CHECKING:
    import duckdb


def answer(sql: str, store: str | None, format: str | None, output: Path | None, *, as_json: bool = False) -> None:
    """Ask a store and print the rows, or write them to a file.

    Raises:
        UsageError: `as_json` and another format are given, the file has no known ending, or cannot be written.
        ValueError: `StoreError` or `QueryError` for what cannot be asked.
    """
    if as_json and format not in (None, "json"):
        raise UsageError(f"--json and --format {format} contradict each other; give one of them")
    chosen = "json" if as_json else format or format_of(output)
    if output is not None:
        check_output(output)
    results = open_results(store)
    relation = results.sql(sql)
    if output is None:
        print_answer(relation, chosen, make_console())
    else:
        try:
            write_answer(relation, chosen, output)
        except OSError as error:
            raise UsageError(f"cannot write {output}: {error}") from None
    print_warnings(results.problems)


def format_of(output: Path | None) -> str:
    """Return the format that a file's ending means; a table for none.

    Raises:
        UsageError: the ending is unknown.
    """
    ending = "" if output is None else output.suffix.removeprefix(".").lower()
    if ending in ("csv", "json", "parquet"):
        return ending
    if ending not in ("txt", ""):
        raise UsageError(f"{output}: what is .{ending}? name it .csv, .json, .parquet or .txt, or give --format")
    return "table"


def print_answer(relation: duckdb.DuckDBPyRelation, format: str, console: Console) -> None:
    """Print rows to standard output."""
    if format == "table":
        print_table(console, relation.columns, relation.fetchall())
    elif format == "parquet":
        write_parquet(relation, sys.stdout.buffer)
    else:
        {"csv": write_csv, "json": write_json}[format](relation, sys.stdout)


def write_answer(relation: duckdb.DuckDBPyRelation, format: str, path: Path) -> None:
    """Write rows to a file, which is there whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    with output_file(path, binary=format == "parquet") as stream:
        if format == "parquet":
            write_parquet(relation, stream)
        elif format == "table":
            print_table(Console(file=stream, width=100_000), relation.columns, relation.fetchall())
        else:
            {"csv": write_csv, "json": write_json}[format](relation, stream)
