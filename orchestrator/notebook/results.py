"""Results of a store in a notebook, with figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.analysis.open_results import declared_by
from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.files.store import Store, existing_store
from depthrate.storage.query.results import Results
from depthrate.storage.query.sql_checks import QueryError
from depthrate.sweeps.spec import fit_request
from depthrate.sweeps.trial import Trial
from depthrate.tasks.interface import Task
from depthrate.tasks.parameters import nearest
from depthrate.tasks.registry import find_task

if TYPE_CHECKING:
    import pandas as pd

    from depthrate.orchestrator.report.figure_files import Picture


class StoreResults(Results):
    """Committed results of a store: a snapshot from when it was opened, with SQL, frames and figures."""

    def df(self) -> pd.DataFrame:
        """Return the view `results` as a pandas frame, one row per trial."""
        return self.sql("select * from results").df()

    def plot(self, metric: str, x: str = "depth", by: str | Sequence[str] = (), **options: Any) -> Picture:
        """Plot a metric against a parameter with fitted power laws, as in the report.

        Args:
            metric: Metric to plot.
            x: Parameter of the x axis, or an expression of parameters.
            by: Parameters that split the data: each value gets its own colour and curve.
            **options: Options of a fit: layer, where, x_min, unconverged, target.
        Returns:
            The figure, shown in a notebook.
        Raises:
            SweepError: An option is not allowed.
            QueryError: A column is unknown, or no trial has a value.
        """
        from depthrate.orchestrator.analysis.fit_requests import fit_requests
        from depthrate.orchestrator.report.figure_files import Picture
        from depthrate.orchestrator.report.figures.metric_against_x import rate_plots

        names = [by] if isinstance(by, str) else list(by)
        columns = self.column_names("select * from results")
        columns += [name.removeprefix("last_") for name in columns if name.startswith("last_")]
        request = fit_request({"metric": metric, "x": x, "by": names} | options)
        if unknown := [name for name in (metric, *request.x_names, *names) if name not in columns]:
            raise QueryError(f"results have no column {unknown[0]!r}{nearest(unknown[0], columns)}")
        rows = self.sql("select trial_id, task, task_version, params from trials order by trial_id").fetchall()
        trials = [Trial(trial_id, task, version, parse_object(params)) for trial_id, task, version, params in rows]
        names_of_tasks = {trial.task for trial in trials}
        task = find_task(names_of_tasks.pop()) if len(names_of_tasks) == 1 else None
        plots = rate_plots(fit_requests(self, [request], trials, task).curves)
        if not plots:
            raise QueryError(f"no committed trial has a positive {metric} and a positive {x} to plot")
        return Picture(plots[0])


def open_results(url: str | os.PathLike[str] | None = None) -> StoreResults:
    """Open a store for reading: SQL, frames, features, figures.

    Args:
        url: Folder or fsspec URL. Default: DEPTHRATE_STORE, else ./results.
    Returns:
        A snapshot of the committed results.
    Raises:
        StoreError: The store does not exist.
    """
    return store_results(existing_store(url))


def store_results(store: Store, task: Task | None = None) -> StoreResults:
    """Return a store's results, with the columns that a task declares."""
    return StoreResults(store, *declared_by(task))
