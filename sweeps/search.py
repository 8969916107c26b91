"""`search:` in a sweep: which parameters are searched, how, and for what objective. Knows nothing of Optuna."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from depthrate.sweeps.content import keyed_mapping
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.limits import MAX_TRIALS, counted
from depthrate.sweeps.search_space import Dimension, dimension_of
from depthrate.tasks.schema import ParameterSchema, nearest, shown

SAMPLERS = ("tpe", "random", "qmc", "cmaes", "grid")
DIRECTIONS = ("minimize", "maximize")
RULES = ("median", "halving", "asha")
KEYS = ("sampler", "trials", "batch", "seed", "params", "objective", "direction", "prune", "measure")
_PRUNE_KEYS = ("rule", "metric", "from_step", "startup", "factor")
_MEASURE_KEYS = ("params", "seeds")


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
            SweepError, ParameterError: a range is empty, of the wrong type or beyond what the parameter allows.
        """
        dimensions = [dimension_of(name, given, schema) for name, given in self.params.items()]
        names = [dimension.name for dimension in dimensions]
        for place, dimension in enumerate(dimensions):
            for name in dimension.when:
                if name in names[place:]:
                    raise SweepError(
                        f"search.params.{dimension.name}: `when` refers to {name!r}; give {name!r} further up"
                    )
        if self.sampler == "grid":
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


def search_of_spec(content: Any, most: int = MAX_TRIALS) -> Search | None:
    """Read what stands under `search:` in a sweep file; a study has at most so many proposals.

    Raises:
        SweepError: a key is unknown or has the wrong form.
    """
    if content is None:
        return None
    given = keyed_mapping(content, "search", KEYS)
    params = given.get("params")
    if not isinstance(params, Mapping) or not params:
        raise SweepError(
            "search needs params, the parameters to search, as in {lr: {low: 1e-3, high: 1, log: true}}; none are given"
        )
    if "objective" not in given:
        raise SweepError("search needs an objective: SQL over a trial's row in results, as in objective: nc1")
    objective = _texts(given["objective"], "search.objective")
    direction = _texts(given.get("direction", "minimize"), "search.direction")
    for word in direction:
        _choice(word, DIRECTIONS, "search.direction")
    if len(direction) == 1:
        direction *= len(objective)
    if len(direction) != len(objective):
        raise SweepError(f"search has {len(objective)} objectives and {len(direction)} directions; give one for each")
    measure, prune = _measure(given.get("measure")), _prune(given.get("prune"))
    for key, what in (("measure", measure), ("prune", prune)):
        if what is not None and len(objective) > 1:
            raise SweepError(f"search.{key} needs one objective, since several have no single best; {key} is given")
    sampler = _choice(given.get("sampler", "tpe"), SAMPLERS, "search.sampler")
    if sampler == "cmaes" and len(objective) > 1:
        raise SweepError("search.sampler cmaes takes one objective; several are for tpe, random, qmc and grid")
    return Search(
        params=dict(params),
        objective=objective,
        direction=direction,
        sampler=sampler,
        trials=_whole(given.get("trials", 40), 1, "search.trials", most),
        batch=_whole(given.get("batch", 8), 1, "search.batch", MAX_TRIALS),
        seed=_whole(given.get("seed", 0), 0, "search.seed"),
        prune=prune,
        measure=measure,
    )


def _prune(given: Any) -> Prune | None:
    if given is None:
        return None
    content = keyed_mapping(given, "search.prune", _PRUNE_KEYS)
    if not isinstance(content.get("metric"), str):
        raise SweepError("search.prune needs metric: what trials are compared by while they train, as in metric: loss")
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
    content = keyed_mapping(given, "search.measure", _MEASURE_KEYS)
    params = content.get("params") or {}
    if not isinstance(params, Mapping):
        raise SweepError(f"search.measure.params is {shown(params)}; give a mapping from parameter to value")
    return Measure(dict(params), content.get("seeds"))


def _texts(given: Any, where: str) -> tuple[str, ...]:
    texts = given if isinstance(given, list | tuple) else [given]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise SweepError(f"{where} is {shown(given)}; give a text, or a list of texts")
    return tuple(texts)


def _choice(given: Any, allowed: Sequence[str], where: str) -> str:
    if given not in allowed:
        hint = nearest(given, allowed) if isinstance(given, str) else ""
        raise SweepError(f"{where} is {shown(given)}; allowed: {', '.join(allowed)}{hint}")
    return str(given)


def _whole(given: Any, least: int, where: str, most: int | None = None) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise SweepError(f"{where} is {shown(given)}; give a whole number from {least} on")
    if most is not None and given > most:
        raise SweepError(f"{where} is {counted(given)}; at most {most:,} are allowed (max_trials)")
    return given
