"""Contract of a task: its parameters, its version, and how it runs a pack. Importable without torch."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from depthrate.errors import InputError

if TYPE_CHECKING:
    from depthrate.tasks.data.sources import DataSource
    from depthrate.tasks.figure_request import FigureRequest
    from depthrate.tasks.metric import Metric
    from depthrate.tasks.parameters import ParameterSchema

Params = Mapping[str, Any]
Tables = Mapping[str, Any]
"""Table name (metrics, curves, features) -> list of dicts, pandas frame or Arrow table."""
CUSTOM = "own"
"""Task of trials on classes with a custom network or custom data. Stores use this name."""


class TaskError(InputError):
    """The task does not exist, cannot be loaded, or rejects one of the trials before they start."""


class Interrupted(Exception):
    """Raised by a task when a stop is requested, after it has saved its checkpoint."""


class Diverged(Exception):
    """A custom training loop ended without a finite loss."""

    def __init__(self, curves: list[dict[str, Any]]):
        super().__init__("the last logged loss is NaN or infinite")
        self.curves = curves
        """Rows logged before the end."""


class Pruned(Exception):
    """Raised by a task for a trial that `report` pruned."""


class Engine(StrEnum):
    """Method of executing training steps."""

    AUTO = "auto"
    """Native if kernels exist, otherwise eager."""
    NATIVE = "native"
    """C++ kernels that run many steps per call, for networks that have kernels."""
    EAGER = "eager"
    """One operation at a time."""


@dataclass(frozen=True)
class TaskCode:
    """Files that determine a task's behaviour, as they were when read."""

    root: Path = field(compare=False)
    """Folder that paths are relative to and modules are imported from."""
    main: str
    """Path of the task's file."""
    files: tuple[tuple[str, bytes], ...]
    """(path, content) of all files, sorted."""

    @property
    def contents(self) -> Mapping[str, bytes]:
        return dict(self.files)

    @functools.cached_property
    def content_hash(self) -> str:
        """Id of this code version: 32 hex digits of the SHA-256 over the paths and hashes of its files."""
        hashes = {path: hashlib.sha256(content).hexdigest() for path, content in self.files}
        index = json.dumps({"files": hashes, "main": self.main}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(index.encode()).hexdigest()[:32]


class SharedLibraries(Protocol):
    """Kernel libraries shared between machines, by file name."""

    def iter_matching(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Yield the name and content of each library whose name starts with `prefix`.

        Raises:
            OSError: Another user can write the libraries, or they cannot be read.
        """

    def keep(self, path: Path) -> None:
        """Share a library, unless it is shared already or no other machine may use it."""


class TaskContext(Protocol):
    """Services that a worker provides to a running task."""

    @property
    def device(self) -> str:
        """Device to compute on: cpu or cuda."""

    @property
    def data(self) -> DataSource:
        """Source of the data sets."""

    @property
    def trial_ids(self) -> Sequence[str]:
        """Id of each trial of the pack, in the order of its parameters."""

    @property
    def engine(self) -> Engine:
        """Engine that the launch requests."""

    @property
    def libraries(self) -> SharedLibraries | None:
        """Kernel libraries for machines that cannot build them, or None."""

    def report_engine(self, engine: Engine, compile_s: float | None = None) -> None:
        """Report the engine in use and the seconds spent building its kernels (None while they are built, or without any)."""

    def should_stop(self) -> bool:
        """Return whether to save a checkpoint now and raise `Interrupted`."""

    def progress(self, step: int, num_steps: int) -> None:
        """Report the steps done by the pack, or by the trial that runs alone. The call is cheap enough for every step."""

    def show_curves(self, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Publish live curves: trial id -> rows of the table `curves`, a list that only grows.

        Call it once, before training. Another thread reads the lists every few seconds.
        """

    def report(self, step: int, values: Mapping[int, Mapping[str, float | None]]) -> set[int]:
        """Report metrics during training (position in the pack -> name -> value), and return the positions to prune.

        A pruned trial has no result. A task that runs its trials in turn reports position 0 and raises `Pruned`.
        """

    def checkpoint_due(self) -> bool:
        """Return whether it is time to save a checkpoint."""

    def save_checkpoint(self, content: bytes) -> None:
        """Store a checkpoint until the trials are committed. It replaces the previous one atomically."""

    def load_checkpoint(self) -> bytes | None:
        """Return the checkpoint of an earlier attempt, or None."""

    def for_trial(self, index: int) -> TaskContext:
        """Return this context narrowed to one trial, with a separate checkpoint."""


class ResultStatus(StrEnum):
    """Outcome of a trial."""

    OK = "ok"
    DIVERGED = "diverged"
    """The loss became NaN or infinite. This is a result, not a failure."""
    PRUNED = "pruned"
    """Stopped early by its search, without a result."""


def has_diverged(rows: Iterable[tuple[int | None, str | None, Any]]) -> bool:
    """Return whether the last training loss in rows of (step, split, loss) is NaN or infinite (None is skipped)."""
    losses = [(step or 0, float(loss)) for step, split, loss in rows if loss is not None and split in (None, "train")]
    end = max((step for step, _ in losses), default=0)
    # Check all rows of the step, since in a frame a row without a loss also has NaN.
    return bool(losses) and not any(math.isfinite(loss) for step, loss in losses if step == end)


@dataclass(frozen=True)
class TrialResult:
    """Result of one trial of a pack."""

    index: int
    """Position of the trial in its pack."""
    tables: Tables
    status: ResultStatus = ResultStatus.OK
    num_steps: int | None = None
    """Training steps taken, or None if the task does not train."""
    peak_memory_gb: float | None = None
    """Peak memory of the accelerator, or None for the peak of the process."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", ResultStatus(self.status))  # tasks may pass a str


class Task(ABC):
    """A function that trains and measures, with its parameters. To add one, see `training.fused_task` or `depthrate.task`."""

    name: str
    version: int
    schema: ParameterSchema
    """Parameters with their checks, defaults and docs."""
    fused: bool
    """Whether a pack's trials run together and are committed together."""
    doc: str = ""
    measurements: tuple[Metric, ...] = ()
    """Declared metrics, in display order. Undeclared columns are stored and shown by name."""
    figures: tuple[FigureRequest, ...] = ()
    """Figures that the report adds to the standard ones, in order. One whose x does not vary is left out."""
    code: TaskCode | None = None
    """Source of a custom task, or None for a built-in one, which its version identifies."""
    distinguished_by: str = ""
    """Instruction for keeping trials of changed code apart, if this is not done by raising the version."""
    defined_at: str = ""
    """File and line of a custom task."""

    @property
    def measurable(self) -> tuple[Metric, ...]:
        """All metrics that its trials may have, for fits, figures and searches. Empty if unknown."""
        return self.measurements

    @abstractmethod
    def run(self, trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        """Run a pack and yield each trial's result. Trials that run in turn are yielded as they finish."""

    def complete(self, params: dict[str, Any]) -> None:
        """Set the parameters implied by other parameters, such as a content hash, before the trial is checked and named."""
        return None

    def check_trial(self, params: Params) -> None:
        """Reject a combination of parameters that cannot run.

        Raises:
            ParameterError: Names the parameters that are mutually exclusive.
        """
        return None

    def check_data(self, trials: Sequence[Params], source: DataSource) -> None:
        """Reject trials whose data do not exist.

        Raises:
            DatasetError: Names the searched location and how to get the files.
        """
        return None

    def check_contents(self, trials: Sequence[Params], source: DataSource) -> None:
        """Read the data of these trials and reject corrupt files.

        Raises:
            DatasetError: Names the file, its expected content, and the fix.
        """
        return None

    def chain_parameter(self, params: Params) -> str | None:
        """Return the parameter that varies along the chain of this trial, or None.

        The trials of a chain share a pack and count as one. `memory_bytes` and `estimate_s` then cover the whole chain up to
        the trial.
        """
        return None

    def max_pack_size(self, params: Params, device: str) -> int:
        """Return the maximum number of trials of this shape in a pack on a device (cpu or cuda)."""
        return 16

    def pack_unit(self, params: Params, device: str) -> int:
        """Return the number of trials of this shape that a device trains at the same time. Larger packs are multiples of it."""
        return 1

    def memory_bytes(self, params: Params, num_trials: int, device: str) -> float | None:
        """Return the predicted peak memory of a pack of `num_trials` trials of this shape, or None if unknown."""
        return None

    def estimate_s(self, params: Params, engine: Engine = Engine.EAGER) -> float | None:
        """Estimate the seconds per trial on one CPU core, equal for all trials of a fused pack. Return None if unknown.

        Args:
            params: Parameters of the trial.
            engine: Engine of its steps, if the task has that choice.
        """
        return None

    def step_s(self, params: Params, engine: Engine = Engine.EAGER) -> float | None:
        """Estimate the seconds of a trial's training step on one CPU core. Return None if unknown, or without steps."""
        return None

    def measure_speed(
        self, trials: Sequence[Params], engine: Engine, source: DataSource, seconds: float
    ) -> tuple[Engine, float, float]:
        """Measure the steps of a pack with the requested engine, and those of a plain PyTorch loop, one trial at a time.

        Returns:
            The engine of the steps, and both numbers of trial-steps per CPU second, each measured for some seconds.
        Raises:
            TaskError: The steps of these trials cannot be measured.
            EngineError: The requested engine is not available on this machine.
        """
        raise TaskError(f"steps of task {self.name} cannot be measured. Run one pack: depthrate run SWEEP --pilot")

    def measured(self, params: Params, steps: int) -> tuple[Sequence[int], Sequence[int]] | None:
        """Return the (steps, layers) measured by a trial that took `steps` steps, or None if unknown."""
        return None

    def engine(self, params: Params, requested: Engine, device: str) -> Engine | None:
        """Return the engine that runs a trial if `requested` is requested, or None if the task offers no choice."""
        return None

    def eager_reason(self, params: Params, device: str) -> str | None:
        """Return why a trial cannot train natively, or None if it can or the task offers no choice."""
        return None

    def describe_data(self, trials: Sequence[Params]) -> Sequence[str]:
        """Return a line on each data set of these trials, which `depthrate plan` prints."""
        return ()

    def remarks(self, trials: Sequence[Params]) -> Sequence[str]:
        """Return remarks that `depthrate plan` prints about these trials."""
        return ()
