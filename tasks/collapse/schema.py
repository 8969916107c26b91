"""The task `collapse`: its parameters and what follows from them. Importable without torch."""

from __future__ import annotations

from depthrate.tasks.collapse.theory import gufm_limit
from depthrate.tasks.data.datasets import DATASETS
from depthrate.tasks.schema import Parameter, ParameterSchema
from depthrate.tasks.task import Params

DEFAULT_STEPS = 12_000
DEFAULT_CONTEXT_LENGTH = 64
DEFAULT_VOCABULARY_SIZE = 5000
EVALUATION_ROWS = 8192
"""Rows (samples x positions) evaluated at once: a bound on memory, and the same for every pack so that sums round alike."""

SCHEMA = ParameterSchema(
    [
        Parameter(
            name="arch",
            kind="str",
            choices=("rn1", "rn2", "t11", "t12", "t21", "t22"),
            doc="residual network L-RN1 or L-RN2 (one or two linear layers in a block), or causal transformer L-Txy "
            "(x matrices for scores and for values, y linear layers in the MLP)",
        ),
        Parameter(name="norm", kind="str", choices=("post", "pre"), default="post", doc="where LayerNorm stands"),
        Parameter(
            name="depth",
            kind="int",
            minimum=1,
            doc="number of blocks L: in rn1 and rn2 depth - 1 residual blocks between the embedding and the last layer, "
            "in transformers depth blocks of attention and MLP",
        ),
        Parameter(name="width", kind="int", minimum=2, default=64, doc="feature dimension d"),
        Parameter(
            name="dataset",
            kind="str",
            choices=tuple(DATASETS),
            default="digits",
            doc="digits comes with scikit-learn; the others are read from DEPTHRATE_DATA (depthrate data list)",
        ),
        Parameter(
            name="samples_per_class",
            kind="int",
            minimum=1,
            nullable=True,
            default=None,
            doc="samples of each class, drawn by data_seed; null: all",
        ),
        Parameter(name="data_seed", kind="int", minimum=0, default=0, doc="seed of that draw, the same for all trials"),
        Parameter(
            name="normalize",
            kind="str",
            choices=("global", "per_feature", "none"),
            default="global",
            doc="subtract mean and divide by standard deviation of the whole training set, of each pixel, or not (images)",
        ),
        Parameter(
            name="patch_size",
            kind="int",
            minimum=1,
            nullable=True,
            default=None,
            doc="side of the square patches that transformers cut images into; null: a quarter of the image's side, 16 patches",
        ),
        Parameter(
            name="context_length",
            kind="int",
            minimum=1,
            nullable=True,
            default=None,
            doc=f"last tokens of a text that are read, padded in front; null: {DEFAULT_CONTEXT_LENGTH}",
        ),
        Parameter(
            name="vocabulary_size",
            kind="int",
            minimum=3,
            nullable=True,
            default=None,
            doc="most frequent tokens that are told apart, padding and unknown among them; "
            f"null: {DEFAULT_VOCABULARY_SIZE:,}",
        ),
        Parameter(
            name="loss", kind="str", choices=("ce", "mse"), default="ce", doc="cross-entropy or (1/2N)||f - Y||^2"
        ),
        Parameter(
            name="last_bias",
            kind="bool",
            nullable=True,
            default=None,
            doc="bias of the last layer (never regularised); null: yes for ce, no for mse",
        ),
        Parameter(name="optimizer", kind="str", choices=("sgd", "adam"), default="sgd", doc="optimiser"),
        Parameter(
            name="lr",
            kind="float",
            minimum=0,
            exclusive_minimum=True,
            nullable=True,
            default=None,
            fusible=True,
            doc="learning rate; null: 0.2 for sgd with ce, 0.02 for sgd with mse, 0.005 for adam",
        ),
        Parameter(
            name="momentum",
            kind="float",
            minimum=0,
            maximum=1,
            default=0.9,
            fusible=True,
            doc="momentum of sgd (adam uses 0.9 and 0.999)",
        ),
        Parameter(
            name="schedule",
            kind="str",
            choices=("constant", "step", "cosine"),
            default="cosine",
            doc="learning rate over time; step divides it by 10 at 1/3 and 2/3, cosine goes to 0",
        ),
        Parameter(
            name="steps",
            kind="int",
            minimum=1,
            nullable=True,
            default=None,
            doc=f"training steps; null: by epochs, or {DEFAULT_STEPS:,} when epochs is null too",
        ),
        Parameter(
            name="epochs",
            kind="int",
            minimum=1,
            nullable=True,
            default=None,
            doc="passes over the training set, instead of steps",
        ),
        Parameter(
            name="batch_size",
            kind="int",
            minimum=1,
            nullable=True,
            default=None,
            doc="samples in a step, shuffled anew each epoch, an incomplete last batch left out; null: full batch",
        ),
        Parameter(
            name="weight_decay",
            kind="float",
            minimum=0,
            default=0.005,
            fusible=True,
            doc="lambda of (lambda/2)||theta||^2 on all weights but the embeddings W_0, W_e, W_p and the biases",
        ),
        Parameter(
            name="weight_decay_last",
            kind="float",
            minimum=0,
            nullable=True,
            default=None,
            fusible=True,
            doc="lambda of the last layer (W_L, in transformers W_{L+1}); null: weight_decay",
        ),
        Parameter(
            name="clip_norm",
            kind="float",
            minimum=0,
            exclusive_minimum=True,
            nullable=True,
            default=None,
            doc="largest norm of a trial's gradient of the objective, decay included; null: no clipping",
        ),
        Parameter(
            name="init",
            kind="str",
            choices=("uniform", "normal", "he"),
            default="uniform",
            doc="U(-1,1)/sqrt(fan_in) with biases, N(0, 1/fan_in), or N(0, 2/fan_in)",
        ),
        Parameter(name="dtype", kind="str", choices=("float32", "float64"), default="float32", doc="of the training"),
        Parameter(
            name="seed", kind="int", minimum=0, default=0, fusible=True, doc="seed of initialisation and data order"
        ),
        Parameter(
            name="features",
            kind="str",
            pattern="none|class_means|all|sample:[1-9][0-9]*",
            default="none",
            doc="features kept at the end, of every layer of width d: none, class_means, all, sample:<n per class>",
        ),
        Parameter(
            name="feature_dtype",
            kind="str",
            choices=("float32", "float16"),
            default="float32",
            doc="of the kept features",
        ),
        Parameter(
            name="measure_steps",
            kind="list[int]",
            minimum=0,
            nullable=True,
            default=None,
            doc="steps measured besides the last; null: 0, 1, 2, 5, 10, 20, 50, ...",
        ),
        Parameter(
            name="rank_tol",
            kind="float",
            minimum=0,
            maximum=1,
            default=0.01,
            doc="singular values above this share of the largest count in rank",
        ),
    ]
)


