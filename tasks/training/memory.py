"""Prediction of a pack's memory from its network's costs. Importable without torch."""

from depthrate.tasks.networks.network import Network
from depthrate.tasks.training.cost import PackShape
from depthrate.tasks.training.training_plan import (
    BASIS_NUMBERS,
    LANCZOS_PRODUCTS,
    layers_per_reduction,
    order_bytes,
    trials_per_layer,
    trials_per_measurement,
)

WORKSPACE_BYTES = 170e6
"""Memory that a GPU reserves beyond tensors: workspaces of cuBLAS, one per thread and stream (measured on an H100)."""
PROCESS_BYTES = 315e6
"""Memory of a worker that has imported torch and trained something."""


def memory_bytes(shape: PackShape, num_trials: int, device: str) -> float:
    """Estimate a pack's peak memory in bytes: the memory of the process on a CPU, and of torch's tensors on a GPU.

    A process needs more than its tensors, because the allocator retains memory. The counts for a CPU were fitted to measured
    peaks.
    """
    if device == "cuda":
        return gpu_bytes(shape, num_trials)
    network, cost, number = shape.network, shape.network.step_cost(), _number_bytes(shape)
    parameters = num_trials * network.num_parameters
    rows = num_trials * max(shape.rows, shape.evaluated_rows)
    kept = 4 / 3 * cost.kept if cost.kept_by_process is None else cost.kept_by_process
    # a step: gradients twice, and each block's activations for the backward pass
    step = 2 * number * parameters + number * rows * kept
    # an evaluation: gradient, weights, decay and products in float64; a measurement: features three times
    layers = network.measured_layers()
    peak = _steady_bytes(shape, num_trials) + step + 5 * 8 * parameters
    peak += 3 * 8 * _measured_samples(shape) * max(layer.width for layer in layers)
    if shape.data.labels_tokens:
        peak += _moment_bytes(shape)
    else:  # metrics exist as rows, as tables and as files at the end, dominated by the classes' Gram matrices
        # moments as returned, joined, copied, and in the metrics' intermediates
        peak += 6 * 8 * _class_moments(shape, num_trials)
        peak += 3 * num_trials * shape.num_measured_steps * len(layers) * 4 * shape.data.num_classes**2
    return float(PROCESS_BYTES + max(peak, shape.data.reading_bytes))


def gpu_bytes(shape: PackShape, num_trials: int) -> float:
    """Estimate the peak bytes that torch reserves on a GPU. The memory of a step stays reserved for its recording."""
    others = max(_evaluation_bytes(shape, num_trials), _other_bytes(shape, num_trials, "cuda"))
    return WORKSPACE_BYTES + _steady_bytes(shape, num_trials) + _step_bytes(shape, num_trials) + others


def tensor_bytes(shape: PackShape, num_trials: int) -> float:
    """Estimate the peak bytes of torch's tensors on a CPU: the largest of a step, an evaluation and a measurement."""
    step, evaluation = (of(shape, num_trials) for of in (_step_bytes, _evaluation_bytes))
    return _steady_bytes(shape, num_trials) + max(step, evaluation, _other_bytes(shape, num_trials, "cpu"))


def _step_bytes(shape: PackShape, num_trials: int) -> float:
    number = _number_bytes(shape)
    kept = number * num_trials * shape.network.step_cost().kept
    return float(max(kept * shape.rows, number * num_trials * shape.network.num_parameters))


def _evaluation_bytes(shape: PackShape, num_trials: int) -> float:
    number, parameters = _number_bytes(shape), num_trials * shape.network.num_parameters
    kept = number * num_trials * shape.network.step_cost().kept
    # float64 gradients while the network runs, then gradient and two products in float64, and copies of weights and decay
    in_float64 = 8 * (3 if number == 8 else 5)
    return float(max(kept * shape.evaluated_rows + (8 + number) * parameters, (in_float64 + number) * parameters))


