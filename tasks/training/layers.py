"""A trial's rows of metrics per layer, on the training set and the test split, and its stored features.

Shapes: T trials, N samples sorted by class, I input dimensions, D feature dimensions, K classes.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.measures.geodesic import path_start, relative_positions, step_length
from depthrate.tasks.measures.neural_collapse import class_means
from depthrate.tasks.networks.network import Layer
from depthrate.tasks.training.memory import feature_numbers_in_memory
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import layers_per_reduction, trials_per_layer, trials_per_measurement

Columns = Mapping[str, Tensor]
"""Metric -> value for T trials: a scalar [T], a vector [T, n] or a matrix [T, n, m]."""
Reduce = Callable[[Tensor, Tensor | None], Columns]
"""Reads a layer's features [T, N, D], and the last layer's weight [T, K, D] if it has their width, on their device. Returns
metrics and moments: small tensors whose first axis is T."""
Finish = Callable[[Columns, Tensor | None, torch.dtype], Columns]
"""Turns what `Reduce` returned into metrics, on the CPU. Also takes the weight, as `Reduce`, and the features' type."""
OfMoments = Callable[[Columns, Tensor], Columns]
"""Metrics of the last layer alone, from what `Reduce` returned for it and from its weight [T, K, D], on the CPU."""
OfLast = Callable[[FusedTrainer, Sequence[int]], OfMoments]
"""Trainer and positions of trials -> metrics of the last layer alone."""
OfPath = Callable[[Sequence[dict[str, Any]], tuple[Tensor, Tensor], Iterable[Tensor]], None]
"""Adds columns to the rows of a path's layers, from its first and last features [N, D] and all layers' features once more."""
OfPair = Callable[[Tensor, Tensor, Tensor | None], Columns]
"""Metrics of one layer's features [T, N, D] together with the last layer's [T, N, E] and the inputs [N, I], None for text."""
_STEP = "step_length"


def runs_of_trials(trainer: FusedTrainer, positions: Sequence[int]) -> list[tuple[int, int]]:
    """Group positions of trials into runs that are measured together, as first position and count."""
    numbers = feature_numbers_in_memory(trainer.network)
    limit = trials_per_layer(trainer.device.type, len(trainer.x_NI), numbers)
    runs: list[tuple[int, int]] = []
    for position in positions:
        first, count = runs[-1] if runs else (position, 0)
        if position == first + count and count < limit:
            runs[-1:] = [(first, count + 1)]
        else:
            runs.append((position, 1))
    return runs


