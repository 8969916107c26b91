"""Group the trials of fit requests, count excluded trials by reason, and fit requests over one variable."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, NamedTuple

from depthrate.grouping import grouped
from depthrate.orchestrator.analysis.compare import common_fit
from depthrate.orchestrator.analysis.convergence import Convergence, exclusion, exponent_drift, judge
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.observations import FittedValues
from depthrate.orchestrator.analysis.replicates import (
    interval_text,
    random_seeds,
    refuse_mixture,
    replicate_keys,
    replicate_of,
)
from depthrate.storage.query.results import Results
from depthrate.sweeps.errors import ExpressionError
from depthrate.sweeps.expression import Expression
from depthrate.sweeps.spec import FitRequest
from depthrate.sweeps.trial import Trial
from depthrate.tasks.fits.points import FitError
from depthrate.tasks.fits.rates import check_bound, fit_many, sensitivity
from depthrate.tasks.interface import Task
from depthrate.tasks.metric import Metric

MIN_DISTINCT_X = 3
"""Minimum number of distinct x for a fit. A line through two leaves no residual."""


class RequestedGroups(NamedTuple):
    """A request's curves with their used and excluded trials, not fitted yet."""

    request: FitRequest
    curves: list[FittedGroup]
    values: FittedValues
    ended: Mapping[str, Convergence]
    """Trial -> how its training ended."""


def requested_groups(
    results: Results,
    requests: Sequence[FitRequest],
    trials: Sequence[Trial],
    task: Task | None,
    unfinished: Set[str],
    varied: Set[str] | None,
) -> Iterator[RequestedGroups]:
    """Yield each request's groups of trials. Values and judgements are read once for all."""
    if not requests:
        return
    values, ended = FittedValues(results, requests), judge(results, trials, task.measurements if task else ())
    for request in requests:
        measured = values.last(request)
        done = [(trial.params, measured[trial.trial_id]) for trial in trials if trial.trial_id in measured]
        if varied is not None:
            used = [trial for trial in trials if trial.trial_id in measured]
            refuse_mixture(request, used, {*varied, *random_seeds(task)})
        curves = _group_curves(request, done, ended, random_seeds(task))
        # of a trial that has not run, a filter is known only if it names the trial
        waiting = [
            trial.params
            for trial in trials
            if trial.trial_id in unfinished and (request.where is None or trial.trial_id in request.where)
        ]
        curves = _with_waiting(request, curves, waiting) if request.is_curve else curves
        yield RequestedGroups(request, curves, values, ended)


def fit_curves(
    groups: RequestedGroups, declared: Metric | None, params: Mapping[str, Mapping[str, Any]]
) -> list[FittedGroup]:
    """Fit a request over one variable.

    Args:
        declared: The task's declaration of the metric.
        params: Trial -> its parameters.
    """
    fitted = _with_drift(_fitted(groups.curves), groups)
    common = common_fit([curve for curve in fitted if curve.fits])  # whether the groups share their exponent
    fitted = [replace(curve, common=common) if curve.fits else curve for curve in fitted]
    return [_with_bound(curve, declared, params) for curve in fitted]


Done = tuple[Mapping[str, Any], dict[str, Any]]
"""Parameters of a committed trial, and its row with status and value."""


def _group_curves(
    request: FitRequest, done: list[Done], ended: Mapping[str, Convergence], seed_names: list[str]
) -> list[FittedGroup]:
    groups = grouped(done, lambda trial: json.dumps([trial[0][name] for name in request.by]))
    values = {key: [group[0][0][name] for name in request.by] for key, group in groups.items()}
    ordered = sorted(groups, key=lambda key: [(str(type(value)), value) for value in values[key]])
    return [_build_curve(request, groups[key], ended, seed_names) for key in ordered]


def _with_waiting(
    request: FitRequest, curves: list[FittedGroup], waiting: Sequence[Mapping[str, Any]]
) -> list[FittedGroup]:
    """Count each curve's x at which trials are running or pending, and none has run."""
    (x,), planned = request.variables, dict[str, set[Any]]()
    for params in waiting:
        key = json.dumps([params[name] for name in request.by])
        planned.setdefault(key, set()).add(_x_of(x, Expression(x), params))
    keys = [json.dumps(list(curve.by.values())) for curve in curves]
    return [
        replace(curve, num_waiting=len(planned.get(key, set()) - curve.run_x - {None}))
        for key, curve in zip(keys, curves, strict=True)
    ]


