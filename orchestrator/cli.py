"""The command line. Parsing and printing only; torch and ray are never imported here."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.driver import Outcome
    from orchestrator.place import Place
    from orchestrator.plan import CheckedSweep, Plan
    from orchestrator.proposals import SearchView
    from orchestrator.search import SearchFeed
    from storage.files import Files
    from storage.snapshot import Problem, Snapshot
    from storage.specs import LaunchedSpec
    from sweeps.sweep import Sweep

app = typer.Typer(
    name="depthrate",
    help="Launch depth x width x weight-decay x seed grids of small networks, measure their features, fit the rates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="The data sets: what is here, and getting what is not.", no_args_is_help=True)
app.add_typer(data_app, name="data")
_OUR_PACKAGES = ("orchestrator", "tasks", "sweeps", "storage", "slurm")

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
ExecutorOption = Annotated[str, typer.Option("--executor", help="Where packs run: local, ray or slurm.")]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="A Ray cluster, as in host:6379 or auto; default: a Ray of our own."),
]
PacksPerGpuOption = Annotated[
    int, typer.Option("--packs-per-gpu", min=1, help="With --executor ray: packs that share a GPU.")
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="A cluster file (TOML): what each SLURM job asks for; see the README.")
]


def main() -> None:
    """Run the command line."""
    app()


@contextmanager
def _bad_input_exits() -> Iterator[None]:
    """Turn the errors that our packages raise for what a user gave into one message and exit code 2."""
    try:
        yield
    except ValueError as error:
        if type(error).__module__.partition(".")[0] not in _OUR_PACKAGES:
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


@app.command()
def run(
    sweep: SweepArgument,
    store: StoreOption = None,
    executor: ExecutorOption = "local",
    cluster: ClusterOption = None,
    address: AddressOption = None,
    packs_per_gpu: PacksPerGpuOption = 1,
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
        from orchestrator.place import open_place
        from orchestrator.plan import check_contents, check_data, check_sweep, make_estimate, make_plan
        from orchestrator.proposals import check_search
        from orchestrator.show import make_console, print_search
        from storage.files import DataFolder

        if detach and executor != "slurm":
            _refuse(f"--detach goes with --executor slurm; {executor} workers end with their launch")
        started = time.monotonic()
        console = make_console()
        again = _again("run", sweep, store, set_, executor, cluster, address)
        checked = check_sweep(_load_sweep(sweep, set_))
        data = DataFolder(_data_url())
        check_data(checked, data)
        check_search(checked, data)
        if detach and checked.sweep.search is not None:
            _refuse("a search needs its launch to stay and propose; leave out --detach")
        files = _open_files(store)
        place = open_place(
            executor,
            device=device,
            workers=workers,
            cluster=cluster,
            sweep=checked.sweep,
            files=files,
            address=address,
            packs_per_gpu=packs_per_gpu,
        )
        checked, view, feed = _start_search(checked, files, place)
        plan = make_plan(
            checked,
            files,
            device=place.device,
            workers=place.workers,
            submitted=place.submitted,
            memory_bytes=place.memory_bytes,
        )
        check_contents(plan, data)
        _warn(plan.snapshot.problems)
        console.print(_plan_sentence(plan), highlight=False)
        if view is not None and feed is not None:
            console.print(view.sentence(), highlight=False)
            feed.hand_out(trial_id for pack in (*plan.packs, *plan.underway.values()) for trial_id in pack.trial_ids)
        snapshot, outcome = plan.snapshot, None
        if plan.packs or plan.underway:
            from orchestrator.launch import launch, submit

            estimate_s = make_estimate(plan, files)
            place.check(plan, estimate_s)
            console.print(f"{place.sentence()}; store {files.url}", highlight=False)
            if detach:
                count = submit(plan, files, place, estimate_s, data=data.url, checkpoint_s=checkpoint_seconds)
                console.print(f"{count} packs are on their way; how far: {_again('status', checked.sweep.name, store)}")
                return
            try:
                end = launch(
                    plan,
                    files,
                    place,
                    estimate_s,
                    data=data.url,
                    checkpoint_s=checkpoint_seconds,
                    console=console,
                    feed=feed,
                )
            except KeyboardInterrupt:
                console.print(f"stopped; resume: {again}", highlight=False)
                raise typer.Exit(130) from None
            snapshot, outcome = end.snapshot, end.outcome
        if view is not None:
            view.refresh()
            checked = replace(checked, trials=view.trials())
            console.print(view.sentence(), highlight=False)
        left = len({trial.trial_id for trial in checked.trials} - snapshot.trial_ids())
        is_all = left == 0 and (view is None or view.is_over)
        if is_all:
            console.print(
                f"all {len(checked.trials)} trials are committed ({time.monotonic() - started:.0f} s)", highlight=False
            )
            _print_diverged(console, checked, snapshot)
        if view is not None:
            _remember(files, checked)
            print_search(console, view)
        if len(plan.done) + left < len(checked.trials) or left == 0:
            from orchestrator.rates import fit_and_print

            fit_and_print(console, checked, files, view)
        if is_all:
            _remember(files, checked)
            console.print(f"picture: {_again('report', checked.sweep.name, store)}", highlight=False)
            return
        if outcome is not None and outcome.interrupted:
            how = "cancelled" if outcome.cancelled else "left" if executor == "slurm" else "interrupted"
            console.print(f"{how} with {left} trials to do; resume: {again}", highlight=False)
            if how == "left":
                console.print(
                    f"the jobs go on; end them: {_again('cancel', checked.sweep.name, store)}", highlight=False
                )
        if outcome is not None and (outcome.failures or not outcome.interrupted):
            _print_failures(outcome, left, store, again)
        raise typer.Exit(130 if outcome is not None and outcome.interrupted else 1)


@app.command()
def plan(
    sweep: SweepArgument,
    store: StoreOption = None,
    workers: WorkersOption = None,
    device: DeviceOption = "auto",
    set_: SetOption = None,
    executor: ExecutorOption = "local",
    cluster: ClusterOption = None,
    address: AddressOption = None,
    packs_per_gpu: PacksPerGpuOption = 1,
    json: JsonOption = False,
) -> None:
    """Show what would run and what is done; starts nothing."""
    with _bad_input_exits():
        from orchestrator.place import open_place
        from orchestrator.plan import (
            check_contents,
            check_data,
            check_sweep,
            estimated_hours,
            make_estimate,
            make_plan,
        )
        from orchestrator.proposals import check_search, with_search
        from orchestrator.show import make_console, print_json, print_table
        from storage.files import DataFolder
        from sweeps.memory import gigabytes, predicted_bytes
        from sweeps.packing import estimated_wall_s
        from sweeps.trial import varying_parameters

        checked = check_sweep(_load_sweep(sweep, set_))
        data = DataFolder(_data_url())
        check_data(checked, data)
        check_search(checked, data)
        files = _open_files(store)
        checked, view = with_search(checked, files)
        place = open_place(
            executor,
            device=device,
            workers=workers,
            cluster=cluster,
            sweep=checked.sweep,
            files=files,
            address=address,
            packs_per_gpu=packs_per_gpu,
        )
        made = make_plan(
            checked,
            files,
            device=place.device,
            workers=place.workers,
            submitted=place.submitted,
            memory_bytes=place.memory_bytes,
        )
        check_contents(made, data)
        estimate_s = make_estimate(made, files)
        place.check(made, estimate_s)
        hours, details = estimated_hours(made, estimate_s), place.details(made, estimate_s)
        memory = [
            None if (peak := predicted_bytes(p, checked.task, place.device)) is None else peak / 1e9 for p in made.packs
        ]
        if json:
            print_json(
                {
                    "sweep": checked.sweep.name,
                    "num_trials": len(checked.trials),
                    "num_done": len(made.done),
                    "num_pending": made.num_pending,
                    "packs": [
                        {"pack_id": p.pack_id, "trial_ids": p.trial_ids, "predicted_memory_gb": peak_gb}
                        for p, peak_gb in zip(made.packs, memory, strict=True)
                    ],
                    "worker_memory_gb": None if place.memory_bytes is None else place.memory_bytes / 1e9,
                    "workers": place.workers,
                    "device": place.device,
                    "estimated_core_hours": hours,
                    **details,
                    **({} if view is None else {"search": view.to_json()}),
                    "problems": [str(problem) for problem in made.snapshot.problems],
                }
            )
            return
        _warn(made.snapshot.problems)
        console = make_console()
        console.print(_plan_sentence(made), highlight=False)
        if view is not None:
            console.print(view.sentence(), highlight=False)
        if not made.packs:
            return
        varying = varying_parameters(checked.trials)
        rows = []
        for pack, peak_gb in zip(made.packs[:40], memory, strict=False):
            cells = [_values([t.params[name] for t in pack.trials]) for name in varying]
            seconds = None if checked.task.estimate_s is None else round(estimated_wall_s(pack, checked.task))
            rows.append(
                [pack.pack_id, len(pack.trials), *cells, seconds, None if peak_gb is None else round(peak_gb, 2)]
            )
        print_table(console, ["pack", "trials", *varying, "rough core-s", "peak GB"], rows)
        if len(made.packs) > 40:
            console.print(f"and {len(made.packs) - 40} more packs")
        if hours is not None:
            wall = hours / min(place.workers, len(made.packs))
            console.print(
                f"about {hours:.2g} core-hours, {wall:.2g} h with {place.workers} workers on {place.device}",
                highlight=False,
            )
        if place.memory_bytes is not None and any(peak_gb is not None for peak_gb in memory):
            console.print(f"a worker may use {gigabytes(place.memory_bytes)} of memory", highlight=False)
        if details:
            console.print(place.sentence(), highlight=False)
        for name, value in details.items():
            text = f"{value:.2g}" if isinstance(value, float) else value
            if value is not None:
                shown = f"\n{text}" if "\n" in str(value) else f" {text}"
                console.print(f"{name.replace('_', ' ')}:{shown}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def status(
    sweep: Annotated[str | None, typer.Argument(help="A sweep; default: all sweeps of the store.")] = None,
    store: StoreOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds until all is done.")] = False,
    json: JsonOption = False,
) -> None:
    """Show how many trials are done, running, failed and pending."""
    with _bad_input_exits():
        from orchestrator.show import make_console, print_json, print_table
        from orchestrator.status import STATES, sweep_status
        from orchestrator.submissions import job_counts
        from storage.snapshot import SnapshotCache, take_snapshot

        files = _existing_files(store)
        planned = _planned_trials(sweep, files)
        console, cache = make_console(), SnapshotCache()
        while True:
            snapshot = take_snapshot(files, cache=cache)
            states = [sweep_status(name, trial_ids, snapshot, files) for name, trial_ids in planned.items()]
            jobs = {name: counts for name in planned if (counts := job_counts(files, name)) is not None}
            if json:
                print_json([state.to_json() | {"slurm_jobs": jobs.get(state.name)} for state in states])
            else:
                if watch and console.is_terminal:
                    console.clear()
                rows = [[s.name, len(s.states), *s.counts().values(), round(s.trial_hours(), 3)] for s in states]
                print_table(console, ["sweep", "trials", *STATES, "trial-hours"], rows)
                for name, counts in jobs.items():
                    reasons = ", ".join(f"{reason} {count}" for reason, count in counts["reasons"].items())
                    text = f"{name}: {counts['waiting']} SLURM jobs wait" + (f" ({reasons})" if reasons else "")
                    text += f", {counts['running']} run"
                    console.print(text, highlight=False, markup=False)
                for state in states:
                    for message, count in state.errors().most_common(5):
                        console.print(
                            f"{state.name}: {count} trials failed with: {message}", highlight=False, markup=False
                        )
                _warn(snapshot.problems)
            open_trials = sum(state.counts()["pending"] + state.counts()["running"] for state in states)
            if not watch or not open_trials:
                return
            time.sleep(2)


@app.command()
def cancel(sweep: Annotated[str, typer.Argument(help="A sweep that was launched.")], store: StoreOption = None) -> None:
    """Stop a sweep wherever it runs: what runs saves its state, what waits is taken out of the queue."""
    with _bad_input_exits():
        from orchestrator.cancel import cancel_sweep
        from orchestrator.show import make_console
        from storage.specs import newest_specs

        files = _existing_files(store)
        launched = newest_specs(files)
        if sweep not in launched:
            _refuse(
                f"no sweep {sweep!r} was launched in {files.url}; there is: {', '.join(sorted(launched)) or 'none'}"
            )
        cancel_sweep(files, sweep, make_console())


@app.command()
def logs(
    trial: Annotated[str, typer.Argument(help="A trial_id, or its beginning.")], store: StoreOption = None
) -> None:
    """Print every attempt of a trial: where it ran, how it ended, and what it printed."""
    with _bad_input_exits():
        from orchestrator.show import make_console
        from storage.layout import log_path
        from storage.records import compacted_log, read_records
        from storage.snapshot import take_snapshot

        files = _existing_files(store)
        snapshot = take_snapshot(files)
        states = read_records(files, snapshot)
        found = [s for s in states if any(trial_id.startswith(trial) for trial_id in s.get("trial_ids") or ())]
        if not found:
            _refuse(
                f'no attempt in {files.url} had a trial {trial!r}; trial ids: depthrate query "select trial_id from trials"'
            )
        console = make_console()
        for state in sorted(found, key=lambda s: s.get("started_at", 0)):
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state["started_at"]))
            head = f"attempt {state['attempt_id']} {state['state']}: started {when} on {state['host']}, pid {state['pid']}, "
            head += f"{len(state['trial_ids'])} trials, step {state['step']}/{state['num_steps'] or '?'}"
            console.print(head, highlight=False, markup=False)
            if state.get("error"):
                console.print(state.get("traceback") or state["error"], highlight=False, markup=False)
            try:
                printed: bytes | None = files.read(log_path(state["sweep"], state["attempt_id"]))
            except FileNotFoundError:
                printed = compacted_log(files, snapshot, state["attempt_id"])
            if printed:
                console.print(printed.decode(errors="replace"), highlight=False, markup=False, end="")


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
        from orchestrator.debug import debug_trial
        from orchestrator.show import make_console

        debug_trial(
            _existing_files(store, missing_ok=sweep is not None), trial, sweep, _data_url(), device, pdb, make_console()
        )


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
        from orchestrator.answer import print_answer, write_answer
        from orchestrator.show import make_console
        from storage.query import open_results

        chosen = _query_format(format, output, json)
        if output is not None and not output.parent.is_dir():
            _refuse(f"cannot write {output}: folder {output.parent} does not exist")
        results = open_results(store)
        relation = results.sql(sql)
        if output is None:
            print_answer(relation, chosen, make_console())
        else:
            try:
                write_answer(relation, chosen, output)
            except OSError as error:
                _refuse(f"cannot write {output}: {error}")
        _warn(results.problems)


def _query_format(given: Format | None, output: Path | None, json: bool) -> str:
    if json and given not in (None, Format.json):
        _refuse(f"--json and --format {given} contradict each other; give one of them")
    if given is not None or json:
        return str(given or Format.json)
    ending = "" if output is None else output.suffix.removeprefix(".").lower()
    if output is not None and ending not in (Format.csv, Format.json, Format.parquet, "txt", ""):
        _refuse(f"{output}: what is .{ending}? name it .csv, .json, .parquet or .txt, or give --format")
    return ending if ending in (Format.csv, Format.json, Format.parquet) else str(Format.table)


@app.command()
def compact(
    store: StoreOption = None,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Hours that replaced files stay for whoever is still reading them.")
    ] = 1.0,
) -> None:
    """Put many small files together into few large, sorted ones; safe while sweeps run and queries are asked."""
    with _bad_input_exits():
        from orchestrator.maintain import run_compaction
        from orchestrator.show import make_console

        run_compaction(_existing_files(store), grace * 3600, make_console())


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
        from orchestrator.maintain import run_verification
        from orchestrator.show import make_console

        if not run_verification(_existing_files(store), repair, json, make_console()):
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
        from orchestrator.plan import check_sweep
        from orchestrator.proposals import with_search
        from orchestrator.rates import fit_and_print, fit_otherwise
        from orchestrator.show import make_console
        from sweeps.sweep import parse_yaml

        files = _existing_files(store)
        checked, view = with_search(check_sweep(_chosen_sweep(sweep, files)), files)
        given: dict[str, Any] = {"metric": metric, "x": x, "by": by, "layer": layer, "where": where, "weights": weights}
        given |= {"x_min": x_min and parse_yaml(x_min), "unconverged": unconverged, "target": target}
        changes = {name: value for name, value in given.items() if value not in (None, [])}
        if changes:
            problems = fit_otherwise(make_console(), checked, files, view, changes, json)
        elif not checked.sweep.fit:
            _refuse(
                f"sweep {checked.sweep.name!r} asks for no fit; add to it, for example, fit: [{{metric: nc1, x: depth}}]"
            )
        else:
            problems = fit_and_print(make_console(), checked, files, view, as_json=json)
        if not json:
            _warn(problems)


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
        from orchestrator.plan import check_sweep
        from orchestrator.proposals import with_search
        from orchestrator.report_command import ReportFiles, write_report, write_reports

        files = _existing_files(store)
        checked, _ = with_search(check_sweep(_chosen_sweep(sweep, files)), files)
        if not checked.trials:
            _refuse(f"sweep {checked.sweep.name!r} has proposed nothing yet; run it: {_again('run', sweep, store)}")
        if not output.parent.is_dir():
            _refuse(f"cannot write {output}: folder {output.parent} does not exist")
        targets = ReportFiles(output, figures, ["depthrate", "run", sweep, "--store", files.url])
        try:
            written = write_reports(checked, files, targets, every) if watch else write_report(checked, files, targets)
        except OSError as error:
            _refuse(f"cannot write {error.filename or output}: {error}")
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        _warn(written.problems)
        print(f"wrote {output} ({written.megabytes:.1f} MB); open it in a browser")
        if figures:
            print(f"wrote {written.num_figures} figures to {figures}")


@app.command()
def export(
    sweep: SweepArgument,
    storage: Annotated[str, typer.Argument(help="Where Optuna keeps studies, as in sqlite:///search.db.")],
    store: StoreOption = None,
) -> None:
    """Copy a sweep's search into an Optuna storage, which optuna-dashboard opens."""
    with _bad_input_exits():
        from orchestrator.plan import check_sweep
        from orchestrator.proposals import with_search

        files = _existing_files(store)
        _, view = with_search(check_sweep(_chosen_sweep(sweep, files)), files)
        if view is None:
            _refuse(f"sweep {sweep!r} has no search; export is for searches")
        try:
            from orchestrator.search import export_studies
        except ImportError as error:
            _refuse(f"export needs Optuna ({error}); install it: pip install 'depthrate[search]'")
        for name in export_studies(view, storage):
            print(f"wrote study {name!r} to {storage}")


