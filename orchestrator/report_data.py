"""Collect from the store what the report shows."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from orchestrator.aggregate import FittedCurve
from orchestrator.report import ReportData
from orchestrator.status import SweepStatus, TrialState
from storage.query import Results
from sweeps.sweep import Sweep

if TYPE_CHECKING:
    import pandas as pd


def collect_report(
    sweep: Sweep, status: SweepStatus, results: Results, curves: list[FittedCurve], command: list[str]
) -> ReportData:
    """Return a sweep's trials, measurements and fits as the report wants them."""
    import pandas as pd

    committed_at = dict(results.sql("select trial_id, committed_at from trials").fetchall())
    trials = pd.DataFrame([_trial_row(state, committed_at.get(state.trial.trial_id)) for state in status.trials])
    parameters = list(status.trials[0].trial.params)
    ids = pd.DataFrame({"trial_id": trials["trial_id"]})
    keyed = trials[["trial_id", *(name for name in parameters if name in trials)]]

    def of_sweep(query: str, order: str = "") -> pd.DataFrame:
        return results.sql(f"{query} order by trial_id{order}").df().merge(ids, on="trial_id")

    def with_parameters(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.merge(keyed, on="trial_id", suffixes=("", "_param"))

    metrics = of_sweep(
        "select * exclude (attempt_id, singular_values, class_gram) from metrics "
        "qualify is_last or step = max(step) over (partition by trial_id)",
        order=", step, layer",
    )
    done = [state.row for state in status.trials if state.row]
    newest = max(done, key=lambda row: committed_at[row["trial_id"]], default=None)
    versions = json.loads(newest["versions"]) if newest else {"depthrate": importlib.metadata.version("depthrate")}
    return ReportData(
        name=sweep.name,
        spec=sweep.spec(),
        trials=trials,
        results=of_sweep("select * exclude (singular_values, class_gram) from results"),
        metrics=with_parameters(metrics),
        curves=with_parameters(of_sweep("select * exclude (attempt_id) from curves", order=", step")),
        fits=curves,
        store=results.files.url,
        commands=[shlex.join(command), shlex.join(["depthrate", "report", sweep.name, "--store", results.files.url])],
        versions=versions,
        git=_git(newest),
        created_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        problems=[str(problem) for problem in results.problems],
    )


def _trial_row(state: TrialState, committed: datetime | None) -> dict[str, object]:
    row = state.row
    return {
        **state.trial.params,
        "trial_id": state.trial.trial_id,
        "state": state.state,
        "wall_s": row.get("wall_s"),
        "steps_done": row.get("steps"),
        "device": row.get("device"),
        "host": row.get("host") or state.attempt.get("host"),
        "committed_at": None if committed is None else f"{committed:%Y-%m-%d %H:%M:%S}",
        "error": state.attempt.get("error") if state.state == "failed" else None,
    }


def _git(row: dict[str, object] | None) -> str | None:
    if row is None or row["git_sha"] is None:
        return None
    return f"{row['git_sha']}{' (with uncommitted changes)' if row['git_dirty'] else ''}"