def _build_curve(
    request: FitRequest, group: list[Done], ended: Mapping[str, Convergence], seed_names: list[str]
) -> FittedGroup:
    """Split a group's trials into used and excluded trials."""
    trial_ids = [row["trial_id"] for _, row in group]
    unconverged = {trial_id for trial_id in trial_ids if trial_id in ended and not ended[trial_id].is_converged}
    expressions = [(text, Expression(text)) for text in request.variables]
    used: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    for params, row in group:
        variables = {text: _x_of(text, expression, params) for text, expression in expressions}
        point = {
            "x": next(iter(variables.values()), None),  # over layers, x varies within the trial
            "y": row["value"],
            "seed": params.get("seed"),
            "trial_id": row["trial_id"],
        }
        reason = _reason_to_exclude(row, point, variables, request, unconverged, ended.get(row["trial_id"]))
        if reason is None:
            extra = {"variables": variables} if request.forms else {}
            used.append(point | {"draw": replicate_of(request, params)} | extra)
        else:
            left_out.append({**point, "reason": reason})
    by = {name: group[0][0][name] for name in request.by}
    if request.x_min is not None and request.variables:
        left_out += [{**point, "reason": "below the cut-off"} for point in used if point["x"] < request.x_min]
        used = [point for point in used if point["x"] >= request.x_min]
    excluded = dict(Counter(point["reason"] for point in left_out))
    ids = {point["trial_id"] for point in used}
    return FittedGroup(
        request.metric, request.x_text, by, used, [], excluded, None, left_out, frozenset(ids & unconverged), request,
        above={trial_id: ended[trial_id].above for trial_id in ids & set(ended) if ended[trial_id].above > 0},
        judged=len(ids & set(ended)),
        stationary=frozenset(trial_id for trial_id in ids & set(ended) if ended[trial_id].stationary),
        draws=interval_text(request, [params for params, row in group if row["trial_id"] in ids], seed_names),
    )  # fmt: skip


def _x_of(x: str, expression: Expression, params: Mapping[str, Any]) -> Any:
    if x in params:
        return params[x]
    try:
        return expression.evaluate(params)
    except ExpressionError:  # a parameter is None, or the expression divides by zero
        return None


def _reason_to_exclude(
    row: Mapping[str, Any],
    point: Mapping[str, Any],
    variables: Mapping[str, Any],
    request: FitRequest,
    unconverged: set[str],
    end: Convergence | None,
) -> str | None:
    if (reason := exclusion(row["status"], end)) is not None:
        return reason
    if point["y"] is None:
        return str(row.get("censored", "not measured"))
    for name, value in (("", point["y"]), *((f"{text} ", value) for text, value in variables.items())):
        if not isinstance(value, int | float) or not math.isfinite(value):
            return f"{name}not a number"
        if value <= 0:
            return f"{name}not positive"
    return "unconverged" if request.unconverged == "drop" and point["trial_id"] in unconverged else None


def _fitted(curves: list[FittedGroup]) -> list[FittedGroup]:
    """Fit the curves, with one call for all curves that have the same x and seeds."""
    designs: dict[str, list[int]] = {}
    ordered = [sorted(curve.rows, key=lambda row: (float(row["x"]), str(row["draw"]))) for curve in curves]
    for index, rows in enumerate(ordered):
        designs.setdefault(json.dumps([(float(row["x"]), row["draw"]) for row in rows]), []).append(index)
    fitted = list(curves)
    for indices in designs.values():
        if not ordered[indices[0]]:
            for index in indices:
                note = f"nothing to fit: {curves[index].excluded_text or 'no trial'}"
                fitted[index] = replace(curves[index], note=note)
            continue
        request, first = curves[indices[0]].asked, ordered[indices[0]]
        design, seeds = [float(row["x"]) for row in first], replicate_keys(first)
        y = [[row["y"] for row in ordered[index]] for index in indices]
        try:
            if (num_x := len(set(design))) < MIN_DISTINCT_X:
                raise FitError(
                    f"{num_x} value{'' if num_x == 1 else 's'} of {request.x}, at least {MIN_DISTINCT_X} needed"
                )
            results = fit_many(design, y, seeds=seeds, target=request.target, loss=request.loss, huber=request.huber)
        except FitError as error:
            for index in indices:
                fitted[index] = replace(curves[index], note=str(error))
            continue
        for index, fits, y_N in zip(indices, results, y, strict=True):
            fitted[index] = replace(curves[index], fits=fits, sensitivity=sensitivity(design, y_N, seeds=seeds))
    return fitted


def _with_drift(curves: list[FittedGroup], groups: RequestedGroups) -> list[FittedGroup]:
    """Add the change of each exponent over the last quarter of training."""
    if not any(curve.fits for curve in curves):
        return curves
    past = groups.values.past(groups.request)
    drifts = [exponent_drift(curve.rows, past, groups.ended) if curve.power else None for curve in curves]
    return [replace(curve, drift=drift) for curve, drift in zip(curves, drifts, strict=True)]


def _with_bound(curve: FittedGroup, declared: Metric | None, params: Mapping[str, Mapping[str, Any]]) -> FittedGroup:
    """Compare the last layer with the theorem's upper bound, if the metric has one and there are enough whole seeds."""
    if not curve.fits or declared is None or declared.bound is None or curve.asked.layer not in (None, -1):
        return curve
    bounds = declared.bound([params[row["trial_id"]] for row in curve.rows])
    if bounds is None:
        return curve
    pairs = [(row, value) for row, value in zip(curve.rows, bounds, strict=True) if value is not None]
    rows = [row for row, _ in pairs]
    x, y = [float(row["x"]) for row in rows], [float(row["y"]) for row in rows]
    check = check_bound(x, y, [value for _, value in pairs], seeds=replicate_keys(rows))
    return replace(curve, bound=check)
