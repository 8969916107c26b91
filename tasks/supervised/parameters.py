"""Parameters of the supervised tasks, declared once. The target, network and data determine which of them a trial has.

Importable without torch.
"""

from collections.abc import Mapping
from typing import Any, Literal

from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.measures import named_columns
from depthrate.tasks.networks.builtin import ARCHITECTURES, NetworkParameters, parametrisation
from depthrate.tasks.networks.operations import LAYER_NORM_EPS
from depthrate.tasks.parameters import later_parameter, parameter
from depthrate.tasks.supervised.items import STREAMED_BYTES, STREAMED_ITEMS
from depthrate.tasks.training import parameters as training

DEFAULT_CONTEXT_LENGTH = 64
DEFAULT_VOCABULARY_SIZE = 5000
DEFAULT_SEQUENCES = 1000
DEFAULT_MEASURED_SAMPLES = 4096
"""Default number of measured samples of streamed data, over all classes."""
MEASURED_PER_CLASS = 20
"""Default number of measured samples per class, used if it gives a larger total."""


class SupervisedParameters(training.TrainingParameters, NetworkParameters):
    """Parameters of any supervised trial. The tuples below list parameters that only some trials have."""

    arch: str = parameter(
        choices=ARCHITECTURES.keys(),
        doc="network: residual L-RN1 or L-RN2 (one or two linear layers per block), causal transformer L-Txy (x matrices for "
        "scores and for values, y linear layers in the MLP), ResNet20 with an MLP head, dense or convolutional residual "
        "network with BatchNorm, or plain MLP with ReLU",
    )
    norm: Literal["post", "pre"] = parameter("post", doc="position of LayerNorm")
    depth: int = parameter(
        minimum=1,
        doc="number of blocks L: depth - 1 residual blocks between embedding and last layer (rn1, rn2), blocks of attention "
        "and MLP (transformers), linear layers of the head (resnet20_mlp), blocks of all stages (resnet_dense, resnet_conv), "
        "layers with ReLU (mlp)",
    )
    width: int = parameter(64, minimum=2, doc="feature dimension d (resnet20_mlp: of the head)")
    stages: str | None = later_parameter(
        None,
        pattern=r"\d+x\d+x\d+\*\d+( \d+x\d+x\d+\*\d+)*",
        doc="stages of resnet_conv as channels x rows x columns, times blocks, e.g. 64x16x16*2 128x8x8*3 (null: from P3's "
        "Table I)",
    )
    dataset: str = parameter(
        "digits",
        choices=tuple(PUBLISHED),
        doc="data set: digits is included, others are read from DEPTHRATE_DATA (list: depthrate data list)",
    )
    samples_per_class: int | None = parameter(None, minimum=1, doc="samples per class, drawn by data_seed (null: all)")
    data_seed: int = parameter(
        0, minimum=0, is_random_seed=True, doc="seed of the samples, shared by all trials unless varied"
    )
    normalize: Literal["global", "per_feature", "none"] = parameter(
        "global", doc="standardisation of images over the whole training set, per pixel, or none"
    )
    patch_size: int | None = parameter(
        None,
        minimum=1,
        doc="side of the square patches of transformers (null: a quarter of the image's side, 16 patches)",
    )
    context_length: int | None = parameter(
        None, minimum=1, doc=f"last tokens read of each text, padded in front (null: {DEFAULT_CONTEXT_LENGTH})"
    )
    vocabulary_size: int | None = parameter(
        None,
        minimum=3,
        doc="number of most frequent tokens to distinguish, including padding and unknown "
        f"(null: {DEFAULT_VOCABULARY_SIZE:,})",
    )
    loss: training.Loss
    label_smoothing: training.LabelSmoothing
    last_bias: bool | None = parameter(
        None,
        null="loss = 'ce'",
        doc="whether the last layer has a bias, never regularised (null: with ce, not with mse)",
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
        doc="lambda of (lambda/2)||theta||^2 on all weights except the embeddings W_0, W_e, W_p and the biases",
    )
    weight_decay_last: float | None = parameter(
        None,
        minimum=0,
        fusible=True,
        null="weight_decay",
        doc="lambda of the last layer, W_L or W_{L+1} in transformers (null: weight_decay)",
    )
    regularise: Literal["all", "head_and_features"] = later_parameter(
        "all", doc="regularised parts of resnet20_mlp: all weights, or the head's matrices and the backbone's output"
    )
    weight_decay_features: float | None = later_parameter(
        None,
        minimum=0,
        doc="lambda_H of (lambda_H/2)||H||^2 on the backbone's output, summed over samples, with regularise "
        "head_and_features (not included in the reported objective)",
    )
    clip_norm: training.ClipNorm
    init: training.Init
    dtype: training.Dtype
    matmul_precision: training.MatmulPrecision
    seed: training.Seed
    seed_scope: Literal["seed", "trial"] = later_parameter(
        "seed",
        fusible=True,
        doc="scope of randomness: trials of one seed share their first layers and data order at any depth (seed), or each "
        "trial draws from all of its parameters (trial)",
    )
    features: training.Features
    feature_dtype: training.FeatureDtype
    measure_steps: training.MeasureSteps
    measure_epochs: training.MeasureEpochs
    record: training.Record
    milestones: training.Milestones
    rank_tol: training.RankTol
    measure: str | None = later_parameter(None, doc=named_columns.DOC)
    test: bool = later_parameter(
        False,
        doc="whether loss, accuracy and every metric are also measured on the test split of images (split = 'test')",
    )
    ln_eps: float = later_parameter(
        LAYER_NORM_EPS, minimum=0, doc="constant that LayerNorm adds to the variance (0 in its definition)"
    )
    train_embedding: bool = later_parameter(
        True,
        doc="whether W_0 and b_0 (W_e and W_p) are trained. Otherwise they stay as initialised, and the problem has an "
        "optimum (docs/infimum.md)",
    )
    embedding_seed: int = later_parameter(
        0,
        minimum=0,
        fusible=True,
        is_random_seed=True,
        doc="seed of an untrained embedding, so that seeds are restarts on one problem",
    )
    weight_decay_embedding: float | None = later_parameter(
        None, minimum=0, doc="lambda of W_0 and b_0, or W_e and W_p (null: none, as in P1)"
    )
    weight_decay_biases: float | None = later_parameter(
        None, minimum=0, doc="lambda of all other biases (null: none, as in P1)"
    )
    block_scale: float = later_parameter(
        1.0, above=0, doc="factor s of each residual branch, LN(X + s block(X)) or X + s block(LN(X))"
    )
    parametrisation: Literal["sp", "depth_mup", "complete_p"] = later_parameter(
        "sp",
        doc="powers of depth/base_depth and width/base_width on branches, learning rates, Adam's epsilon, adamw's decay and "
        "W_L's start: none, Depth-muP or CompleteP",
    )
    base_depth: int = later_parameter(2, minimum=1, doc="depth at which parametrisation changes nothing")
    base_width: int = later_parameter(64, minimum=2, doc="width at which parametrisation changes nothing")
    geodesic: bool = later_parameter(
        False,
        doc="whether layers of equal width are compared with the straight line from the first to the last of them",
    )
    epsilon: float = later_parameter(
        0.01,
        minimum=0,
        maximum=1,
        doc="share of samples that may be nearer to another class's mean in effective_depth (with geodesic)",
    )
    polish: int = later_parameter(
        0,
        minimum=0,
        doc="maximum evaluations of the objective after training to reach a stationary point, in float64 on the full batch "
        "(polish_solver). They count as steps. 0: no polish",
    )
    polish_to: Literal["lowest", "stationary"] = later_parameter(
        "lowest",
        doc="lowest: each width of polish_smoothing has an equal share of the evaluations, and a trial ends at the lowest "
        "objective seen. stationary: ReLU is (z + sqrt(z^2 + w^2))/2 with each width w in turn, polish_tolerance is relative "
        "to the objective, and a trial ends where its gradient is that small (stationary 1 in the curves) or when its "
        "evaluations are used up (stationary 0)",
    )
    polish_tolerance: float = later_parameter(
        1e-6, minimum=0, doc="gradient norm of the smoothed objective at which polish stops"
    )
    polish_smoothing: list[float] = later_parameter(
        [0.1, 0.03, 0.01],
        above=0,
        doc="widths of |z| over which polish smooths ReLU's kink, in turn. Metrics use the true ReLU",
    )
    polish_memory: int = later_parameter(12, minimum=1, doc="number of pairs that L-BFGS stores")
    polish_solver: Literal["lbfgs", "newton_cg"] = later_parameter(
        "lbfgs",
        doc="lbfgs: L-BFGS to the end. newton_cg: with polish_to stationary, once the gradient at the last width is below "
        "sqrt(polish_tolerance) times the objective, Newton's method takes over (trust region, conjugate gradients, Hessian "
        "products as differences of gradients)",
    )
    polish_barrier: float = later_parameter(
        1e-6,
        minimum=0,
        doc="b of polish's barrier b mean(v/v_i), v_i the variances before the first LayerNorm and v their mean. Without it "
        "one variance goes to 0, where LayerNorm is singular",
    )
    continuation: list[int] = later_parameter(
        [],
        minimum=1,
        doc="increasing depths that include this trial's: the first is trained and polished, each further depth is polished "
        "from the previous solution with neutral blocks inserted. Empty: no continuation",
    )
    targets: int = parameter(
        3,
        minimum=1,
        doc="numbers per target, outputs of a teacher: tanh of 32 random projections of the normalised pixels, combined at "
        "random, all drawn by data_seed",
    )
    samples: int | None = parameter(None, minimum=1, doc="samples, drawn by data_seed (null: all)")
    standardize: bool = parameter(
        True,
        doc="whether each number of the targets is centred and scaled by its mean and deviation over the training set",
    )
    order: int = parameter(1, minimum=1, doc="distance in tokens between a token of markov and the one it depends on")
    zipf: float = parameter(
        1.0, minimum=0, maximum=3, doc="exponent z of the frequency i^-z of markov's i-th token (0: uniform)"
    )
    sharpness: float = parameter(
        2.0, minimum=0, maximum=5, doc="standard deviation of markov's transition logits (0: tokens are independent)"
    )
    positions: Literal["all", "last"] = parameter(
        "all", doc="positions where features are measured (the loss covers all positions)"
    )
    min_class_count: int = parameter(
        10, minimum=1, doc="minimal number of measured positions at which a token comes next, to count as a class"
    )
    layers: str | None = parameter(
        None,
        doc="measured modules, as comma-separated patterns, e.g. blocks.*, norm (null: the children of the module's lists of "
        "one class)",
    )
    maps: Literal["mean", "flatten"] = parameter(
        "mean", doc="measured form of maps and tokens: averaged over pixels and tokens, or all numbers"
    )
    layer_axes: str | None = later_parameter(
        None,
        pattern=r"[^,:]+: *[A-Za-z]+(, *[^,:]+: *[A-Za-z]+)*",
        doc="axes of measured layers that plan cannot decide, e.g. {rnn: TNC, blocks.*: NCL}: N samples, C features, any other "
        "letter a position (null: none)",
    )
    output_tensors: str | None = later_parameter(
        None,
        pattern=r"[^,:]+: *[^,:]+(, *[^,:]+: *[^,:]+)*",
        doc="places of the tensors taken of outputs with several, where plan cannot decide, e.g. {arch: logits, blocks.*: 1}: "
        "arch for the trained one, patterns for measured ones, each with a key, field or number, as in state.0 (null: none)",
    )
    flat_inputs: bool = parameter(False, doc="whether the network gets images as flat vectors")
    signal_inputs: bool = later_parameter(
        False, doc="whether the network gets arrays [N, channels, positions] as they are, not as grey images"
    )
    decayed: str | None = parameter(
        None,
        doc="parameters regularised by weight_decay and weight_decay_last, as comma-separated patterns, e.g. *.weight (null: "
        "all with two dimensions or more)",
    )
    dataset_hash: str | None = parameter(
        None,
        doc="first 16 digits of the SHA-256 of the data, filled in automatically, so that other data make another trial",
    )
    stream: bool | None = later_parameter(
        None,
        doc="whether samples are read batch by batch instead of held in memory (null: if they exceed "
        f"{STREAMED_BYTES / 1e9:g} GB, or {STREAMED_ITEMS:,} items of a data set)",
    )
    measure_samples: int | None = later_parameter(
        None,
        minimum=2,
        doc="streamed samples for loss and metrics, drawn by data_seed, equally many per class (null: "
        f"{DEFAULT_MEASURED_SAMPLES:,}, or {MEASURED_PER_CLASS} per class if that is more)",
    )
    arguments: Mapping[str, Any]
    """Values of the arguments of the user's callables."""


