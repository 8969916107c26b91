"""Which trials have diverged, noted where they train: only asking for it waits for the device. Shapes: T trials."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NEVER = -1
CHECK_STEPS = 10
"""Steps between two looks for losses that are not finite; fixed, so that a trial's record does not depend on its pack."""


class Divergence:
    """Of each trial of a pack the first step at which its loss, where it was looked at, was not finite."""

    def __init__(self, num_trials: int, device: torch.device):
        self.step_T = torch.full((num_trials,), NEVER, device=device)
        """The step of each, or `NEVER`."""

    def check(self, loss_T: Tensor, step: int) -> None:
        """Note which of these losses [T], all of one step, are the first that are not finite."""
        self.step_T.masked_fill_(~torch.isfinite(loss_T) & (self.step_T == NEVER), step)

    def check_if_due(self, loss_T: Tensor, step: int) -> bool:
        """Look at the losses of a step where it is one of those looked at, and return whether it is."""
        is_due = (step + 1) % CHECK_STEPS == 0
        if is_due:
            self.check(loss_T, step)
        return is_due

    def diverged_steps(self) -> dict[int, int]:
        """Return position -> step of those that have diverged."""
        return {position: step for position, step in enumerate(self.step_T.tolist()) if step != NEVER}

    def select(self, positions: Sequence[int]) -> None:
        """Go on with the trials at these positions only."""
        self.step_T = self.step_T[list(positions)]
