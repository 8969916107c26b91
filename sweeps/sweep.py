"""A sweep: its file, its checks, and its expansion into trials."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import runpy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from depthrate.sweeps.expression import Expression, ExpressionError
from depthrate.sweeps.search_space import Search, SearchError, search_of_spec
from depthrate.sweeps.trial import Trial, TrialMaker, canonical_json
from depthrate.tasks.loading import absolute_task_name, load_task
from depthrate.tasks.measurement import scalars
from depthrate.tasks.schema import Filler, Parameter, ParameterError, nearest
from depthrate.tasks.task import Task

SHIPPED = Path(__file__).parent
MAX_TRIALS = 1_000_000
_KEYS = ("name", "task", "params", "grid", "zip", "grids", "include", "exclude", "derive", "seeds", "search", "fit")
_GRID_KEYS = ("params", "grid", "zip")
_OVERRIDDEN = ("params", "grid", "zip", "grids", "include", "derive")
"""Where --set takes out what the file says of a parameter."""
_FIT_OPTIONS = ("layer", "where", "weights", "x_min", "unconverged", "target")
_FIT_WORDS = {"weights": ("equal", "spread", "robust"), "unconverged": ("keep", "drop")}
_RANGES = ("range", "linspace", "logspace")

Combination = dict[str, Any]


class SweepError(ValueError):
    """A sweep is not understood or cannot run; the message names the place in the sweep file."""


@dataclass(frozen=True)
class FitRequest:
    """A rate to fit: `metric` against `x`, one curve for each combination of `by`."""

    metric: str
    x: str = "depth"
    by: tuple[str, ...] = ()
    layer: int | None = None
    """Null for the last; -2 is the one before it."""
    where: str | None = None
    """SQL over the trial's row in `results`: which trials the curve is made of."""
    weights: str = "equal"
    """equal, spread (the variance may follow a power of x), robust (values far from their seeds are pulled in)."""
    x_min: float | str | None = None
    """The lower cut-off: a number, or auto (the smallest x that passes the lack-of-fit test at 5 %)."""
    unconverged: str = "keep"
    """keep (and count) or drop trials whose objective still falls."""
    target: float | None = None
    """A value of the metric: at which x is it reached?"""

    def spec(self) -> dict[str, Any]:
        """Return the request as a sweep file would hold it: what differs from the defaults."""
        extra = {name: getattr(self, name) for name in _FIT_OPTIONS}
        defaults = {name: getattr(FitRequest, name) for name in _FIT_OPTIONS}
        content = {"metric": self.metric, "x": self.x, "by": list(self.by)}
        return content | {name: value for name, value in extra.items() if value != defaults[name]}


@dataclass(frozen=True)
class Sweep:
    """A named set of trials, as written in a sweep file."""

    name: str
    task: str
    params: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Any] = field(default_factory=dict)
    zip: Mapping[str, Any] = field(default_factory=dict)
    grids: tuple[Mapping[str, Any], ...] = ()
    include: tuple[Mapping[str, Any], ...] = ()
    exclude: tuple[Mapping[str, Any], ...] = ()
    derive: Mapping[str, Any] = field(default_factory=dict)
    seeds: Any = None
    """A count n for seeds 0..n-1, a list of seeds, or null for the task's default."""
    search: Search | None = None
    """One study for each combination of the above."""
    fit: tuple[FitRequest, ...] = ()

    def spec(self) -> dict[str, Any]:
        """Return the sweep as the mapping a file would hold."""
        content: dict[str, Any] = {"name": self.name, "task": self.task}
        for key in ("params", "grid", "zip", "derive"):
            content[key] = dict(getattr(self, key))
        for key in ("grids", "include", "exclude"):
            content[key] = [dict(part) for part in getattr(self, key)]
        content["search"] = None if self.search is None else self.search.spec()
        content["fit"] = [request.spec() for request in self.fit]
        return {key: value for key, value in content.items() if value} | (
            {} if self.seeds is None else {"seeds": self.seeds}
        )

    def spec_hash(self) -> str:
        """Return the first 16 hex digits of sha256 over the canonical spec."""
        return hashlib.sha256(canonical_json(self.spec()).encode()).hexdigest()[:16]

    def load_task(self) -> Task:
        """Load the task this sweep names."""
        return load_task(self.task)

    def expand(self, task: Task | None = None) -> list[Trial]:
        """Return the trials, each once, checked against the task's schema; none for a search, whose trials come as it goes.

        Raises:
            SweepError: a parameter is unknown, of the wrong type, given twice, or a derived value cannot be formed.
        """
        return expand(self, task or self.load_task())


