"""The parameters of the task `collapse`, and what follows from them. Importable without torch."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from depthrate.tasks.collapse.theory import gufm_limit, theorem_bound
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.measures import named_columns
from depthrate.tasks.networks.builtin import ARCHITECTURES, NetworkParameters, has_last_bias
from depthrate.tasks.networks.operations import LAYER_NORM_EPS
from depthrate.tasks.parameters import parameter
from depthrate.tasks.training.parameters import (
    BatchSize,
    ClipNorm,
    Dtype,
    Epochs,
    FeatureDtype,
    Features,
    Init,
    LabelSmoothing,
    LearningRate,
    Loss,
    MatmulPrecision,
    MeasureEpochs,
    MeasureSteps,
    Milestones,
    Momentum,
    Optimizer,
    RankTol,
    Schedule,
    Seed,
    Steps,
    TrainingParameters,
)
from depthrate.tasks.training.polish_parameters import (
    Continuation,
    Polish,
    PolishBarrier,
    PolishMemory,
    PolishSmoothing,
    PolishSolver,
    PolishTo,
    PolishTolerance,
)

DEFAULT_CONTEXT_LENGTH = 64
DEFAULT_VOCABULARY_SIZE = 5000


class CollapseParameters(TrainingParameters, NetworkParameters):
    """What a trial of `collapse` has."""

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
    loss: Loss
    label_smoothing: LabelSmoothing
    last_bias: bool | None = parameter(
        None, doc="bias of the last layer (never regularised); null: yes for ce, no for mse"
    )
    optimizer: Optimizer
    lr: LearningRate
    momentum: Momentum
    schedule: Schedule
    steps: Steps
    epochs: Epochs
    batch_size: BatchSize
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
    clip_norm: ClipNorm
    init: Init
    dtype: Dtype
    matmul_precision: MatmulPrecision
    seed: Seed
    seed_scope: Literal["seed", "trial"] = parameter(
        "seed",
        fusible=True,
        added_later=True,
        doc="seed: trials of one seed share their first layers and the order of the data, whatever their depth; trial: "
        "each trial draws its own, from all of its parameters",
    )
    features: Features
    feature_dtype: FeatureDtype
    measure_steps: MeasureSteps
    measure_epochs: MeasureEpochs
    milestones: Milestones
    rank_tol: RankTol
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
    polish: Polish
    polish_to: PolishTo
    polish_tolerance: PolishTolerance
    polish_smoothing: PolishSmoothing
    polish_memory: PolishMemory
    polish_solver: PolishSolver
    polish_barrier: PolishBarrier
    continuation: Continuation


def data_shape(trial: CollapseParameters) -> DataShape:
    """Return the shape of the training set, known before it is read."""
    return PUBLISHED[trial.dataset].shape(
        samples_per_class=trial.samples_per_class,
        context_length=context_length(trial),
        vocabulary_size=vocabulary_size(trial),
        dtype=trial.dtype,
    )


def context_length(trial: CollapseParameters) -> int:
    """Return the number of tokens read of a text."""
    return trial.context_length or DEFAULT_CONTEXT_LENGTH


def vocabulary_size(trial: CollapseParameters) -> int:
    """Return the number of tokens that are told apart."""
    return trial.vocabulary_size or DEFAULT_VOCABULARY_SIZE


def weight_decays(trial: CollapseParameters) -> dict[str, float]:
    """Return the weight decay of each group: `hidden`, `last` for the last layer, embedding and biases where they have one."""
    last = trial.weight_decay_last
    others = {"embedding": trial.weight_decay_embedding, "biases": trial.weight_decay_biases}
    return {
        "hidden": trial.weight_decay,
        "last": trial.weight_decay if last is None else last,
        **{group: decay for group, decay in others.items() if decay is not None},
    }


def draw_seed(trial: CollapseParameters) -> int:
    """Return the seed that a trial's initialisation and data order are drawn with."""
    if trial.seed_scope == "seed":
        return int(trial.seed)
    # what the task gains later leaves the draws of trials alone that don't use it, as it leaves their identity alone
    later = trial.schema.added_later
    told = {name: value for name, value in vars(trial).items() if name not in later or value != later[name]}
    text = json.dumps(told, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def objective_bound(trial: CollapseParameters, num_samples: int, closest: float) -> float | None:
    """Return the theorem's bound on the objective above its limit; null for networks and problems that it is not about.

    closest: the smallest distance between two samples of norm 1.
    """
    is_other = (
        not trial.train_embedding or trial.label_smoothing or {"embedding", "biases"} & weight_decays(trial).keys()
    )
    if ARCHITECTURES[trial.arch].construction_matrices != 1 or trial.norm != "post" or is_other:
        return None
    decay = trial.weight_decay
    return theorem_bound(
        trial.depth - 1, num_samples=num_samples, width=trial.width, weight_decay=decay, closest=closest
    )


def objective_limit(trial: CollapseParameters, num_classes: int) -> float | None:
    """Return the objective's limit as depth grows, for balanced classes; null for networks with BatchNorm, which have none, and
    for smoothed labels."""
    if not ARCHITECTURES[trial.arch].has_limit or trial.label_smoothing:
        return None
    return gufm_limit(
        trial.loss,
        num_classes=num_classes,
        width=trial.width,
        weight_decay_last=weight_decays(trial)["last"],
        last_bias=has_last_bias(trial),
    )
