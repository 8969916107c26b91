"""Read a sweep for the explorer: its trials, fits, training curves and layers, as typed columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from depthrate.orchestrator.analysis.columns import known_measurements
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.judged_groups import by_request, count_states, followed_power
from depthrate.orchestrator.analysis.preference import GroupState
from depthrate.orchestrator.explorer.columns import Column, dictionary_column, metric_column, pack, parameter_column
from depthrate.orchestrator.monitor.status import SweepStatus
from depthrate.orchestrator.sheet.fit_words import headline, preferred_text, state_label
from depthrate.orchestrator.sheet.markup import typeset
from depthrate.storage.catalog.tags import Annotations, Marks, read_annotations
from depthrate.storage.query.results import Results
from depthrate.storage.tables.custom_columns import quoted
from depthrate.sweeps.spec import FitRequest, SweepSpec
from depthrate.sweeps.trial import Trials
from depthrate.tasks.fits.rates import predict
from depthrate.tasks.interface import Task
from depthrate.tasks.metric import Metric

if TYPE_CHECKING:
    import pyarrow as pa

STATES = ("ok", "unconverged", "untrained", "failed", "diverged", "running", "pending")
MAX_TRIALS = 1000
"""Maximum number of trials with curves and layers in a file."""
MAX_METRICS, MAX_CURVES = 40, 6
"""Maximum numbers of metrics per trial, and of columns of a table of curves or layers."""
MAX_NUMBERS = 500_000
"""Maximum number of values of a table of curves or layers. More steps are thinned, and of more layers fewer trials are read."""
MAX_ERRORS, MAX_ERROR_LENGTH = 1000, 500
_FIRST = ("objective", "loss", "accuracy")


@dataclass(frozen=True)
class SweepData:
    """A sweep with its results and fits."""

    sweep: SweepSpec
    trials: Trials
    task: Task | None
    """Its task, or None if it cannot be loaded: all metrics are then shown alike."""
    status: SweepStatus
    fits: Sequence[FittedGroup]
    results: Results
    """The sweep's trials alone."""
    numbers: Results
    """The same in memory, as far as a row per trial needs them."""
    sections: Sequence[Mapping[str, Any]] = ()
    """Fits over layers and in several variables: title, header, rows, notes, and pictures in light and dark."""

    def packed(self, *, with_rows: bool = True) -> bytes:
        """Return the data of the page.

        Args:
            with_rows: Whether to add curves and layers, of at most `MAX_TRIALS` trials, evenly chosen.
        """
        trials = self._trials()
        tables = {"trials": trials}
        if with_rows:
            ids = self.trials.ids
            done = [number for number, trial_id in enumerate(ids) if trial_id in self.results.snapshot.commit_index]
            chosen = [done[place] for place in _evenly(len(done), MAX_TRIALS)]
            tables |= read_rows(
                self.results, self._names(), [ids[number] for number in chosen], np.array(chosen, np.int32)
            )
        return pack(self._header(trials), tables)

    def rows(self, trial_ids: Sequence[str]) -> bytes:
        """Return the curves and layers of some trials, which are numbered as in `trial_ids`."""
        numbers = np.arange(len(trial_ids), dtype=np.int32)
        is_running = any(self.status.states.get(trial_id) == "running" for trial_id in trial_ids)
        parameters = list(self.trials[0].params) if is_running else None
        return pack({}, read_rows(self.results, self._names(), trial_ids, numbers, parameters))

    def _header(self, trials: Sequence[Column]) -> dict[str, Any]:
        ids, planned = self.trials.ids, self.trials
        varying = {column.name for column in trials}
        failed = [number for number, trial_id in enumerate(ids) if self.status.states[trial_id] == "failed"]
        return {
            "sweep": {"name": self.sweep.name, "task": self.sweep.task, **self._axes(trials)},
            "trial_ids": ids,
            "constants": {name: value for name, value in planned[0].params.items() if name not in varying},
            "errors": {n: str(self.status.error_of(ids[n]))[:MAX_ERROR_LENGTH] for n in failed[:MAX_ERRORS]},
            "fits": fit_rows(self.fits),
            "sections": list(self.sections),
            "num_done": self.status.num_done,
            "rows": len(self.results.snapshot.commit_index),
            "marks": marks_of(read_annotations(self.results.store), self.sweep.name, self.status.states),
        }

    def _axes(self, trials: Sequence[Column]) -> dict[str, Any]:
        """Return what the page shows first: the sweep's first fit, or a metric against depth."""
        request = next(iter(self.sweep.fit), None)
        parameters = {column.name: column for column in trials if column.facts.get("role") == "param"}
        metrics = [column.name for column in trials if column.facts.get("role") == "metric"]
        numeric = [column.name for column in parameters.values() if _is_numeric(column)]
        x = request.x_names[0] if request is not None and request.x_names else "depth"
        if x not in numeric or (request is None and len(parameters[x].facts.get("values", ())) == 2):
            rest = [name for name in numeric if name != FitRequest.SEED]
            x = max(rest, key=lambda name: len(set(parameters[name].array.tolist())), default="")
        grouped = () if request is None else (*request.by, *(name for name in request.x_names if name != x))
        by = [name for name in grouped if name in parameters]
        search = self.sweep.search
        wanted = [request.metric] if request is not None else [] if search is None else list(search.objective)
        first = [name for metric in (*wanted, *_FIRST) for name in (metric, f"last_{metric}")] + metrics
        fitted = [fit.metric for fit in self.sweep.fit]
        return {
            "planned": len(self.trials),
            "x": x,
            "y": next((name for name in first if name in metrics), ""),
            "replicate": FitRequest.SEED if request is None else request.over,
            "axes": [name for name in dict.fromkeys([*_FIRST, *fitted]) if name in metrics][:4],
            **({"colour": by[-1]} if by else {}),
            **({"facet": by[-2]} if len(by) > 1 else {}),
        }

    @property
    def _metrics(self) -> Mapping[str, Metric]:
        return {} if self.task is None else known_measurements(self.task)

    def _names(self) -> list[str]:
        """Return metrics in the order of their interest: fitted ones, those of every trial's training, declared ones."""
        declared = self._metrics.values()
        always = [metric.name for metric in declared if metric.panel == "always" and metric.kind == "scalar"]
        return list(dict.fromkeys([*(fit.metric for fit in self.sweep.fit), *_FIRST, *always]))

    def _trials(self) -> list[Column]:
        """Return a row per planned trial: parameters that vary, the state, and metrics at the last step."""
        planned, place = self.trials, {trial_id: n for n, trial_id in enumerate(self.trials.ids)}
        columns = []
        all_params = [trial.params for trial in planned]  # trials are made anew by each iteration
        for name in planned[0].params:
            values = [params[name] for params in all_params]
            if any(value is not values[0] and value != values[0] for value in values):
                columns.append(parameter_column(name, values))
        names = _ordered(self._names(), [*_numbers(self.numbers, "results"), "wall_s"])
        hidden = {*self.results.parameter_names(), *planned[0].params} - {"wall_s"}
        names = [name for name in names if name not in hidden]
        selected = ", ".join(["trial_id", "judgement", *map(quoted, names)])
        table = self.numbers.sql(f"select {selected} from results").to_arrow_table()
        rows = np.array([place.get(trial_id, -1) for trial_id in table["trial_id"].to_pylist()], np.int64)
        states = [str(self.status.states[trial_id]) for trial_id in planned.ids]
        for row, judgement in zip(rows, table["judgement"].to_pylist(), strict=True):
            if row >= 0 and judgement in STATES:
                states[row] = judgement
        columns.append(dictionary_column("state", states, STATES, role="state"))
        taken, most = {column.name for column in columns}, len(columns) + MAX_METRICS
        for name in names:
            numbers = np.full(len(planned), np.nan)
            numbers[rows[rows >= 0]] = _float64(table[name])[rows >= 0]
            if not np.isnan(numbers).all() and name not in taken and len(columns) < most:
                columns.append(metric_column(name, numbers, role="metric", **self._scale(name)))
        return columns

    def _scale(self, name: str) -> dict[str, bool]:
        metric = self._metrics.get(name.removeprefix("last_"))
        return {"log": False} if metric is not None and metric.axis == "linear" else {}


