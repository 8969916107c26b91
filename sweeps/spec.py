"""Define the spec of a sweep: its typed sections, and their checks against the task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta
from msgspec.structs import asdict, force_setattr

from depthrate.sweeps.errors import MAX_TRIALS, ExpressionError, SweepError, counted, kind_of, require_keys
from depthrate.sweeps.expression import Expression
from depthrate.sweeps.part import SpecSection, read_section, section_spec
from depthrate.sweeps.threshold import Threshold, parse_threshold
from depthrate.sweeps.trial import canonical_json
from depthrate.tasks.figure_request import FIGURE_KEYS, LAYER, SEED, STEP, VARYING, FigureRequest
from depthrate.tasks.fits import DEFAULT_FORMS, LOSSES, MAX_VARIABLES, current_names
from depthrate.tasks.interface import Engine, Task
from depthrate.tasks.loading import load_task
from depthrate.tasks.metric import scalars
from depthrate.tasks.parameters import LARGEST, ParameterError, format_value, nearest, nearest_names
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
else:  # a single value needs no brackets and is stored as a tuple
    # No limits on length or characters: msgspec 0.22 crashes the process when it frees a type with both limits.
    Texts = str | tuple[str, ...]
    Directions = Direction | tuple[Direction, ...]

_SEEDS: dict[str, Any] = {
    "anyOf": [{"type": "integer", "minimum": 1}, {"type": "array", "items": {"type": "integer"}}, {"type": "null"}]
}
_SEARCHED: dict[str, Any] = {
    "additionalProperties": {"anyOf": [{"type": "array"}, {"$ref": "#/$defs/SearchedParameter"}]}
}
_ANY_LAYER = "expected an int (negative values count from the last layer)"


class Prune(SpecSection, frozen=True):
    """Rule by which trials that fall behind stop early."""

    ALWAYS = ("rule", "metric", "from_step", "startup", "factor")
    ALLOWED = {"metric": "search.prune needs a metric that the task reports during training, as in metric: loss"}
    rule: Literal["median", "halving", "asha"] = "median"
    """median: prune trials worse than the median of earlier trials. halving: keep the best 1/factor at each rung. asha: as
    halving, but also compared with trials that run at the same time."""
    metric: str = ""
    """Number that the task reports during training (collapse: loss, objective, objective_gap, accuracy, grad_norm)."""
    from_step: Whole = 1
    """First step at which trials are pruned, and first rung of halving. Later rungs: times factor, factor^2, ..."""
    startup: Whole = 5
    """Earlier trials that must reach a step before trials are pruned there. Not used by asha."""
    factor: Annotated[int, Meta(ge=2)] = 3
    """Reduction factor of halving and asha: one trial in `factor` continues at a rung."""

    def __post_init__(self) -> None:
        """Check that a metric is named.

        Raises:
            SweepError: The metric is missing.
        """
        if not self.metric:
            raise SweepError(self.ALLOWED["metric"])


class FinalRuns(SpecSection, frozen=True):
    """Final runs at the best proposal of each study."""

    ALWAYS = ("params",)
    params: Values = {}
    """Parameters that differ from the search."""
    seeds: Annotated[Any, Meta(extra_json_schema=_SEEDS)] = None
    """Number of seeds, or a list of seeds. Default: the task's."""


