"""The aggregation stage: committed measurements in, fitted rates out, and what was left out of them, by reason."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from depthrate.storage.columns import quoted
from depthrate.storage.query import Results
from depthrate.sweeps.fit_requests import FitRequest
from depthrate.sweeps.trial import Trial
from depthrate.tasks.fits.common_exponent import CommonFit, common_exponent
from depthrate.tasks.fits.cutoffs import Cutoff, cutoff, sensitivity
from depthrate.tasks.fits.models import POWER
from depthrate.tasks.fits.points import FitError
from depthrate.tasks.fits.rate_fit import RateFit
from depthrate.tasks.fits.rates import fit_many

if TYPE_CHECKING:
    import pandas as pd

    from depthrate.tasks.measurement import Measurement

STILL_FALLING = 0.01
"""A trial is unconverged if its objective fell by more than this share over the last quarter of its steps."""
UNCONVERGED_RULE = "objective fell by more than 1 % over the last quarter of its steps"


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
    left_out: list[dict[str, Any]] = field(default_factory=list)
    """The trials left out: trial_id, seed, x, y (null where there is none), reason."""
    unconverged: frozenset[str] = frozenset()
    """Those of the trials used that break UNCONVERGED_RULE."""
    request: FitRequest | None = None
    cutoff: Cutoff | None = None
    """The lower cut-off chosen, where the request asked for one."""
    sensitivity: list[dict[str, Any]] = field(default_factory=list)
    """The power law without the smallest x, the two smallest, ...: x_min, exponent, ci_low, ci_high, n_points."""
    common: CommonFit | None = None
    """The exponent that all groups of the request share, and the test that they do."""
    measurement: Measurement | None = None
    """How the report shows the metric; null: by its name."""

    @property
    def metric_label(self) -> str:
        """The metric for readers."""
        return self.metric if self.measurement is None else self.measurement.label

    @property
    def points(self) -> pd.DataFrame:
        """The values used, as a frame with the columns x, y, seed, trial_id."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=["x", "y", "seed", "trial_id"])

    @property
    def power(self) -> RateFit | None:
        """The power law c x^-a."""
        return next((fit for fit in self.fits if fit.model == POWER.name), None)

    @property
    def asked(self) -> FitRequest:
        """What was asked for."""
        return self.request or FitRequest(self.metric, self.x, tuple(self.by))

    def label(self) -> str:
        """Name the curve's group, as in `weight_decay = 0.005`, and the layer where it is not the last."""
        names = [f"{name} = {value}" for name, value in self.by.items()]
        names += [] if self.asked.layer is None else [f"layer {self.asked.layer}"]
        return ", ".join(names + ([f"where {self.asked.where}"] if self.asked.where else []))

    def table_rows(self, sweep: str) -> list[dict[str, Any]]:
        """Return the curve's rows of the fits table."""
        asked, common = self.asked, self.common
        shared = {
            "sweep": sweep,
            "metric": self.metric,
            "x": self.x,
            "by": json.dumps(self.by, sort_keys=True),
            "n_trials": len(self.rows) + sum(self.excluded.values()),
            "excluded": json.dumps(self.excluded, sort_keys=True),
            "n_unconverged": len(self.unconverged),
            "layer": asked.layer,
            "filter": asked.where,
            "weights": asked.weights,
            "target": asked.target,
            "x_min": self.cutoff.x_min if self.cutoff else None,
            "p_lack_of_fit": self.cutoff.p_lack_of_fit if self.cutoff else None,
        }
        power = {
            "common_exponent": common.exponent if common else None,
            "common_low": common.ci_low if common else None,
            "common_high": common.ci_high if common else None,
            "p_common": common.p_common if common else None,
            "sensitivity": json.dumps(self.sensitivity) if self.sensitivity else None,
        }
        nothing = dict.fromkeys(power)
        return [{**fit.row(), **shared, **(power if fit.model == POWER.name else nothing)} for fit in self.fits]


def fit_curves(results: Results, requests: Sequence[FitRequest], trials: Sequence[Trial]) -> list[FittedCurve]:
    """Fit what a sweep asks for to the values of its trials, seed by seed.

    Diverged trials, missing values and values that have no logarithm are left out and counted, unconverged ones
    are counted and, where the request says so, left out.
    """
    if not requests:
        return []
    falling = _unconverged(results)
    curves = []
    for request in requests:
        measured = _measured(results, request)
        done = [(trial.params, measured[trial.trial_id]) for trial in trials if trial.trial_id in measured]
        curves += _with_common(_fitted(_curves_of(request, done, falling)))
    return curves


def _measured(results: Results, request: FitRequest) -> dict[str, dict[str, Any]]:
    """Return trial -> its status and value, of the trials that the request's filter lets through."""
    known = results.sql("select * from results limit 0").columns
    # a measured column that a parameter hides (loss, lr) stands in results as last_<name>
    column = f"last_{request.metric}" if f"last_{request.metric}" in known else request.metric
    source, value = "results r", f"r.{quoted(column)}" if column in known else "null"
    if request.layer is not None:
        layers = results.sql("select * from metrics limit 0").columns
        value = f"m.{quoted(request.metric)}" if request.metric in layers else "null"
        layer = str(request.layer) if request.layer >= 0 else f"r.layer + 1 {request.layer}"
        match = f"m.trial_id = r.trial_id and m.step = r.step and m.split = r.split and m.layer = {layer}"
        source = f"results r left join metrics m on {match}"
    query = f"select r.trial_id, r.status, {value} as value from {source}"
    if request.where:
        query += f" where r.trial_id in (select trial_id from results where {request.where})"
    rows = results.sql(f"{query} order by r.trial_id").to_arrow_table().to_pylist()
    return {row["trial_id"]: row for row in rows}


