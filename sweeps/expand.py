"""Expand a sweep into trials: axes, seeds, defaults, derived parameters, exclusions and checks.

Trials are counted before the first one is made.
"""

import graphlib
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from depthrate.sweeps.errors import ExpressionError, SweepError, check_count, counted, kind_of
from depthrate.sweeps.expression import Expression
from depthrate.sweeps.part import read_section
from depthrate.sweeps.spec import Grid, SweepSpec
from depthrate.sweeps.trial import Trial, TrialMaker, Trials
from depthrate.tasks.interface import Task
from depthrate.tasks.parameters import Filler, Parameter, ParameterError, format_value, nearest, nearest_names

Combination = dict[str, Any]
NO_TRIALS = "the sweep has no trials: exclude drops every combination"
_RANGES = ("range", "linspace", "logspace")


def expand(sweep: SweepSpec, task: Task | None = None) -> Trials:
    """Return the distinct trials of a sweep in the order of its axes. A search has no trials in advance.

    Raises:
        SweepError: A parameter is unknown, has the wrong type or is set twice, or a derived value cannot be computed.
    """
    if sweep.search is not None:
        return Trials()
    try:
        task = task or sweep.load_task()
        builder, combinations = TrialBuilder(sweep, task), Combinations(sweep, task)
        check_count(combinations.count * len(builder.seeds), sweep.max_trials)
        trials = Trials()
        for combination in combinations:
            builder.add_seeds(combination, trials)
        if not trials:
            raise SweepError(NO_TRIALS)
        return trials
    except (ParameterError, ExpressionError, SweepError) as error:
        if task is None:
            raise
        mistakes = list(dict.fromkeys([str(error), *_mistakes(sweep, task)]))
        more = "".join(f"\n  {mistake}" for mistake in mistakes[1:])
        raise SweepError(f"{mistakes[0]}{more}") from None


def _mistakes(sweep: SweepSpec, task: Task) -> Iterator[str]:
    """Yield a message for each unknown name and each wrong value that can be checked independently."""
    places = {"params": sweep.params, "derive": sweep.derive, "grid": sweep.grid, "zip": sweep.zip}
    for where, part in places.items():
        for name, value in part.items():
            try:
                check_names([name], where, task)
                is_axis = where in ("grid", "zip") and isinstance(value, list)
                for single in value if is_axis else [value] if where == "params" else []:
                    task.schema[name].check(single)
            except ParameterError as error:
                yield str(error)


class TrialBuilder:
    """Builds trials from combinations: adds defaults and derived parameters, and applies the task's checks."""

    def __init__(self, sweep: SweepSpec, task: Task):
        """Check everything that is common to all trials.

        Raises:
            SweepError, ParameterError, ExpressionError: A name is unknown, or a derived parameter is invalid.
        """
        check_names(sweep.params, "params", task)
        check_names(sweep.derive, "derive", task)
        _refuse_twice_in(sweep, {"in grid": sweep.grid, "in zip": sweep.zip, "in params": sweep.params})
        self.seeds = seed_values(sweep.seeds, "seeds", task, sweep.max_trials)
        self.derived = _derived_parameters(sweep, task)
        self._task = task
        for part in sweep.exclude:
            check_names(part, "exclude", task)
        self._filters = [
            {name: task.schema[name].check(value) for name, value in part.items()} for part in sweep.exclude
        ]
        self._filler = Filler(task.schema, later=self.derived.keys())
        self._formulas = {name: _Formula(expression, task.schema[name]) for name, expression in self.derived.items()}
        self._maker = TrialMaker(task.name, task.version, task.schema, added=task.schema.added_later)
        depends = any("seed" in part for part in (*self._filters, *(e.names for e in self.derived.values())))
        self._seed_is_free = not depends and _is_free("seed", task)
        """Whether nothing else depends on the seed."""

    def build(self, combination: Combination) -> Trial | None:
        """Build a trial, or return None if the sweep excludes it.

        Raises:
            SweepError, ParameterError, ExpressionError: The parameters are invalid.
        """
        params = self._filler.fill(combination)
        for name, formula in self._formulas.items():
            params[name] = formula.value(params)
        if any(all(params[name] == value for name, value in part.items()) for part in self._filters):
            return None
        self._task.complete(params)
        self._task.check_trial(params)
        return self._maker.make(params)

    def add_seeds(self, combination: Combination, trials: Trials) -> None:
        """Add the trials of a combination, one per seed.

        If nothing depends on the seed, only the trials of the first and the last seed are built and checked. The id of the last
        one must equal the id from its template.

        Raises:
            SweepError, ParameterError, ExpressionError: The parameters are invalid.
        """
        first, *others = self.seeds
        if self._seed_is_free and others:
            built = self.build(with_seed(combination, first))
            last = self.build(with_seed(combination, others[-1]))
            seeds = [self._filler.check("seed", seed) for seed in self.seeds]
            ids = [] if built is None else self._maker.ids(built.params, "seed", seeds)
            if built is not None and last is not None and ids[-1] == last.trial_id:
                trials.add(ids, built, "seed", seeds)
                return
        for seed in self.seeds:
            if (trial := self.build(with_seed(combination, seed))) is not None:
                trials.add([trial.trial_id], trial)


