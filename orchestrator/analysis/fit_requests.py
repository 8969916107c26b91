"""Fit all requests of a sweep: over one variable, over several, and over layers."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from depthrate.orchestrator.analysis.fit_curves import fit_curves, requested_groups
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.layer_law import fit_layer_laws
from depthrate.orchestrator.analysis.replicates import random_seeds, replicate_keys
from depthrate.orchestrator.analysis.table_fit import fit_table
from depthrate.storage.query.results import Results
from depthrate.sweeps.spec import FitRequest
from depthrate.sweeps.trial import Trial
from depthrate.tasks.fits.points import FitError
from depthrate.tasks.interface import Task
from depthrate.tasks.metric import by_name

UNIT = "unit of resampling"
"""Column of a table with each value's unit."""


@dataclass(frozen=True, kw_only=True)
class Fits:
    """The fits of a sweep's requests."""

    curves: list[FittedGroup] = field(default_factory=list)
    """Groups of requests over one variable."""
    surfaces: list[FittedGroup] = field(default_factory=list)
    """Groups of requests in several variables."""
    layer_laws: list[FittedGroup] = field(default_factory=list)
    """Groups of requests over layers, one per depth."""

    @property
    def groups(self) -> list[FittedGroup]:
        """All groups."""
        return [*self.curves, *self.surfaces, *self.layer_laws]


def fit_requests(
    results: Results,
    requests: Sequence[FitRequest],
    trials: Sequence[Trial],
    task: Task | None = None,
    unfinished: Set[str] = frozenset(),
    varied: Set[str] | None = None,
) -> Fits:
    """Fit a sweep's requests to the values of its trials, over whole seeds.

    Diverged, untrained and failed trials, missing values and values without a logarithm are excluded and counted. A trial is
    untrained if it ends at the loss of constant predictions while others train. It has failed if its objective is far above
    its siblings', the trials that differ only in the seed. Unconverged trials are counted, and excluded with
    `unconverged: drop`.

    Args:
        task: Task of the trials, with its parameters and metrics.
        unfinished: Trials that are running or pending.
        varied: Parameters that may differ within a group, and with another one the fit is refused. None: all may differ.

    Raises:
        SweepError: A group mixes versions of the task, or values of a parameter not in `varied`.
    """
    fits = Fits()
    declared = {} if task is None else by_name(task.measurements)
    params = {trial.trial_id: trial.params for trial in trials}
    for groups in requested_groups(results, requests, trials, task, unfinished, varied):
        if groups.request.forms:
            fits.surfaces.extend(groups.curves)
        elif groups.request.is_over_layers:
            fits.layer_laws.extend(fit_layer_laws(groups, params, random_seeds(task)))
        else:
            fits.curves.extend(fit_curves(groups, declared.get(groups.request.metric), params))
    return replace(fits, surfaces=_fit_variables(fits.surfaces))


def _fit_variables(groups: Sequence[FittedGroup]) -> list[FittedGroup]:
    """Fit groups of a sweep in several variables, and correct the tests of each for those of all others (Holm)."""
    fitted = [_fitted_in_variables(group) for group in groups]
    p_values = [() if group.table is None else tuple(group.table.p_values()) for group in fitted]
    corrected = []
    for number, group in enumerate(fitted):
        others = sum((*p_values[:number], *p_values[number + 1 :]), start=())
        corrected.append(replace(group, table=group.table and replace(group.table, other_p_values=others)))
    return corrected


def _fitted_in_variables(group: FittedGroup) -> FittedGroup:
    import pandas as pd

    rows: list[Mapping[str, Any]] = sorted(group.rows, key=lambda row: row["trial_id"])
    if not rows:
        return replace(group, note=f"nothing to fit: {group.excluded_text or 'no trial'}")
    frame = pd.DataFrame([row["variables"] for row in rows])
    units = replicate_keys(rows)
    frame[group.metric] = [row["y"] for row in rows]
    if units is not None:
        frame[UNIT] = [str(unit) for unit in units]
    over, request = None if units is None else UNIT, group.asked
    names, forms = list(request.variables), request.forms
    try:
        table = fit_table(frame, group.metric, names, over, loss=request.loss, huber=request.huber, forms=forms)
    except FitError as error:
        return replace(group, note=str(error))
    return replace(group, fits=list(table.surfaces.fits), table=table)