class LayerMeasurements:
    """Measures a pack's trials layer by layer, on the training set, with the task's metrics.

    Features are reduced to small moments: of one layer and trial at a time on a CPU, so that a layer stays in a core's cache,
    and of several trials and layers on a GPU. The moments of all layers, of trials limited by memory, are copied to the CPU at
    once, and metrics are computed for all these trials, and for layers of one width, together. The limit does not affect the
    numbers: nothing is reduced across trials or layers.
    """

    def __init__(
        self,
        reduce: Reduce,
        finish: Finish = lambda moments, weight_TKD, dtype: moments,
        *,
        num_classes: int = 1,
        of_path: OfPath | None = None,
        split: str = "train",
        of_pair: OfPair | None = None,
        of_last: OfLast | None = None,
    ):
        self._reduce, self._finish, self._num_classes = reduce, finish, num_classes
        self._of_path, self._split, self._of_pair, self._of_last = of_path, split, of_pair, of_last
        self._input: tuple[Layer, Columns] | None = None

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
        layers = trainer.network.layers()
        together = trials_per_measurement(len(layers), self._num_classes, max(layer.width for layer in layers))
        rows_of_trials = []
        with torch.no_grad():  # set here, because alternating generators of features would not restore it
            for start in range(0, len(positions), together):
                rows_of_trials += self._measure_together(trainer, positions[start : start + together], step)
        return rows_of_trials

    def _measure_together(
        self, trainer: FusedTrainer, positions: Sequence[int], step: int
    ) -> list[list[dict[str, Any]]]:
        network, x_NI = trainer.network, trainer.x_NI
        weights = trainer.last_weights()
        weight_TKD = None if weights is None else torch.stack([weights[position] for position in positions])
        if network.input_layer is not None and self._input is None:  # equal for all trials and steps
            self._input = network.input_layer, self.of_input(x_NI)
        # metrics that compare layers read a trial's features several times
        compares = self._of_path is not None or self._of_pair is not None
        runs = [(position, 1) for position in positions] if compares else runs_of_trials(trainer, positions)
        features = [partial(trainer.features, first, count) for first, count in runs]
        samples_NI = x_NI if x_NI.is_floating_point() else None
        of_last = None if self._of_last is None else self._of_last(trainer, positions)
        return self.rows(step, network.layers(), features, weight_TKD, self._input, samples_NI, of_last)

    def of_input(self, x_NI: Tensor) -> Columns:
        """Return the metrics [1] of the input as a layer."""
        (moments,) = to_cpu([self._reduce(x_NI.unsqueeze(0), None)])
        return self._finish(moments, None, x_NI.dtype)

    def rows(
        self,
        step: int,
        layers: Sequence[Layer],
        features: Sequence[Callable[[], Iterable[Tensor]]],
        weight_TKD: Tensor | None,
        inputs: tuple[Layer, Columns] | None,
        x_NI: Tensor | None = None,
        of_last: OfMoments | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Build each trial's rows, the input's first if there is one, then layer by layer.

        Args:
            step: Training step, stored in the rows.
            layers: The network's layers.
            features: Functions that yield the layers' features of the next trials, [T, N, *shape] each. With path or pair
                metrics each is of one trial, and called again.
            weight_TKD: Last layer's weight, None without one.
            inputs: The input layer and its metrics, None if the input is not a layer.
            x_NI: Samples, None if they are not numbers.
            of_last: Metrics of the last layer alone, None without them.
        """
        end = 1 + max(index for index, layer in enumerate(layers) if not layer.is_output or not index)
        path = slice(path_start([layer.shape for layer in layers[:end]]), end)
        has_weight = [weight_TKD is not None and weight_TKD.shape[-1] == layer.width for layer in layers]
        kinds = [(layer.width, has) for layer, has in zip(layers, has_weight, strict=True)]
        parts: list[list[Columns]] = [[] for _ in layers]
        dtype, first = torch.float32, 0
        for of_trials in features:
            num_trials, previous_TND = 0, torch.empty(0)
            for stack in _stacks(zip(range(len(layers)), of_trials(), strict=True), kinds):
                num_trials, dtype = len(stack[0][1]), stack[0][1].dtype
                own_weight = None
                if weight_TKD is not None and has_weight[stack[0][0]]:
                    own_weight = weight_TKD[first : first + num_trials]
                step_lengths = _step_lengths(stack, previous_TND, path)
                previous_TND = stack[-1][1]
                h_TND = stack[0][1] if len(stack) == 1 else torch.cat([h for _, h in stack])
                columns = self._reduce(h_TND, _repeated(own_weight, len(stack)))
                for (index, _), of_layer, step_T in zip(stack, _split(columns, len(stack)), step_lengths, strict=True):
                    parts[index].append({**of_layer, _STEP: step_T})
            first += num_trials
        joined = [{name: torch.cat([part[name] for part in of_layer]) for name in of_layer[0]} for of_layer in parts]
        *moments, weights = to_cpu([*joined, {} if weight_TKD is None else {"weight": weight_TKD}])
        rows_of_layers = []
        for kind, numbered in groupby(enumerate(moments), lambda entry: kinds[entry[0]]):
            indices, of_layers = zip(*numbered, strict=True)
            weight_TKD = weights["weight"] if kind[1] else None
            stacked = {name: torch.cat([part[name] for part in of_layers]) for name in of_layers[0]}
            finished = self._finish(stacked, _repeated(weight_TKD, len(indices)), dtype)
            for index, columns in zip(indices, _split(finished, len(indices)), strict=True):
                if index == end - 1 and of_last is not None and weight_TKD is not None:
                    columns |= of_last(moments[index], weight_TKD)
                rows_of_layers.append(_rows(step, layers[index], columns))
        rows_of_trials = [list(rows) for rows in zip(*rows_of_layers, strict=True)]
        for trial, rows in enumerate(rows_of_trials):
            steps = [row.pop(_STEP) for row in rows]
            for row, position in zip(rows[path], relative_positions(steps[path][1:]), strict=True):
                row["relative_position"] = position
            rows[end - 1]["is_last"] = True
            input_rows = (
                [] if inputs is None else _rows(step, *inputs)
            )  # a single row, because the trials share the input
            if self._of_path is not None or self._of_pair is not None:
                self._compare(rows, input_rows, path, features[trial], x_NI)
            rows[:0] = input_rows
            for row in rows:
                row["split"] = self._split
        return rows_of_trials

    def _compare(
        self,
        rows: Sequence[dict[str, Any]],
        input_rows: Sequence[dict[str, Any]],
        path: slice,
        features: Callable[[], Iterable[Tensor]],
        x_NI: Tensor | None,
    ) -> None:
        """Add to a trial's rows the metrics that compare layers, from its features [1, N, *shape]."""
        first_1ND = last_1ND = torch.empty(0)
        for index, feature in enumerate(islice(features(), path.stop)):
            last_1ND = feature.flatten(2)
            first_1ND = last_1ND if index == path.start else first_1ND
        if self._of_pair is not None:
            for row, feature in zip(rows, features(), strict=True):
                _add_columns(row, self._of_pair(feature.flatten(2), last_1ND, x_NI))
            if input_rows and x_NI is not None:
                _add_columns(input_rows[0], self._of_pair(x_NI.flatten(1).unsqueeze(0), last_1ND, x_NI))
        if self._of_path is not None:
            path_features = (feature.flatten(2)[0] for feature in islice(features(), path.start, path.stop))
            self._of_path(rows[path], (first_1ND[0], last_1ND[0]), path_features)


Stack = list[tuple[int, Tensor]]
"""Numbers of consecutive layers of one kind, and their features [T, N, D]."""


def _stacks(features: Iterable[tuple[int, Tensor]], kinds: Sequence[Hashable]) -> Iterator[Stack]:
    """Group layers that are reduced by one call: on a GPU, whose launches cost more than small layers, as memory allows."""
    stack: Stack = []
    for index, feature in features:
        h_TND = feature.flatten(2)
        most = layers_per_reduction(h_TND.device.type, h_TND.numel())
        if stack and (kinds[index] != kinds[stack[-1][0]] or len(stack) >= most):
            yield stack
            stack = []
        stack.append((index, h_TND))
    if stack:
        yield stack


def _step_lengths(stack: Stack, previous_TND: Tensor, path: slice) -> Sequence[Tensor]:
    """Return the path length [T] to each layer of a stack from the layer before it. 0 outside the path."""
    (index, h_TND), *others = stack
    is_step = path.start < index < path.stop
    first_T = step_length(previous_TND, h_TND) if is_step else h_TND.new_zeros(len(h_TND))
    if not others:
        return [first_T]
    before_TND, after_TND = (torch.cat([h for _, h in part]) for part in (stack[:-1], others))
    return [first_T.double(), *step_length(before_TND, after_TND).chunk(len(others))]


def _repeated(weight_TKD: Tensor | None, count: int) -> Tensor | None:
    return weight_TKD if weight_TKD is None or count == 1 else weight_TKD.repeat(count, 1, 1)


def _split(columns: Columns, count: int) -> list[dict[str, Tensor]]:
    """Split columns of stacked layers, [count T, ...]."""
    chunks = {name: values.chunk(count) for name, values in columns.items()}
    return [{name: parts[number] for name, parts in chunks.items()} for number in range(count)]


def to_cpu(groups: Sequence[Columns]) -> list[Columns]:
    """Copy tensors to the CPU at once, in float64, because every copy waits for a GPU."""
    tensors = [values.double() for group in groups for values in group.values()]
    if not tensors:
        return [{} for _ in groups]
    flat = torch.cat([values.flatten() for values in tensors]).cpu()
    parts = iter(torch.split(flat, [values.numel() for values in tensors]))
    return [{name: next(parts).view(values.shape) for name, values in group.items()} for group in groups]


def _add_columns(row: dict[str, Any], columns: Columns) -> None:
    """Add numbers [1] to the row of a trial."""
    row |= null_if_not_finite({name: value_1.item() for name, value_1 in columns.items()})


def _rows(step: int, layer: Layer, columns: Columns) -> list[dict[str, Any]]:
    """Build one row per trial from a layer's metrics."""
    key = {"step": step, "split": "train", "layer": layer.number, "is_last": False}
    values = zip(*map(_values, columns.values()), strict=True)
    return [{**key, **dict(zip(columns, of_trial, strict=True))} for of_trial in values]


def _values(column: Tensor) -> Sequence[Any]:
    """Split a metric into one value per trial: a number, None where undefined, a list, or a flat matrix."""
    if column.ndim > 2:  # Python numbers would take eight times the memory, a gigabyte for 100 classes
        return column.flatten(1).float().unbind()
    return [value if isinstance(value, list) or math.isfinite(value) else None for value in column.tolist()]


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

    def __call__(
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
