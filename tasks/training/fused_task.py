"""The base of tasks whose trials train in fused steps. Importable without torch.

A task of this kind is a class of parameters (`TrainingParameters`) and a class below `NetworkTask` that says of a trial its
network and its data's shape, and of a pack what it trains on and what is measured; checks of data, memory, time, sizes of packs
and the life of a pack follow. One without such a network is a class below `FusedTask`. How to add one: a folder with both, and
an entry point in the group `depthrate.tasks` (`pyproject.toml`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from depthrate.tasks.data import published
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.data.published import check_dataset, check_test
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.importing import gc_paused
from depthrate.tasks.interface import Engine, Params, Task, TaskContext, TrialResult
from depthrate.tasks.networks.network import Network
from depthrate.tasks.parameters import ParameterError, changed
from depthrate.tasks.training.cost import PackShape, estimate_s, max_pack_size
from depthrate.tasks.training.engines.choice import check_precision, select_engine
from depthrate.tasks.training.memory import memory_bytes
from depthrate.tasks.training.parameters import TrainingParameters
from depthrate.tasks.training.polish.polish_parameters import (
    chain,
    marked_steps,
    polish_plan,
    taken_steps,
    training_steps,
)

if TYPE_CHECKING:
    from depthrate.tasks.training.training import Training

Trial = TypeVar("Trial", bound=TrainingParameters)


class FusedTask(Task, Generic[Trial]):
    """A task whose packs train and are measured together."""

    parameters: type[Trial]
    """Its parameters; trials come as mappings, and are read as this from there on."""
    fused = True

    def __init_subclass__(cls) -> None:
        """Take the schema of the class of parameters."""
        if "parameters" in vars(cls) and "schema" not in vars(cls):
            cls.schema = cls.parameters.schema

    @abstractmethod
    def training(self, trials: Sequence[Trial], source: DataSource) -> Training:
        """Return what a pack of trials does; here torch is imported, and not before.

        Raises:
            DatasetError: what they read is missing or damaged.
        """

    def check(self, trial: Trial) -> None:
        """Refuse a combination that cannot run.

        Raises:
            ParameterError: naming the parameters that exclude each other.
        """

    def published_sets(self, trial: Trial) -> Sequence[str]:
        """Return the published data sets that a trial reads."""
        return ()

    def read(self, params: Params) -> Trial:
        """Return the parameters of a trial as attributes."""
        return self.parameters.from_params(params)

    def run(self, trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        """Train and measure a pack of trials of one shape; results come when the whole pack is done.

        Raises:
            Interrupted: it was asked to stop and has saved a checkpoint.
        """
        with gc_paused():
            from depthrate.tasks.training.training_pack import run_training

        yield from run_training(self.training([self.read(params) for params in trials], context.data), context)

    def check_trial(self, params: Params) -> None:
        """Refuse a combination that cannot run.

        Raises:
            ParameterError: naming the parameters that exclude each other.
        """
        self.check(self.read(params))

    def check_data(self, trials: Sequence[Params], source: DataSource) -> None:
        """Refuse trials whose data set, or its test split where that is measured, is not there.

        Raises:
            DatasetError: saying where it looked and how to get the files.
        """
        read = [self.read(params) for params in trials]
        for name in self._published_sets(read):
            check_dataset(name, source)
        for name in self._published_sets(trial for trial in read if trial.test):
            check_test(name, source)

    def check_contents(self, trials: Sequence[Params], source: DataSource) -> None:
        """Refuse trials whose data set is damaged.

        Raises:
            DatasetError: naming the file, what was expected of it, and what to do.
        """
        for name in self._published_sets(self.read(params) for params in trials):
            published.check_contents(name, source)

    def _published_sets(self, trials: Iterable[Trial]) -> list[str]:
        return list(dict.fromkeys(name for trial in trials for name in self.published_sets(trial)))


class NetworkTask(FusedTask[Trial]):
    """A task whose trials are networks on a data set, all for as many steps."""

    has_engines: ClassVar[bool] = False
    """Whether its steps are the trainer's own, so that engines are a choice."""

    @abstractmethod
    def data_shape(self, trial: Trial) -> DataShape:
        """Return the shape of the training set, known before it is read."""

    @abstractmethod
    def network(self, trial: Trial, data: DataShape) -> Network:
        """Return the network of a trial, for data of that shape."""

    def check_trial(self, params: Params) -> None:
        """Refuse a combination that cannot run.

        Raises:
            ParameterError: naming the parameters that exclude each other.
        """
        super().check_trial(params)
        trial = self.read(params)
        data = self.data_shape(trial)
        if min(trial.batch_size or data.num_samples, data.num_samples) > 1:
            return
        if self.network(trial, data).min_batch_size > 1:
            raise ParameterError(
                f"batch_size is {trial.batch_size}, with one sample in a step, but arch {trial.arch!r} normalises over a "
                "step's samples; give a batch_size of at least 2, or more samples"
            )

    def pack_shape(self, trial: Trial) -> PackShape:
        """Return what the memory and the time of a pack of such trials depend on."""
        data = self.data_shape(trial)
        return PackShape(
            network=self.network(trial, data),
            data=data,
            batch_size=trial.batch_size,
            num_steps=training_steps(trial, data.num_samples),
            num_measured_steps=len(marked_steps(trial, data.num_samples)),
            optimizer=trial.optimizer,
            label_smoothing=trial.label_smoothing,
            dtype=trial.dtype,
            matmul_precision=trial.matmul_precision,
            polish=polish_plan(trial),
        )

    def chain_parameter(self, params: Params) -> str | None:
        """Return depth for a trial that continues the solutions of smaller depths."""
        return "depth" if self.read(params).continuation else None

    def max_pack_size(self, params: Params, device: str) -> int:
        """Return the most trials of this shape that run well in one pack."""
        shape = self.pack_shape(self.read(params))
        return 1 if shape.network.unfused_reason is not None else max_pack_size(shape, device)

    def memory_bytes(self, params: Params, num_trials: int, device: str) -> float | None:
        """Return the predicted peak memory of a pack of so many trials of this shape."""
        return memory_bytes(self.pack_shape(self.read(params)), num_trials, device)

    def estimate_s(self, params: Params, engine: Engine = Engine.EAGER) -> float | None:
        """Return the rough seconds of one trial on one CPU core, all depths of its chain together."""
        return sum(estimate_s(shape, engine) for shape in self._chain_shapes(self.read(params)))

    def engine(self, params: Params, asked: Engine, device: str) -> Engine | None:
        """Return how the steps of such a trial run: in a chain those of the first depth, the only one with steps.

        Raises:
            EngineError: steps cannot run as they were asked for, or not in the trial's precision on that device.
        """
        trial = self.read(params)
        check_precision(trial.matmul_precision, device)
        return select_engine(asked, self._chain_shapes(trial)[0], device) if self.has_engines else None

    def _chain_shapes(self, trial: Trial) -> list[PackShape]:
        depths = chain(trial) if trial.continuation else []
        return [self.pack_shape(changed(trial, depth=depth)) for depth in depths] or [self.pack_shape(trial)]

    def measured(self, params: Params, steps: int) -> tuple[Sequence[int], Sequence[int]] | None:
        """Return the (steps, layers) at which a trial that took so many steps was measured."""
        trial = self.read(params)
        data = self.data_shape(trial)
        layers = self.network(trial, data).measured_layers()
        return taken_steps(trial, data.num_samples, steps), [layer.number for layer in layers]
