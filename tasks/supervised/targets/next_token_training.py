"""Trainer of trials on next tokens, and the metrics of their layers.

Shapes: T trials, N sequences, n sequences per part, S tokens, M measured positions, D numbers per feature, V tokens in the
vocabulary, K classes.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.measures.token_classes import ClassMoments
from depthrate.tasks.training.layers import null_if_not_finite
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import evaluation_rows


class NextTokenTrainer(FusedTrainer):
    """Trains on labels [N, S], one class per token."""

    def __init__(self, *inputs: Any, vocabulary_size: int, floor: float):
        super().__init__(*inputs)
        self._vocabulary_size, self._floor = vocabulary_size, floor

    def options(self, trials: slice) -> dict[str, Any]:
        return {"vocabulary_size": self._vocabulary_size, "floor": self._floor}

    def num_correct(self, logits_TBSV: Tensor, labels_TBS: Tensor) -> Tensor:
        """Return the share of correctly predicted tokens, summed over sequences, [T] in float64."""
        return (logits_TBSV.argmax(-1) == labels_TBS).double().mean(-1).sum(1)

    def evaluate(self) -> dict[str, Tensor]:
        return self._with_perplexity(super().evaluate())

    def scores(self) -> dict[str, Tensor]:
        return self._with_perplexity(super().scores())

    def samples_per_evaluation(self) -> int:
        """Return the number of sequences evaluated together, given one output per token."""
        return max(1, evaluation_rows(self._vocabulary_size) // self.network.rows_per_sample)

    def _with_perplexity(self, scores: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**scores, "perplexity": scores["loss"].exp(), "loss_gap": scores["loss"] - self._floor}


class TokenMeasurements:
    """Measures the layers of trials one by one from moments, so that only some sequences' features are in memory.

    Classes are the tokens that occur as next token at `min_class_count` or more of the measured positions (all or only the last
    ones).
    """

    def __init__(self, counts_V: np.ndarray, classes_K: np.ndarray, *, last_only: bool, split: str):
        """Select the measured tokens.

        Args:
            counts_V: Count of each next token at the measured positions.
            classes_K: Measured tokens.
            last_only: Whether only the last position of each sequence is measured.
            split: Split written to each row.
        """
        self._split = split
        self._places = slice(-1, None) if last_only else slice(None)
        self._classes_K = torch.from_numpy(classes_K)
        self._counts_K = torch.from_numpy(counts_V[classes_K])
        self._number_V = torch.full((len(counts_V),), -1)
        self._number_V[self._classes_K] = torch.arange(len(self._classes_K))
        self._measured_share = float(self._counts_K.sum()) / float(counts_V.sum())

    def __call__(self, trainer: FusedTrainer, positions: Sequence[int], step: int) -> list[list[dict[str, Any]]]:
        """Return one row per layer for each trial."""
        weights = trainer.last_weights()
        with torch.no_grad():
            return [
                self._rows(trainer, position, step, None if weights is None else weights[position])
                for position in positions
            ]

    def _rows(self, trainer: FusedTrainer, position: int, step: int, weight_VD: Tensor | None) -> list[dict[str, Any]]:
        network, device = trainer.network, trainer.device
        layers = network.layers()
        moments = [ClassMoments(self._counts_K.to(device), layer.shape[-1]) for layer in layers]
        for part, classes_M, is_measured in self._parts(trainer):
            for layer_moments, h_1nSD in zip(moments, part.features(position), strict=True):
                layer_moments.add(h_1nSD[0, :, self._places][is_measured], classes_M)
        for part, classes_M, is_measured in self._parts(trainer):
            logits_MV = part.outputs(position)[0, :, self._places][is_measured]
            predicted_M = logits_MV.index_select(1, self._classes_K.to(device)).argmax(1)
            for layer_moments, h_1nSD in zip(moments, part.features(position), strict=True):
                layer_moments.revisit(h_1nSD[0, :, self._places][is_measured], classes_M, predicted_M)
        weight_KD = None if weight_VD is None else weight_VD[self._classes_K.to(device)]
        end = max(index for index, layer in enumerate(layers) if not layer.is_output or not index)
        rows = []
        for index, (layer, layer_moments) in enumerate(zip(layers, moments, strict=True)):
            has_same_width = weight_KD is not None and weight_KD.shape[1] == layer.shape[-1]
            place = {"step": step, "split": self._split, "layer": layer.number, "is_last": index == end}
            counts = {"measured_classes": float(len(self._classes_K)), "measured_share": self._measured_share}
            rows.append(
                place | null_if_not_finite(layer_moments.result(weight_KD if has_same_width else None) | counts)
            )
        return rows

    def _parts(self, trainer: FusedTrainer) -> Iterator[tuple[FusedTrainer, Tensor, Tensor]]:
        """Yield the trainer over some sequences at a time, the classes of their measured positions [M], and the mask of these
        positions [n, S]."""
        part_size, number_V = trainer.samples_per_evaluation(), self._number_V.to(trainer.device)
        for start in range(0, len(trainer.x_NI), part_size):
            rows = slice(start, start + part_size)
            part = trainer.on_samples(trainer.x_NI[rows], trainer.labels_N[rows])
            classes_nS = number_V[part.labels_N[:, self._places]]
            is_measured = classes_nS >= 0
            yield part, classes_nS[is_measured], is_measured
