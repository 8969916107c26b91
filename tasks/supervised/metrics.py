"""Metrics of supervised trials, by target. Every command imports this: no numpy, no torch.

P1 is Neural Collapse is Globally Optimal in Deep Regularized ResNets and Transformers, P2 Neural Collapse versus Low-Rank Bias,
P3 Progressive Feedforward Collapse of ResNet Training, NRC Andriopoulos, Dong, Guo, Zhao, Ross, The Prevalence of Neural
Collapse in Neural Multivariate Regression (NeurIPS 2024), WP Wu & Papyan, Linguistic Collapse: Neural Collapse in (Large)
Language Models (NeurIPS 2024).
"""

from depthrate.tasks.measures.named_columns import NAMED_MEASURES, WEIGHT_MEASURES
from depthrate.tasks.measures.path_columns import GEODESIC
from depthrate.tasks.metric import Metric, Optimum, by_name, fitted, fitted_step, linear, step_metric
from depthrate.tasks.supervised import theory

NEUTRAL_PARAMETERS = frozenset(
    [
        *("seed", "seed_scope", "optimizer", "lr", "momentum", "schedule", "steps", "epochs", "batch_size"),
        *("clip_norm", "polish", "polish_to", "polish_tolerance", "polish_smoothing", "polish_memory", "polish_solver"),
        *("polish_barrier", "continuation", "init", "dtype", "features", "feature_dtype", "measure_steps", "rank_tol"),
        *("measure", "geodesic", "epsilon", "measure_epochs", "record", "milestones"),
    ]
)
"""Parameters that the objective's minimum does not depend on."""

