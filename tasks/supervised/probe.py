"""A trained module measured layer by layer: one pass over its data with hooks, and the rows of the metrics table.

Shapes: N samples, D numbers of a feature, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from depthrate.tasks.measures.labelled import (
    FeaturesError,
    as_features,
    as_labels,
    as_targets,
    require_variation,
    sort_by_class,
)
from depthrate.tasks.measures.named_columns import parse_measure
from depthrate.tasks.networks.module_layers import capture_outputs, layer_names, pooled
from depthrate.tasks.networks.network import Layer
from depthrate.tasks.supervised.targets import classes_training, numbers_training

BATCH = 1024
"""Samples at once, where the data are whole arrays."""


def probe(
    model: nn.Module,
    data: Any,
    layers: str | Sequence[str] | None = None,
    *,
    maps: str = "mean",
    step: int = 0,
    split: str = "train",
    rank_tol: float = 0.01,
    features: bool = False,
    measure: str | None = None,
    regression: bool = False,
) -> Any:
    """Run a module once over its data, on its device and in evaluation mode, and return the rows of the metrics table.

    `data` is a loader of (samples, labels) or a pair of arrays. `layers` are patterns of module names (`blocks.*`), by
    default the module's own list; the last linear map's input is the last layer, as in a sweep. `maps` says how maps and
    tokens are measured: averaged (`mean`) or whole (`flatten`). Layer 0 is the input. Each row has its layer's `name`.
    `measure` names more, with commas: effective_rank, intrinsic_dimension, linear_probe, cka_input, cka_last. With
    `features` (rows, name -> features [N, D] in the order of the data) is returned. With `regression` the data are (samples,
    targets [N] or [N, m]), and rows have nrc1, nrc2 and nrc3 (see `regression_collapse`).

    Raises:
        ParameterError: a pattern matches no module, or `measure` has another name; the message lists them.
        FeaturesError: labels are not one class a sample, targets are no numbers, a number is not finite, or a class is empty.
    """
    patterns = [part.strip() for part in layers.split(",")] if isinstance(layers, str) else layers
    if maps not in ("mean", "flatten"):
        raise FeaturesError(f"maps is {maps!r}; allowed: mean, flatten")
    names_more = parse_measure(measure)
    seen, labels_N, head = _seen(
        model, data, layer_names(model, patterns), maps, as_targets if regression else as_labels
    )
    weight = dict(model.named_modules())[head].weight if head is not None else None
    if regression:
        y_Nm = require_variation(torch.from_numpy(labels_N))
        order_N, num_outputs = torch.arange(len(y_Nm)), y_Nm.shape[1]
        measurements = numbers_training.layer_measurements(y_Nm, names_more, split=split)
    else:
        order_N, counts_K = sort_by_class(labels_N)
        num_outputs = len(counts_K)
        measurements = classes_training.layer_measurements(counts_K.numpy(), rank_tol, split=split, names=names_more)
    if weight is not None and len(weight) != num_outputs:
        weight = None  # of a task with other classes: what is compared with them would mean nothing
    inputs_ND = seen.pop("input", None)
    names = list(seen)
    found = [
        Layer(number, tuple(seen[name].shape[1:]), name, is_output=name == head)
        for number, name in enumerate(names, start=1)
    ]

    def sorted_1ND() -> Iterator[Tensor]:
        return (seen[name][order_N.to(seen[name].device)].unsqueeze(0) for name in names)

    inputs, x_NI = None, None
    if inputs_ND is not None:
        x_NI = inputs_ND[order_N.to(inputs_ND.device)]
        inputs = Layer(0, (x_NI.shape[-1],), "input"), measurements.of_features(x_NI.unsqueeze(0))
    weight_1KD = None if weight is None else weight.detach().unsqueeze(0)
    (rows,) = measurements.rows(step, found, sorted_1ND, weight_1KD, inputs, x_NI)
    for row, name in zip(rows, [*(["input"] if inputs is not None else []), *names], strict=True):
        row["name"] = name
        row |= {key: value.numpy() for key, value in row.items() if isinstance(value, Tensor)}
    return (rows, seen) if features else rows


def _seen(
    model: nn.Module, data: Any, names: Sequence[str], maps: str, checked: Callable[[Any, int], Any]
) -> tuple[dict[str, Tensor], np.ndarray, str | None]:
    """Return the features of each layer by name, the labels, and the head's name; the model's mode stays as it was.

    checked: makes labels or targets of what comes with so many samples.
    """
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    parts: dict[str, list[Tensor]] = {}
    labels: list[np.ndarray] = []
    head = None
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), capture_outputs(model, names) as watch:
            for x, y in _batches(data, checked):
                x = x.to(device)
                output = model(x)
                is_head = watch.head_output is output
                head = watch.head if is_head else None
                layers = watch.layers(with_head_input=is_head and watch.reads_other)
                found = {name: pooled(feature, maps) for name, feature in layers.items()}
                if x.is_floating_point():
                    found = {"input": x.flatten(1), **found}
                labels.append(np.asarray(checked(y, len(x))))
                for name, each in found.items():
                    parts.setdefault(name, []).append(as_features(each))
    finally:
        for module, mode in before.items():
            module.training = mode
    if not labels:
        raise FeaturesError("the data have no samples")
    return {name: torch.cat(each) for name, each in parts.items()}, np.concatenate(labels), head


def _batches(data: Any, checked: Callable[[Any, int], Any]) -> Iterator[tuple[Tensor, Any]]:
    if isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[0], tuple | list):
        x, y = torch.as_tensor(data[0]), data[1]
        if len(x) != len(y):
            raise FeaturesError(f"{len(x)} samples have {len(y)} labels; give one label a sample")
        checked(y, len(x))  # before a batch of them is run, whose numbers may happen to be whole
        for start in range(0, len(x), BATCH):
            yield x[start : start + BATCH], y[start : start + BATCH]
        return
    if not isinstance(data, Iterable):
        raise FeaturesError(f"data is {type(data).__name__}; give a loader of (samples, labels), or a pair of arrays")
    for batch in data:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise FeaturesError("a batch of the loader is no pair (samples, labels)")
        yield torch.as_tensor(batch[0]), batch[1]
