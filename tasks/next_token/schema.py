"""The parameters of the task `next_token`: those of `own` without what speaks of images. Importable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from depthrate.tasks.data.markov import MARKOV, Chain, chain
from depthrate.tasks.networks.builtin import ARCHITECTURES
from depthrate.tasks.own.schema import OwnParameters
from depthrate.tasks.parameters import parameter

READING = {MARKOV: (16, 32), "imdb": (32, 1000)}
"""Data set -> its context length and its vocabulary's size where a trial gives none."""
DEFAULT_SAMPLES = 1000


class NextTokenParameters(OwnParameters):
    """What a trial of `next_token` has; what speaks of images and of one class a sample is what it is here."""

    arch: str = parameter(
        choices=tuple(name for name, architecture in ARCHITECTURES.items() if architecture.reads_tokens),
        doc="causal transformer L-Txy (x matrices for scores and for values, y linear layers in the MLP), read out at each "
        "position",
    )
    depth: int = parameter(minimum=1, doc="number of blocks of attention and MLP")
    width: int = parameter(64, minimum=2, doc="feature dimension d")
    dataset: str = parameter(
        MARKOV,
        choices=tuple(READING),
        doc="markov: drawn sequences of a chain whose entropy is known; imdb: stretches of reviews, read from DEPTHRATE_DATA",
    )
    samples: int | None = parameter(
        None, minimum=1, doc=f"sequences, drawn by data_seed; null: {DEFAULT_SAMPLES:,}, of yours all"
    )
    data_seed: int = parameter(
        0,
        minimum=0,
        is_random_seed=True,
        doc="seed of that draw and of the chain, the same for all trials unless it is varied",
    )
    context_length: int | None = parameter(
        None,
        minimum=1,
        doc="tokens of a sequence, each trained on the one after it; null: "
        + ", ".join(f"{length} of {name}" for name, (length, _) in READING.items()),
    )
    vocabulary_size: int | None = parameter(
        None,
        minimum=3,
        doc="tokens; of imdb the most frequent ones, with one for all others; null: "
        + ", ".join(f"{size:,} of {name}" for name, (_, size) in READING.items()),
    )
    order: int = parameter(
        1, minimum=1, doc="of markov: how many places before it the token stands that a token follows"
    )
    zipf: float = parameter(
        1.0, minimum=0, maximum=3, doc="of markov: z of the frequency i^-z of the i-th token; 0: all alike"
    )
    sharpness: float = parameter(
        2.0,
        minimum=0,
        maximum=5,
        doc="of markov: standard deviation of the logarithms that transitions are made of; 0: no token tells of the next",
    )
    positions: Literal["all", "last"] = parameter(
        "all", doc="where features are measured; the loss is of all positions"
    )
    min_class_count: int = parameter(
        10, minimum=1, doc="a token is a class where it comes next at so many of the measured positions, or more"
    )
    of_published: ClassVar[tuple[str, ...]] = ("order", "zipf", "sharpness", "context_length", "vocabulary_size")
    loss = "ce"
    label_smoothing = 0.0
    samples_per_class = None
    normalize = "none"
    patch_size = None
    stages = None
    regularise = "all"
    weight_decay_features = None
    features = "none"
    feature_dtype = "float32"
    rank_tol = 0.0
    measure = None
    geodesic = False
    epsilon = 0.0
    maps = "flatten"
    flat_inputs = False
    polish_to = "lowest"
    polish_solver = "lbfgs"


def reading(trial: NextTokenParameters) -> tuple[int, int]:
    """Return the context length and the vocabulary's size of a data set of ours."""
    length, size = READING[trial.dataset]
    return trial.context_length or length, trial.vocabulary_size or size


def chain_of(trial: NextTokenParameters) -> Chain | None:
    """Return the chain that a trial's sequences are drawn from; null for other data."""
    if trial.dataset != MARKOV:
        return None
    return chain(reading(trial)[1], order=trial.order, zipf=trial.zipf, sharpness=trial.sharpness, seed=trial.data_seed)
