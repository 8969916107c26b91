"""The task `words`: its parameters and what follows from them. Importable without torch.

Source: Feature Collapse (Laurent, von Brecht and Bresson 2023); defaults are those of its Figure 3. Brackets hold its symbols.
"""

from __future__ import annotations

import dataclasses

from depthrate.tasks.schema import Parameter, ParameterError, ParameterSchema
from depthrate.tasks.task import Params
from depthrate.tasks.training.memory import PROCESS_BYTES
from depthrate.tasks.training.parameters import (
    BATCH_SIZE,
    DTYPE,
    EPOCHS,
    LR,
    MEASURE_STEPS,
    SCHEDULE,
    SEED,
    STEPS,
    check_training,
    measured_steps,
    num_steps,
)

EVALUATED_PER_SEQUENCE = 10
"""Training sentences of a sequence that losses and accuracies are taken over: a pass over 500 costs some 1,000 steps."""
MULTIPLY_ADDS_PER_S = 4e10
"""Of one core in a step's matrix products (measured)."""
STEP_OVERHEAD_S = 4e-4
FUSED_MULTIPLY_ADDS = 1e8
"""Of one step, up to which fusing pays on a CPU: beyond it the matrix products take all the time."""

SCHEMA = ParameterSchema(
    [
        Parameter(name="concepts", kind="int", minimum=2, default=3, doc="number of concepts [n_c]"),
        Parameter(
            name="vocabulary_size",
            kind="int",
            minimum=2,
            default=1200,
            doc="number of words [n_w], the same number in each concept",
        ),
        Parameter(name="sentence_length", kind="int", minimum=1, default=15, doc="words of a sentence [L]"),
        Parameter(
            name="sequences",
            kind="int",
            minimum=2,
            default=1000,
            doc="latent sequences of concepts, the classes [K]: different ones, drawn uniformly",
        ),
        Parameter(
            name="samples_per_sequence",
            kind="int",
            minimum=1,
            default=5,
            fusible=True,
            doc="training sentences of a sequence [n_spl]",
        ),
        Parameter(
            name="test_samples_per_sequence",
            kind="int",
            minimum=1,
            default=5,
            fusible=True,
            doc="fresh sentences of a sequence for the test accuracy",
        ),
        Parameter(
            name="zipf",
            kind="float",
            minimum=0,
            default=0.0,
            fusible=True,
            doc="exponent of word frequencies: the b-th word of a concept is drawn as 1 / b^zipf; 0: uniform, 1: Zipf's law",
        ),
        Parameter(
            name="data_seed",
            kind="int",
            minimum=0,
            nullable=True,
            default=None,
            fusible=True,
            doc="seed of sequences and sentences; null: the trial's seed, so that each seed draws its own",
        ),
        Parameter(
            name="layer_norm",
            kind="bool",
            default=False,
            doc="LayerNorm without parameters after the embedding: the network h*; without it h",
        ),
        Parameter(name="layer_norm_eps", kind="float", minimum=0, default=1e-5, doc="added to the variance there"),
        Parameter(name="width", kind="int", minimum=1, default=100, doc="dimension of the embedding [d]"),
        dataclasses.replace(LR, nullable=False, default=0.1, doc="learning rate of sgd"),
        dataclasses.replace(SCHEDULE, default="constant"),
        STEPS,
        EPOCHS,
        dataclasses.replace(BATCH_SIZE, default=100),
        Parameter(
            name="weight_decay",
            kind="float",
            minimum=0,
            default=0.001,
            fusible=True,
            doc="lambda of (lambda/2)||U||^2 on the linear layer, and of the embedding where that has none of its own",
        ),
        Parameter(
            name="weight_decay_embedding",
            kind="float",
            minimum=0,
            nullable=True,
            default=None,
            fusible=True,
            doc="lambda of the embedding; null: weight_decay, or 0 with layer_norm",
        ),
        Parameter(
            name="init_scale",
            kind="float",
            minimum=0,
            exclusive_minimum=True,
            default=0.001,
            fusible=True,
            doc="factor on the start: N(0, 1) for the embedding, U(-1, 1)/sqrt(L d) for the linear layer",
        ),
        DTYPE,
        SEED,
        Parameter(
            name="features",
            kind="str",
            choices=("none", "projection", "projections"),
            default="none",
            fusible=True,
            doc="first three principal components of words and of blocks of the linear layer, kept at the end or at every "
            "measured step",
        ),
        MEASURE_STEPS,
    ]
)


