"""A search in a sweep: one study for each combination of the grid, and the trials that its proposals are."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from depthrate.sweeps.errors import SweepError, check_count
from depthrate.sweeps.expand import Combination, Combinations, TrialBuilder, refuse_twice, seed_values, with_seed
from depthrate.sweeps.expression import ExpressionError
from depthrate.sweeps.search_space import Dimension, dimensions_of
from depthrate.sweeps.spec import Search, SweepSpec
from depthrate.sweeps.trial import Trial, canonical_json, identifying
from depthrate.tasks.interface import Task
from depthrate.tasks.parameters import ParameterError


@dataclass(frozen=True)
class Study:
    """A search at one combination of the grid."""

    study_id: str
    """First 16 hex digits of sha256 over all that decides its proposals; with more trials it is the same study."""
    search: Search
    dimensions: tuple[Dimension, ...]
    given: Combination
    """What the sweep says of its trials, without what is searched, and without seeds."""
    by: Combination
    """What tells it from the sweep's other studies."""
    task: Task
    builder: TrialBuilder
    measure_seeds: tuple[int | None, ...]

    def trials(self, values: Mapping[str, Any]) -> list[Trial]:
        """Return the trials of a proposal, one a seed.

        Raises:
            SweepError, ParameterError, ExpressionError: these values exclude each other.
        """
        return self._built({**self.given, **values}, list(self.builder.seeds))

    def measured(self, values: Mapping[str, Any]) -> list[Trial]:
        """Return the trials that measure at a proposal, one a seed; none if the search asks for no measurement."""
        measure = self.search.measure
        return [] if measure is None else self._built({**self.given, **values, **measure.params}, [*self.measure_seeds])

    def first_trials(self) -> list[Trial]:
        """Return the trials at the beginning of every range: some that are checked before anything starts."""
        values: dict[str, Any] = {}
        for dimension in self.dimensions:
            if dimension.is_active({**self.given, **values}, self.task.schema):
                values[dimension.name] = dimension.low if dimension.values is None else dimension.values[0]
        return self.trials(values) + self.measured(values)

    def label(self) -> str:
        """Name the study, as in `depth = 3`."""
        return ", ".join(f"{name} = {value}" for name, value in self.by.items())

    def _built(self, given: Combination, seeds: list[int | None]) -> list[Trial]:
        return [trial for seed in seeds if (trial := self.builder.build(with_seed(given, seed))) is not None]


def make_studies(sweep: SweepSpec, task: Task) -> list[Study]:
    """Return the studies of a sweep's search, in the order of its axes; none without a search.

    Raises:
        SweepError: the search and the rest of the sweep do not fit together, or the task would refuse its trials.
    """
    if sweep.search is None:
        return []
    try:
        return _make_studies(sweep, sweep.search, task)
    except (ParameterError, ExpressionError) as error:
        raise SweepError(str(error)) from None


def _make_studies(sweep: SweepSpec, search: Search, task: Task) -> list[Study]:
    builder = TrialBuilder(sweep, task)
    dimensions = tuple(dimensions_of(search, task.schema))
    measure_seeds = _measure_seeds(search, task, sweep.max_trials)
    combinations = Combinations(sweep, task)
    check_count(combinations.count * len(builder.seeds) * search.trials, sweep.max_trials)
    every_given = list(combinations)
    names = [name for name in every_given[0] if len({canonical_json([given.get(name)]) for given in every_given}) > 1]
    studies = []
    for given in every_given:
        checked = {name: task.schema[name].check(value) for name, value in given.items()}
        _reject_duplicates(sweep, dimensions, given)
        identity = {
            "task": task.name,
            "task_version": task.version,
            "given": identifying(checked, task.schema.added_later),
            "derive": {name: expression.text for name, expression in builder.derived.items()},
            "seeds": builder.seeds,
            "search": search.definition(),
        }
        study_id = hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:16]
        by = {name: checked.get(name, task.schema[name].default) for name in names}
        study = Study(study_id, search, dimensions, given, by, task, builder, tuple(measure_seeds))
        if study.first_trials():  # refused here and now, if the task refuses them
            studies.append(study)
    if not studies:
        raise SweepError("the sweep has no trials: exclude drops every combination")
    return list({study.study_id: study for study in studies}.values())


def _reject_duplicates(sweep: SweepSpec, dimensions: tuple[Dimension, ...], given: Combination) -> None:
    """Check that what is searched is not given elsewhere; what is searched under a condition may have a fixed value."""
    searched = [dimension.name for dimension in dimensions]
    unconditional = [dimension.name for dimension in dimensions if not dimension.when]
    places: dict[str, Collection[str]] = {"in grid": sweep.grid, "in zip": sweep.zip, "in derive": sweep.derive}
    places |= {"in exclude": [name for part in sweep.exclude for name in part]}
    places |= {"by seeds": () if sweep.seeds is None else ("seed",)}
    places |= {"in grids or include": given.keys() - sweep.params.keys()}
    for place, names in places.items():
        refuse_twice({"in search.params": searched, place: names})
    refuse_twice({"in search.params": unconditional, "in params": sweep.params})


def _measure_seeds(search: Search, task: Task, most: int) -> list[int | None]:
    if search.measure is None:
        return []
    for name in search.measure.params:
        task.schema.require_known(name, "search.measure.params")
    if search.measure.seeds is not None and "seed" not in task.schema:
        raise SweepError(f"search.measure.seeds is given, but task {task.name!r} has no parameter 'seed'")
    return seed_values(search.measure.seeds, "search.measure.seeds", most)
