"""Fit a sweep's requests over layers: the law of equi-separation for the trials of one depth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from depthrate.orchestrator.analysis.fit_curves import requested_groups
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.replicates import interval_text, random_seeds
from depthrate.storage.query.results import Results
from depthrate.sweeps.spec import FitRequest
from depthrate.sweeps.trial import Trial
from depthrate.tasks.fits.layer_law import LayerFit, decay_over_depth, fit_layers
from depthrate.tasks.fits.points import FitError
from depthrate.tasks.fits.rate_fit import RateFit
from depthrate.tasks.interface import Task

LAST_LAYER = "last_layer"
"""Key of the depth in the column `by` of the fits table."""
Profile = Mapping[int, float | None]
"""Layer -> value."""


@dataclass(frozen=True)
class LayerLaw:
    """The law of a metric over the layers of the trials of one depth in one group."""

    values: FittedCurve
    """Used and excluded trials. Its rows have `layers`, the values by layer."""
    depth: int | None
    """Last layer L. None for trials that measured the metric at no layer."""
    fit: LayerFit | None
    note: str = ""
    """Reason for the missing fit."""

    def table_rows(self, sweep: str) -> list[dict[str, Any]]:
        """Return the row of the fits table."""
        if self.fit is None:
            return []
        values = replace(self.values, by={**self.values.by, LAST_LAYER: self.depth})
        shared = values.values_columns(sweep) | {"x": values.x, "x_min": values.asked.x_min}
        row = self.fit.fit.row() | {"model": "equi_separation", "aicc": None, "weight": None}
        return [row | shared | {"p_lack_of_fit": self.fit.p_lack_of_fit}]


def decays_over_depth(laws: Sequence[LayerLaw]) -> list[tuple[LayerLaw, RateFit]]:
    """Return, per request and group, its first law and the power law of -log rho over the depth, where it can be fitted."""
    groups: dict[str, list[LayerLaw]] = {}
    for law in laws:
        groups.setdefault(f"{law.values.asked} {law.values.by}", []).append(law)
    fitted = [
        (group[0], decay_over_depth({law.depth: law.fit for law in group if law.fit and law.depth}))
        for group in groups.values()
    ]
    return [(law, fit) for law, fit in fitted if fit is not None]


def fit_layer_laws(
    results: Results, requests: Sequence[FitRequest], trials: Sequence[Trial], task: Task | None = None
) -> list[LayerLaw]:
    """Fit the requests over layers. Trials are excluded by the rules of fits in one variable, applied to each layer."""
    requests = [request for request in requests if request.is_over_layers]
    params, seed_names, laws = {trial.trial_id: trial.params for trial in trials}, random_seeds(task), []
    for group in requested_groups(results, requests, trials, task):
        profiles = group.values.profiles(group.request.metric)
        for law in [law for curve in group.curves for law in _laws(curve, profiles)]:
            used = [params[row["trial_id"]] for row in law.values.rows]
            values = replace(law.values, draws=interval_text(group.request, used, seed_names))
            laws.append(replace(law, values=values))
    return laws


def _laws(curve: FittedCurve, profiles: Mapping[str, Profile]) -> list[LayerLaw]:
    """Split a group's trials by depth, and fit each part."""
    first = curve.asked.x_min or 1
    parts: dict[int | None, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}
    for row, reason in [*((row, "") for row in curve.rows), *((row, row["reason"]) for row in curve.left_out)]:
        profile = profiles.get(row["trial_id"], {})
        layers = {layer: value for layer, value in sorted(profile.items()) if layer >= first}
        reason = reason or _reason_to_exclude(layers)
        used, left_out = parts.setdefault(max(profile, default=None), ([], []))
        if reason:
            left_out.append(row | {"reason": reason})
        else:
            used.append(row | {"layers": layers})
    laws = []
    for depth in sorted(parts, key=lambda last: math.inf if last is None else last):
        used, left_out = parts[depth]
        ids, excluded = {row["trial_id"] for row in used}, Counter(row["reason"] for row in left_out)
        part = replace(
            curve, rows=used, left_out=left_out, excluded=dict(excluded), unconverged=curve.unconverged & ids
        )
        laws.append(_fitted(part, depth))
    return laws


def _reason_to_exclude(layers: Profile) -> str:
    if not layers or None in layers.values():
        return "not measured at every layer"
    bad = [layer for layer, value in layers.items() if value is None or not (0 < value < math.inf)]
    return f"not positive at layer {bad[0]}" if bad else ""


def _fitted(part: FittedCurve, depth: int | None) -> LayerLaw:
    if not part.rows:
        return LayerLaw(part, depth, None, f"nothing to fit: {part.excluded_text or 'no trial'}")
    rows = sorted(part.rows, key=lambda row: str(row["trial_id"]))
    points = [
        (layer, value, row["trial_id"] if row["draw"] is None else row["draw"])
        for row in rows
        for layer, value in row["layers"].items()
    ]
    layers, values, units = zip(*points, strict=True)
    try:
        return LayerLaw(part, depth, fit_layers(layers, values, units))
    except FitError as error:
        return LayerLaw(part, depth, None, str(error))