def _is_free(name: str, task: Task) -> bool:
    """Return whether no check of a task and no other parameter can depend on a parameter."""
    is_checked = any(
        getattr(method, "__func__", None) is not default
        for method, default in ((task.complete, Task.complete), (task.check_trial, Task.check_trial))
    )
    parameter = task.schema.get(name)
    if parameter is None or parameter.kind != "int" or parameter.added_later or parameter.nullable:
        return False
    return parameter.is_random_seed or not is_checked


class _Formula:
    """An entry of `derive:`, computed once per set of identical operand objects."""

    def __init__(self, expression: Expression, parameter: Parameter):
        self._expression, self._parameter = expression, parameter
        self._names = sorted(expression.names)
        self._computed: dict[tuple[int, ...], tuple[list[Any], Any]] = {}

    def value(self, params: Mapping[str, Any]) -> Any:
        """Return the checked value of the derived parameter."""
        operands = [params[name] for name in self._names]
        key = tuple(map(id, operands))
        if key not in self._computed:
            value = self._expression.evaluate(params)
            try:
                checked = self._parameter.check(value)
            except ParameterError as error:
                raise SweepError(f"derive: {self._parameter.name} = {self._expression.text}: {error}") from None
            self._computed[key] = operands, checked  # operands are stored because ids of freed objects are reused
        return self._computed[key][1]


def _derived_parameters(sweep: SweepSpec, task: Task) -> dict[str, Expression]:
    """Parse the entries of `derive:`, ordered so that each follows the entries that it uses."""
    derived = {}
    for name, value in sweep.derive.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise SweepError(f"derive: {name} is {kind_of(value)}, expected arithmetic as 0.05 / depth (lists: grid)")
        derived[name] = Expression(value)
    for name, expression in derived.items():
        for used in sorted(expression.names - set(task.schema)):
            raise SweepError(
                f"derive: {name} = {expression.text}: {used!r} is not a parameter{nearest(used, task.schema)}. "
                f"{nearest_names(used, task.schema)}."
            )
    needs = {name: expression.names & derived.keys() for name, expression in derived.items()}
    try:
        return {name: derived[name] for name in graphlib.TopologicalSorter(needs).static_order()}
    except graphlib.CycleError as error:
        circle = sorted(set(error.args[1]))
        raise SweepError(f"derive has a cycle: {', '.join(circle)} refer to each other") from None


