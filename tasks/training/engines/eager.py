"""Eager steps: every operation of a step is run by torch. Shapes: T trials, P parameters of one trial."""

import torch
from torch import Tensor

from depthrate.tasks.interface import Engine
from depthrate.tasks.training.divergence import Divergence
from depthrate.tasks.training.pack_state import Steps
from depthrate.tasks.training.step import Moments, clip_factor, gradients, optimise


class EagerSteps(Steps):
    """Takes steps with autograd, updating the parameters of all trials as one tensor."""

    engine = Engine.EAGER

    def prepare(self) -> None:
        """Allocate buffers once, since the page faults of new buffers of this size would cost more than the arithmetic."""
        self._gradient_TP, self._scratch_TP = (torch.empty_like(self.trainer.theta_TP) for _ in range(2))

    def step(self, max_steps: int, divergence: Divergence | None) -> Tensor:
        """Take one step."""
        trainer, plan = self.trainer, self.trainer.plan
        x_TBI, labels_TB = trainer.next_batch()
        if trainer.shares_batches:
            x_TBI, labels_TB = trainer.expand(x_TBI, labels_TB)
        loss_T, pieces, trainer.untrained = gradients(
            trainer.network, plan, trainer.parameters(), x_TBI, labels_TB, trainer.untrained
        )
        with torch.no_grad():
            gradient_TP, scratch_TP = self._gradient_TP, self._scratch_TP
            torch.cat([piece.flatten(1) for piece in pieces], dim=1, out=gradient_TP)
            if plan.decays_by_gradient:
                gradient_TP += torch.mul(trainer.decay_TP, trainer.theta_TP, out=scratch_TP)
            if plan.clip_norm is not None:
                squares_T1 = torch.mul(gradient_TP, gradient_TP, out=scratch_TP).sum(1, keepdim=True)
                gradient_TP *= clip_factor(plan.clip_norm, squares_T1)
            if not plan.decays_by_gradient:
                shrunk_TP = torch.mul(trainer.decay_TP, trainer.theta_TP, out=scratch_TP)
                trainer.theta_TP -= shrunk_TP.mul_(trainer.rates.learning_rates(trainer.step_count))
            moments = Moments(trainer.moment_TP, trainer.square_TP)
            optimise(plan, trainer.theta_TP, moments, gradient_TP, trainer.step_numbers(), scratch_TP)
        trainer.step_count += 1
        return loss_T
