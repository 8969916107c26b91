"""`depthrate export`: copy curves and metrics to TensorBoard, MLflow, W&B or Delta tables, or a search to an Optuna storage,
which optuna-dashboard opens.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.cli.find_sweep import find_sweep
from depthrate.orchestrator.cli.options import declared, store_option, sweep_argument
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.export.mlflow import ExportedTrial, write_runs
from depthrate.orchestrator.export.tensorboard import Scalars, write_events
from depthrate.orchestrator.launch.plan import CheckedSweep
from depthrate.storage.files.store import Store, existing_store
from depthrate.storage.query.results import Results
from depthrate.storage.tables.own_columns import quoted
from depthrate.sweeps.trial import Trial, varying_parameters

LONGEST_NAME = 120
"""Letters of a run's folder."""


def export_sweep(
    given: str, store: Store, to: str | None, *, mlflow: bool = False, delta: bool = False, wandb: bool = False
) -> None:
    """Copy a sweep to a folder for TensorBoard, or, where `to` is a URL, its search into that Optuna storage.

    With `mlflow` its trials go to MLflow's tracking server or folder `to`, by default to where MLflow is set to; with `delta`
    into Delta tables below the folder or URL `to`, with `wandb` into offline runs of W&B below the folder `to`.

    Raises:
        ValueError: there is no such sweep, or nothing in it that can be copied there, or the place cannot be written.
    """
    places = [f"--{name}" for name, is_given in (("mlflow", mlflow), ("delta", delta), ("wandb", wandb)) if is_given]
    if len(places) > 1:
        raise UsageError(f"{' and '.join(places)} are {len(places)} places; give one of them")
    if mlflow:
        export_runs(given, store, to)
    elif to is None:
        raise UsageError(
            "say where to: a folder for TensorBoard, --delta or --wandb, a URL of an Optuna storage, or --mlflow"
        )
    elif delta:
        export_tables(given, store, to)
    elif wandb:
        export_offline_runs(given, store, Path(to))
    elif "://" in to:
        export_search(given, store, to)
    else:
        export_events(given, store, Path(to))


def export_search(given: str, store: Store, storage: str) -> None:
    """Copy a sweep's search into an Optuna storage.

    Raises:
        ValueError: there is no such sweep, it has no search, or Optuna is not installed.
    """
    _, view = find_sweep(given, store)
    if view is None:
        raise UsageError(f"sweep {given!r} has no search to copy to {storage}; give a folder for TensorBoard")
    try:
        from depthrate.orchestrator.export.optuna import export_studies
    except ImportError as error:
        raise _not_installed("export needs Optuna", error, "search") from None
    for name in export_studies(view, storage):
        print(f"wrote study {name!r} to {storage}")


def export_events(given: str, store: Store, folder: Path) -> None:
    """Write an event file a committed trial of a sweep: its curves, and its metrics at the last layer.

    Written again it replaces what it wrote before.

    Raises:
        UsageError: no trial of it is committed, tensorboardX is not installed, or the folder cannot be written.
    """
    checked, results = _sweep_results(given, store)
    names, count = run_names(checked.trials), 0
    times = dict(results.sql("select trial_id, epoch(committed_at) from trials").fetchall())
    try:
        for trial_id, steps in trial_scalars(results):
            run = folder / checked.sweep.name / names.get(trial_id, trial_id)
            run.mkdir(parents=True, exist_ok=True)
            path = run / f"events.out.tfevents.{int(times[trial_id])}.{trial_id}"
            write_events(path, times[trial_id], steps)
            for other in run.glob(f"events.out.tfevents.*.{trial_id}"):
                if other != path:  # of a commit that was removed since: both would be drawn as one curve
                    other.unlink()
            count += 1
    except ImportError as error:
        raise _not_installed("export to TensorBoard needs tensorboardX", error, "tensorboard") from None
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error}") from None
    if not count:
        raise UsageError(f"no committed trial of sweep {given!r} has curves or metrics; run it first")
    print(f"wrote {count} runs to {folder}; look at them: tensorboard --logdir {folder}")


def export_runs(given: str, store: Store, uri: str | None) -> None:
    """Write the committed trials of a sweep as runs of MLflow, in an experiment of its name; those that are there stay.

    Raises:
        UsageError: no trial of it is committed, MLflow is not installed, or it refuses.
    """
    try:
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise _not_installed("--mlflow needs MLflow's library", error, "mlflow") from None
    project, exported = _exported_trials(given, store)
    try:
        new, old, where = write_runs(uri, project, exported)
    except (MlflowException, OSError) as error:
        raise UsageError(f"MLflow at {uri or 'where it is set to'} refuses: {error}") from None
    print(f"wrote {new} runs to experiment {project!r} of {where}" + (f"; {old} were there" if old else ""))


def export_offline_runs(given: str, store: Store, folder: Path) -> None:
    """Write the committed trials of a sweep as offline runs of W&B, of a project of its name; those that are there stay.

    Raises:
        UsageError: no trial of it is committed, wandb is not installed or refuses, or the folder cannot be written.
    """
    try:
        import wandb
    except ImportError as error:
        raise _not_installed("--wandb needs W&B's client", error, "wandb") from None
    from depthrate.orchestrator.export.wandb import write_offline_runs

    project, exported = _exported_trials(given, store)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new, old = write_offline_runs(folder, project, exported)
    except (wandb.Error, OSError) as error:
        raise UsageError(f"cannot write runs of W&B to {folder}: {error}") from None
    told = f"; {old} were there" if old else ""
    print(
        f"wrote {new} runs of project {project!r} to {folder}{told}; upload them: wandb sync {folder}/wandb/offline-run-*"
    )


