"""Values that fits use, read from the store. Each table is read once for all fits, as opening files takes most of the time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from depthrate.orchestrator.analysis.columns import ALWAYS_LAST
from depthrate.storage.query.results import Results
from depthrate.storage.query.sql_checks import names_in
from depthrate.storage.tables.custom_columns import quoted
from depthrate.sweeps.spec import FitRequest
from depthrate.tasks.parameters import nearest, nearest_names

_NOT_METRICS = (
    "trial_id",
    "sweep",
    "task",
    "status",
    "judgement",
    "split",
    "device",
    "host",
    "layer",
    "step",
    "wall_s",
)
"""Columns of `results` that are neither parameters nor metrics. A number outside this list is a metric."""
T = TypeVar("T")
Past = Mapping[str, Sequence[tuple[float, float]]]
"""Trial -> (step, value) at each measured step, ascending."""
# last step among a trial's rows for one split, and the last layer at that step
_LAST = "max({'step': step, 'layer': layer}) filter (where is_last) over (partition by trial_id, split)"


def in_memory(results: Results, requests: Sequence[FitRequest], trial_ids: Iterable[str]) -> Results:
    """Return the results with what fits use of these trials in memory, since several queries of each fit use it."""
    if not requests:
        return results
    used = {"trial_id", "step", "split", "layer", "is_last", *ALWAYS_LAST, *(request.measured for request in requests)}
    words = {word for request in requests if request.where for word in names_in(request.where)}
    names = results.sql("select * from metrics limit 0").columns
    unused = [name for name in names if name not in used and name.casefold() not in words]
    return results.in_memory(trial_ids, unused, all_layers=any(request.reads_layers for request in requests))


def missing_metrics(results: Results, requests: Sequence[FitRequest], trial_ids: Iterable[str]) -> list[str]:
    """Describe the metrics of fits of which no trial that ended ok has a value, with the nearest name of one that has."""
    members = results.only(trial_ids, "").sql("select * exclude (committed_at) from results where status = 'ok'")
    table = members.to_arrow_table()
    filled = [name for name in table.column_names if table[name].null_count < len(table)]
    parameters = results.parameter_names()
    names = [name.removeprefix("last_") for name in filled if name not in {*parameters, *_NOT_METRICS}]
    # a metric of another layer may be missing in the last one, whose values `results` has
    at_end = [request for request in requests if request.layer is None and not request.is_over_layers]
    wanted = dict.fromkeys(request.measured for request in at_end)
    unknown = [name for name in wanted if name not in names] if len(table) else []
    return [
        f"no metric {name!r} in the trials of a requested fit{nearest(name, names)}. {nearest_names(name, names)}."
        for name in unknown
    ]


class FittedValues:
    """Values of a sweep's fits per trial, at the last step and at earlier steps."""

    def __init__(self, results: Results, requests: Sequence[FitRequest]):
        self._results = results
        self._metrics = list(dict.fromkeys(request.measured for request in requests))
        self._known: dict[tuple[Any, ...], Any] = {}

    def last(self, request: FitRequest) -> dict[str, dict[str, Any]]:
        """Return trial_id, status and value of each trial that passes the request's filter.

        `censored` is the reason why a trial with recorded values has no first step at which the metric has passed a threshold.
        """
        selected = None if request.where is None else self._once(self._trials_where, request.where)
        measured = {} if request.layer is None else self._once(self._read_layer, request.metric, request.layer)
        index, threshold = self._metrics.index(request.measured), request.threshold
        past: Past = {} if threshold is None else self._once(self._read_past, request.measured, request.layer)

        def value(trial_id: str, end: dict[str, Any]) -> Any:
            if threshold is not None:
                return threshold.first_step(past.get(trial_id, ()))
            if request.layer is None:
                return end["values"][index]
            return measured.get((trial_id, end["step"], end["split"]))

        return {
            trial_id: {"trial_id": trial_id, "status": end["status"], "value": value(trial_id, end)}
            | ({"censored": f"never {threshold}"} if past.get(trial_id) else {})
            for trial_id, end in self._last.items()
            if selected is None or trial_id in selected
        }

    def profiles(self, metric: str) -> dict[str, dict[int, float | None]]:
        """Return a metric by layer of each trial, at the step and split of the final value."""
        if metric not in self._columns("metrics"):
            return {}
        last = "metrics semi join (select trial_id, step, split from results) using (trial_id, step, split)"
        found: dict[str, dict[int, float | None]] = {}
        query = f"select trial_id, layer, {quoted(metric)} from {last} order by all"
        for trial_id, layer, value in self._results.sql(query).fetchall():
            found.setdefault(trial_id, {})[layer] = value
        return found

    def past(self, request: FitRequest) -> Past:
        """Return a request's metric at each measured step, on the split of the final value. A threshold has no history."""
        return {} if request.threshold is not None else self._once(self._read_past, request.metric, request.layer)

    @cached_property
    def _last(self) -> dict[str, dict[str, Any]]:
        """Trial -> status, step and split of its row in `results`, and `values`, the metrics in their order."""
        existing = self._columns("results")
        # results name a measured column that a parameter hides (loss, lr) last_<name>
        columns = [f"last_{name}" if f"last_{name}" in existing else name for name in self._metrics]
        selected = ", ".join(["null", *(quoted(name) if name in existing else "null" for name in columns)])
        query = f"select trial_id, status, step, split, {selected} from results order by trial_id"
        trials, statuses, steps, splits, _, *values = (
            column.to_pylist() for column in self._results.sql(query).to_arrow_table().columns
        )
        ends = zip(statuses, steps, splits, zip(*values, strict=True), strict=True)
        names = ("status", "step", "split", "values")
        return {trial_id: dict(zip(names, end, strict=True)) for trial_id, end in zip(trials, ends, strict=True)}

    def _trials_where(self, where: str) -> set[str]:
        return {trial_id for (trial_id,) in self._results.sql(f"select trial_id from results where {where}").fetchall()}

    def _read_layer(self, metric: str, layer: float) -> dict[tuple[str, Any, Any], float]:
        """Map (trial, step, split) to the metric at a layer. Negative ones count from the last, fractions are shares of it."""
        if metric not in self._columns("metrics"):
            return {}
        rows = self._results.sql(f"select trial_id, step, split, {quoted(metric)} from {_at_layer(layer)}").fetchall()
        return {(trial_id, step, split): value for trial_id, step, split, value in rows}

    def _read_past(self, metric: str, layer: float | None) -> Past:
        if metric in self._columns("metrics"):
            if layer is None:
                return self._pasts_at_end[metric]
            return self._pasts([metric], _at_layer(layer))[metric]
        return self._pasts([metric], "curves")[metric] if metric in self._columns("curves") else {}

    @cached_property
    def _pasts_at_end(self) -> dict[str, Past]:
        existing = self._columns("metrics")
        return self._pasts([name for name in self._metrics if name in existing], "metrics where is_last")

    def _pasts(self, metrics: Sequence[str], source: str) -> dict[str, Past]:
        selected = ", ".join(map(quoted, metrics))
        table = self._results.sql(f"select trial_id, step, split, {selected} from {source} order by trial_id, step")
        trials, steps, splits, *columns = (column.to_pylist() for column in table.to_arrow_table().columns)
        split_of = {trial_id: row["split"] for trial_id, row in self._last.items()}
        counts = [
            split is not None and split_of.get(trial) == split for trial, split in zip(trials, splits, strict=True)
        ]
        pasts: dict[str, Past] = {}
        for name, values in zip(metrics, columns, strict=True):
            past: dict[str, list[tuple[float, float]]] = {}
            for trial_id, step, value, is_counted in zip(trials, steps, values, counts, strict=True):
                if is_counted and value is not None:
                    past.setdefault(trial_id, []).append((float(step), float(value)))
            pasts[name] = past
        return pasts

    def _columns(self, view: str) -> list[str]:
        return self._once(self._read_columns, view)

    def _read_columns(self, view: str) -> list[str]:
        return self._results.sql(f"select * from {view} limit 0").columns

    def _once(self, read: Callable[..., T], *arguments: Any) -> T:
        """Return the result of a method, called once for the same arguments.

        A `functools.cache` of the method would refer to itself, and the tables would stay in memory until a collection.
        """
        key = (read.__name__, *arguments)
        if key not in self._known:
            self._known[key] = read(*arguments)
        found: T = self._known[key]
        return found


def _at_layer(layer: float) -> str:
    if isinstance(layer, float):
        return f"(select *, {_LAST} as last from metrics) where layer = round(last.layer * {layer!r})"
    if layer >= 0:
        return f"metrics where layer = {layer}"
    return f"(select *, {_LAST} as last from metrics) where layer = last.layer + 1 {layer}"
