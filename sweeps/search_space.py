"""`search:` in a sweep: which parameters are searched, over which ranges, for what objective. Knows nothing of Optuna."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from depthrate.tasks.schema import Parameter, ParameterSchema, nearest

SAMPLERS = ("tpe", "random", "qmc", "cmaes", "grid")
DIRECTIONS = ("minimize", "maximize")
RULES = ("median", "halving", "asha")
_KEYS = ("sampler", "trials", "batch", "seed", "params", "objective", "direction", "prune", "measure")
_RANGE_KEYS = ("low", "high", "log", "step", "values", "when")
_PRUNE_KEYS = ("rule", "metric", "from_step", "startup", "factor")
_MEASURE_KEYS = ("params", "seeds")


class SearchError(ValueError):
    """What stands under `search:` is not understood or cannot run."""


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

    def points(self) -> list[Any] | None:
        """Return all values if there are finitely many, else None."""
        if self.values is not None:
            return list(self.values)
        if self.is_int and not self.is_log:
            return list(range(int(self.low), int(self.high) + 1, int(self.step or 1)))
        if self.step is None:
            return None
        count = math.floor((self.high - self.low) / self.step + 1e-9) + 1
        return [float(f"{self.low + index * self.step:.12g}") for index in range(count)]


@dataclass(frozen=True)
class Prune:
    """When a trial that does badly leaves its pack."""

    rule: str
    """median: worse than the median of earlier trials; halving: not among the best 1/factor of them at its rungs; asha: the
    same, but compared with all trials that have been there, also those that run at the same time."""
    metric: str
    """A number the task reports while it trains (collapse: loss, objective, objective_gap, accuracy, grad_norm)."""
    from_step: int = 1
    """No trial is pruned before; the first rung of halving, the others are this times factor, factor^2, ..."""
    startup: int = 5
    """Earlier trials that must have reached a step before anybody is pruned there; nothing to asha."""
    factor: int = 3


@dataclass(frozen=True)
class Measure:
    """What is run at the best proposal of each study."""

    params: Mapping[str, Any] = field(default_factory=dict)
    """Other than in the search."""
    seeds: Any = None
    """As in a sweep: a count, a list, or null for the task's default."""


@dataclass(frozen=True)
class Search:
    """A search over parameters; in a grid, one study for each combination."""

    params: Mapping[str, Any]
    objective: tuple[str, ...]
    """SQL over a trial's row in `results`; its mean over the seeds of a proposal counts."""
    direction: tuple[str, ...] = ("minimize",)
    """One for each objective."""
    sampler: str = "tpe"
    trials: int = 40
    """Proposals of a study; each is as many trials as the sweep has seeds."""
    batch: int = 8
    """Proposals made at once, knowing the results of all before them; they train fused where their shape allows it."""
    seed: int = 0
    """Of the sampler."""
    prune: Prune | None = None
    measure: Measure | None = None

    def spec(self) -> dict[str, Any]:
        """Return what stands in the file, with the defaults spelled out."""
        content = self.definition() | {"trials": self.trials}
        if self.measure is not None:
            content["measure"] = {"params": dict(self.measure.params)} | (
                {} if self.measure.seeds is None else {"seeds": self.measure.seeds}
            )
        return content

    def definition(self) -> dict[str, Any]:
        """Return what decides the proposals: more trials go on with the same study."""
        content: dict[str, Any] = {
            "sampler": self.sampler,
            "batch": self.batch,
            "seed": self.seed,
            "params": dict(self.params),
            "objective": list(self.objective),
            "direction": list(self.direction),
        }
        return content | ({} if self.prune is None else {"prune": vars(self.prune)})

    def dimensions(self, schema: ParameterSchema) -> list[Dimension]:
        """Return the searched parameters, checked against the task's schema, in an order in which conditions are known.

        Raises:
            SearchError, ParameterError: a range is empty, of the wrong type or beyond what the parameter allows.
        """
        dimensions = [_dimension(name, given, schema) for name, given in self.params.items()]
        names = [dimension.name for dimension in dimensions]
        for place, dimension in enumerate(dimensions):
            for name in dimension.when:
                if name in names[place:]:
                    raise SearchError(
                        f"search.params.{dimension.name}: `when` refers to {name!r}; give {name!r} further up"
                    )
        if self.sampler == "grid":
            for dimension in dimensions:
                if dimension.when:
                    raise SearchError(
                        f"search.params.{dimension.name} has `when`, which sampler grid does not know; use tpe or random"
                    )
                if dimension.points() is None:
                    raise SearchError(
                        f"search.params.{dimension.name}: sampler grid needs a list of values, or a step in its range"
                    )
        return dimensions


