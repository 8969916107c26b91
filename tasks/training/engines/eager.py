"""Eager steps: every operation of a step is run by torch. Shapes: T trials, P parameters of one trial."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from depthrate.tasks.interface import Engine
from depthrate.tasks.training.divergence import Divergence
from depthrate.tasks.training.engines.cuda_graph import ReplayedStep
from depthrate.tasks.training.pack_state import Steps
from depthrate.tasks.training.step import Moments, StepNumbers, clip_factor, gradients, optimise


class TorchSteps(Steps):
    """Steps as a function of tensors, run by torch. A GPU replays them as a CUDA graph."""

    engine = Engine.EAGER

    def prepare(self) -> None:
        """Allocate the step's buffers, and forget the recording of an earlier state."""
        self._replayed = ReplayedStep() if self.trainer.device.type == "cuda" else None

    def step(self, max_steps: int, divergence: Divergence | None) -> Tensor:
        inputs = self.inputs()
        loss_T = self.take(*inputs) if self._replayed is None else self._replayed(self.take, inputs)
        self.trainer.step_count += 1
        return loss_T

    @abstractmethod
    def inputs(self) -> Sequence[Tensor]:
        """Return the tensors that differ between steps: the batch, and numbers that follow a schedule."""

    @abstractmethod
    def take(self, *inputs: Tensor) -> Tensor:
        """Update the trainer's tensors in place by one step. Return the losses [T] before it."""

    def release(self) -> None:
        super().release()
        self._replayed = None


class EagerSteps(TorchSteps):
    """Takes steps with autograd, updating the parameters of all trials as one tensor."""

    def prepare(self) -> None:
        """Allocate buffers once, since the page faults of new buffers of this size would cost more than the arithmetic."""
        super().prepare()
        self._gradient_TP, self._scratch_TP = (torch.empty_like(self.trainer.theta_TP) for _ in range(2))

    def inputs(self) -> Sequence[Tensor]:
        """Return learning rates [T, 1], rate and correction of `StepNumbers`, and the batch unless it is the training set."""
        trainer = self.trainer
        numbers = trainer.rates.learning_rates(trainer.step_count), *trainer.rates.at(trainer.step_count)
        return numbers if trainer.shares_batches else (*numbers, *trainer.next_batch())

    def take(self, *inputs: Tensor) -> Tensor:
        """Update parameters, moments and untrained state."""
        trainer, plan = self.trainer, self.trainer.plan
        learning_rate_T1, rate_T1, correction, *batch = inputs
        x_TBI, labels_TB = batch if batch else trainer.expand(trainer.x_NI, trainer.labels_N)
        loss_T, pieces, untrained = gradients(
            trainer.network, plan, trainer.parameters(), x_TBI, labels_TB, trainer.untrained
        )
        with torch.no_grad():
            for name, tensor in untrained.items():
                trainer.untrained[name].copy_(tensor)
            gradient_TP, scratch_TP = self._gradient_TP, self._scratch_TP
            torch.cat([piece.flatten(1) for piece in pieces], dim=1, out=gradient_TP)
            if plan.decays_by_gradient:
                gradient_TP += torch.mul(trainer.decay_TP, trainer.theta_TP, out=scratch_TP)
            if plan.clip_norm is not None:
                squares_T1 = torch.mul(gradient_TP, gradient_TP, out=scratch_TP).sum(1, keepdim=True)
                gradient_TP *= clip_factor(plan.clip_norm, squares_T1)
            if not plan.decays_by_gradient:
                shrunk_TP = torch.mul(trainer.decay_TP, trainer.theta_TP, out=scratch_TP)
                trainer.theta_TP -= shrunk_TP.mul_(learning_rate_T1)
            moments = Moments(trainer.moment_TP, trainer.square_TP)
            numbers = StepNumbers(trainer.momentum_T1, rate_T1, correction)
            optimise(plan, trainer.theta_TP, moments, gradient_TP, numbers, scratch_TP)
        return loss_T