@app.command()
def tasks(name: Annotated[str | None, typer.Argument(help="A task: its name, or file.py:function.")] = None) -> None:
    """List the tasks, or the parameters of one."""
    with _bad_input_exits():
        from orchestrator.show import make_console, print_table
        from tasks.schema import REQUIRED
        from tasks.task import builtin_tasks, load_task

        console = make_console()
        if name is None:
            print_table(
                console,
                ["task", "version", "what"],
                [[t.name, str(t.version), t.doc] for t in builtin_tasks().values()],
            )
            return
        task = load_task(name, Path.cwd())
        console.print(f"{task.name}, version {task.version}. {task.doc}", highlight=False, markup=False)
        rows = [
            [
                p.name,
                p.allowed,
                "required" if p.default is REQUIRED else _literal(p.default),
                "yes" if p.fusible else "",
                p.doc,
            ]
            for p in task.schema.values()
        ]
        print_table(console, ["parameter", "allowed", "default", "fusible", "meaning"], rows)


@data_app.command("list")
def data_list() -> None:
    """Show which data sets are at DEPTHRATE_DATA, and which files of them are read."""
    with _bad_input_exits():
        from orchestrator.data import list_datasets
        from orchestrator.show import make_console, print_table
        from storage.files import DataFolder

        data = DataFolder(_data_url())
        console = make_console()
        console.print(f"data sets at {data.url} (DEPTHRATE_DATA)", highlight=False)
        rows = [[d.name, d.num_samples, d.num_classes, d.what, d.state, d.where] for d in list_datasets(data)]
        print_table(console, ["data set", "samples", "classes", "a sample", "state", "where"], rows)