def _unconverged(results: Results) -> set[str]:
    """Return the trials that break UNCONVERGED_RULE; one without curves is not judged."""
    query = f"""
        with steps as (
            select trial_id, step, coalesce(objective, loss) as height, max(step) over (partition by trial_id) as final
            from curves where split = 'train' and coalesce(objective, loss) is not null
        )
        select trial_id from steps group by trial_id
        having max(height) filter (step = final)
            < (1 - {STILL_FALLING}) * arg_max(height, step) filter (step <= 0.75 * final)
    """
    return {row[0] for row in results.sql(query).fetchall()}


Done = tuple[Mapping[str, Any], dict[str, Any]]
"""A committed trial: its parameters, and its row with status and value."""


def _curves_of(request: FitRequest, done: list[Done], falling: set[str]) -> list[FittedCurve]:
    groups: dict[str, list[Done]] = {}
    for params, row in done:
        groups.setdefault(json.dumps([params[name] for name in request.by]), []).append((params, row))
    ordered = sorted(groups.values(), key=lambda group: [(str(type(v)), v) for v in _group_values(request, group)])
    return [_gathered(request, group, falling) for group in ordered]


def _group_values(request: FitRequest, group: list[Done]) -> list[Any]:
    return [group[0][0][name] for name in request.by]


def _gathered(request: FitRequest, group: list[Done], falling: set[str]) -> FittedCurve:
    """Part a group's trials into those used and those left out."""
    used: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    for params, row in group:
        point = {"x": params[request.x], "y": row["value"], "seed": params.get("seed"), "trial_id": row["trial_id"]}
        reason = _reason_to_exclude(row["status"], point, request, falling)
        if reason is None:
            used.append(point)
        else:
            left_out.append({**point, "reason": reason})
    by = dict(zip(request.by, _group_values(request, group), strict=True))
    chosen = _chosen_cutoff(request, used)
    if chosen is not None:
        left_out += [{**point, "reason": "below the cut-off"} for point in used if point["x"] < chosen.x_min]
        used = [point for point in used if point["x"] >= chosen.x_min]
    excluded: dict[str, int] = {}
    for point in left_out:
        excluded[point["reason"]] = excluded.get(point["reason"], 0) + 1
    unconverged = frozenset(point["trial_id"] for point in used if point["trial_id"] in falling)
    curve = FittedCurve(request.metric, request.x, by, used, [], excluded, None, left_out, unconverged, request)
    return replace(curve, cutoff=chosen)


def _reason_to_exclude(status: str, point: Mapping[str, Any], request: FitRequest, falling: set[str]) -> str | None:
    if status != "ok":
        return status
    if point["y"] is None:
        return "not measured"
    for name, value in (("", point["y"]), (f"{request.x} ", point["x"])):
        if not isinstance(value, int | float) or not math.isfinite(value):
            return f"{name}not a number"
        if value <= 0:
            return f"{name}not positive"
    return "unconverged" if request.unconverged == "drop" and point["trial_id"] in falling else None


def _chosen_cutoff(request: FitRequest, used: list[dict[str, Any]]) -> Cutoff | None:
    if request.x_min is None:
        return None
    if request.x_min != "auto":
        return Cutoff(float(request.x_min), None, True)
    try:
        return cutoff([point["x"] for point in used], [point["y"] for point in used], weights=request.weights)
    except FitError:
        return None


def _fitted(curves: list[FittedCurve]) -> list[FittedCurve]:
    """Fit the curves, those with the same x all at once."""
    designs: dict[tuple[float, ...], list[int]] = {}
    for index, curve in enumerate(curves):
        designs.setdefault(tuple(sorted(float(row["x"]) for row in curve.rows)), []).append(index)
    fitted = list(curves)
    for design, indices in designs.items():
        asked = curves[indices[0]].asked
        ordered = [sorted(curves[index].rows, key=lambda row: float(row["x"])) for index in indices]
        try:
            options = {"weights": asked.weights, "target": asked.target}
            found = fit_many(design, [[row["y"] for row in rows] for rows in ordered], **options)  # type: ignore[arg-type]
        except FitError as error:
            for index in indices:
                fitted[index] = replace(curves[index], note=str(error))
            continue
        for index, fits, rows in zip(indices, found, ordered, strict=True):
            cuts = sensitivity(design, [row["y"] for row in rows], weights=asked.weights)
            fitted[index] = replace(curves[index], fits=fits, sensitivity=cuts)
    return fitted


def _with_common(curves: list[FittedCurve]) -> list[FittedCurve]:
    """Test whether a request's groups share their exponent."""
    part = [curve for curve in curves if curve.fits]
    try:
        points = [([row["x"] for row in curve.rows], [row["y"] for row in curve.rows]) for curve in part]
        common = common_exponent(points, weights=part[0].asked.weights if part else "equal")
    except FitError:
        return curves
    return [replace(curve, common=common) if curve.fits else curve for curve in curves]
