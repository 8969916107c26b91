"""What the task `collapse` measures. P1 is Neural Collapse is Globally Optimal in Deep Regularized ResNets and
Transformers, P2 Neural Collapse versus Low-Rank Bias, P3 Progressive Feedforward Collapse of ResNet Training.
"""

from __future__ import annotations

from depthrate.tasks.collapse.theory import (
    bound_of_basis,
    bound_of_gap,
    bound_of_simplex,
    construction_excess,
    may_idle,
    objective_at_zero,
    reaches_limit,
)
from depthrate.tasks.measurement import Measurement, Optimum
from depthrate.tasks.measures.named_columns import NAMED
from depthrate.tasks.measures.path_columns import GEODESIC, PATH_PANELS

HOW_ONE_TRAINS = frozenset(
    [
        *(
            "seed",
            "seed_scope",
            "optimizer",
            "lr",
            "momentum",
            "schedule",
            "steps",
            "epochs",
            "batch_size",
            "clip_norm",
        ),
        *(
            "polish",
            "polish_to",
            "polish_tolerance",
            "polish_smoothing",
            "polish_memory",
            "polish_solver",
            "polish_barrier",
            "continuation",
        ),
        *(
            "init",
            "dtype",
            "features",
            "feature_dtype",
            "measure_steps",
            "rank_tol",
            "measure",
            "geodesic",
            "epsilon",
            "measure_epochs",
            "milestones",
        ),
    ]
)
"""Parameters that the objective's least value does not depend on."""

