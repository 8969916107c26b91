"""Metrics of the tasks `ufm`, `mufm` and `dufm`.

P2 is Neural Collapse versus Low-Rank Bias, P3 is Progressive Feedforward Collapse of ResNet Training.
"""

import dataclasses

from depthrate.tasks.figure_request import VARYING, FigureRequest
from depthrate.tasks.measures.named_columns import WEIGHT_MEASURES
from depthrate.tasks.measures.path_columns import MONOTONE
from depthrate.tasks.metric import Metric, by_name, fitted, fitted_step, linear, step_metric
from depthrate.tasks.supervised.metrics import CLASSES

_COLLAPSE = by_name(CLASSES)
_SHARED_PER_STEP = tuple(_COLLAPSE[name] for name in ("loss", "accuracy", "grad_norm", "lr"))

_PER_LAYER = ("nc1", "nc1_pinv", "nc2a", "nc2b", "nc3", "ncc_accuracy", "pfc2", "relative_position")
UFM_METRICS = (
    *map(_COLLAPSE.__getitem__, _PER_LAYER),
    Metric(
        "alignment",
        "Distance from the input",
        "|| H/||H|| - X/||X|| ||: how far features have left their input (P3, section V)",
        axis="linear",
    ),
    *MONOTONE,
    step_metric("objective", "Objective", "loss and both regularisers together: what is minimised (P3, (13))"),
    dataclasses.replace(
        _COLLAPSE["objective_gap"],
        label="Objective above the optimum",
        doc="objective minus the exact optimum: the closed form of the unconstrained model, the exact solver's of the other",
        panel="always",
    ),
    fitted_step(
        "optimum",
        "Exact optimum",
        "lowest objective: c - c^2/2 with c = sqrt(lambda_W lambda) for the unconstrained model with the squared loss. For "
        "the model with L blocks the exact solver's with lambda / L (P3, Theorem 3, corrected)",
    ),
    *_SHARED_PER_STEP,
)
PROXIMITY_FIGURES = tuple(
    FigureRequest(
        kind="curve",
        metric=name,
        x="alignment",
        along="proximity",
        by=(VARYING,),
        over="data_seed",
        title=f"{label} against Distance from the input",
        x_axis="linear",
        y_axis="log",
    )
    for name, label in (("nc1", "NC1"), ("pfc2", "PFC2"))
)
"""Figures for a task with the parameter `proximity`."""
DUFM_METRICS = (
    *(_COLLAPSE[name] for name in ("nc1", "rank", "stable_rank", "singular_values", "class_gram")),
    Metric(
        "dnc1",
        "DNC1",
        "tr(Sigma_W pinv(Sigma_B)) / K, of the directions of Sigma_B above rank_tol^2 of its largest (P2, section 6)",
    ),
    fitted("dnc1_pre", "DNC1 before the ReLU", "dnc1 of the values before the layer's ReLU (P2)"),
    fitted(
        "dnc2",
        "DNC2",
        "condition number of the class means: largest over smallest singular value. null where that is zero (P2, section 6)",
    ),
    fitted("dnc2_pre", "DNC2 before the ReLU", "dnc2 of the values before the layer's ReLU (P2)"),
    fitted(
        "dnc3",
        "DNC3",
        "mean sine of the angle between a row of W_l and the nearest class mean, rows weighted by their norm (P2)",
    ),
    linear("rank_pre", "Rank before the ReLU", "rank of the class means before the layer's ReLU (P2)"),
    linear(
        "ranks",
        "Rank by tolerance",
        "singular values of the class means above 1e-1, 1e-2, ... 1e-6 times the largest: how far the rank depends on "
        "rank_tol",
        kind="vector",
        entry="Rank",
    ),
    linear(
        "class_order",
        "Classes in the graph's order",
        "the order of the classes in which their Gram matrix is the strongly regular graph's. null where none is",
        kind="vector",
        entry="Class",
    ),
    fitted(
        "singular_values_pre",
        "Singular values of the class means before the ReLU",
        "singular values of the class means before the layer's ReLU (P2)",
        kind="vector",
        entry="Singular value",
    ),
    fitted(
        "class_gram_pre",
        "Gram matrix of the class means before the ReLU",
        "Gram matrix of the class means before the layer's ReLU, row by row (P2)",
        kind="matrix",
        entry="Class",
    ),
    *WEIGHT_MEASURES,
    step_metric("objective", "Objective", "loss and regularisation together: what training minimises (P2, (1))"),
    step_metric(
        "loss_over_dnc",
        "Objective / L_DNC",
        "objective over the lowest that deep neural collapse reaches (P2, Theorem 5)",
        axis="linear",
    ),
    fitted_step(
        "loss_over_srg",
        "Objective / L_SRG",
        "objective over the lowest that the strongly regular graph's solution reaches. null where it has none (P2, Theorem 5)",
        axis="linear",
    ),
    fitted_step(
        "best_known",
        "Lowest closed form",
        "the lowest objective that a closed form gives: of L_DNC, L_SRG and 1/2, the zero solution's",
    ),
    *_SHARED_PER_STEP,
)
RANK_TOLERANCES = tuple(10.0**-exponent for exponent in range(1, 7))
"""Relative tolerances of the metric `ranks`."""
