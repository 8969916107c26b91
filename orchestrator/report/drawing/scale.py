"""Map values to positions along an axis, and choose ticks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from depthrate.orchestrator.report.figure import Axis
from depthrate.orchestrator.report.text import minus_signs

_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
PADDING = 0.04
"""Share of the range that is free at each end."""
PLAIN_FROM = 0.99e-3
"""Smallest tick on a log axis written as a plain number. Smaller ticks are powers of ten."""
PLAIN_TO = 1.01e4
"""Largest tick on a log axis written as a plain number. Larger ticks are powers of ten."""
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


def ticks(axis: Axis, low: float, high: float, num: int) -> list[tuple[float, str]]:
    """Return (value, text) of an axis's own ticks, or of at most about `num` round numbers."""
    if axis.names:
        return list(zip(axis.ticks, axis.names, strict=True))
    if axis.ticks:
        return [(value, minus_signs(f"{value:g}")) for value in axis.ticks]
    low, high = sorted((low, high))
    if axis.is_log:
        for leads in LEADS:
            values = _log_ticks(low, high, num, leads)
            if len(values) >= MIN_TICKS:
                return [(value, _text(value, None, is_log=True)) for value in values]
    values, decimals = _even_ticks(low, high, num)
    return [(value, _text(value, decimals, is_log=axis.is_log)) for value in values if value > 0 or not axis.is_log]


def _log_ticks(low: float, high: float, num: int, leads: tuple[float, ...]) -> list[float]:
    """Return the leads in each decade, or some powers of ten on a wide axis."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(1, math.ceil((last - first) / max(num, 2)))
    values = [lead * 10.0**decade for decade in range(first, last + 1) if decade % stride == 0 for lead in leads]
    return [value for value in values if low <= value <= high]


def _even_ticks(low: float, high: float, num: int) -> tuple[list[float], int]:
    """Return evenly spaced round numbers and the number of their decimals."""
    rough = (high - low) / max(num, 2)
    power = 10.0 ** math.floor(math.log10(rough))
    steps = [lead * power for lead in (0.5, 1, 2, 5, 10) if lead * power < 2.5 * rough]
    for step in reversed(steps):
        indices = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        if len(indices) >= MIN_TICKS:
            break
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [index * step for index in indices], decimals


def _text(value: float, decimals: int | None, *, is_log: bool) -> str:
    """Write a tick as a plain number, or with a power of ten if it is very small or large."""
    size, is_wide = abs(value), is_log or decimals is None or decimals > 5
    if value == 0 or PLAIN_FROM <= size <= PLAIN_TO or (not is_wide and size < 1e6):
        return minus_signs(f"{value:g}" if decimals is None else f"{value:.{decimals}f}")
    power = math.floor(math.log10(size) + 1e-9)
    raised = f"10{str(power).translate(_RAISED)}"
    if decimals is None and math.isclose(value, 10.0**power, rel_tol=1e-6):
        return raised
    lead = value / 10.0**power
    return minus_signs(f"{lead:g}·" if decimals is None else f"{lead:.{max(0, decimals + power)}f}·") + raised
