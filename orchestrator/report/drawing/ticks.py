"""Set readable ticks: 0.02 and 0.05 rather than 2 x 10^-2, and powers of ten on wide ranges."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

if TYPE_CHECKING:
    from matplotlib.axis import Axis

PLAIN_FROM = 0.99e-3
"""Smallest tick written as a plain number. Smaller ticks are powers of ten."""
PLAIN_TO = 1.01e4
"""Largest tick written as a plain number. Larger ticks are powers of ten."""
FEW_DECADES = 0.7
"""Range in decades below which 1, 2 and 5 would leave an axis with one tick."""
MAX_DECADES = 2.0
"""Range in decades above which only powers of ten are labelled."""


def set_ticks(axis: Axis, options: dict[str, Any], *, is_log: bool) -> None:
    """Set the page's ticks or, on a log axis without them, round numbers."""
    if "tickvals" in options:
        axis.set_major_locator(FixedLocator(options["tickvals"]))
        axis.set_major_formatter(FixedFormatter(options["ticktext"]))
        axis.set_minor_locator(NullLocator())
        return
    if not is_log:
        return
    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low)
    if decades < FEW_DECADES:
        locator = MaxNLocator(4, steps=[1, 2, 5, 10])
        axis.set_major_locator(locator)
        first, second, *_ = locator.tick_values(low, high)
        decimals = max(0, -math.floor(math.log10(second - first) + 1e-9))  # the same for all ticks, as on the page
    else:
        decimals = None
        subs = (1.0,) if decades > MAX_DECADES else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(subs=subs, numticks=7))
    is_plain = low >= PLAIN_FROM and high <= PLAIN_TO
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: _plain(value, decimals) if is_plain else _as_power(value, decimals))
    )
    if decades <= MAX_DECADES:
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_minor_formatter(NullFormatter())


def _plain(value: float, decimals: int | None) -> str:
    return f"{value:g}" if decimals is None else f"{value:.{decimals}f}"


def _as_power(value: float, decimals: int | None) -> str:
    if value <= 0:  # outside a narrow log axis, so these ticks are not drawn
        return ""
    exponent = math.floor(math.log10(value) + 1e-9)
    lead = value / 10**exponent
    if decimals is None and math.isclose(lead, 1.0, rel_tol=1e-6):
        return f"$10^{{{exponent}}}$"
    factor = _plain(lead, None if decimals is None else max(0, decimals + exponent))
    return rf"${factor} \times 10^{{{exponent}}}$"
