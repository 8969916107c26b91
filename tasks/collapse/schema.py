"""The task `collapse`: its parameters and what follows from them. Importable without torch."""

from __future__ import annotations

import hashlib
import json

from depthrate.tasks.collapse.theory import gufm_limit, theorem_bound
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.networks.builtin import ARCHITECTURES, has_last_bias
from depthrate.tasks.networks.network import Network
from depthrate.tasks.networks.operations import LAYER_NORM_EPS
from depthrate.tasks.schema import Parameter, ParameterSchema
from depthrate.tasks.task import Params
from depthrate.tasks.training.cost import PackShape
from depthrate.tasks.training.parameters import (
    BATCH_SIZE,
    CLIP_NORM,
    DTYPE,
    EPOCHS,
    FEATURE_DTYPE,
    FEATURES,
    INIT,
    LOSS,
    LR,
    MATMUL_PRECISION,
    MEASURE_EPOCHS,
    MEASURE_STEPS,
    MILESTONES,
    MOMENTUM,
    OPTIMIZER,
    SCHEDULE,
    SEED,
    STEPS,
)
from depthrate.tasks.training.polish_parameters import (
    PARAMETERS,
    chain,
    marked_steps,
    polish_plan,
    taken_steps,
    training_steps,
)

DEFAULT_CONTEXT_LENGTH = 64
DEFAULT_VOCABULARY_SIZE = 5000

SCHEMA = ParameterSchema(
    [
        Parameter(
            name="arch",
            kind="str",
            choices=ARCHITECTURES.keys(),
            doc="residual network L-RN1 or L-RN2 (one or two linear layers in a block), or causal transformer L-Txy "
            "(x matrices for scores and for values, y linear layers in the MLP), or ResNet20 with an MLP head, "
            "or a residual network with BatchNorm, dense or convolutional",
        ),
        Parameter(name="norm", kind="str", choices=("post", "pre"), default="post", doc="where LayerNorm stands"),
        Parameter(
            name="depth",
            kind="int",
            minimum=1,
            doc="number of blocks L: in rn1 and rn2 depth - 1 residual blocks between the embedding and the last layer, "
            "in transformers depth blocks of attention and MLP, in resnet20_mlp the linear layers of the head, "
            "in resnet_dense and resnet_conv the blocks of all stages",
        ),
        Parameter(name="width", kind="int", minimum=2, default=64, doc="feature dimension d; of resnet20_mlp's head"),
        Parameter(
            name="stages",
            kind="str",
            pattern=r"\d+x\d+x\d+\*\d+( \d+x\d+x\d+\*\d+)*",
            nullable=True,
            default=None,
            added=True,
            doc="of resnet_conv: channels x rows x columns, times blocks, of each stage, as in 64x16x16*2 128x8x8*3; null: "
            "those of P3's Table I",
        ),
        Parameter(
            name="dataset",
            kind="str",
            choices=tuple(PUBLISHED),
            default="digits",
            doc="digits comes with depthrate; the others are read from DEPTHRATE_DATA (depthrate data list)",
        ),
        Parameter(
            name="samples_per_class",
            kind="int",
            minimum=1,
            nullable=True,
            default=None,
            doc="samples of each class, drawn by data_seed; null: all",
        ),
        Parameter(
            name="data_seed",
            kind="int",
            minimum=0,
            default=0,
            draw=True,
            doc="seed of that draw, the same for all trials unless it is varied",
        ),
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
        LOSS,
        Parameter(
            name="last_bias",
            kind="bool",
            nullable=True,
            default=None,
            doc="bias of the last layer (never regularised); null: yes for ce, no for mse",
        ),
        OPTIMIZER,
        LR,
        MOMENTUM,
        SCHEDULE,
        STEPS,
        EPOCHS,
        BATCH_SIZE,
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
            name="regularise",
            kind="str",
            choices=("all", "head_and_features"),
            default="all",
            added=True,
            doc="of resnet20_mlp: all weights; or the head's matrices and the backbone's output, and nothing of the backbone",
        ),
        Parameter(
            name="weight_decay_features",
            kind="float",
            minimum=0,
            nullable=True,
            default=None,
            added=True,
            doc="lambda_H of (lambda_H/2)||H||^2 on the backbone's output, summed over samples; with regularise "
            "head_and_features. The objective that is reported is without this term",
        ),
        CLIP_NORM,
        INIT,
        DTYPE,
        MATMUL_PRECISION,
        SEED,
        Parameter(
            name="seed_scope",
            kind="str",
            choices=("seed", "trial"),
            default="seed",
            fusible=True,
            added=True,
            doc="seed: trials of one seed share their first layers and the order of the data, whatever their depth; trial: "
            "each trial draws its own, from all of its parameters",
        ),
        FEATURES,
        FEATURE_DTYPE,
        MEASURE_STEPS,
        MEASURE_EPOCHS,
        MILESTONES,
        Parameter(
            name="rank_tol",
            kind="float",
            minimum=0,
            maximum=1,
            default=0.01,
            doc="singular values above this share of the largest count in rank",
        ),
        Parameter(
            name="test",
            kind="bool",
            default=False,
            added=True,
            doc="whether loss, accuracy and every measurement come for the test split as well (split = 'test'), of images",
        ),
        Parameter(
            name="ln_eps",
            kind="float",
            minimum=0,
            default=LAYER_NORM_EPS,
            added=True,
            doc="what LayerNorm adds to a variance; the definition has nothing",
        ),
        Parameter(
            name="geodesic",
            kind="bool",
            default=False,
            added=True,
            doc="whether layers of one width are compared with the straight line between the first and the last of them",
        ),
        Parameter(
            name="epsilon",
            kind="float",
            minimum=0,
            maximum=1,
            default=0.01,
            added=True,
            doc="of effective_depth: share of samples that may be nearer to another class's mean; with geodesic",
        ),
        *PARAMETERS,
    ]
)


