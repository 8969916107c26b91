"""The parameters of the tasks `ufm` and `mufm`. Importable without torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.parameters import parameter
from depthrate.tasks.training.parameters import (
    Dtype,
    FeatureDtype,
    Features,
    Loss,
    MeasureSteps,
    Schedule,
    Seed,
    TrainingParameters,
)

DEFAULT_STEPS = 50_000
EXACT = "exact"
INPUT = "input"
GAUSSIAN = "gaussian"
_IMAGES = tuple(name for name, info in PUBLISHED.items() if not info.is_text)


class UnconstrainedParameters(TrainingParameters):
    """Parameters of both tasks. `depth` and `proximity` belong to MUFM, `weight_decay_features` to UFM."""

    is_anchored: ClassVar[bool]
    """Flag: features are regularised towards X, as in MUFM."""
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
    loss: Loss = parameter("mse")
    solver: Literal["exact", "gradient"] = parameter(
        EXACT, doc="the optimum itself, or full-batch gradient descent from `start`"
    )
    lr: float = parameter(0.1, above=0, fusible=True, doc="learning rate of gradient descent")
    scaled_steps: bool = parameter(
        True, doc="steps of lr K n on features and lr K on W; false: of lr on both, as the objective is printed (P3)"
    )
    schedule: Schedule = parameter("constant")
    steps: int | None = parameter(None, minimum=1, doc=f"steps of gradient descent; null: {DEFAULT_STEPS:,}")
    start: Literal["input", "normal"] = parameter(
        INPUT,
        added_later=True,
        doc="where gradient descent begins: H = X and W drawn from N(0, 1/d), or both from N(0, 1), as P3 has it",
    )
    init_scale: float = parameter(
        1.0, above=0, fusible=True, doc="factor on what is drawn there: on W, and on a drawn H"
    )
    dtype: Dtype = parameter("float64", doc="of gradient descent")
    seed: Seed = parameter(doc="seed of what is drawn at the start")
    features: Features
    feature_dtype: FeatureDtype
    measure_steps: MeasureSteps

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
