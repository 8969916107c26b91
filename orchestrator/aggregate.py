"""The aggregation stage: committed measurements in, fitted rates out."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from storage.query import Results
from sweeps.sweep import FitRequest
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


def fit_curves(results: Results, requests: Sequence[FitRequest], trial_ids: Collection[str]) -> list[FittedCurve]:
    """Fit what a sweep asks for to the last-layer values of these trials, seed by seed.

    Diverged trials, missing values and values that have no logarithm are left out and counted.
    """
    if not requests:
        return []
    columns = dict.fromkeys(name for r in requests for name in (r.metric, r.x, *r.by))
    known = results.sql("select * from results limit 0").columns
    selected = ", ".join(f'"{name}"' for name in columns if name in known)
    seed = "seed" if "seed" in known else "null"
    query = (
        f"select trial_id, status, {seed} as seed{', ' + selected if selected else ''} from results order by trial_id"
    )
    table = results.sql(query).to_arrow_table().to_pylist()
    wanted = set(trial_ids)
    rows = [row for row in table if row["trial_id"] in wanted]
    return [curve for request in requests for curve in _curves_of(request, rows)]


def _curves_of(request: FitRequest, rows: list[dict[str, Any]]) -> list[FittedCurve]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(json.dumps([row[name] for name in request.by]), []).append(row)
    return [_fit_group(request, group) for _, group in sorted(groups.items())]


def _fit_group(request: FitRequest, rows: list[dict[str, Any]]) -> FittedCurve:
    used: list[dict[str, Any]] = []
    excluded: dict[str, int] = {}
    for row in rows:
        value = row.get(request.metric)
        reason = _reason_to_exclude(row["status"], value)
        if reason is None:
            used.append({"x": row[request.x], "y": value, "seed": row["seed"], "trial_id": row["trial_id"]})
        else:
            excluded[reason] = excluded.get(reason, 0) + 1
    fits: list[RateFit] = []
    note = None
    try:
        fits = fit_rates([row["x"] for row in used], [row["y"] for row in used])
    except FitError as error:
        note = str(error)
    by = {name: rows[0][name] for name in request.by}
    return FittedCurve(request.metric, request.x, by, used, fits, excluded, note)


def _reason_to_exclude(status: str, value: float | None) -> str | None:
    if status != "ok":
        return status
    if value is None or math.isnan(value):
        return "not measured"
    return None if value > 0 else "not positive"
