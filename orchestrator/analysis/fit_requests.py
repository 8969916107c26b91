"""Fit all requests of a sweep: over one variable, over several, and over layers."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace

from depthrate.orchestrator.analysis.fit_curves import fit_curves, requested_groups
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.layer_law import fit_layer_laws
from depthrate.orchestrator.analysis.replicates import random_seeds
from depthrate.orchestrator.analysis.several_variables import fit_variables
from depthrate.storage.query.results import Results
from depthrate.sweeps.spec import FitRequest
from depthrate.sweeps.trial import Trial
from depthrate.tasks.interface import Task
from depthrate.tasks.metric import by_name


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
    return replace(fits, surfaces=fit_variables(fits.surfaces))
