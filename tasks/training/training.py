"""What a task hands in to have its trials trained: on what, how, and what is measured of them. Shapes: T trials."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.data.dataset import Dataset, SampleStream
from depthrate.tasks.interface import Engine, SharedLibraries
from depthrate.tasks.native.library import Library
from depthrate.tasks.networks.network import Network
from depthrate.tasks.training.cost import PackShape
from depthrate.tasks.training.divergence import Divergence
from depthrate.tasks.training.engines.choice import select_engine
from depthrate.tasks.training.engines.native import native_library
from depthrate.tasks.training.held_out import HeldOut, Measure, Rows
from depthrate.tasks.training.layers import stored_features
from depthrate.tasks.training.parameters import TrainingParameters, learning_rate, milestone_steps
from depthrate.tasks.training.polish.polish_parameters import curve_steps, marked_steps, polish_plan, training_steps
from depthrate.tasks.training.trainer import Evaluation, FusedTrainer
from depthrate.tasks.training.training_plan import Hyperparameters, PolishPlan, TrainingPlan

Row = Mapping[str, Any]
ExtraCurves = Callable[[int, Row, Sequence[Row]], dict[str, float | None]]
"""From a trial's index in the pack, a row of its curves and those before it to the columns that the task adds to that row."""


class Trainer(Protocol):
    """What the life of a pack asks of whatever advances its trials."""

    step_count: int
    device: torch.device

    def use_native(self, library: Library) -> None:
        """Run native steps from now on.

        Raises:
            EngineError: they do not come out as eager ones do, but for rounding.
        """
        ...

    def advance(self, until: int, divergence: Divergence) -> bool:
        """Take a step or several, up to step `until`; return whether it looked who diverges."""
        ...

    def lr_at(self, step: int) -> list[float]:
        """Return the learning rate of each trial at a step."""
        ...

    def select(self, trials: Sequence[int]) -> None:
        """Go on with these trials only."""
        ...

    def state(self) -> dict[str, Any]:
        """Return all that training needs to go on, as tensors and numbers."""
        ...

    def load_state(self, state: Mapping[str, Any], trials: Sequence[int]) -> None:
        """Go on from what `state` gave: of these trials of it, in this order."""
        ...


class Recorder(Protocol):
    """What appends the rows of a test split."""

    def record(self, trainer: Any, step: int, tables: Mapping[int, tuple[Rows, Rows]], measured: Sequence[int]) -> None:
        """Append to (metrics, curves) of trials at a step; `tables` is a trial's position -> its rows."""
        ...


def _no_columns(index: int, row: Row, earlier: Sequence[Row]) -> dict[str, float | None]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Training(ABC):
    """What the life of a pack asks of its task: how its trials advance, and what is measured of them."""

    num_steps: Sequence[int]
    """Steps of each trial."""
    measured_steps: Sequence[Collection[int]]
    """Of each trial those at which it is measured, the last among them."""
    curve_steps: Sequence[Collection[int]]
    """Of each trial those that have a row of curves, those measured among them."""
    measure: Measure
    extra_curves: ExtraCurves = _no_columns
    matmul_precision: str = "full"
    polish: PolishPlan | None = None
    """What brings the trials towards a stationary point after training; its evaluations count as steps."""

    @abstractmethod
    def engine(self, asked: Engine, device: str) -> Engine:
        """Return how the steps are run, given what was asked for.

        Raises:
            EngineError: that cannot be: native steps that there are not, or a user's network compiled.
        """

    @abstractmethod
    def native_library(
        self, should_stop: Callable[[], bool], shared: SharedLibraries | None = None
    ) -> tuple[Library, float]:
        """Return the kernels of its steps, and the seconds it took to build them or to wait for that.

        Raises:
            EngineError, Interrupted: as `load_library`.
        """

    @abstractmethod
    def begin(self, device: str = "cpu") -> Trainer:
        """Return the trainer of all trials, on a device, before their first step."""

    @abstractmethod
    def evaluate(self, trainer: Any, positions: Sequence[int]) -> Any:
        """Return of the trials at these positions the numbers of a row of curves, one tensor a column, `loss` among them."""

    def test_split(self, device: str) -> Recorder | None:
        """Return what measures the trials on a test split; null: nothing does."""
        return None

    def intermediate_features(self, trainer: Any, position: int, index: int, step: int) -> dict[str, Any] | None:
        """Return the features that a trial keeps at a step at which it is measured, tensors and lists by column; null: none."""
        return None

    def final_features(self, trainer: Any, position: int, index: int, step: int) -> Mapping[str, Any] | None:
        """Return the features that a trial keeps which trained to its end; null: none."""
        return None