def search_of_spec(content: Any) -> Search | None:
    """Read what stands under `search:` in a sweep file.

    Raises:
        SearchError: a key is unknown or has the wrong form.
    """
    if content is None:
        return None
    given = _mapping(content, "search", _KEYS)
    params = given.get("params")
    if not isinstance(params, Mapping) or not params:
        raise SearchError(
            "search needs params, the parameters to search, as in {lr: {low: 1e-3, high: 1, log: true}}; none are given"
        )
    if "objective" not in given:
        raise SearchError("search needs an objective: SQL over a trial's row in results, as in objective: nc1")
    objective = _texts(given["objective"], "search.objective")
    direction = _texts(given.get("direction", "minimize"), "search.direction")
    for word in direction:
        _choice(word, DIRECTIONS, "search.direction")
    if len(direction) == 1:
        direction *= len(objective)
    if len(direction) != len(objective):
        raise SearchError(f"search has {len(objective)} objectives and {len(direction)} directions; give one for each")
    measure, prune = _measure(given.get("measure")), _prune(given.get("prune"))
    for key, what in (("measure", measure), ("prune", prune)):
        if what is not None and len(objective) > 1:
            raise SearchError(f"search.{key} needs one objective, since several have no single best; {key} is given")
    sampler = _choice(given.get("sampler", "tpe"), SAMPLERS, "search.sampler")
    if sampler == "cmaes" and len(objective) > 1:
        raise SearchError("search.sampler cmaes takes one objective; several are for tpe, random, qmc and grid")
    return Search(
        params=dict(params),
        objective=objective,
        direction=direction,
        sampler=sampler,
        trials=_whole(given.get("trials", 40), 1, "search.trials"),
        batch=_whole(given.get("batch", 8), 1, "search.batch"),
        seed=_whole(given.get("seed", 0), 0, "search.seed"),
        prune=prune,
        measure=measure,
    )


def _dimension(name: str, given: Any, schema: ParameterSchema) -> Dimension:
    parameter = schema.require_known(name, "search.params")
    where = f"search.params.{name}"
    if isinstance(given, list | tuple):
        return Dimension(name, values=_values(given, parameter, where))
    content = _mapping(given, where, _RANGE_KEYS)
    when = _when(content.get("when"), name, schema)
    if "values" in content:
        if len(content.keys() - {"when"}) > 1:
            raise SearchError(f"{where} has values and a range; keep one")
        return Dimension(name, values=_values(content["values"], parameter, where), when=when)
    return _range(content, parameter, when, where)


