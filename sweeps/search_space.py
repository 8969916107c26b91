"""What a search may propose: of each searched parameter its values or its range, and when it is searched."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from depthrate.sweeps.content import keyed_mapping
from depthrate.sweeps.errors import SweepError
from depthrate.tasks.schema import Parameter, ParameterSchema, shown

_RANGE_KEYS = ("low", "high", "log", "step", "values", "when")
_MOST_POINTS = 10**15
"""Of a range with a step: more cannot be told apart as floats."""


@dataclass(frozen=True)
class Dimension:
    """One searched parameter: its values, or its range, and when it is searched at all."""

    name: str
    values: tuple[Any, ...] | None = None
    """A choice among these; else a range from `low` to `high`, both included."""
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    step: float | None = None
    is_int: bool = False
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Other parameter -> the values of it for which this one is searched; otherwise it is as outside of the search."""

    def is_active(self, params: Mapping[str, Any], schema: ParameterSchema) -> bool:
        """Whether the parameter is searched beside these values."""
        return all(params.get(name, schema[name].default) in values for name, values in self.when.items())

    @property
    def num_points(self) -> float | None:
        """How many values there are if they are finitely many, else None; infinity for more than a float holds."""
        if self.values is not None:
            return len(self.values)
        if self.is_int and not self.is_log:
            return int(self.high - self.low) // int(self.step or 1) + 1
        if self.step is None:
            return None
        steps = (self.high - self.low) / self.step + 1e-9
        return math.floor(steps) + 1 if steps < math.inf else math.inf

    def points(self) -> list[Any] | None:
        """Return all values if there are finitely many, else None."""
        if self.values is not None:
            return list(self.values)
        if self.is_int and not self.is_log:
            return list(range(int(self.low), int(self.high) + 1, int(self.step or 1)))
        if self.step is None:
            return None
        return [float(f"{self.low + index * self.step:.12g}") for index in range(int(self.num_points or 0))]


def dimension_of(name: str, given: Any, schema: ParameterSchema) -> Dimension:
    """Read an entry of `search.params`, checked against the task's schema.

    Raises:
        SweepError, ParameterError: it is not understood, or is beyond what the parameter allows.
    """
    parameter = schema.require_known(name, "search.params")
    where = f"search.params.{name}"
    if isinstance(given, list | tuple):
        return Dimension(name, values=_values(given, parameter, where))
    content = keyed_mapping(given, where, _RANGE_KEYS)
    when = _when(content.get("when"), name, schema)
    if "values" in content:
        if len(content.keys() - {"when"}) > 1:
            raise SweepError(f"{where} has values and a range; keep one")
        return Dimension(name, values=_values(content["values"], parameter, where), when=when)
    return _range(content, parameter, when, where)


def _range(
    content: Mapping[str, Any], parameter: Parameter, when: Mapping[str, tuple[Any, ...]], where: str
) -> Dimension:
    if parameter.kind not in ("int", "float") or parameter.choices is not None:
        raise SweepError(f"{where} is a range, but {parameter.name!r} is {parameter.allowed}; give a list of values")
    if "low" not in content or "high" not in content:
        raise SweepError(f"{where} has the keys {sorted(content)}; give low and high, or a list of values")
    low, high = parameter.check(content["low"]), parameter.check(content["high"])
    if low is None or high is None or not low < high:
        raise SweepError(f"{where}: low is {low} and high is {high}; low must be the smaller number")
    is_log, step, is_int = content.get("log", False), content.get("step"), parameter.kind == "int"
    if not isinstance(is_log, bool):
        raise SweepError(f"{where}.log is {shown(is_log)}; allowed: true or false")
    if is_log and low <= 0:
        raise SweepError(f"{where}: a log range needs a low above 0; given {low}")
    if is_log and step is not None:
        raise SweepError(f"{where} has log and step; keep one")
    if step is not None:
        wrong = isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step <= high - low
        if wrong or (is_int and step != int(step)):
            raise SweepError(
                f"{where}.step is {shown(step)}; give a {'whole ' if is_int else ''}number up to {high - low:g}"
            )
    dimension = Dimension(parameter.name, None, low, high, is_log, step, is_int, when)
    if step is not None and (dimension.num_points or 0) > _MOST_POINTS:
        raise SweepError(f"{where}.step is {step!r}, which makes more than 10^15 values; give a larger step, or none")
    return dimension


def _values(given: Any, parameter: Parameter, where: str) -> tuple[Any, ...]:
    if not isinstance(given, list | tuple) or not given:
        raise SweepError(f"{where} is {shown(given)}; give a list of values, or low and high")
    values = tuple(parameter.check(value) for value in given)
    if any(isinstance(value, list) for value in values):
        raise SweepError(
            f"{where}: {parameter.name!r} is {parameter.allowed}; lists cannot be searched, put them in grid"
        )
    if len(set(values)) < len(values):
        raise SweepError(f"{where} has a value twice: {shown(list(values))}; keep one")
    return values


def _when(given: Any, name: str, schema: ParameterSchema) -> dict[str, tuple[Any, ...]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not given:
        raise SweepError(
            f"search.params.{name}.when is {shown(given)}; give parameter: value, as in {{optimizer: sgd}}"
        )
    conditions = {}
    for other, wanted in given.items():
        parameter = schema.require_known(other, f"search.params.{name}.when")
        conditions[other] = tuple(map(parameter.check, wanted if isinstance(wanted, list | tuple) else [wanted]))
    return conditions
