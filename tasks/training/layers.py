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
"""Metric -> its value for T trials: a scalar [T], a vector [T, n] or a matrix [T, n, m]."""
OfFeatures = Callable[[Tensor], Columns]
"""From one layer's features [T, N, D] to what they tell alone."""
OfWeights = Callable[[Tensor, Tensor], Columns]
"""From one layer's features [T, N, D] and the last layer's weight [T, K, D], where both have one width."""
OfPath = Callable[[Sequence[dict[str, Any]], tuple[Tensor, Tensor], Iterable[Tensor]], None]
"""Adds to the rows of the path's layers what its first and last features [N, D], and each layer's once more, tell of them."""
OfPair = Callable[[Tensor, Tensor, Tensor | None], Columns]
"""From one layer's features [T, N, D], the last layer's [T, N, E] and the inputs [N, I], null for texts, to what they tell
together."""
LAYER_BLOCK_NUMBERS = 2**19
"""Numbers of a layer's features, of all trials that are measured at once: more of them do not fit into a processor's cache."""


class LayerMeasurements:
    """Measures trials of a pack, layer by layer, on the training set, with functions that its task chose.

    Trials are measured together as far as memory should hold them, which changes none of their numbers: nothing is reduced
    across trials, and each trial goes through its network alone.
    """

    def __init__(
        self,
        of_features: OfFeatures,
        of_weights: OfWeights,
        of_path: OfPath | None = None,
        split: str = "train",
        of_pair: OfPair | None = None,
    ):
        self.of_features, self.of_weights, self._of_path, self._split = of_features, of_weights, of_path, split
        self._of_pair = of_pair
        self._of_input: Columns | None = None

    def __call__(self, trainer: FusedTrainer, positions: Sequence[int], step: int) -> list[list[dict[str, Any]]]:
        """Return of each trial one row a layer, the network's input among them where it counts as a layer.

        relative_position is the length of the path through the layers of the last one's shape, over the whole path's (see
        `path_start`); other layers have none.
        """
        numbers = len(trainer.x_NI) * max(layer.width for layer in trainer.network.layers())
        # what goes along the path asks for each layer again, trial by trial
        at_once = (
            1
            if self._of_path is not None
            else max(1, LAYER_BLOCK_NUMBERS // (numbers * trainer.network.rows_per_sample))
        )
        rows_of_trials = []
        with torch.no_grad():  # which features that are read by turns would not restore
            for start in range(0, len(positions), at_once):
                rows_of_trials += self._together(trainer, list(positions[start : start + at_once]), step)
        return rows_of_trials

    def _together(self, trainer: FusedTrainer, positions: list[int], step: int) -> list[list[dict[str, Any]]]:
        network = trainer.network
        weight_TKD = None
        if network.last_weight is not None:
            weight_TKD = trainer.parameters()[network.last_weight][positions]
        inputs = None
        if network.input_layer is not None:
            x_TNI = trainer.x_NI.unsqueeze(0)
            if self._of_input is None:  # the same for every trial and step
                self._of_input = self.of_features(x_TNI)
            inputs = network.input_layer, self._of_input

        def features() -> Iterator[Tensor]:
            return map(torch.cat, zip(*map(trainer.features, positions), strict=True))

        x_NI = trainer.x_NI if trainer.x_NI.is_floating_point() else None
        return self.rows(step, network.layers(), features, weight_TKD, inputs, x_NI)

    def rows(
        self,
        step: int,
        layers: Sequence[Layer],
        features: Callable[[], Iterable[Tensor]],
        weight_TKD: Tensor | None,
        inputs: tuple[Layer, Columns] | None,
        x_NI: Tensor | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Return each trial's rows of features [T, N, *shape], layer by layer, behind that of the input, where it is given.

        x_NI: the samples, where they are numbers.
        """
        rows_of_layers = []
        first_TND, previous_TND, steps = None, None, []
        end = 1 + max(index for index, layer in enumerate(layers) if not layer.is_output or not index)
        start = path_start([layer.shape for layer in layers[:end]])
        for index, (layer, feature) in enumerate(zip(layers, features(), strict=True)):
            h_TND = feature.flatten(2)
            rows_of_layers.append(_rows(step, layer, self.of_features(h_TND), self._alignment(h_TND, weight_TKD)))
            if start < index < end:
                assert previous_TND is not None
                steps.append(step_length(previous_TND, h_TND))
            elif index <= start and self._of_path is not None:
                first_TND = h_TND
            previous_TND = h_TND if index < end else previous_TND
        lengths = torch.stack(steps, dim=1).tolist() if steps else [[]] * len(rows_of_layers[-1])
        of_inputs = [] if inputs is None else _rows(step, *inputs)  # one row: trials share the input
        input_rows = [dict(row) for row in of_inputs * len(rows_of_layers[-1])]
        if self._of_pair is not None:
            assert previous_TND is not None
            for rows_of_layer, feature in zip(rows_of_layers, features(), strict=True):
                _add(rows_of_layer, self._of_pair(feature.flatten(2), previous_TND, x_NI))
            if input_rows and x_NI is not None:
                _add(input_rows, self._of_pair(x_NI.flatten(1).unsqueeze(0), previous_TND, x_NI))
        of_trials = [list(rows) for rows in zip(*rows_of_layers, strict=True)]
        for trial, rows in enumerate(of_trials):
            path = rows[start:end]
            for row, place in zip(path, relative_positions(lengths[trial]), strict=True):
                row["relative_position"] = place
            if self._of_path is not None:
                assert first_TND is not None and previous_TND is not None
                again = (feature.flatten(2)[trial] for feature in islice(features(), start, end))
                self._of_path(path, (first_TND[trial], previous_TND[trial]), again)
            rows[end - 1]["is_last"] = True
            rows[:0] = input_rows[trial : trial + 1]
            for row in rows:
                row["split"] = self._split
        return of_trials

    def _alignment(self, h_TND: Tensor, weight_TKD: Tensor | None) -> Columns:
        if weight_TKD is None or h_TND.shape[-1] != weight_TKD.shape[-1]:
            return {}
        return self.of_weights(h_TND, weight_TKD)


def _add(rows: Sequence[dict[str, Any]], columns: Columns) -> None:
    """Add numbers [T] to the rows of T trials."""
    for name, values_T in columns.items():
        for row, value in zip(rows, values_T.tolist(), strict=True):
            row |= defined({name: value})


def _rows(step: int, layer: Layer, *measured: Columns) -> list[dict[str, Any]]:
    """Return of each trial in these columns the row of one measurement."""
    columns: dict[str, Sequence[Any]] = {}
    for name, values in (item for columns_of_one in measured for item in columns_of_one.items()):
        if values.ndim <= 2:
            columns[name] = values.tolist()
        else:  # as Python numbers it would be eight times as large, which 100 classes make a gigabyte
            columns[name] = [matrix.flatten().float().cpu() for matrix in values]
    place = {"step": step, "split": "train", "layer": layer.number, "is_last": False}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    numbers = [name for columns_of_one in measured for name, values in columns_of_one.items() if values.ndim == 1]
    return [{**place, **row, **defined({name: row[name] for name in numbers})} for row in rows]


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
                "feature": values.to("cpu", getattr(torch, dtype)).numpy(),  # beyond the type's range: infinite
            }

    return KeptFeatures(parts)


def _chosen_samples(kept: str, class_counts_K: np.ndarray) -> np.ndarray:
    """Return the indices of the kept samples in the class-sorted training set: the first n of each class, or all."""
    if kept == "all":
        return np.arange(class_counts_K.sum())
    per_class = int(kept.removeprefix("sample:"))
    starts = np.cumsum(class_counts_K) - class_counts_K
    return np.concatenate([s + np.arange(min(per_class, n)) for s, n in zip(starts, class_counts_K, strict=True)])
