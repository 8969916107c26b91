"""Gradient descent on the deep unconstrained features model with hand-written gradients, in place and in reused buffers.

Shapes: T trials, N samples, D = width, K classes, P parameters of one trial.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from depthrate.tasks.papers.unconstrained.network import FEATURES, UnconstrainedFeatures
from depthrate.tasks.training.engines.hand_gradient import HandGradientTrainer

DRIFT_STEPS = 200
"""Steps of the mean gradient: enough to average out oscillations across a ReLU's kink."""


class DufmDescent(HandGradientTrainer):
    """Plain gradient descent on H_1 and all weights at once, from given starts."""

    network: UnconstrainedFeatures

    def drift(self, position: int) -> float:
        """Return one trial's distance from rest: 0 at a stationary point, about 1 if nothing balances the weight decay.

        This is the norm of the mean gradient over the next steps, taken on a copy, over the norm of lambda times the matrices.
        """
        alone, hyperparameters = slice(position, position + 1), self.hyperparameters[position]
        ahead = DufmDescent(
            self.network, self.plan, [hyperparameters], self.x_NI, self.labels_N, start_TP=self.theta_TP[alone].clone()
        )
        for _ in range(DRIFT_STEPS):
            ahead.step()
        moved_P = (self.theta_TP[alone] - ahead.theta_TP) / (DRIFT_STEPS * hyperparameters.lr)
        pull_P = self.decay_TP[alone] * self.theta_TP[alone]
        return float(moved_P.double().norm() / pull_P.double().norm())

    def _lay_out(self, parameters: dict[str, Tensor]) -> None:
        names = self.network.weight_names()
        self._h0_TND, self._weights = parameters[FEATURES], [parameters[name] for name in names]
        self._h = [torch.empty_like(self._h0_TND) for _ in names[1:]]
        self._deltas = [torch.empty_like(self._h0_TND) for _ in range(2)]
        self._error_TNK = self._h0_TND.new_empty(*self._h0_TND.shape[:2], self.network.num_classes)
        decays = [[h.weight_decays[name] for h in self.hyperparameters] for name in (FEATURES, *names)]
        self._decays_MT = torch.tensor(decays, dtype=torch.float64)

    def _set_rates(self, rates: Sequence[float]) -> None:
        """Set the learning rates: compute in float64 and round once."""
        rate_T = torch.tensor(rates, dtype=torch.float64)
        self._rate_T11 = (rate_T / len(self._targets_NK)).view(-1, 1, 1).to(self.theta_TP)
        self._shrinks = [shrink_T.view(-1, 1, 1).to(self.theta_TP) for shrink_T in 1 - rate_T * self._decays_MT]

    def _descend(self) -> Tensor:
        error_TNK = self._forward()
        loss_T = error_TNK.square().sum(-1).mean(1) / 2
        self._backward(error_TNK)
        return loss_T

    def _forward(self) -> Tensor:
        """Return output minus targets, [T, N, K]."""
        h_TND = self._h0_TND
        for weight_TDD, out_TND in zip(self._weights[:-1], self._h, strict=True):
            h_TND = torch.bmm(h_TND, weight_TDD.mT, out=out_TND)
            if self.network.relu:
                h_TND.relu_()
        return torch.bmm(h_TND, self._weights[-1].mT, out=self._error_TNK).sub_(self._targets_NK)

    def _backward(self, error_TNK: Tensor) -> None:
        """Update every matrix. The error includes the learning rate, so that products are steps."""
        delta = error_TNK.mul_(self._rate_T11)
        shrink_features, *shrinks = self._shrinks
        inputs = [self._h0_TND, *self._h]
        for layer in reversed(range(len(self._weights))):
            weight, h_TND = self._weights[layer], inputs[layer]
            next_TND = torch.bmm(delta, weight, out=self._deltas[layer % 2])  # before the weight changes
            weight.mul_(shrinks[layer]).baddbmm_(delta.mT, h_TND, alpha=-1)
            if layer and self.network.relu:
                torch.ops.aten.threshold_backward.grad_input(next_TND, h_TND, 0, grad_input=next_TND)
            delta = next_TND
        self._h0_TND.mul_(shrink_features).sub_(delta)
