"""Gradient descent on the unconstrained features models, with hand-written gradients.

Each trial of a pack has separate inputs. Shapes: T trials, N samples, D = dimension, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.papers.unconstrained.network import INPUTS, WEIGHT, UnconstrainedLayers
from depthrate.tasks.training.engines.hand_gradient import HandGradientTrainer
from depthrate.tasks.training.step import losses
from depthrate.tasks.training.trainer import Evaluation

PROXIMITY = "proximity"
"""Key of a trial's lambda in its weight decays."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Settings, besides the plan, that all trials of a pack share."""

    anchored: bool
    """Whether features are regularised towards X (MUFM), else towards zero (UFM)."""
    scaled_steps: bool
    """Whether steps are lr K n on features and lr K on W, which cancels the objective's 1/N and 1/K, else lr."""


class UnconstrainedDescent(HandGradientTrainer):
    """Plain gradient descent on all features and W at once, from given starts."""

    network: UnconstrainedLayers

    def __init__(self, *arguments: Any, descent: Descent, inputs_TND: Tensor, start_TP: Tensor):
        super().__init__(*arguments, start_TP=start_TP)
        self._descent = descent
        self.untrained = {INPUTS: inputs_TND.to(self.theta_TP)}

    def options(self, trials: slice) -> dict[str, Any]:
        """Return the descent, and inputs and start of these trials."""
        return {**super().options(trials), "descent": self._descent, "inputs_TND": self.untrained[INPUTS][trials]}

    def _lay_out(self, parameters: dict[str, Tensor]) -> None:
        self._features = [parameters[name] for name in self.network.feature_names()]
        self._weight_TKD = parameters[WEIGHT]
        first = self.untrained[INPUTS] if self._descent.anchored else torch.zeros_like(self._features[0])
        self._before = [first, *self._features[:-1]]

    @property
    def _step_factors(self) -> tuple[int, int]:
        """Factors on the learning rate for features and for W."""
        return (len(self.x_NI), self.network.num_classes) if self._descent.scaled_steps else (1, 1)

    def native_inputs(self) -> Tensor:
        """Return the target of H_1's regulariser, [T, N, D]."""
        inputs_TND = self.untrained[INPUTS]
        return inputs_TND if self._descent.anchored else torch.zeros_like(inputs_TND)

    def native_decays(self) -> Tensor:
        """Return lambda_W / K, lambda / N, and the learning rate factors for W and for features, [4, T]."""
        decay_T11, proximity_T11 = self._factors()
        of_features, of_weight = (torch.full_like(decay_T11, factor) for factor in self._step_factors)
        return torch.stack([decay_T11, proximity_T11, of_weight, of_features]).view(4, -1)

    def _set_rates(self, rates: Sequence[float]) -> None:
        samples, (of_features, of_weight) = len(self.x_NI), self._step_factors
        rate_T11 = self._column(rates).unsqueeze(2)
        decay_T11, proximity_T11 = self._factors()
        self._pull, self._shrink = of_features * rate_T11 * proximity_T11, 1 - of_weight * rate_T11 * decay_T11
        self._rate_features, self._rate_weight = of_features * rate_T11 / samples, of_weight * rate_T11 / samples

    def _descend(self) -> Tensor:
        loss_T, error_TNK = self._errors(self._features[-1].bmm(self._weight_TKD.mT))
        # a simultaneous step: use the values before it
        changes = self._changes()
        of_weight_TKD = error_TNK.mT.bmm(self._features[-1])
        self._features[-1].sub_(error_TNK.bmm(self._weight_TKD).mul_(self._rate_features))
        for change_TND, before, after in zip(changes, [None, *self._features[:-1]], self._features, strict=True):
            pull_TND = change_TND.mul_(self._pull)
            after.sub_(pull_TND)
            if before is not None:
                before.add_(pull_TND)
        self._weight_TKD.mul_(self._shrink).sub_(of_weight_TKD.mul_(self._rate_weight))
        return loss_T

    def _errors(self, logits_TNK: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss [T], and N times its gradient at the output."""
        if self.plan.loss == "mse":
            error_TNK = logits_TNK.sub_(self._targets_NK)
            return error_TNK.square().sum((1, 2)) / (2 * len(self._targets_NK)), error_TNK
        loss_T = losses("ce", logits_TNK, self.labels_N.expand(len(logits_TNK), -1))
        return loss_T, logits_TNK.softmax(-1).sub_(self._targets_NK)

    def evaluate(self) -> Evaluation:
        """Return loss, objective, accuracy and the objective's gradient norm."""
        named, (loss_T, gradients) = self.parameters(), self._gradients()
        logits_TNK = named[self.network.feature_names()[-1]].bmm(named[WEIGHT].mT)
        correct_T = (logits_TNK.argmax(-1) == self.labels_N).double().mean(1)
        decay_T11, proximity_T11 = self._factors()
        objective_T = loss_T.double() + (decay_T11 * named[WEIGHT].square()).sum((1, 2)).double() / 2
        for change_TND in self._changes():
            objective_T = objective_T + (proximity_T11 * change_TND.square()).sum((1, 2)).double() / 2
        squares_T = sum(gradient.double().square().sum((1, 2)) for gradient in gradients.values())
        assert isinstance(squares_T, Tensor)
        return Evaluation(loss_T.double(), objective_T, correct_T, squares_T.sqrt())

    def _gradients(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss [T] and the objective's gradient by parameter."""
        self._bind_parameters()
        h_TND, weight_TKD = self._features[-1], self._weight_TKD
        loss_T, error_TNK = self._errors(h_TND.bmm(weight_TKD.mT))
        error_TNK = error_TNK / len(self.x_NI)
        decay_T11, proximity_T11 = self._factors()
        pulls = [proximity_T11 * change_TND for change_TND in self._changes()]
        gradients = {WEIGHT: error_TNK.mT.bmm(h_TND) + decay_T11 * weight_TKD}
        for name, pull_TND, after_TND in zip(self.network.feature_names(), pulls, [*pulls[1:], None], strict=True):
            gradients[name] = pull_TND if after_TND is None else pull_TND - after_TND
        gradients[self.network.feature_names()[-1]] += error_TNK.bmm(weight_TKD)
        return loss_T, gradients

    def _changes(self) -> list[Tensor]:
        """Return the change of features in each block, [T, N, D]."""
        return [after - before for before, after in zip(self._before, self._features, strict=True)]

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Return lambda_W / K and lambda / N of each trial, [T, 1, 1]."""
        decay = [h.weight_decays[WEIGHT] / self.network.num_classes for h in self.hyperparameters]
        proximity = [h.weight_decays[PROXIMITY] / len(self.x_NI) for h in self.hyperparameters]
        return self._column(decay).unsqueeze(2), self._column(proximity).unsqueeze(2)
