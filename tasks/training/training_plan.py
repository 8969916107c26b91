"""What a pack's training is told: what its trials share, and what may differ between them. Importable without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

WARM_UP_SHARE = 0.05
"""Share of the steps over which the schedule `warmup_cosine` rises."""
RISE, START, END = 0.3, 1 / 25, 1 / 250_000
"""Of the schedule `one_cycle`: the share of the steps that rise, and the factors that it begins and ends with."""
ENGINE_OPTIMIZERS = ("sgd", "adam")
"""Optimisers that native and compiled steps have; the others train eagerly."""
EVALUATION_ROWS = 8192
"""Rows (samples x positions) evaluated at once: a bound on memory, and the same for every pack so that sums round alike."""
EVALUATION_OUTPUTS = 2**21
"""Numbers that a network gives for the rows evaluated at once, where each row has an output: a vocabulary may be large."""


def order_bytes(num_samples: int) -> int:
    """Return what the order of a pass over so many streamed samples takes."""
    return num_samples * (4 if num_samples < 2**31 else 8)


@dataclass(frozen=True)
class Hyperparameters:
    """What may differ between the trials of a pack."""

    seed: int
    lr: float
    momentum: float
    weight_decays: Mapping[str, float]
    """Decay group (as the network names them) -> lambda of (lambda/2)||theta||^2."""
    fixed_seed: int = 0
    """Seed of the parameters that stay as drawn."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What all trials of a pack share."""

    loss: str
    optimizer: str
    schedule: str
    num_steps: int
    batch_size: int | None
    init: str
    clip_norm: float | None
    dtype: torch.dtype
    matmul_precision: str = "full"
    """Of the matrix products of training steps: full (dtype's own), tf32 or bf16."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = 1e-8
    rms_alpha: float = 0.99
    """Of RMSprop: what its mean of squares keeps in a step."""
    label_smoothing: float = 0.0
    """e of cross-entropy with (1 - e) of the label's one-hot row and e / K of each class."""
    milestones: tuple[int, ...] | None = None
    """Steps at which the schedule `step` divides the learning rate by 10; null: at 1/3 and 2/3."""

    @property
    def keeps_squares(self) -> bool:
        """Whether its optimiser keeps a mean of squares beside its first moment."""
        return self.optimizer != "sgd"

    @property
    def corrects_bias(self) -> bool:
        """Whether its optimiser is Adam in one of its forms."""
        return self.optimizer in ("adam", "adamw")

    @property
    def decays_by_gradient(self) -> bool:
        """Whether weight decay is a term of the gradient, as it is one of the objective."""
        return self.optimizer != "adamw"


@dataclass(frozen=True, kw_only=True)
class PolishPlan:
    """How trials are brought towards a stationary point after training."""

    num_evaluations: int
    """Most evaluations of a trial's objective and gradient."""
    tolerance: float
    """A gradient norm at which a trial is done with a smoothing width."""
    smoothing: Sequence[float]
    """Widths over which the kinks of ReLU are rounded off, in turn; each has an equal share of the evaluations."""
    memory: int
    """Pairs that L-BFGS remembers."""
    barrier: float
    """b of b mean(v / v_i) on the variances v_i before the first LayerNorm."""
    to_stationary: bool = False
    """Whether a trial goes on until its gradient is `tolerance` times its objective, and ends there; else it ends at its lowest
    point."""
    newton: bool = False
    """Whether at the last width Newton's method takes over from L-BFGS, near the end."""


def evaluation_rows(outputs_a_row: int = 0) -> int:
    """Return the rows evaluated at once, where each has so many outputs or, by default, a sample's rows share theirs."""
    return min(EVALUATION_ROWS, EVALUATION_OUTPUTS // outputs_a_row) if outputs_a_row else EVALUATION_ROWS


def learning_rate_factor(schedule: str, step: int, num_steps: int, milestones: tuple[int, ...] | None = None) -> float:
    """Return the factor on the learning rate at a step, which the parameter `schedule` says in words."""
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / num_steps))
    if schedule == "warmup_cosine":
        rising = max(1, round(WARM_UP_SHARE * num_steps))
        if step < rising:
            return (step + 1) / (rising + 1)
        return _ease(1.0, 0.0, (step - rising) / (num_steps - rising) if num_steps > rising else 1.0)
    if schedule == "one_cycle":
        top = RISE * num_steps - 1
        if step <= top:
            return _ease(START, 1.0, step / top)
        return _ease(1.0, END, (step - top) / max(1.0, num_steps - 1 - top))
    if schedule == "step":
        return 0.1 ** (
            min(2, 3 * step // num_steps) if milestones is None else sum(step >= milestone for milestone in milestones)
        )
    return 1.0


def _ease(start: float, end: float, share: float) -> float:
    """Return a value on the way from one to another, half a wave of the cosine."""
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))