def _exported_trials(given: str, store: Store) -> tuple[str, list[ExportedTrial]]:
    """Return the name of a sweep, and its committed trials with what they measured.

    Raises:
        UsageError: none is committed.
    """
    checked, results = _sweep_results(given, store)
    names, trials = run_names(checked.trials), {trial.trial_id: trial for trial in checked.trials}
    rows = results.sql("select trial_id, attempt_id, epoch(committed_at), coalesce(wall_s, 0) from trials").fetchall()
    if not rows:
        raise UsageError(f"no trial of sweep {given!r} is committed; run it first")
    steps = dict(trial_scalars(results))
    exported = [
        ExportedTrial(
            trial_id, attempt_id, names[trial_id], trials[trial_id].params, at - wall_s, at, steps.get(trial_id, [])
        )
        for trial_id, attempt_id, at, wall_s in rows
    ]
    return checked.sweep.name, exported


def _not_installed(what: str, error: ImportError, extra: str) -> UsageError:
    return UsageError(f"{what} ({error}); install it: pip install 'depthrate[{extra}]'")


def export_tables(given: str, store: Store, url: str) -> None:
    """Make the Delta tables of a sweep, in a folder of its name, hold what is committed of it now.

    Raises:
        UsageError: deltalake is not installed, the place refuses, or another export is at it.
    """
    try:
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise _not_installed("--delta needs the library deltalake", error, "delta") from None
    from depthrate.orchestrator.export.delta import TableConflictError, write_tables

    checked, results = _sweep_results(given, store)
    folder = f"{url.rstrip('/')}/{checked.sweep.name}"
    try:
        changes = write_tables(results, folder)
    except (DeltaError, TableConflictError, OSError) as error:
        raise UsageError(f"Delta tables below {folder}: {' '.join(str(error).split())}") from None
    told = [
        f"{name}: {counted(change.written, 'trial')} written"
        + (f", {change.removed} taken out" if change.removed else "")
        for name, change in changes.items()
    ]
    print(f"{folder}: {'; '.join(told)}")


def _sweep_results(given: str, store: Store) -> tuple[CheckedSweep, Results]:
    """Return a sweep and what is committed of its trials."""
    checked, _ = find_sweep(given, store)
    trial_ids = [trial.trial_id for trial in checked.trials]
    return checked, results_of(store, checked.task).only(trial_ids, checked.sweep.name)


def run_names(trials: Sequence[Trial]) -> dict[str, str]:
    """Return trial -> a folder's name made of what varies, as in depth=3,seed=0."""
    varying = varying_parameters(trials) if trials else []
    names = {}
    for trial in trials:
        text = ",".join(f"{name}={trial.params[name]}" for name in varying) or trial.trial_id
        safe = re.sub(r"[^A-Za-z0-9_.,=+-]+", "-", text)
        names[trial.trial_id] = safe if len(safe) <= LONGEST_NAME else f"{safe[:LONGEST_NAME]}-{trial.trial_id}"
    return names


def trial_scalars(results: Results) -> Iterator[tuple[str, list[Scalars]]]:
    """Yield each trial with its finite numbers by step: `curves/loss`, `metrics/nc1`; those of a test split as `.../test`."""
    rows = sorted(
        itertools.chain(_rows(results, "curves", "true"), _rows(results, "metrics", "is_last")),
        key=lambda row: (row["trial_id"], row["step"]),
    )
    for trial_id, of_trial in itertools.groupby(rows, key=lambda row: row["trial_id"]):
        steps: list[Scalars] = []
        for step, at_step in itertools.groupby(of_trial, key=lambda row: row["step"]):
            values = {tag: value for row in at_step for tag, value in _values(row).items()}
            if values:
                steps.append((step, values))
        yield str(trial_id), steps


def _rows(results: Results, table: str, condition: str) -> Iterator[dict[str, Any]]:
    relation = results.sql(f"select * from {table} limit 0")
    numbers = [n for n, kind in zip(relation.columns, relation.types, strict=True) if str(kind) == "DOUBLE"]
    listed = "".join(f", {quoted(name)}" for name in numbers)
    query = f"select trial_id, step, split{listed} from {table} where {condition} and step is not null"
    for trial_id, step, split, *values in results.sql(query).fetchall():
        named = {f"{table}/{name}": value for name, value in zip(numbers, values, strict=True)}
        yield {"trial_id": trial_id, "step": step, "split": split, "values": named}


def _values(row: Mapping[str, Any]) -> dict[str, float]:
    ending = "" if row["split"] in (None, "train") else f"/{row['split']}"
    return {f"{name}{ending}": v for name, v in row["values"].items() if v is not None and math.isfinite(v)}


@declared(__doc__)
@sweep_argument("sweep")
@click.argument("to", required=False, help="TensorBoard's folder, Optuna's database (sqlite:///x.db), MLflow's server.")
@click.option("--mlflow", is_flag=True, help="To MLflow: to the server TO, else where MLFLOW_TRACKING_URI says.")
@click.option("--delta", is_flag=True, help="To Delta tables of trials, metrics and curves below the folder or URL TO.")
@click.option(
    "--wandb", is_flag=True, help="To offline runs of Weights & Biases below the folder TO; wandb sync uploads them."
)
@store_option
def command(sweep: str, to: str | None, mlflow: bool, delta: bool, wandb: bool, store: str | None) -> None:
    export_sweep(sweep, existing_store(store), to, mlflow=mlflow, delta=delta, wandb=wandb)
