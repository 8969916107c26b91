"""What a task is: a schema, a version, and how a pack of its trials runs. Importable without torch."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from depthrate.tasks.measurement import Measurement, by_name
from depthrate.tasks.panel import Panel
from depthrate.tasks.schema import ParameterSchema
from depthrate.tasks.signature import schema_of_function
from depthrate.tasks.task_code import TaskCode

if TYPE_CHECKING:
    from depthrate.tasks.data.sources import DataSource

Params = Mapping[str, Any]
Tables = Mapping[str, Any]
"""Table name (metrics, curves, features) -> list of dicts, pandas frame or Arrow table."""


class TaskError(ValueError):
    """A task cannot be found or loaded, or refuses a trial before it starts."""


class Interrupted(Exception):
    """Raised by a task that was asked to stop, after it saved its checkpoint."""


class Pruned(Exception):
    """Raised by a task for a trial that `report` says should not go on."""


class Engine(StrEnum):
    """How a task that trains in steps runs them."""

    AUTO = "auto"
    """Native where there are kernels; else compiled where a single trial's training repays it, and it can be; else eagerly."""
    NATIVE = "native"
    """By kernels written in C++, many steps in one call, for the networks that have them."""
    EAGER = "eager"
    """One operation after the other."""
    COMPILED = "compiled"
    """Each step as one program, compiled for its shape and this processor."""


