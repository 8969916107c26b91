"""How the groups of one figure are told apart: hue by group, line and marker by the sweep that a group is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.report.curve_groups import SWEEP_COLUMN, sort_key, spread_alike, unique
from depthrate.orchestrator.report.plot import viridis
from depthrate.orchestrator.report.text import value_text

STYLES = (("solid", "circle"), ("dash", "diamond"))
"""Of lines and of means: those of the first sweep, and of the one that is drawn into it."""


@dataclass(frozen=True)
class LineStyle:
    """Of one group; as plotly names them."""

    colour: str
    dash: str
    symbol: str


def assign_line_styles(groups: Sequence[Mapping[str, Any]], sweeps: Sequence[Any]) -> list[LineStyle]:
    """Return the look of each group, a value a parameter; of the report's sweeps the first comes first.

    Where there are no groups beside the sweeps, these have their hues too.
    """
    rests = [_rest(group) for group in groups]
    hued: list[Any] = rests if len(unique(rests)) > 1 else [group.get(SWEEP_COLUMN) for group in groups]
    colours = dict(zip(unique(hued), viridis(len(unique(hued))), strict=True))
    looks = [STYLES[sweeps.index(group.get(SWEEP_COLUMN)) % len(STYLES)] for group in groups]
    return [LineStyle(colours[hue], *look) for hue, look in zip(hued, looks, strict=True)]


def curve_sweeps(curves: Sequence[FittedCurve]) -> list[Any]:
    """Return the sweeps that the curves are of, in their order; one null where nothing is overlaid."""
    return unique(curve.by.get(SWEEP_COLUMN) for curve in curves)


def select_curves(curves: Sequence[FittedCurve], limit: int) -> list[FittedCurve]:
    """Return at most so many curves, sweep by sweep and in each by their groups' values; of both sweeps the same groups."""
    sweeps = curve_sweeps(curves)

    def place(curve: FittedCurve) -> tuple[int, list[tuple[bool, float, str]]]:
        return sweeps.index(curve.by.get(SWEEP_COLUMN)), sort_key(
            tuple(v for name, v in curve.by.items() if name != SWEEP_COLUMN)
        )

    return spread_alike(sorted(curves, key=place), limit, lambda curve: (curve.by.get(SWEEP_COLUMN), _rest(curve.by)))


def _rest(group: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(value_text(value) for name, value in group.items() if name != SWEEP_COLUMN)