@data_app.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(help="A data set: its name in depthrate data list.")]) -> None:
    """Download a data set from its publisher to DEPTHRATE_DATA, checksums checked."""
    with _bad_input_exits():
        from orchestrator.data import DownloadError, fetch_dataset
        from storage.files import DataFolder

        data = DataFolder(_data_url())
        try:
            for path in fetch_dataset(name, data):
                print(f"got {data.files.full_path(path)}")
        except DownloadError as error:
            print(f"depthrate: {error}", file=sys.stderr)
            raise typer.Exit(1) from None
        print(f"{name} is at {data.url}")


def _load_sweep(given: str, set_: list[str] | None) -> Sweep:
    from sweeps.sweep import SweepError, load_sweep, parse_yaml

    overrides = {}
    for text in set_ or ():
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise SweepError(f"--set {text!r}: give KEY=VALUE, as in --set depth=[2,3] or --set width=32")
        overrides[key.strip()] = parse_yaml(value)
    return load_sweep(given, overrides)


def _chosen_sweep(given: str, files: Files) -> Sweep:
    """Return the sweep that is meant: a file, the last launch under a name, or a shipped one."""
    from storage.specs import newest_specs
    from sweeps.sweep import load_sweep, sweep_of_spec

    launched = newest_specs(files)
    if given in launched and not Path(given).is_file():
        return sweep_of_spec(launched[given].spec)
    return load_sweep(given)


