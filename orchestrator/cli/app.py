"""The command line: arguments and what they mean, nothing else. What a command needs is imported when it is called."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from depthrate.orchestrator.cli.command_groups import data_app, init, schema, sweeps_app, trials_app
from depthrate.orchestrator.cli.command_options import takes_launch
from depthrate.orchestrator.cli.exit_codes import exits
from depthrate.orchestrator.cli.options import (
    JsonOption,
    StoreOption,
    SweepArgument,
    TrialArgument,
    WideOption,
    print_version,
)
from depthrate.orchestrator.executors.options import LaunchOptions
from depthrate.orchestrator.report.drawing.style import PaperWidth, StyleName

app = typer.Typer(
    name="depthrate",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.add_typer(sweeps_app, name="sweeps")
app.add_typer(trials_app, name="trials")
app.command()(init)
app.command()(schema)


@app.callback()
def depthrate(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Launch depth x width x weight-decay x seed grids of small networks, measure their features, fit the rates."""


def main() -> None:
    """Run the command line."""
    app()


@app.command()
@exits
@takes_launch(of_plan=False)
def run(launch: LaunchOptions) -> int:
    """Run what is pending of a sweep, then fit its rates. Run it again to resume: what is committed is never redone."""
    from depthrate.orchestrator.cli.commands.run import run_sweep

    return run_sweep(launch)


@app.command()
@exits
@takes_launch(of_plan=True)
def plan(launch: LaunchOptions, json: JsonOption = False, wide: WideOption = False) -> None:
    """Show what would run and what is done; starts nothing."""
    from depthrate.orchestrator.cli.commands.plan import show_plan

    show_plan(launch, json, wide=wide)


@app.command()
@exits
def status(
    sweep: Annotated[str | None, typer.Argument(help="A sweep; default: all sweeps of the store.")] = None,
    store: StoreOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds until all is done.")] = False,
    json: JsonOption = False,
    prometheus: Annotated[
        Path | None, typer.Option(help="Write the same for Prometheus' node exporter: a file NAME.prom.")
    ] = None,
    wide: WideOption = False,
) -> None:
    """Show how many trials are done, running, failed and pending; of one sweep also what it has cost."""
    from depthrate.orchestrator.cli.commands.status import show_status
    from depthrate.storage.files.store import existing_store

    show_status(sweep, existing_store(store), watch=watch, as_json=json, textfile=prometheus, wide=wide)