def parse_yaml(text: str) -> Any:
    """Read YAML the way sweep files are read.

    Raises:
        SweepError: the text is not YAML, or a key stands twice.
    """
    from depthrate.sweeps.strict_yaml import (
        read_yaml,  # here: half of this module's start-up, and most commands read no YAML
    )

    return read_yaml(text)


def find_sweep_file(given: str) -> Path:
    """Return the sweep file: a path, or the name of one that comes with depthrate.

    Raises:
        SweepError: there is no such file; the message lists the shipped ones.
    """
    path = Path(given)
    if path.is_file():
        return path
    shipped = {file.relative_to(SHIPPED).with_suffix("").as_posix(): file for file in SHIPPED.rglob("*.yaml")}
    if given in shipped:
        return shipped[given]
    if path.is_dir():
        raise SweepError(f"{given} is a folder; give a sweep file in it")
    raise SweepError(
        f"sweep file {given!r} does not exist (looked in {Path.cwd()}){nearest(given, shipped)}; "
        f"shipped sweeps: {', '.join(sorted(shipped))}"
    )


def load_sweep(given: str, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """Read a sweep file, or call `file.py:function` for a Sweep, and apply `--set` overrides.

    Raises:
        SweepError: the file is missing, is not YAML, or does not describe a sweep.
    """
    path_text, _, function = given.partition(".py:")
    path = find_sweep_file(path_text + ".py" if function else given)
    try:
        content = _spec_of_function(path, function) if function else parse_yaml(path.read_text(encoding="utf-8"))
        return sweep_of_spec(_override(content, overrides or {}), folder=path.parent)
    except (SweepError, UnicodeDecodeError) as error:
        raise SweepError(f"{path}: {error}") from None


def _spec_of_function(path: Path, name: str) -> dict[str, Any]:
    """Call a function in a Python file that returns a Sweep, and return its spec."""
    try:
        function = runpy.run_path(str(path)).get(name)
        made = function() if callable(function) else None
    except SweepError:
        raise
    except Exception as error:
        raise SweepError(f"{type(error).__name__}: {error}") from error
    if not isinstance(made, Sweep):
        raise SweepError(f"{name!r} is not a function that returns a depthrate.Sweep")
    return made.spec()


def sweep_of_spec(content: Any, folder: Path | None = None) -> Sweep:
    """Build a sweep from the mapping a sweep file holds; a task file is looked up in `folder`.

    Raises:
        SweepError: a key is unknown or has the wrong form.
    """
    if not isinstance(content, Mapping):
        raise SweepError(f"a sweep is a mapping with the keys {', '.join(_KEYS)}; this is {_kind(content)}")
    _require_keys(content, _KEYS, "the sweep")
    for key in ("name", "task"):
        if not isinstance(content.get(key), str):
            raise SweepError(f"key {key!r} is {_kind(content.get(key))}; a sweep needs a text there")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", content["name"]):
        raise SweepError(
            f"name {content['name']!r} cannot name a folder; allowed: letters, digits, '_', '-', '.', at most 100"
        )
    return Sweep(
        name=content["name"],
        task=absolute_task_name(content["task"], folder or Path.cwd()),
        params=_mapping(content.get("params"), "params"),
        grid=_mapping(content.get("grid"), "grid"),
        zip=_mapping(content.get("zip"), "zip"),
        grids=_mappings(content.get("grids"), "grids"),
        include=_mappings(content.get("include"), "include"),
        exclude=_mappings(content.get("exclude"), "exclude"),
        derive=_mapping(content.get("derive"), "derive"),
        seeds=content.get("seeds"),
        search=_search(content.get("search")),
        fit=tuple(fit_request(part) for part in _mappings(content.get("fit"), "fit")),
    )


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


def check_fits(sweep: Sweep, task: Task) -> None:
    """Check that what `fit:` asks for can exist.

    Raises:
        SweepError: an unknown parameter or metric, with the nearest known one.
    """
    for request in sweep.fit:
        known = sorted(scalars(task.measurements))  # a task that declares none may measure anything
        if known and request.metric not in known:
            raise SweepError(
                f"unknown metric {request.metric!r} in fit{nearest(request.metric, known)} (known: {', '.join(known)})"
            )
        for name in (request.x, *request.by):
            try:
                parameter = task.schema.require_known(name, "fit")
            except ParameterError as error:
                raise SweepError(str(error)) from None
            if name == request.x and parameter.kind not in ("int", "float"):
                raise SweepError(f"fit over x: {name!r}, which is {parameter.allowed}; x must be a number")


class TrialBuilder:
    """Makes a sweep's trials from what it says of each: defaults, derived parameters, and the task's checks."""

    def __init__(self, sweep: Sweep, task: Task):
        """Check what all trials share.

        Raises:
            SweepError, ParameterError, ExpressionError: a name is unknown, or a derived parameter cannot be formed.
        """
        _check_names(sweep.params, "params", task)
        self.seeds = _seeds(sweep.seeds, task, sweep)
        derived = {name: Expression(_arithmetic(value, name)) for name, value in sweep.derive.items()}
        _check_derived(derived, sweep, task)
        self.derived = {name: derived[name] for name in _derivation_order(derived)}
        self._task = task
        self._filters = [_checked_filter(part, task) for part in sweep.exclude]
        self._filler = Filler(task.schema, later=self.derived.keys())
        self._formulas = {name: _Formula(expression, task.schema[name]) for name, expression in self.derived.items()}
        self._maker = TrialMaker(task.name, task.version, task.schema)

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
        self._task.check_trial(params)
        return self._maker.make(params)


def _expand(sweep: Sweep, task: Task) -> list[Trial]:
    builder = TrialBuilder(sweep, task)
    trials: dict[str, Trial] = {}
    for given in _given(sweep, task, builder):
        trial = builder.build(given)
        if trial is None:
            continue
        trials.setdefault(trial.trial_id, trial)
        if len(trials) > MAX_TRIALS:
            raise SweepError(f"more than {MAX_TRIALS:,} trials; split the sweep")
    if not trials:
        raise SweepError("the sweep has no trials: exclude drops every combination")
    return list(trials.values())


def _given(sweep: Sweep, task: Task, builder: TrialBuilder) -> Iterator[Combination]:
    """Yield what the sweep says of each trial; the values it repeats are the very same objects."""
    for shared in combinations(sweep, task, builder):
        for seed in builder.seeds:
            yield with_seed(shared, seed)


def combinations(sweep: Sweep, task: Task, builder: TrialBuilder) -> Iterator[Combination]:
    """Yield the fixed parameters with each combination of the axes, without seeds.

    Raises:
        SweepError, ParameterError: an axis is not understood, or a parameter is given twice.
    """
    base = dict(sweep.params)
    for combination in _combinations(sweep, task):
        _refuse_twice(builder.derived, combination, "derive", "grids or include")
        if sweep.seeds is not None:
            _refuse_twice({"seed": builder.seeds}, combination, "seeds", "grids or include")
        yield base | combination


def with_seed(given: Combination, seed: int | None) -> Combination:
    """Return the parameters with a seed, or as they are for the task's default."""
    return given if seed is None else {**given, "seed": seed}


def _combinations(sweep: Sweep, task: Task) -> Iterator[Combination]:
    outer = _grid_combinations(sweep.grid, sweep.zip, dict(sweep.params), "", task)
    if not sweep.grids and not (sweep.include and outer == [{}]):
        yield from outer
    for number, part in enumerate(sweep.grids):
        where = f"grids[{number}]."
        _require_keys(part, _GRID_KEYS, f"grids[{number}]")
        own = _mapping(part.get("params"), where + "params")
        _check_names(own, where + "params", task)
        inner = _grid_combinations(
            _mapping(part.get("grid"), where + "grid"), _mapping(part.get("zip"), where + "zip"), own, where, task
        )
        for first, second in itertools.product(outer, inner):
            _refuse_twice(first, second | own, "grid", f"grids[{number}]")
            yield first | own | second
    for number, part in enumerate(sweep.include):
        _check_names(part, f"include[{number}]", task)
        yield dict(part)


def _grid_combinations(
    grid: Mapping[str, Any], zipped: Mapping[str, Any], fixed: Combination, where: str, task: Task
) -> list[Combination]:
    _check_names(grid, where + "grid", task)
    _check_names(zipped, where + "zip", task)
    _refuse_twice(grid, fixed, where + "grid", where + "params")
    _refuse_twice(zipped, fixed, where + "zip", where + "params")
    _refuse_twice(grid, zipped, where + "grid", where + "zip")
    axes = {name: _axis(name, values, where + "grid") for name, values in grid.items()}
    rows = {name: _axis(name, values, where + "zip") for name, values in zipped.items()}
    lengths = {name: len(values) for name, values in rows.items()}
    if len(set(lengths.values())) > 1:
        raise SweepError(f"axes in {where}zip move together and need one length; given: {lengths}")
    count = math.prod(len(values) for values in axes.values()) * (next(iter(lengths.values()), 1))
    if count > MAX_TRIALS:
        raise SweepError(f"{where or 'the '}grid has {count:,} combinations; at most {MAX_TRIALS:,} are allowed")
    together = [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)] if rows else [{}]
    return [
        dict(zip(axes, values, strict=True)) | part for values in itertools.product(*axes.values()) for part in together
    ]


