"""Read the report's content from the store."""

from __future__ import annotations

import importlib.metadata
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.analysis.columns import ALWAYS_LAST, columns_to_skip, known_measurements
from depthrate.orchestrator.analysis.fit_requests import Fits
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.orchestrator.monitor.cost import compute_cost
from depthrate.orchestrator.monitor.status import SweepStatus
from depthrate.orchestrator.report.curve_groups import group_trials, spread, varying_names
from depthrate.orchestrator.report.figures.declared import MAX_SCATTERS
from depthrate.orchestrator.report.report_data import FigureContent, ReportData
from depthrate.orchestrator.search.search_view import SearchView
from depthrate.storage.attempts.live_curves import live_rows
from depthrate.storage.attempts.records import read_records
from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.query.results import Results
from depthrate.storage.query.sql_checks import QueryError
from depthrate.storage.query.views import read_live
from depthrate.storage.tables.custom_columns import quoted
from depthrate.sweeps.spec import FigureRequest
from depthrate.sweeps.trial import Trials
from depthrate.tasks.interface import Task
from depthrate.tasks.panel import LayerMapPanel, Panel, PathPanel, ScatterPanel

if TYPE_CHECKING:
    import pandas as pd


_LAST_STEP = "(select trial_id, step, split from results)"
_DONE = "select trial_id, wall_s, steps, device, host, committed_at, versions, git_sha, git_dirty from trials"


def read_report(
    checked: CheckedSweep,
    status: SweepStatus,
    results: Results,
    fits: Fits,
    command: list[str],
    search: SearchView | None,
) -> ReportData:
    """Read a sweep's trials, metrics and fits for the report."""
    import pandas as pd

    sweep, planned, metrics_by_name = checked.sweep, checked.trials, known_measurements(checked.task)
    results = results.only(planned.ids, sweep.name)  # a trial of several sweeps has a row per sweep
    done = results.sql(_DONE).df().set_index("trial_id").reindex(planned.ids)
    trials = _trial_rows(planned, status, done)
    trial_dtype = pd.CategoricalDtype(sorted(set(trials["trial_id"])))
    read_rows = partial(_read_rows, results, trial_dtype)
    skipped = columns_to_skip(checked.task, [curve.metric for curve in fits.curves])
    shown = [quoted(name) for name in results.sql("select * from results limit 0").columns if name not in skipped]
    fitted = read_rows(f"select {', '.join(shown)} from results")
    logged = {name: fitted[f"last_{name}"] for name in ALWAYS_LAST if name not in fitted}
    fitted = fitted.assign(**logged)  # panels of tasks without that parameter use the curve's name
    if search is not None:
        fitted = fitted[fitted["trial_id"].isin([trial.trial_id for trial in search.trials_to_fit()])]
    metrics = read_rows(
        # neither a window nor a join, which would hold all of these rows in memory
        f"select {_metric_columns(checked, results)} from metrics where is_last or "
        "(trial_id, step) in (select (trial_id, max(step)) from metrics group by trial_id)",
        "step",
        "layer",
    )
    git, versions = None, {"depthrate": importlib.metadata.version("depthrate")}
    if done["committed_at"].notna().any():
        newest = done.loc[done["committed_at"].idxmax()]
        versions = parse_object(newest["versions"])
        if pd.notna(newest["git_sha"]):
            is_dirty = pd.notna(newest["git_dirty"]) and newest["git_dirty"]
            git = f"{newest['git_sha']}{' (with uncommitted changes)' if is_dirty else ''}"
    records = read_records(results.store, results.snapshot, sweep=sweep.name)
    commits = results.snapshot.trials.select(["trial_id", "attempt_id", "wall_s"]).to_batches()
    figures = read_figures(results, sweep.figures, list(trials["trial_id"]))

    def declared(curve: FittedCurve) -> FittedCurve:
        return replace(curve, measurement=metrics_by_name.get(curve.metric))

    return ReportData(
        name=sweep.name,
        spec=sweep.spec(),
        trials=trials,
        results=fitted,
        metrics=metrics,
        curves=_with_running(results, trials, read_rows("select * exclude (attempt_id) from curves", "step")),
        fits=[declared(curve) for curve in fits.curves],
        store=results.store.url,
        commands=[shlex.join(command), shlex.join(["depthrate", "report", sweep.name, "--store", results.store.url])],
        versions=versions,
        git=git,
        created_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        problems=[*map(str, results.problems), *(figure.message for figure in figures if figure.problem)],
        measurements=metrics_by_name,
        lists=_read_lists(checked.task, read_rows),
        panels=checked.task.panels,
        surfaces=[replace(surface, values=declared(surface.values)) for surface in fits.surfaces],
        layer_laws=[replace(law, values=declared(law.values)) for law in fits.layer_laws],
        points=_points(results, trials, list(planned[0].params), checked.task.panels),
        layered=_layered(trials, read_rows, metrics, checked.task.panels),
        cost=compute_cost(records, (row for batch in commits for row in batch.to_pylist()), time.time()),
        search=search,
        figures=figures,
    )


