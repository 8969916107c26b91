"""The parameters of the supervised tasks, declared once: which of them a trial has follows from its target, network and data.

Importable without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.measures import named_columns
from depthrate.tasks.networks.builtin import ARCHITECTURES, NetworkParameters
from depthrate.tasks.networks.operations import LAYER_NORM_EPS
from depthrate.tasks.parameters import parameter
from depthrate.tasks.supervised.items import STREAMED_BYTES, STREAMED_ITEMS
from depthrate.tasks.training import parameters as training
from depthrate.tasks.training.polish import polish_parameters as polishing

DEFAULT_CONTEXT_LENGTH = 64
DEFAULT_VOCABULARY_SIZE = 5000
DEFAULT_SEQUENCES = 1000
DEFAULT_MEASURED_SAMPLES = 4096
"""Samples of streamed data that are measured by default, all classes together."""
MEASURED_PER_CLASS = 20
"""Samples of each class that are measured by default where that is more."""


class SupervisedParameters(training.TrainingParameters, NetworkParameters):
    """The parameters of any supervised trial; the tuples below list those that not every trial has."""

    arch: str = parameter(
        choices=ARCHITECTURES.keys(),
        doc="residual network L-RN1 or L-RN2 (one or two linear layers in a block), or causal transformer L-Txy "
        "(x matrices for scores and for values, y linear layers in the MLP), or ResNet20 with an MLP head, "
        "or a residual network with BatchNorm, dense or convolutional, or a plain network of linear layers and ReLU",
    )
    norm: Literal["post", "pre"] = parameter("post", doc="where LayerNorm stands")
    depth: int = parameter(
        minimum=1,
        doc="number of blocks L: in rn1 and rn2 depth - 1 residual blocks between the embedding and the last layer, "
        "in transformers depth blocks of attention and MLP, in resnet20_mlp the linear layers of the head, "
        "in resnet_dense and resnet_conv the blocks of all stages, in mlp the layers with ReLU",
    )
    width: int = parameter(64, minimum=2, doc="feature dimension d; of resnet20_mlp's head")
    stages: str | None = parameter(
        None,
        pattern=r"\d+x\d+x\d+\*\d+( \d+x\d+x\d+\*\d+)*",
        added_later=True,
        doc="of resnet_conv: channels x rows x columns, times blocks, of each stage, as in 64x16x16*2 128x8x8*3; null: "
        "those of P3's Table I",
    )
    dataset: str = parameter(
        "digits",
        choices=tuple(PUBLISHED),
        doc="digits comes with depthrate; the others are read from DEPTHRATE_DATA (depthrate data list)",
    )
    samples_per_class: int | None = parameter(
        None, minimum=1, doc="samples of each class, drawn by data_seed; null: all"
    )
    data_seed: int = parameter(
        0, minimum=0, is_random_seed=True, doc="seed of that draw, the same for all trials unless it is varied"
    )
    normalize: Literal["global", "per_feature", "none"] = parameter(
        "global",
        doc="subtract mean and divide by standard deviation of the whole training set, of each pixel, or not (images)",
    )
    patch_size: int | None = parameter(
        None,
        minimum=1,
        doc="side of the square patches that transformers cut images into; null: a quarter of the image's side, 16 patches",
    )
    context_length: int | None = parameter(
        None, minimum=1, doc=f"last tokens of a text that are read, padded in front; null: {DEFAULT_CONTEXT_LENGTH}"
    )
    vocabulary_size: int | None = parameter(
        None,
        minimum=3,
        doc="most frequent tokens that are told apart, padding and unknown among them; "
        f"null: {DEFAULT_VOCABULARY_SIZE:,}",
    )
    loss: training.Loss
    label_smoothing: training.LabelSmoothing
    last_bias: bool | None = parameter(
        None, doc="bias of the last layer (never regularised); null: yes for ce, no for mse"
    )
    optimizer: training.Optimizer
    lr: training.LearningRate
    momentum: training.Momentum
    schedule: training.Schedule
    steps: training.Steps
    epochs: training.Epochs
    batch_size: training.BatchSize
    weight_decay: float = parameter(
        0.005,
        minimum=0,
        fusible=True,
        doc="lambda of (lambda/2)||theta||^2 on all weights but the embeddings W_0, W_e, W_p and the biases",
    )
    weight_decay_last: float | None = parameter(
        None,
        minimum=0,
        fusible=True,
        doc="lambda of the last layer (W_L, in transformers W_{L+1}); null: weight_decay",
    )
    regularise: Literal["all", "head_and_features"] = parameter(
        "all",
        added_later=True,
        doc="of resnet20_mlp: all weights; or the head's matrices and the backbone's output, and nothing of the backbone",
    )
    weight_decay_features: float | None = parameter(
        None,
        minimum=0,
        added_later=True,
        doc="lambda_H of (lambda_H/2)||H||^2 on the backbone's output, summed over samples; with regularise "
        "head_and_features. The objective that is reported is without this term",
    )
    clip_norm: training.ClipNorm
    init: training.Init
    dtype: training.Dtype
    matmul_precision: training.MatmulPrecision
    seed: training.Seed
    seed_scope: Literal["seed", "trial"] = parameter(
        "seed",
        fusible=True,
        added_later=True,
        doc="seed: trials of one seed share their first layers and the order of the data, whatever their depth; trial: "
        "each trial draws its own, from all of its parameters",
    )
    features: training.Features
    feature_dtype: training.FeatureDtype
    measure_steps: training.MeasureSteps
    measure_epochs: training.MeasureEpochs
    milestones: training.Milestones
    rank_tol: training.RankTol
    measure: str | None = parameter(None, added_later=True, doc=named_columns.DOC)
    test: bool = parameter(
        False,
        added_later=True,
        doc="whether loss, accuracy and every measurement come for the test split as well (split = 'test'), of images",
    )
    ln_eps: float = parameter(
        LAYER_NORM_EPS,
        minimum=0,
        added_later=True,
        doc="what LayerNorm adds to a variance; the definition has nothing",
    )
    train_embedding: bool = parameter(
        True,
        added_later=True,
        doc="whether W_0 and b_0 (in transformers W_e and W_p) are trained; else they stay as drawn, and the problem has an "
        "optimum (docs/infimum.md)",
    )
    embedding_seed: int = parameter(
        0,
        minimum=0,
        fusible=True,
        is_random_seed=True,
        added_later=True,
        doc="seed that an embedding is drawn with that is not trained, so that seeds are restarts on one problem",
    )
    weight_decay_embedding: float | None = parameter(
        None,
        minimum=0,
        added_later=True,
        doc="lambda of W_0 and b_0 (W_e and W_p); null: none, as in P1",
    )
    weight_decay_biases: float | None = parameter(
        None, minimum=0, added_later=True, doc="lambda of all other biases; null: none, as in P1"
    )
    geodesic: bool = parameter(
        False,
        added_later=True,
        doc="whether layers of one width are compared with the straight line between the first and the last of them",
    )
    epsilon: float = parameter(
        0.01,
        minimum=0,
        maximum=1,
        added_later=True,
        doc="of effective_depth: share of samples that may be nearer to another class's mean; with geodesic",
    )
    polish: polishing.Polish
    polish_to: polishing.PolishTo
    polish_tolerance: polishing.PolishTolerance
    polish_smoothing: polishing.PolishSmoothing
    polish_memory: polishing.PolishMemory
    polish_solver: polishing.PolishSolver
    polish_barrier: polishing.PolishBarrier
    continuation: polishing.Continuation
    targets: int = parameter(
        3,
        minimum=1,
        doc="numbers of a target, outputs of the teacher: tanh of 32 random projections of the normalised pixels, combined at "
        "random, all drawn by data_seed",
    )
    samples: int | None = parameter(None, minimum=1, doc="samples, drawn by data_seed; null: all")
    standardize: bool = parameter(
        True,
        doc="subtract from each number of the targets its mean and divide by its standard deviation, both of the training set",
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
    layers: str | None = parameter(
        None,
        doc="modules whose outputs are measured, by pattern, several with commas: blocks.*, norm; null: the children of the "
        "module's lists that are of one class",
    )
    maps: Literal["mean", "flatten"] = parameter(
        "mean", doc="maps and tokens as they are measured: averaged over pixels and over tokens, or all numbers"
    )
    flat_inputs: bool = parameter(False, doc="whether images come to the network as plain vectors")
    decayed: str | None = parameter(
        None,
        doc="parameters that weight_decay and weight_decay_last regularise, by pattern, several with commas: *.weight; null: "
        "all of two dimensions or more",
    )
    dataset_hash: str | None = parameter(
        None,
        doc="SHA-256 of the data's content, its first 16 digits; it is filled in, so that other content is another trial",
    )
    stream: bool | None = parameter(
        None,
        added_later=True,
        doc="whether samples are read when a batch draws them instead of held in memory; null: where they are more than "
        f"{STREAMED_BYTES / 1e9:g} GB, or more than {STREAMED_ITEMS:,} items of a data set",
    )
    measure_samples: int | None = parameter(
        None,
        minimum=2,
        added_later=True,
        doc="samples of streamed data, drawn by data_seed, of which loss and layers are measured, as many of each class; null: "
        f"{DEFAULT_MEASURED_SAMPLES:,}, or {MEASURED_PER_CLASS} a class where that is more",
    )
    arguments: Mapping[str, Any]
    """Values of the arguments of the user's callables."""