def _axis(name: str, values: Any, where: str) -> list[Any]:
    """Return an axis's values: a list, or a range such as {logspace: [1e-4, 1e-2, 5]}."""
    if isinstance(values, Mapping):
        values = _range_values(name, values, where)
    if not isinstance(values, list | tuple):
        raise SweepError(f"axis {name!r} in {where} is {_kind(values)}; give a list or one of {', '.join(_RANGES)}")
    if not values:
        raise SweepError(f"axis {name!r} in {where} is empty; give at least one value")
    return list(values)


def _range_values(name: str, values: Mapping[str, Any], where: str) -> list[Any]:
    if len(values) != 1 or next(iter(values)) not in _RANGES:
        raise SweepError(f"axis {name!r} in {where} has the keys {list(values)}; give one of {', '.join(_RANGES)}")
    ((kind, numbers),) = values.items()
    if not isinstance(numbers, list) or any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
        raise SweepError(f"axis {name!r} in {where}: {kind} is {_kind(numbers)}; it takes a list of numbers")
    if kind == "range":
        if not 1 <= len(numbers) <= 3 or any(not isinstance(n, int) for n in numbers) or numbers[2:] == [0]:
            raise SweepError(
                f"axis {name!r} in {where}: range takes whole numbers [stop], [start, stop] or [start, stop, step]"
            )
        return list(_bounded(range(*numbers), name, where))
    if len(numbers) != 3 or not isinstance(numbers[2], int) or numbers[2] < 1:
        raise SweepError(f"axis {name!r} in {where}: {kind} takes [first, last, count]; given {numbers}")
    first, last, count = numbers
    if kind == "logspace" and (first <= 0 or last <= 0):
        raise SweepError(f"axis {name!r} in {where}: logspace needs positive ends; given {numbers}")
    shares = [index / (count - 1) if count > 1 else 0.0 for index in _bounded(range(count), name, where)]
    if kind == "linspace":
        points = [first + (last - first) * share for share in shares]
    else:
        points = [math.exp(math.log(first) + (math.log(last) - math.log(first)) * share) for share in shares]
    return [float(f"{point:.12g}") for point in points]  # the last bits differ between machines; identities must not


