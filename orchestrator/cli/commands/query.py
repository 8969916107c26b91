"""`depthrate query`: query the store with SQL. Read-only."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from depthrate.orchestrator.analysis.open_results import open_results
from depthrate.orchestrator.cli.commands.what_varies import what_varies
from depthrate.orchestrator.cli.options import FILE, Number, declared, store_option, wide_option
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.output_file import check_output, output_file
from depthrate.orchestrator.console.tables import (
    ANY_WIDTH,
    PlainConsole,
    make_console,
    print_line,
    print_rows,
    print_table,
    print_warnings,
)
from depthrate.storage.query.query_limits import limited_memory, remove_temporary
from depthrate.storage.query.row_writers import write_csv, write_json, write_parquet

if TYPE_CHECKING:
    import duckdb


TIMEOUT_S = 3600.0
QUERY_GRACE_S = 0.5
"""Seconds after its time limit when a query that DuckDB has not interrupted ends with this process."""


def answer(
    sql: str,
    store: str | None,
    format: str | None,
    output: Path | None,
    *,
    sweep: str | None = None,
    as_json: bool = False,
    wide: bool = False,
    timeout_s: float | None = None,
    memory_gb: float | None = None,
) -> None:
    """Query a store, or one sweep in it, and print the rows or write them to a file.

    Raises:
        UsageError: `as_json` contradicts `format`, or the file has an unknown extension or cannot be written.
        ValueError: `StoreError` or `QueryError`: the query cannot run.
    """
    if as_json and format not in (None, "json"):
        raise UsageError(f"--json and --format {format} exclude each other. Give one of them.")
    chosen_format = "json" if as_json else format or format_of(output)
    if output is not None:
        check_output(output)
    results = open_results(store)
    if sweep is not None:
        results = results.for_sweep(sweep)
    with limited_memory(memory_gb), _killed_after(timeout_s):
        relation = results.sql(sql, timeout_s=timeout_s, memory_gb=memory_gb)
    if output is None:
        print_answer(relation, chosen_format, make_console(), wide=wide)
    else:
        write_answer(relation, chosen_format, output)
    print_warnings(results.problems)
    if (note := what_varies(results, sql)) is not None:
        print_line(f"note: {note}", stderr=True)


@contextmanager
def _killed_after(timeout_s: float | None) -> Iterator[None]:
    """End this process if a query exceeds its time limit and DuckDB cannot interrupt it, as within one function call."""
    if timeout_s is None:
        yield
        return

    def kill() -> None:
        remove_temporary()
        print_line(
            f"depthrate: query timed out after {timeout_s:g} s. Raise --timeout-seconds.",
            stderr=True,
        )
        os._exit(2)

    timer = threading.Timer(timeout_s + QUERY_GRACE_S, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def format_of(output: Path | None) -> str:
    """Return the format for the extension of a file. The default is a table.

    Raises:
        UsageError: The extension is unknown.
    """
    extension = "" if output is None else output.suffix.removeprefix(".").lower()
    if extension in ("csv", "json", "parquet"):
        return extension
    if extension not in ("txt", ""):
        raise UsageError(
            f"{output} has the extension .{extension}, expected .csv, .json, .parquet or .txt. Rename it or give --format."
        )
    return "table"


def print_answer(relation: duckdb.DuckDBPyRelation, format: str, console: Console, *, wide: bool = False) -> None:
    """Print rows to stdout."""
    if format == "table":
        print_rows(console, relation.columns, relation.fetchall(), wide=wide)
    elif format == "parquet":
        write_parquet(relation, sys.stdout.buffer)
    else:
        {"csv": write_csv, "json": write_json}[format](relation, sys.stdout)


def write_answer(relation: duckdb.DuckDBPyRelation, format: str, path: Path) -> None:
    """Write rows to a file.

    Raises:
        UsageError: It cannot be written.
    """
    with output_file(path, binary=format == "parquet") as stream:
        if format == "parquet":
            write_parquet(relation, stream)
        elif format == "table":
            print_table(PlainConsole(file=stream, width=ANY_WIDTH), relation.columns, relation.fetchall())
        else:
            {"csv": write_csv, "json": write_json}[format](relation, stream)


@declared(__doc__)
@click.argument("sql", help="One SELECT over trials, metrics, curves, features, live, attempts, fits, results.")
@store_option
@click.option("--sweep", help="Limit the query to this sweep.")
@click.option(
    "--format",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    help="Output format. Default: by the extension of -o, else table.",
)
@click.option("-o", "--output", type=FILE, help="File to write to.")
@click.option("--json", is_flag=True, help="Same as --format json.")
@wide_option
@click.option(
    "--timeout-seconds",
    type=Number(min=0.0, min_open=True),
    default=TIMEOUT_S,
    help="Time limit in seconds.",
)
@click.option(
    "--memory-gb",
    type=Number(min=0.05),
    help="Memory limit in GB. Default: half of the machine's memory.",
)
def command(
    sql: str,
    store: str | None,
    sweep: str | None,
    format: str | None,
    output: Path | None,
    json: bool,
    wide: bool,
    timeout_seconds: float,
    memory_gb: float | None,
) -> None:
    answer(
        *(sql, store, format, output),
        sweep=sweep,
        as_json=json,
        wide=wide,
        timeout_s=timeout_seconds,
        memory_gb=memory_gb,
    )
