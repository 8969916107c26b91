"""Data of one sweep for its pages: the explorer's columns, curves of a selection, and fits of a view."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from depthrate.errors import InputError
from depthrate.orchestrator.analysis.fit_requests import fit_requests
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.api.find_sweep import find_launch
from depthrate.orchestrator.api.report import explore, explore_committed
from depthrate.orchestrator.explorer.data import SweepData, fit_rows
from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.orchestrator.monitor.status import SweepStatus, TrialState
from depthrate.orchestrator.serve.poller import StoreView
from depthrate.storage.attempts.records import RecordReader
from depthrate.storage.catalog.specs import LaunchedSpec
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.query.sql_checks import QueryError
from depthrate.sweeps.load import sweep_of_spec
from depthrate.sweeps.spec import FitRequest

MAX_TRIALS_READ = 300
"""Maximum number of trials whose curves and layers one request may read."""
MAX_FITS = 50
"""Maximum number of views whose fits are cached. Trials of more than `MAX_TRIALS_FITTED` are fitted by the page alone."""
MAX_TRIALS_FITTED = 20_000
READ_INTERVAL_FACTOR = 0.5
"""Pause between two reads of a sweep that changes, as a multiple of the time that the last read took."""


class BadRequestError(InputError):
    """A request names something that the sweep does not have."""


@dataclass
class _Loaded:
    """A sweep as of one poll."""

    states: Mapping[str, TrialState]
    data: SweepData
    packed: bytes
    took_s: float
    read_at: float = field(default_factory=time.monotonic)
    fits: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class SweepPages:
    """Cached data of one sweep. Requests at the same time wait for one read."""

    def __init__(self, store: Store, sweep: str):
        self._store, self._sweep = store, sweep
        self._lock, self._fitting = threading.Lock(), threading.Lock()
        self._loaded: _Loaded | None = None
        self._launched: LaunchedSpec | None = None
        self._checked: CheckedSweep | None = None
        self._records = RecordReader(store)

    def packed(self, view: StoreView, state: SweepStatus) -> bytes:
        """Return the data of the explorer: trials and fits.

        Raises:
            ValueError: The sweep's task cannot be loaded, and no trial is committed.
        """
        with self._lock:
            return self._load(view, state).packed

    def rows(self, view: StoreView, state: SweepStatus, trial_ids: Sequence[str]) -> bytes:
        """Return curves and layers of some trials, with what running trials have logged.

        Raises:
            ValueError: As in `packed`, or there are too many trials.
        """
        if len(trial_ids) > MAX_TRIALS_READ or not set(trial_ids) <= state.states.keys():
            raise BadRequestError(f"expected at most {MAX_TRIALS_READ} trials of the sweep")
        with self._lock:
            return self._load(view, state).data.rows(trial_ids)

    def fits(self, view: StoreView, state: SweepStatus, query: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Fit a metric over the trials of a view, by the rules of `depthrate fit`.

        Args:
            query: metric, x, by (names), drop (values of x), keep (parameter -> values).

        Raises:
            ValueError: As in `packed`, or the query has another form.
        """
        with self._lock:
            loaded, key = self._load(view, state), repr(query)
        with self._fitting:  # meanwhile the data can be read
            if key not in loaded.fits:
                if len(loaded.fits) >= MAX_FITS:
                    loaded.fits.clear()
                loaded.fits[key] = self._fit(loaded.data, query)
            return loaded.fits[key]

    def _fit(self, data: SweepData, query: Mapping[str, Any]) -> list[dict[str, Any]]:
        trials = list(data.trials)
        names = set(trials[0].params)
        try:
            metric, x, by = str(query["metric"]).removeprefix("last_"), str(query["x"]), tuple(map(str, query["by"]))
            dropped, keep = list(query["drop"]), {str(name): list(values) for name, values in query["keep"].items()}
        except (KeyError, TypeError, AttributeError):
            raise BadRequestError("expected metric, x, by, drop and keep") from None
        if unknown := {x, *by, *keep} - names:
            raise BadRequestError(f"the sweep has no parameter {min(unknown)!r:.100}")
        if len(trials) > MAX_TRIALS_FITTED:
            return []
        chosen = [
            trial.trial_id
            for trial in trials
            if trial.params[x] not in dropped and all(trial.params[name] in values for name, values in keep.items())
        ]
        # all trials are judged, as they are compared with one another, and the chosen ones are fitted
        where = f"trial_id in ({', '.join(repr(trial_id) for trial_id in chosen)})" if chosen else "false"
        request = FitRequest(metric, x, by, where=where)
        fits = fit_requests(data.results, [request], trials, data.task, data.status.unfinished)
        return fit_rows(fits.curves)

    def _load(self, view: StoreView, state: SweepStatus) -> _Loaded:
        """Return the sweep, read again if a trial changed its state and the last read is long enough ago."""
        loaded = self._loaded
        if loaded is not None:
            pause_s = READ_INTERVAL_FACTOR * loaded.took_s
            if loaded.states == state.states or time.monotonic() - loaded.read_at < pause_s or view.status is None:
                return loaded
        assert view.status is not None
        began = time.monotonic()
        data = self._read(view.specs[self._sweep], state, view.status.snapshot)
        packed = data.packed(with_rows=False)
        data = replace(data, numbers=data.results)  # frees the tables in memory
        self._loaded = _Loaded(dict(state.states), data, packed, time.monotonic() - began)
        return self._loaded

    def _read(self, launched: LaunchedSpec, state: SweepStatus, snapshot: Snapshot) -> SweepData:
        try:
            checked = self._find(launched)
        except ValueError as error:  # of its task: it is not installed here, or its code is not trusted
            try:
                return explore_committed(
                    sweep_of_spec(launched.spec), state, results_of(self._store, snapshot=snapshot)
                )
            except QueryError:
                raise error from None
        return explore(checked, self._store, results_of(self._store, checked.task, snapshot), self._records)

    def _find(self, launched: LaunchedSpec) -> CheckedSweep:
        """Expand the sweep, again only after a launch. A search proposes more trials while it runs."""
        if self._checked is None or launched != self._launched or "search" in launched.spec:
            self._checked, _ = find_launch(launched, self._store)
            self._launched = launched
        return self._checked
