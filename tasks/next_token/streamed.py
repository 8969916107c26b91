"""Sequences of the user's that are too many to hold.

Shapes: M sequences that are measured, B of a batch, S tokens.
"""

from __future__ import annotations

import numpy as np

from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.next_token.data import NO_SIZE, labelled
from depthrate.tasks.own.streamed import Streamed


class StreamedTokens(Streamed):
    """Sequences with the token after each."""

    labels_tokens, least_measured = True, 1

    @property
    def num_outputs(self) -> int:
        """Tokens in the vocabulary."""
        assert self.sets.vocabulary_size is not None
        return self.sets.vocabulary_size

    def _learn_labels(self, y_B: np.ndarray) -> None:
        if self.sets.vocabulary_size is None:
            raise DatasetError(f"{self.name} {NO_SIZE}")

    def _labelled(self, y_B: np.ndarray, indices_B: np.ndarray) -> np.ndarray:
        wanted = (len(indices_B), *self.sample_shape)
        if y_B.dtype.kind not in "iu" or y_B.shape != wanted or y_B.min() < 0 or y_B.max() >= self.num_outputs:
            raise DatasetError(
                f"{self.name}: labels of items {indices_B[0]} ... are {y_B.dtype} of shape {list(y_B.shape)}; give the token "
                f"after each, whole numbers 0 to {self.num_outputs - 1} of shape {list(wanted)}"
            )
        return y_B.astype(np.int64)

    def _dataset(self, x_MS: np.ndarray, labels_MS: np.ndarray) -> Dataset:
        return labelled(x_MS, labels_MS, self.num_outputs)
