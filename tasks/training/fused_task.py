"""Base classes for tasks whose trials train in fused steps. Importable without torch.

A task has a class of parameters (`TrainingParameters`) and a subclass of `NetworkTask`, which defines a trial's network
and data shape and a pack's training. Checks of the data, estimates of memory and time, pack sizes and the training loop are
inherited. A task without a network derives from `FusedTask`. To add a task, create a folder with both classes and an entry
point in the group `depthrate.tasks` (`pyproject.toml`).
"""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from depthrate.tasks.data import published
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.data.published import check_dataset, check_test
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.importing import gc_paused
from depthrate.tasks.interface import Engine, Interrupted, Params, Task, TaskContext, TrialResult
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.networks.network import GENERATED, Network
from depthrate.tasks.parameters import ParameterError, changed
from depthrate.tasks.training.cost import GPU_TRIALS_AT_ONCE, PackShape, estimate_s, max_pack_size, step_s
from depthrate.tasks.training.engines.choice import check_precision, native_unsupported_reason, select_engine
from depthrate.tasks.training.memory import memory_bytes
from depthrate.tasks.training.parameters import TrainingParameters
from depthrate.tasks.training.polish.polish_parameters import chain, polish_plan, training_steps
from depthrate.tasks.training.recording import recorded_steps, taken_steps

if TYPE_CHECKING:
    from depthrate.tasks.training.training import Training

Trial = TypeVar("Trial", bound=TrainingParameters)


