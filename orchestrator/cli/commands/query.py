"""`depthrate query`: query the store with SQL. Read-only."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from depthrate.orchestrator.analysis.open_results import open_results
from depthrate.orchestrator.cli.exit_codes import INTERRUPTED
from depthrate.orchestrator.cli.options import FILE, Number, declared, store_option, wide_option
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.output_file import check_output, is_replaceable, output_file
from depthrate.orchestrator.console.tables import (
    ANY_WIDTH,
    PlainConsole,
    listed,
    make_console,
    print_line,
    print_rows,
    print_table,
    print_warnings,
)
from depthrate.storage.catalog.specs import read_specs
from depthrate.storage.files.delayed_call import call_after
from depthrate.storage.files.paths import sweep_of_path
from depthrate.storage.query.query_limits import keep_pandas_out, limited_memory, remove_temporary
from depthrate.storage.query.results import Results
from depthrate.storage.query.row_writers import write_csv, write_json, write_parquet
from depthrate.storage.query.sql_checks import named_views, names_in, require_characters

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")

QUERY_GRACE_S = 0.5
"""Seconds after its time limit at which a query that DuckDB has not interrupted is ended by ending this process."""
SIGNAL_POLL_S = 0.2
"""Seconds between two checks for Ctrl-C. A signal that arrives just before a wait begins does not end the wait."""
MAX_VALUES_SHOWN = 6
"""Maximum number of differing parameters in a note."""
_AGGREGATES = {"avg", "mean", "sum", "median", "stddev", "min", "max", "quantile", "quantile_cont", "mode", "var_samp"}
_OF_TRIALS = {"trials", "metrics", "curves", "results"}


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


def _write_rows(format: str, stream: IO[Any], relation: duckdb.DuckDBPyRelation) -> None:
    if stream.tell():  # discard the rows of an incomplete attempt
        stream.seek(0)
        stream.truncate()
    if format == "table":
        print_table(PlainConsole(file=stream, width=ANY_WIDTH), relation.columns, relation.fetchall())
    elif format == "parquet":
        write_parquet(relation, stream)
    else:
        {"csv": write_csv, "json": write_json}[format](relation, stream)


@contextmanager
def _opened(output: Path | None, *, binary: bool) -> Iterator[IO[Any]]:
    """Open a file that can be rewritten from its start. Its content becomes the output when the block succeeds."""
    if output is not None and is_replaceable(output):
        with output_file(output, binary=binary) as stream:
            yield stream
        return
    mode, options = ("w+b", {}) if binary else ("w+", {"encoding": "utf-8", "newline": ""})
    standard = nullcontext(sys.stdout.buffer if binary else sys.stdout)
    with TemporaryFile(mode, **options) as stream:  # type: ignore[call-overload]
        yield stream
        stream.seek(0)
        with standard if output is None else output_file(output, binary=binary) as target:
            shutil.copyfileobj(stream, target)


@contextmanager
def _limits(timeout_s: float, memory_gb: float | None) -> Iterator[None]:
    text = f"depthrate: query timed out after {timeout_s:g} s. Raise --timeout-seconds."
    with limited_memory(memory_gb), call_after(timeout_s + QUERY_GRACE_S, _end, 2, text):
        yield


def _call_in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread. In the main thread, Python would handle Ctrl-C only once DuckDB has returned."""
    result: Future[T] = Future()

    def call() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    while not result.done():
        wait([result], SIGNAL_POLL_S)
    return result.result()


def _end(code: int, text: str | None = None) -> None:
    """End this process, since DuckDB cannot interrupt some queries, for example within one function call or join."""
    remove_temporary()
    if text is not None:
        print_line(text, stderr=True)
    os._exit(code)


def _what_varies(results: Results, query: str, sweep: str | None) -> str | None:
    """Return a note on parameters that vary in the store or `sweep` but do not occur in an aggregating query, or None.

    Seeds are meant to be aggregated, and queries with trial_id or sweep are explicit, so these give no note.
    """
    words = names_in(query)
    if not _OF_TRIALS.intersection(named_views(query)) or not _AGGREGATES & words or words & {"trial_id", "sweep"}:
        return None
    versions = "select task from trials group by task having min(task_version) < max(task_version) order by task"
    if "task_version" not in words and (mixed := [task for (task,) in results.sql(versions).fetchall()]):
        advice = "Limit the query to a sweep (--sweep) or to a task_version of trials"
        return f"this aggregates trials of several versions of task {listed(mixed, MAX_VALUES_SHOWN)}. {advice}"
    names = [name for name in results.parameter_names() if name.removeprefix("param_") != "seed"]
    names = [name for name in names if not {name.casefold(), name.removeprefix("param_").casefold()} & words]
    varying = results.varying_parameters(names)
    if not varying:
        return None
    text = f"this aggregates trials that differ in {listed(varying, MAX_VALUES_SHOWN)}"
    if sweep is not None:
        return text
    specs, ran = list(read_specs(results.store)), {sweep_of_path(source.path) for source in results.snapshot.sources}
    is_one = len(specs) == 1 and ran <= {spec.sweep for spec in specs}
    sweeps = [] if is_one else sorted(results.membership().of_sweep)
    if len(sweeps) > 1:
        text += f". Limit the query to one of {len(sweeps)} sweeps: --sweep {sweeps[0]}, or where sweep = '{sweeps[0]}'"
    return text


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
@click.option("--timeout-seconds", type=Number(min=0.0, min_open=True), default=3600.0, help="Time limit in seconds.")
@click.option("--memory-gb", type=Number(min=0.05), help="Memory limit in GB. Default: half of the machine's memory.")
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
    if json and format not in (None, "json"):
        raise UsageError(f"--json and --format {format} are mutually exclusive. Give one of them.")
    chosen_format = "json" if json else format or format_of(output)
    if output is not None:
        check_output(output)
    require_characters(sql, is_timed=True)
    keep_pandas_out()
    results = opened = open_results(store)
    opened.require_sweeps(sql)
    if sweep is not None:
        results = opened.for_sweep(sweep)
    options: dict[str, Any] = {"timeout_s": timeout_seconds, "memory_gb": memory_gb}
    try:
        if output is None and chosen_format == "table":
            with _limits(**options):
                relation = _call_in_thread(partial(results.sql, sql, **options))
            print_rows(make_console(), relation.columns, relation.fetchall(), wide=wide)
        else:
            with _opened(output, binary=chosen_format == "parquet") as stream, _limits(**options):
                write = partial(_write_rows, chosen_format, stream)
                _call_in_thread(partial(results.stream, sql, write, **options))
    except KeyboardInterrupt:
        _end(INTERRUPTED)  # the thread may still be in DuckDB
    print_warnings(results.problems)
    left_out = None if sweep is None else opened.membership().note(sweep)
    for note in filter(None, (_what_varies(results, sql, sweep), left_out)):
        print_line(f"note: {note}", stderr=True)
