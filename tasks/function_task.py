"""Tasks that are a user's function: `depthrate.task`. Importable without torch."""

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from depthrate.tasks.code.explain import unforeseen_import
from depthrate.tasks.code.load import IS_LOADING
from depthrate.tasks.figure_request import FigureRequest
from depthrate.tasks.interface import (
    Diverged,
    Interrupted,
    Params,
    Pruned,
    ResultStatus,
    Task,
    TaskCode,
    TaskContext,
    TaskError,
    TrialResult,
)
from depthrate.tasks.metric import Metric, by_name
from depthrate.tasks.parameters import REQUIRED, Parameter, ParameterError, ParameterSchema, kind_of_hint
from depthrate.tasks.supervised.metrics import core_measurements


@dataclass(frozen=True, kw_only=True, eq=False)
class FunctionTask(Task):
    """A function called once per trial, or once per pack."""

    function: Callable[..., Any]
    name: str
    version: int
    schema: ParameterSchema
    fused: bool
    measurements: tuple[Metric, ...] = ()
    figures: tuple[FigureRequest, ...] = ()
    doc: str = ""
    defined_at: str = ""
    code: TaskCode | None = None

    def __post_init__(self) -> None:
        """Check the metrics.

        Raises:
            MeasurementError: Two have the same name, or a gap is not among them.
        """
        by_name(self.measurements)

    @property
    def measurable(self) -> tuple[Metric, ...]:
        """Declared metrics, then the metrics of `probe` and `measure`. Empty if none are declared."""
        declared = {measurement.name for measurement in self.measurements}
        others = [measurement for measurement in core_measurements() if measurement.name not in declared]
        return (*self.measurements, *others) if declared else ()

    def run(self, trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        """Run a pack, in turn or in one call.

        Raises:
            Interrupted: A stop was requested.
            TaskError: The function returned another number of results than the pack has trials.
            ImportError: A module in its folder cannot be imported at run time.
        """
        try:
            yield from self._run_fused(trials, context) if self.fused else self._run_in_turn(trials, context)
        except ModuleNotFoundError as error:
            if self.code is not None and (unforeseen := unforeseen_import(error, self.code)):
                raise ImportError(unforeseen, name=error.name) from error
            raise

    def _call(self, params: Params, context: TaskContext) -> Any:
        takes_context = "context" in inspect.signature(self.function).parameters
        return self.function(**params, **({"context": context} if takes_context else {}))

    def _run_in_turn(self, trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        failures: list[Exception] = []
        for index, params in enumerate(trials):
            if context.should_stop():
                raise Interrupted
            try:
                tables = self._call(params, context.for_trial(index))
            except (Interrupted, MemoryError):
                raise
            except Pruned:
                yield TrialResult(index, {}, status=ResultStatus.PRUNED)
                continue
            except Diverged as end:
                yield _diverged(index, end)
                continue
            except Exception as error:  # does not concern the other trials of the pack
                error.add_note(f"trial {context.trial_ids[index]} with {dict(params)}")
                failures.append(error)
                continue
            yield TrialResult(index, tables)
        if failures:
            raise failures[0]

    def _run_fused(self, trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        shared = {name: value for name, value in trials[0].items() if name not in self.schema.fusible}
        varying = {name: [params[name] for params in trials] for name in self.schema.fusible}
        try:
            results = self._call({**shared, **varying}, context)
        except Diverged as end:  # raised only in a pack of one trial
            yield _diverged(0, end)
            return
        if not isinstance(results, Sequence) or len(results) != len(trials):
            returned = f"{len(results)} results" if isinstance(results, Sequence) else f"a {type(results).__name__}"
            raise TaskError(
                f"task returned {returned} for a pack of {len(trials)} trials, expected a list with one per trial."
            )
        for index, tables in enumerate(results):
            yield TrialResult(index, {}, status=ResultStatus.PRUNED) if tables is None else TrialResult(index, tables)


def _diverged(index: int, end: Diverged) -> TrialResult:
    return TrialResult(index, {"curves": end.curves}, status=ResultStatus.DIVERGED)


def task(
    *,
    version: int = 1,
    fusible: Sequence[str] | None = None,
    measurements: Sequence[Metric] = (),
    figures: Sequence[FigureRequest] = (),
    added: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function as a task. Its keyword arguments become the parameters.

    Args:
        version: Number to raise when results change.
        fusible: Arguments that arrive as lists with one value per trial. The function is then called once per pack and
            returns a list of tables (None: pruned). Without it, the function is called once per trial and returns its tables.
        measurements: Metrics known to fits, searches and the report before any trial runs.
        figures: Figures that the report adds to the standard ones, with the keys of `figures:` of a sweep file.
        added: Arguments that the task gained later, with defaults that reproduce the earlier behaviour. Trials with the
            defaults keep their ids and are not run again.
    Raises:
        ParameterError: An argument has no usable annotation, `fusible` or `added` names something that is not an
            argument, or an added argument has no default.
        MeasurementError: Two metrics have the same name.
    """

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            function.__depthrate_task__ = build(function)  # type: ignore[attr-defined]
        except Exception as error:
            if not IS_LOADING.get():
                raise
            function.__depthrate_task__ = error  # type: ignore[attr-defined]  # raised if this task is requested
        return function

    def build(function: Callable[..., Any]) -> FunctionTask:
        schema = schema_of_function(function, ("seed",) if fusible is None else fusible, added)
        for option, names in (("fusible", fusible or ()), ("added", added)):
            for name in names:
                schema.require_known(name, f"{option} of task {function.__name__!r}")
        path = Path(inspect.getfile(function))
        return FunctionTask(
            function=function,
            name=f"{path.stem}:{function.__name__}",
            version=version,
            schema=schema,
            fused=bool(fusible),
            measurements=tuple(measurements),
            figures=tuple(figures),
            doc=inspect.getdoc(function) or "",
            defined_at=f"{path.name}, line {function.__code__.co_firstlineno}",
        )

    return mark


def schema_of_function(
    function: Callable[..., Any], fusible: Iterable[str] = ("seed",), added_later: Iterable[str] = ()
) -> ParameterSchema:
    """Build a parameter schema from the keyword arguments of a user's task function (types: see `kind_of_hint`).

    Raises:
        ParameterError: An argument has no usable annotation, or an added one has no default.
    """
    hints = typing.get_type_hints(function)
    fusible, added_later = set(fusible), set(added_later)
    parameters = []
    for argument in inspect.signature(function).parameters.values():
        if argument.name == "context":
            continue
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            raise ParameterError(
                f"task {function.__name__!r} takes *{argument.name}, but every parameter needs a name and a type, "
                "as in `depth: int`"
            )
        kind, nullable, choices = kind_of_hint(hints.get(argument.name), argument.name, function.__name__)
        parameter = Parameter(
            name=argument.name, kind=kind, nullable=nullable, choices=choices, fusible=argument.name in fusible
        )
        default = REQUIRED if argument.default is argument.empty else parameter.check(argument.default)
        parameters.append(replace(parameter, default=default, added_later=argument.name in added_later))
    return ParameterSchema(parameters)
