"""The spec of a sweep, as a file or the store holds it: its typed parts, and the checks of what they ask of a task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta
from msgspec.structs import force_setattr

from depthrate.sweeps.errors import MAX_TRIALS, SweepError, counted, kind_of, require_keys
from depthrate.sweeps.expression import Expression, ExpressionError
from depthrate.sweeps.part import SpecSection
from depthrate.sweeps.trial import canonical_json
from depthrate.tasks.interface import Engine, Task
from depthrate.tasks.loading import load_task
from depthrate.tasks.metric import scalars
from depthrate.tasks.parameters import LARGEST, ParameterError, format_names, format_value, nearest
from depthrate.tasks.supervised.references import find_references

NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"
Whole = Annotated[int, Meta(ge=1)]
Positive = Annotated[int, Meta(gt=0)] | Annotated[float, Meta(gt=0, le=LARGEST)]
Values = Mapping[str, Any]
Axes = Annotated[Values, Meta(extra_json_schema={"additionalProperties": {"type": ["array", "object"]}})]
Direction = Literal["minimize", "maximize"]
if TYPE_CHECKING:
    Texts = tuple[str, ...]
    Directions = tuple[Direction, ...]
else:  # a single one may be given without brackets; it is kept as a tuple
    # without limits on lengths or letters: msgspec 0.22 ends the process when it frees a type that has both
    Texts = str | tuple[str, ...]
    Directions = Direction | tuple[Direction, ...]

_SEEDS: dict[str, Any] = {
    "anyOf": [{"type": "integer", "minimum": 1}, {"type": "array", "items": {"type": "integer"}}, {"type": "null"}]
}
_SEARCHED: dict[str, Any] = {
    "additionalProperties": {"anyOf": [{"type": "array"}, {"$ref": "#/$defs/SearchedParameter"}]}
}
_ANY_LAYER = "allowed: a whole number, counted from the last where it is negative"


class Prune(SpecSection, frozen=True):
    """When a trial that does badly leaves its pack."""

    ALWAYS = ("rule", "metric", "from_step", "startup", "factor")
    ALLOWED = {"metric": "search.prune needs metric: what trials are compared by while they train, as in metric: loss"}
    rule: Literal["median", "halving", "asha"] = "median"
    """median: worse than the median of earlier trials; halving: not among the best 1/factor of them at its rungs; asha: the
    same, but compared with all trials that have been there, also those that run at the same time."""
    metric: str = ""
    """A number the task reports while it trains (collapse: loss, objective, objective_gap, accuracy, grad_norm)."""
    from_step: Whole = 1
    """No trial is pruned before; the first rung of halving, the others are this times factor, factor^2, ..."""
    startup: Whole = 5
    """Earlier trials that must have reached a step before anybody is pruned there; nothing to asha."""
    factor: Annotated[int, Meta(ge=2)] = 3
    """Of halving and asha: one in so many goes on at a rung."""

    def __post_init__(self) -> None:
        """Check that trials are compared by something.

        Raises:
            SweepError: they are not.
        """
        if not self.metric:
            raise SweepError(self.ALLOWED["metric"])


class FinalRuns(SpecSection, frozen=True):
    """What is run at the best proposal of each study."""

    ALWAYS = ("params",)
    params: Values = {}
    """Other than in the search."""
    seeds: Annotated[Any, Meta(extra_json_schema=_SEEDS)] = None
    """As in a sweep: a count, a list, or null for the task's default."""