@app.command()
@exits
def nodes(
    sweep: Annotated[str, typer.Argument(help="A sweep that was launched.")],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show what each node has done of a sweep, what failed there, and how."""
    from depthrate.orchestrator.cli.commands.nodes import show_nodes
    from depthrate.storage.files.store import existing_store

    show_nodes(sweep, existing_store(store), as_json=json)


@app.command()
@exits
def cancel(
    sweep: Annotated[str, typer.Argument(help="A sweep that was launched.")],
    store: StoreOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="End what runs at once, without saving its state: for a task that hangs.")
    ] = False,
) -> None:
    """Stop a sweep wherever it runs: what runs saves its state, what waits is taken out of the queue."""
    from depthrate.orchestrator.cli.commands.cancel import cancel_launched
    from depthrate.orchestrator.console.tables import make_console
    from depthrate.storage.files.store import existing_store

    cancel_launched(existing_store(store, writes=True), sweep, make_console(), force=force)


@app.command()
@exits
def logs(trial: TrialArgument, store: StoreOption = None) -> None:
    """Print every attempt of a trial: where it ran, how it ended, and what it printed."""
    from depthrate.orchestrator.cli.commands.logs import print_logs
    from depthrate.orchestrator.console.tables import make_console
    from depthrate.storage.files.store import existing_store

    print_logs(existing_store(store), trial, make_console())


@app.command()
@exits
def debug(
    trial: TrialArgument,
    sweep: Annotated[
        str | None, typer.Option("--sweep", help="The sweep it belongs to; default: any of the store.")
    ] = None,
    store: StoreOption = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    pdb: Annotated[bool, typer.Option("--pdb", help="Open the debugger where an exception was raised.")] = False,
) -> None:
    """Run one trial alone in this process, without committing anything, and print its last measurement."""
    from depthrate.orchestrator.cli.commands.debug import debug_trial

    debug_trial(trial, sweep, store, device, post_mortem=pdb)


@app.command()
@exits
def diff(
    first: TrialArgument,
    second: TrialArgument,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show what two trials differ in: parameters, versions, where they ran, and their task's code."""
    from depthrate.orchestrator.cli.commands.diff import show_difference
    from depthrate.orchestrator.console.tables import make_console
    from depthrate.storage.files.store import existing_store

    show_difference(existing_store(store), (first, second), json, make_console())


class Format(StrEnum):
    """What `query` writes."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


@app.command("accept-code")
@exits
def accept_code(
    content_hash: Annotated[
        str, typer.Argument(metavar="HASH", help="Of the code, as the command that refused it says.")
    ],
) -> None:
    """Let code run that others could have written, or that a shared store names, after reading it; as it is, and for you."""
    from depthrate.orchestrator.cli.commands.accept_code import accept_code
    from depthrate.orchestrator.console.tables import make_console

    accept_code(content_hash, make_console())


@app.command()
@exits
def query(
    sql: Annotated[
        str, typer.Argument(help="One SELECT over trials, metrics, curves, features, live, attempts, fits, results.")
    ],
    store: StoreOption = None,
    sweep: Annotated[str | None, typer.Option("--sweep", help="The trials of this sweep alone.")] = None,
    format: Annotated[
        Format | None, typer.Option("--format", help="Default: by the ending of -o, else a table.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A file to write instead of printing.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    wide: WideOption = False,
) -> None:
    """Ask the store with SQL; read-only."""
    from depthrate.orchestrator.cli.commands.query import answer

    answer(sql, store, format, output, sweep=sweep, as_json=json, wide=wide)


@app.command()
@exits
def compare(first: SweepArgument, second: SweepArgument, store: StoreOption = None, json: JsonOption = False) -> None:
    """Show what two sweeps differ in, their fits side by side, and whether they share their exponents."""
    from depthrate.orchestrator.cli.commands.compare import compare_sweeps
    from depthrate.orchestrator.console.tables import make_console
    from depthrate.storage.files.store import existing_store

    compare_sweeps((first, second), existing_store(store), json, make_console())


@app.command()
@exits
def compact(
    store: StoreOption = None,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Hours that replaced files stay for whoever is still reading them.")
    ] = 1.0,
) -> int:
    """Put many small files together into few large, sorted ones; safe while sweeps run and queries are asked."""
    from depthrate.orchestrator.cli.commands.compact import run_compaction
    from depthrate.orchestrator.console.tables import make_console
    from depthrate.storage.files.store import existing_store

    return 0 if run_compaction(existing_store(store, writes=True), grace * 3600, make_console()) else 1


@app.command()
@exits
def verify(
    store: StoreOption = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Move what is broken to quarantine/; its trials are pending again.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Read every file of the store and compare it with what was committed; exit code 1 if something is wrong."""
    from depthrate.orchestrator.cli.commands.verify import run_verification
    from depthrate.orchestrator.console.tables import make_console
    from depthrate.storage.files.store import existing_store

    is_well = run_verification(existing_store(store, writes=repair), repair, json, make_console())
    return 0 if is_well else 1


@app.command()
@exits
def upgrade(store: StoreOption = None) -> None:
    """Bring a store of an older version up to this one's format; safe beside running sweeps, and resumable."""
    from depthrate.orchestrator.cli.commands.upgrade import upgrade_store
    from depthrate.orchestrator.console.tables import make_console
    from depthrate.storage.files.store import existing_store

    upgrade_store(existing_store(store, writes=True), make_console())


@app.command()
@exits
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
    wide: WideOption = False,
) -> None:
    """Fit the rates that a sweep asks for, keep them in the store, and print them; with options, others of the moment."""
    from depthrate.orchestrator.cli.commands.fit import fit_sweep
    from depthrate.storage.files.store import existing_store

    given: dict[str, Any] = {"metric": metric, "x": x, "by": by, "layer": layer, "where": where, "weights": weights}
    given |= {"x_min": x_min, "unconverged": unconverged, "target": target}
    fit_sweep(sweep, existing_store(store), given, json, wide=wide)


@app.command()
@exits
def report(
    sweep: SweepArgument,
    store: StoreOption = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option("--figures", help="A folder for figures: SVG, PDF, CSV.")] = None,
    dark: Annotated[bool, typer.Option("--dark", help="Draw these figures for a dark background.")] = False,
    style: Annotated[
        StyleName | None,
        typer.Option("--style", help="Of these figures: screen (default), or paper: serif, at its size."),
    ] = None,
    width: Annotated[
        PaperWidth | None,
        typer.Option("--width", help="Of a paper's figures: column (3.25 in, default) or text (5.5 in)."),
    ] = None,
    latex: Annotated[Path | None, typer.Option("--latex", help="A folder for fits.tex and methods.tex.")] = None,
    overlay: Annotated[str | None, typer.Option("--overlay", help="A second sweep, in the same figures.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write it again while the sweep runs, until it is done.")
    ] = False,
    every: Annotated[float, typer.Option("--every", min=1.0, help="Seconds between two reports of --watch.")] = 15.0,
) -> None:
    """Draw the sweep's report: one HTML file that opens from disk."""
    from depthrate.orchestrator.cli.commands.report import ReportOptions, report_sweep

    options = ReportOptions(figures, dark, style, width, latex, overlay)
    report_sweep(sweep, store, output, options, every if watch else None)


@app.command()
@exits
def export(
    sweep: SweepArgument,
    to: Annotated[
        str | None, typer.Argument(help="TensorBoard's folder, Optuna's database (sqlite:///x.db), MLflow's server.")
    ] = None,
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="To MLflow: to the server TO, else where MLFLOW_TRACKING_URI says.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Copy curves and metrics to TensorBoard or MLflow, or a search to an Optuna storage, which optuna-dashboard opens."""
    from depthrate.orchestrator.cli.commands.export import export_sweep
    from depthrate.storage.files.store import existing_store

    export_sweep(sweep, existing_store(store), to, mlflow=mlflow)


@app.command()
@exits
def tasks(name: Annotated[str | None, typer.Argument(help="A task: its name, or file.py:function.")] = None) -> None:
    """List the tasks, or the parameters and measurements of one."""
    from depthrate.orchestrator.cli.commands.tasks import show_tasks
    from depthrate.orchestrator.console.tables import make_console

    show_tasks(name, make_console())