@dataclass(frozen=True, kw_only=True)
class NetworkTraining(Training):
    """Networks that train on one data set, all for as many steps."""

    network: Network
    dataset: Dataset
    """Arranged as the network reads it (`Network.arranged`)."""
    plan: TrainingPlan
    hyperparameters: Sequence[Hyperparameters]
    """One a trial."""
    measure_test: Measure | None = None
    """As `measure`, on the data set's test split, with a trainer over it; null: it is not measured."""
    trainer: Callable[..., FusedTrainer] = FusedTrainer
    """Makes the trainer from network, plan, hyper-parameters, samples and labels; a task may have a step of its own."""
    start_TP: Tensor | None = None
    """Parameters to begin with; null: drawn."""
    kept: Sequence[tuple[str, str]] = ()
    """Of each trial which features it keeps at the end (none, class_means, all, sample:<n>) and in which dtype."""

    def engine(self, asked: Engine, device: str) -> Engine:
        """Return how the steps are run, given what was asked for; eagerly where there are none."""
        if self.plan.num_steps == 0 and self.polish is None:
            return Engine.EAGER
        return select_engine(asked, self.shape(), device)

    def native_library(
        self, should_stop: Callable[[], bool], shared: SharedLibraries | None = None
    ) -> tuple[Library, float]:
        """Return the kernels of its steps, and the seconds that building them took."""
        return native_library(self.network, self.plan, should_stop, shared)

    def begin(self, device: str = "cpu") -> FusedTrainer:
        """Return the trainer of all trials, on a device, before their first step."""
        x_NI, labels_N = (torch.from_numpy(array).to(device) for array in (self.dataset.x_NI, self.dataset.labels_N))
        x_NI, labels_N = (each.to(self.plan.dtype) if each.is_floating_point() else each for each in (x_NI, labels_N))
        trainer = self.trainer(self.network, self.plan, self.hyperparameters, x_NI, labels_N)
        if self.dataset.stream is not None:
            trainer.draw_from(self.dataset.stream)
        if self.start_TP is not None:
            trainer.theta_TP = self.start_TP.to(trainer.theta_TP)
        return trainer

    def shape(self) -> PackShape:
        """Return what the time of its steps depends on."""
        return PackShape.from_plan(self.plan, self.network, self.dataset.shape, len(self.measured_steps[0]))

    def evaluate(self, trainer: FusedTrainer, positions: Sequence[int]) -> Evaluation:
        """Return the numbers of all trials, whose rows are due at the same steps."""
        assert len(positions) == trainer.num_trials
        return trainer.evaluate()

    def test_split(self, device: str) -> Recorder | None:
        """Return what measures the trials on the data set's test split, where it has one and that is wanted."""
        if self.measure_test is None or self.dataset.test is None:
            return None
        return HeldOut(self.dataset.test, self.measure_test, device, self.plan.dtype)

    def final_features(self, trainer: FusedTrainer, position: int, index: int, step: int) -> Mapping[str, Any] | None:
        """Return the features that a trial keeps; they are computed when they are read."""
        kept, dtype = self.kept[index] if self.kept else ("none", "")
        if kept == "none":
            return None
        return stored_features(trainer, position, self.dataset.class_counts_K, step, kept, dtype)


def make_training(
    trials: Sequence[TrainingParameters],
    network: Network,
    dataset: Dataset,
    weight_decays: Sequence[Mapping[str, float]],
    *,
    seeds: Sequence[int] | None = None,
    init: str | None = None,
    **others: Any,
) -> NetworkTraining:
    """Return what a pack of trials does with a network and a data set, as their parameters say.

    weight_decays: of each trial, by decay group. seeds, init: of their draws, where those are not what the trials name so.
    others: what `NetworkTraining` takes besides.
    """
    shared, num_samples = trials[0], dataset.num_samples
    steps, polish = training_steps(shared, num_samples), polish_plan(shared)
    measured = {*marked_steps(shared, num_samples), steps}
    in_curves = measured | {*curve_steps(shared.schedule, steps, 0 if polish is None else polish.num_evaluations)}
    test = dataset.test
    arranged = dataclasses.replace(
        dataset,
        x_NI=network.arranged(dataset.x_NI),
        test=None if test is None else dataclasses.replace(test, x_NI=network.arranged(test.x_NI)),
        stream=None if dataset.stream is None else _arrange_stream(dataset.stream, network),
    )
    return NetworkTraining(
        network=network,
        dataset=arranged,
        plan=TrainingPlan(
            loss=shared.loss,
            label_smoothing=shared.label_smoothing,
            optimizer=shared.optimizer,
            schedule=shared.schedule,
            num_steps=steps,
            milestones=milestone_steps(shared, num_samples),
            batch_size=shared.batch_size,
            init=shared.init if init is None else init,
            clip_norm=shared.clip_norm,
            dtype=getattr(torch, shared.dtype),
            matmul_precision=shared.matmul_precision,
        ),
        hyperparameters=[
            Hyperparameters(seed, learning_rate(trial), trial.momentum, decays, trial.embedding_seed)
            for seed, trial, decays in zip(seeds or [t.seed for t in trials], trials, weight_decays, strict=True)
        ],
        num_steps=[steps] * len(trials),
        measured_steps=[measured] * len(trials),
        curve_steps=[in_curves] * len(trials),
        matmul_precision=shared.matmul_precision,
        polish=polish,
        kept=[(trial.features, trial.feature_dtype) for trial in trials],
        **others,
    )


def _arrange_stream(stream: SampleStream, network: Network) -> SampleStream:
    def read(indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x_BI, labels_B = stream.read(indices_B)
        return network.arranged(x_BI), labels_B

    return dataclasses.replace(stream, read=read)
