"""Check of an engine's first step against the eager one. Shapes: T trials, P parameters of one trial."""

import torch
from torch import Tensor

from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.training.pack_state import MakeSteps, PackState

STEP_RTOL = 1e-3
"""Relative tolerance between another engine's first step and the eager one: far above rounding errors, and far below the error
of a fault."""
MAX_CHECKED_STARTS = 12
"""Maximum number of starts from which another engine's first step is checked before the engine is rejected. Among millions of
values one may be so close to ReLU's kink that rounding decides on which side it lies, and thus a sample's contribution to the
gradient. If a start is an optimum, its gradient consists of rounding errors only. Both occur at individual starts, whereas a
fault occurs at every start."""
START_NOISE = 0.01
"""Relative noise on the parameters of all starts but the first."""
MAX_ERROR_RATIO = 30
"""Maximum error of another engine's first step against float64, relative to the eager step's error."""


def check_first_step(trainer: PackState, make_steps: MakeSteps) -> None:
    """Check an engine's first step on the first trial against the eager step. The trainer is left unchanged.

    Raises:
        EngineError: The loss or the gradient differs by more than rounding error from every starting point.
    """
    for start in range(MAX_CHECKED_STARTS):
        eager, other = (_first_trial(trainer, start) for _ in range(2))
        steps = make_steps(other)
        losses_T = torch.stack([eager.step(), steps.advance(1, None)])
        gradients = eager.first_gradient(), steps.gradient()
        exact = _first_trial(trainer, start).to_float64
        if _agree(losses_T, *gradients) or _is_as_exact(exact(), losses_T, *gradients):
            return
    raise EngineError(
        f"the {steps.engine} step of {type(trainer.network).__name__} has loss {losses_T[1].item():.6g} and the eager step "
        f"{losses_T[0].item():.6g}, or their gradients differ. Train with --engine eager, and report this."
    )


def _first_trial(trainer: PackState, start: int) -> PackState:
    """Return a trainer of the first trial before its first step, with noise on its parameters if `start` > 0."""
    first = trainer.restart(1, trainer.plan, torch.Tensor.clone)
    if start:
        noise = torch.randn(first.theta_TP.shape, generator=torch.Generator().manual_seed(start))
        first.theta_TP *= 1 + START_NOISE * noise.to(first.theta_TP)
    return first


def _agree(losses_T: Tensor, eager_TP: Tensor, other_TP: Tensor) -> bool:
    """Return whether losses and gradients agree within the tolerance of each number or of the largest. NaN equals NaN."""
    rtol, largest = STEP_RTOL, eager_TP.abs().where(eager_TP.isfinite(), 0.0).max().item()
    return torch.allclose(eager_TP, other_TP, rtol=rtol, atol=rtol * largest, equal_nan=True) and torch.allclose(
        losses_T[0], losses_T[1], rtol=rtol, equal_nan=True
    )


def _is_as_exact(exact: PackState, losses_T: Tensor, eager_TP: Tensor, other_TP: Tensor) -> bool:
    """Return whether another engine's first step is about as close to float64 as the eager step, in loss and gradient.

    In a network of hundreds of layers, rounding alone changes both by more than a fault might.
    """
    loss = exact.step()
    eager_error, other_error = ((g_TP.double() - exact.first_gradient()).norm() for g_TP in (eager_TP, other_TP))
    eager_loss_error, other_loss_error = (losses_T.double().squeeze(1) - loss).abs()
    return bool(
        other_error <= MAX_ERROR_RATIO * eager_error
        and other_loss_error <= MAX_ERROR_RATIO * eager_loss_error + STEP_RTOL
    )