class FusedTask(Task, Generic[Trial]):
    """A task whose packs are trained and measured as one batched computation."""

    parameters: type[Trial]
    """Class of parameters that trials, which arrive as mappings, are converted to."""
    fused = True

    def __init_subclass__(cls) -> None:
        """Set the schema from the class of parameters."""
        if "parameters" in vars(cls) and "schema" not in vars(cls):
            cls.schema = cls.parameters.schema

    @abstractmethod
    def training(self, trials: Sequence[Trial], source: DataSource) -> Training:
        """Build the training of a pack. torch is imported here, not earlier.

        Raises:
            DatasetError: The trials' data is missing or corrupt.
        """

    def check(self, trial: Trial) -> None:
        """Check that the parameters can be combined.

        Raises:
            ParameterError: They conflict.
        """

    def published_sets(self, trial: Trial) -> Sequence[str]:
        """Return the published data sets that a trial reads."""
        return ()

    def read(self, params: Params) -> Trial:
        """Convert a trial's parameters to attributes."""
        return self.parameters.from_params(params)

    def run(self, trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        if "torch" not in sys.modules:
            self.prepare(trials[0], context)
        with gc_paused():
            from depthrate.tasks.training.training_pack import run_training

        yield from run_training(self.training([self.read(params) for params in trials], context.data), context)

    def prepare(self, params: Params, context: TaskContext) -> None:
        """Start in the background the preparations for a process's first pack, before torch is imported."""

    def check_trial(self, params: Params) -> None:
        self.check(self.read(params))

    def check_data(self, trials: Sequence[Params], source: DataSource) -> None:
        parameters = [self.read(params) for params in trials]
        for name in self._published_sets(parameters):
            check_dataset(name, source)
        for name in self._published_sets(trial for trial in parameters if trial.test):
            check_test(name, source)

    def check_contents(self, trials: Sequence[Params], source: DataSource) -> None:
        for name in self._published_sets(self.read(params) for params in trials):
            published.check_contents(name, source)

    def _published_sets(self, trials: Iterable[Trial]) -> list[str]:
        return list(dict.fromkeys(name for trial in trials for name in self.published_sets(trial)))


class NetworkTask(FusedTask[Trial]):
    """A task whose trials are networks on a data set, with equal numbers of steps."""

    @abstractmethod
    def data_shape(self, trial: Trial) -> DataShape:
        """Return the shape of the training set without reading it."""

    @abstractmethod
    def network(self, trial: Trial, data: DataShape) -> Network:
        """Build the network of a trial for data of this shape."""

    def check_trial(self, params: Params) -> None:
        super().check_trial(params)
        trial = self.read(params)
        data = self.data_shape(trial)
        if min(trial.batch_size or data.num_samples, data.num_samples) > 1:
            return
        if self.network(trial, data).min_batch_size > 1:
            raise ParameterError(
                f"batch_size is {trial.batch_size}, with one sample per step, but arch {trial.arch!r} normalises over a step's "
                "samples. Use a batch_size of at least 2, or more samples."
            )

    def pack_shape(self, trial: Trial) -> PackShape:
        """Build the shape that determines a pack's memory and time."""
        data = self.data_shape(trial)
        steps, recorded = training_steps(trial, data.num_samples), recorded_steps(trial, data)
        return PackShape(
            network=self.network(trial, data),
            data=data,
            batch_size=trial.batch_size,
            num_steps=steps,
            num_measured_steps=len(recorded.measured),
            num_curve_rows=sum(step <= steps for step in recorded.curves),
            optimizer=trial.optimizer,
            label_smoothing=trial.label_smoothing,
            dtype=trial.dtype,
            matmul_precision=trial.matmul_precision,
            polish=polish_plan(trial),
            measure=trial.measure,
        )

    def chain_parameter(self, params: Params) -> str | None:
        """Return "depth" for a trial that continues the solutions of smaller depths, and None for other trials."""
        return "depth" if self.read(params).continuation else None

    def max_pack_size(self, params: Params, device: str) -> int:
        shape = self.pack_shape(self.read(params))
        if shape.network.unfused_reason is not None:
            return 1
        most, unit = max_pack_size(shape, device), self.pack_unit(params, device)
        return most if unit == 1 else max(most, 2 * unit)

    def pack_unit(self, params: Params, device: str) -> int:
        """Return the number of trials that train at the same time: on a GPU with kernels, where each trial is one block."""
        if device != "cuda" or native_unsupported_reason(self.pack_shape(self.read(params)), device) is not None:
            return 1
        return GPU_TRIALS_AT_ONCE

    def memory_bytes(self, params: Params, num_trials: int, device: str) -> float | None:
        return memory_bytes(self.pack_shape(self.read(params)), num_trials, device)

    def estimate_s(self, params: Params, engine: Engine = Engine.EAGER) -> float | None:
        """Estimate the seconds of one trial on one CPU core, over all depths of its chain."""
        return sum(estimate_s(shape, engine) for shape in self._chain_shapes(self.read(params)))

    def step_s(self, params: Params, engine: Engine = Engine.EAGER) -> float | None:
        shape = self._chain_shapes(self.read(params))[0]
        return step_s(shape, shape.batch_size or shape.data.num_samples, engine) if shape.num_steps else None

    def engine(self, params: Params, requested: Engine, device: str) -> Engine | None:
        """Choose the engine of a trial's steps. In a chain only the first depth has training steps."""
        trial = self.read(params)
        check_precision(trial.matmul_precision, device)
        return select_engine(requested, self._chain_shapes(trial)[0], device)

    def eager_reason(self, params: Params, device: str) -> str | None:
        return native_unsupported_reason(self._chain_shapes(self.read(params))[0], device)

    def prepare(self, params: Params, context: TaskContext) -> None:
        """Start building the kernels of native steps, which the training then waits for. Errors are raised there."""
        from depthrate.tasks.native.build import NUMBERS, load_library

        trial = self.read(params)
        with suppress(EngineError):
            shape = self.pack_shape(trial)
            kernels = shape.network.native_kernels(shape.has_classes)
            is_generated = kernels.family == GENERATED
            # of other networks only torch finds out whether steps can be generated
            is_early = shape.network.has_generated_steps and context.device == "cpu"
            if (is_generated and not is_early) or self.engine(
                params, context.engine, context.device
            ) is not Engine.NATIVE:
                return
            constants = {"NUMBER": NUMBERS[trial.dtype], **kernels.constants}

            def build() -> None:
                with suppress(EngineError, Interrupted):
                    load_library(kernels.family, constants, context.should_stop)

            threading.Thread(target=build, name="kernels", daemon=True).start()

    def _chain_shapes(self, trial: Trial) -> list[PackShape]:
        depths = chain(trial) if trial.continuation else []
        return [self.pack_shape(changed(trial, depth=depth)) for depth in depths] or [self.pack_shape(trial)]

    def measured(self, params: Params, steps: int) -> tuple[Sequence[int], Sequence[int]] | None:
        trial = self.read(params)
        data = self.data_shape(trial)
        layers = self.network(trial, data).measured_layers()
        return taken_steps(recorded_steps(trial, data).measured, steps), [layer.number for layer in layers]