def _planned_trials(given: str | None, files: Files) -> dict[str, list[str]]:
    """Return sweep -> identities of its trials, of the sweep that is meant or of all that were launched."""
    from storage.specs import newest_specs

    launched = newest_specs(files)
    if given is None and not launched:
        _refuse(f"store {files.url} has no sweep yet; run one: depthrate run quickstart")
    if given is not None and (given not in launched or Path(given).is_file()):
        from orchestrator.plan import check_sweep
        from orchestrator.proposals import with_search
        from sweeps.sweep import load_sweep

        checked, _ = with_search(check_sweep(load_sweep(given)), files)
        return {checked.sweep.name: [trial.trial_id for trial in checked.trials]}
    planned = {}
    for spec in launched.values() if given is None else [launched[given]]:
        try:
            # a search that was killed knows more trials than were written down with its spec
            trial_ids = None if "search" in spec.spec else spec.trial_ids(files)
            planned[spec.sweep] = _expanded(spec, files) if trial_ids is None else trial_ids
        except ValueError as error:
            if given is not None:
                raise
            print(f"warning: sweep {spec.sweep}: {error}", file=sys.stderr)
    return planned


def _expanded(launched: LaunchedSpec, files: Files) -> list[str]:
    from orchestrator.plan import check_sweep
    from orchestrator.proposals import with_search
    from sweeps.sweep import sweep_of_spec

    checked, _ = with_search(check_sweep(sweep_of_spec(launched.spec)), files)
    return [trial.trial_id for trial in checked.trials]


