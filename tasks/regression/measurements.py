"""What the task `regression` measures. Importable without torch.

NRC is Andriopoulos, Dong, Guo, Zhao, Ross, The Prevalence of Neural Collapse in Neural Multivariate Regression (NeurIPS 2024).
"""

from __future__ import annotations

from depthrate.tasks.collapse.measurements import HOW_ONE_TRAINS
from depthrate.tasks.collapse.measurements import MEASUREMENTS as OF_COLLAPSE
from depthrate.tasks.collapse.theory import may_idle
from depthrate.tasks.measurement import Measurement, Optimum, by_name
from depthrate.tasks.measures.named_columns import NAMED

_SAME = by_name(OF_COLLAPSE)
MEASUREMENTS = (
    Measurement(
        "nrc1",
        "NRC1",
        "mean square of what of a centred feature's direction lies outside the features' m first principal components, m the "
        "numbers of a target (NRC)",
    ),
    Measurement(
        "nrc2",
        "NRC2",
        "the same outside the rows of the last layer's weight; null where the layer has another width (NRC)",
    ),
    Measurement(
        "nrc3",
        "NRC3",
        "distance of W W^T, over its norm, from the nearest S - s I, S the square root of the targets' covariance; null for "
        "m = 1 (NRC)",
        panel="fitted",
    ),
    *NAMED,
    _SAME["relative_position"],
    _SAME["loss"],
    Measurement(
        "objective",
        "Objective",
        "loss and regularisation together: what training minimises",
        per="step",
        optimum=Optimum("depth", HOW_ONE_TRAINS, may_idle),
    ),
    Measurement(
        "r_squared",
        "R²",
        "1 - sum of squared errors over that of the targets around their mean, all numbers of a target together",
        axis="linear",
        per="step",
    ),
    _SAME["grad_norm"],
    _SAME["lr"],
)
