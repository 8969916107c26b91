"""`steps_to(METRIC <= VALUE)`: the first recorded step at which a metric has passed a value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from depthrate.sweeps.errors import SweepError

_FORM = re.compile(r"\s*steps_to\s*\(\s*(\S+)\s*(<=|>=)\s*([^\s()]+)\s*\)\s*")


class Threshold(NamedTuple):
    """A value that a metric passes from above (`<=`) or from below (`>=`)."""

    metric: str
    sign: str
    value: float

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {self.value:g}"

    def first_step(self, past: Sequence[tuple[float, float]]) -> float | None:
        """Return the first step of (step, value), in ascending order, whose value has passed. NaN never passes."""
        passes = self.value.__ge__ if self.sign == "<=" else self.value.__le__
        return next((step for step, value in past if passes(value)), None)


def parse_threshold(text: str) -> Threshold | None:
    """Parse a fit's metric. Return None if it names a metric.

    Raises:
        SweepError: It starts as `steps_to(` does, but has another form.
    """
    if not re.match(r"\s*steps_to\s*\(", text):
        return None
    form = _FORM.fullmatch(text)
    try:
        if form is not None:
            return Threshold(form[1], form[2], float(form[3]))
    except ValueError:
        pass
    raise SweepError(f"fit metric is {text!r}, expected steps_to(METRIC <= VALUE) or >=, as in steps_to(loss <= 0.01)")
