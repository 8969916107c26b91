"""Rows and curves of a sweep's trials. Rows of committed trials are read once, and rows of live trials at each poll."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.api.find_sweep import find_launch
from depthrate.orchestrator.monitor.status import SweepStatus
from depthrate.orchestrator.report.curve_groups import thinned_curves
from depthrate.orchestrator.report.trial_tables import MAX_COLUMNS
from depthrate.orchestrator.serve.poller import StoreView
from depthrate.storage.attempts.live_curves import LivePack
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.files.store import Store
from depthrate.storage.query.results import Results
from depthrate.storage.tables.custom_columns import quoted

MAX_CURVES_SHOWN = 40
"""Maximum number of trials in the figure of curves: running trials first, then the latest commits."""
CURVE_POINTS, CURVE_DIGITS = 200, 5
ORDER = ("failed", "diverged", "running", "ok", "pending")
"""Order of states in the table."""
FIRST_CURVES = ("loss", "accuracy")
Curves = dict[str, dict[str, list[float | None]]]
"""Curves of one trial: split -> column -> values."""


class SweepRows:
    """Cached rows of one sweep."""

    def __init__(self, store: Store, sweep: str):
        self._store, self._sweep = store, sweep
        self._numbers: dict[str, dict[str, Any]] = {}
        self._committed: dict[str, dict[str, Any]] = {}
        self._order: list[str] = []
        """Committed trials, newest last."""
        self._curves: dict[str, Curves] = {}
        self._planned: dict[str, Mapping[str, Any]] = {}
        self._planned_ids: frozenset[str] = frozenset()
        self._names: list[str] = []
        self._varying: list[str] = []
        self._varying_of: tuple[Any, ...] = ()
        self._lock, self._number = threading.Lock(), -1

    def table(self, view: StoreView) -> dict[str, Any]:
        """Return the columns and rows of the table of trials.

        Raises:
            OSError, StoreError: The store does not answer.
        """
        with self._locked_refresh(view) as (state, live):
            params, varying = self._settings(state, live)
            running = {trial.trial_id: trial for trial in (view.status.running if view.status else ())}
            values = {
                t: self._numbers.get(t) or _last(running[t].last)
                for t in state.states
                if t in self._numbers or t in running
            }
            measured = self._metric_columns(view, values, MAX_COLUMNS - 5 - len(varying))
            errors = {trial_id: error for trial_id in state.states if (error := state.error_of(trial_id)) is not None}
            columns = ["trial", "state", *varying, "step", *measured, "wall s", *(["error"] if errors else [])]
            rows = []
            newest = {trial_id: place for place, trial_id in enumerate(reversed(self._order))}
            places = {trial_id: (ORDER.index(s), newest.get(trial_id, 0)) for trial_id, s in state.states.items()}
            for trial_id, trial_state in sorted(state.states.items(), key=lambda item: places[item[0]]):
                done, own = self._committed.get(trial_id, {}), values.get(trial_id, {})
                row = [trial_id, trial_state, *(params[trial_id].get(name) for name in varying)]
                row += [running[trial_id].step if trial_id in running else done.get("steps")]
                row += [own.get(name) for name in measured] + [done.get("wall_s")]
                rows.append(row + ([errors.get(trial_id)] if errors else []))
            return {"columns": columns, "rows": rows}

    def curves(self, view: StoreView, of: str | None) -> dict[str, Any]:
        """Return one logged quantity over the steps, for running trials and the latest commits.

        Raises:
            OSError, StoreError: The store does not answer.
        """
        with self._locked_refresh(view) as (state, live):
            shown = {trial_id: curves_of(pack, trial_id) for trial_id, pack in list(live.items())[:MAX_CURVES_SHOWN]}
            room = MAX_CURVES_SHOWN - len(shown)
            newest = [trial_id for trial_id in reversed(self._order) if trial_id in self._curves]
            shown |= {trial_id: self._curves[trial_id] for trial_id in newest[:room]}
            names = logged_names(shown.values())
            chosen = of if of in names else next(iter(names), "")
            params, varying = self._settings(state, live)
            lines = [
                {
                    "trial": trial_id,
                    "label": ", ".join(f"{n} {params[trial_id].get(n)}" for n in varying) or trial_id,
                    "running": trial_id in live,
                    "split": split,
                    "x": columns["step"],
                    "y": columns[chosen],
                }
                for trial_id, curves in shown.items()
                for split, columns in curves.items()
                if chosen in columns
            ]
            return {"names": names, "of": chosen, "lines": lines}

    def trial(self, view: StoreView, trial_id: str) -> dict[str, Any]:
        """Return the parameters, last values and curves of a trial.

        Raises:
            OSError, StoreError: The store does not answer.
        """
        with self._locked_refresh(view) as (state, live):
            running = [trial for trial in (view.status.running if view.status else ()) if trial.trial_id == trial_id]
            curves = curves_of(live[trial_id], trial_id) if trial_id in live else self._curves.get(trial_id)
            params, numbers = self._params(trial_id, live), self._numbers.get(trial_id)
            found = {
                "state": state.states[trial_id],
                "params": dict(params),
                "numbers": numbers or (_last(running[0].last) if running else {}),
                "error": state.error_of(trial_id),
            }
        if curves is None and trial_id in self._committed and view.status is not None:
            curves = self._cache_curves(view.status.snapshot, trial_id)
        return found | {"curves": curves or {}, "names": logged_names([curves or {}])}

    def _cache_curves(self, snapshot: Snapshot, trial_id: str) -> Curves:
        """Read and cache the curves of an older commit."""
        rows = snapshot.trials.select(["trial_id", "attempt_id"]).to_pylist()
        others = {(row["trial_id"], row["attempt_id"]) for row in rows if row["trial_id"] != trial_id}
        curves = _read_curves(self._results(snapshot).without(others), [trial_id]).get(trial_id, {})
        with self._lock:
            self._curves[trial_id] = curves
            for other in list(self._curves)[: -2 * MAX_CURVES_SHOWN]:
                del self._curves[other]
        return curves

    @contextmanager
    def _locked_refresh(self, view: StoreView) -> Iterator[tuple[SweepStatus, dict[str, LivePack]]]:
        """Refresh the cache, and yield the sweep's state and live packs under the lock."""
        state = state_of(view, self._sweep)
        with self._lock:
            self._refresh(view, state)
            yield state, self._live(view)

    def _refresh(self, view: StoreView, state: SweepStatus) -> None:
        """Read the values of new commits."""
        if view.status is None or self._number == view.number:
            return
        self._number = view.number
        if self._planned_ids != state.states.keys():
            self._read_params(view, frozenset(state.states))
        columns = (view.status.snapshot.trials[name].to_pylist() for name in ("trial_id", "attempt_id"))
        visible = set(zip(*columns, strict=True))
        attempt_by_trial = {trial_id: attempt_id for trial_id, attempt_id in visible if trial_id in state.states}
        for trial_id in [
            t for t in self._committed if t not in attempt_by_trial
        ]:  # the trial was removed, or is pending again
            for cache in (self._committed, self._numbers, self._curves):
                cache.pop(trial_id, None)
        unread = attempt_by_trial.items() - {(trial_id, row["attempt_id"]) for trial_id, row in self._committed.items()}
        if not unread:
            return
        # read into memory, so that each file is read once and the store is not listed again
        new = self._results(view.status.snapshot).without(visible - unread).in_memory(dict(unread))
        found = _rows_of(new, "select trial_id, attempt_id, steps, wall_s, params, committed_at from trials")
        self._committed |= {row["trial_id"]: row for row in found}
        hidden = {"step", "wall_s", *new.parameter_names()}
        self._names = [name for name in _float_columns(new, "results") if name not in hidden]
        self._numbers |= {
            row["trial_id"]: {name: row[name] for name in self._names if row.get(name) is not None}
            for row in _rows_of(new, "select * from results")
        }
        self._order = sorted(self._committed, key=lambda t: str(self._committed[t]["committed_at"]))
        last = set(self._order[-MAX_CURVES_SHOWN:])
        self._curves |= _read_curves(new, [row["trial_id"] for row in found if row["trial_id"] in last])
        self._curves = {t: curves for t, curves in self._curves.items() if t in last}

    def _results(self, snapshot: Snapshot) -> Results:
        return results_of(self._store, snapshot=snapshot)

    def _read_params(self, view: StoreView, trial_ids: frozenset[str]) -> None:
        """Expand the sweep for the parameters of its trials. Without its task, committed parameters are used."""
        self._planned_ids = trial_ids
        try:
            checked, _ = find_launch(view.specs[self._sweep], self._store)
        except ValueError:
            return
        self._planned = {trial.trial_id: trial.params for trial in checked.trials}

    def _settings(
        self, state: SweepStatus, live: Mapping[str, LivePack]
    ) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
        """Return the parameters per trial and the names of varying parameters."""
        params = {trial_id: self._params(trial_id, live) for trial_id in state.states}
        known = (len(params), len(self._planned), len(self._committed), *live)
        if known != self._varying_of:
            self._varying, self._varying_of = _varying(params.values()), known
        return params, self._varying

    def _params(self, trial_id: str, live: Mapping[str, LivePack]) -> Mapping[str, Any]:
        if trial_id in self._planned:
            return self._planned[trial_id]
        if trial_id in live:
            return live[trial_id].params[trial_id]
        return parse_object(self._committed[trial_id]["params"]) if trial_id in self._committed else {}

    def _live(self, view: StoreView) -> dict[str, LivePack]:
        """Return the running trials of this sweep that have logged values."""
        if view.status is None:
            return {}
        running = [trial.trial_id for trial in view.status.running if trial.sweep == self._sweep]
        of_trial = {trial_id: pack for pack in view.status.packs for trial_id in pack.params}
        return {trial_id: of_trial[trial_id] for trial_id in running if trial_id in of_trial}

    def _metric_columns(self, view: StoreView, values: Mapping[str, Mapping[str, Any]], room: int) -> list[str]:
        """Return the metric columns of the table, fitted metrics first."""
        requests = view.specs[self._sweep].spec.get("fit") if self._sweep in view.specs else None
        fits = (
            [entry.get("metric") for entry in requests if isinstance(entry, dict)] if isinstance(requests, list) else []
        )
        present = dict.fromkeys(name for of_trial in values.values() for name in of_trial)
        order = [*fits, *FIRST_CURVES, *(n for n in self._names if n in present), *present]
        return [name for name in dict.fromkeys(order) if name in present][: max(room, 2)]


