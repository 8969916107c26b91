"""`depthrate query`: ask the store with SQL; read-only."""

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
"""A query that DuckDB has not ended so long after its time limit ends with this process."""


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
    """Ask a store, or one sweep of it, and print the rows, or write them to a file.

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
    if sweep is not None:
        results = results.for_sweep(sweep)
    with limited_memory(memory_gb), _killed_after(timeout_s):
        relation = results.sql(sql, timeout_s=timeout_s, memory_gb=memory_gb)
    if output is None:
        print_answer(relation, chosen, make_console(), wide=wide)
    else:
        write_answer(relation, chosen, output)
    print_warnings(results.problems)
    if (note := what_varies(results, sql)) is not None:
        print_line(f"note: {note}", stderr=True)


@contextmanager
def _killed_after(timeout_s: float | None) -> Iterator[None]:
    """End this process where DuckDB does not end a query that took longer, as it cannot within one call of a function."""
    if timeout_s is None:
        yield
        return

    def kill() -> None:
        remove_temporary()
        print_line(
            f"depthrate: the query took longer than {timeout_s:g} s and was ended; allow more (--timeout-seconds)",
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


def print_answer(relation: duckdb.DuckDBPyRelation, format: str, console: Console, *, wide: bool = False) -> None:
    """Print rows to standard output."""
    if format == "table":
        print_rows(console, relation.columns, relation.fetchall(), wide=wide)
    elif format == "parquet":
        write_parquet(relation, sys.stdout.buffer)
    else:
        {"csv": write_csv, "json": write_json}[format](relation, sys.stdout)


def write_answer(relation: duckdb.DuckDBPyRelation, format: str, path: Path) -> None:
    """Write rows to a file.

    Raises:
        UsageError: it cannot be written.
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
@click.option("--sweep", help="The trials of this sweep alone.")
@click.option(
    "--format",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    help="Default: by the ending of -o, else a table.",
)
@click.option("-o", "--output", type=FILE, help="A file to write instead of printing.")
@click.option("--json", is_flag=True, help="The same as --format json.")
@wide_option
@click.option(
    "--timeout-seconds",
    type=Number(min=0.0, min_open=True),
    default=TIMEOUT_S,
    help="Time limit of the query.",
)
@click.option(
    "--memory-gb",
    type=Number(min=0.05),
    help="Memory limit of DuckDB. Default: half of the machine's memory.",
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
