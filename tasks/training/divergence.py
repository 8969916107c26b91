"""Which trials have diverged, noted where they train: only asking for it waits for the device. Shapes: T trials."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NEVER = -1


class Divergence:
    """Of each trial of a pack the first step at which its loss, where it was looked at, was not finite."""

    def __init__(self, num_trials: int, device: torch.device):
        self._step_T = torch.full((num_trials,), NEVER, device=device)

    def look(self, loss_T: Tensor, step: int) -> None:
        """Note which of these losses [T], all of one step, are the first that are not finite."""
        self._step_T.masked_fill_(~torch.isfinite(loss_T) & (self._step_T == NEVER), step)

    def found(self) -> dict[int, int]:
        """Return position -> step of those that have diverged."""
        return {position: step for position, step in enumerate(self._step_T.tolist()) if step != NEVER}

    def keep(self, positions: Sequence[int]) -> None:
        """Go on with the trials at these positions only."""
        self._step_T = self._step_T[list(positions)]
