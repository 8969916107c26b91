"""Studies of a search (one per grid point), and the trials of their proposals."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from depthrate.sweeps.errors import ExpressionError, SweepError, check_count
from depthrate.sweeps.expand import (
    NO_TRIALS,
    Combination,
    Combinations,
    TrialBuilder,
    refuse_twice,
    seed_values,
    with_seed,
)
from depthrate.sweeps.search_space import Dimension, dimensions_of
from depthrate.sweeps.spec import Search, SweepSpec
from depthrate.sweeps.trial import Trial, canonical_json, identifying
from depthrate.tasks.interface import Task
from depthrate.tasks.parameters import ParameterError


@dataclass(frozen=True)
class Study:
    """The search at one grid point."""

    study_id: str
    """First 16 hex digits of sha256 over everything that determines the proposals. Raising the number of trials does not change
    it."""
    search: Search
    dimensions: tuple[Dimension, ...]
    fixed: Combination
    """Parameters that the sweep sets, except searched parameters and seeds."""
    by: Combination
    """Parameters that distinguish the study from the sweep's other studies."""
    task: Task
    builder: TrialBuilder
    measure_seeds: tuple[int | None, ...]

    def trials(self, values: Mapping[str, Any]) -> list[Trial]:
        """Return the trials of a proposal, one per seed.

        Raises:
            SweepError, ParameterError, ExpressionError: The values are incompatible.
        """
        return self._built({**self.fixed, **values}, list(self.builder.seeds))

    def measured(self, values: Mapping[str, Any]) -> list[Trial]:
        """Return the final runs at a proposal, one per seed, or an empty list if the search has no `measure`."""
        measure = self.search.measure
        return [] if measure is None else self._built({**self.fixed, **values, **measure.params}, [*self.measure_seeds])

    def first_trials(self) -> list[Trial]:
        """Return the trials at the lower end of every range, which are checked before the start."""
        values: dict[str, Any] = {}
        for dimension in self.dimensions:
            if dimension.is_active({**self.fixed, **values}, self.task.schema):
                values[dimension.name] = dimension.low if dimension.values is None else dimension.values[0]
        return self.trials(values) + self.measured(values)

    def label(self) -> str:
        """Name the study, as in `depth = 3`."""
        return ", ".join(f"{name} = {value}" for name, value in self.by.items())

    def _built(self, fixed: Combination, seeds: list[int | None]) -> list[Trial]:
        return [trial for seed in seeds if (trial := self.builder.build(with_seed(fixed, seed))) is not None]


def make_studies(sweep: SweepSpec, task: Task) -> list[Study]:
    """Return the studies of a sweep in the order of its axes, or an empty list without a search.

    Raises:
        SweepError: The search conflicts with the rest of the sweep, or the task refuses its trials.
    """
    try:
        return [] if sweep.search is None else _make_studies(sweep, sweep.search, task)
    except (ParameterError, ExpressionError) as error:
        raise SweepError(str(error)) from None


def _make_studies(sweep: SweepSpec, search: Search, task: Task) -> list[Study]:
    builder = TrialBuilder(sweep, task)
    dimensions = tuple(dimensions_of(search, task.schema))
    measure_seeds: list[int | None] = []
    if search.measure is not None:
        for name in search.measure.params:
            task.schema.require_known(name, "search.measure.params")
        measure_seeds = seed_values(search.measure.seeds, "search.measure.seeds", task, sweep.max_trials)
    combinations = Combinations(sweep, task)
    check_count(combinations.count * len(builder.seeds) * search.trials, sweep.max_trials)
    points = list(combinations)
    names = [name for name in points[0] if len({canonical_json([fixed.get(name)]) for fixed in points}) > 1]
    studies = []
    for fixed in points:
        checked = {name: task.schema[name].check(value) for name, value in fixed.items()}
        _reject_duplicates(sweep, dimensions, fixed)
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
        study = Study(study_id, search, dimensions, fixed, by, task, builder, tuple(measure_seeds))
        if study.first_trials():  # raises if the task refuses them
            studies.append(study)
    if not studies:
        raise SweepError(NO_TRIALS)
    return list({study.study_id: study for study in studies}.values())


def _reject_duplicates(sweep: SweepSpec, dimensions: tuple[Dimension, ...], fixed: Combination) -> None:
    """Check that searched parameters are not set elsewhere. Conditional parameters may have a fixed value."""
    searched = [dimension.name for dimension in dimensions]
    unconditional = [dimension.name for dimension in dimensions if not dimension.when]
    places: dict[str, Collection[str]] = {"in grid": sweep.grid, "in zip": sweep.zip, "in derive": sweep.derive}
    places |= {"in exclude": [name for part in sweep.exclude for name in part]}
    places |= {"by seeds": () if sweep.seeds is None else ("seed",)}
    places |= {"in grids or include": fixed.keys() - sweep.params.keys()}
    for place, names in places.items():
        refuse_twice({"in search.params": searched, place: names})
    refuse_twice({"in search.params": unconditional, "in params": sweep.params})
