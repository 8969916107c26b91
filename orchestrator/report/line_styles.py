"""Assign line styles to the groups of a figure: colour by group, dash and marker by sweep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.report.curve_groups import (
    SWEEP_COLUMN,
    group_trials,
    sort_key,
    spread,
    spread_alike,
    unique,
)
from depthrate.orchestrator.report.plot import MAX_GROUPS, omission_notes, viridis
from depthrate.orchestrator.report.text import value_text

STYLES = (("solid", "circle"), ("dash", "diamond"))
"""Dash and marker of the first sweep, and of the overlaid sweep."""


@dataclass(frozen=True)
class LineStyle:
    """Style of one group, with plotly's names."""

    colour: str
    dash: str
    symbol: str


def assign_line_styles(groups: Sequence[Mapping[str, Any]], sweeps: Sequence[Any]) -> list[LineStyle]:
    """Return the style of each group, in the order of the report's sweeps.

    If the sweeps are the only groups, they differ in colour too.
    """
    rests = [_rest(group) for group in groups]
    hued: list[Any] = rests if len(unique(rests)) > 1 else [group.get(SWEEP_COLUMN) for group in groups]
    colours = dict(zip(unique(hued), viridis(len(unique(hued))), strict=True))
    styles = [STYLES[sweeps.index(group.get(SWEEP_COLUMN)) % len(STYLES)] for group in groups]
    return [LineStyle(colours[hue], *style) for hue, style in zip(hued, styles, strict=True)]


def colour_groups(
    trials: pd.DataFrame, rows: pd.DataFrame, by: list[str], noun: str = "settings"
) -> tuple[list[tuple[tuple[str, ...], pd.DataFrame, str]], list[str]]:
    """Return (values of `by`, rows, colour) of at most MAX_GROUPS groups, and a note on omitted groups."""
    groups = group_trials(trials, rows, by)
    shown = spread(groups, MAX_GROUPS)
    coloured = [(key, part, colour) for (key, part), colour in zip(shown, viridis(len(shown)), strict=True)]
    return coloured, omission_notes(len(shown), len(groups), noun=noun)


def curve_sweeps(curves: Sequence[FittedCurve]) -> list[Any]:
    """Return the sweeps of the curves, in order. Without an overlay: [None]."""
    return unique(curve.by.get(SWEEP_COLUMN) for curve in curves)


def select_curves(curves: Sequence[FittedCurve], limit: int) -> list[FittedCurve]:
    """Return at most `limit` curves by sweep and group, with the same groups of both sweeps."""
    sweeps = curve_sweeps(curves)

    def place(curve: FittedCurve) -> tuple[int, list[tuple[bool, float, str]]]:
        return sweeps.index(curve.by.get(SWEEP_COLUMN)), sort_key(
            tuple(v for name, v in curve.by.items() if name != SWEEP_COLUMN)
        )

    return spread_alike(sorted(curves, key=place), limit, lambda curve: (curve.by.get(SWEEP_COLUMN), _rest(curve.by)))


def _rest(group: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(value_text(value) for name, value in group.items() if name != SWEEP_COLUMN)