def _start_search(
    checked: CheckedSweep, files: Files, place: Place
) -> tuple[CheckedSweep, SearchView | None, SearchFeed | None]:
    """Propose what can be proposed now, and return the sweep with all trials so far; nothing happens without a search."""
    from orchestrator.proposals import with_search

    checked, view = with_search(checked, files)
    if view is None or view.is_over:
        return checked, view, None
    files.check_writable()
    try:
        from orchestrator.search import SearchFeed
    except ImportError as error:
        _refuse(f"a search needs Optuna ({error}); install it: pip install 'depthrate[search]'")
    feed = SearchFeed(view, device=place.device, workers=place.workers, memory_bytes=place.memory_bytes)
    return replace(checked, trials=view.trials()), view, feed


def _open_files(store: str | None) -> Files:
    from storage.files import Files, default_store

    files = Files(store or default_store())
    files.check_readable()
    return files


def _existing_files(store: str | None, missing_ok: bool = False) -> Files:
    files = _open_files(store)
    if files.is_local and not os.path.isdir(files.root) and not missing_ok:
        _refuse(f"there is no store at {files.url!r}; run a sweep first, or name its place with --store")
    return files


def _data_url() -> str:
    return os.environ.get("DEPTHRATE_DATA") or str(Path.home() / ".cache" / "depthrate")


