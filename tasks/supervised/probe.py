"""Layer-by-layer metrics of a trained module: one pass over its data with hooks gives the rows of the metrics table.

Shapes: N samples, D numbers per feature, K classes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from depthrate.tasks.data.labels import check_dense
from depthrate.tasks.measures.labelled import (
    FeaturesError,
    as_features,
    as_labels,
    as_targets,
    require_variation,
    sort_by_class,
)
from depthrate.tasks.measures.named_columns import NAMES, parse_measure
from depthrate.tasks.networks.module_axes import Axes, axes_of_batch, find_axes, pooled
from depthrate.tasks.networks.module_flow import NETWORK, Flow, LinearMap, parse_pairs, tensors_of
from depthrate.tasks.networks.module_layers import (
    CapturedOutputs,
    attention_by_modules,
    capture_outputs,
    layer_names,
    seeded,
)
from depthrate.tasks.networks.network import Layer
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.targets import classes_training, numbers_training

BATCH = 1024
"""Samples per batch, for data in arrays."""


def probe(
    model: nn.Module,
    data: Any,
    layers: str | Sequence[str] | None = None,
    *,
    maps: str = "mean",
    layer_axes: str | Mapping[str, str] | None = None,
    step: int = 0,
    split: str = "train",
    rank_tol: float = 0.01,
    features: bool = False,
    measure: str | None = None,
    regression: bool = False,
    output_tensors: Mapping[str, Any] | None = None,
) -> Any:
    """Run a module once over its data, on its device in evaluation mode, and return rows of the metrics table.

    Args:
        model: Trained module.
        data: Loader of (samples, labels), or a pair of arrays.
        layers: Patterns of module names (`blocks.*`). Default: the module's own list. The input of the last linear map is the
            last layer, as in a sweep. Layer 0 is the input.
        maps: Measured form of maps and tokens: `mean` over pixels and tokens, or `flatten`.
        layer_axes: Axes of layers whose features cannot be found, by pattern of the name: one letter per axis, N for
            samples, C for features and any other for positions, as in {"rnn": "TNC"}.
        step: Step written to each row.
        split: Split written to each row.
        rank_tol: Singular values above this share of the largest count for the rank.
        features: Whether to return (rows, layer name -> features [N, D] in the order of the data).
        measure: Additional metrics, separated by commas: effective_rank, intrinsic_dimension, linear_probe, cka_input,
            cka_last.
        regression: Whether the data are (samples, targets [N] or [N, m]). Rows then have nrc1, nrc2 and nrc3.
        output_tensors: Places of the tensors taken of layers that return several, by pattern of the name, as in
            {"blocks.*": 1}, and of the module's own output, by `arch`.
    Returns:
        One row per layer, with the layer's `name`.
    Raises:
        ParameterError: A pattern matches no module, `measure` has an unknown name, or the axes of a layer cannot be decided.
            The message lists the names, or states the cure.
        FeaturesError: Labels are not one class per sample, targets are not numbers, a number is not finite, or a class is
            empty.
    """
    patterns = [part.strip() for part in layers.split(",")] if isinstance(layers, str) else layers
    if maps not in ("mean", "flatten"):
        raise FeaturesError(f"maps is {maps!r}, expected mean or flatten")
    metric_names = parse_measure(measure, built_in=NAMES)
    requested, convert = layer_names(model, patterns), as_targets if regression else as_labels
    features_by_name, labels_N, weight, logits = _collect(
        model, data, requested, maps, layer_axes, output_tensors, convert
    )
    if regression:
        y_Nm = require_variation(torch.from_numpy(labels_N))
        order_N, num_outputs = torch.arange(len(y_Nm)), y_Nm.shape[1]
        measurements = numbers_training.layer_measurements(y_Nm, metric_names, split=split)
    else:
        order_N, counts_K = sort_by_class(labels_N)
        num_outputs = len(counts_K)
        measurements = classes_training.layer_measurements(counts_K.numpy(), rank_tol, split=split, names=metric_names)
    if weight is not None and len(weight) != num_outputs:
        weight = None  # the head has different classes, so comparisons with it are meaningless
    inputs_ND = features_by_name.pop("input", None)
    names = list(features_by_name)
    measured_layers = [
        Layer(number, tuple(features_by_name[name].shape[1:]), name, is_output=name in logits)
        for number, name in enumerate(names, start=1)
    ]

    def sorted_1ND() -> Iterator[Tensor]:
        return (features_by_name[name][order_N.to(features_by_name[name].device)].unsqueeze(0) for name in names)

    inputs, x_NI = None, None
    if inputs_ND is not None:
        x_NI = inputs_ND[order_N.to(inputs_ND.device)]
        inputs = Layer(0, (x_NI.shape[-1],), "input"), measurements.of_input(x_NI)
    weight_1KD = None if weight is None else weight.detach().unsqueeze(0)
    (rows,) = measurements.rows(step, measured_layers, [sorted_1ND], weight_1KD, inputs, x_NI)
    for row, name in zip(rows, [*(["input"] if inputs is not None else []), *names], strict=True):
        row["name"] = name
        row |= {key: value.numpy() for key, value in row.items() if isinstance(value, Tensor)}
    return (rows, features_by_name) if features else rows


def _collect(
    model: nn.Module,
    data: Any,
    names: Sequence[str],
    maps: str,
    layer_axes: str | Mapping[str, str] | None,
    output_tensors: Mapping[str, Any] | None,
    convert: Callable[[Any, int], Any],
) -> tuple[dict[str, Tensor], np.ndarray, Tensor | None, set[str]]:
    """Collect the features of each layer by name, the labels, the last linear map's weight, and the names of the layers that
    are its output. The module's mode is restored.

    convert: Checks and converts the labels or targets of a number of samples.
    """
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    parts: dict[str, list[Tensor]] = {}
    labels: list[np.ndarray] = []
    axes, watch, logits = dict[str, Axes](), CapturedOutputs(), set[str]()
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), ExitStack() as stack:
            for x, y in _batches(data, convert):
                x = x.to(device)
                if not axes:
                    places, head, logits = _follow(model, names, x, output_tensors)
                    watch = stack.enter_context(capture_outputs(model, places, head))
                model(x)
                with_head_input = watch.reads_other
                features = dict(watch.layers(with_head_input=with_head_input))
                if not axes:
                    axes = _find_axes(model, places, x, maps, layer_axes, features, head, with_head_input)
                features = {name: pooled(feature, axes[name], maps) for name, feature in features.items()}
                if x.is_floating_point():
                    features = {"input": x.flatten(1), **features}
                labels.append(np.asarray(convert(y, len(x))))
                for name, feature in features.items():
                    parts.setdefault(name, []).append(as_features(feature))
    finally:
        for module, mode in modes.items():
            module.training = mode
    if not labels:
        raise FeaturesError("the data have no samples")
    # checked together too: a batch may happen to have labels of one type, or only labelled samples
    labels_N = convert([label for batch in labels for label in batch.tolist()], sum(map(len, labels)))
    return (
        {name: torch.cat(batches) for name, batches in parts.items()},
        np.asarray(labels_N),
        watch.head_weight,
        logits,
    )


@contextmanager
def _three_samples(model: nn.Module, x: Tensor) -> Iterator[Tensor]:
    """Yield three samples for runs that change neither buffers nor random numbers."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with seeded(0):
            yield x[torch.arange(3, device=x.device) % len(x)]
    finally:
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def _follow(
    model: nn.Module, names: Sequence[str], x: Tensor, output_tensors: Mapping[str, Any] | None
) -> tuple[dict[str, str], LinearMap | None, set[str]]:
    """Return the places of the layers' tensors, the last linear map, and the names of the layers that are its output."""
    with _three_samples(model, x) as x_3, attention_by_modules(), torch.enable_grad():
        for samples in (x_3, x):  # it may take only the batches of the data
            with suppress(Exception) if samples is x_3 else nullcontext(), Flow(model, names, samples) as flow:
                outputs = tensors_of(model(samples))
                break
    place = parse_pairs(output_tensors).get(NETWORK)
    trained = [tensor for name, tensor in outputs.items() if place in (None, name)]
    head = max((found for tensor in trained if (found := flow.origin(tensor)) is not None), default=None)
    places = flow.places(trained, output_tensors)
    return places, head, flow.outputs_of(head, places)


