"""Parameters of the task `dufm` and values derived from them. Importable without torch."""

from __future__ import annotations

from typing import Literal

from depthrate.tasks.papers.unconstrained.deep_network import FEATURES as FIRST_FEATURES
from depthrate.tasks.papers.unconstrained.theory import DufmProblem
from depthrate.tasks.parameters import parameter
from depthrate.tasks.training.parameters import (
    Dtype,
    FeatureDtype,
    Features,
    MeasureSteps,
    RankTol,
    Schedule,
    Seed,
    TrainingParameters,
)


class DufmParameters(TrainingParameters):
    """Parameters of a trial of `dufm`."""

    depth: int = parameter(minimum=1, doc="number L of weight matrices; ReLUs stand between them")
    num_classes: int = parameter(minimum=2, doc="classes K")
    samples_per_class: int = parameter(50, minimum=1, doc="samples n of each class")
    width: int = parameter(64, minimum=1, doc="feature dimension d of every layer")
    activation: Literal["relu", "none"] = parameter("relu", doc="between the matrices; none: the linear model")
    weight_decay: float = parameter(
        0.004,
        minimum=0,
        fusible=True,
        doc="lambda of (lambda/2)||W_l||^2 for every l, and of H_1 where that has none of its own",
    )
    weight_decay_features: float | None = parameter(
        None, minimum=0, fusible=True, doc="lambda_H of H_1; null: weight_decay"
    )
    weight_decays: list[float] | None = parameter(
        None,
        minimum=0,
        fusible=True,
        doc="lambda_1 to lambda_L, one for each weight matrix; null: weight_decay for all",
    )
    lr: float = parameter(0.5, above=0, fusible=True, doc="learning rate of gradient descent")
    schedule: Schedule = parameter("constant")
    steps: int = parameter(40_000, minimum=1, doc="steps of full-batch gradient descent")
    init: Literal["normal", "uniform", "he", "balanced", "dnc", "srg"] = parameter(
        "normal",
        fusible=True,
        doc="W of N(0, 1/d), U(-1,1)/sqrt(d) or N(0, 2/d) with H_1 of N(0, 1); balanced: all matrices with the same "
        "singular values; dnc, srg: at a closed form's solution",
    )
    init_scale: float = parameter(1.0, above=0, fusible=True, doc="factor on all matrices at the start")
    init_noise: float = parameter(
        0.0, minimum=0, fusible=True, doc="normal noise added at the start, over each matrix's root mean square"
    )
    dtype: Dtype
    seed: Seed = parameter(doc="seed of the start")
    features: Features
    feature_dtype: FeatureDtype
    measure_steps: MeasureSteps
    rank_tol: RankTol
    loss = "mse"

    @property
    def relu(self) -> bool:
        """Flag: ReLUs between the matrices."""
        return self.activation == "relu"


def weight_decays(trial: DufmParameters) -> dict[str, float]:
    """Return the weight decay of H_1 and of each weight, by name."""
    given, features = trial.weight_decays, trial.weight_decay_features
    decays = [trial.weight_decay] * trial.depth if given is None else given
    of_weights = {f"W_{layer}": decay for layer, decay in enumerate(decays, 1)}
    return {FIRST_FEATURES: trial.weight_decay if features is None else features, **of_weights}


def problem_of(trial: DufmParameters) -> DufmProblem:
    """Return the inputs of a trial's closed forms."""
    features, *weights = weight_decays(trial).values()
    return DufmProblem(trial.num_classes, trial.samples_per_class, tuple(weights), features)


def has_closed_forms(problem: DufmProblem) -> bool:
    """Return whether all weight decays are above zero: without regularisation the infimum 0 is reached at no finite scale."""
    return min(problem.weight_decay_features, *problem.weight_decays) > 0