class Combinations:
    """Combinations of a sweep's axes with its fixed parameters, without seeds."""

    def __init__(self, sweep: SweepSpec, task: Task):
        """Read the axes and check their names and lengths.

        Raises:
            SweepError, ParameterError: An axis is invalid, or a parameter is unknown or set twice.
        """
        self._base = dict(sweep.params)
        outer = _Grid(sweep, "", task, sweep.max_trials)
        self._parts: list[tuple[_Grid, Combination, _Grid | None]] = []
        if not sweep.grids and not (sweep.include and not outer.names):
            self._parts.append((outer, {}, None))
        for number, part in enumerate(sweep.grids):
            where = f"grids[{number}]"
            grid = read_section(
                Grid, {key: value for key, value in part.items() if value is not None}, where, f"{where}."
            )
            check_names(grid.params, f"{where}.params", task)
            inner = _Grid(grid, f"{where}.", task, sweep.max_trials)
            names = inner.names | grid.params.keys()
            _refuse_twice_in(sweep, {"in grid": outer.names, f"in {where}": names})
            self._parts.append((outer, dict(grid.params), inner))
        for number, part in enumerate(sweep.include):
            check_names(part, f"include[{number}]", task)
            _refuse_twice_in(sweep, {f"in include[{number}]": part})
        self._include = sweep.include

    @property
    def count(self) -> int:
        return sum(outer.count * (inner.count if inner else 1) for outer, _, inner in self._parts) + len(self._include)

    def __iter__(self) -> Iterator[Combination]:
        """Yield the combinations. Repeated values are identical objects."""
        for outer, fixed, inner in self._parts:
            for first, second in itertools.product(outer.combinations, inner.combinations if inner else [{}]):
                yield self._base | first | fixed | second
        for part in self._include:
            yield {**self._base, **part}


class _Grid:
    """The axes of a `grid:` and the `zip:` next to it."""

    def __init__(self, spec: SweepSpec | Grid, where: str, task: Task, most: int):
        check_names(spec.grid, where + "grid", task)
        check_names(spec.zip, where + "zip", task)
        refuse_twice({f"in {where}{key}": getattr(spec, key) for key in ("grid", "zip", "params")})
        self._axes = {name: _axis(name, values, where + "grid", most) for name, values in spec.grid.items()}
        self._rows = {name: _axis(name, values, where + "zip", most) for name, values in spec.zip.items()}
        self.names = self._axes.keys() | self._rows.keys()
        lengths = {name: len(values) for name, values in self._rows.items()}
        if len(set(lengths.values())) > 1:
            raise SweepError(f"axes in {where}zip need the same length, but have {lengths}")
        self.count = math.prod(map(len, self._axes.values())) * next(iter(lengths.values()), 1)
        if self.count > most:
            raise SweepError(
                f"{where or 'the '}grid has {counted(self.count)} combinations, at most {most:,} are allowed (max_trials)"
            )

    @cached_property
    def combinations(self) -> list[Combination]:
        axes, rows = self._axes, self._rows
        together = (
            [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)] if rows else [{}]
        )
        return [
            dict(zip(axes, values, strict=True)) | part
            for values in itertools.product(*axes.values())
            for part in together
        ]


def _axis(name: str, values: Any, where: str, most: int) -> Sequence[Any]:
    """Return the values of an axis: a list, or a range like {logspace: [1e-4, 1e-2, 5]}."""
    if isinstance(values, Mapping):
        values = _range(name, values, where, most)
    if not isinstance(values, list | tuple | range):
        raise SweepError(
            f"axis {name!r} in {where} is {kind_of(values)}, expected a list or one of {', '.join(_RANGES)}"
        )
    if not values:
        raise SweepError(f"axis {name!r} in {where} is empty. Give at least one value.")
    return values


