"""The parameters of the task `regression`: those of `own` without what speaks of classes. Importable without torch."""

from __future__ import annotations

from typing import ClassVar

from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.measures import named_columns
from depthrate.tasks.own.schema import OwnParameters
from depthrate.tasks.parameters import parameter


class RegressionParameters(OwnParameters):
    """What a trial of `regression` has; what speaks of classes, texts and patches is what it is here."""

    arch: str = parameter(
        choices=("mlp", "rn1", "rn2", "resnet_dense"),
        doc="plain network of linear layers and ReLU, residual network L-RN1 or L-RN2 (one or two linear layers in a block), "
        "or one with BatchNorm",
    )
    dataset: str = parameter(
        "digits",
        choices=tuple(name for name, info in PUBLISHED.items() if not info.is_text),
        doc="images, whose targets are the outputs of a fixed random network, the teacher",
    )
    targets: int = parameter(
        3,
        minimum=1,
        doc="numbers of a target, outputs of the teacher: tanh of 32 random projections of the normalised pixels, combined at "
        "random, all drawn by data_seed",
    )
    samples: int | None = parameter(None, minimum=4, doc="samples, drawn by data_seed; null: all")
    data_seed: int = parameter(
        0,
        minimum=0,
        is_random_seed=True,
        doc="seed of that draw and of the teacher, the same for all trials unless it is varied",
    )
    standardize: bool = parameter(
        True,
        doc="subtract from each number of the targets its mean and divide by its standard deviation, both of the training set",
    )
    last_bias: bool = parameter(True, doc="bias of the last layer (never regularised)")
    measure: str | None = parameter(
        "effective_rank, intrinsic_dimension, linear_probe",
        doc=named_columns.DOC,
    )
    of_published: ClassVar[tuple[str, ...]] = ("targets",)
    loss = "mse"
    label_smoothing = 0.0
    samples_per_class = None
    patch_size = None
    context_length = None
    vocabulary_size = None
    stages = None
    regularise = "all"
    weight_decay_features = None
    features = "none"
    feature_dtype = "float32"
    rank_tol = 0.0
    geodesic = False
    epsilon = 0.0
    polish_to = "lowest"
    polish_solver = "lbfgs"