def _range(
    content: Mapping[str, Any], parameter: Parameter, when: Mapping[str, tuple[Any, ...]], where: str
) -> Dimension:
    if parameter.kind not in ("int", "float") or parameter.choices is not None:
        raise SearchError(f"{where} is a range, but {parameter.name!r} is {parameter.allowed}; give a list of values")
    if "low" not in content or "high" not in content:
        raise SearchError(f"{where} has the keys {sorted(content)}; give low and high, or a list of values")
    low, high = parameter.check(content["low"]), parameter.check(content["high"])
    if low is None or high is None or not low < high:
        raise SearchError(f"{where}: low is {low} and high is {high}; low must be the smaller number")
    is_log, step, is_int = content.get("log", False), content.get("step"), parameter.kind == "int"
    if not isinstance(is_log, bool):
        raise SearchError(f"{where}.log is {is_log!r}; allowed: true or false")
    if is_log and low <= 0:
        raise SearchError(f"{where}: a log range needs a low above 0; given {low}")
    if is_log and step is not None:
        raise SearchError(f"{where} has log and step; keep one")
    if step is not None:
        wrong = isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step <= high - low
        if wrong or (is_int and step != int(step)):
            raise SearchError(
                f"{where}.step is {step!r}; give a {'whole ' if is_int else ''}number up to {high - low:g}"
            )
    return Dimension(parameter.name, None, low, high, is_log, step, is_int, when)


def _values(given: Any, parameter: Parameter, where: str) -> tuple[Any, ...]:
    if not isinstance(given, list | tuple) or not given:
        raise SearchError(f"{where} is {given!r}; give a list of values, or low and high")
    values = tuple(parameter.check(value) for value in given)
    if any(isinstance(value, list) for value in values):
        raise SearchError(
            f"{where}: {parameter.name!r} is {parameter.allowed}; lists cannot be searched, put them in grid"
        )
    if len(set(values)) < len(values):
        raise SearchError(f"{where} has a value twice: {list(values)}; keep one")
    return values


def _when(given: Any, name: str, schema: ParameterSchema) -> dict[str, tuple[Any, ...]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not given:
        raise SearchError(f"search.params.{name}.when is {given!r}; give parameter: value, as in {{optimizer: sgd}}")
    conditions = {}
    for other, wanted in given.items():
        parameter = schema.require_known(other, f"search.params.{name}.when")
        conditions[other] = tuple(map(parameter.check, wanted if isinstance(wanted, list | tuple) else [wanted]))
    return conditions


def _prune(given: Any) -> Prune | None:
    if given is None:
        return None
    content = _mapping(given, "search.prune", _PRUNE_KEYS)
    if not isinstance(content.get("metric"), str):
        raise SearchError("search.prune needs metric: what trials are compared by while they train, as in metric: loss")
    return Prune(
        rule=_choice(content.get("rule", "median"), RULES, "search.prune.rule"),
        metric=content["metric"],
        from_step=_whole(content.get("from_step", 1), 1, "search.prune.from_step"),
        startup=_whole(content.get("startup", 5), 1, "search.prune.startup"),
        factor=_whole(content.get("factor", 3), 2, "search.prune.factor"),
    )


def _measure(given: Any) -> Measure | None:
    if given is None:
        return None
    content = _mapping(given, "search.measure", _MEASURE_KEYS)
    params = content.get("params") or {}
    if not isinstance(params, Mapping):
        raise SearchError(f"search.measure.params is {params!r}; give a mapping from parameter to value")
    return Measure(dict(params), content.get("seeds"))


def _mapping(given: Any, where: str, allowed: Sequence[str]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise SearchError(f"{where} is {given!r}; give a mapping with some of the keys {', '.join(allowed)}")
    for key in given:
        if key not in allowed:
            raise SearchError(f"unknown key {key!r} in {where}{nearest(key, allowed)} (known: {', '.join(allowed)})")
    return dict(given)


def _texts(given: Any, where: str) -> tuple[str, ...]:
    texts = given if isinstance(given, list | tuple) else [given]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise SearchError(f"{where} is {given!r}; give a text, or a list of texts")
    return tuple(texts)


def _choice(given: Any, allowed: Sequence[str], where: str) -> str:
    if given not in allowed:
        hint = nearest(given, allowed) if isinstance(given, str) else ""
        raise SearchError(f"{where} is {given!r}; allowed: {', '.join(allowed)}{hint}")
    return str(given)


def _whole(given: Any, least: int, where: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise SearchError(f"{where} is {given!r}; give a whole number from {least} on")
    return given
