"""A trial's rows of metrics per layer, and its stored features.

Shapes: T trials, N samples sorted by class, D feature dimensions, K classes.
"""

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
"""Metric -> value for T trials: a scalar [T], a vector [T, n] or a matrix [T, n, m]."""
OfFeatures = Callable[[Tensor], Columns]
"""Metrics of one layer's features [T, N, D]."""
OfWeights = Callable[[Tensor, Tensor], Columns]
"""Metrics of one layer's features [T, N, D] and the last layer's weight [T, K, D]."""
OfLast = Callable[[FusedTrainer, Sequence[int]], OfWeights]
"""Trainer and positions of trials -> metrics of the last layer alone."""
OfPath = Callable[[Sequence[dict[str, Any]], tuple[Tensor, Tensor], Iterable[Tensor]], None]
"""Adds columns to the rows of a path's layers, from its first and last features [N, D] and all layers' features once more."""
OfPair = Callable[[Tensor, Tensor, Tensor | None], Columns]
"""Metrics of one layer's features [T, N, D] together with the last layer's [T, N, E] and the inputs [N, I], None for text."""
LAYER_BLOCK_NUMBERS = 2**19
"""Maximum number of feature values measured at a time, over all trials. More do not fit into a processor's cache."""


class LayerMeasurements:
    """Measures a pack's trials layer by layer, on the training set, with the task's metrics.

    Trials are measured in blocks limited by memory. The block size does not affect the numbers: nothing is reduced across
    trials, and each trial's forward pass runs alone.
    """

    def __init__(
        self,
        of_features: OfFeatures,
        of_weights: OfWeights,
        of_path: OfPath | None = None,
        split: str = "train",
        of_pair: OfPair | None = None,
        of_last: OfLast | None = None,
    ):
        self.of_features, self.of_weights, self._of_path, self._split = of_features, of_weights, of_path, split
        self._of_pair, self._of_last = of_pair, of_last
        self._of_input: Columns | None = None

    def __call__(self, trainer: FusedTrainer, positions: Sequence[int], step: int) -> list[list[dict[str, Any]]]:
        """Measure trials at a step.

        Args:
            trainer: The pack's trainer.
            positions: Positions of the trials in it.
            step: Training step, stored in the rows.

        Returns:
            For each trial one row per layer, including the network's input if it counts as a layer. relative_position is the
            path length up to the layer divided by the total (see `path_start`), only for layers with the shape of the last one.
        """
        numbers = len(trainer.x_NI) * max(layer.width for layer in trainer.network.layers())
        # path metrics compute every layer again, trial by trial
        block_size = (
            1
            if self._of_path is not None
            else max(1, LAYER_BLOCK_NUMBERS // (numbers * trainer.network.rows_per_sample))
        )
        rows_of_trials = []
        with torch.no_grad():  # set here, because alternating generators of features would not restore it
            for start in range(0, len(positions), block_size):
                rows_of_trials += self._measure_together(trainer, list(positions[start : start + block_size]), step)
        return rows_of_trials

    def _measure_together(self, trainer: FusedTrainer, positions: list[int], step: int) -> list[list[dict[str, Any]]]:
        network = trainer.network
        weight_TKD = None
        if network.last_weight is not None:
            weight_TKD = trainer.parameters()[network.last_weight][positions]
        inputs = None
        if network.input_layer is not None:
            x_TNI = trainer.x_NI.unsqueeze(0)
            if self._of_input is None:  # equal for all trials and steps
                self._of_input = self.of_features(x_TNI)
            inputs = network.input_layer, self._of_input

        def features() -> Iterator[Tensor]:
            return map(torch.cat, zip(*map(trainer.features, positions), strict=True))

        x_NI = trainer.x_NI if trainer.x_NI.is_floating_point() else None
        of_last = None if self._of_last is None else self._of_last(trainer, positions)
        return self.rows(step, network.layers(), features, weight_TKD, inputs, x_NI, of_last)

    def rows(
        self,
        step: int,
        layers: Sequence[Layer],
        features: Callable[[], Iterable[Tensor]],
        weight_TKD: Tensor | None,
        inputs: tuple[Layer, Columns] | None,
        x_NI: Tensor | None = None,
        of_last: OfWeights | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Build each trial's rows, the input's first if there is one, then layer by layer.

        Args:
            step: Training step, stored in the rows.
            layers: The network's layers.
            features: Function that yields the layers' features, [T, N, *shape] each. Called again for path and pair metrics.
            weight_TKD: Last layer's weight, None without one.
            inputs: The input layer and its metrics, None if the input is not a layer.
            x_NI: Samples, None if they are not numbers.
            of_last: Metrics of the last layer alone, None without them.
        """
        rows_of_layers = []
        first_TND, previous_TND, steps = None, None, []
        end = 1 + max(index for index, layer in enumerate(layers) if not layer.is_output or not index)
        start = path_start([layer.shape for layer in layers[:end]])
        for index, (layer, feature) in enumerate(zip(layers, features(), strict=True)):
            h_TND = feature.flatten(2)
            columns = [self.of_features(h_TND), _measure_weights(self.of_weights, h_TND, weight_TKD)]
            if index == end - 1 and of_last is not None:
                columns.append(_measure_weights(of_last, h_TND, weight_TKD))
            rows_of_layers.append(_rows(step, layer, *columns))
            if start < index < end:
                assert previous_TND is not None
                steps.append(step_length(previous_TND, h_TND))
            elif index <= start and self._of_path is not None:
                first_TND = h_TND
            previous_TND = h_TND if index < end else previous_TND
        lengths = torch.stack(steps, dim=1).tolist() if steps else [[]] * len(rows_of_layers[-1])
        of_inputs = [] if inputs is None else _rows(step, *inputs)  # a single row, because the trials share the input
        input_rows = [dict(row) for row in of_inputs * len(rows_of_layers[-1])]
        if self._of_pair is not None:
            assert previous_TND is not None
            for rows_of_layer, feature in zip(rows_of_layers, features(), strict=True):
                _add_columns(rows_of_layer, self._of_pair(feature.flatten(2), previous_TND, x_NI))
            if input_rows and x_NI is not None:
                _add_columns(input_rows, self._of_pair(x_NI.flatten(1).unsqueeze(0), previous_TND, x_NI))
        of_trials = [list(rows) for rows in zip(*rows_of_layers, strict=True)]
        for trial, rows in enumerate(of_trials):
            path = rows[start:end]
            for row, position in zip(path, relative_positions(lengths[trial]), strict=True):
                row["relative_position"] = position
            if self._of_path is not None:
                assert first_TND is not None and previous_TND is not None
                path_features = (feature.flatten(2)[trial] for feature in islice(features(), start, end))
                self._of_path(path, (first_TND[trial], previous_TND[trial]), path_features)
            rows[end - 1]["is_last"] = True
            rows[:0] = input_rows[trial : trial + 1]
            for row in rows:
                row["split"] = self._split
        return of_trials


def _measure_weights(of_weights: OfWeights, h_TND: Tensor, weight_TKD: Tensor | None) -> Columns:
    if weight_TKD is None or h_TND.shape[-1] != weight_TKD.shape[-1]:
        return {}
    return of_weights(h_TND, weight_TKD)


def _add_columns(rows: Sequence[dict[str, Any]], columns: Columns) -> None:
    """Add numbers [T] to the rows of T trials."""
    for name, values_T in columns.items():
        for row, value in zip(rows, values_T.tolist(), strict=True):
            row |= null_if_not_finite({name: value})


def _rows(step: int, layer: Layer, *metrics: Columns) -> list[dict[str, Any]]:
    """Build one row per trial from a layer's metrics."""
    columns: dict[str, Sequence[Any]] = {}
    for name, values in (item for group in metrics for item in group.items()):
        if values.ndim <= 2:
            columns[name] = values.tolist()
        else:  # Python numbers would take eight times the memory, a gigabyte for 100 classes
            columns[name] = [matrix.flatten().float().cpu() for matrix in values]
    key = {"step": step, "split": "train", "layer": layer.number, "is_last": False}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    numbers = [name for group in metrics for name, values in group.items() if values.ndim == 1]
    return [{**key, **row, **null_if_not_finite({name: row[name] for name in numbers})} for row in rows]


def null_if_not_finite(row: dict[str, Any]) -> dict[str, Any]:
    """Replace non-finite numbers, which are undefined metrics, by None."""
    return {name: value if value is not None and math.isfinite(value) else None for name, value in row.items()}


class LazyFeatures(Mapping[str, Any]):
    """A trial's stored features as columns, computed when read. `parts` yields one layer at a time to save memory."""

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


def stored_features(
    trainer: FusedTrainer, position: int, class_counts_K: np.ndarray, step: int, selection: str, dtype: str
) -> LazyFeatures:
    """Select the features that a trial stores, as columns, one layer after another.

    Only layers as wide as the last one are stored, because a features file holds vectors of the same length. The features are
    computed when they are read.

    Args:
        trainer: The pack's trainer.
        position: Position of the trial in it.
        class_counts_K: Number of samples per class.
        step: Training step, stored in the rows.
        selection: class_means, sample:<n per class> or all.
        dtype: float32 or float16.
    """
    classes_K = np.arange(len(class_counts_K))
    if selection == "class_means":
        kind, indices = "class_mean", classes_K
        labels, sample_index = classes_K, np.full(len(classes_K), -1)
    else:
        kind, indices = "sample", _stored_samples(selection, class_counts_K)
        labels, sample_index = np.repeat(classes_K, class_counts_K)[indices], indices

    def parts() -> Iterator[dict[str, Any]]:
        layers = trainer.network.layers()
        for layer, feature in zip(layers, trainer.features(position), strict=True):
            if layer.width != layers[-1].width:
                continue
            h_TND = feature.flatten(2)
            if kind == "class_mean":
                values = class_means(h_TND.double(), torch.from_numpy(class_counts_K))[0]
            else:
                values = h_TND[0, torch.from_numpy(indices).to(h_TND.device)]
            yield {
                "step": np.full(len(indices), step),
                "layer": np.full(len(indices), layer.number),
                "kind": np.full(len(indices), kind),
                "label": labels,
                "sample_index": sample_index,
                "feature": values.to("cpu", getattr(torch, dtype)).numpy(),  # infinite beyond the type's range
            }

    return LazyFeatures(parts)


def _stored_samples(selection: str, class_counts_K: np.ndarray) -> np.ndarray:
    """Return the indices of the stored samples in the class-sorted training set: the first n of each class, or all."""
    if selection == "all":
        return np.arange(class_counts_K.sum())
    per_class = int(selection.removeprefix("sample:"))
    starts = np.cumsum(class_counts_K) - class_counts_K
    return np.concatenate([s + np.arange(min(per_class, n)) for s, n in zip(starts, class_counts_K, strict=True)])