def _refuse(message: str) -> NoReturn:
    print(f"depthrate: {message}", file=sys.stderr)
    raise typer.Exit(2)


def _warn(problems: Sequence[Problem]) -> None:
    for problem in problems[:20]:
        print(f"warning: {problem}", file=sys.stderr)
    if len(problems) > 20:
        print(f"warning: and {len(problems) - 20} more damaged or foreign files", file=sys.stderr)


def _plan_sentence(made: Plan) -> str:
    checked = made.checked
    text = f"{checked.sweep.name}: {len(checked.trials)} trials, {len(made.done)} done"
    return text + (f", {made.num_pending} to run in {len(made.packs)} packs" if made.packs else "")


def _remember(files: Files, checked: CheckedSweep) -> None:
    """Make this the sweep that status, fit and report mean by its name, also when there was nothing to run."""
    from storage.specs import write_spec

    with suppress(OSError):
        trial_ids = [trial.trial_id for trial in checked.trials]
        write_spec(files, checked.sweep.name, checked.sweep.spec_hash(), checked.sweep.spec(), trial_ids)


def _print_diverged(console: Console, checked: CheckedSweep, snapshot: Snapshot) -> None:
    ours = {trial.trial_id for trial in checked.trials}
    rows = snapshot.trials.select(["trial_id", "status"]).to_pylist()
    count = sum(row["trial_id"] in ours and row["status"] == "diverged" for row in rows)
    if count:
        console.print(
            f"{count} of them diverged: depthrate query \"select * from trials where status = 'diverged'\"",
            highlight=False,
        )