_PER_LAYER = (
    Measurement(
        "nc1",
        "NC1",
        "tr Sigma_W / tr Sigma_B: spread within classes over spread of their means (P1, Def. 3.4)",
        bound=bound_of_gap,
    ),
    Measurement(
        "nc1_pinv",
        "NC1 (pseudo-inverse)",
        "tr(Sigma_W pinv(Sigma_B)) / K (Papyan, Han and Donoho 2020; DNC1 of P2)",
        panel="fitted",
    ),
    Measurement(
        "nc2a",
        "NC2A",
        "distance of W W^T, over its norm, from the nearest multiple of I - 1 1^T / K, a simplex (P1, Def. 3.4)",
        panel="fitted",
        bound=bound_of_simplex,
    ),
    Measurement(
        "nc2b",
        "NC2B",
        "distance of W W^T, over its norm, from the nearest multiple of the identity (P1, Def. 3.4)",
        panel="fitted",
        bound=bound_of_basis,
    ),
    Measurement(
        "nc3",
        "NC3",
        "1 - mean cosine between a sample's features and its class's row of W (P1, Def. 3.4)",
        panel="fitted",
        bound=bound_of_gap,
    ),
    Measurement(
        "ncc_accuracy",
        "NCC accuracy",
        "share of samples whose nearest class mean is their own (NC4; PFC3 of P3, (9))",
        panel="fitted",
    ),
    Measurement(
        "pfc2",
        "PFC2",
        "distance of the centred class means' Gram matrix from a simplex's, both of norm 1 (P3, (8))",
        panel="fitted",
    ),
    Measurement(
        "rank",
        doc="singular values of the class means above rank_tol times the largest (P2)",
        panel="fitted",
    ),
    Measurement(
        "stable_rank",
        doc="sum of the class means' squared singular values over the largest square (P2)",
        panel="fitted",
    ),
    Measurement(
        "condition_number",
        doc="largest over smallest singular value of the class means (DNC2 of P2, section 6)",
        panel="fitted",
    ),
    Measurement(
        "relative_position",
        "Relative position",
        doc="length of the features' path from the first measured layer to here, over the whole path's (P3, section IV)",
        panel="fitted",
    ),
    Measurement(
        "hidden_square_norm",
        "Squared norm of the hidden weights",
        "sum of ||W_l||^2 over all regularised layers but the last (P1, Theorems 4.3 and 4.6); at the last layer alone",
        panel="fitted",
        bound=bound_of_gap,
    ),
    Measurement(
        "regularisation_hidden",
        "Regularisation of the hidden layers",
        "(lambda / 2) sum of ||W_l||^2 over all regularised layers but the last; loss and both regularisations make the "
        "objective; at the last layer alone",
        panel="fitted",
        bound=bound_of_gap,
    ),
    Measurement(
        "regularisation_last",
        "Regularisation of the last layer",
        "(lambda_L / 2) ||W_L||^2; at the last layer alone",
        panel="fitted",
    ),
    Measurement(
        "regularisation_embedding",
        "Regularisation of the embedding",
        "(lambda_0 / 2) ||W_0, b_0||^2 with weight_decay_embedding; at the last layer alone",
        panel="fitted",
    ),
    Measurement(
        "regularisation_biases",
        "Regularisation of the biases",
        "(lambda_b / 2) sum of ||b_l||^2 with weight_decay_biases; at the last layer alone",
        panel="fitted",
    ),
    Measurement(
        "smallest_deviation",
        "Smallest deviation before LayerNorm",
        "smallest standard deviation over coordinates of what a LayerNorm reads, over samples and layers: "
        "near 0 LayerNorm is singular; at the last layer alone",
        panel="fitted",
    ),
    Measurement(
        "deviations",
        "Smallest deviation before each LayerNorm",
        "the same of each LayerNorm, in the order of the network, of trials that are polished; at the last layer alone",
        kind="vector",
        panel="fitted",
        entry="LayerNorm",
    ),
    Measurement(
        "row_norms",
        "Norms of the last layer's rows",
        "||w_k|| of each class k (P1, Lemma 4.2 has them equal); at the last layer alone",
        kind="vector",
        panel="fitted",
        entry="Class",
    ),
    Measurement(
        "singular_values",
        "Singular values of the class means",
        "singular values of the matrix of class means (P2)",
        kind="vector",
        panel="spectrum",
        entry="Singular value",
    ),
    Measurement(
        "class_gram",
        "Cosines between class means",
        "Gram matrix of the class means, row by row (P2); drawn as cosines, once the means' mean is taken away",
        kind="matrix",
        panel="cosines",
        entry="Class",
    ),
)
_PER_STEP = (
    Measurement("loss", "Loss", "training loss, without regularisation", per="step"),
    Measurement(
        "objective",
        "Objective",
        "loss and regularisation together: what training minimises (P1)",
        per="step",
        gap="objective_gap",
        excess=construction_excess,
        reaches_limit=reaches_limit,
        gap_bound="objective_bound",
        at_zero=objective_at_zero,
        optimum=Optimum("depth", HOW_ONE_TRAINS, may_idle, reached_where="stationary"),
    ),
    Measurement(
        "objective_gap",
        "Objective gap",
        "objective minus its limit as depth grows, the unconstrained model's optimum (P1, Lemma 4.2); for blocks of two "
        "matrices a limit only if their lambda falls faster than 1 / log L (Theorem 4.6), else a lower bound",
        per="step",
        panel="fitted",
        bound=bound_of_gap,
    ),
    Measurement(
        "objective_bound",
        "Theorem's bound on the gap",
        "P1's bound on the objective gap of one-matrix blocks, with m, the smallest distance between samples of norm 1; "
        "null for more than 10,000 samples",
        per="step",
        panel="fitted",
    ),
    Measurement("accuracy", "Accuracy", "share of training samples classified right", axis="linear", per="step"),
    Measurement("grad_norm", "Gradient norm", "norm of the objective's gradient", per="step"),
    Measurement(
        "smoothed_grad_norm",
        "Gradient norm, smoothed",
        "norm of the gradient of what polish minimises: ReLU's kinks rounded off, with a barrier on the first variance",
        per="step",
        panel="fitted",
    ),
    Measurement(
        "subgradient_norm",
        "Least subgradient",
        "smallest norm that was found of the objective's gradient with slopes between 0 and 1 at the kinks of the true ReLU, "
        "those within the last width of polish_smoothing; where polish_to stationary ends",
        per="step",
        panel="fitted",
    ),
    Measurement(
        "stationary",
        doc="1 where polish_to stationary ended with a gradient norm within polish_tolerance times the objective, else 0",
        axis="linear",
        per="step",
        panel="fitted",
    ),
    Measurement("lr", doc="learning rate of the step", per="step", panel="fitted"),
)
MEASUREMENTS = (*_PER_LAYER, *NAMED, *GEODESIC, *_PER_STEP)
PANELS = PATH_PANELS
