"""The test split of a pack: what its trials are measured on beside what they train on.

Shapes: T trials, N samples, I numbers of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.training.layers import null_if_not_finite
from depthrate.tasks.training.trainer import FusedTrainer

Rows = list[dict[str, Any]]
Measure = Callable[[Any, Sequence[int], int], list[Rows]]
"""From the trainer, positions of trials in it and the step to the rows of metrics of each of them."""


class HeldOut:
    """The samples of a test split on a pack's device."""

    def __init__(self, dataset: Dataset, measure: Measure, device: str, dtype: torch.dtype):
        x_NI = torch.from_numpy(dataset.x_NI).to(device)
        self._x_NI = x_NI.to(dtype) if x_NI.is_floating_point() else x_NI
        labels_N = torch.from_numpy(dataset.labels_N).to(device)
        self._labels_N = labels_N.to(dtype) if labels_N.is_floating_point() else labels_N
        self._measure = measure

    def record(
        self, trainer: FusedTrainer, step: int, tables: Mapping[int, tuple[Rows, Rows]], measured: Sequence[int]
    ) -> None:
        """Append to (metrics, curves) of trials at a step: the scores, and every layer of those that are measured.

        tables: a trial's position -> its rows; measured: some of the positions. Computed in the trainer's precision.
        """
        if self._x_NI.is_floating_point():
            self._x_NI = self._x_NI.to(trainer.plan.dtype)  # once: polish goes on in float64
        over_test = trainer.on_samples(self._x_NI, self._labels_N)
        scores = {name: each_T.tolist() for name, each_T in over_test.scores().items()}
        for position, (_, curves) in tables.items():
            row = {name: each_T[position] for name, each_T in scores.items()}
            curves.append({"step": step, "split": "test", **null_if_not_finite(row)})
        for position, rows in zip(measured, self._measure(over_test, measured, step), strict=True):
            tables[position][0].extend(rows)