def marks_of(annotations: Annotations, sweep: str, trial_ids: Iterable[str]) -> dict[str, Any]:
    """Return the tags and notes of a sweep and of its trials, for the page."""
    of_trials = annotations.trials
    return {
        "sweep": asdict(annotations.sweeps.get(sweep, Marks())),
        "trials": {trial_id: asdict(of_trials[trial_id]) for trial_id in trial_ids if trial_id in of_trials},
    }


def fit_rows(curves: Sequence[FittedGroup]) -> list[dict[str, Any]]:
    """Return the fits as the page shows them, each with the headline of its request, and the steepest marked."""
    rows = []
    for group in by_request(curves).values():
        text = headline(count_states(group))
        followed = [power.exponent for curve in group if (power := followed_power(curve))]
        steepest = max(followed, default=None)
        rows += [_fit_row(curve, steepest) | {"headline": text} for curve in group]
    return rows


def _fit_row(curve: FittedGroup, steepest: float | None) -> dict[str, Any]:
    """Return a curve's power law, its state, and the curve of the preferred model if it is another one."""
    power, request, preference = curve.power, curve.asked, curve.preference
    is_law = preference.state is GroupState.POWER_LAW
    other = next(iter(preference.models), None) if not is_law else None
    x_values = [float(row["x"]) for row in curve.rows]
    x = np.geomspace(min(x_values), max(x_values), 30) if other else np.zeros(0)
    state, detail = state_label(preference)
    fit = {} if power is None else {n: getattr(power, n) for n in ("exponent", "ci_low", "ci_high", "prefactor", "r2")}
    return {
        "metric": curve.metric,
        "x": curve.x,
        "by": curve.by,
        **{name: value if value is None or np.isfinite(value) else None for name, value in fit.items()},
        "is_law": is_law,
        "is_steepest": is_law and power is not None and power.exponent == steepest,
        "state": preference.state,
        "state_text": state,
        "why": "" if is_law else typeset(detail),
        "form": [x.tolist(), [] if other is None else predict(other, x).tolist()],
        "preferred": typeset(preferred_text(preference)),
        "excluded": curve.excluded,
        "n_trials": len(curve.rows),
        "n_unconverged": len(curve.unconverged),
        "over": curve.draws,
        # a fit of other values than those of the page's trials is listed, but not drawn
        "is_plain": request.threshold is None
        and request.layer is None
        and not request.options
        and request.x_min is None,
        "label": curve.label(),
    }


