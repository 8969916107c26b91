"""Metrics of a pack's trials on the test split.

Shapes: T trials, N samples, I input dimensions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.training.layers import null_if_not_finite
from depthrate.tasks.training.trainer import FusedTrainer

Rows = list[dict[str, Any]]
Measure = Callable[[Any, Sequence[int], int], list[Rows]]
"""Returns each trial's rows of metrics, from the trainer, the trials' positions in it and the step."""


class HeldOut:
    """Test split on a pack's device."""

    def __init__(self, dataset: Dataset, measure: Measure, device: str, dtype: torch.dtype):
        x_NI = torch.from_numpy(dataset.x_NI).to(device)
        self._x_NI = x_NI.to(dtype) if x_NI.is_floating_point() else x_NI
        labels_N = torch.from_numpy(dataset.labels_N).to(device)
        self._labels_N = labels_N.to(dtype) if labels_N.is_floating_point() else labels_N
        self._measure = measure

    def record(
        self, trainer: FusedTrainer, step: int, tables: Mapping[int, tuple[Rows, Rows]], measured: Sequence[int]
    ) -> None:
        """Append rows to the trials' tables at a step: scores for all, layer metrics for the measured trials.

        Args:
            trainer: The pack's trainer. Its precision is used.
            step: Training step, stored in the rows.
            tables: Position of a trial -> its (metrics, curves).
            measured: Positions of the trials whose layers are measured.
        """
        if self._x_NI.is_floating_point():
            self._x_NI = self._x_NI.to(trainer.plan.dtype)  # changes once, because polish runs in float64
        test_trainer = trainer.on_samples(self._x_NI, self._labels_N)
        scores = {name: values_T.tolist() for name, values_T in test_trainer.scores().items()}
        for position, (_, curves) in tables.items():
            row = {name: values[position] for name, values in scores.items()}
            curves.append({"step": step, "split": "test", **null_if_not_finite(row)})
        for position, rows in zip(measured, self._measure(test_trainer, measured, step), strict=True):
            tables[position][0].extend(rows)
