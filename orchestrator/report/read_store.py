"""Read from the store what the report shows."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.fitted_curve import FittedCurve
from depthrate.orchestrator.measurements import known_measurements
from depthrate.orchestrator.plan import CheckedSweep
from depthrate.orchestrator.report.data import ReportData
from depthrate.orchestrator.report.figures.search import search_content
from depthrate.orchestrator.search.proposals import SearchView
from depthrate.orchestrator.status import SweepStatus
from depthrate.storage.columns import quoted
from depthrate.storage.query import Results
from depthrate.sweeps.trial import Trial

if TYPE_CHECKING:
    import pandas as pd


_DONE = "select trial_id, wall_s, steps, device, host, committed_at, versions, git_sha, git_dirty from trials"


def read_report(
    checked: CheckedSweep,
    status: SweepStatus,
    results: Results,
    curves: list[FittedCurve],
    command: list[str],
    search: SearchView | None = None,
) -> ReportData:
    """Return a sweep's trials, measurements and fits as the report wants them."""
    import pandas as pd

    sweep, planned, measurements = checked.sweep, checked.trials, known_measurements(checked.task)
    done = {row["trial_id"]: row for row in results.sql(_DONE).to_arrow_table().to_pylist()}
    rows = [_trial_row(trial, status, done.get(trial.trial_id, {})) for trial in planned]
    trials = pd.DataFrame(rows)
    parameters = list(planned[0].params)
    ids = pd.DataFrame({"trial_id": trials["trial_id"]})
    keyed = trials[["trial_id", *(name for name in parameters if name in trials)]]

    def of_sweep(query: str, order: str = "") -> pd.DataFrame:
        return results.sql(f"{query} order by trial_id{order}").df().merge(ids, on="trial_id")

    def with_parameters(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.merge(keyed, on="trial_id", suffixes=("", "_param"))

    lists = [each.name for each in measurements.values() if each.kind != "scalar"]
    fitted = of_sweep(f"select {_without(lists)} from results")
    if search is not None:
        fitted = fitted[fitted["trial_id"].isin([trial.trial_id for trial in search.chosen()])]
    metrics = of_sweep(
        f"select {_without(['attempt_id', *lists])} from metrics "
        "qualify is_last or step = max(step) over (partition by trial_id)",
        order=", step, layer",
    )
    ours = [done[trial.trial_id] for trial in planned if trial.trial_id in done]
    newest = max(ours, key=lambda row: row["committed_at"], default=None)
    versions = json.loads(newest["versions"]) if newest else {"depthrate": importlib.metadata.version("depthrate")}
    return ReportData(
        name=sweep.name,
        spec=sweep.spec(),
        trials=trials,
        results=fitted,
        metrics=with_parameters(metrics),
        curves=with_parameters(of_sweep("select * exclude (attempt_id) from curves", order=", step")),
        fits=[replace(curve, measurement=measurements.get(curve.metric)) for curve in curves],
        store=results.store.url,
        commands=[shlex.join(command), shlex.join(["depthrate", "report", sweep.name, "--store", results.store.url])],
        versions=versions,
        git=_git(newest),
        created_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        problems=[str(problem) for problem in results.problems],
        measurements=measurements,
        lists=of_sweep(f"select {_columns(['trial_id', *lists])} from results"),
        device_hours=_device_hours(results, sweep.name),
        search=None if search is None else search_content(search),
    )


def _without(columns: Sequence[str]) -> str:
    return f"* exclude ({_columns(columns)})" if columns else "*"


def _columns(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def _device_hours(results: Results, sweep: str) -> dict[str, float]:
    """Sum up how long attempts ran, by kind of device; one that was killed counts to its last heartbeat."""
    ended = "coalesce(ended_at, heartbeat_at, started_at)"
    query = f"select sweep, coalesce(device, 'unknown') as device, {ended} - started_at as seconds from attempts"
    hours: dict[str, float] = {}
    for row in results.sql(query).to_arrow_table().to_pylist():
        if row["sweep"] == sweep and row["seconds"]:
            kind = str(row["device"]).partition(":")[0]
            hours[kind] = hours.get(kind, 0.0) + row["seconds"] / 3600
    return hours


def _trial_row(trial: Trial, status: SweepStatus, row: Mapping[str, Any]) -> dict[str, object]:
    committed = row.get("committed_at")
    return {
        **trial.params,
        "trial_id": trial.trial_id,
        "state": status.states[trial.trial_id],
        "wall_s": row.get("wall_s"),
        "steps_done": row.get("steps"),
        "device": row.get("device"),
        "host": row.get("host") or status.attempts.get(trial.trial_id, {}).get("host"),
        "committed_at": None if committed is None else f"{committed:%Y-%m-%d %H:%M:%S}",
        "error": status.error_of(trial.trial_id),
    }


def _git(row: Mapping[str, Any] | None) -> str | None:
    if row is None or row["git_sha"] is None:
        return None
    return f"{row['git_sha']}{' (with uncommitted changes)' if row['git_dirty'] else ''}"