_PER_LAYER = (
    Metric(
        "nc1",
        "NC1",
        "tr Sigma_W / tr Sigma_B: spread within classes over spread of their means (P1, Def. 3.4)",
        bound=theory.bound_of_gap,
    ),
    fitted(
        "nc1_pinv", "NC1 (pseudo-inverse)", "tr(Sigma_W pinv(Sigma_B)) / K (Papyan, Han and Donoho 2020; DNC1 of P2)"
    ),
    fitted(
        "nc2a",
        "NC2A",
        "distance of W W^T, over its norm, from the nearest multiple of I - 1 1^T / K, a simplex (P1, Def. 3.4)",
        bound=theory.bound_of_simplex,
    ),
    fitted(
        "nc2b",
        "NC2B",
        "distance of W W^T, over its norm, from the nearest multiple of the identity (P1, Def. 3.4)",
        bound=theory.bound_of_basis,
    ),
    fitted(
        "nc3",
        "NC3",
        "1 - mean cosine between a sample's features and its class's row of W (P1, Def. 3.4)",
        bound=theory.bound_of_gap,
    ),
    fitted("ncc_accuracy", "NCC accuracy", "share of samples nearest to their own class mean (NC4; PFC3 of P3, (9))"),
    fitted(
        "pfc2",
        "PFC2",
        "distance between the Gram matrices of centred class means and of a simplex, both normalised (P3, (8))",
    ),
    fitted("rank", doc="singular values of the class means above rank_tol times the largest (P2)"),
    fitted("stable_rank", doc="sum of the class means' squared singular values over the largest square (P2)"),
    fitted("condition_number", doc="largest over smallest singular value of the class means (DNC2 of P2, section 6)"),
    fitted(
        "relative_position",
        "Relative position",
        doc="length of the features' path from the first measured layer to this one, over the whole path's (P3, section IV)",
    ),
    fitted(
        "gufm_distance",
        "Distance to the unconstrained optima",
        "min over optima (W*, H*) of the unconstrained model of the Frobenius norm of (W_L - W*, H - H*), for the features H "
        "of all samples (P1, Theorem 4.3), at the last layer only",
        bound=theory.bound_of_distance,
    ),
    fitted(
        "hidden_square_norm",
        "Squared norm of the hidden weights",
        "sum of ||W_l||^2 over all regularised layers except the last (P1, Theorems 4.3 and 4.6), at the last layer only",
        bound=theory.bound_of_gap,
    ),
    fitted(
        "regularisation_hidden",
        "Regularisation of the hidden layers",
        "(lambda / 2) sum of ||W_l||^2 over all regularised layers except the last, at the last layer only",
        bound=theory.bound_of_gap,
    ),
    fitted(
        "regularisation_last", "Regularisation of the last layer", "(lambda_L / 2) ||W_L||^2, at the last layer only"
    ),
    fitted(
        "regularisation_embedding",
        "Regularisation of the embedding",
        "(lambda_0 / 2) ||W_0, b_0||^2 with weight_decay_embedding, at the last layer only",
    ),
    fitted(
        "regularisation_biases",
        "Regularisation of the biases",
        "(lambda_b / 2) sum of ||b_l||^2 with weight_decay_biases, at the last layer only",
    ),
    fitted(
        "smallest_deviation",
        "Smallest deviation before LayerNorm",
        "smallest standard deviation over coordinates in the input of a LayerNorm, over samples and layers (near 0, LayerNorm "
        "is singular), at the last layer only",
    ),
    fitted(
        "deviations",
        "Smallest deviation before each LayerNorm",
        "smallest deviation of each LayerNorm in network order, for polished trials, at the last layer only",
        kind="vector",
        entry="LayerNorm",
    ),
    fitted(
        "row_norms",
        "Norms of the last layer's rows",
        "||w_k|| of each class k (equal in P1, Lemma 4.2), at the last layer only",
        kind="vector",
        entry="Class",
    ),
    Metric(
        "singular_values",
        "Singular values of the class means",
        "singular values of the matrix of class means (P2)",
        kind="vector",
        panel="spectrum",
        entry="Singular value",
    ),
    Metric(
        "class_gram",
        "Cosines between class means",
        "Gram matrix of the class means, row by row (P2), drawn as cosines of the centred means",
        kind="matrix",
        panel="cosines",
        entry="Class",
        has_simplex=theory.has_equal_classes,
    ),
)
_PER_STEP = (
    step_metric("loss", "Loss", "training loss, without regularisation"),
    step_metric(
        "objective",
        "Objective",
        "loss plus regularisation: the minimised quantity (P1)",
        gap="objective_gap",
        excess=theory.construction_excess,
        reaches_limit=theory.reaches_limit,
        gap_bound="objective_bound",
        at_zero=theory.objective_at_zero,
        optimum=Optimum("depth", NEUTRAL_PARAMETERS, theory.may_idle, reached_where="stationary"),
    ),
    fitted_step(
        "objective_gap",
        "Objective gap",
        "objective minus its limit at infinite depth, the unconstrained model's optimum (P1, Lemma 4.2): for blocks of two "
        "matrices a limit only if their lambda falls faster than 1 / log L (Theorem 4.6), otherwise a lower bound",
        bound=theory.bound_of_gap,
    ),
    fitted_step(
        "objective_bound",
        "Theorem's bound on the gap",
        "P1's bound on the objective gap of one-matrix blocks, with m the smallest distance between normalised samples (not "
        "computed for more than 10,000 samples)",
    ),
    step_metric("accuracy", "Accuracy", "share of training samples classified correctly", axis="linear"),
    step_metric("grad_norm", "Gradient norm", "norm of the objective's gradient"),
    fitted_step(
        "smoothed_grad_norm",
        "Gradient norm, smoothed",
        "gradient norm of the polished objective, with ReLU's kinks smoothed and a barrier on the first variance",
    ),
    fitted_step(
        "subgradient_norm",
        "Least subgradient",
        "smallest norm found of the objective's subgradients, with slopes between 0 and 1 at ReLU's kinks within the last "
        "width of polish_smoothing, if polish_to is stationary",
    ),
    fitted_step(
        "stationary",
        doc="1 if polish_to stationary ended with a gradient norm within polish_tolerance times the objective, else 0",
        axis="linear",
    ),
    fitted_step("lr", doc="learning rate of the step"),
)
CLASSES = (*_PER_LAYER, *NAMED_MEASURES, *WEIGHT_MEASURES, *GEODESIC, *_PER_STEP)
_OF_CLASSES = by_name(CLASSES)
NUMBERS = (
    Metric(
        "nrc1",
        "NRC1",
        "mean squared share of a centred feature's direction outside the first m principal components of the features, with m "
        "numbers per target (NRC)",
    ),
    Metric(
        "nrc2", "NRC2", "the same outside the row space of the last layer's weight, if the layer has its width (NRC)"
    ),
    fitted(
        "nrc3",
        "NRC3",
        "distance of W W^T, over its norm, from the nearest S - s I, with S the square root of the targets' covariance, for m "
        "> 1 (NRC)",
    ),
    *NAMED_MEASURES,
    *WEIGHT_MEASURES,
    _OF_CLASSES["relative_position"],
    _OF_CLASSES["loss"],
    step_metric(
        "objective",
        "Objective",
        "loss plus regularisation: the minimised quantity",
        optimum=Optimum("depth", NEUTRAL_PARAMETERS, theory.may_idle),
    ),
    step_metric(
        "r_squared",
        "R²",
        "1 - sum of squared errors over the targets' sum of squares around their mean, over all numbers of a target",
        axis="linear",
    ),
    _OF_CLASSES["grad_norm"],
    _OF_CLASSES["lr"],
)
NEXT_TOKENS = (
    Metric(
        "nc1",
        "NC1",
        "tr Sigma_W / tr Sigma_B: spread within classes over spread of their equally weighted means (P1, Def. 3.4)",
    ),
    _OF_CLASSES["nc1_pinv"],
    Metric(
        "cdnv",
        "CDNV",
        "mean over pairs of classes of their mean variance over the squared distance of their means (Galanti et al. 2022; "
        "WP's NC1)",
    ),
    fitted("nc2_norms", "NC2, norms", "standard deviation of log ||mu_k - mu_G|| over classes (WP's equinormness)"),
    fitted(
        "nc2_angles",
        "NC2, angles",
        "standard deviation over pairs of classes of the cosine of mu_k - mu_G and mu_l - mu_G (WP's equiangularity)",
    ),
    fitted(
        "gnc2",
        "GNC2",
        "standard deviation over pairs of classes of the logarithm of their directions' inverse distance (WP's hyperspherical "
        "uniformity)",
    ),
    fitted(
        "nc3_means",
        "NC3 of class means",
        "1 - mean over classes of the cosine of mu_k - mu_G and the row of W, if widths agree (WP's self-duality)",
    ),
    fitted("unc3", "UNC3", "standard deviation over classes of these cosines (WP's uniform duality)"),
    linear(
        "nc4",
        "NC4 agreement",
        "share of measured positions whose nearest class mean is the predicted class (WP's agreement)",
    ),
    _OF_CLASSES["ncc_accuracy"],
    linear(
        "measured_classes",
        "Measured classes",
        "number of tokens that come next at min_class_count or more measured positions",
    ),
    linear(
        "measured_share",
        "Measured share",
        "share of positions whose next token is a measured class (the others are only trained on)",
    ),
    step_metric("loss", "Loss", "mean cross-entropy of the next token over all positions, in nats"),
    step_metric("objective", "Objective", "loss plus regularisation: the minimised quantity"),
    fitted_step("perplexity", "Perplexity", "e^loss"),
    step_metric(
        "loss_gap",
        "Loss above the entropy",
        "loss minus its minimal expectation, the entropy rate of the markov chain (below 0, sequences are memorised), for "
        "markov data only",
        axis="linear",
    ),
    step_metric(
        "accuracy", "Accuracy", "share of positions where the next token has the largest output", axis="linear"
    ),
    _OF_CLASSES["grad_norm"],
    _OF_CLASSES["lr"],
)


def core_measurements() -> tuple[Metric, ...]:
    """Return the metrics of the supervised tasks, which `measure` and `probe` also compute for custom tasks."""
    by_column: dict[str, Metric] = {}
    for measurement in (*CLASSES, *NEXT_TOKENS, *NUMBERS):
        by_column.setdefault(measurement.name, measurement)
    return tuple(by_column.values())
