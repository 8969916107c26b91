"""A sweep's trials as runs of MLflow, through its own library; imported when it is asked for.

A run has the trial's parameters, its metrics step by step, and tags that say which trial and attempt it is of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.export.exporter import CommittedRun, ExportedSweep, Exporter

MAX_METRICS_PER_CALL, MAX_PARAMS_PER_CALL = 1000, 100
"""MLflow takes so many in one request."""
MAX_VALUE_LENGTH = 6000
TRIAL_TAG, ATTEMPT_TAG = "depthrate.trial_id", "depthrate.attempt_id"


def _export(sweep: ExportedSweep, place: str | None) -> str:
    from mlflow.exceptions import MlflowException

    try:
        new, old, where = write_runs(place, sweep.name, sweep.runs())
    except (MlflowException, OSError) as error:
        raise UsageError(f"MLflow at {place or 'where it is set to'} refuses: {error}") from None
    return f"wrote {new} runs to experiment {sweep.name!r} of {where}" + (f"; {old} were there" if old else "")


def write_runs(uri: str | None, experiment: str, trials: Iterable[CommittedRun]) -> tuple[int, int, str]:
    """Write a run a trial and return how many are new, how many were there, and where; one of an older attempt is replaced.

    `uri` is a tracking server or folder; null: what MLflow is set to (MLFLOW_TRACKING_URI).

    Raises:
        ImportError: MLflow is not installed.
        MlflowException: it refuses.
    """
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    experiment_id = client.create_experiment(experiment) if found is None else found.experiment_id
    there = {run.data.tags.get(TRIAL_TAG): run for run in _runs(client, experiment_id)}
    new = old = 0
    for trial in trials:
        run = there.get(trial.trial_id)
        if run is not None and run.data.tags.get(ATTEMPT_TAG) == trial.attempt_id and run.info.status == "FINISHED":
            old += 1
            continue
        if run is not None:  # of another attempt, or cut off on the way
            client.delete_run(run.info.run_id)
        _write_run(client, experiment_id, trial)
        new += 1
    return new, old, str(client.tracking_uri)


def _runs(client: Any, experiment_id: str) -> Iterable[Any]:
    token = None
    while True:
        page = client.search_runs([experiment_id], max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _write_run(client: Any, experiment_id: str, trial: CommittedRun) -> None:
    from mlflow.entities import Metric, Param

    began_ms, ended_ms = int(1000 * trial.began_at), int(1000 * trial.ended_at)
    tags = {TRIAL_TAG: trial.trial_id, ATTEMPT_TAG: trial.attempt_id}
    run = client.create_run(experiment_id, start_time=began_ms, tags=tags, run_name=trial.name)
    params = [Param(name, str(value)[:MAX_VALUE_LENGTH]) for name, value in trial.params.items()]
    for part in _parts(params, MAX_PARAMS_PER_CALL):
        client.log_batch(run.info.run_id, params=part)
    metrics = [Metric(tag, value, ended_ms, step) for step, values in trial.steps for tag, value in values.items()]
    for part in _parts(metrics, MAX_METRICS_PER_CALL):
        client.log_batch(run.info.run_id, metrics=part)
    client.set_terminated(run.info.run_id, status="FINISHED", end_time=ended_ms)


def _parts(values: list[Any], size: int) -> Iterable[list[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


MLFLOW = Exporter(
    name="mlflow",
    doc="To MLflow: to the server TO, else where MLFLOW_TRACKING_URI says.",
    export=_export,
    needs_place=False,
    library="MLflow's library",
    install="pip install 'depthrate[mlflow]'",
)