class Search(SpecSection, frozen=True):
    """A search over parameters; in a grid, one study for each combination."""

    ALWAYS = ("params", "objective", "direction", "sampler", "trials", "batch", "seed")
    ALLOWED = {
        "params": "search needs params, the parameters to search, as in {lr: {low: 1e-3, high: 1, log: true}}",
        "objective": "search needs an objective, SQL over a trial's row in results, as in objective: nc1; give a text, or a "
        "list of texts",
    }
    params: Annotated[Values, Meta(min_length=1, extra_json_schema=_SEARCHED)]
    """The parameters to search, each a list of values or a range."""
    objective: Texts
    """SQL over a trial's row in `results`; its mean over the seeds of a proposal counts."""
    direction: Directions = ("minimize",)
    """One for each objective, or one for all."""
    sampler: Literal["tpe", "random", "qmc", "cmaes", "grid"] = "tpe"
    """How proposals are made."""
    trials: Whole = 40
    """Proposals of a study; each is as many trials as the sweep has seeds."""
    batch: Whole = 8
    """Proposals made at once, knowing the results of all before them; they train fused where their shape allows it."""
    seed: Annotated[int, Meta(ge=0)] = 0
    """Of the sampler."""
    prune: Prune | None = None
    """When a trial that does badly leaves its pack."""
    measure: FinalRuns | None = None
    """What is run at the best proposal of each study."""

    def __post_init__(self) -> None:
        """Give each objective a direction, and check what goes together.

        Raises:
            SweepError: numbers of objectives and directions differ, or something asked for takes a single objective.
        """
        objectives, directions = (
            (given,) if isinstance(given, str) else tuple(given) for given in (self.objective, self.direction)
        )
        if not objectives or not all(text.strip() for text in objectives):
            raise SweepError(f"search.objective is {format_value(list(objectives))}; {self.ALLOWED['objective']}")
        if not directions:
            raise SweepError(
                f"search.direction is {format_value(list(directions))}; give one for each objective, or one for all"
            )
        directions *= len(objectives) if len(directions) == 1 else 1
        force_setattr(self, "objective", objectives)
        force_setattr(self, "direction", directions)
        if len(directions) != len(objectives):
            raise SweepError(
                f"search has {len(objectives)} objectives and {len(directions)} directions; give one for each"
            )
        for key in ("measure", "prune"):
            if getattr(self, key) is not None and len(objectives) > 1:
                raise SweepError(f"search.{key} needs one objective, since several have no single best; {key} is given")
        if self.sampler == "cmaes" and len(objectives) > 1:
            raise SweepError("search.sampler cmaes takes one objective; several are for tpe, random, qmc and grid")
        _check_most("search.batch", self.batch, MAX_TRIALS)

    def definition(self) -> dict[str, Any]:
        """Return what decides the proposals: more trials go on with the same study."""
        return {key: value for key, value in self.spec().items() if key not in ("trials", "measure")}


def _check_most(name: str, count: int, most: int) -> None:
    if count > most:
        raise SweepError(f"{name} is {counted(count)}; at most {most:,} are allowed (max_trials)")


class FitRequest(SpecSection, frozen=True):
    """A rate to fit: `metric` against `x`, one curve for each combination of `by`."""

    SEED: ClassVar[str] = "seed"
    ALWAYS = ("metric", "x", "by")
    ALLOWED = {
        "metric": "metric is a name and x a name or arithmetic, as in {metric: nc1, x: depth - 1}",
        "x": "metric is a name and x a name or arithmetic, as in {metric: nc1, x: depth - 1}",
        "by": "by is a list of parameter names",
        "layer": _ANY_LAYER,
        "where": "allowed: an SQL condition, as in 'weight_decay > 0'",
        "x_min": "allowed: a number above zero, or auto",
        "target": "allowed: a number above zero",
        "over": "allowed: a parameter's name",
    }
    metric: str
    """A measured column."""
    x: str = "depth"
    """A parameter, or arithmetic over parameters: `depth - 1`."""
    by: tuple[str, ...] = ()
    """Parameters; each combination of their values is a curve."""
    layer: int | None = None
    """Null for the last; -2 is the one before it."""
    where: str | None = None
    """SQL over the trial's row in `results`: which trials the curve is made of."""
    weights: Literal["equal", "spread", "robust"] = "equal"
    """equal, spread (the variance may follow a power of x), robust (values far from their seeds are pulled in)."""
    x_min: Positive | Literal["auto"] | None = None
    """The lower cut-off: a number, or auto (the smallest x that passes the lack-of-fit test at 5 %)."""
    unconverged: Literal["keep", "drop"] = "keep"
    """keep (and count) or drop trials whose objective still falls."""
    target: Positive | None = None
    """A value of the metric: at which x is it reached?"""
    over: str = SEED
    """The parameter whose values are the replicates that intervals are over: trials with one value of it belong together."""

    @property
    def x_names(self) -> list[str]:
        """The parameters that x is made of."""
        return sorted(Expression(self.x).names)

    @property
    def options(self) -> list[str]:
        """Which trials and how, in words, where that is not as by default: fits that differ in it alone are told apart."""
        said = {
            f"where {self.where}": bool(self.where),
            f"weights {self.weights}": self.weights != "equal",
            f"x_min {self.x_min}": self.x_min is not None,
            "converged only": self.unconverged == "drop",
        }
        return [text for text, is_so in said.items() if is_so]


