"""Export a sweep's trials as MLflow runs. The library is imported on use.

A run has the trial's parameters, its metrics by step, and tags with its trial and attempt.
"""

import re
from collections.abc import Iterable
from typing import Any

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.export.exporter import CommittedRun, ExportedSweep, Exporter

MAX_METRICS_PER_CALL = 1000
"""Limit of MLflow."""
MAX_PARAMS_PER_CALL = 100
"""Limit of MLflow."""
MAX_VALUE_LENGTH = 6000
_REFUSED = re.compile(r"[^\w .:/-]|/(?=/|$)|(?<=/)\.+(?=/|$)")
"""Parts of a metric's name that MLflow refuses, such as `|`, a final slash, and the folders `.` and `..`."""
TRIAL_TAG, ATTEMPT_TAG = "depthrate.trial_id", "depthrate.attempt_id"


def _export(sweep: ExportedSweep, place: str | None) -> str:
    from mlflow.exceptions import MlflowException

    try:
        new, old, uri = write_runs(place, sweep.name, sweep.runs())
    except (MlflowException, OSError) as error:
        raise UsageError(f"cannot write to MLflow at {place or 'MLFLOW_TRACKING_URI'}: {error}") from None
    return f"wrote {new} runs to experiment {sweep.name!r} of {uri}" + (f" ({old} already present)" if old else "")


def write_runs(uri: str | None, experiment: str, trials: Iterable[CommittedRun]) -> tuple[int, int, str]:
    """Write one run per trial, replacing runs of older attempts.

    Args:
        uri: Tracking server or folder. If None, MLFLOW_TRACKING_URI or MLflow's default.
    Returns:
        Number of new runs, number of existing runs, and the tracking URI.
    Raises:
        ImportError: MLflow is not installed.
        MlflowException: MLflow rejects a request.
    """
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    match = client.get_experiment_by_name(experiment)
    experiment_id = client.create_experiment(experiment) if match is None else match.experiment_id
    existing = {run.data.tags.get(TRIAL_TAG): run for run in _runs(client, experiment_id)}
    new = old = 0
    for trial in trials:
        run = existing.get(trial.trial_id)
        if run is not None and run.data.tags.get(ATTEMPT_TAG) == trial.attempt_id and run.info.status == "FINISHED":
            old += 1
            continue
        if run is not None:  # the run is from another attempt, or incomplete
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
    scalars = [(_metric_name(tag), value, step) for step, values in trial.steps for tag, value in values.items()]
    metrics = [Metric(name, value, ended_ms, step) for name, value, step in scalars]
    for part in _parts(metrics, MAX_METRICS_PER_CALL):
        client.log_batch(run.info.run_id, metrics=part)
    client.set_terminated(run.info.run_id, status="FINISHED", end_time=ended_ms)


def _metric_name(tag: str) -> str:
    """Return the name of a metric in MLflow. Characters that it refuses become `_<hexadecimal code>_`."""
    return _REFUSED.sub(lambda match: "".join(f"_{ord(sign):x}_" for sign in match[0]), tag)


def _parts(values: list[Any], size: int) -> Iterable[list[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


MLFLOW = Exporter(
    name="mlflow",
    doc="Write MLflow runs to a server. Default: MLFLOW_TRACKING_URI.",
    export=_export,
    needs_place=False,
    library="the MLflow library",
    install="pip install 'depthrate[mlflow]'",
)
