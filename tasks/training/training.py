"""The interface between a task and the training loop: data, plan, trainer and metrics. Shapes: T trials."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.data.dataset import Dataset, SampleStream
from depthrate.tasks.interface import Engine, SharedLibraries
from depthrate.tasks.measures.named_columns import HESSIAN_NAMES, split_measure
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.native.library import Library
from depthrate.tasks.networks.network import GENERATED, Network
from depthrate.tasks.training.cost import PackShape
from depthrate.tasks.training.engines.choice import select_engine
from depthrate.tasks.training.engines.generated import generated_cuda_library, generated_library
from depthrate.tasks.training.engines.native import native_library
from depthrate.tasks.training.layers import HeldOut, Measure, Rows, stored_features
from depthrate.tasks.training.pack_state import Divergence
from depthrate.tasks.training.parameters import TrainingParameters, learning_rate, milestone_steps
from depthrate.tasks.training.polish.polish_parameters import polish_plan, training_steps
from depthrate.tasks.training.recording import recorded_steps
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import Hyperparameters, PolishPlan, TrainingPlan
from depthrate.tasks.training.weight_metrics import hessian_columns, with_alignment

Row = Mapping[str, Any]
ExtraCurves = Callable[[int, Row, Sequence[Row]], dict[str, float | None]]
"""Returns a task's extra columns of a curve row, from the trial's index in the pack, the row and the earlier rows."""
RecordTest = Callable[[Any, int, Mapping[int, tuple[Rows, Rows]], Sequence[int]], None]
"""Appends rows of the test split to the trials' tables, from the trainer, the step, position of a trial -> its (metrics,
curves), and the positions of the trials whose layers are measured."""


class Trainer(Protocol):
    """Advances the trials of a pack."""

    step_count: int
    device: torch.device

    def use_native(self, library: Library) -> None:
        """Switch to native steps.

        Raises:
            EngineError: Native steps differ from eager ones by more than rounding.
        """

    def advance(self, until: int, divergence: Divergence) -> bool:
        """Take one or more steps, at most up to step `until`. Return whether divergence was checked."""

    def lr_at(self, step: int) -> list[float]:
        """Return the learning rate of each trial at a step."""

    def select(self, trials: Sequence[int]) -> None:
        """Continue with these trials only."""

    def state(self) -> dict[str, Any]:
        """Return the state for `load_state`, as tensors and numbers."""

    def load_state(self, state: Mapping[str, Any], trials: Sequence[int]) -> None:
        """Resume from the `state` of these trials, in this order."""


@dataclass(frozen=True, kw_only=True)
class Training(ABC):
    """A task's description of a pack's training: steps, trainer and metrics."""

    num_steps: Sequence[int]
    """Number of steps of each trial."""
    measured_steps: Sequence[Collection[int]]
    """Steps at which each trial's layers are measured, including the last."""
    curve_steps: Sequence[Collection[int]]
    """Steps at which each trial has a curve row, including the measured steps."""
    measure: Measure
    extra_curves: ExtraCurves = lambda index, row, earlier: {}
    matmul_precision: str = "full"
    at_end: Callable[[Any], Sequence[Row]] | None = None
    """Returns columns that the last layer's rows gain at the end of all trials, from the trainer. None: no columns."""
    polish: PolishPlan | None = None
    """Plan of polish after training, or None without polish. Its evaluations count as steps."""

    @abstractmethod
    def engine(self, requested: Engine, device: str) -> Engine:
        """Choose the engine of the steps.

        Raises:
            EngineError: The requested engine does not support these trials.
        """

    @abstractmethod
    def native_library(
        self,
        should_stop: Callable[[], bool],
        shared: SharedLibraries | None = None,
        device: str = "cpu",
        *,
        is_fresh: bool = False,
    ) -> tuple[Library, float]:
        """Load the kernels of the steps on a device. Also return the seconds spent building or waiting.

        `is_fresh`: Whether generated kernels are generated again if they are cached.

        Raises:
            EngineError: As `load_library`.
            Interrupted: As `load_library`.
        """

    def use_native(
        self,
        trainer: Trainer,
        should_stop: Callable[[], bool],
        shared: SharedLibraries | None = None,
        device: str = "cpu",
    ) -> float:
        """Switch a trainer to native steps. Return the seconds spent building kernels or waiting.

        Raises:
            EngineError: As `native_library` and `Trainer.use_native`.
            Interrupted: As `native_library`.
        """
        library, compile_s = self.native_library(should_stop, shared, device)
        try:
            trainer.use_native(library)
        except EngineError:
            if not self.may_lack_kernels(device):
                raise
            # code that the cached source does not depend on may have changed
            library, again_s = self.native_library(should_stop, shared, device, is_fresh=True)
            trainer.use_native(library)
            compile_s += again_s
        return compile_s

    def may_lack_kernels(self, device: str) -> bool:
        """Whether steps may turn out to be eager, because kernels are generated and compared with eager steps only now."""
        return False

    @abstractmethod
    def begin(self, device: str = "cpu") -> Trainer:
        """Create the trainer of all trials on a device, before their first step."""

    @abstractmethod
    def evaluate(self, trainer: Any, positions: Sequence[int]) -> Mapping[str, Tensor]:
        """Evaluate the trials at these positions for their curves: column -> tensor [T], including `loss`."""

    def test_split(self, device: str) -> RecordTest | None:
        """Return the recorder of the test split, or None if it is not measured."""
        return None

    def intermediate_features(self, trainer: Any, position: int, index: int, step: int) -> dict[str, Any] | None:
        """Return the features that a trial stores at a measured step, as tensors and lists by column, or None."""
        return None

    def final_features(self, trainer: Any, position: int, index: int, step: int) -> Mapping[str, Any] | None:
        """Return the features that a trial stores at its end, or None."""
        return None