def _metric_columns(checked: CheckedSweep, results: Results) -> str:
    """Return the columns of `metrics` that figures may show by layer: declared, fitted and panel columns."""
    task, requested = checked.task, [request.metric for request in checked.sweep.fit]
    skipped = columns_to_skip(task, requested)
    names = [metric.name for metric in known_measurements(task).values() if metric.panel == "always"]
    names = [*(name for name in names if name not in skipped), *requested]
    for panel in task.panels:
        if isinstance(panel, PathPanel | LayerMapPanel):
            names += [value for value in vars(panel).values() if isinstance(value, str)]
    shown = {"trial_id", "step", "split", "layer", "is_last", *names}
    return ", ".join(quoted(name) for name in results.sql("select * from metrics limit 0").columns if name in shown)


def _read_rows(results: Results, trial_dtype: pd.CategoricalDtype, query: str, *order: str) -> pd.DataFrame:
    """Return the rows of some trials, ordered by trial and then by the columns in `order`.

    trial_id is categorical: grouping hundreds of thousands of rows by str takes most of the time of a large report.
    """
    import pandas as pd

    table = results.numbered_rows(query, list(trial_dtype.categories), order)
    frame = table.to_pandas(split_blocks=True, self_destruct=True)
    frame["trial_id"] = pd.Categorical.from_codes(frame["trial_id"], dtype=trial_dtype)
    return frame


def _read_lists(task: Task, read_rows: Callable[..., pd.DataFrame]) -> pd.DataFrame:
    """Return the task's vectors and matrices of each trial's last layer at its last step."""
    lists = [metric for metric in known_measurements(task).values() if metric.kind != "scalar"]
    declared = {metric.name for metric in task.measurements or lists}
    names = [metric.name for metric in lists if metric.name in declared]
    return read_rows(f"select {', '.join(map(quoted, ['trial_id', *names]))} from results")