def state_of(view: StoreView, sweep: str) -> SweepStatus:
    """Return the states of a sweep's trials.

    Raises:
        KeyError: The sweep was never launched.
    """
    for state in view.status.states if view.status else ():
        if state.name == sweep:
            return state
    raise KeyError(sweep)


def curves_of(pack: LivePack, trial_id: str) -> Curves:
    """Return the live curves of a running trial."""
    names = [name for name in pack.rows.column_names if name not in ("trial_id", "step", "split")]
    rows = pack.rows_of({trial_id}).to_pandas()
    return thinned_curves(rows, names, CURVE_POINTS, CURVE_DIGITS).get(trial_id, {})


def logged_names(curves: Any) -> list[str]:
    """Return the names of logged columns, loss first."""
    names = dict.fromkeys(n for of_trial in curves for columns in of_trial.values() for n in columns if n != "step")
    return sorted(names, key=lambda name: (*FIRST_CURVES, name).index(name))


def _read_curves(results: Results, trial_ids: Sequence[str]) -> dict[str, Curves]:
    if not trial_ids:
        return {}
    numbers = _float_columns(results, "curves")
    listed = ", ".join("'" + trial_id.replace("'", "''") + "'" for trial_id in trial_ids)
    columns = ", ".join(["trial_id", "step", "split", *map(quoted, numbers)])
    query = f"select {columns} from curves where trial_id in ({listed}) and step is not null"
    return thinned_curves(results.sql(query).df(), numbers, CURVE_POINTS, CURVE_DIGITS)


def _rows_of(results: Results, query: str) -> list[dict[str, Any]]:
    relation = results.sql(query)
    return [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]


def _float_columns(results: Results, view: str) -> list[str]:
    relation = results.sql(f"select * from {view} limit 0")
    return [name for name, kind in zip(relation.columns, relation.types, strict=True) if str(kind) == "DOUBLE"]


def _varying(params: Any) -> list[str]:
    """Return the names of varying parameters."""
    values: dict[str, set[str]] = {}
    for trial_params in params:
        for name, value in trial_params.items():
            values.setdefault(name, set()).add(repr(value))
    return [name for name, found in values.items() if len(found) > 1]


def _last(splits: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the last logged values of a running trial."""
    row = splits.get("train") or next(iter(splits.values()), {})
    return {name: value for name, value in row.items() if name != "step"}