def _print_failures(outcome: Outcome, left: int, store: str | None, again: str) -> None:
    print(f"depthrate: {left} trials are not done", file=sys.stderr)
    for failure in outcome.failures[:10]:
        first = failure.pack.trial_ids[0] if failure.pack.trials else "?"
        print(
            f"  {len(failure.pack.trials)} trials: {failure.error}; see: {_again('logs', first, store)}",
            file=sys.stderr,
        )
    if outcome.stopped_early:
        print("  stopped early: several packs failed with the same error", file=sys.stderr)
    print(f"  try what is left again: {again}", file=sys.stderr)


def _again(
    verb: str,
    what: str,
    store: str | None,
    set_: list[str] | None = None,
    executor: str = "local",
    cluster: str | None = None,
    address: str | None = None,
) -> str:
    """Return the command line that goes on from here."""
    import shlex

    words = ["depthrate", verb, what, *(["--store", store] if store else [])]
    words += ["--executor", executor] if executor != "local" else []
    words += ["--cluster", cluster] if cluster else []
    words += ["--address", address] if address else []
    return shlex.join(words + [part for text in set_ or () for part in ("--set", text)])


def _values(values: list[Any]) -> str:
    unique = list(dict.fromkeys(values))
    return ", ".join(map(str, unique[:6])) + (", ..." if len(unique) > 6 else "")


def _literal(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
