"""The aggregation stage: committed measurements in, fitted rates out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from storage.query import Results
from sweeps.sweep import FitRequest
from sweeps.trial import Trial
from tasks.fit import FitError, RateFit, fit_rates

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class FittedCurve:
    """One curve of a metric over x, with every model fitted to it; no fits where it cannot have one."""

    metric: str
    x: str
    by: dict[str, Any]
    rows: list[dict[str, Any]]
    """The values used: trial_id, seed, x, y."""
    fits: list[RateFit]
    excluded: dict[str, int]
    """Why trials of this curve were left out -> how many."""
    note: str | None = None
    """Why there is no fit."""

    @property
    def points(self) -> pd.DataFrame:
        """The values used, as a frame with the columns x, y, seed, trial_id."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=["x", "y", "seed", "trial_id"])

    @property
    def power(self) -> RateFit | None:
        """The power law c x^-a."""
        return next((fit for fit in self.fits if fit.model == "power"), None)

    def label(self) -> str:
        """Name the curve's group, as in `weight_decay = 0.005`."""
        return ", ".join(f"{name} = {value}" for name, value in self.by.items())

    def table_rows(self, sweep: str) -> list[dict[str, Any]]:
        """Return the curve's rows of the fits table."""
        common = {
            "sweep": sweep,
            "metric": self.metric,
            "x": self.x,
            "by": json.dumps(self.by, sort_keys=True),
            "n_trials": len(self.rows) + sum(self.excluded.values()),
            "excluded": json.dumps(self.excluded, sort_keys=True),
        }
        return [{**asdict(fit), **common} for fit in self.fits]


def fit_curves(results: Results, requests: Sequence[FitRequest], trials: Sequence[Trial]) -> list[FittedCurve]:
    """Fit what a sweep asks for to the last-layer values of its trials, seed by seed.

    Diverged trials, missing values and values that have no logarithm are left out and counted.
    """
    if not requests:
        return []
    known = results.sql("select * from results limit 0").columns
    # a measured column that a parameter hides (loss, lr) stands in results as last_<name>
    columns = {r.metric: f"last_{r.metric}" if f"last_{r.metric}" in known else r.metric for r in requests}
    selected = [f'"{column}" as "{metric}"' for metric, column in columns.items() if column in known]
    query = f"select {', '.join(['trial_id', 'status', *selected])} from results order by trial_id"
    measured = {row["trial_id"]: row for row in results.sql(query).to_arrow_table().to_pylist()}
    done = [(trial.params, measured[trial.trial_id]) for trial in trials if trial.trial_id in measured]
    return [curve for request in requests for curve in _curves_of(request, done)]


Done = tuple[Mapping[str, Any], dict[str, Any]]
"""A committed trial: its parameters, and its row with status and metrics."""


def _curves_of(request: FitRequest, done: list[Done]) -> list[FittedCurve]:
    groups: dict[str, list[Done]] = {}
    for params, row in done:
        groups.setdefault(json.dumps([params[name] for name in request.by]), []).append((params, row))
    ordered = sorted(groups.values(), key=lambda group: [(str(type(v)), v) for v in _group_values(request, group)])
    return [_fit_group(request, group) for group in ordered]


def _group_values(request: FitRequest, group: list[Done]) -> list[Any]:
    return [group[0][0][name] for name in request.by]


def _fit_group(request: FitRequest, group: list[Done]) -> FittedCurve:
    used: list[dict[str, Any]] = []
    excluded: dict[str, int] = {}
    for params, row in group:
        value = row.get(request.metric)
        reason = _reason_to_exclude(row["status"], value)
        if reason is None:
            trial = {"seed": params.get("seed"), "trial_id": row["trial_id"]}
            used.append({"x": params[request.x], "y": value, **trial})
        else:
            excluded[reason] = excluded.get(reason, 0) + 1
    fits: list[RateFit] = []
    note = None
    try:
        fits = fit_rates([row["x"] for row in used], [row["y"] for row in used])
    except FitError as error:
        note = str(error)
    by = dict(zip(request.by, _group_values(request, group), strict=True))
    return FittedCurve(request.metric, request.x, by, used, fits, excluded, note)


def _reason_to_exclude(status: str, value: Any) -> str | None:
    if status != "ok":
        return status
    if value is None:
        return "not measured"
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "not a number"
    return None if value > 0 else "not positive"
