"""Map values to positions along an axis, and choose ticks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from depthrate.orchestrator.report.figure import Axis
from depthrate.orchestrator.sheet.markup import minus_signs

_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
PADDING = 0.04
"""Share of the range that is free at each end."""
PLAIN_FROM = 0.99e-3
"""Smallest tick written as a plain number. Smaller ticks are powers of ten."""
PLAIN_TO = 0.99e5
"""Largest tick written as a plain number. Larger ticks are powers of ten."""
MAX_DECADES = 5
"""Maximum number of powers of ten on a log axis. With more, some are omitted."""
LEADS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
"""First digits of the ticks of a log axis. The first choice with MIN_TICKS ticks holds, otherwise ticks are evenly spaced."""
MIN_TICKS = 3


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic axis from `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, values: Iterable[float]) -> np.ndarray:
        """Return positions. Values that a log axis cannot show become NaN."""
        low, high, array = self.low, self.high, np.asarray(list(values), dtype=np.float64)
        if self.is_log:
            with np.errstate(divide="ignore", invalid="ignore"):
                array = np.where(array > 0, np.log(array), np.nan)
            low, high = math.log(low), math.log(high)
        return self.start + (array - low) / (high - low) * (self.end - self.start)


def padded(values: Iterable[float], *, is_log: bool) -> tuple[float, float]:
    """Return the range of an axis that shows all values."""
    array = np.asarray(list(values), dtype=np.float64)
    array = array[np.isfinite(array) & ((array > 0) | (not is_log))]
    if not array.size:
        return (1.0, 10.0) if is_log else (0.0, 1.0)
    low, high = (float(end) for end in (np.log(array) if is_log else array)[[array.argmin(), array.argmax()]])
    extra = PADDING * (high - low) or (0.2 if is_log else abs(low) / 10 or 0.5)
    low, high = low - extra, high + extra
    return (math.exp(low), math.exp(high)) if is_log else (low, high)


def ticks(axis: Axis, low: float, high: float) -> list[tuple[float, str]]:
    """Return (value, text) of an axis's own ticks, or of three to about seven round numbers."""
    if axis.names:
        return list(zip(axis.ticks, axis.names, strict=True))
    if axis.ticks:
        return [(value, minus_signs(f"{value:g}")) for value in axis.ticks]
    low, high = sorted((low, high))
    for leads in LEADS if axis.is_log else ():
        values = _log_ticks(low, high, leads)
        if len(values) >= MIN_TICKS:
            return [(value, _text(value, None)) for value in values]
    values, decimals = _even_ticks(low, high)
    return [(value, _text(value, decimals)) for value in values if value > 0 or not axis.is_log]


def _log_ticks(low: float, high: float, leads: tuple[float, ...]) -> list[float]:
    """Return the leads in each decade, or some powers of ten on a wide axis."""
    decades = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    if len(decades) > MAX_DECADES:
        stride = math.ceil(len(decades) / MAX_DECADES)
        return [10.0**decade for decade in decades if decade % stride == 0]
    values = [lead * 10.0**decade for decade in range(decades.start - 1, decades.stop) for lead in leads]
    return [value for value in values if low <= value <= high]


def _even_ticks(low: float, high: float) -> tuple[list[float], int]:
    """Return evenly spaced round numbers, and the number of decimals of their step, which is negative for tens."""
    power = math.floor(math.log10(high - low))
    for step in (lead * 10.0**place for place in (power, power - 1) for lead in (5, 2, 1)):
        values = [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
        if len(values) >= MIN_TICKS:
            break
    return values, -math.floor(math.log10(step) + 1e-9)


def _text(value: float, decimals: int | None) -> str:
    """Write a tick as a plain number, or with a power of ten if it is very small or large."""
    size = abs(value)
    if size == 0:
        return "0"
    if PLAIN_FROM <= size <= PLAIN_TO or (decimals and 0 < decimals <= 5):
        return minus_signs(f"{value:g}" if decimals is None else f"{value:.{max(0, decimals)}f}")
    power = math.floor(math.log10(size) + 1e-9)
    lead, raised = value / 10.0**power, f"10{str(power).translate(_RAISED)}"
    if decimals is None and math.isclose(lead, 1.0, rel_tol=1e-6):
        return raised
    return minus_signs(f"{lead:g}·" if decimals is None else f"{lead:.{max(0, decimals + power)}f}·") + raised