def _with_running(results: Results, trials: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Add the live curves of running trials. Killed trials are omitted."""
    import pandas as pd

    running = trials.loc[trials["state"] == "running", ["trial_id"]]
    packs = [] if running.empty else read_live(results.store, results.snapshot.commit_index.keys())
    if not packs:
        return curves
    rows = live_rows(packs, results.columns).drop_columns(["sweep", "attempt_id", "written_at"]).to_pandas()
    live = rows.merge(running, on="trial_id").dropna(axis=1, how="all")
    return live if curves.empty else pd.concat([curves, live], ignore_index=True)


def _points(results: Results, trials: pd.DataFrame, parameters: list[str], panels: Sequence[Panel]) -> pd.DataFrame:
    """Return two components of the stored features for the panels, for the first trial of some of the settings."""
    import pandas as pd

    kinds = [panel.kind for panel in panels if isinstance(panel, ScatterPanel)]
    done = trials[trials["state"] == "ok"]
    if not kinds or done.empty:
        return pd.DataFrame()
    settings = [name for name in varying_names(trials, parameters) if name != "seed"]
    firsts = [str(part["trial_id"].iloc[0]) for _, part in spread(group_trials(trials, done, settings), MAX_SCATTERS)]
    id_list = ", ".join(f"'{first}'" for first in firsts)
    kind_list = ", ".join("'" + kind.replace("'", "''") + "'" for kind in kinds)
    return results.sql(
        "select trial_id, step, kind, label, feature[1] as x, feature[2] as y from features "
        f"where trial_id in ({id_list}) and kind in ({kind_list}) and len(feature) > 1 order by trial_id, step, sample_index"
    ).df()


def _layered(
    trials: pd.DataFrame, read_rows: Callable[..., pd.DataFrame], metrics: pd.DataFrame, panels: Sequence[Panel]
) -> pd.DataFrame:
    """Return the metrics that panels map over steps and layers, if their columns are measured."""
    names = [
        panel.measurement
        for panel in panels
        if isinstance(panel, LayerMapPanel) and {panel.measurement, panel.needs} - {""} <= set(metrics)
        if not panel.needs or metrics[panel.needs].notna().any()
    ]
    if not names:
        return metrics.iloc[:0]
    columns = ", ".join(map(quoted, ["trial_id", "step", "split", "layer", *names]))
    rows = read_rows(f"select {columns} from metrics", "step", "layer")
    finished = trials.loc[trials["state"] == "ok", "trial_id"]
    return rows[rows["trial_id"].isin(finished) & (rows["split"] == "train")]


def _trial_rows(planned: Trials, status: SweepStatus, done: pd.DataFrame) -> pd.DataFrame:
    """Return one row per planned trial. It is built by column, since one dict per trial would take far more memory.

    Args:
        done: The columns of `_DONE`, one row per planned trial, null where it is not committed.
    """
    import pandas as pd

    columns: dict[str, list[Any]] = {name: [] for name in planned[0].params}
    for trial in planned:
        for name, values in columns.items():
            values.append(trial.params[name])
    running_on = [status.attempts.get(trial_id, {}).get("host") for trial_id in planned.ids]
    hosts = [host if pd.notna(host) and host else other for host, other in zip(done["host"], running_on, strict=True)]
    states = {
        "trial_id": planned.ids,
        "state": [status.states[trial_id] for trial_id in planned.ids],
        "wall_s": done["wall_s"].array,
        "steps_done": done["steps"].array,
        "device": done["device"].array,
        "host": hosts,
        "committed_at": done["committed_at"].dt.strftime("%Y-%m-%d %H:%M:%S").array,
        "error": [status.error_of(trial_id) for trial_id in planned.ids],
    }
    return pd.DataFrame({**columns, **states})


def read_figures(results: Results, requests: Sequence[FigureRequest], trial_ids: Sequence[str]) -> list[FigureContent]:
    """Return each figure with one value per given trial that is committed and did not diverge, computed with the user's SQL."""
    import pandas as pd

    contents = []
    columns = [name for view in ("results", "metrics") for name in results.sql(f"select * from {view} limit 0").columns]
    for request in requests:
        try:
            is_column = request.metric in columns  # such as `val/loss`, otherwise an SQL expression
            query = _figure_query(request.replace(metric=quoted(request.metric)) if is_column else request)
            rows = results.sql(query).df()
        except QueryError as error:
            contents.append(FigureContent(request, pd.DataFrame(), str(error)))
            continue
        rows = rows[rows["trial_id"].isin(list(trial_ids))]
        contents.append(FigureContent(request, rows.reset_index(drop=True)))
    return contents


def _figure_query(request: FigureRequest) -> str:
    selected = f"select trial_id from results where status = 'ok' and ({request.where or 'true'})"
    height = f"({request.lowest})" if request.lowest else "0"
    lines = "".join(f", ({text}) as line_{number}" for number, text in enumerate(request.lines.values()))
    return (
        f"select v.*, l.* exclude (trial_id) from ({_figure_values(request)}) v semi join ({selected}) using (trial_id) "
        f"join (select trial_id{lines}, {height} as height from results) l using (trial_id) order by v.trial_id"
    )


def _figure_values(request: FigureRequest) -> str:
    if request.kind == "share":
        return f"select trial_id, ({request.condition}) as value from results"
    if request.kind in ("spectrum", "collapse"):
        last = f"metrics semi join {_LAST_STEP} using (trial_id, step, split)"
        return f"select trial_id, layer, ({request.metric}) as value from {last}"
    columns = f"trial_id, ({request.metric}) as value" + (f", ({request.order}) as places" if request.order else "")
    if request.layer is None:
        return f"select {columns} from results"
    deepest = "select *, max(layer) over (partition by trial_id, step, split) as deepest from metrics"
    layer = str(request.layer) if request.layer >= 0 else f"deepest + 1 {request.layer}"
    return (
        f"select {columns} from ({deepest}) semi join {_LAST_STEP} using (trial_id, step, split) where layer = {layer}"
    )
