"""Record of diverged trials on their device. Only reading it waits for the device. Shapes: T trials."""

from collections.abc import Sequence

import torch
from torch import Tensor

NEVER = -1
CHECK_STEPS = 10
"""Steps between two checks for non-finite losses. The number is fixed, so that a trial's record does not depend on its pack."""


class Divergence:
    """The first checked step at which each trial's loss was not finite."""

    def __init__(self, num_trials: int, device: torch.device):
        self.step_T = torch.full((num_trials,), NEVER, device=device)
        """First step with a non-finite loss, or `NEVER`."""

    def check(self, loss_T: Tensor, step: int) -> None:
        """Record the trials whose loss [T] is not finite for the first time at this step. Losses may be on the CPU."""
        is_finite_T = torch.isfinite(loss_T).to(self.step_T.device)
        self.step_T.masked_fill_(~is_finite_T & (self.step_T == NEVER), step)

    def check_if_due(self, loss_T: Tensor, step: int) -> bool:
        """Check the losses if the step is a multiple of `CHECK_STEPS`. Return whether they were checked."""
        is_due = (step + 1) % CHECK_STEPS == 0
        if is_due:
            self.check(loss_T, step)
        return is_due

    def diverged_steps(self) -> dict[int, int]:
        """Return position -> step of the diverged trials. This waits for the device."""
        return {position: step for position, step in enumerate(self.step_T.tolist()) if step != NEVER}

    def select(self, positions: Sequence[int]) -> None:
        """Continue with only the trials at these positions."""
        self.step_T = self.step_T[list(positions)]
