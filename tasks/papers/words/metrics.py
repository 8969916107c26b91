"""Metrics of the task `words`. P4 is Feature Collapse (Laurent, von Brecht and Bresson 2023). Importable without torch."""

from depthrate.tasks.figure_request import VARYING, FigureRequest
from depthrate.tasks.metric import Metric, fitted, fitted_step, linear, step_metric

_PER_LAYER = (
    Metric("norm_mean", "Mean word norm", "mean norm of the words", axis="linear"),
    linear("norm_rms", "Word norm", "root mean square norm of the words"),
    linear(
        "predicted_norm_rms", "Word norm, predicted", "the same by theory: Theorem 1, 2 or 3 of P4, or its mean field"
    ),
    fitted("norm_spread", "Spread of word norms", "standard deviation over mean of all word norms"),
    Metric(
        "direction_collapse",
        "Directions within concepts",
        "root mean square distance of words, scaled to norm 1, from their concept's mean direction. 0: one per concept",
    ),
    Metric(
        "magnitude_collapse",
        "Magnitudes within concepts",
        "standard deviation over mean of the norms within a concept, root mean square over concepts. 0: one norm per concept",
    ),
    fitted(
        "rank_spread",
        "Magnitudes within ranks",
        "the same over the words of one frequency rank, one of each concept. 0: the norm depends on the rank only",
    ),
    Metric(
        "equiangularity",
        "Angles between concepts",
        "largest difference of a cosine between two concepts' directions from -1/(n_c - 1). 0: equiangular",
    ),
    linear("linear_norm_rms", "Block norm", "root mean square norm of the linear layer's blocks"),
    linear("predicted_linear_norm", "Block norm, predicted", "the same by theory, as predicted_norm_rms"),
    fitted(
        "linear_norm_spread",
        "Spread of block norms",
        "standard deviation over mean of the norms of the linear layer's blocks",
    ),
    fitted(
        "linear_direction_collapse",
        "Directions of blocks",
        "direction_collapse of the linear layer's blocks, by the concept of their place",
    ),
    fitted("linear_magnitude_collapse", "Magnitudes of blocks", "magnitude_collapse of the linear layer's blocks"),
    fitted("linear_equiangularity", "Angles between blocks", "equiangularity of the linear layer's blocks"),
    fitted(
        "alignment",
        "Words against blocks",
        "largest distance between the mean direction of a concept's words and of its blocks. 0: the same",
    ),
    fitted(
        "collapse_1",
        "Distance from type I",
        "largest distance in its conditions: words c f, blocks c' f, f equiangular (P4, type I)",
    ),
    fitted("collapse_2", "Distance from type II", "the same of words behind LayerNorm (P4, type II)"),
    fitted(
        "collapse_3", "Distance from type III", "the same with norms that depend on the frequency rank (P4, type III)"
    ),
    linear("collapse_type", "Type of collapse", "1, 2 or 3: the strictest type whose distance is at most 0.2. 0: none"),
    linear(
        "prediction",
        "Source of the prediction",
        "theorem of P4 that the predicted columns come from. 0: its mean field, where no theorem holds",
    ),
    Metric(
        "word_singular_values",
        "Singular values of the words",
        "of the centred words: of their principal components (P4, Figures 3 and 4)",
        kind="vector",
        panel="spectrum",
        entry="Principal component",
    ),
    Metric(
        "linear_singular_values",
        "Singular values of the blocks",
        "of the centred blocks of the linear layer (P4, Figures 3 and 4)",
        kind="vector",
        panel="spectrum",
        entry="Principal component",
    ),
    fitted(
        "rank_norms",
        "Word norm by frequency rank",
        "mean over concepts of the norm of the word of each frequency rank",
        kind="vector",
        entry="Frequency rank within a concept",
    ),
    fitted(
        "predicted_rank_norms",
        "Word norm by frequency rank, predicted",
        "the same by theory, as predicted_norm_rms",
        kind="vector",
        entry="Frequency rank within a concept",
    ),
)
_PER_STEP = (
    step_metric("loss", "Loss", "cross-entropy, without regularisation"),
    step_metric("objective", "Objective", "loss and weight decay together"),
    step_metric("accuracy", "Accuracy", "share of sentences classified right", axis="linear"),
    fitted_step("test_loss", "Test loss", "cross-entropy of fresh sentences"),
    fitted_step("test_accuracy", "Test accuracy", "share of fresh sentences classified right", axis="linear"),
    fitted_step(
        "best_test_accuracy",
        "Best test accuracy",
        "largest test accuracy so far, over the steps of the curves",
        axis="linear",
    ),
    fitted_step(
        "epoch_loss",
        "Loss, mean over the epoch so far",
        "mean cross-entropy of the sentences that the epoch has passed, each with the parameters of its step",
    ),
    fitted_step(
        "epoch_accuracy",
        "Accuracy, mean over the epoch so far",
        "the same of the share classified right",
        axis="linear",
    ),
    fitted_step("predicted_loss", "Loss, predicted", "cross-entropy of the collapsed minimiser, as predicted_norm_rms"),
    fitted_step(
        "predicted_objective", "Objective, predicted", "objective of the collapsed minimiser, as predicted_norm_rms"
    ),
    fitted_step("lr", doc="learning rate of the step"),
)
MEASUREMENTS = (*_PER_LAYER, *_PER_STEP)

_COMPONENTS = ("First principal component", "Second principal component")
FIGURES = (
    FigureRequest(
        kind="verdict",
        metric="collapse_type",
        words=("no collapse", "type I", "type II, behind LayerNorm", "type III, norms by frequency"),
        columns=(
            "collapse_1",
            "collapse_2",
            "collapse_3",
            "test_accuracy",
            "best_test_accuracy",
            "loss",
            "norm_rms",
            "linear_norm_rms",
        ),
        lines={
            "loss": "predicted_loss",
            "norm_rms": "predicted_norm_rms",
            "linear_norm_rms": "predicted_linear_norm",
        },
        by=(VARYING,),
        note="a trial is of the strictest type whose distance, the largest in any of its conditions, is at most 0.2. Type I: "
        "words c f and blocks c' f with equiangular f. II: the same behind LayerNorm. III: the words' norms may depend on "
        "their frequency rank.",
    ),
    FigureRequest(
        kind="share",
        condition="test_accuracy",
        observations="sequences * test_samples_per_sequence",
        x="samples_per_sequence",
        by=(VARYING,),
        title="Test accuracy against samples_per_sequence",
    ),
    FigureRequest(
        kind="scatter",
        features="word",
        x=_COMPONENTS[0],
        y=_COMPONENTS[1],
        label="concept",
        by=(VARYING,),
        title="Words in their principal components",
        note="One point per word, as the linear layer reads it. A collapsed concept is one spot, or a ray if norms differ.",
    ),
    FigureRequest(
        kind="scatter",
        features="block",
        x=_COMPONENTS[0],
        y=_COMPONENTS[1],
        label="concept",
        by=(VARYING,),
        title="Blocks of the linear layer in their principal components",
        note="One point per block, coloured by the concept of its place in its sequence.",
    ),
    FigureRequest(
        kind="spectrum",
        metric="rank_norms",
        lines={"predicted": "predicted_rank_norms"},
        note="Mean over concepts of the norm of the word of each frequency rank. Last layer, last step.",
        x="Frequency rank within a concept",
        by=(VARYING,),
        layer=-1,
        x_axis="log",
        y_axis="log",
    ),
)
