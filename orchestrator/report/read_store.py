"""Read the report's content from the store."""

from __future__ import annotations

import importlib.metadata
import shlex
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.analysis.columns import ALWAYS_LAST, columns_to_skip, known_measurements
from depthrate.orchestrator.analysis.fit_requests import Fits
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.orchestrator.monitor.cost import compute_cost
from depthrate.orchestrator.monitor.status import SweepStatus
from depthrate.orchestrator.report.curve_groups import group_trials, spread, varying_names
from depthrate.orchestrator.report.report_data import FigureContent, ReportData
from depthrate.orchestrator.search.search_view import SearchView
from depthrate.storage.attempts.live_curves import live_rows
from depthrate.storage.attempts.records import read_records
from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.query.results import Results
from depthrate.storage.query.sql_checks import QueryError
from depthrate.storage.query.views import read_live
from depthrate.storage.tables.custom_columns import quoted, quoted_text
from depthrate.sweeps.trial import Trials
from depthrate.tasks.figure_request import LAYER, SEED, STEP, VARYING, FigureRequest
from depthrate.tasks.interface import Task

if TYPE_CHECKING:
    import pandas as pd


MAX_SCATTERS = 6
"""Maximum number of groups with a figure of points."""
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
    fitted = fitted.assign(**logged)  # figures of tasks without that parameter use the curve's name
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
    figures = read_all_figures(checked, results, trials, None if search is None else fitted["trial_id"])

    def declared(curve: FittedGroup) -> FittedGroup:
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
        surfaces=[declared(group) for group in fits.surfaces],
        layer_laws=[declared(group) for group in fits.layer_laws],
        cost=compute_cost(records, (row for batch in commits for row in batch.to_pylist()), time.time()),
        search=search,
        figures=figures,
    )


def _metric_columns(checked: CheckedSweep, results: Results) -> str:
    """Return the columns of `metrics` that figures may show by layer: declared and fitted columns."""
    task, requested = checked.task, [request.metric for request in checked.sweep.fit]
    skipped = columns_to_skip(task, requested)
    names = [metric.name for metric in known_measurements(task).values() if metric.panel == "always"]
    names = [*(name for name in names if name not in skipped), *requested]
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


def read_all_figures(
    checked: CheckedSweep, results: Results, trials: pd.DataFrame, chosen: pd.Series | None
) -> list[FigureContent]:
    """Read the figures of the sweep, and those of its task whose axes vary.

    Args:
        chosen: Trials of a search that the figures of the task show. None: all.
    """
    settings = [name for name in varying_names(trials, list(checked.trials[0].params)) if name != SEED]
    of_task = [request for request in checked.task.figures if {*request.parameter_axes.values()} <= {*settings}]
    shown = trials if chosen is None else trials[trials["trial_id"].isin(chosen)]
    figures = read_figures(results, of_task, shown, settings)
    return read_figures(results, checked.sweep.figures, trials, settings) + [
        replace(figure, of_task=True) for figure in figures
    ]


def read_figures(
    results: Results, requests: Sequence[FigureRequest], trials: pd.DataFrame, settings: Sequence[str]
) -> list[FigureContent]:
    """Read the rows of each figure, for the trials that are committed and did not diverge, with the user's SQL.

    Args:
        trials: Planned trials with their parameters, in columns.
        settings: Parameters that `by: ["*"]` means.
    """
    import pandas as pd

    contents = []
    columns = [name for view in ("results", "metrics") for name in results.sql(f"select * from {view} limit 0").columns]
    trial_dtype = pd.CategoricalDtype(sorted(set(trials["trial_id"])))
    parameters = trials.drop_duplicates("trial_id").set_index("trial_id")
    for request in requests:
        if VARYING in request.by:
            named = {request.x, request.y, request.along, request.over, *request.by}
            by = [name for name in request.by if name != VARYING] + [name for name in settings if name not in named]
            request = replace(request, by=tuple(by))
        try:
            if request.kind == "scatter":
                query, order = _scatter_query(results, request, trials), ("step", "sample_index")
            else:
                query, order = _figure_query(request, columns), ("step", "layer")
            rows = _read_rows(results, trial_dtype, query, *order)
            rows = rows if request.kind == "scatter" else rows.dropna(subset=["value"])
        except QueryError as error:
            contents.append(FigureContent(request, pd.DataFrame(), str(error)))
            continue
        # taken from the trials, since a parameter may have the name of a metric (loss: ce)
        trial_ids = rows["trial_id"].astype(object)
        positions = {axis: trial_ids.map(parameters[name]) for axis, name in request.parameter_axes.items()}
        contents.append(FigureContent(request, rows.assign(**positions)))
    return contents