def num_samples(params: Params) -> int:
    """Return the size N of the training set."""
    return data_shape(params).num_samples


def data_shape(params: Params) -> DataShape:
    """Return the shape of the training set, known before it is read."""
    return PUBLISHED[params["dataset"]].shape(
        samples_per_class=params["samples_per_class"],
        context_length=context_length(params),
        vocabulary_size=vocabulary_size(params),
        dtype=params["dtype"],
    )


def network_of(params: Params, data: DataShape) -> Network:
    """Return the network of one trial, for data of that shape."""
    return ARCHITECTURES[params["arch"]].make(params, data)


def pack_shape(params: Params) -> PackShape:
    """Return what the memory and the time of a pack of such trials depend on."""
    data = data_shape(params)
    return PackShape(
        network=network_of(params, data),
        data=data,
        batch_size=params["batch_size"],
        num_steps=training_steps(params, data.num_samples),
        num_measured_steps=len(marked_steps(params, data.num_samples)),
        optimizer=params["optimizer"],
        dtype=params["dtype"],
        matmul_precision=params["matmul_precision"],
        polish=polish_plan(params),
    )


def chain_shapes(params: Params) -> list[PackShape]:
    """Return the shape of each depth that such a trial goes through."""
    return [pack_shape({**params, "depth": depth}) for depth in chain(params)]


def context_length(params: Params) -> int:
    """Return the number of tokens read of a text."""
    return params["context_length"] or DEFAULT_CONTEXT_LENGTH


def vocabulary_size(params: Params) -> int:
    """Return the number of tokens that are told apart."""
    return params["vocabulary_size"] or DEFAULT_VOCABULARY_SIZE


def weight_decays(params: Params) -> dict[str, float]:
    """Return the weight decay of each group: `hidden`, and `last` for the last layer."""
    last = params["weight_decay_last"]
    return {"hidden": params["weight_decay"], "last": params["weight_decay"] if last is None else last}


def draw_seed(params: Params) -> int:
    """Return the seed that a trial's initialisation and data order are drawn with."""
    if params["seed_scope"] == "seed":
        return int(params["seed"])
    # what the task gains later leaves the draws of trials alone that don't use it, as it leaves their identity alone
    own = {name: value for name, value in params.items() if name not in SCHEMA.added or value != SCHEMA.added[name]}
    text = json.dumps(own, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def objective_bound(params: Params, num_samples: int, closest: float) -> float | None:
    """Return the theorem's bound on the objective above its limit; null for networks that it is not about.

    closest: the smallest distance between two samples of norm 1.
    """
    if ARCHITECTURES[params["arch"]].construction_matrices != 1 or params["norm"] != "post":
        return None
    decay = params["weight_decay"]
    return theorem_bound(
        params["depth"] - 1, num_samples=num_samples, width=params["width"], weight_decay=decay, closest=closest
    )


def objective_limit(params: Params, num_classes: int) -> float | None:
    """Return the objective's limit as depth grows, for balanced classes; null for networks with BatchNorm, which have none."""
    if not ARCHITECTURES[params["arch"]].has_limit:
        return None
    return gufm_limit(
        params["loss"],
        num_classes=num_classes,
        width=params["width"],
        weight_decay_last=weight_decays(params)["last"],
        last_bias=has_last_bias(params),
    )


def measured(params: Params, steps: int) -> tuple[list[int], list[int]]:
    """Return the (steps, layers) at which a trial that took so many steps was measured."""
    data = data_shape(params)
    layers = network_of(params, data).measured_layers()
    return taken_steps(params, data.num_samples, steps), [layer.number for layer in layers]