def _bounded(values: range, name: str, where: str) -> range:
    if len(values) > MAX_TRIALS:
        raise SweepError(f"axis {name!r} in {where} has {len(values):,} values; at most {MAX_TRIALS:,} are allowed")
    return values


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
    _check_names(derived, "derive", task)
    for place, taken in (("params", sweep.params), ("grid", sweep.grid), ("zip", sweep.zip)):
        _refuse_twice(derived, taken, "derive", place)
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
        raise SweepError(f"derive: {name} is {_kind(value)}; give arithmetic such as 0.05 / depth")
    return str(value)


def _seeds(seeds: Any, task: Task, sweep: Sweep) -> list[int | None]:
    if seeds is None:
        return [None]
    if "seed" not in task.schema:
        raise SweepError(f"seeds is given, but task {task.name!r} has no parameter 'seed'")
    for place, taken in (("params", sweep.params), ("grid", sweep.grid), ("zip", sweep.zip)):
        if "seed" in taken:
            raise SweepError(f"'seed' is given in {place} and by seeds; keep one")
    return seed_values(seeds, "seeds")


def seed_values(seeds: Any, where: str) -> list[int | None]:
    """Return the seeds that a count, a list or null stands for; None is the task's default.

    Raises:
        SweepError: it is none of these.
    """
    if seeds is None:
        return [None]
    is_count = isinstance(seeds, int) and not isinstance(seeds, bool) and 1 <= seeds <= MAX_TRIALS
    is_list = isinstance(seeds, list) and seeds and all(isinstance(s, int) and not isinstance(s, bool) for s in seeds)
    if not is_count and not is_list:
        raise SweepError(f"{where} is {seeds!r}; give a count from 1 to {MAX_TRIALS:,}, or a list of whole numbers")
    return list(range(seeds)) if is_count else list(seeds)


def _checked_filter(part: Mapping[str, Any], task: Task) -> Combination:
    _check_names(part, "exclude", task)
    return {name: task.schema[name].check(value) for name, value in part.items()}


