"""What a search may propose: of each searched parameter its values or its range, and when it is searched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from depthrate.sweeps.errors import MAX_TRIALS, SweepError, counted
from depthrate.sweeps.part import SpecSection
from depthrate.sweeps.spec import Search
from depthrate.tasks.parameters import Parameter, ParameterSchema, format_value

_MAX_POINTS = 10**15
"""Of a range with a step: more cannot be told apart as floats."""
_GIVE_VALUES = "give a list of values, or low and high"


class SearchedParameter(SpecSection, frozen=True):
    """What is searched of a parameter: a range, or values, and under which condition."""

    ALLOWED = {"values": _GIVE_VALUES, "when": "give parameter: value, as in {optimizer: sgd}"}
    low: Any = None
    """The smallest value."""
    high: Any = None
    """The largest value."""
    log: bool = False
    """Whether values are even in their logarithm."""
    step: Any = None
    """Between two values; without it any number is one."""
    values: list[Any] | None = None
    """Values, in place of a range."""
    when: Annotated[Mapping[str, Any], Meta(min_length=1)] | None = None
    """Other parameter -> its value, or a list of values, for which this one is searched; otherwise it is as outside of the
    search."""


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


def dimensions_of(search: Search, schema: ParameterSchema) -> list[Dimension]:
    """Return the searched parameters, checked against the task's schema, in an order in which conditions are known.

    Raises:
        SweepError, ParameterError: a range is empty, of the wrong type or beyond what the parameter allows.
    """
    dimensions = [_dimension(name, given, schema) for name, given in search.params.items()]
    names = [dimension.name for dimension in dimensions]
    for place, dimension in enumerate(dimensions):
        for name in dimension.when:
            if name in names[place:]:
                raise SweepError(f"search.params.{dimension.name}: `when` refers to {name!r}; give {name!r} further up")
    if search.sampler == "grid":
        _check_grid(dimensions)
    return dimensions


def _check_grid(dimensions: Sequence[Dimension]) -> None:
    count: float = 1
    for dimension in dimensions:
        if dimension.when:
            raise SweepError(
                f"search.params.{dimension.name} has `when`, which sampler grid does not know; use tpe or random"
            )
        if dimension.num_points is None:
            raise SweepError(
                f"search.params.{dimension.name}: sampler grid needs a list of values, or a step in its range"
            )
        count *= dimension.num_points
    if count > MAX_TRIALS:
        raise SweepError(
            f"search.params has {counted(count)} combinations for sampler grid, which forms them all; at most "
            f"{MAX_TRIALS:,} are allowed: give larger steps, or use tpe or random"
        )


def _dimension(name: str, given: Any, schema: ParameterSchema) -> Dimension:
    parameter = schema.require_known(name, "search.params")
    where = f"search.params.{name}"
    if isinstance(given, list | tuple):
        return Dimension(name, values=_values(given, parameter, where))
    searched = SearchedParameter.read(given, where, f"{where}.")
    when = {}
    for other, wanted in (searched.when or {}).items():
        check = schema.require_known(other, f"{where}.when").check
        when[other] = tuple(map(check, wanted if isinstance(wanted, list | tuple) else [wanted]))
    if "values" not in given:
        return _range(given, searched, parameter, when, where)
    if given.keys() - {"values", "when"}:
        raise SweepError(f"{where} has values and a range; keep one")
    return Dimension(name, values=_values(searched.values, parameter, where), when=when)


def _range(
    given: Mapping[str, Any],
    searched: SearchedParameter,
    parameter: Parameter,
    when: Mapping[str, tuple[Any, ...]],
    where: str,
) -> Dimension:
    if parameter.kind not in ("int", "float") or parameter.choices is not None:
        raise SweepError(f"{where} is a range, but {parameter.name!r} is {parameter.allowed}; give a list of values")
    if "low" not in given or "high" not in given:
        raise SweepError(f"{where} has the keys {sorted(given)}; give low and high, or a list of values")
    low, high, step = parameter.check(searched.low), parameter.check(searched.high), searched.step
    if low is None or high is None or not low < high:
        raise SweepError(f"{where}: low is {low} and high is {high}; low must be the smaller number")
    if searched.log and low <= 0:
        raise SweepError(f"{where}: a log range needs a low above 0; given {low}")
    if searched.log and step is not None:
        raise SweepError(f"{where} has log and step; keep one")
    is_int = parameter.kind == "int"
    if step is not None:
        wrong = isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step <= high - low
        if wrong or (is_int and step != int(step)):
            raise SweepError(
                f"{where}.step is {format_value(step)}; give a {'whole ' if is_int else ''}number up to {high - low:g}"
            )
    dimension = Dimension(parameter.name, None, low, high, searched.log, step, is_int, when)
    if step is not None and (dimension.num_points or 0) > _MAX_POINTS:
        raise SweepError(f"{where}.step is {step!r}, which makes more than 10^15 values; give a larger step, or none")
    return dimension


def _values(given: Any, parameter: Parameter, where: str) -> tuple[Any, ...]:
    if not given:
        raise SweepError(f"{where} is {format_value(given)}; {_GIVE_VALUES}")
    values = tuple(parameter.check(value) for value in given)
    if any(isinstance(value, list) for value in values):
        raise SweepError(
            f"{where}: {parameter.name!r} is {parameter.allowed}; lists cannot be searched, put them in grid"
        )
    if len(set(values)) < len(values):
        raise SweepError(f"{where} has a value twice: {format_value(list(values))}; keep one")
    return values