@dataclass(frozen=True, kw_only=True)
class NetworkTraining(Training):
    """Training of several networks on one data set for the same number of steps."""

    network: Network
    dataset: Dataset
    """Data set in the network's layout (`Network.arranged`)."""
    plan: TrainingPlan
    hyperparameters: Sequence[Hyperparameters]
    """Hyper-parameters of each trial."""
    measure_test: Measure | None = None
    """Metrics on the test split, as `measure`, with a trainer over that split. None: not measured."""
    trainer: Callable[..., FusedTrainer] = FusedTrainer
    """Trainer class, called with network, plan, hyper-parameters, samples and labels. A task may implement its own step."""
    start_TP: Tensor | None = None
    """Initial parameters. None: drawn at random."""
    kept: Sequence[tuple[str, str]] = ()
    """Stored features (none, class_means, all, sample:<n>) and their dtype, per trial."""

    def engine(self, requested: Engine, device: str) -> Engine:
        """Choose the engine of the steps. It is eager if there are neither steps nor polish."""
        if self.plan.num_steps == 0 and self.polish is None:
            return Engine.EAGER
        return select_engine(requested, self._shape, device)

    @property
    def _shape(self) -> PackShape:
        names = ("batch_size", "num_steps", "optimizer", "label_smoothing", "matmul_precision")
        return PackShape(
            network=self.network,
            data=self.dataset.shape,
            num_measured_steps=len(self.measured_steps[0]),
            num_curve_rows=sum(step <= self.plan.num_steps for step in self.curve_steps[0]),
            dtype=self.plan.dtype_name,
            **{name: getattr(self.plan, name) for name in names},
        )

    @property
    def _has_handwritten_kernels(self) -> bool:
        return self.network.native_kernels(self._shape.has_classes).family != GENERATED

    def native_library(
        self,
        should_stop: Callable[[], bool],
        shared: SharedLibraries | None = None,
        device: str = "cpu",
        *,
        is_fresh: bool = False,
    ) -> tuple[Library, float]:
        if device != "cpu":
            count = len(self.hyperparameters)
            return generated_cuda_library(self.network, self.plan, self.dataset, count, should_stop, is_fresh=is_fresh)
        if self._has_handwritten_kernels:
            return native_library(self.network, self.plan, should_stop, shared)
        return generated_library(self.network, self.plan, self.dataset, should_stop, shared, is_fresh=is_fresh)

    def may_lack_kernels(self, device: str) -> bool:
        return device != "cpu" or not self._has_handwritten_kernels

    def begin(self, device: str = "cpu") -> FusedTrainer:
        arrays = (torch.from_numpy(array).to(device) for array in (self.dataset.x_NI, self.dataset.labels_N))
        x_NI, labels_N = (array.to(self.plan.dtype) if array.is_floating_point() else array for array in arrays)
        trainer = self.trainer(self.network, self.plan, self.hyperparameters, x_NI, labels_N)
        if self.dataset.stream is not None:
            trainer.draw_from(self.dataset.stream)
        if self.start_TP is not None:
            trainer.theta_TP = self.start_TP.to(trainer.theta_TP)
        return trainer

    def evaluate(self, trainer: FusedTrainer, positions: Sequence[int]) -> dict[str, Tensor]:
        """Evaluate all trials, whose curve rows are due at the same steps."""
        assert len(positions) == trainer.num_trials
        return trainer.evaluate()

    def test_split(self, device: str) -> RecordTest | None:
        if self.measure_test is None or self.dataset.test is None:
            return None
        return HeldOut(self.dataset.test, self.measure_test, device, self.plan.dtype)

    def final_features(self, trainer: FusedTrainer, position: int, index: int, step: int) -> Mapping[str, Any] | None:
        selection, dtype = self.kept[index] if self.kept else ("none", "")
        if selection == "none":
            return None
        return stored_features(trainer, position, self.dataset.class_counts_K, step, selection, dtype)


def make_training(
    trials: Sequence[TrainingParameters],
    network: Network,
    dataset: Dataset,
    weight_decays: Sequence[Mapping[str, float]],
    *,
    measure: Measure,
    seeds: Sequence[int] | None = None,
    init: str | None = None,
    **others: Any,
) -> NetworkTraining:
    """Build the training of a pack from its trials' parameters.

    Args:
        trials: Parameters of each trial.
        network: Network of all trials.
        dataset: Training set, with a test split or a stream if there is one.
        weight_decays: Weight decay of each trial, by decay group.
        measure: Metrics of the layers. Requested metrics of the weights are added.
        seeds: Seed of each trial, by default its parameter `seed`.
        init: Initialisation, by default the parameter `init`.
        others: Further fields of `NetworkTraining`.
    """
    shared, num_samples = trials[0], dataset.num_samples
    steps, polish = training_steps(shared, num_samples), polish_plan(shared)
    recorded = recorded_steps(shared, dataset.shape)
    measured, in_curves = {*recorded.measured}, {*recorded.curves}
    test, names = dataset.test, {*split_measure(shared.measure)}
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
        measure=with_alignment(measure, names, dataset.shape.num_classes),
        at_end=None if names.isdisjoint(HESSIAN_NAMES) else partial(hessian_columns, names=names),
        kept=[(trial.features, trial.feature_dtype) for trial in trials],
        **others,
    )


def _arrange_stream(stream: SampleStream, network: Network) -> SampleStream:
    def read(indices_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x_BI, labels_B = stream.read(indices_B)
        return network.arranged(x_BI), labels_B

    return dataclasses.replace(stream, read=read)
