"""Fit a request over layers: the law of equi-separation for the trials of one depth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from depthrate.orchestrator.analysis.fit_curves import RequestedGroups
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.replicates import interval_text
from depthrate.tasks.fits.layer_law import LayerFit, fit_layers
from depthrate.tasks.fits.points import FitError

EQUI_SEPARATION = "equi_separation"
"""Model of the law's row in the fits table."""
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

    @property
    def name(self) -> str:
        """Name of the metric, the group and the replicates."""
        values = self.values
        return ", ".join(filter(None, [values.metric_label, values.label(), values.draws]))

    def table_rows(self, sweep: str) -> list[dict[str, Any]]:
        """Return the row of the fits table. Its `by` has the depth as `last_layer`."""
        if self.fit is None:
            return []
        values = replace(self.values, by={**self.values.by, "last_layer": self.depth})
        shared = values.values_columns(sweep) | {"x": values.x, "x_min": values.asked.x_min}
        row = self.fit.fit.row() | {"model": EQUI_SEPARATION, "aicc": None, "weight": None}
        return [row | shared]


def fit_layer_laws(
    groups: RequestedGroups, params: Mapping[str, Mapping[str, Any]], seed_names: Sequence[str]
) -> list[LayerLaw]:
    """Fit a request over layers. The rules by which trials are excluded apply to each layer.

    Args:
        params: Trial -> its parameters.
        seed_names: Parameters that seed random numbers.
    """
    profiles, laws = groups.values.profiles(groups.request.metric), []
    for law in [law for curve in groups.curves for law in _laws(curve, profiles)]:
        used = [params[row["trial_id"]] for row in law.values.rows]
        values = replace(law.values, draws=interval_text(groups.request, used, seed_names))
        laws.append(replace(law, values=values))
    return laws


def _laws(curve: FittedCurve, profiles: Mapping[str, Profile]) -> list[LayerLaw]:
    """Split a group's trials by depth, and fit each part."""
    parts: dict[int | None, FittedCurve] = {}
    for row, reason in [*((row, "") for row in curve.rows), *((row, row["reason"]) for row in curve.left_out)]:
        profile = profiles.get(row["trial_id"], {})
        layers = {layer: value for layer, value in sorted(profile.items()) if layer >= (curve.asked.x_min or 1)}
        depth = max(profile, default=None)
        part = parts.setdefault(depth, replace(curve, rows=[], left_out=[]))
        if reason := reason or _reason_to_exclude(layers):
            part.left_out.append(row | {"reason": reason})
        else:
            part.rows.append(row | {"layers": layers})
    ordered = sorted(parts, key=lambda depth: math.inf if depth is None else depth)
    return [_fitted(parts[depth], depth) for depth in ordered]


def _reason_to_exclude(layers: Profile) -> str:
    if not layers or None in layers.values():
        return "not measured at every layer"
    return "" if all(value and 0 < value < math.inf for value in layers.values()) else "not positive at every layer"


def _fitted(part: FittedCurve, depth: int | None) -> LayerLaw:
    ids, excluded = {row["trial_id"] for row in part.rows}, Counter(row["reason"] for row in part.left_out)
    part = replace(part, excluded=dict(excluded), unconverged=part.unconverged & ids)
    points = [
        (layer, value, row["trial_id"] if row["draw"] is None else row["draw"])
        for row in sorted(part.rows, key=lambda row: str(row["trial_id"]))
        for layer, value in row["layers"].items()
    ]
    if not points:
        return LayerLaw(part, depth, None, f"nothing to fit: {part.excluded_text}")
    try:
        return LayerLaw(part, depth, fit_layers(*zip(*points, strict=True)))
    except FitError as error:
        return LayerLaw(part, depth, None, str(error))
