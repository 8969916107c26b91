"""Define the search space: values or a range per searched parameter, and its condition."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from depthrate.sweeps.errors import MAX_TRIALS, SweepError, counted
from depthrate.sweeps.part import SpecSection, read_section
from depthrate.sweeps.spec import Search
from depthrate.tasks.parameters import Parameter, ParameterSchema, format_value

_MAX_POINTS = 10**15
"""Maximum number of points of a range with a step. With more points, floats cannot distinguish them."""
_GIVE_VALUES = "expected a list of values, or low and high"


class SearchedParameter(SpecSection, frozen=True):
    """Values or range of a searched parameter, and its condition."""

    ALLOWED = {"values": _GIVE_VALUES, "when": "expected parameter: value, as in {optimizer: sgd}"}
    low: Any = None
    """Smallest value."""
    high: Any = None
    """Largest value."""
    log: bool = False
    """true samples uniformly in the logarithm."""
    step: Any = None
    """Distance between values. Default: continuous."""
    values: list[Any] | None = None
    """List of values instead of a range."""
    when: Annotated[Mapping[str, Any], Meta(min_length=1)] | None = None
    """Condition: other parameter -> value or list of values with which this one is searched. Otherwise it keeps its value
    from outside the search."""


@dataclass(frozen=True)
class Dimension:
    """A searched parameter: values or range, and condition."""

    name: str
    values: tuple[Any, ...] | None = None
    """Values to choose from. None: a range from `low` to `high`, inclusive."""
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    step: float | None = None
    is_int: bool = False
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Condition: other parameter -> values with which this one is searched."""

    def is_active(self, params: Mapping[str, Any], schema: ParameterSchema) -> bool:
        """Return whether the parameter is searched if the other parameters have these values."""
        return all(params.get(name, schema[name].default) in values for name, values in self.when.items())

    @property
    def num_points(self) -> float | None:
        """Number of values, None if continuous, or infinity if the number exceeds the range of a float."""
        if self.values is not None:
            return len(self.values)
        if self.is_int and not self.is_log:
            return int(self.high - self.low) // int(self.step or 1) + 1
        if self.step is None:
            return None
        steps = (self.high - self.low) / self.step + 1e-9
        return math.floor(steps) + 1 if steps < math.inf else math.inf

    def points(self) -> list[Any] | None:
        """Return all values, or None if continuous."""
        if self.values is not None:
            return list(self.values)
        if self.is_int and not self.is_log:
            return list(range(int(self.low), int(self.high) + 1, int(self.step or 1)))
        if self.step is None:
            return None
        return [float(f"{self.low + index * self.step:.12g}") for index in range(int(self.num_points or 0))]


def dimensions_of(search: Search, schema: ParameterSchema) -> list[Dimension]:
    """Return the searched parameters, checked against the task's schema. Conditions refer to earlier parameters.

    Raises:
        SweepError, ParameterError: A range is empty, has the wrong type, or exceeds the limits of the parameter.
    """
    dimensions = [_dimension(name, space, schema) for name, space in search.params.items()]
    names = [dimension.name for dimension in dimensions]
    for place, dimension in enumerate(dimensions):
        for name in dimension.when:
            if name in names[place:]:
                raise SweepError(f"search.params.{dimension.name}: `when` refers to {name!r}. Move {name!r} above it.")
    count: float = 1
    for dimension in dimensions if search.sampler == "grid" else ():
        if dimension.when:
            raise SweepError(
                f"search.params.{dimension.name} has `when`, which sampler grid does not support. Use tpe or random."
            )
        if dimension.num_points is None:
            raise SweepError(
                f"search.params.{dimension.name}: sampler grid needs a list of values, or a step in its range"
            )
        count *= dimension.num_points
    if count > MAX_TRIALS:
        raise SweepError(
            f"search.params has {counted(count)} combinations, sampler grid allows at most {MAX_TRIALS:,}. "
            "Use larger steps, or sampler tpe or random."
        )
    return dimensions


def _dimension(name: str, space: Any, schema: ParameterSchema) -> Dimension:
    parameter = schema.require_known(name, "search.params")
    where = f"search.params.{name}"
    if isinstance(space, list | tuple):
        return Dimension(name, values=_values(space, parameter, where))
    searched = read_section(SearchedParameter, space, where, f"{where}.")
    when = {}
    for other, wanted in (searched.when or {}).items():
        check = schema.require_known(other, f"{where}.when").check
        when[other] = tuple(map(check, wanted if isinstance(wanted, list | tuple) else [wanted]))
    if "values" not in space:
        return _range(space, searched, parameter, when, where)
    if space.keys() - {"values", "when"}:
        raise SweepError(f"{where} has values and a range. Keep one.")
    return Dimension(name, values=_values(searched.values, parameter, where), when=when)


def _range(
    space: Mapping[str, Any],
    searched: SearchedParameter,
    parameter: Parameter,
    when: Mapping[str, tuple[Any, ...]],
    where: str,
) -> Dimension:
    if parameter.kind not in ("int", "float") or parameter.choices is not None:
        raise SweepError(f"{where} is a range, but {parameter.name!r} is {parameter.allowed}. Give a list of values.")
    if "low" not in space or "high" not in space:
        raise SweepError(f"{where} has the keys {sorted(space)}, expected low and high, or a list of values")
    low, high, step = parameter.check(searched.low), parameter.check(searched.high), searched.step
    if low is None or high is None or not low < high:
        raise SweepError(f"{where}: low is {low} and high is {high}, expected low < high")
    if searched.log and low <= 0:
        raise SweepError(f"{where}: low of a log range is {low}, expected a number > 0")
    if searched.log and step is not None:
        raise SweepError(f"{where} has log and step. Keep one.")
    is_int = parameter.kind == "int"
    if step is not None:
        wrong = isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step <= high - low
        if wrong or (is_int and step != int(step)):
            raise SweepError(
                f"{where}.step is {format_value(step)}, expected {'an int' if is_int else 'a number'} up to {high - low:g}"
            )
    dimension = Dimension(parameter.name, None, low, high, searched.log, step, is_int, when)
    if step is not None and (dimension.num_points or 0) > _MAX_POINTS:
        raise SweepError(
            f"{where}.step is {step!r}, which makes more than 10^15 values. Use a larger step, or omit it."
        )
    return dimension


def _values(candidates: Any, parameter: Parameter, where: str) -> tuple[Any, ...]:
    if not candidates:
        raise SweepError(f"{where} is {format_value(candidates)}, {_GIVE_VALUES}")
    values = tuple(parameter.check(value) for value in candidates)
    if any(isinstance(value, list) for value in values):
        raise SweepError(
            f"{where}: {parameter.name!r} is {parameter.allowed}. Lists cannot be searched: move it to grid."
        )
    if len(set(values)) < len(values):
        raise SweepError(f"{where} has a value twice: {format_value(list(values))}")
    return values
