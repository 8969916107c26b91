"""What a trial of the task `collapse` reports of its layers: a row of measurements each, and the features it keeps.

Shapes: T trials, N samples sorted by class, I input dimensions, D feature dimensions, K classes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.measures.class_means import ClassGeometry, class_geometry, class_means, weight_alignment
from depthrate.tasks.training.trainer import FusedTrainer


class LayerTables:
    """Measures one trial of a pack at a time, on the training set."""

    def __init__(self, trainer: FusedTrainer, class_counts_K: np.ndarray):
        self._trainer = trainer
        self._counts_K = class_counts_K
        self._class_counts_K = torch.from_numpy(class_counts_K).to(trainer.device)
        self._input_geometry: ClassGeometry | None = None

    def metrics(self, position: int, step: int, rank_tol: float) -> list[dict[str, Any]]:
        """Measure one trial, layer by layer: depth is its last feature, 0 its input, or in a transformer its embedding.

        relative_position is the length of the path through the layers of width D, over the whole path's (P3, section IV);
        in pre-LN networks all layers are read after LayerNorm, as the next linear map reads them.
        """
        weight_TKD = self._trainer.parameters()["W_L"][position : position + 1]
        rows, path, previous_TND = [], [0.0], None
        first = self._trainer.network.first_layer
        if first == 1:
            x_TNI = self._trainer.x_NI.unsqueeze(0)
            if self._input_geometry is None:
                self._input_geometry = class_geometry(x_TNI, self._class_counts_K, rank_tol)
            rows.append(_row(step, 0, self._input_geometry, self._alignment(x_TNI, weight_TKD)))
        for layer, h_TND in enumerate(self._trainer.features(position), start=first):
            geometry = class_geometry(h_TND, self._class_counts_K, rank_tol)
            rows.append(_row(step, layer, geometry, self._alignment(h_TND, weight_TKD)))
            if previous_TND is not None:
                path.append(path[-1] + (h_TND - previous_TND).double().norm(dim=-1).sum().item())
            previous_TND = h_TND
        for row, length in zip(rows[first:], path, strict=True):
            row["relative_position"] = length / path[-1] if path[-1] > 0 else None
        rows[-1]["is_last"] = True
        return rows

    def features(self, position: int, step: int, kept: str, dtype: str) -> dict[str, Any]:
        """Return the kept features as columns, layer after layer."""
        classes_K = np.arange(len(self._counts_K))
        if kept == "class_means":
            kind, chosen = "class_mean", classes_K
            labels, sample_index = classes_K, np.full(len(classes_K), -1)
        else:
            kind, chosen = "sample", _chosen_samples(kept, self._counts_K)
            labels, sample_index = np.repeat(classes_K, self._counts_K)[chosen], chosen
        layers = []
        for h_TND in self._trainer.features(position):
            if kind == "class_mean":
                values = class_means(h_TND.double(), self._class_counts_K)[0]
            else:
                values = h_TND[0, torch.from_numpy(chosen).to(h_TND.device)]
            layers.append(values.cpu().numpy().astype(dtype))
        count = len(layers)
        return {
            "step": np.full(count * len(chosen), step),
            "layer": np.repeat(np.arange(count) + self._trainer.network.first_layer, len(chosen)),
            "kind": [kind] * (count * len(chosen)),
            "label": np.tile(labels, count),
            "sample_index": np.tile(sample_index, count),
            "feature": np.concatenate(layers),
        }

    def _alignment(self, h_TND: Tensor, weight_TKD: Tensor) -> dict[str, Tensor]:
        if h_TND.shape[-1] != weight_TKD.shape[-1]:
            return {}
        return weight_alignment(h_TND, self._class_counts_K, weight_TKD)


def _row(step: int, layer: int, geometry: ClassGeometry, alignment: dict[str, Tensor]) -> dict[str, Any]:
    """Return one measurement of one trial."""
    scalars = {name: value.item() for name, value in (geometry.scalars | alignment).items()}
    return {
        "step": step,
        "split": "train",
        "layer": layer,
        "is_last": False,
        **defined(scalars),
        "singular_values": geometry.singular_values[0].tolist(),
        # as Python numbers it would be eight times as large, which 100 classes make a gigabyte
        "class_gram": geometry.class_gram[0].flatten().float().cpu(),
    }


def defined(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with null for numbers that are not finite: they are not defined."""
    return {name: value if value is not None and math.isfinite(value) else None for name, value in row.items()}


def _chosen_samples(features: str, class_counts_K: np.ndarray) -> np.ndarray:
    """Return the indices of the kept samples in the class-sorted training set: the first n of each class, or all."""
    if features == "all":
        return np.arange(class_counts_K.sum())
    per_class = int(features.removeprefix("sample:"))
    starts = np.cumsum(class_counts_K) - class_counts_K
    return np.concatenate([s + np.arange(min(per_class, n)) for s, n in zip(starts, class_counts_K, strict=True)])
