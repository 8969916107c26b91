"""Fit all requests of a sweep: over one variable, over several, and over layers."""

from collections.abc import Sequence
from typing import NamedTuple

from depthrate.orchestrator.analysis.fit_curves import fit_curves, read_trials
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.fitted_surface import FittedSurface, fit_surface_requests
from depthrate.orchestrator.analysis.layer_law import LayerLaw, fit_layer_laws
from depthrate.storage.query.results import Results
from depthrate.sweeps.spec import FitRequest
from depthrate.sweeps.trial import Trial
from depthrate.tasks.interface import Task


class Fits(NamedTuple):
    """The fits of a sweep's requests."""

    curves: list[FittedCurve]
    surfaces: list[FittedSurface]
    layer_laws: list[LayerLaw]


def fit_requests(
    results: Results, requests: Sequence[FitRequest], trials: Sequence[Trial], task: Task | None = None
) -> Fits:
    """Fit a sweep's requests. Values and judgements are read once for all."""
    if not requests:
        return Fits([], [], [])
    given = results, requests, trials, task, read_trials(results, requests, trials, task)
    return Fits(fit_curves(*given), fit_surface_requests(*given), fit_layer_laws(*given))
