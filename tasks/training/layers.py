"""What a trial reports of its layers: a row of measurements each, and the features it keeps.

Shapes: T trials, N samples sorted by class, D numbers of a feature, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.measures.class_means import class_means
from depthrate.tasks.measures.progressive import path_start, relative_positions, step_length
from depthrate.tasks.networks.network import Layer
from depthrate.tasks.training.trainer import FusedTrainer

Columns = Mapping[str, Tensor]
"""Measurement -> its value for T trials: a scalar [T], a vector [T, n] or a matrix [T, n, m]."""
OfFeatures = Callable[[Tensor], Columns]
"""From one layer's features [T, N, D] to what they tell alone."""
OfWeights = Callable[[Tensor, Tensor], Columns]
"""From one layer's features [T, N, D] and the last layer's weight [T, K, D], where both have one width."""


OfPath = Callable[[Sequence[dict[str, Any]], tuple[Tensor, Tensor], Iterable[Tensor]], None]
"""Adds to the rows of the path's layers what its first and last features [N, D], and each layer's once more, tell of them."""


class LayerMeasurements:
    """Measures one trial of a pack at a time, layer by layer, on the training set, with functions that its task chose."""

    def __init__(
        self, of_features: OfFeatures, of_weights: OfWeights, of_path: OfPath | None = None, split: str = "train"
    ):
        self.of_features, self.of_weights, self._of_path, self._split = of_features, of_weights, of_path, split
        self._of_input: Columns | None = None

    def __call__(self, trainer: FusedTrainer, position: int, step: int) -> list[dict[str, Any]]:
        """Return one row a layer, the network's input among them where it counts as a layer.

        relative_position is the length of the path through the layers of the last one's shape, over the whole path's (see
        `path_start`); other layers have none.
        """
        network = trainer.network
        weight_TKD = None
        if network.last_weight is not None:
            weight_TKD = trainer.parameters()[network.last_weight][position : position + 1]
        inputs = None
        if network.input_layer is not None:
            x_TNI = trainer.x_NI.unsqueeze(0)
            if self._of_input is None:  # the same for every trial and step
                self._of_input = self.of_features(x_TNI)
            inputs = network.input_layer, self._of_input
        return self.rows(step, network.layers(), lambda: trainer.features(position), weight_TKD, inputs)

    def rows(
        self,
        step: int,
        layers: Sequence[Layer],
        features: Callable[[], Iterable[Tensor]],
        weight_TKD: Tensor | None,
        inputs: tuple[Layer, Columns] | None,
    ) -> list[dict[str, Any]]:
        """Return the rows of features [1, N, *shape], layer by layer, behind that of the input, where it is given."""
        rows = []
        if inputs is not None:
            layer, columns = inputs
            rows.append(_row(step, layer, columns))
        first_TND, previous_TND, steps = None, None, []
        start = path_start([layer.shape for layer in layers])
        for index, (layer, feature) in enumerate(zip(layers, features(), strict=True)):
            h_TND = feature.flatten(2)
            rows.append(_row(step, layer, self.of_features(h_TND), self._alignment(h_TND, weight_TKD)))
            if index > start:
                assert previous_TND is not None
                steps.append(step_length(previous_TND, h_TND))
            elif self._of_path is not None:
                first_TND = h_TND
            previous_TND = h_TND
        path = rows[start - len(layers) :]
        for row, place in zip(path, relative_positions(steps), strict=True):
            row["relative_position"] = place
        for row in rows:
            row["split"] = self._split
        if self._of_path is not None:
            assert first_TND is not None and previous_TND is not None
            again = (feature.flatten(2)[0] for feature in islice(features(), start, None))
            self._of_path(path, (first_TND[0], previous_TND[0]), again)
        rows[-1]["is_last"] = True
        return rows

    def _alignment(self, h_TND: Tensor, weight_TKD: Tensor | None) -> Columns:
        if weight_TKD is None or h_TND.shape[-1] != weight_TKD.shape[-1]:
            return {}
        return self.of_weights(h_TND, weight_TKD)


def _row(step: int, layer: Layer, *measured: Columns) -> dict[str, Any]:
    """Return one measurement of the only trial in these columns."""
    row: dict[str, Any] = {"step": step, "split": "train", "layer": layer.number, "is_last": False}
    for name, values in (item for columns in measured for item in columns.items()):
        if values.ndim == 1:
            row |= defined({name: values.item()})
        elif values.ndim == 2:
            row[name] = values[0].tolist()
        else:  # as Python numbers it would be eight times as large, which 100 classes make a gigabyte
            row[name] = values[0].flatten().float().cpu()
    return row


def defined(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with null for numbers that are not finite: they are not defined."""
    return {name: value if value is not None and math.isfinite(value) else None for name, value in row.items()}


class KeptFeatures(Mapping[str, Any]):
    """Features that a trial keeps, as columns, layer after layer; `parts` gives one layer at a time, and holds no other."""

    def __init__(self, parts: Callable[[], Iterator[dict[str, Any]]]):
        self.parts = parts

    @cached_property
    def _whole(self) -> dict[str, Any]:
        parts = list(self.parts())
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def __getitem__(self, name: str) -> Any:
        return self._whole[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole)

    def __len__(self) -> int:
        return len(self._whole)


def kept_features(
    trainer: FusedTrainer, position: int, class_counts_K: np.ndarray, step: int, kept: str, dtype: str
) -> KeptFeatures:
    """Return the features that one trial keeps (class_means, sample:<n> or all) as columns, layer after layer.

    Kept are the layers of the last one's width: a file of features holds vectors of one length. They are computed when they
    are read.
    """
    classes_K = np.arange(len(class_counts_K))
    if kept == "class_means":
        kind, chosen = "class_mean", classes_K
        labels, sample_index = classes_K, np.full(len(classes_K), -1)
    else:
        kind, chosen = "sample", _chosen_samples(kept, class_counts_K)
        labels, sample_index = np.repeat(classes_K, class_counts_K)[chosen], chosen

    def parts() -> Iterator[dict[str, Any]]:
        layers = trainer.network.layers()
        for layer, feature in zip(layers, trainer.features(position), strict=True):
            if layer.width != layers[-1].width:
                continue
            h_TND = feature.flatten(2)
            if kind == "class_mean":
                values = class_means(h_TND.double(), torch.from_numpy(class_counts_K))[0]
            else:
                values = h_TND[0, torch.from_numpy(chosen).to(h_TND.device)]
            yield {
                "step": np.full(len(chosen), step),
                "layer": np.full(len(chosen), layer.number),
                "kind": np.full(len(chosen), kind),
                "label": labels,
                "sample_index": sample_index,
                "feature": values.cpu().numpy().astype(dtype),
            }

    return KeptFeatures(parts)


def _chosen_samples(kept: str, class_counts_K: np.ndarray) -> np.ndarray:
    """Return the indices of the kept samples in the class-sorted training set: the first n of each class, or all."""
    if kept == "all":
        return np.arange(class_counts_K.sum())
    per_class = int(kept.removeprefix("sample:"))
    starts = np.cumsum(class_counts_K) - class_counts_K
    return np.concatenate([s + np.arange(min(per_class, n)) for s, n in zip(starts, class_counts_K, strict=True)])
