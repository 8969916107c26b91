"""Plans of training and polish, and the hyper-parameters that may differ within a pack. Importable without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

WARM_UP_SHARE = 0.05
"""Share of the steps over which the schedule `warmup_cosine` rises."""
ONE_CYCLE_RISE_SHARE = 0.3
"""Share of the steps over which the schedule `one_cycle` rises."""
ONE_CYCLE_START_FACTOR = 1 / 25
"""Initial learning rate factor of the schedule `one_cycle`."""
ONE_CYCLE_END_FACTOR = 1 / 250_000
"""Final learning rate factor of the schedule `one_cycle`."""
ENGINE_OPTIMIZERS = ("sgd", "adam")
"""Optimisers with native steps. Others train eagerly."""
EVALUATION_ROWS = 8192
"""Rows (samples x positions) evaluated at a time. Bounds memory, and is fixed so that sums round alike in every pack."""
EVALUATION_OUTPUTS = 2**21
"""Maximum number of outputs evaluated at a time if every row has outputs, since a vocabulary may be large."""
MOMENT_NUMBERS = 2**20
"""Maximum numbers in the class moments, over trials and layers, from which metrics are computed at a time."""
GPU_FEATURE_NUMBERS = 2**26
"""Maximum feature values in memory in a measurement on a GPU, unless a single trial has more."""
HESSIAN_EIGENVALUES = 3
"""Number of the largest eigenvalues of a trial's Hessian."""
LANCZOS_PRODUCTS = 100
"""Maximum number of Hessian products per eigenvalue."""
BASIS_NUMBERS = 2**25
"""Maximum numbers in the bases of Lanczos' method, over trials, unless a single trial has more."""
EXACT_TRACE_PARAMETERS = 200
"""Maximum number of trained parameters for which the trace of the Hessian is exact."""
TRACE_PROBES = 30
"""Number of random directions for the trace of a larger Hessian."""


def order_bytes(num_samples: int) -> int:
    """Return the bytes of the sample order of one epoch of a stream."""
    return num_samples * (4 if num_samples < 2**31 else 8)


@dataclass(frozen=True)
class Hyperparameters:
    """Hyper-parameters that may differ between the trials of a pack."""

    seed: int
    lr: float
    momentum: float
    weight_decays: Mapping[str, float]
    """Decay group, as named by the network -> lambda of (lambda/2)||theta||^2."""
    fixed_seed: int = 0
    """Seed of the parameters that are not trained."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Training settings that all trials of a pack share."""

    loss: str
    optimizer: str
    schedule: str
    num_steps: int
    batch_size: int | None
    init: str
    clip_norm: float | None
    dtype: torch.dtype
    matmul_precision: str = "full"
    """Precision of matrix products in training steps: full (the dtype's), tf32 or bf16."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = 1e-8
    rms_alpha: float = 0.99
    """RMSprop's smoothing factor of the mean of squares."""
    label_smoothing: float = 0.0
    """Label smoothing e: cross-entropy with (1 - e) of the label's one-hot row and e / K of each class."""
    milestones: tuple[int, ...] | None = None
    """Steps at which the schedule `step` divides the learning rate by 10. None: at 1/3 and 2/3 of the steps."""

    @property
    def dtype_name(self) -> str:
        """Name of the dtype, such as float32."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def keeps_squares(self) -> bool:
        """Whether the optimiser stores a mean of squares in addition to the first moment."""
        return self.optimizer != "sgd"

    @property
    def corrects_bias(self) -> bool:
        """Whether the optimiser is Adam or AdamW."""
        return self.optimizer in ("adam", "adamw")

    @property
    def decays_by_gradient(self) -> bool:
        """Whether weight decay is a term of the gradient, as it is of the objective."""
        return self.optimizer != "adamw"


@dataclass(frozen=True, kw_only=True)
class PolishPlan:
    """Settings of polish, which brings trials towards a stationary point after training."""

    num_evaluations: int
    """Maximum number of evaluations of a trial's objective and gradient."""
    tolerance: float
    """Gradient norm at which a trial has converged at a smoothing width."""
    smoothing: Sequence[float]
    """Widths over which ReLU's kink is smoothed, in turn, with equal shares of the evaluations."""
    memory: int
    """Number of pairs that L-BFGS stores."""
    barrier: float
    """b of the barrier b mean(v / v_i) on the variances v_i before the first LayerNorm."""
    to_stationary: bool = False
    """Whether a trial ends where its gradient norm is `tolerance` times its objective, instead of at its lowest point."""
    newton: bool = False
    """Whether Newton's method takes over from L-BFGS near the end, at the last width."""


def evaluation_rows(outputs_per_row: int = 0) -> int:
    """Return the number of rows evaluated at a time. 0 outputs per row means that outputs are per sample."""
    return min(EVALUATION_ROWS, EVALUATION_OUTPUTS // outputs_per_row) if outputs_per_row else EVALUATION_ROWS


def trials_per_measurement(num_layers: int, num_classes: int, width: int) -> int:
    """Return the number of trials whose class moments are in memory at a time, given the width of the widest layer."""
    return max(1, MOMENT_NUMBERS // (num_layers * num_classes * (width + num_classes)))


def trials_per_layer(device: str, num_samples: int, numbers_per_sample: int) -> int:
    """Return the number of trials whose features pass through the network together in a measurement.

    On a CPU it is 1, so that a layer stays in a core's cache. A GPU would spend such small operations on launches.

    Args:
        device: cpu or cuda.
        num_samples: Number of measured samples.
        numbers_per_sample: Feature values per sample and trial that are in memory at a time.
    """
    return max(1, GPU_FEATURE_NUMBERS // (num_samples * numbers_per_sample)) if device == "cuda" else 1


def layers_per_reduction(device: str, numbers: int) -> int:
    """Return how many layers with so many feature values are reduced together: one on a CPU, as for `trials_per_layer`."""
    return max(1, GPU_FEATURE_NUMBERS // numbers) if device == "cuda" else 1


def learning_rate_factor(schedule: str, step: int, num_steps: int, milestones: tuple[int, ...] | None = None) -> float:
    """Compute the learning rate's factor at a step, as the parameter `schedule` describes it."""
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / num_steps))
    if schedule == "warmup_cosine":
        rising = max(1, round(WARM_UP_SHARE * num_steps))
        if step < rising:
            return (step + 1) / (rising + 1)
        return _ease(1.0, 0.0, (step - rising) / (num_steps - rising) if num_steps > rising else 1.0)
    if schedule == "one_cycle":
        top = ONE_CYCLE_RISE_SHARE * num_steps - 1
        if step <= top:
            return _ease(ONE_CYCLE_START_FACTOR, 1.0, step / top)
        return _ease(1.0, ONE_CYCLE_END_FACTOR, (step - top) / max(1.0, num_steps - 1 - top))
    if schedule == "step":
        return 0.1 ** (
            min(2, 3 * step // num_steps) if milestones is None else sum(step >= milestone for milestone in milestones)
        )
    return 1.0


def _ease(start: float, end: float, share: float) -> float:
    """Interpolate between two values along half a cosine wave."""
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))