def read_rows(
    results: Results,
    names: Sequence[str],
    trial_ids: Sequence[str],
    numbers: np.ndarray,
    running: Collection[str] | None = None,
) -> dict[str, list[Column]]:
    """Return the tables of the training split of some trials.

    `curves` has what training logs per step, `measured` the last layer's metrics per measured step, and `layers` the metrics of
    all layers at the last step. All are sorted by trial, whose number is the first column.

    Args:
        names: Metrics in the order of their interest. Of more than `MAX_CURVES` with values, the first ones are taken.
        numbers: Number of each trial on the page.
        running: Names of the parameters, if `curves` has what running trials have logged.
    """
    if not trial_ids:
        return {}
    train = "split = 'train'"
    last = f"metrics where {train} and is_last"
    deep = f"(select *, max(step) over (partition by trial_id) as top from metrics where {train}) where step = top"
    tables = {}
    for table, view, source, order in (
        ("curves", "curves", f"curves where {train}", "step"),
        ("measured", "metrics", last, "step"),
        ("layers", "metrics", deep, "layer"),
    ):
        committed, live = _numbers(results, view), []
        if running is not None and view == "curves":
            live = _logged(results, running)
        columns = _ordered(names, list(dict.fromkeys([*committed, *live])))
        if not columns:
            continue
        query = f"select {_listed('trial_id', order, *committed)} from {source} and {order} is not null"
        if live:
            logged = f"select {_listed('trial_id', order, *live)} from live where {train} and {order} is not null"
            query += f" union all by name {logged}"
        tables[table] = _row_columns(results.numbered_rows(query, trial_ids, (order,)), order, columns, numbers)
    return tables


def _listed(*names: str) -> str:
    return ", ".join(map(quoted, names))


def _row_columns(rows: pa.Table, order: str, names: Sequence[str], numbers: np.ndarray) -> list[Column]:
    """Return rows as columns. Of too many rows, evenly chosen steps of each trial, or of evenly chosen trials, are left."""
    trial = rows["trial_id"].to_numpy().astype(np.int64)
    values = {name: _float64(rows[name]) for name in names}
    filled = [name for name, array in values.items() if np.isfinite(array).any()][:MAX_CURVES]
    values = {name: values[name] for name in filled}
    if not values:
        return []
    kept = np.ones(len(trial), bool)
    if len(trial) * len(values) > MAX_NUMBERS:
        starts = np.flatnonzero(np.diff(trial, prepend=-1))
        ends = np.r_[starts[1:], len(trial)]
        kept[:] = False
        if order == "step":
            room = max(20, MAX_NUMBERS // (len(values) * len(starts)))
            for start, end in zip(starts, ends, strict=True):
                kept[[start + place for place in _evenly(end - start, room)]] = True
        else:
            room = max(1, MAX_NUMBERS * len(starts) // (len(trial) * len(values)))
            for group in _evenly(len(starts), room):
                kept[starts[group] : ends[group]] = True
    at = rows[order].to_numpy().astype(np.int32)
    columns = [Column("trial", numbers[trial][kept]), Column(order, at[kept])]
    return columns + [metric_column(name, array[kept]) for name, array in values.items()]


def _evenly(count: int, most: int) -> list[int]:
    """Return at most `most` of the numbers below `count`, evenly chosen, with the first and the last."""
    return list(range(count)) if count <= most else sorted({int(place) for place in np.linspace(0, count - 1, most)})


def _ordered(first: Iterable[str], columns: Sequence[str]) -> list[str]:
    """Return columns, the named ones first. The view `results` calls a logged loss or rate last_<name>."""
    wanted = [name for metric in first for name in (metric, f"last_{metric}")]
    return [name for name in dict.fromkeys([*wanted, *columns]) if name in columns]


def _numbers(results: Results, view: str) -> list[str]:
    """Return the columns of numbers in a view."""
    relation = results.sql(f"select * from {view} limit 0")
    return [name for name, kind in zip(relation.columns, relation.types, strict=True) if str(kind) == "DOUBLE"]


def _logged(results: Results, parameters: Collection[str]) -> list[str]:
    """Return the columns of numbers that running trials have logged. A parameter with the same name is param_<name>."""
    columns = results.sql("select * from live limit 0").columns
    hidden = {name if f"param_{name}" not in columns else f"param_{name}" for name in parameters}
    return [name for name in _numbers(results, "live") if name not in hidden]


def _float64(column: pa.ChunkedArray) -> np.ndarray:
    array: np.ndarray = column.cast("float64").to_numpy(zero_copy_only=False)
    return array


def _is_numeric(column: Column) -> bool:
    values: Sequence[Any] = column.facts.get("values", ())
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