def _other_bytes(shape: PackShape, num_trials: int, device: str) -> float:
    """Estimate the bytes of a measurement or of drawing an epoch's order, whichever is larger."""
    network, number = shape.network, _number_bytes(shape)
    layers, in_memory = network.measured_layers(), feature_numbers_in_memory(network)
    widest = max(layer.width for layer in layers)
    together = min(num_trials, trials_per_layer(device, shape.data.num_held, in_memory))
    samples = together * _measured_samples(shape)
    stacked = 1 if shape.data.labels_tokens else min(len(layers), layers_per_reduction(device, samples * widest))
    # per sample: features, deviations and their squares in float64, and scores, of the layers that are reduced together; the
    # layers in memory at the same time, and copies of those that are reduced together
    per_sample = stacked * (3 * 8 * widest + 2 * 8 * shape.data.num_classes)
    per_sample += number * (in_memory + 2 * (stacked - 1) * widest)
    measurement = samples * per_sample
    measurement += _moment_bytes(shape) if shape.data.labels_tokens else 3 * 8 * _class_moments(shape, num_trials)
    # an epoch's order is made by sorting: two sets of random numbers, and a copy of them and of the order
    drawing = 4 * 8 * num_trials * shape.data.num_samples if shape.batch_size and shape.data.stream is None else 0
    return float(max(measurement, drawing))


def _measured_samples(shape: PackShape) -> int:
    """Return the number of samples whose features are in memory at a time: all, or for next tokens one evaluation's."""
    rows_per_sample = shape.network.rows_per_sample
    return max(1, shape.evaluated_rows // rows_per_sample) if shape.data.labels_tokens else shape.data.num_held


def _class_moments(shape: PackShape, num_trials: int) -> int:
    """Return the numbers in the class moments of all layers: means and scatter."""
    layers, classes = shape.network.measured_layers(), shape.data.num_classes
    width = max(layer.width for layer in layers)
    trials = min(num_trials, trials_per_measurement(len(layers), classes, width))
    return trials * len(layers) * classes * (width + classes)


def _moment_bytes(shape: PackShape) -> int:
    """Return the bytes of next-token moments: sums, means and scatter of every layer, and one layer's scores."""
    classes = shape.data.num_classes
    widths = [layer.shape[-1] for layer in shape.network.layers()]
    moments = sum(3 * classes * width + width**2 for width in widths)
    return 8 * (moments + 2 * shape.evaluated_rows * classes)


def feature_numbers_in_memory(network: Network) -> int:
    """Return the number of feature values per sample in memory at a time: those of all layers if samples have several rows."""
    widths = [layer.width for layer in network.layers()]
    return sum(widths) + 2 * max(widths) if network.rows_per_sample > 1 else 4 * max(widths)


def _number_bytes(shape: PackShape) -> int:
    return 8 if shape.dtype == "float64" else 4


def _steady_bytes(shape: PackShape, num_trials: int) -> float:
    """Return the bytes that persist between steps: the training set, weights, moments, decay and two buffers."""
    tensors = 5 if shape.optimizer == "sgd" else 6
    state = sum(spec.size for spec in shape.network.state_specs())
    numbers = num_trials * (tensors * shape.network.num_parameters + state)
    more = _polish_bytes(shape, num_trials) + _hessian_bytes(shape, num_trials)
    return _data_bytes(shape, num_trials) + _number_bytes(shape) * numbers + more


def _polish_bytes(shape: PackShape, num_trials: int) -> int:
    """Return the bytes that polish adds in float64: L-BFGS's pairs, a second trainer, and points, directions, gradients."""
    if shape.polish is None:
        return 0
    vectors = 2 * shape.polish.memory + 5 + 6
    return 8 * (num_trials * vectors * shape.network.num_parameters + shape.data.num_samples * shape.data.num_inputs)


def _hessian_bytes(shape: PackShape, num_trials: int) -> float:
    """Return the bytes that Hessian products add: the basis of Lanczos' method, and the graph of a gradient."""
    if not shape.hessian_products:
        return 0
    basis = LANCZOS_PRODUCTS * shape.network.num_parameters
    together = min(num_trials, max(1, BASIS_NUMBERS // basis))
    kept = shape.evaluated_rows * shape.network.step_cost().kept
    return 8 * together * basis + 3 * _number_bytes(shape) * together * kept


def _data_bytes(shape: PackShape, num_trials: int) -> float:
    """Return the bytes of the training set, one batch, and each trial's sample order."""
    data, batch = shape.data, shape.batch_size or 0
    number = _number_bytes(shape) if data.vocabulary_size is None else 8
    held = data.num_held * (data.num_inputs * number + 8)
    if data.stream is None:
        return held + (num_trials * (batch * data.num_inputs * number + 8 * data.num_samples) if batch else 0)
    # at most one order per trial (equal seeds share theirs) plus one being drawn; a batch as a list and stacked
    orders = num_trials * order_bytes(data.num_samples) + 8 * data.num_samples
    drawn = batch * (2 * data.stream.sample_bytes + (num_trials + 1) * data.num_inputs * number)
    return held + orders + drawn + data.stream.kept_bytes