def words_per_concept(params: Params) -> int:
    """Return the number s of words in each concept."""
    return int(params["vocabulary_size"] // params["concepts"])


def num_sentences(params: Params) -> int:
    """Return the size N of the training set."""
    return int(params["sequences"] * params["samples_per_sequence"])


def steps_of(params: Params) -> int:
    """Return the number of training steps."""
    return num_steps(params, num_sentences(params))


def embedding_decay(params: Params) -> float:
    """Return lambda of the embedding."""
    if params["weight_decay_embedding"] is not None:
        return float(params["weight_decay_embedding"])
    return 0.0 if params["layer_norm"] else float(params["weight_decay"])


def check_trial(params: Params) -> None:
    """Refuse combinations that cannot run.

    Raises:
        ParameterError: naming the parameters that exclude each other.
    """
    check_training(params, num_sentences(params))
    words, concepts = params["vocabulary_size"], params["concepts"]
    if words % concepts:
        raise ParameterError(
            f"vocabulary_size is {words}, which {concepts} concepts cannot share evenly; give a multiple of {concepts}"
        )
    most = concepts ** params["sentence_length"]
    if params["sequences"] > most:
        raise ParameterError(
            f"sequences is {params['sequences']}, but {concepts} concepts make {most} sequences of "
            f"{params['sentence_length']} words; give at most that"
        )
    least = concepts if params["layer_norm"] else concepts - 1
    if params["width"] < least:
        raise ParameterError(
            f"width is {params['width']}, in which {concepts} concepts have no equiangular directions; give at least {least}"
        )
    for name, decay in (("weight_decay", params["weight_decay"]), ("weight_decay_embedding", embedding_decay(params))):
        if params["lr"] * decay >= 1:
            raise ParameterError(
                f"lr is {params['lr']} and {name} is {decay}; give a product below 1, else one step takes all weight away"
            )


def layers(params: Params) -> list[int]:
    """Return the layers measured: 0, the embedding; with LayerNorm also 1, the words as the linear layer reads them."""
    return [0, 1] if params["layer_norm"] else [0]


def measured(params: Params, steps: int) -> tuple[list[int], list[int]]:
    """Return the (steps, layers) at which a trial that took so many steps was measured."""
    return measured_steps(params, steps), layers(params)


def _step_multiply_adds(params: Params) -> float:
    """Return those of the linear layer's forward product in one step; the backward pass has two more of them."""
    batch = params["batch_size"] or num_sentences(params)
    return float(batch * params["sentence_length"] * params["width"] * params["sequences"])


def max_pack_size(params: Params, device: str) -> int:
    """Return how many trials of a shape to fuse for speed."""
    if device == "cuda":
        return 64
    return int(max(1, min(16, FUSED_MULTIPLY_ADDS // _step_multiply_adds(params))))


def estimate_s(params: Params) -> float:
    """Return the rough seconds of a trial on one core."""
    return float(steps_of(params) * (STEP_OVERHEAD_S + 3 * _step_multiply_adds(params) / MULTIPLY_ADDS_PER_S))


def memory_bytes(params: Params, num_trials: int, device: str) -> float:
    """Return the peak memory of a pack: of the process on a CPU, of torch's tensors on a GPU."""
    number = 8 if params["dtype"] == "float64" else 4
    length, classes, width = params["sentence_length"], params["sequences"], params["width"]
    batch = params["batch_size"] or num_sentences(params)
    weights = width * (params["vocabulary_size"] + length * classes)
    step = batch * (3 * length * width + 3 * classes)
    sentences = classes * (params["samples_per_sequence"] + params["test_samples_per_sequence"])
    data = sentences * (2 * 4 * length + 4 * 8)
    # of one trial at a time: the table of what each word adds to each class at each place, and float64 copies to measure
    table = number * length * classes * (params["vocabulary_size"] + width) + 3 * 8 * length * classes * width
    pack = num_trials * (number * (weights + step) + data)
    return float((0 if device == "cuda" else PROCESS_BYTES) + pack + table)
