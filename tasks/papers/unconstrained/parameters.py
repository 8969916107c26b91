"""The parameters of the tasks `ufm`, `mufm` and `dufm`, and values derived from them. Importable without torch."""

from typing import ClassVar, Literal

from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.measures.named_columns import WEIGHT_DOC
from depthrate.tasks.papers.unconstrained.network import FEATURES
from depthrate.tasks.papers.unconstrained.theory import DufmProblem
from depthrate.tasks.parameters import later_parameter, parameter
from depthrate.tasks.training import parameters as training

DEFAULT_STEPS = 50_000
EXACT = "exact"
INPUT = "input"
GAUSSIAN = "gaussian"
_IMAGES = tuple(name for name, info in PUBLISHED.items() if not info.is_text)


class UnconstrainedParameters(training.TrainingParameters):
    """Parameters of both tasks. `depth` and `proximity` belong to MUFM, `weight_decay_features` to UFM."""

    is_anchored: ClassVar[bool]
    """Whether features are regularised towards X, as in MUFM."""
    num_classes: int = parameter(5, minimum=2, doc="classes K")
    samples_per_class: int = parameter(100, minimum=1, doc="samples n of each class")
    dimension: int = parameter(20, minimum=2, doc="numbers d of an input and of a feature")
    weight_decay_features: float = parameter(0.001, above=0, fusible=True, doc="lambda of (lambda/2N) ||H||^2")
    depth: int = parameter(1, minimum=1, doc="blocks L between the input X and the features that W reads")
    proximity: float = parameter(
        0.001, above=0, fusible=True, doc="lambda of (lambda/2N) sum_l ||H_l - H_{l-1}||^2 with H_0 = X"
    )
    weight_decay: float = parameter(0.005, minimum=0, fusible=True, doc="lambda_W of (lambda_W/2K) ||W||^2")
    data: str = parameter(
        GAUSSIAN,
        choices=(GAUSSIAN, *_IMAGES),
        doc="X: N(mu_k, I) with mu_k uniform on the unit sphere, or the first classes of a data set along their first "
        "principal components, with mean square 1",
    )
    data_seed: int = parameter(0, minimum=0, fusible=True, doc="seed of that draw")
    loss: training.Loss = parameter("mse")
    solver: Literal["exact", "gradient"] = parameter(
        EXACT, doc="the optimum itself, or full-batch gradient descent from `start`"
    )
    lr: float = parameter(0.1, above=0, fusible=True, doc="learning rate of gradient descent")
    scaled_steps: bool = parameter(
        True, doc="steps of lr K n on features and lr K on W. false: lr on both, as the objective is printed (P3)"
    )
    schedule: training.Schedule = parameter("constant")
    steps: int | None = parameter(None, minimum=1, doc=f"steps of gradient descent. null: {DEFAULT_STEPS:,}")
    start: Literal["input", "normal"] = later_parameter(
        INPUT, doc="where gradient descent begins: H = X and W drawn from N(0, 1/d), or both from N(0, 1), as P3 has it"
    )
    init_scale: float = parameter(
        1.0, above=0, fusible=True, doc="factor on what is drawn there: on W, and on a drawn H"
    )
    dtype: training.Dtype = parameter("float64", doc="of gradient descent")
    seed: training.Seed = parameter(doc="seed of what is drawn at the start")
    features: training.Features
    feature_dtype: training.FeatureDtype
    measure_steps: training.MeasureSteps

    @property
    def default_steps(self) -> int:
        """Default number of steps, 0 for the exact solver."""
        return 0 if self.solver == EXACT else DEFAULT_STEPS


class UfmParameters(UnconstrainedParameters):
    """Parameters of a trial of `ufm`."""

    is_anchored = False
    depth = 1

    @property
    def proximity(self) -> float:  # type: ignore[override]
        """lambda of the features' regulariser, which here pulls them towards zero."""
        return self.weight_decay_features


