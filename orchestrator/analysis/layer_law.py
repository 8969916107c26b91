"""Fit a request over layers: the law of equi-separation for the trials of one depth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from depthrate.orchestrator.analysis.fit_curves import RequestedGroups
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.replicates import interval_text
from depthrate.tasks.fits.layer_law import fit_layers
from depthrate.tasks.fits.points import FitError

Profile = Mapping[int, float | None]
"""Layer -> value."""


def fit_layer_laws(
    groups: RequestedGroups, params: Mapping[str, Mapping[str, Any]], seed_names: Sequence[str]
) -> list[FittedGroup]:
    """Fit a request over layers. The rules by which trials are excluded apply to each layer.

    Args:
        params: Trial -> its parameters.
        seed_names: Parameters that seed random numbers.
    """
    profiles = groups.values.profiles(groups.request.metric)
    laws = []
    for law in [law for group in groups.curves for law in _laws(group, profiles)]:
        used = [params[row["trial_id"]] for row in law.rows]
        laws.append(replace(law, draws=interval_text(groups.request, used, seed_names)))
    return laws


def _laws(group: FittedGroup, profiles: Mapping[str, Profile]) -> list[FittedGroup]:
    """Split a group's trials by depth, and fit each part."""
    parts: dict[int | None, FittedGroup] = {}
    for row, reason in [*((row, "") for row in group.rows), *((row, row["reason"]) for row in group.left_out)]:
        profile = profiles.get(row["trial_id"], {})
        layers = {layer: value for layer, value in sorted(profile.items()) if layer >= (group.asked.x_min or 1)}
        depth = max(profile, default=None)
        part = parts.setdefault(depth, replace(group, last_layer=depth, rows=[], left_out=[]))
        if reason := reason or _reason_to_exclude(layers):
            part.left_out.append(row | {"reason": reason})
        else:
            part.rows.append(row | {"layers": layers})
    ordered = sorted(parts, key=lambda depth: math.inf if depth is None else depth)
    return [_fitted(parts[depth]) for depth in ordered]


def _reason_to_exclude(layers: Profile) -> str:
    if not layers or None in layers.values():
        return "not measured at every layer"
    return "" if all(value and 0 < value < math.inf for value in layers.values()) else "not positive at every layer"


def _fitted(part: FittedGroup) -> FittedGroup:
    ids, excluded = {row["trial_id"] for row in part.rows}, Counter(row["reason"] for row in part.left_out)
    part = replace(part, excluded=dict(excluded), unconverged=part.unconverged & ids)
    points = [
        (layer, value, row["trial_id"] if row["draw"] is None else row["draw"])
        for row in sorted(part.rows, key=lambda row: str(row["trial_id"]))
        for layer, value in row["layers"].items()
    ]
    if not points:
        return replace(part, note=f"nothing to fit: {part.excluded_text}")
    try:
        law = fit_layers(*zip(*points, strict=True))
    except FitError as error:
        return replace(part, note=str(error))
    return replace(part, fits=[law.fit], law=law)