class TaskContext(Protocol):
    """What a running task may ask of the outside."""

    @property
    def device(self) -> str:
        """Where to compute: cpu or cuda."""
        ...

    @property
    def data(self) -> DataSource:
        """Where data sets are read from."""
        ...

    @property
    def trial_ids(self) -> Sequence[str]:
        """Identity of each trial of the pack, in the order of its parameters."""
        ...

    @property
    def engine(self) -> Engine:
        """How the launch wants steps to be run."""
        ...

    def runs_as(self, engine: Engine, compile_s: float | None = None) -> None:
        """Tell how steps are run, and how long compiling them took; without these seconds it is being compiled now."""
        ...

    def should_stop(self) -> bool:
        """Whether to save a checkpoint now and raise `Interrupted`."""
        ...

    def progress(self, step: int, num_steps: int) -> None:
        """Tell how far the pack (or the trial that runs alone) has come; cheap, call it at every step."""
        ...

    def show_curves(self, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Let others see the curves of trials while they train: trial -> its rows of the table, a list that only grows.

        Cheap: call it once, before training; the list is looked at from another thread every few seconds.
        """
        ...

    def report(self, step: int, values: Mapping[int, Mapping[str, float | None]]) -> set[int]:
        """Tell what trials measure while they train (position in the pack -> name -> value); return those to leave out.

        A trial is left out, without a result, when the search it belongs to prunes it. A task that runs its trials in
        turn reports position 0 and raises `Pruned`.
        """
        ...

    def checkpoint_due(self) -> bool:
        """Whether the last checkpoint is old enough for a new one."""
        ...

    def save_checkpoint(self, content: bytes) -> None:
        """Keep `content` until the trials are committed; replaces what was kept before, at once or not at all."""
        ...

    def load_checkpoint(self) -> bytes | None:
        """Return what an earlier attempt saved, or None."""
        ...

    def for_trial(self, index: int) -> TaskContext:
        """Return this context narrowed to one trial, with a checkpoint of its own."""
        ...


class ResultStatus(StrEnum):
    """How a trial came out."""

    OK = "ok"
    DIVERGED = "diverged"
    """Its loss stopped being finite, which is a result, not a failure."""
    PRUNED = "pruned"
    """Left out by its search on the way: no result."""


@dataclass(frozen=True)
class TrialResult:
    """What one trial of a pack gave."""

    index: int
    """Position of the trial in its pack."""
    tables: Tables
    status: ResultStatus = ResultStatus.OK
    num_steps: int | None = None
    """Training steps taken; null for a task that does not train."""
    peak_memory_gb: float | None = None
    """Of the accelerator; null where the process's own peak is meant."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", ResultStatus(self.status))  # tasks may say it as text


RunPack = Callable[[Sequence[Params], TaskContext], Iterator[TrialResult]]


def _accept(*_: Any) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Task:
    """A train-then-measure function with its parameter schema."""

    name: str
    version: int
    schema: ParameterSchema
    run: RunPack
    """Runs a pack, yields each trial's result; one that runs its trials in turn yields them as they finish."""
    fused: bool
    """Whether the trials of a pack run together and are committed together."""
    doc: str = ""
    measurements: tuple[Measurement, ...] = ()
    """What it measures, in the order readers see it; columns it does not declare are kept and shown by their names."""
    panels: tuple[Panel, ...] = ()
    """What the report draws of it beside its measurements one by one, in this order."""
    complete: Callable[[dict[str, Any]], None] = _accept
    """Sets what the other parameters of a trial imply (a content's hash), before it is checked and named."""
    check_trial: Callable[[Params], None] = _accept
    """Raises `ParameterError` for a combination that cannot run."""
    check_data: Callable[[Sequence[Params], DataSource], None] = _accept
    """Raises `DatasetError` when what these trials read is not there."""
    check_contents: Callable[[Sequence[Params], DataSource], None] = _accept
    """Reads what these trials read, and raises `DatasetError` when it is damaged."""
    chained: Callable[[Params], str | None] = _accept
    """The parameter along which such a trial is one of a chain, null for none: those of a chain share a pack and count as one
    in it, and `memory_bytes` and `estimate_s` speak of the whole chain up to a trial."""
    max_pack_size: Callable[[Params, str], int] = field(default=lambda params, device: 16)
    """Most trials of this shape that run well in one pack on a device (cpu or cuda)."""
    memory_bytes: Callable[[Params, int, str], float] | None = None
    """Predicted peak memory of a pack of so many trials of this shape on a device; null for a task that does not say."""
    measured: Callable[[Params, int], tuple[Sequence[int], Sequence[int]]] | None = None
    """(steps, layers) that a trial which took so many steps has measured; null for a task that does not say."""
    remarks: Callable[[Sequence[Params]], Sequence[str]] = field(default=lambda trials: ())
    """Sentences that a plan of these trials says."""
    estimate_s: Callable[[Params], float] | None = None
    """Rough seconds of one trial on one CPU core; packs start longest first. One for all trials of a fused pack."""
    engine: Callable[[Params, Engine, str], Engine] | None = None
    """How the steps of such a trial run, given what was asked for and the device; null for a task without the choice."""
    code: TaskCode | None = None
    """The source of a user's task; null for one that comes with depthrate, which its version stands for."""
    told_apart: str = ""
    """How the user tells trials of changed code apart, where a raised version is not the way."""
    defined_at: str = ""
    """Where a user's task is written: file and line."""

    def __post_init__(self) -> None:
        """Check the measurements.

        Raises:
            MeasurementError: two have one name, or one names a gap that is not measured.
        """
        by_name(self.measurements)


def added_parameters(*tasks: Task) -> dict[tuple[str, int], dict[str, Any]]:
    """Return (task, version) -> parameters that it gained after its first trials -> the values of trials from before."""
    return {(each.name, each.version): each.schema.added for each in tasks}


def task(
    *,
    version: int = 1,
    fusible: Sequence[str] | None = None,
    measurements: Sequence[Measurement] = (),
    panels: Sequence[Panel] = (),
    added: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function as a task; its keyword arguments are the parameter schema.

    Without `fusible` it is called once a trial and returns that trial's tables. With `fusible` it is called once a
    pack: each named argument arrives as a list with one value a trial, and it returns a list of tables (None: pruned).
    With `measurements` fits, searches and the report know its columns before any trial runs; `panels` are what the report
    draws of them together.

    `added` names arguments that the task gained later, whose defaults give what it did before: trials with them are the
    trials of before, which are not run again. The version is raised when results change.

    Raises:
        ParameterError: an argument has no usable annotation, `fusible` or `added` names something that is not an
            argument, or an added argument has no default.
        MeasurementError: two measurements have one name.
    """

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        made = _task_of_function(function, version, fusible, tuple(measurements), added)
        made = dataclasses.replace(made, panels=tuple(panels))
        function.__depthrate_task__ = made  # type: ignore[attr-defined]
        return function

    return mark


def _task_of_function(
    function: Callable[..., Any],
    version: int,
    fusible: Sequence[str] | None,
    measurements: tuple[Measurement, ...],
    added: Sequence[str],
) -> Task:
    schema = schema_of_function(function, ("seed",) if fusible is None else fusible, added)
    for word, names in (("fusible", fusible or ()), ("added", added)):
        for name in names:
            schema.require_known(name, f"{word} of task {function.__name__!r}")
    run = _run_fused(function, schema) if fusible else _run_in_turn(function)
    path = Path(inspect.getfile(function))
    stem = path.stem
    return Task(
        name=f"{stem}:{function.__name__}",
        version=version,
        schema=schema,
        run=run,
        fused=bool(fusible),
        doc=inspect.getdoc(function) or "",
        measurements=measurements,
        defined_at=f"{path.name}, line {function.__code__.co_firstlineno}",
    )


def _call(function: Callable[..., Any], params: Params, context: TaskContext) -> Any:
    if "context" in inspect.signature(function).parameters:
        return function(**params, context=context)
    return function(**params)


def _run_in_turn(function: Callable[..., Any]) -> RunPack:
    def run(trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        failures: list[Exception] = []
        for index, params in enumerate(trials):
            if context.should_stop():
                raise Interrupted
            try:
                tables = _call(function, params, context.for_trial(index))
            except (Interrupted, MemoryError):
                raise
            except Pruned:
                yield TrialResult(index, {}, status=ResultStatus.PRUNED)
                continue
            except Exception as error:  # the other trials of the pack have nothing to do with it
                error.add_note(f"trial {context.trial_ids[index]} with {dict(params)}")
                failures.append(error)
                continue
            yield TrialResult(index, tables)
        if failures:
            raise failures[0]

    return run


def _run_fused(function: Callable[..., Any], schema: ParameterSchema) -> RunPack:
    def run(trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        shared = {name: value for name, value in trials[0].items() if name not in schema.fusible}
        varying = {name: [params[name] for params in trials] for name in schema.fusible}
        results = _call(function, {**shared, **varying}, context)
        if len(results) != len(trials):
            raise TaskError(
                f"task returned {len(results)} results for a pack of {len(trials)} trials; return one a trial"
            )
        for index, tables in enumerate(results):
            yield TrialResult(index, {}, status=ResultStatus.PRUNED) if tables is None else TrialResult(index, tables)

    return run
