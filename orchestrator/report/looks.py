"""How the fitted curves of one figure are told apart: hue by group, line and marker by the sweep that a curve is of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.report.data import SWEEP
from depthrate.orchestrator.report.groups import unique
from depthrate.orchestrator.report.plot import viridis

STYLES = (("solid", "circle"), ("dash", "diamond"))
"""Of lines and of means: those of the first sweep, and of the one that is drawn into it."""


@dataclass(frozen=True)
class Look:
    """Of one curve; as plotly names them."""

    colour: str
    dash: str
    symbol: str


def looks_of(curves: Sequence[FittedCurve], among: Sequence[FittedCurve]) -> list[Look]:
    """Return the look of each curve `among` those of a report, whose first sweep comes first.

    Where there are no groups beside the sweeps, these have their hues too.
    """
    sweeps = unique(curve.by.get(SWEEP) for curve in among)
    groups = [tuple(value for name, value in curve.by.items() if name != SWEEP) for curve in curves]
    hued: list[Any] = groups if len(unique(groups)) > 1 else [curve.by.get(SWEEP) for curve in curves]
    colours = dict(zip(unique(hued), viridis(len(unique(hued))), strict=True))
    looks = [STYLES[sweeps.index(curve.by.get(SWEEP)) % len(STYLES)] for curve in curves]
    return [Look(colours[hue], *look) for hue, look in zip(hued, looks, strict=True)]
