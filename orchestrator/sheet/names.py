"""Names of curves and groups in a sheet, and their values as text."""

import math
from collections.abc import Mapping
from typing import Any

from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.sheet.markup import literal

MAX_LABEL = 40
"""Maximum number of characters of a user's string in a legend or a table. Longer strings would push the rest aside."""


def shorten(text: str, limit: int = MAX_LABEL) -> str:
    """Cut a string to a number of characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def is_null(value: Any) -> bool:
    """Return whether a value is missing: None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def value_text(value: Any) -> str:
    """Format a parameter's value. Floats have six digits."""
    if is_null(value):
        return "null"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def x_base(x: str) -> str:
    """Return x as the base of a power, with arithmetic in parentheses."""
    return x if x.isidentifier() else f"({x})"


def x_text(x: str) -> str:
    """Return x with markup, as the base of a power."""
    return f"${literal(x_base(x))}$"


def curve_label(curve: FittedGroup) -> str:
    """Name a curve's metric with markup, with its layer, filter and fit options if they are not the default."""
    request = curve.asked
    layer = f", layer ${literal(text)}$" if (text := request.layer_text) else ""
    return ", ".join([literal(curve.metric_label) + layer, *map(literal, request.options)])


def group_phrase(by: Mapping[str, Any]) -> str:
    """Name a group, as in `width 64, weight_decay 0.005`. Long values are cut."""
    return ", ".join(f"{shorten(name)} {shorten(value_text(value))}" for name, value in by.items())


def curve_name(curve: FittedGroup) -> str:
    """Name a curve with markup, as in `NC1 over depth, width 64`."""
    return ", ".join(filter(None, [f"{curve_label(curve)} over {x_text(curve.x)}", literal(group_phrase(curve.by))]))
