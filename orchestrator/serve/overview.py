"""Progress, cost and first rate of each sweep, for the home page."""

import json
import threading
from dataclasses import asdict
from operator import itemgetter
from typing import Any

from depthrate.grouping import grouped
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.analysis.preference import GroupState
from depthrate.orchestrator.api.status import StatusSnapshot
from depthrate.orchestrator.attempts.record import stalled_text
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.monitor.status import SweepStatus
from depthrate.orchestrator.serve.poller import StoreView
from depthrate.orchestrator.sheet.fit_words import headline
from depthrate.storage.catalog.tags import Marks
from depthrate.storage.files.protocol import Stamp
from depthrate.storage.files.store import Store
from depthrate.storage.query.results import Results
from depthrate.storage.tables.custom_columns import quoted

MAX_NOTES, MAX_LINES = 3, 3
REFIT = "fitted by an earlier version. Fit again: depthrate fit"
_FITS = (
    'select sweep, metric, x, "by", exponent, ci_low, ci_high, state, group_states, '
    "n_unconverged, layer, filter, x_min from fits where model = 'power'"
)


class Overview:
    """Summaries of the store's sweeps. Stored fits are read again when one changes."""

    def __init__(self, store: Store):
        self._store, self._lock = store, threading.Lock()
        self._stamps: dict[str, Stamp] | None = None
        self._rates: dict[str, dict[str, Any]] = {}

    def summaries(self, view: StoreView) -> list[dict[str, Any]]:
        """Return one summary per sweep, running sweeps first."""
        if view.status is None:
            return []
        rates, changed = self._read_rates(view.status), _last_commits(view)
        sweeps = [
            summary(view.status, state)
            | {
                "task": str(view.specs[state.name].spec.get("task", "")) if state.name in view.specs else "",
                "rate": rates.get(state.name),
                "changed": changed.get(state.name),
                "marks": asdict(view.annotations.sweeps.get(state.name, Marks())),
            }
            for state in view.status.states
        ]
        return sorted(sweeps, key=lambda sweep: (not sweep["counts"]["running"], sweep["name"]))

    def _read_rates(self, status: StatusSnapshot) -> dict[str, dict[str, Any]]:
        with self._lock:
            stamps = self._store.stamps("fits")
            if stamps != self._stamps:
                relation = results_of(self._store, snapshot=status.snapshot).sql(_FITS)
                rows = [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]
                self._rates = {sweep: _first_rate(of) for sweep, of in grouped(rows, itemgetter("sweep")).items()}
                self._stamps = stamps
            return self._rates


def spark_lines(results: Results, fits: Any) -> list[list[tuple[float, float]]]:
    """Return the means of a sweep's first fit in logarithms, one line per group, for a small figure.

    Args:
        fits: The value of `fit` in the sweep's file.
    """
    first = next((fit for fit in fits if isinstance(fit, dict)), {}) if isinstance(fits, list) else {}
    metric, x, by = first.get("metric"), first.get("x", "depth"), first.get("by") or []
    names = [metric, x, *by] if isinstance(by, list) else []
    columns = results.sql("select * from results limit 0").columns
    if not names or metric is None or not all(name in columns for name in names):  # x may also be arithmetic
        return []
    y, at, groups = quoted(metric), quoted(x), "".join(f", {quoted(name)}" for name in by)
    rows = results.sql(
        f"select ln({at}), avg(ln({y})){groups} from results where judgement in ('ok', 'unconverged') and {y} > 0 and {at} > 0 "
        f"group by {at}{groups} order by {at}{groups}"
    ).fetchall()
    lines = grouped(rows, lambda row: repr(row[2:])).values()
    return [[(log_x, log_y) for log_x, log_y, *_ in line] for line in lines][:MAX_LINES]


def summary(status: StatusSnapshot, state: SweepStatus) -> dict[str, Any]:
    """Return the counts by state, cost and problems of a sweep."""
    cost = status.costs.get(state.name)
    errors = [
        f"{counted(count, 'trial')} failed with: {message}" for message, count in state.errors().most_common(MAX_NOTES)
    ]
    stalled = [stalled_text(record) for record in state.stalled[:MAX_NOTES]]
    return {
        "name": state.name,
        "trials": len(state.states),
        "num_done": state.num_done,
        "counts": state.counts(),
        "hours": 0.0 if cost is None else sum(hours.held for hours in cost.devices.values()),
        "failures": 0 if cost is None else sum(number for number, _ in cost.failures.values()),
        "notes": [*stalled, *errors, *filter(None, [status.unattended.get(state.name)])],
    }


def _first_rate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the steepest power law of a sweep's first fit, and its headline. Fits of earlier versions have none."""
    names = ("metric", "x", "layer", "filter", "x_min")
    first = [row for row in rows if all(row[name] == rows[0][name] for name in names)]
    laws = [row for row in first if row["state"] == GroupState.POWER_LAW]
    best = max(laws, key=lambda row: row["exponent"], default=None)
    facts = {name: best[name] for name in ("exponent", "ci_low", "ci_high")} if best is not None else {}
    return facts | {
        "metric": first[0]["metric"],
        "x": first[0]["x"],
        "by": json.loads(best["by"]) if best is not None else {},
        "headline": headline(json.loads(first[0]["group_states"])) if first[0]["group_states"] else REFIT,
        "is_unconverged": any(row["n_unconverged"] for row in first),
    }


def _last_commits(view: StoreView) -> dict[str, float]:
    """Return the time of each sweep's last commit, in seconds since 1970."""
    assert view.status is not None
    table = view.status.snapshot.trials
    times = dict(zip(table["trial_id"].to_pylist(), table["committed_at"].to_pylist(), strict=True))
    last: dict[str, float] = {}
    for state in view.status.states:
        done = [time.timestamp() for trial_id in state.states if (time := times.get(trial_id)) is not None]
        if done:
            last[state.name] = max(done)
    return last
