"""The memory of a pack, predicted from what its network reports. Importable without torch."""

from __future__ import annotations

from depthrate.tasks.training.cost import PackShape
from depthrate.tasks.training.training_plan import order_bytes

PROCESS_BYTES = 315e6
"""Of a worker that has imported torch and trained something."""


def memory_bytes(shape: PackShape, num_trials: int, device: str) -> float:
    """Return the peak memory of a pack: of the process on a CPU, of torch's tensors on a GPU.

    What a process holds is more than its tensors, by what the allocator keeps: those counts were fitted to measured peaks.
    """
    if device == "cuda":
        return _tensor_bytes(shape, num_trials)
    network, cost, number = shape.network, shape.network.step_cost(), _number_bytes(shape)
    parameters = num_trials * network.num_parameters
    rows = num_trials * max(shape.rows, shape.evaluated_rows)
    kept = 4 / 3 * cost.kept if cost.kept_by_process is None else cost.kept_by_process
    # of a step, its gradients twice and what each block keeps for the backward pass
    step = 2 * number * parameters + number * rows * kept
    # of an evaluation: gradient, weights, decay and products in float64; of a measurement: features three times
    layers = network.measured_layers()
    peak = _steady_bytes(shape, num_trials) + step + 5 * 8 * parameters
    peak += 3 * 8 * _measured_samples(shape) * max(layer.width for layer in layers)
    if shape.data.labels_tokens:
        peak += _moment_bytes(shape)
    else:  # what was measured is there as rows, as tables and as files at the end; Gram matrices of classes outweigh the rest
        peak += 3 * num_trials * shape.num_measured_steps * len(layers) * 4 * shape.data.num_classes**2
    return float(PROCESS_BYTES + max(peak, shape.data.reading_bytes))


def _tensor_bytes(shape: PackShape, num_trials: int) -> float:
    """Return the peak of what torch's tensors hold: the largest of a step, an evaluation and a measurement."""
    network, number = shape.network, _number_bytes(shape)
    parameters = num_trials * network.num_parameters
    kept = number * num_trials * network.step_cost().kept
    step = max(kept * shape.rows, number * parameters)
    # gradients in float64 while the network runs; then gradient and two products in float64, and copies of weights and decay
    in_float64 = 8 * (3 if number == 8 else 5)
    evaluation = max(kept * shape.evaluated_rows + (8 + number) * parameters, (in_float64 + number) * parameters)
    # of one trial: features, deviations and their squares in float64, scores, and the layers that are held at once
    widest = max(layer.width for layer in network.measured_layers())
    per_sample = 3 * 8 * widest + 2 * 8 * shape.data.num_classes + number * _held_of_features(shape)
    measurement = _measured_samples(shape) * per_sample + (_moment_bytes(shape) if shape.data.labels_tokens else 0)
    return float(_steady_bytes(shape, num_trials) + max(step, evaluation, measurement))


def _measured_samples(shape: PackShape) -> int:
    """Return the samples whose features are held at once: all, or of next tokens those that are evaluated at once."""
    rows_each = shape.network.rows_per_sample
    return max(1, shape.evaluated_rows // rows_each) if shape.data.labels_tokens else shape.data.num_held


def _moment_bytes(shape: PackShape) -> int:
    """Return what moments of next tokens take: of each layer sums, means and scatter, of one the scores of the rows that are
    evaluated at once."""
    classes = shape.data.num_classes
    widths = [layer.shape[-1] for layer in shape.network.layers()]
    moments = sum(3 * classes * width + width**2 for width in widths)
    return 8 * (moments + 2 * shape.evaluated_rows * classes)


def _held_of_features(shape: PackShape) -> int:
    """Return the numbers of one sample's features that are held at once: all layers where samples have several rows."""
    widths = [layer.width for layer in shape.network.layers()]
    return sum(widths) + 2 * max(widths) if shape.network.rows_per_sample > 1 else 4 * max(widths)


def _number_bytes(shape: PackShape) -> int:
    return 8 if shape.dtype == "float64" else 4


def _steady_bytes(shape: PackShape, num_trials: int) -> float:
    """Return what lives between steps: the training set, and of the parameters weights, moments, decay and two buffers."""
    tensors = 5 if shape.optimizer == "sgd" else 6
    state = sum(spec.size for spec in shape.network.state_specs())
    numbers = num_trials * (tensors * shape.network.num_parameters + state)
    return _data_bytes(shape, num_trials) + _number_bytes(shape) * numbers + _polish_bytes(shape, num_trials)


def _polish_bytes(shape: PackShape, num_trials: int) -> int:
    """Return what polish adds in float64: L-BFGS's pairs, a trainer of its own, and points, directions and gradients."""
    if shape.polish is None:
        return 0
    vectors = 2 * shape.polish.memory + 5 + 6
    return 8 * (num_trials * vectors * shape.network.num_parameters + shape.data.num_samples * shape.data.num_inputs)


def _data_bytes(shape: PackShape, num_trials: int) -> float:
    """Return what the training set takes, with a drawn batch and the order in which each trial draws."""
    data, batch = shape.data, shape.batch_size or 0
    number = _number_bytes(shape) if data.vocabulary_size is None else 8
    held = data.num_held * (data.num_inputs * number + 8)
    if data.stream is None:
        return held + (num_trials * (batch * data.num_inputs * number + 8 * data.num_samples) if batch else 0)
    # trials of one seed share an order: at most as many as trials, one of them in the making; a batch as a list and stacked
    orders = num_trials * order_bytes(data.num_samples) + 8 * data.num_samples
    drawn = batch * (2 * data.stream.sample_bytes + (num_trials + 1) * data.num_inputs * number)
    return held + orders + drawn + data.stream.kept_bytes