def _find_axes(
    model: nn.Module,
    places: Mapping[str, str],
    x: Tensor,
    maps: str,
    layer_axes: str | Mapping[str, str] | None,
    features: Mapping[str, Tensor],
    head: LinearMap | None,
    with_head_input: bool,
) -> dict[str, Axes]:
    """Return the axes of each layer, from runs on two and three samples if the network takes so few. Buffers are restored."""
    try:
        with _three_samples(model, x) as x_3:
            found = find_axes(model, model, places, x_3, maps, layer_axes, head, with_head_input=with_head_input)
        return {name: axes for name, (axes, _) in found.items()}
    except ParameterError:
        raise
    except Exception as error:
        return {
            name: axes_of_batch(feature, len(x), name, maps, layer_axes, error) for name, feature in features.items()
        }


def _batches(data: Any, convert: Callable[[Any, int], Any]) -> Iterator[tuple[Tensor, Any]]:
    if isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[0], tuple | list):
        x, y = _as_tensor(data[0]), data[1]
        if len(x) != len(y):
            raise FeaturesError(f"{len(x)} samples have {len(y)} labels, expected one per sample")
        convert(y, len(x))  # checked in full, since the numbers of one batch may happen to be integers
        for start in range(0, len(x), BATCH):
            yield x[start : start + BATCH], y[start : start + BATCH]
        return
    if not isinstance(data, Iterable):
        raise FeaturesError(
            f"data is {type(data).__name__}, expected a loader of (samples, labels) or a pair of arrays"
        )
    for batch in data:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise FeaturesError("a batch of the loader is not a pair (samples, labels)")
        yield _as_tensor(batch[0]), batch[1]


def _as_tensor(samples: Any) -> Tensor:
    check_dense(samples, FeaturesError)
    return torch.as_tensor(samples if isinstance(samples, Tensor | list | tuple) else np.array(samples))