class FigureRequest(SpecSection, frozen=True):
    """A figure that a sweep asks for in its report."""

    ALWAYS = ("kind",)
    ALLOWED = {
        "by": "allowed: a list of parameter names",
        "layer": _ANY_LAYER,
        "lines": "allowed: a mapping from name to SQL expression",
        "x_axis": "allowed: log, linear",
        "y_axis": "allowed: log, linear",
    }
    kind: Literal["curve", "share", "map", "distribution", "spectrum", "matrix"]
    """curve: a metric over an axis; share: of the trials with a condition over an axis; map: a metric over two axes;
    distribution: a metric's values; spectrum: a vector layer by layer; matrix: one of one trial."""
    metric: str = ""
    """A measured column, or an SQL expression over the trial's row in `results`; with a layer, over its row in `metrics`."""
    condition: str = ""
    """SQL over the trial's row in `results`, true or false, as in "solution = 'dnc'"."""
    x: str = ""
    """The parameter on the horizontal axis."""
    y: str = ""
    """The parameter on the vertical axis of a map."""
    by: tuple[str, ...] = ()
    """Parameters that part the trials into curves."""
    layer: int | None = None
    """Null for the last; -2 is the one before it."""
    where: str = ""
    """SQL over the trial's row in `results`: which trials are drawn."""
    lines: Mapping[str, str] = {}
    """Name -> an SQL expression over `results`: reference lines, what theory says of each trial, averaged at each place."""
    order: str = ""
    """Of a matrix: a measured vector, the order of rows and columns for a second map."""
    lowest: str = ""
    """Of a matrix: an SQL expression over `results`; the trial where it is lowest is drawn. Without it the first."""
    title: str = ""
    """Above the figure."""
    x_axis: Literal["log", "linear", ""] = ""
    """log or linear; without it log where values are positive and span a factor of 8 or more."""
    y_axis: Literal["log", "linear", ""] = ""
    """As x_axis."""


FIGURE_KEYS = {
    "curve": (("metric", "x"), ("by", "layer", "where", "lines", "title", "x_axis", "y_axis")),
    "share": (("condition", "x"), ("by", "where", "title", "x_axis")),
    "map": (("metric", "x", "y"), ("layer", "where", "title", "x_axis", "y_axis")),
    "distribution": (("metric",), ("by", "layer", "where", "lines", "title", "y_axis")),
    "spectrum": (("metric",), ("where", "title", "y_axis")),
    "matrix": (("metric",), ("layer", "where", "title", "order", "lowest")),
}
"""Kind of a figure -> what an entry of it must say, and what it may."""


class Grid(SpecSection, frozen=True):
    """One of several grids of a sweep."""

    params: Values = {}
    """Fixed parameters of its trials."""
    grid: Axes = {}
    """Axes: every combination of their values is run."""
    zip: Axes = {}
    """Axes that move together, all of one length."""


