"""From a sweep to its trials: defaults, derived parameters, what is excluded, and the task's checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from depthrate.sweeps.axes import Combination, Combinations, check_names, refuse_twice, seed_values, with_seed
from depthrate.sweeps.content import kind_of
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.expression import Expression, ExpressionError
from depthrate.sweeps.limits import check_count
from depthrate.sweeps.trial import Trial, TrialMaker
from depthrate.tasks.schema import Filler, Parameter, ParameterError, nearest
from depthrate.tasks.task import Task

if TYPE_CHECKING:
    from depthrate.sweeps.sweep import Sweep


def expand(sweep: Sweep, task: Task) -> list[Trial]:
    """Return the sweep's trials in the order of its axes, each once.

    Raises:
        SweepError: see `Sweep.expand`.
    """
    if sweep.search is not None:
        return []
    try:
        return _expand(sweep, task)
    except (ParameterError, ExpressionError) as error:
        raise SweepError(str(error)) from None


def _expand(sweep: Sweep, task: Task) -> list[Trial]:
    builder = TrialBuilder(sweep, task)
    trials: dict[str, Trial] = {}
    for given in _given(sweep, task, builder):
        trial = builder.build(given)
        if trial is not None:
            trials.setdefault(trial.trial_id, trial)
    if not trials:
        raise SweepError("the sweep has no trials: exclude drops every combination")
    return list(trials.values())


def _given(sweep: Sweep, task: Task, builder: TrialBuilder) -> Iterator[Combination]:
    """Yield what the sweep says of each trial; the values it repeats are the very same objects."""
    combinations = Combinations(sweep, task)
    check_count(combinations.count * len(builder.seeds), sweep.max_trials)
    for shared in combinations:
        for seed in builder.seeds:
            yield with_seed(shared, seed)


class TrialBuilder:
    """Makes a sweep's trials from what it says of each: defaults, derived parameters, and the task's checks."""

    def __init__(self, sweep: Sweep, task: Task):
        """Check what all trials share.

        Raises:
            SweepError, ParameterError, ExpressionError: a name is unknown, or a derived parameter cannot be formed.
        """
        check_names(sweep.params, "params", task)
        self.seeds = _seeds(sweep, task)
        derived = {name: Expression(_arithmetic(value, name)) for name, value in sweep.derive.items()}
        _check_derived(derived, sweep, task)
        self.derived = {name: derived[name] for name in _derivation_order(derived)}
        self._task = task
        self._filters = [_checked_filter(part, task) for part in sweep.exclude]
        self._filler = Filler(task.schema, later=self.derived.keys())
        self._formulas = {name: _Formula(expression, task.schema[name]) for name, expression in self.derived.items()}
        self._maker = TrialMaker(task.name, task.version, task.schema, added=task.schema.added)

    def build(self, given: Combination) -> Trial | None:
        """Return the trial with these parameters, or None if the sweep excludes it.

        Raises:
            SweepError, ParameterError, ExpressionError: there cannot be such a trial.
        """
        params = self._filler.fill(given)
        for name, formula in self._formulas.items():
            params[name] = formula.value(params)
        if any(all(params[name] == value for name, value in part.items()) for part in self._filters):
            return None
        self._task.complete(params)
        self._task.check_trial(params)
        return self._maker.make(params)


class _Formula:
    """An entry of `derive:`, computed once for the very same operands, which a grid repeats in many trials."""

    def __init__(self, expression: Expression, parameter: Parameter):
        self._expression, self._parameter = expression, parameter
        self._names = sorted(expression.names)
        self._known: dict[tuple[int, ...], tuple[list[Any], Any]] = {}

    def value(self, params: Mapping[str, Any]) -> Any:
        """Return the derived parameter's value, checked."""
        operands = [params[name] for name in self._names]
        key = tuple(map(id, operands))
        if key not in self._known:
            self._known[key] = operands, self._computed(params)  # kept: a freed operand's id is used again
        return self._known[key][1]

    def _computed(self, params: Mapping[str, Any]) -> Any:
        value = self._expression.evaluate(params)
        try:
            return self._parameter.check(value)
        except ParameterError as error:
            raise SweepError(f"derive: {self._parameter.name} = {self._expression.text}: {error}") from None


def _derivation_order(derived: dict[str, Expression]) -> list[str]:
    order: list[str] = []
    while len(order) < len(derived):
        ready = [n for n in derived if n not in order and not (derived[n].names & derived.keys()) - set(order)]
        if not ready:
            circle = sorted(set(derived) - set(order))
            raise SweepError(f"derive goes in a circle: {', '.join(circle)} refer to each other")
        order += ready
    return order


def _check_derived(derived: dict[str, Expression], sweep: Sweep, task: Task) -> None:
    check_names(derived, "derive", task)
    for place, taken in (("params", sweep.params), ("grid", sweep.grid), ("zip", sweep.zip)):
        refuse_twice(derived, taken, "derive", place)
    if sweep.seeds is not None and "seed" in derived:
        raise SweepError("'seed' is given in derive and by seeds; keep one")
    for name, expression in derived.items():
        for used in sorted(expression.names - set(task.schema)):
            raise SweepError(
                f"derive: {name} = {expression.text}: {used!r} is not a parameter{nearest(used, task.schema)} "
                f"(known: {', '.join(task.schema)})"
            )


def _arithmetic(value: Any, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise SweepError(f"derive: {name} is {kind_of(value)}; give arithmetic such as 0.05 / depth")
    return str(value)


def _seeds(sweep: Sweep, task: Task) -> list[int | None]:
    if sweep.seeds is None:
        return [None]
    if "seed" not in task.schema:
        raise SweepError(f"seeds is given, but task {task.name!r} has no parameter 'seed'")
    for place, taken in (("params", sweep.params), ("grid", sweep.grid), ("zip", sweep.zip)):
        if "seed" in taken:
            raise SweepError(f"'seed' is given in {place} and by seeds; keep one")
    return seed_values(sweep.seeds, "seeds", sweep.max_trials)


def _checked_filter(part: Mapping[str, Any], task: Task) -> Combination:
    check_names(part, "exclude", task)
    return {name: task.schema[name].check(value) for name, value in part.items()}