class Search(SpecSection, frozen=True):
    """A search over parameters. With a grid, one study per combination."""

    ALWAYS = ("params", "objective", "direction", "sampler", "trials", "batch", "seed")
    ALLOWED = {
        "params": "expected the parameters to search, as in {lr: {low: 1e-3, high: 1, log: true}}",
        "objective": "expected SQL over a trial's row in results, a string or a list of strings, as in objective: nc1",
    }
    params: Annotated[Values, Meta(min_length=1, extra_json_schema=_SEARCHED)]
    """The parameters to search, each a list of values or a range."""
    objective: Texts
    """SQL over a trial's row in `results`, averaged over the seeds of a proposal."""
    direction: Directions = ("minimize",)
    """One direction per objective, or one for all."""
    sampler: Literal["tpe", "random", "qmc", "cmaes", "grid"] = "tpe"
    """Sampler that makes the proposals."""
    trials: Whole = 40
    """Proposals per study. Each has one trial per seed."""
    batch: Whole = 8
    """Proposals made at once, from the results of all earlier ones. Proposals of one shape train fused."""
    seed: Annotated[int, Meta(ge=0)] = 0
    """Seed of the sampler."""
    prune: Prune | None = None
    """Rule by which trials that fall behind stop early."""
    measure: FinalRuns | None = None
    """Final runs at the best proposal of each study."""

    def __post_init__(self) -> None:
        """Assign each objective a direction, and check combinations of keys.

        Raises:
            SweepError: The numbers of objectives and directions differ, or a key takes a single objective.
        """
        objectives, directions = (
            (value,) if isinstance(value, str) else tuple(value) for value in (self.objective, self.direction)
        )
        if not objectives or not all(text.strip() for text in objectives):
            raise SweepError(f"search.objective is {format_value(list(objectives))}, {self.ALLOWED['objective']}")
        if not directions:
            raise SweepError(
                f"search.direction is {format_value(list(directions))}, expected one per objective, or one for all"
            )
        directions *= len(objectives) if len(directions) == 1 else 1
        force_setattr(self, "objective", objectives)
        force_setattr(self, "direction", directions)
        if len(directions) != len(objectives):
            raise SweepError(
                f"search has {len(objectives)} objectives and {len(directions)} directions. Give one per objective."
            )
        for key in ("measure", "prune"):
            if getattr(self, key) is not None and len(objectives) > 1:
                raise SweepError(f"search.{key} needs a single objective, since several have no single best trial")
        if self.sampler == "cmaes" and len(objectives) > 1:
            raise SweepError("search.sampler cmaes takes one objective. Use tpe, random, qmc or grid for several.")
        _check_most("search.batch", self.batch, MAX_TRIALS)

    def definition(self) -> dict[str, Any]:
        """Return the keys that determine the proposals. Raising the number of trials continues the same study."""
        return {key: value for key, value in self.spec().items() if key not in ("trials", "measure")}


def _check_most(name: str, count: int, most: int) -> None:
    if count > most:
        raise SweepError(f"{name} is {counted(count)}, at most {most:,} are allowed (max_trials)")