def _selected(request: FigureRequest) -> str:
    return f"select trial_id from results where status = 'ok' and ({request.where or 'true'})"


def _scatter_query(results: Results, request: FigureRequest, trials: pd.DataFrame) -> str:
    """Return the query for two components of the stored features, for the first trial of some of the groups."""
    selected = {trial_id for (trial_id,) in results.sql(_selected(request)).fetchall()}
    groups = group_trials(trials, trials[trials["trial_id"].isin(selected)], list(request.by))
    firsts = [str(part["trial_id"].iloc[0]) for _, part in spread(groups, MAX_SCATTERS) if len(part)]
    rows = (
        "select *, max(layer) over (partition by trial_id, step) as deepest from features "
        f"where trial_id in ({', '.join(map(quoted_text, firsts)) or 'null'}) and kind = {quoted_text(request.features)}"
    )
    columns = "trial_id, step, sample_index, label, feature[1] as x, feature[2] as y"
    return f"select {columns} from ({rows}) where layer = {_layer_sql(request.layer)} and len(feature) > 1"


def _layer_sql(layer: int | None) -> str:
    """Return a layer as SQL over the row's `deepest`, the number of the last layer."""
    if layer is None:
        return "deepest"
    return str(layer) if layer >= 0 else f"deepest + 1 {layer}"


def _figure_query(request: FigureRequest, columns: Collection[str]) -> str:
    """Return the query for the values of a figure and their references.

    Args:
        columns: Columns of the views. Other names are SQL expressions.
    """

    def sql(text: str) -> str:
        if text in columns:  # such as `val/loss`
            return quoted(text)
        # tasks without a parameter of that name use the curve's name
        return quoted(f"last_{text}") if text in ALWAYS_LAST else f"({text})"

    values = {"value": sql(request.metric or request.condition)}
    values |= {axis: sql(text) for axis, text in request.row_axes.items()}
    references = {f"line_{number}": sql(text) for number, text in enumerate(request.lines.values())}
    if request.kind in ("path", "spectrum"):
        values, references = values | references, {}
    references |= {f"column_{number}": sql(text) for number, text in enumerate(request.columns)}
    if request.order:
        values["places"] = sql(request.order)
    references |= {"height": sql(request.lowest or "0"), "weight": sql(request.observations or "1")}
    of_trial, of_row = (
        ", ".join(["trial_id", *(f"{text} as {name}" for name, text in texts.items())])
        for texts in (references, values)
    )
    return (
        f"select v.*, l.* exclude (trial_id) from (select step, layer, {of_row} from {_value_rows(request)}) v "
        f"semi join ({_selected(request)}) using (trial_id) join (select {of_trial} from results) l using (trial_id)"
    )


def _value_rows(request: FigureRequest) -> str:
    """Return the rows that hold a figure's values, as SQL: of each trial, of its layers, or of its steps and layers."""
    axes = (request.x, request.y) if request.kind == "map" else ()
    has_all_layers = LAYER in axes or request.kind in ("collapse", "path")
    has_all_layers |= request.kind == "spectrum" and request.layer is None
    if not has_all_layers and STEP not in axes and request.layer in (None, -1):
        return "results"
    if STEP in axes:
        last = "semi join (select trial_id, split from results) using (trial_id, split)"
    else:
        last = f"semi join {_LAST_STEP} using (trial_id, step, split)"
    if has_all_layers:
        return f"metrics {last}"
    if request.layer in (None, -1):
        return f"metrics {last} where is_last"
    deepest = "select *, max(layer) over (partition by trial_id, step, split) as deepest from metrics"
    return f"({deepest}) {last} where layer = {_layer_sql(request.layer)}"