class MufmParameters(UnconstrainedParameters):
    """Parameters of a trial of `mufm`."""

    is_anchored = True
    weight_decay_features = 0.0


class DufmParameters(training.TrainingParameters):
    """Parameters of a trial of `dufm`."""

    depth: int = parameter(minimum=1, doc="number L of weight matrices, with ReLUs between them")
    num_classes: int = parameter(minimum=2, doc="classes K")
    samples_per_class: int = parameter(50, minimum=1, doc="samples n of each class")
    width: int = parameter(64, minimum=1, doc="feature dimension d of every layer")
    activation: Literal["relu", "none"] = parameter(
        "relu", doc="activation between the matrices. none: the linear model"
    )
    weight_decay: float = parameter(
        0.004,
        minimum=0,
        fusible=True,
        doc="lambda of (lambda/2)||W_l||^2 for every l, and of H_1 where that has none of its own",
    )
    weight_decay_features: float | None = parameter(
        None, minimum=0, fusible=True, null="weight_decay", doc="lambda_H of H_1. null: weight_decay"
    )
    weight_decays: list[float] | None = parameter(
        None,
        minimum=0,
        fusible=True,
        doc="lambda_1 to lambda_L, one per weight matrix, 0 for none. null: weight_decay for all. If one of them or "
        "lambda_H is 0, closed forms are null",
    )
    lr: float = parameter(0.5, above=0, fusible=True, doc="learning rate of gradient descent")
    schedule: training.Schedule = parameter("constant")
    steps: int = parameter(40_000, minimum=1, doc="steps of full-batch gradient descent")
    init: Literal["normal", "uniform", "he", "balanced", "dnc", "srg", "bipartite"] = parameter(
        "normal",
        fusible=True,
        doc="W of N(0, 1/d), U(-1,1)/sqrt(d) or N(0, 2/d) with H_1 of N(0, 1). balanced: all matrices with the same "
        "singular values. dnc, srg: at a closed form's solution. bipartite: near low-rank features, classes as the edges "
        "of a complete bipartite graph",
    )
    init_scale: float = parameter(1.0, above=0, fusible=True, doc="factor on all matrices at the start")
    init_noise: float = parameter(
        0.0, minimum=0, fusible=True, doc="normal noise added at the start, over each matrix's root mean square"
    )
    dtype: training.Dtype
    seed: training.Seed = parameter(doc="seed of the start")
    features: training.Features
    feature_dtype: training.FeatureDtype
    measure_steps: training.MeasureSteps
    rank_tol: training.RankTol
    measure: str | None = later_parameter(None, doc=f"additional metrics, separated by commas: {WEIGHT_DOC}")
    loss: training.Loss = later_parameter(
        "mse",
        doc="(1/2N)||f - Y||^2 or cross-entropy, which trains eagerly. Closed forms and `solution` are of mse only",
    )

    @property
    def relu(self) -> bool:
        """Whether ReLUs are between the matrices."""
        return self.activation == "relu"


def weight_decays(trial: DufmParameters) -> dict[str, float]:
    """Return the weight decay of H_1 and of each weight, by name."""
    of_features, of_weights = trial.weight_decay_features, trial.weight_decays or [trial.weight_decay] * trial.depth
    of_features = trial.weight_decay if of_features is None else of_features
    return {FEATURES: of_features} | {f"W_{layer}": decay for layer, decay in enumerate(of_weights, 1)}


def problem_of(trial: DufmParameters) -> DufmProblem:
    """Return the inputs of a trial's closed forms."""
    features, *weights = weight_decays(trial).values()
    return DufmProblem(trial.num_classes, trial.samples_per_class, tuple(weights), features)


def has_closed_forms(trial: DufmParameters) -> bool:
    """Return whether the closed forms hold: squared loss, and all weight decays above zero.

    If one matrix has no weight decay, the infimum 0 is reached at no finite scale: this matrix grows, and the others shrink.
    """
    return trial.loss == "mse" and min(weight_decays(trial).values()) > 0
