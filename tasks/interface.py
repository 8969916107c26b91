"""What a task is: parameters, a version, and how a pack of its trials runs. Importable without torch."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from depthrate.tasks.code.collect import TaskCode
    from depthrate.tasks.data.sources import DataSource
    from depthrate.tasks.metric import Metric
    from depthrate.tasks.panel import Panel
    from depthrate.tasks.parameters import ParameterSchema

Params = Mapping[str, Any]
Tables = Mapping[str, Any]
"""Table name (metrics, curves, features) -> list of dicts, pandas frame or Arrow table."""


class TaskError(ValueError):
    """A task cannot be found or loaded, or refuses a trial before it starts."""


class Interrupted(Exception):
    """Raised by a task that was asked to stop, after it saved its checkpoint."""


class Diverged(Exception):
    """A loop of the user's own ended without a finite loss, so that nothing is left to measure."""

    def __init__(self, curves: list[dict[str, Any]]):
        super().__init__("the last logged loss is NaN or infinite")
        self.curves = curves
        """What it logged."""


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


class SharedLibraries(Protocol):
    """Libraries of kernels that machines leave for each other, by the names of their files."""

    def iter_matching(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of those whose name begins so.

        Raises:
            OSError: others decide what they are, or they cannot be read.
        """
        ...

    def keep(self, path: Path) -> None:
        """Leave one there, unless it is there already or nobody may take it over."""
        ...


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

    @property
    def libraries(self) -> SharedLibraries | None:
        """Where kernels are left for machines that cannot build them; null where there is no such place."""
        ...

    def report_engine(self, engine: Engine, compile_s: float | None = None) -> None:
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


def has_diverged(rows: Iterable[tuple[int | None, str | None, Any]]) -> bool:
    """Whether the last `loss` of the training split is NaN or infinite, in rows (step, split, loss); null is no loss."""
    losses = [(step or 0, float(loss)) for step, split, loss in rows if loss is not None and split in (None, "train")]
    end = max((step for step, _ in losses), default=0)
    # all of that step: in a frame NaN is also what a row without a loss has
    return bool(losses) and not any(math.isfinite(loss) for step, loss in losses if step == end)


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


class Task(ABC):
    """A train-then-measure function with its parameters. How to add one: see `training.fused_task`, or `depthrate.task`."""

    name: str
    version: int
    schema: ParameterSchema
    """Its parameters: their checks, defaults and docs."""
    fused: bool
    """Whether the trials of a pack run together and are committed together."""
    doc: str = ""
    measurements: tuple[Metric, ...] = ()
    """What it measures, in the order readers see it; columns it does not declare are kept and shown by their names."""
    panels: tuple[Panel, ...] = ()
    """What the report draws of it beside its measurements one by one, in this order."""
    code: TaskCode | None = None
    """The source of a user's task; null for one that comes with depthrate, which its version stands for."""
    distinguished_by: str = ""
    """How the user tells trials of changed code apart, where a raised version is not the way."""
    defined_at: str = ""
    """Where a user's task is written: file and line."""

    @property
    def measurable(self) -> tuple[Metric, ...]:
        """What its trials may hold, for fits, figures and searches; nothing where that is unknown."""
        return self.measurements

    @abstractmethod
    def run(self, trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        """Run a pack and yield each trial's result; a task that runs its trials in turn yields them as they finish."""

    def complete(self, params: dict[str, Any]) -> None:
        """Set what the other parameters of a trial imply (a content's hash), before it is checked and named."""
        return None

    def check_trial(self, params: Params) -> None:
        """Refuse a combination that cannot run.

        Raises:
            ParameterError: naming the parameters that exclude each other.
        """
        return None

    def check_data(self, trials: Sequence[Params], source: DataSource) -> None:
        """Refuse trials whose data are not there.

        Raises:
            DatasetError: saying where it looked and how to get the files.
        """
        return None

    def check_contents(self, trials: Sequence[Params], source: DataSource) -> None:
        """Read what these trials read, and refuse what is damaged.

        Raises:
            DatasetError: naming the file, what was expected of it, and what to do.
        """
        return None

    def chain_parameter(self, params: Params) -> str | None:
        """Return the parameter along which such a trial is one of a chain, null for none.

        The trials of a chain share a pack and count as one in it; `memory_bytes` and `estimate_s` speak of the whole chain up
        to a trial.
        """
        return None

    def max_pack_size(self, params: Params, device: str) -> int:
        """Return the most trials of this shape that run well in one pack on a device (cpu or cuda)."""
        return 16

    def memory_bytes(self, params: Params, num_trials: int, device: str) -> float | None:
        """Return the predicted peak memory of a pack of so many trials of this shape; null for a task that does not say."""
        return None

    def estimate_s(self, params: Params, engine: Engine = Engine.EAGER) -> float | None:
        """Return the rough seconds of one trial on one CPU core, the same for all of a fused pack; null: it does not say.

        engine: what runs its steps, where the task has that choice.
        """
        return None

    def measured(self, params: Params, steps: int) -> tuple[Sequence[int], Sequence[int]] | None:
        """Return the (steps, layers) that a trial which took so many steps has measured; null: it does not say."""
        return None

    def engine(self, params: Params, asked: Engine, device: str) -> Engine | None:
        """Return how the steps of such a trial run, given what was asked for; null for a task without the choice."""
        return None

    def remarks(self, trials: Sequence[Params]) -> Sequence[str]:
        """Return sentences that a plan of these trials says."""
        return ()


def __getattr__(name: str) -> Any:
    if name != "task":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import depthrate

    warnings.warn("depthrate.tasks.interface.task is depthrate.task; import that", DeprecationWarning, stacklevel=2)
    return depthrate.task
