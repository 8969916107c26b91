"""The task `collapse`: parameters, memory and time of a pack, predicted from its shape. Importable without torch."""

from __future__ import annotations

import math

from depthrate.tasks.collapse.schema import (
    EVALUATION_ROWS,
    context_length,
    has_last_bias,
    is_transformer,
    measured_steps,
    num_classes,
    num_positions,
    num_samples,
    num_steps,
    vocabulary_size,
)
from depthrate.tasks.data.datasets import DATASETS
from depthrate.tasks.task import Params

PROCESS_BYTES, READING_TEXT_BYTES = 315e6, 60e6
"""Of a worker that has imported torch and trained something; of the reviews' tokens."""


def _rows(params: Params) -> int:
    return int(params["batch_size"] or num_samples(params)) * num_positions(params)


def _products(params: Params) -> float:
    """Return the products of a block, in units of one D x D matrix times all rows."""
    if not is_transformer(params):
        return 1.0 if params["arch"] == "rn1" else 2.0
    attention, mlp = (int(digit) for digit in params["arch"][1:])
    return 2 * attention + mlp + 2 * num_positions(params) / params["width"]


def max_pack_size(params: Params, device: str) -> int:
    """Return how many trials of a shape to fuse for speed: on a CPU up to 16 while a step has some 4,000 rows (measured)."""
    most, step_rows = (128, 2_000_000) if device == "cuda" else (16, 4096)
    return int(max(1, min(most, step_rows // _rows(params))))


def num_parameters(params: Params) -> int:
    """Return the number of parameters of one trial."""
    info, width, classes = DATASETS[params["dataset"]], params["width"], num_classes(params)
    last = classes * width + (classes if has_last_bias(params) else 0)
    inputs = 0 if info.image_shape is None else math.prod(info.image_shape)
    if not is_transformer(params):
        linear = 1 if params["arch"] == "rn1" else 2
        return int((inputs + 1) * width + (params["depth"] - 1) * linear * (width + 1) * width + last)
    attention, mlp = (int(digit) for digit in params["arch"][1:])
    columns = vocabulary_size(params) if info.is_text else inputs // num_positions(params)
    block = 2 * attention * width**2 + mlp * (width + 1) * width
    return int((columns + num_positions(params)) * width + params["depth"] * block + last)


def memory_bytes(params: Params, num_trials: int, device: str) -> float:
    """Return the peak memory of a pack: of the process on a CPU, of torch's tensors on a GPU.

    What a process holds is more than its tensors, by what the allocator keeps: those counts were fitted to measured peaks.
    """
    if device == "cuda":
        return _tensor_bytes(params, num_trials)
    info, samples, positions = DATASETS[params["dataset"]], num_samples(params), num_positions(params)
    number, inputs = _number_bytes(params), _inputs(params)
    parameters = num_trials * num_parameters(params)
    # weights, moments, decay and two buffers; of a step, its gradients twice and what each block keeps for the backward pass
    steady = _data_bytes(params, num_trials) + _kept_of_parameters(params) * number * parameters
    rows = num_trials * max(_rows(params), min(samples * positions, EVALUATION_ROWS))
    blocks = params["depth"] * _process_rows_of_a_block(params) + 4
    step = 2 * number * parameters + number * rows * params["width"] * blocks
    # of an evaluation: gradient, weights, decay and products in float64; of a measurement: features three times
    peak = steady + step + 5 * 8 * parameters + 3 * 8 * samples * _widest(params)
    # what was measured is there as rows, as tables and as files at the end; Gram matrices of classes outweigh the rest
    peak += 3 * num_trials * len(measured_steps(params)) * (params["depth"] + 1) * 4 * num_classes(params) ** 2
    files = READING_TEXT_BYTES if info.is_text else 2 * info.num_samples * inputs + samples * inputs * number
    return float(PROCESS_BYTES + max(peak, files))


def _tensor_bytes(params: Params, num_trials: int) -> float:
    """Return the peak of what torch's tensors hold: the largest of a step, an evaluation and a measurement."""
    samples, number = num_samples(params), _number_bytes(params)
    parameters = num_trials * num_parameters(params)
    steady = _data_bytes(params, num_trials) + _kept_of_parameters(params) * number * parameters

    blocks = params["depth"] - (not is_transformer(params))

    def activations(rows: int) -> float:
        return number * num_trials * rows * params["width"] * (blocks * _rows_kept_by_a_block(params) + 3)

    step = max(activations(_rows(params)), number * parameters)
    # gradients in float64 while the network runs; then gradient and two products in float64, and copies of weights and decay
    evaluated = min(samples * num_positions(params), EVALUATION_ROWS)
    in_float64 = 8 * (3 if number == 8 else 5)
    evaluation = max(activations(evaluated) + (8 + number) * parameters, (in_float64 + number) * parameters)
    # of one trial: features, deviations and their squares in float64, scores, and the layers that a transformer keeps
    layers = params["depth"] + 3 if is_transformer(params) else 4
    per_sample = 3 * 8 * _widest(params) + 2 * 8 * num_classes(params) + layers * number * params["width"]
    return float(steady + max(step, evaluation, samples * per_sample))


def _number_bytes(params: Params) -> int:
    return 8 if params["dtype"] == "float64" else 4


def _inputs(params: Params) -> int:
    """Return the numbers in one sample."""
    shape = DATASETS[params["dataset"]].image_shape
    return context_length(params) if shape is None else math.prod(shape)


def _widest(params: Params) -> int:
    """Return the dimensions of the widest measured layer; a residual network's input is one."""
    return int(params["width"] if is_transformer(params) else max(_inputs(params), params["width"]))


def _data_bytes(params: Params, num_trials: int) -> int:
    """Return what the training set takes, with a drawn batch and the order in which each trial draws."""
    number = 8 if DATASETS[params["dataset"]].is_text else _number_bytes(params)
    samples, batch = num_samples(params), params["batch_size"] or 0
    drawn = num_trials * (batch * _inputs(params) * number + 8 * samples) if batch else 0
    return samples * (_inputs(params) * number + 8) + int(drawn)


def _kept_of_parameters(params: Params) -> int:
    """Return the tensors of the parameters' size that live between steps: weights, moments, decay and two buffers."""
    return 6 if params["optimizer"] == "adam" else 5


def _rows_kept_by_a_block(params: Params) -> float:
    """Return what the backward pass needs of one block, in units of its rows x width.

    Residual network: ReLU's output, the sum and its LayerNorm. Transformer: both LayerNorms, both sums, ReLU's output, the
    products of the attention, and the attention weights of each position.
    """
    if not is_transformer(params):
        return 3.0
    return 5 + 2 * int(params["arch"][1]) + num_positions(params) / params["width"]


def _process_rows_of_a_block(params: Params) -> float:
    """Return by how much of its rows x width one block lets a process grow during a step (measured)."""
    if not is_transformer(params):
        return 4.0 if params["arch"] == "rn1" else 5.0
    attention, mlp = (int(digit) for digit in params["arch"][1:])
    return 4 + 2 * attention + mlp + 3 * num_positions(params) / params["width"]


def estimate_s(params: Params) -> float:
    """Return the rough seconds of a trial on one core: steps x products x (a fixed part + what grows with the rows)."""
    shape = DATASETS[params["dataset"]].image_shape
    inputs = 0 if shape is None else math.prod(shape) / num_positions(params)
    products = params["depth"] * _products(params) + 1 + inputs / params["width"]
    seconds_per_unit = 2.5e-10  # measured on the quickstart's packs
    return seconds_per_unit * num_steps(params) * products * (1e5 + _rows(params) * params["width"] ** 2)
