"""The test split of a pack: what its trials are measured on beside what they train on.

Shapes: T trials, N samples, I numbers of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.training.layers import defined
from depthrate.tasks.training.trainer import FusedTrainer

Measure = Callable[[FusedTrainer, int, int], list[dict[str, Any]]]
"""From the trainer, a trial's position in it and the step to that trial's rows of metrics."""
Rows = list[dict[str, Any]]


class HeldOut:
    """The samples of a test split on a pack's device."""

    def __init__(self, dataset: Dataset, measure: Measure, device: str, dtype: torch.dtype):
        x_NI = torch.from_numpy(dataset.x_NI).to(device)
        self._x_NI = x_NI.to(dtype) if x_NI.is_floating_point() else x_NI
        self._labels_N = torch.from_numpy(dataset.labels_N).to(device)
        self._measure = measure

    def rows(self, trainer: FusedTrainer, step: int, measured_steps: Collection[int]) -> list[tuple[Rows, Rows]]:
        """Return (metrics, curves) of each trial at a step: loss and accuracy, and every layer at the measured steps."""
        over_test = trainer.on(self._x_NI, self._labels_N)
        found = []
        for position, (loss, accuracy) in enumerate(
            zip(*(each_T.tolist() for each_T in over_test.scores()), strict=True)
        ):
            curve = {"step": step, "split": "test", **defined({"loss": loss, "accuracy": accuracy})}
            metrics = self._measure(over_test, position, step) if step in measured_steps else []
            found.append((metrics, [curve]))
        return found