class SweepSpec(SpecSection, frozen=True):
    """A named set of trials, as written in a sweep file."""

    ALLOWED = dict.fromkeys(("params", "grid", "zip", "derive"), "give a mapping from parameter to value")
    name: Annotated[str, Meta(extra_json_schema={"pattern": f"^{NAME}$"})]
    """Names the sweep: letters, digits, '_', '-', '.'."""
    task: str
    """A task's name, or ./file.py:function of your own."""
    base: str = ""
    """Another sweep, a file beside this one or a shipped one, whose keys hold where this file says nothing else."""
    params: Values = {}
    """Fixed parameters."""
    grid: Axes = {}
    """Axes: every combination of their values is run."""
    zip: Axes = {}
    """Axes that move together, all of one length."""
    grids: tuple[Values, ...] = ()
    """Several grids, one after the other."""
    include: tuple[Values, ...] = ()
    """Combinations to add."""
    exclude: tuple[Values, ...] = ()
    """Combinations to drop: those that match."""
    derive: Annotated[Values, Meta(extra_json_schema={"additionalProperties": {"type": ["string", "number"]}})] = {}
    """Parameters computed from others, by arithmetic."""
    seeds: Annotated[Any, Meta(extra_json_schema=_SEEDS)] = None
    """A count n for seeds 0 to n - 1, a list of seeds, or null for the task's default."""
    search: Search | None = None
    """Parameters that Optuna searches, beside or instead of a grid: one study for each combination of it."""
    fit: tuple[FitRequest, ...] = ()
    """Which rates are fitted."""
    figures: tuple[FigureRequest, ...] = ()
    """What the report draws besides what it always does."""
    max_trials: Whole = MAX_TRIALS
    """More trials are refused before they are formed."""
    engine: Engine = Engine.AUTO
    """How steps are run; no parameter: a trial is the same with each."""

    def __post_init__(self) -> None:
        """Check that a study has no more proposals than the sweep may have trials.

        Raises:
            SweepError: it has.
        """
        if self.search is not None:
            _check_most("search.trials", self.search.trials, self.max_trials)

    @property
    def loaded_task(self) -> str:
        """The task as workers load it: by its name, and with the user's network and data where the sweep names some.

        Raises:
            TaskError: it names several networks or data sets.
        """
        references = find_references(self.task, self._parts(), Path.cwd())
        return self.task if references is None else references.text

    @property
    def code_files(self) -> list[Path]:
        """The user's files whose code is executed for it.

        Raises:
            TaskError: see `loaded_task`.
        """
        references = find_references(self.task, self._parts(), Path.cwd())
        where = self.task.rpartition(":")[0]
        return ([Path(where)] if where.endswith(".py") else []) + ([] if references is None else references.code_files)

    def _parts(self) -> list[Mapping[str, Any]]:
        return [self.params, self.grid, self.zip, *self.grids, *self.include]

    def spec_hash(self) -> str:
        """Return the first 16 hex digits of sha256 over the canonical spec."""
        return hashlib.sha256(canonical_json(self.spec()).encode()).hexdigest()[:16]

    def load_task(self, files: Mapping[str, bytes] | None = None) -> Task:
        """Load the task this sweep names, as these files of its code have it or as it is now."""
        return load_task(self.loaded_task, files=files)


KEYS = SweepSpec.__struct_fields__


def fit_request(content: Mapping[str, Any]) -> FitRequest:
    """Read an entry of `fit:`, in which null is a default.

    Raises:
        SweepError: a key is unknown or has the wrong form.
    """
    given = {key: value for key, value in content.items() if value is not None or key == "metric"}
    return FitRequest.read(given, "fit", f"fit entry {format_value(dict(content))}: ")