def _range(name: str, values: Mapping[str, Any], where: str, most: int) -> Sequence[Any]:
    axis = f"axis {name!r} in {where}"
    if len(values) != 1 or next(iter(values)) not in _RANGES:
        raise SweepError(f"{axis} has the keys {list(values)}, expected one of {', '.join(_RANGES)}")
    ((kind, numbers),) = values.items()
    if not isinstance(numbers, list) or any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
        raise SweepError(f"{axis}: {kind} is {kind_of(numbers)}, expected a list of numbers")
    if kind == "range":
        if not 1 <= len(numbers) <= 3 or any(not isinstance(n, int) for n in numbers) or numbers[2:] == [0]:
            raise SweepError(f"{axis}: range takes ints [stop], [start, stop] or [start, stop, step]")
        first, last, step = [0, *numbers, 1][-3:] if len(numbers) == 1 else [*numbers, 1][:3]
        _check_length(max(0, -((first - last) // step)), axis, most)
        return range(first, last, step)
    if len(numbers) != 3 or not isinstance(numbers[2], int) or numbers[2] < 1:
        raise SweepError(f"{axis}: {kind} is {format_value(numbers)}, expected [first, last, count]")
    if kind == "logspace" and (numbers[0] <= 0 or numbers[1] <= 0):
        raise SweepError(f"{axis}: logspace is {format_value(numbers)}, expected positive ends")
    first, last, count = numbers
    _check_length(count, axis, most)
    points = []
    for index in range(count):
        share = index / (count - 1) if count > 1 else 0.0
        if kind == "logspace":
            point = math.exp(math.log(first) + (math.log(last) - math.log(first)) * share)
        else:
            point = first + (last - first) * share
        points.append(float(f"{point:.12g}"))  # the last bits differ between machines, but identities must not
    return points


def _check_length(length: int, axis: str, most: int) -> None:
    if length > most:
        raise SweepError(f"{axis} has {counted(length)} values, at most {most:,} are allowed (max_trials)")


def seed_values(seeds: Any, where: str, task: Task, most: int) -> list[int | None]:
    """Return the seeds specified by a count, a list or None (the task's default).

    Raises:
        SweepError: The value is something else, or the task has no seed.
    """
    if seeds is None:
        return [None]
    if "seed" not in task.schema:
        raise SweepError(f"{where} is given, but task {task.name!r} has no parameter 'seed'")
    is_count = isinstance(seeds, int) and not isinstance(seeds, bool) and 1 <= seeds <= most
    is_list = isinstance(seeds, list) and seeds and all(isinstance(s, int) and not isinstance(s, bool) for s in seeds)
    if not is_count and not is_list:
        raise SweepError(f"{where} is {format_value(seeds)}, expected a count from 1 to {most:,} or a list of ints")
    return list(range(seeds)) if is_count else list(seeds)


def with_seed(combination: Combination, seed: int | None) -> Combination:
    """Add a seed. None leaves the task's default."""
    return combination if seed is None else {**combination, "seed": seed}


def check_names(names: Iterable[str], where: str, task: Task) -> None:
    """Check that the task has these parameters.

    Raises:
        ParameterError: A name is unknown. The message names the place and the nearest parameter.
    """
    for name in names:
        if name in SweepSpec.__struct_fields__ and name not in task.schema:
            key = f"{name!r} in {where} is a key of the sweep, not a parameter"
            raise ParameterError(f"{key}: move it next to params, `{name}: ...`")
        task.schema.require_known(name, where)


def _refuse_twice_in(sweep: SweepSpec, places: Mapping[str, Collection[str]]) -> None:
    """Check that no parameter is set in two of these places, or in one of them and also for the whole sweep."""
    refuse_twice({"in derive": sweep.derive, **places, "by seeds": () if sweep.seeds is None else ("seed",)})


def refuse_twice(places: Mapping[str, Collection[str]]) -> None:
    """Check that no parameter is set in two places (named like `in grid`).

    Raises:
        SweepError: A parameter is set twice.
    """
    for (first_place, first), (second_place, second) in itertools.combinations(places.items(), 2):
        for name in first:
            if name in second:
                raise SweepError(f"parameter {name!r} is set {first_place} and {second_place}. Keep one.")
