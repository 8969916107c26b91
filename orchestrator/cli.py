"""The command line. Parsing and printing only; torch and ray are never imported here."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from depthrate.orchestrator.executors.builtin import DEFAULT_EXECUTOR, executor_names, executor_options
from depthrate.orchestrator.executors.executor import Option

app = typer.Typer(
    name="depthrate",
    help="Launch depth x width x weight-decay x seed grids of small networks, measure their features, fit the rates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="The data sets: what is here, and getting what is not.", no_args_is_help=True)
app.add_typer(data_app, name="data")

SweepArgument = Annotated[str, typer.Argument(help="A sweep file, or the name of a shipped or launched sweep.")]
StoreOption = Annotated[
    str | None, typer.Option("--store", help="Any fsspec URL; else DEPTHRATE_STORE, else ./results.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a parameter; a list makes it an axis of the grid."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto (GPUs if there are any), cpu or cuda.")]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", help="Worker processes; default: one a GPU, else one a core.")
]
ExecutorOption = Annotated[str, typer.Option("--executor", help=f"Where packs run: {executor_names()}.")]


def main() -> None:
    """Run the command line."""
    app()


@contextmanager
def _bad_input_exits() -> Iterator[None]:
    """Turn the errors that our packages raise for what a user gave into one message and exit code 2."""
    try:
        yield
    except ValueError as error:
        if type(error).__module__.partition(".")[0] != "depthrate":
            raise
        print(f"depthrate: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    except BrokenPipeError:
        # whoever read our output has seen enough, as `| head` does; nothing more may be written, at exit neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(141) from None
    except OSError as error:
        again = "what is committed is not touched; run the same command again when that is mended"
        print(f"depthrate: {type(error).__name__}: {error}; {again}", file=sys.stderr)
        raise typer.Exit(1) from None


ExecutorOptions = Mapping[str, Any] | None
"""In whose place a command has all options that executors declare."""


def _with_executor_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that executors declare, in the place of its parameter `options`, which gets their values."""
    declared = executor_options()

    @functools.wraps(command)
    def call(**given: Any) -> None:
        options = {option.name: given.pop(option.name) for option in declared}
        command(**given, options=options)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        parameters += [_parameter_of(option) for option in declared] if parameter.name == "options" else own
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    return call


def _parameter_of(option: Option) -> inspect.Parameter:
    kind = option.type if option.default is not None else option.type | None
    annotation: Any = Annotated[kind, typer.Option(option.flag, min=option.minimum, help=option.doc)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(option.name, keyword, default=option.default, annotation=annotation)


@app.command()
@_with_executor_options
def run(
    sweep: SweepArgument,
    store: StoreOption = None,
    executor: ExecutorOption = DEFAULT_EXECUTOR,
    options: ExecutorOptions = None,
    workers: WorkersOption = None,
    device: DeviceOption = "auto",
    set_: SetOption = None,
    detach: Annotated[bool, typer.Option("--detach", help="Submit and exit; the jobs go on.")] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0.0, help="Training time between two checkpoints of a pack.")
    ] = 30.0,
) -> None:
    """Run what is pending of a sweep, then fit its rates. Run it again to resume: what is committed is never redone."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.launch_arguments import LaunchArguments
        from depthrate.orchestrator.commands.run import run_sweep

        arguments = LaunchArguments(
            sweep=sweep,
            store=store,
            overrides=set_ or (),
            executor=executor,
            workers=workers,
            device=device,
            options=options or {},
        )
        code = run_sweep(arguments, detach=detach, checkpoint_s=checkpoint_seconds)
    if code:
        raise typer.Exit(code)


@app.command()
@_with_executor_options
def plan(
    sweep: SweepArgument,
    store: StoreOption = None,
    workers: WorkersOption = None,
    device: DeviceOption = "auto",
    set_: SetOption = None,
    executor: ExecutorOption = DEFAULT_EXECUTOR,
    options: ExecutorOptions = None,
    json: JsonOption = False,
) -> None:
    """Show what would run and what is done; starts nothing."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.launch_arguments import LaunchArguments
        from depthrate.orchestrator.commands.plan import show_plan

        arguments = LaunchArguments(
            sweep=sweep,
            store=store,
            overrides=set_ or (),
            executor=executor,
            workers=workers,
            device=device,
            options=options or {},
        )
        show_plan(arguments, json)


@app.command()
def status(
    sweep: Annotated[str | None, typer.Argument(help="A sweep; default: all sweeps of the store.")] = None,
    store: StoreOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds until all is done.")] = False,
    json: JsonOption = False,
) -> None:
    """Show how many trials are done, running, failed and pending."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.status import show_status
        from depthrate.storage.store import existing_store

        show_status(sweep, existing_store(store), watch=watch, as_json=json)


@app.command()
def cancel(sweep: Annotated[str, typer.Argument(help="A sweep that was launched.")], store: StoreOption = None) -> None:
    """Stop a sweep wherever it runs: what runs saves its state, what waits is taken out of the queue."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.cancel import cancel_launched
        from depthrate.orchestrator.terminal import make_console
        from depthrate.storage.store import existing_store

        cancel_launched(existing_store(store), sweep, make_console())


