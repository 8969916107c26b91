"""Samples with targets that are too many to hold.

Shapes: M samples that are measured, B of a batch, I numbers of a sample, m numbers of a target.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.data.preparation import moments
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.own.streamed import Streamed
from depthrate.tasks.regression.data import targets_of


class StreamedTargets(Streamed):
    """Samples with targets [m] each."""

    has_targets = True
    _num_targets: int

    @property
    def num_outputs(self) -> int:
        """Numbers of a target."""
        return self._num_targets

    def _learn_labels(self, y_B: np.ndarray) -> None:
        self._num_targets = targets_of(y_B, self.name).shape[1]

    def _labelled(self, y_B: np.ndarray, indices_B: np.ndarray) -> np.ndarray:
        y_Bm = targets_of(y_B, f"{self.name}, items {indices_B[0]} ...")
        if y_Bm.shape[1] != self._num_targets:
            raise DatasetError(
                f"{self.name}: items {indices_B[0]} ... have targets of {y_Bm.shape[1]} numbers, those before of "
                f"{self._num_targets}; give as many of each"
            )
        return y_Bm

    def _label_moments(self, y_M: np.ndarray, standardize: bool) -> tuple[Any, Any] | None:
        return moments(y_M, "per_feature" if standardize else "none")

    def _dataset(self, x_MI: np.ndarray, labels_M: np.ndarray) -> Dataset:
        if constant := np.flatnonzero(np.ptp(labels_M, axis=0) == 0).tolist():
            raise DatasetError(
                f"{self.name}: number {constant[0]} of the targets is the same for all that are measured; leave it out"
            )
        return Dataset(x_MI, labels_M, np.zeros(0, np.int64), self.sample_shape)