def figure_request(content: Mapping[str, Any]) -> FigureRequest:
    """Read an entry of `figures:`, in which null is a default.

    Raises:
        SweepError: the kind is unknown, something is missing that it needs, or a key has the wrong form.
    """
    kind, prefix = content.get("kind"), f"figures entry {format_value(dict(content))}: "
    if not isinstance(kind, str) or kind not in FIGURE_KEYS:
        hint = nearest(kind, FIGURE_KEYS) if isinstance(kind, str) else ""
        raise SweepError(f"{prefix}kind is {kind_of(kind)}; give one of {', '.join(FIGURE_KEYS)}{hint}")
    needed, more = FIGURE_KEYS[kind]
    require_keys(content, ("kind", *needed, *more), f"figures, kind {kind}")
    for name in needed:
        if content.get(name) in (None, ""):
            raise SweepError(f"{prefix}{name} is missing; a {kind} needs {', '.join(needed)}")
    return FigureRequest.read({key: value for key, value in content.items() if value is not None}, "figures", prefix)


def check_fits(sweep: SweepSpec, task: Task) -> None:
    """Check that what `fit:` asks for can exist.

    Raises:
        SweepError: an unknown parameter or metric, with the nearest known one.
    """
    metrics = sorted(scalars(task.measurable))  # a task that declares none may measure anything
    for request in sweep.fit:
        if metrics:
            _check_measured(request.metric, metrics, "metric", "fit")
            _check_asked(sweep, task, request.metric, "fit")
        try:
            x_names = request.x_names
            over = [request.over] if request.over != FitRequest.SEED else []  # a task may have no seed
            parameters = {name: task.schema.require_known(name, "fit") for name in (*x_names, *request.by, *over)}
        except ParameterError as error:
            raise SweepError(str(error)) from None
        except ExpressionError as error:
            raise SweepError(f"fit over x: {error}") from None
        if not x_names:
            raise SweepError(f"fit over x: {request.x!r}, which names no parameter; give one, or arithmetic over some")
        for name in x_names:
            if parameters[name].kind not in ("int", "float", "scalar"):
                raise SweepError(f"fit over x: {name!r}, which is {parameters[name].allowed}; x must be a number")
        if set(over) & {*x_names, *request.by}:
            raise SweepError(f"fit over {over[0]!r}, which x or by has too; intervals are over what both leave open")


def check_figures(sweep: SweepSpec, task: Task) -> None:
    """Check that what `figures:` asks for can exist; SQL is checked where results are there, when it is drawn.

    Raises:
        SweepError: an unknown parameter or measured column, with the nearest known one.
    """
    for request in sweep.figures:
        for name in filter(None, (request.x, request.y, *request.by)):
            try:
                task.schema.require_known(name, "figures")
            except ParameterError as error:
                raise SweepError(str(error)) from None
        kind = {"spectrum": "vector", "matrix": "matrix"}.get(request.kind)
        columns = [measured.name for measured in task.measurable if kind is None or measured.kind == kind]
        # a task that declares none may measure anything, and what is no name is an SQL expression
        if task.measurable and request.metric.isidentifier():
            _check_measured(request.metric, columns, kind or "metric", "figures")
            _check_asked(sweep, task, request.metric, "figures")


def _check_measured(name: str, columns: list[str], kind: str, place: str) -> None:
    if name not in columns:
        known = format_names(columns) or "none"
        raise SweepError(f"unknown {kind} {name!r} in {place}{nearest(name, columns)} (known: {known})")


def _check_asked(sweep: SweepSpec, task: Task, name: str, place: str) -> None:
    """Refuse what no trial of the sweep measures, because none is asked to."""
    (parameter,) = (measured.asked_by for measured in task.measurable if measured.name == name)
    if parameter not in task.schema:
        return
    given = [part[parameter] for part in sweep._parts() if parameter in part] or [task.schema[parameter].default]
    values = [value for each in given for value in (each if isinstance(each, list | tuple) else [each])]
    if not any(isinstance(value, str) and name in map(str.strip, value.split(",")) for value in values):
        raise SweepError(
            f"{place} is of {name!r}, which trials measure where they are asked to: give params {{{parameter}: {name}}}"
        )
