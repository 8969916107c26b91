"""Fit the curves of a sweep: requested fits, which are saved in the store, or ad hoc fits."""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.analysis.fit_requests import Fits, fit_requests
from depthrate.orchestrator.analysis.judged_groups import adequate_models, by_request, count_states
from depthrate.orchestrator.analysis.observations import missing_metrics
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.launch.code_changes import mixtures
from depthrate.orchestrator.launch.launch_plan import CheckedSweep, check_filters
from depthrate.orchestrator.monitor.status import sweep_status
from depthrate.orchestrator.search.search_view import SearchView, fitted_trials
from depthrate.orchestrator.sheet.fit_words import preferred_text
from depthrate.orchestrator.sheet.markup import plain
from depthrate.storage.catalog.fits import write_fits
from depthrate.storage.commits.visible_commits import Problem
from depthrate.storage.files.store import Store
from depthrate.storage.query.results import Results
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.spec import FitRequest, SweepSpec, check_fits, fit_request


@dataclass(frozen=True, kw_only=True)
class FitResult(Fits):
    """Fits of a sweep with their rows and problems."""

    rows: Sequence[Mapping[str, Any]]
    """Rows of the table `fits`, one per curve and model."""
    warnings: Sequence[str]
    """Warnings about mixed settings or code versions, and about a failure to save the rows."""
    is_saved: bool
    """Whether the rows that should be saved are saved."""
    problems: Sequence[Problem]
    """Problems with the store."""
    missing: Sequence[str] = ()
    """Metrics of the requests that no trial has, in words."""


def fits_of(
    checked: CheckedSweep,
    view: SearchView | None,
    results: Results,
    requests: Sequence[FitRequest],
    unfinished: Set[str],
) -> Fits:
    """Fit requests to the trials of a sweep, or to those that its search chose. `unfinished`: trials that may still end."""
    return fit_requests(results, requests, fitted_trials(checked, view), checked.task, unfinished, checked.varied)


def fit_sweep(
    checked: CheckedSweep, store: Store, view: SearchView | None, requests: Sequence[Any] | None = None
) -> FitResult:
    """Fit the curves of a sweep.

    Args:
        checked: The sweep with its trials.
        view: The sweep's search, whose chosen trials are fitted.
        requests: Fits that replace the sweep's. They are not saved in the store.

    Raises:
        SweepError: A metric or parameter is unknown, or an option is not allowed.
    """
    if requests is not None:
        changed = checked.sweep.replace(fit=tuple(requests))
        check_fits(changed, checked.task)
        check_filters(changed, checked.task)
    results = results_of(store, checked.task)
    requested = checked.sweep.fit if requests is None else requests
    unfinished = sweep_status(checked.sweep.name, checked.trials.ids, results.snapshot, store).unfinished
    fits = fits_of(checked, view, results, requested, unfinished)
    states = {request: json.dumps(count_states(group)) for request, group in by_request(fits.curves).items()}
    rows = []
    for curve in fits.curves:
        preference = curve.preference
        shared = curve.table_rows(checked.sweep.name, plain(preferred_text(preference)))
        judged = {"state": preference.state, "group_states": states[curve.asked]}
        models = adequate_models(curve)
        adequate = [{"is_adequate": fit in models} for fit in curve.fits]
        rows += [row | judged | fit for row, fit in zip(shared, adequate, strict=True)]
    rows += [row for group in [*fits.surfaces, *fits.layer_laws] for row in group.table_rows(checked.sweep.name)]
    # a task that declares its metrics was checked before it ran
    missing = () if checked.task.measurements else missing_metrics(results, requested, checked.trials.ids)
    warnings = [*missing, *mixtures(checked, store, results.snapshot)]
    if (note := results.membership().note(checked.sweep.name)) is not None:
        warnings.append(note)
    is_saved = True
    if rows and requests is None and "@" not in checked.sweep.name:
        try:
            write_fits(store, checked.sweep.name, rows)
        except OSError as error:
            warnings.append(f"fits are not saved: {error}")
            is_saved = False
    problems = results.problems
    return FitResult(**vars(fits), rows=rows, warnings=warnings, problems=problems, missing=missing, is_saved=is_saved)


def changed_requests(sweep: SweepSpec, changes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return one new request if the changes include a metric, and otherwise the sweep's requests with the changes applied."""
    if "metric" in changes:
        return (fit_request(changes),)
    if not sweep.fit:
        raise SweepError(f"sweep {sweep.name!r} requests no fit. Give a metric: --metric nc1")
    return tuple(fit_request({**request.spec(), **changes}) for request in sweep.fit)