_CLASSES = (
    *("stages", "samples_per_class", "normalize", "patch_size", "context_length", "vocabulary_size"),
    *("loss", "label_smoothing", "regularise", "weight_decay_features", "features", "feature_dtype", "rank_tol"),
    *("measure", "geodesic", "epsilon", "polish_to", "polish_solver", "maps", "flat_inputs"),
)
_NUMBERS = ("normalize", "measure", "targets", "samples", "standardize", "maps", "flat_inputs")
_NEXT_TOKENS = (
    *("context_length", "vocabulary_size", "samples", "order", "zipf", "sharpness", "positions", "min_class_count"),
)
_THEORY = (
    *(
        "seed_scope",
        "polish",
        "polish_tolerance",
        "polish_smoothing",
        "polish_memory",
        "polish_barrier",
        "continuation",
    ),
)
OF_TARGETS = {
    "collapse": (*_CLASSES, *_THEORY),
    "own": _CLASSES,
    "regression": _NUMBERS,
    "next_token": _NEXT_TOKENS,
}
"""Task -> the parameters it takes of those that are not of every task."""
OF_BUILTIN_NETWORKS = (
    *("norm", "depth", "width", "patch_size", "last_bias", "regularise", "weight_decay_features", "init", "ln_eps"),
)
OF_CUSTOM_NETWORKS = ("layers", "maps", "flat_inputs", "decayed")
OF_CUSTOM_DATA = ("dataset_hash", "stream", "measure_samples")
OF_TEXTS = ("context_length", "vocabulary_size")
"""How texts are read. A network's argument of such a name is the same parameter."""


def weight_decays(trial: SupervisedParameters) -> dict[str, float]:
    """Return the weight decay of each group: `hidden`, `last` for the last layer, embedding and biases where they decay."""
    last = trial.weight_decay_last
    others = {"embedding": trial.weight_decay_embedding, "biases": trial.weight_decay_biases}
    return {
        "hidden": trial.weight_decay,
        "last": trial.weight_decay if last is None else last,
        **{group: decay for group, decay in others.items() if decay is not None},
    }
