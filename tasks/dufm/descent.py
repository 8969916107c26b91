"""Full-batch gradient descent on the deep unconstrained features model, fused over trials, with the gradient by hand.

The matrices are tiny (30 x 500), so a step by autograd is mostly overhead: by hand, in place and in buffers that stay, it
takes a fifth of the time. What leaves and enters is `FusedTrainer`'s, evaluation by autograd included.

Shapes: T trials, N samples, D = width, K classes, P parameters of one trial.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from depthrate.tasks.dufm.network import FEATURES, UnconstrainedFeatures
from depthrate.tasks.training.plan import Hyperparameters, TrainingPlan
from depthrate.tasks.training.trainer import FusedTrainer

DRIFT_STEPS = 200
"""Enough for what crosses a ReLU's kink back and forth to average out."""


class GradientDescent(FusedTrainer):
    """Plain gradient descent on H_1 and all weights at once, from given starts."""

    can_compile = False  # its step by hand is as fast as the compiled one

    def __init__(
        self,
        network: UnconstrainedFeatures,
        plan: TrainingPlan,
        hyperparameters: Sequence[Hyperparameters],
        x_NI: Tensor,
        labels_N: Tensor,
        *,
        start_TP: Tensor,
    ):
        self._laid_out: Tensor | None = None
        super().__init__(network, plan, hyperparameters, x_NI, labels_N)
        self._network, self._names, self._relu = network, network.weight_names(), network.relu
        self.theta_TP = start_TP.to(self.theta_TP)

    def step(self) -> Tensor:
        """Advance every trial by one step and return its loss before the step, [T]."""
        if self._laid_out is not self.theta_TP:
            self._lay_out()
        self._set_rates()
        error_TNK = self._forward()
        loss_T = error_TNK.square().sum(-1).mean(1) / 2
        self._backward(error_TNK)
        self.step_count += 1
        return loss_T

    def drift(self, position: int) -> float:
        """Return how far one trial is from rest: 0 at a stationary point, about 1 where nothing balances the weight decay.

        It is the norm of the mean gradient over the next steps, taken on a copy, over the norm of lambda times the matrices.
        """
        own, hyperparameters = slice(position, position + 1), self.hyperparameters[position]
        ahead = GradientDescent(
            self._network, self.plan, [hyperparameters], self.x_NI, self.labels_N, start_TP=self.theta_TP[own].clone()
        )
        for _ in range(DRIFT_STEPS):
            ahead.step()
        moved_P = (self.theta_TP[own] - ahead.theta_TP) / (DRIFT_STEPS * hyperparameters.lr)
        pull_P = self._decay_TP[own] * self.theta_TP[own]
        return float(moved_P.double().norm() / pull_P.double().norm())

    def _lay_out(self) -> None:
        """See the parameters by name and make room for what a step holds."""
        named = self.parameters()
        self._h0_TND, self._weights = named[FEATURES], [named[name] for name in self._names]
        self._h = [torch.empty_like(self._h0_TND) for _ in self._names[1:]]
        self._deltas = [torch.empty_like(self._h0_TND) for _ in range(2)]
        num_classes = self._weights[-1].shape[1]
        self._error_TNK = self._h0_TND.new_empty(*self._h0_TND.shape[:2], num_classes)
        self._targets_NK = torch.nn.functional.one_hot(self.labels_N, num_classes).to(self.theta_TP)
        decays = [[h.weight_decays[name] for h in self.hyperparameters] for name in (FEATURES, *self._names)]
        self._decays_MT = torch.tensor(decays, dtype=torch.float64)
        self._rates: list[float] | None = None
        self._laid_out = self.theta_TP

    def _set_rates(self) -> None:
        """Form what the learning rate enters into, where it changed: all in float64, and rounded once."""
        rates = self.lr_at(self.step_count)
        if rates == self._rates:
            return
        self._rates = rates
        rate_T = torch.tensor(rates, dtype=torch.float64)
        self._rate_T11 = (rate_T / len(self._targets_NK)).view(-1, 1, 1).to(self.theta_TP)
        self._shrinks = [shrink_T.view(-1, 1, 1).to(self.theta_TP) for shrink_T in 1 - rate_T * self._decays_MT]

    def _forward(self) -> Tensor:
        """Return output minus targets, [T, N, K]."""
        h_TND = self._h0_TND
        for weight_TDD, out_TND in zip(self._weights[:-1], self._h, strict=True):
            h_TND = torch.bmm(h_TND, weight_TDD.mT, out=out_TND)
            if self._relu:
                h_TND.relu_()
        return torch.bmm(h_TND, self._weights[-1].mT, out=self._error_TNK).sub_(self._targets_NK)

    def _backward(self, error_TNK: Tensor) -> None:
        """Update every matrix; the learning rate enters with the error, so that products are steps at once."""
        delta = error_TNK.mul_(self._rate_T11)
        shrink_features, *shrinks = self._shrinks
        inputs = [self._h0_TND, *self._h]
        for layer in reversed(range(len(self._weights))):
            weight, h_TND = self._weights[layer], inputs[layer]
            next_TND = torch.bmm(delta, weight, out=self._deltas[layer % 2])  # before the weight changes
            weight.mul_(shrinks[layer]).baddbmm_(delta.mT, h_TND, alpha=-1)
            if layer and self._relu:
                torch.ops.aten.threshold_backward.grad_input(next_TND, h_TND, 0, grad_input=next_TND)
            delta = next_TND
        self._h0_TND.mul_(shrink_features).sub_(delta)