@app.command()
def logs(
    trial: Annotated[str, typer.Argument(help="A trial_id, or its beginning.")], store: StoreOption = None
) -> None:
    """Print every attempt of a trial: where it ran, how it ended, and what it printed."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.logs import print_logs
        from depthrate.orchestrator.terminal import make_console
        from depthrate.storage.store import existing_store

        print_logs(existing_store(store), trial, make_console())


@app.command()
def debug(
    trial: Annotated[str, typer.Argument(help="A trial_id, or its beginning.")],
    sweep: Annotated[
        str | None, typer.Option("--sweep", help="The sweep it belongs to; default: any of the store.")
    ] = None,
    store: StoreOption = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    pdb: Annotated[bool, typer.Option("--pdb", help="Open the debugger where an exception was raised.")] = False,
) -> None:
    """Run one trial alone in this process, without committing anything, and print its last measurement."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.debug import debug_trial
        from depthrate.orchestrator.terminal import make_console
        from depthrate.storage.data_folder import open_data_folder
        from depthrate.storage.store import existing_store, open_store

        opened = existing_store(store) if sweep is None else open_store(store)
        debug_trial(opened, trial, sweep, open_data_folder(), device, pdb, make_console())


class Format(StrEnum):
    """What `query` writes."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


@app.command()
def query(
    sql: Annotated[
        str, typer.Argument(help="One SELECT over trials, metrics, curves, features, attempts, fits, results.")
    ],
    store: StoreOption = None,
    format: Annotated[
        Format | None, typer.Option("--format", help="Default: by the ending of -o, else a table.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A file to write instead of printing.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Ask the store with SQL; read-only."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.query import answer
        from depthrate.orchestrator.usage import UsageError

        if json and format not in (None, Format.json):
            raise UsageError(f"--json and --format {format} contradict each other; give one of them")
        answer(sql, store, Format.json if json else format, output)


@app.command()
def compact(
    store: StoreOption = None,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Hours that replaced files stay for whoever is still reading them.")
    ] = 1.0,
) -> None:
    """Put many small files together into few large, sorted ones; safe while sweeps run and queries are asked."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.compact import run_compaction
        from depthrate.orchestrator.terminal import make_console
        from depthrate.storage.store import existing_store

        run_compaction(existing_store(store), grace * 3600, make_console())


@app.command()
def verify(
    store: StoreOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Move what is broken to quarantine/; its trials are pending again.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Read every file of the store and compare it with what was committed; exit code 1 if something is wrong."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.verify import run_verification
        from depthrate.orchestrator.terminal import make_console
        from depthrate.storage.store import existing_store

        if not run_verification(existing_store(store), repair, json, make_console()):
            raise typer.Exit(1)


@app.command()
def fit(
    sweep: SweepArgument,
    store: StoreOption = None,
    metric: Annotated[str | None, typer.Option("--metric", help="Fit this instead of what the sweep asks for.")] = None,
    x: Annotated[str | None, typer.Option("--x", help="The parameter to fit over; default: depth.")] = None,
    by: Annotated[list[str] | None, typer.Option("--by", help="One curve for each value; several times.")] = None,
    layer: Annotated[int | None, typer.Option("--layer", help="Default: the last; -2 is the one before it.")] = None,
    where: Annotated[str | None, typer.Option("--where", help="SQL over results: which trials.")] = None,
    weights: Annotated[str | None, typer.Option("--weights", help="equal, spread or robust.")] = None,
    x_min: Annotated[str | None, typer.Option("--x-min", help="Lower cut-off: a number, or auto.")] = None,
    unconverged: Annotated[str | None, typer.Option("--unconverged", help="keep or drop.")] = None,
    target: Annotated[float | None, typer.Option("--target", help="At which x is this value reached?")] = None,
    json: JsonOption = False,
) -> None:
    """Fit the rates that a sweep asks for, keep them in the store, and print them; with options, others of the moment."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.fit import fit_sweep
        from depthrate.storage.store import existing_store
        from depthrate.sweeps.sweep_file import parse_yaml

        given: dict[str, Any] = {"metric": metric, "x": x, "by": by, "layer": layer, "where": where, "weights": weights}
        given |= {"x_min": x_min and parse_yaml(x_min), "unconverged": unconverged, "target": target}
        fit_sweep(
            sweep,
            existing_store(store),
            {name: value for name, value in given.items() if value not in (None, [])},
            json,
        )


@app.command()
def report(
    sweep: SweepArgument,
    store: StoreOption = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option("--figures", help="A folder for each figure as SVG and PDF, its data as CSV.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write it again while the sweep runs, until it is done.")
    ] = False,
    every: Annotated[float, typer.Option("--every", min=1.0, help="Seconds between two reports of --watch.")] = 15.0,
) -> None:
    """Draw the sweep's report: one HTML file that opens from disk."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.report import report_sweep

        try:
            report_sweep(sweep, store, output, figures, every if watch else None)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


@app.command()
def export(
    sweep: SweepArgument,
    storage: Annotated[str, typer.Argument(help="Where Optuna keeps studies, as in sqlite:///search.db.")],
    store: StoreOption = None,
) -> None:
    """Copy a sweep's search into an Optuna storage, which optuna-dashboard opens."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.export import export_search
        from depthrate.storage.store import existing_store

        export_search(sweep, existing_store(store), storage)


@app.command()
def tasks(name: Annotated[str | None, typer.Argument(help="A task: its name, or file.py:function.")] = None) -> None:
    """List the tasks, or the parameters of one."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.tasks import print_parameters, print_tasks
        from depthrate.orchestrator.terminal import make_console

        if name is None:
            print_tasks(make_console())
        else:
            print_parameters(name, make_console())


@data_app.command("list")
def data_list() -> None:
    """Show which data sets are at DEPTHRATE_DATA, and which files of them are read."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.data import print_datasets
        from depthrate.storage.data_folder import open_data_folder

        print_datasets(open_data_folder())


@data_app.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(help="A data set: its name in depthrate data list.")]) -> None:
    """Download a data set from its publisher to DEPTHRATE_DATA, checksums checked."""
    with _bad_input_exits():
        from depthrate.orchestrator.commands.data import fetch_and_print
        from depthrate.storage.data_folder import open_data_folder

        if not fetch_and_print(name, open_data_folder()):
            raise typer.Exit(1)
