"""What a task hands in to have its trials trained: on what, how, and what is measured of them. Shapes: T trials."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.networks.network import Network
from depthrate.tasks.task import Params
from depthrate.tasks.training.held_out import Measure
from depthrate.tasks.training.plan import Hyperparameters, PolishPlan, TrainingPlan
from depthrate.tasks.training.trainer import FusedTrainer

OwnCurves = Callable[[int, Mapping[str, float]], dict[str, float | None]]
"""From a trial's index in the pack and a row of its curves to the columns that the task adds to that row."""


def _none(index: int, row: Mapping[str, float]) -> dict[str, float | None]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Training:
    """What the trials of a pack train on, how, and what is measured of them."""

    network: Network
    dataset: Dataset
    """Arranged as the network reads it (`Network.arranged`)."""
    plan: TrainingPlan
    hyperparameters: Sequence[Hyperparameters]
    """One a trial."""
    measured_steps: Collection[int]
    """Steps at which `measure` is called, the last among them."""
    measure: Measure
    measure_test: Measure | None = None
    """The same on the data set's test split, with a trainer over it; null: it is not measured."""
    own_curves: OwnCurves = _none
    trainer: Callable[..., FusedTrainer] = FusedTrainer
    """Makes the trainer from network, plan, hyper-parameters, samples and labels; a task may have a step of its own."""
    polish: PolishPlan | None = None
    """What brings the trials to a stationary point after training; its evaluations count as steps."""
    start_TP: Tensor | None = None
    """Parameters to begin with; null: drawn."""
    kept: Sequence[tuple[str, str]] | None = None
    """Of each trial which features it keeps at the end (none, class_means, all, sample:<n>) and in which dtype; null: none."""

    def begin(self, device: str = "cpu") -> FusedTrainer:
        """Return the trainer of all trials, on a device, before their first step."""
        x_NI, labels_N = (torch.from_numpy(each).to(device) for each in (self.dataset.x_NI, self.dataset.labels_N))
        x_NI = x_NI.to(self.plan.dtype) if x_NI.is_floating_point() else x_NI
        trainer = self.trainer(self.network, self.plan, self.hyperparameters, x_NI, labels_N)
        if self.start_TP is not None:
            trainer.theta_TP = self.start_TP.to(trainer.theta_TP)
        return trainer


def training_plan(params: Params, num_steps: int, milestones: tuple[int, ...] | None = None) -> TrainingPlan:
    """Return the plan that the parameters of `tasks.training.parameters` ask for."""
    return TrainingPlan(
        loss=params["loss"],
        optimizer=params["optimizer"],
        schedule=params["schedule"],
        num_steps=num_steps,
        milestones=milestones,
        batch_size=params["batch_size"],
        init=params["init"],
        clip_norm=params["clip_norm"],
        dtype=getattr(torch, params["dtype"]),
        matmul_precision=params.get("matmul_precision", "full"),
    )