class FitRequest(SpecSection, frozen=True):
    """A rate to fit: `metric` against `x`, one curve per combination of `by`."""

    SEED: ClassVar[str] = SEED
    LAYER: ClassVar[str] = LAYER
    ALWAYS = ("metric", "x", "by")
    ALLOWED = {
        "metric": "expected a name, as in {metric: nc1, x: depth - 1}",
        "x": "expected a name or arithmetic, or a list of two or three, as in {metric: nc1, x: [depth - 1, width]}",
        "by": "expected a list of parameter names",
        "layer": f"{_ANY_LAYER}, or a fraction of the depth between 0 and 1",
        "where": "expected an SQL condition, as in 'weight_decay > 0'",
        "x_min": "expected a number above zero",
        "target": "expected a number above zero",
        "over": "expected a parameter's name",
        "model": "expected a form or a list of forms, as in power_floor or [power, exponential]",
        "loss": f"expected one of {', '.join(LOSSES)}",
        "huber": "expected a number above zero",
    }
    metric: str
    """Name of a metric, or `steps_to(METRIC <= VALUE)` or `>=`: the first recorded step at which it has passed the value."""
    x: str | tuple[str, ...] = "depth"
    """Parameter, or arithmetic over parameters: `depth - 1`. A list of two or three fits forms in several variables. `layer`
    fits the law of equi-separation over the layers of the trials of one depth."""
    by: tuple[str, ...] = ()
    """Parameters that split the trials into curves."""
    layer: int | float | None = None
    """Layer index. Default: the last. -2 is the one before it. A fraction such as 0.5 is the layer nearest to that share of
    the depth, the later one of two."""
    where: str | None = None
    """SQL condition over a trial's row in `results` that selects the trials."""
    x_min: Positive | None = None
    """Lower cut-off of x."""
    unconverged: Literal["keep", "drop"] = "keep"
    """keep (and count) or drop trials whose objective still falls."""
    target: Positive | None = None
    """Value of the metric whose x the fit predicts."""
    over: str = SEED
    """Parameter whose values are the replicates. Intervals resample whole values of it."""
    model: str | tuple[str, ...] | None = None
    """Forms to fit. Default of several variables: power and power_floor. Of one variable: all that a curve allows."""
    loss: Literal["log", "y", "huber"] = "log"
    """log: squares of the residuals of log y. y: squares of those of y. huber: Huber's function of those of log y."""
    huber: Positive | None = None
    """Residual of log y from which Huber's function is linear."""

    def __post_init__(self) -> None:
        """Check that a layer that is not an int is a fraction.

        Raises:
            SweepError: It is not between 0 and 1.
        """
        if isinstance(self.layer, float) and not 0 < self.layer < 1:
            raise SweepError(f"fit layer is {self.layer!r}, {self.ALLOWED['layer']}")

    @property
    def forms(self) -> tuple[str, ...]:
        """Requested forms. Empty: the models that are compared on a curve of one variable."""
        if self.model is None:
            return DEFAULT_FORMS if len(self.variables) > 1 else ()
        return current_names((self.model,) if isinstance(self.model, str) else self.model)

    @property
    def threshold(self) -> Threshold | None:
        """The value that the metric passes, or None for a fit of the metric itself."""
        return parse_threshold(self.metric)

    @property
    def measured(self) -> str:
        """Name of the metric that trials record."""
        return self.metric if (threshold := self.threshold) is None else threshold.metric

    @property
    def layer_text(self) -> str:
        """The layer, as in `-2` or `0.5 L`. Empty for the last."""
        return "" if self.layer is None else f"{self.layer} L" if isinstance(self.layer, float) else str(self.layer)

    @property
    def is_over_layers(self) -> bool:
        """Whether x is the layer, which varies within a trial."""
        return self.x == self.LAYER

    @property
    def is_curve(self) -> bool:
        """Whether the fit is over one variable that differs between trials."""
        return not self.forms and not self.is_over_layers

    @property
    def reads_layers(self) -> bool:
        """Whether the fit reads other layers than the last."""
        return self.layer is not None or self.is_over_layers

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that vary between trials, each a parameter or arithmetic. Empty over layers."""
        if self.is_over_layers:
            return ()
        return (self.x,) if isinstance(self.x, str) else self.x

    @property
    def x_text(self) -> str:
        """The variables in words."""
        return ", ".join(self.variables) or self.LAYER

    @property
    def x_names(self) -> list[str]:
        """Parameters that the variables use."""
        return sorted({name for text in self.variables for name in Expression(text).names})

    @property
    def options(self) -> list[str]:
        """Describe the options that differ from the defaults, to distinguish fits of the same metric."""
        active = {
            f"where {self.where}": bool(self.where),
            f"x_min {self.x_min}": self.x_min is not None,
            "converged only": self.unconverged == "drop",
            f"loss {self.loss}": self.loss != "log",
        }
        return [text for text, is_set in active.items() if is_set]


class Grid(SpecSection, frozen=True):
    """One of several grids of a sweep."""

    params: Values = {}
    """Fixed parameters of its trials."""
    grid: Axes = {}
    """Axes. Every combination of their values makes one trial."""
    zip: Axes = {}
    """Axes of one length that vary together."""


class SweepSpec(SpecSection, frozen=True):
    """A named set of trials, as written in a sweep file."""

    ALLOWED = dict.fromkeys(("params", "grid", "zip", "derive"), "expected a mapping from parameter to value")
    name: Annotated[str, Meta(extra_json_schema={"pattern": f"^{NAME}$"})]
    """Name of the sweep: letters, digits, '_', '-', '.'."""
    task: str
    """Name of a task, or a custom one as ./file.py:function."""
    base: str = ""
    """Sweep that supplies the keys this file leaves out: a file next to this one, or a shipped sweep."""
    params: Values = {}
    """Fixed parameters."""
    grid: Axes = {}
    """Axes. Every combination of their values makes one trial."""
    zip: Axes = {}
    """Axes of one length that vary together."""
    grids: tuple[Values, ...] = ()
    """Several grids, in order."""
    include: tuple[Values, ...] = ()
    """Combinations to add."""
    exclude: tuple[Values, ...] = ()
    """Combinations to drop."""
    derive: Annotated[Values, Meta(extra_json_schema={"additionalProperties": {"type": ["string", "number"]}})] = {}
    """Parameters computed from others by arithmetic."""
    seeds: Annotated[Any, Meta(extra_json_schema=_SEEDS)] = None
    """Number n of seeds (0 to n - 1), or a list of seeds. Default: the task's."""
    search: Search | None = None
    """Parameters that Optuna searches, with or without a grid: one study per grid point."""
    fit: tuple[FitRequest, ...] = ()
    """Rates to fit."""
    figures: tuple[FigureRequest, ...] = ()
    """Figures that the report adds to the standard ones."""
    max_trials: Whole = MAX_TRIALS
    """Maximum number of trials. More are refused."""
    engine: Engine = Engine.AUTO
    """Engine that runs the steps. Not part of a trial's identity."""

    def __post_init__(self) -> None:
        """Check that the proposals per study stay within `max_trials`.

        Raises:
            SweepError: There are more.
        """
        if self.search is not None:
            _check_most("search.trials", self.search.trials, self.max_trials)

    @property
    def loaded_task(self) -> str:
        """Name by which workers load the task. It covers the sweep's custom network and data.

        Raises:
            TaskError: The sweep names several networks or data sets.
        """
        references = find_references(self.task, self._parts(), Path.cwd())
        return self.task if references is None else references.text

    @property
    def code_files(self) -> list[Path]:
        """User files whose code the task executes.

        Raises:
            TaskError: See `loaded_task`.
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
        """Load the task, from `files` (path -> content of its code) if they are given and otherwise from disk."""
        return load_task(self.loaded_task, files=files)


KEYS = SweepSpec.__struct_fields__


class StoredSweep(SweepSpec, frozen=True):
    """A sweep named by a store, with its checked code, which is executed instead of the current files."""

    files: Mapping[str, bytes] | None = None
    """Path -> content of the code. None: built-in, or installed."""

    def spec(self) -> dict[str, Any]:
        return {key: value for key, value in super().spec().items() if key in KEYS}

    def load_task(self, files: Mapping[str, bytes] | None = None) -> Task:
        return super().load_task(self.files if files is None else files)


def with_code(sweep: SweepSpec, files: Mapping[str, bytes] | None) -> StoredSweep:
    return StoredSweep(**asdict(sweep) | {"files": files})


def fit_request(content: Mapping[str, Any]) -> FitRequest:
    """Read an entry of `fit:`. None means the default.

    Raises:
        SweepError: A key is unknown or has the wrong form.
    """
    keys = {key: value for key, value in content.items() if value is not None or key == "metric"}
    return read_section(FitRequest, keys, "fit", f"fit entry {format_value(dict(content))}: ")


def figure_request(content: Mapping[str, Any]) -> FigureRequest:
    """Read an entry of `figures:`. None means the default.

    Raises:
        SweepError: The kind is unknown, a required key is missing, or a key has an invalid value.
    """
    kind, prefix = content.get("kind"), f"figures entry {format_value(dict(content))}: "
    if not isinstance(kind, str) or kind not in FIGURE_KEYS:
        hint = nearest(kind, FIGURE_KEYS) if isinstance(kind, str) else ""
        raise SweepError(f"{prefix}kind is {kind_of(kind)}, expected one of {', '.join(FIGURE_KEYS)}{hint}")
    needed, more = FIGURE_KEYS[kind]
    require_keys(content, ("kind", *needed, *more), f"figures, kind {kind}")
    for name in needed:
        if content.get(name) in (None, ""):
            raise SweepError(f"{prefix}{name} is missing. A {kind} needs {', '.join(needed)}")
    keys = {key: value for key, value in content.items() if value is not None}
    return read_section(FigureRequest, keys, "figures", prefix)


def check_fits(sweep: SweepSpec, task: Task) -> None:
    """Check the parameters and metrics of `fit:` against the task.

    Raises:
        SweepError: A parameter or metric is unknown. The message names the nearest one.
    """
    metrics = sorted(scalars(task.measurable))  # tasks without declared metrics may return any
    for request in sweep.fit:
        measured = request.measured
        if metrics:
            _check_measured(measured, metrics, "metric", "fit")
            _check_asked(sweep, task, measured, "fit")
        try:
            x_names = request.x_names
            over = [request.over] if request.over != FitRequest.SEED else []  # a task may have no seed
            parameters = {name: task.schema.require_known(name, "fit") for name in (*x_names, *request.by, *over)}
        except ParameterError as error:
            raise SweepError(str(error)) from None
        except ExpressionError as error:
            raise SweepError(f"fit over x: {error}") from None
        if not x_names and not request.is_over_layers:
            raise SweepError(f"fit over x: {request.x!r} names no parameter. Give one, or arithmetic over parameters.")
        _check_variables(request)
        for name in x_names:
            if parameters[name].kind not in ("int", "float", "scalar"):
                raise SweepError(f"fit over x: {name!r} is {parameters[name].allowed}, expected a number")
        if set(over) & {*x_names, *request.by}:
            raise SweepError(
                f"fit over {over[0]!r} is used in x or by. Choose a parameter that varies within a point of the curve."
            )


def _check_variables(request: FitRequest) -> None:
    """Check a fit in several variables or over layers.

    Raises:
        SweepError: There are too many or equal ones, or an option does not apply.
    """
    if request.is_over_layers and (request.layer, request.target, request.model) != (None, None, None):
        raise SweepError("fit over x: layer, target and model do not apply over layers. x_min is the first layer.")
    if request.is_over_layers and request.loss != "log":
        raise SweepError("fit loss: the law over layers is a line of log y, so that only the loss log applies.")
    if (request.loss == "huber") != (request.huber is not None):
        raise SweepError(
            "fit loss: huber is a loss with a threshold. Give both, as in {loss: huber, huber: 0.05}, or neither."
        )
    if request.is_over_layers and request.threshold is not None:
        raise SweepError(
            f"fit over x: {request.metric} has no value per layer. Fit it over a parameter, such as depth."
        )
    variables = request.variables
    if len(variables) > MAX_VARIABLES or len(set(variables)) < len(variables):
        raise SweepError(
            f"fit over x: {format_value(list(variables))}, expected at most {MAX_VARIABLES} different variables"
        )
    if request.forms:
        from depthrate.tasks.fits.models import forms_named  # needs numpy
        from depthrate.tasks.fits.points import FitError

        try:
            forms_named(request.forms, len(variables))
        except FitError as error:
            raise SweepError(f"fit model: {error}") from None
    if request.forms and (request.x_min is not None or request.target is not None):
        raise SweepError(
            "fit over x: x_min and target apply to one variable without model. Use where: instead of x_min."
        )


def check_figures(sweep: SweepSpec, task: Task) -> None:
    """Check the parameters and metrics of the figures of a sweep and its task. SQL is checked when the figure is drawn.

    Raises:
        SweepError: A parameter or metric is unknown. The message names the nearest one.
    """
    for request in task.figures:
        _check_figure(figure_request(section_spec(request)), task, f"figures of the task {task.name}")
    for request in sweep.figures:
        _check_figure(request, task, "figures")
        if task.measurable and request.metric.isidentifier():
            _check_asked(sweep, task, request.metric, "figures")


def _check_figure(request: FigureRequest, task: Task, place: str) -> None:
    over = {request.over} - {SEED}  # a task may have no seed
    try:
        for name in (*request.parameter_axes.values(), *over, *(name for name in request.by if name != VARYING)):
            task.schema.require_known(name, place)
    except ParameterError as error:
        raise SweepError(str(error)) from None
    kind = {"spectrum": "vector", "matrix": "matrix"}.get(request.kind)
    for name in (request.metric, *request.row_axes.values(), *request.columns):
        columns = [measured.name for measured in task.measurable if kind is None or measured.kind == kind]
        # tasks without declared metrics may return any metric, and other strings are SQL expressions
        if task.measurable and name.isidentifier() and name not in (STEP, LAYER):
            _check_measured(name, columns, kind or "metric", place)


def _check_measured(name: str, columns: list[str], kind: str, place: str) -> None:
    if name not in columns:
        raise SweepError(f"unknown {kind} {name!r} in {place}{nearest(name, columns)}. {nearest_names(name, columns)}.")


def _check_asked(sweep: SweepSpec, task: Task, name: str, place: str) -> None:
    """Refuse a metric that no trial of the sweep measures."""
    (parameter,) = (measured.asked_by for measured in task.measurable if measured.name == name)
    if parameter not in task.schema:
        return
    settings = [part[parameter] for part in sweep._parts() if parameter in part] or [task.schema[parameter].default]
    values = [value for setting in settings for value in (setting if isinstance(setting, list | tuple) else [setting])]
    if not any(isinstance(value, str) and name in map(str.strip, value.split(",")) for value in values):
        raise SweepError(
            f"{place} uses {name!r}, which trials measure only on request. Set params {{{parameter}: {name}}}."
        )