def num_classes(params: Params) -> int:
    """Return the number of classes K."""
    return DATASETS[params["dataset"]].num_classes


def num_samples(params: Params) -> int:
    """Return the size N of the training set."""
    info = DATASETS[params["dataset"]]
    if params["samples_per_class"] is None:
        return info.num_samples
    return int(params["samples_per_class"]) * info.num_classes


def is_transformer(params: Params) -> bool:
    """Whether the network has attention."""
    return params["arch"].startswith("t")


def context_length(params: Params) -> int:
    """Return the number of tokens read of a text."""
    return params["context_length"] or DEFAULT_CONTEXT_LENGTH


def vocabulary_size(params: Params) -> int:
    """Return the number of tokens that are told apart."""
    return params["vocabulary_size"] or DEFAULT_VOCABULARY_SIZE


def patch_size(params: Params) -> int:
    """Return the side of a patch: what is given, else a quarter of the image's side."""
    shape = DATASETS[params["dataset"]].image_shape
    assert shape is not None
    return params["patch_size"] or shape[-1] // 4


def num_positions(params: Params) -> int:
    """Return the rows S of one sample: 1 in a residual network, patches or tokens in a transformer."""
    shape = DATASETS[params["dataset"]].image_shape
    if not is_transformer(params):
        return 1
    if shape is None:
        return context_length(params)
    return (shape[1] // patch_size(params)) * (shape[2] // patch_size(params))


def num_steps(params: Params, samples: int | None = None) -> int:
    """Return the number of training steps; `samples` is the training set's size where it is known from the data."""
    if params["epochs"] is None:
        return params["steps"] or DEFAULT_STEPS
    samples = samples or num_samples(params)
    batch = params["batch_size"] or samples
    return int(params["epochs"] * max(1, samples // batch))


def learning_rate(params: Params) -> float:
    """Return the learning rate, with the default of the optimiser and loss filled in."""
    if params["lr"] is not None:
        return float(params["lr"])
    if params["optimizer"] == "adam":
        return 0.005
    return 0.2 if params["loss"] == "ce" else 0.02


def weight_decay_last(params: Params) -> float:
    """Return the weight decay of the last layer."""
    own = params["weight_decay_last"]
    return float(params["weight_decay"] if own is None else own)


def has_last_bias(params: Params) -> bool:
    """Return whether the last layer has a bias."""
    return bool(params["loss"] == "ce" if params["last_bias"] is None else params["last_bias"])


def objective_limit(params: Params) -> float | None:
    """Return the objective's limit as depth grows, for balanced classes."""
    return gufm_limit(
        params["loss"],
        num_classes=num_classes(params),
        width=params["width"],
        weight_decay_last=weight_decay_last(params),
        last_bias=has_last_bias(params),
    )


def log_spaced_steps(last: int) -> list[int]:
    """Return 0, 1, 2, 5, 10, 20, 50, ... below `last`, and `last`."""
    steps, decade = [0], 1
    while decade < last:
        steps += [factor * decade for factor in (1, 2, 5) if factor * decade < last]
        decade *= 10
    return [*steps, last]


def measured_steps(params: Params, last: int | None = None) -> list[int]:
    """Return the steps at which every layer is measured, the last among them."""
    last = last or num_steps(params)
    if params["measure_steps"] is None:
        return log_spaced_steps(last)
    return sorted({*(step for step in params["measure_steps"] if step < last), last})


def measured(params: Params, steps: int) -> tuple[list[int], range]:
    """Return the (steps, layers) at which a trial that took so many steps was measured."""
    return measured_steps(params, steps), range(params["depth"] + 1)
