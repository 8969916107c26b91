"""Learning rates, computed in blocks of steps and stored on the trials' device, so that no step waits for the host.

They are computed in float64 and rounded once. Shapes: S steps, T trials.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from depthrate.tasks.training.training_plan import Hyperparameters, TrainingPlan, learning_rate_factor

STEPS_PER_BLOCK = 1024
"""Number of steps whose rates are computed at a time."""


class Rates:
    """Learning rates and bias corrections of a pack's trials at each step."""

    def __init__(self, plan: TrainingPlan, hyperparameters: Sequence[Hyperparameters], device: torch.device):
        self._plan, self._device = plan, device
        self._lr_T = torch.tensor([h.lr for h in hyperparameters], dtype=torch.float64)
        self._start, self._stop = 0, 0
        self._lr_ST1 = self._rate_ST1 = self._correction_S = torch.empty(0)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Return each trial's rate [T, 1] at a step, and the square root of Adam's second bias correction.

        For Adam the rate is already divided by the first bias correction.
        """
        if not self._start <= step < self._stop:
            self._compute_block(step)
        position = step - self._start
        return self._rate_ST1[position], self._correction_S[position]

    def learning_rates(self, step: int) -> Tensor:
        """Return each trial's learning rate [T, 1] at a step."""
        self.at(step)
        return self._lr_ST1[step - self._start]

    def block(self, start: int, max_steps: int) -> tuple[Tensor, Tensor]:
        """Return rates [S, T, 1] and corrections [S] of between 1 and `max_steps` steps from `start` on."""
        self.at(start)
        steps = slice(start - self._start, min(start + max_steps, self._stop) - self._start)
        return self._rate_ST1[steps], self._correction_S[steps]

    def _compute_block(self, start: int) -> None:
        plan, stop = self._plan, max(start + 1, min(start + STEPS_PER_BLOCK, self._plan.num_steps))
        steps = range(start, stop)
        factor_S1 = _column([learning_rate_factor(plan.schedule, s, plan.num_steps, plan.milestones) for s in steps])
        rate_ST, correction_S = self._lr_T * factor_S1, torch.ones(len(steps), dtype=torch.float64)
        self._lr_ST1 = rate_ST.to(plan.dtype).unsqueeze(2).to(self._device)
        if plan.corrects_bias:
            # in float32 the bias corrections drift by 1e-4 in 100 steps
            beta1, beta2 = plan.adam_betas
            rate_ST = rate_ST / _column([1 - beta1 ** (step + 1) for step in steps])
            correction_S = _column([1 - beta2 ** (step + 1) for step in steps]).squeeze(1).sqrt()
        self._rate_ST1 = rate_ST.to(plan.dtype).unsqueeze(2).to(self._device)
        self._correction_S = correction_S.to(plan.dtype).to(self._device)
        self._start, self._stop = start, stop


def _column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)
