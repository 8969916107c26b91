"""Ticks that are read at once: 0.02 and 0.05 rather than 2 x 10^-2, powers of ten where the range is wide."""

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

PLAIN_FROM, PLAIN_TO = 0.99e-3, 1.01e4
"""Numbers outside of these are powers of ten."""
FEW_DECADES = 0.7
"""Less than so many: 1, 2 and 5 would leave an axis with one tick."""
MAX_DECADES = 2.0
"""From so many on only powers of ten are named."""


def set_ticks(axis: Axis, wanted: dict[str, Any], *, is_log: bool) -> None:
    """Put the ticks that the page names, or on a log axis round numbers."""
    if "tickvals" in wanted:
        axis.set_major_locator(FixedLocator(wanted["tickvals"]))
        axis.set_major_formatter(FixedFormatter(wanted["ticktext"]))
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
        decimals = max(0, -math.floor(math.log10(second - first) + 1e-9))  # as many for all, as on the page
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
    if value <= 0:  # a round number beside a narrow log axis, which is not drawn
        return ""
    exponent = math.floor(math.log10(value) + 1e-9)
    lead = value / 10**exponent
    if decimals is None and math.isclose(lead, 1.0, rel_tol=1e-6):
        return f"$10^{{{exponent}}}$"
    factor = _plain(lead, None if decimals is None else max(0, decimals + exponent))
    return rf"${factor} \times 10^{{{exponent}}}$"