_CLASSES = (
    *("stages", "samples_per_class", "normalize", "patch_size", "context_length", "vocabulary_size"),
    *("loss", "label_smoothing", "regularise", "weight_decay_features", "features", "feature_dtype", "rank_tol"),
    *("measure", "geodesic", "epsilon", "polish_to", "polish_solver", "maps", "flat_inputs", "signal_inputs"),
)
_NUMBERS = ("normalize", "measure", "targets", "samples", "standardize", "maps", "flat_inputs", "signal_inputs")
_CHAIN = ("order", "zipf", "sharpness")
_NEXT_TOKENS = ("context_length", "vocabulary_size", "samples", *_CHAIN, "positions", "min_class_count")
_THEORY = (
    *("seed_scope", "polish", "polish_tolerance", "polish_smoothing", "polish_memory", "polish_barrier"),
    "continuation",
)
TARGET_PARAMETERS = {
    "collapse": (*_CLASSES, *_THEORY),
    "own": _CLASSES,
    "regression": _NUMBERS,
    "next_token": _NEXT_TOKENS,
}
"""Task -> its parameters that not every task has."""
BUILTIN_NETWORK_PARAMETERS = (
    *("norm", "depth", "width", "patch_size", "last_bias", "regularise", "weight_decay_features", "init", "ln_eps"),
    *("block_scale", "parametrisation", "base_depth", "base_width"),
)
CUSTOM_NETWORK_PARAMETERS = (
    *("layers", "maps", "layer_axes", "output_tensors"),
    *("flat_inputs", "signal_inputs", "decayed"),
)
CUSTOM_DATA_PARAMETERS = ("dataset_hash", "stream", "measure_samples")
TEXT_PARAMETERS = ("context_length", "vocabulary_size")
"""Parameters of text data. A network argument of the same name is the same parameter."""


def absent_parameters(task: str, *, network: bool, data: bool) -> set[str]:
    """Return the parameters that trials of a task with a built-in or custom network and data do not have."""
    absent = {name for names in TARGET_PARAMETERS.values() for name in names}.difference(TARGET_PARAMETERS[task])
    absent.update(BUILTIN_NETWORK_PARAMETERS if network else CUSTOM_NETWORK_PARAMETERS)
    return absent.union(() if data else CUSTOM_DATA_PARAMETERS)


def weight_decays(trial: SupervisedParameters) -> dict[str, float]:
    """Return the weight decay of each group: `hidden`, `last`, and `embedding` and `biases` if they decay."""
    last = trial.weight_decay_last
    others = {"embedding": trial.weight_decay_embedding, "biases": trial.weight_decay_biases}
    decays = {
        "hidden": trial.weight_decay,
        "last": trial.weight_decay if last is None else last,
        **{group: decay for group, decay in others.items() if decay is not None},
    }
    preset = parametrisation(trial)
    factors = {} if preset is None else preset.decay_factors(trial.optimizer)
    return {group: decay * factors.get(group, 1.0) for group, decay in decays.items()}
