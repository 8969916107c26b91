"""What a pack's training is told: what its trials share, and what may differ between them. Importable without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

EVALUATION_ROWS = 8192
"""Rows (samples x positions) evaluated at once: a bound on memory, and the same for every pack so that sums round alike."""


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
    milestones: tuple[int, ...] | None = None
    """Steps at which the schedule `step` divides the learning rate by 10; null: at 1/3 and 2/3."""


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


def learning_rate_factor(schedule: str, step: int, num_steps: int, milestones: tuple[int, ...] | None = None) -> float:
    """Return the factor on the learning rate at a step: cosine falls to 0; step divides by 10 at milestones, or 1/3 and 2/3."""
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / num_steps))
    if schedule == "step":
        return 0.1 ** (
            min(2, 3 * step // num_steps) if milestones is None else sum(step >= milestone for milestone in milestones)
        )
    return 1.0