def _check_names(given: Mapping[str, Any], where: str, task: Task) -> None:
    for name in given:
        task.schema.require_known(name, where)


def _refuse_twice(first: Mapping[str, Any], second: Mapping[str, Any], first_place: str, second_place: str) -> None:
    twice = [name for name in first if name in second]
    if twice:
        raise SweepError(f"parameter {twice[0]!r} is given in {first_place} and in {second_place}; keep one")


def _search(content: Any) -> Search | None:
    try:
        return search_of_spec(content)
    except SearchError as error:
        raise SweepError(str(error)) from None


def fit_request(part: Mapping[str, Any]) -> FitRequest:
    """Build a request from an entry of `fit:`.

    Raises:
        SweepError: a key is unknown or has the wrong form.
    """
    _require_keys(part, ("metric", "x", "by", *_FIT_OPTIONS), "fit")
    by = part.get("by", [])
    if not isinstance(part.get("metric"), str) or not isinstance(part.get("x", "depth"), str):
        raise SweepError(f"fit entry {dict(part)}: metric and x are names, as in {{metric: nc1, x: depth}}")
    if not isinstance(by, list) or not all(isinstance(name, str) for name in by):
        raise SweepError(f"fit entry {dict(part)}: by is a list of parameter names")
    options = {name: part[name] for name in _FIT_OPTIONS if part.get(name) is not None}
    for name, value in options.items():
        if not _is_fit_option(name, value):
            raise SweepError(f"fit entry {dict(part)}: {name} is {_kind(value)}; allowed: {_FIT_ALLOWED[name]}")
    return FitRequest(part["metric"], part.get("x", "depth"), tuple(by), **options)


_FIT_ALLOWED = {
    "layer": "a whole number, counted from the last where it is negative",
    "where": "an SQL condition, as in 'weight_decay > 0'",
    "weights": ", ".join(_FIT_WORDS["weights"]),
    "x_min": "a number above zero, or auto",
    "unconverged": ", ".join(_FIT_WORDS["unconverged"]),
    "target": "a number above zero",
}


def _is_fit_option(name: str, value: Any) -> bool:
    if name in _FIT_WORDS:
        return value in _FIT_WORDS[name]
    if name == "where":
        return isinstance(value, str)
    if isinstance(value, bool):
        return False
    if name == "layer":
        return isinstance(value, int)
    return (name == "x_min" and value == "auto") or (isinstance(value, int | float) and 0 < value < math.inf)


def _override(content: Any, overrides: Mapping[str, Any]) -> Any:
    """Apply --set: a list becomes an axis of the grid, anything else a fixed parameter; it replaces what the file says."""
    if not overrides or not isinstance(content, Mapping):
        return content
    content = {key: dict(value) if isinstance(value, Mapping) else value for key, value in content.items()}
    for name, value in overrides.items():
        if name in ("name", "seeds"):
            content[name] = value
            continue
        key = name.removeprefix("search.")
        if key != name and isinstance(content.get("search"), Mapping):
            content["search"] = {**content["search"], key: value}
            continue
        content = {key: _without(name, part) if key in _OVERRIDDEN else part for key, part in content.items()}
        if isinstance(content.get("search"), Mapping):
            content["search"] = {**content["search"], "params": _without(name, content["search"].get("params"))}
        place = "grid" if isinstance(value, list | Mapping) else "params"
        if isinstance(content.get(place) or {}, Mapping):
            content[place] = {**(content.get(place) or {}), name: value}
    return content


def _without(name: str, part: Any) -> Any:
    """Return a part of a sweep file without what it says of one parameter, at any depth."""
    if isinstance(part, Mapping):
        return {key: _without(name, value) for key, value in part.items() if key != name}
    return [_without(name, value) for value in part] if isinstance(part, list) else part


def _require_keys(content: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    for key in content:
        if key not in allowed:
            raise SweepError(f"unknown key {key!r} in {where}{nearest(key, allowed)} (known: {', '.join(allowed)})")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SweepError(f"{where} is {_kind(value)}; give a mapping from parameter to value")
    return dict(value)


def _mappings(value: Any, where: str) -> tuple[dict[str, Any], ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(part, Mapping) for part in value):
        raise SweepError(f"{where} is {_kind(value)}; give a list of mappings")
    return tuple(dict(part) for part in value)


def _kind(value: Any) -> str:
    names: dict[type, str] = {
        dict: "a mapping",
        list: "a list",
        str: f"the text {str(value)[:60]!r}",
        bool: "a truth value",
    }
    if value is None:
        return "missing"
    return names.get(type(value), f"the value {value!r}")
