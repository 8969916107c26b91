"""Native steps: many steps of a pack's trials in one call of a kernel library.

Shapes: T trials, S steps, N samples, I input dimensions, G groups of weight decay, P parameters of one trial.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from depthrate.tasks.interface import SharedLibraries
from depthrate.tasks.native.build import load_library
from depthrate.tasks.native.library import Library
from depthrate.tasks.networks.network import Network
from depthrate.tasks.training.divergence import CHECK_STEPS, NEVER, Divergence
from depthrate.tasks.training.engines.native_call import NativeCall, Pace
from depthrate.tasks.training.training_plan import PolishPlan, TrainingPlan

NUMBERS = {torch.float32: "float", torch.float64: "double"}


def native_library(
    network: Network, plan: TrainingPlan, should_stop: Callable[[], bool], shared: SharedLibraries | None = None
) -> tuple[Library, float]:
    """Load the kernels that train a network. Also return the seconds spent building or waiting.

    Raises:
        EngineError: As `load_library`.
        Interrupted: As `load_library`.
    """
    return _library(network, {"NUMBER": NUMBERS[plan.dtype]}, should_stop, shared)


def smoothed_library(
    network: Network, polish: PolishPlan, should_stop: Callable[[], bool], shared: SharedLibraries | None = None
) -> tuple[Library, float]:
    """Load the kernels that polish a network, in float64 with smoothed kinks, as `native_library` does for training."""
    smoothing_kind = 2 if polish.to_stationary else 1
    return _library(network, {"NUMBER": NUMBERS[torch.float64], "SMOOTHED": smoothing_kind}, should_stop, shared)


def _library(
    network: Network, constants: dict[str, object], should_stop: Callable[[], bool], shared: SharedLibraries | None
) -> tuple[Library, float]:
    kernels = network.kernels()
    assert kernels is not None, "select_engine passes no other network"
    return load_library(kernels.family, {**constants, **kernels.constants}, should_stop, shared)


class StepState(NamedTuple):
    """Tensors [T, P] that steps update in place."""

    theta_TP: Tensor
    moment_TP: Tensor
    square_TP: Tensor | None
    """Mean of squares in Adam."""


class NativeSteps:
    """Runs a library's steps on tensors, in place."""

    def __init__(self, library: Library):
        self._library = library
        self._call: NativeCall | None = None
        self.pace = Pace()

    @property
    def is_bound(self) -> bool:
        """Whether tensors are bound."""
        return self._call is not None

    def bind(
        self,
        network: Network,
        plan: TrainingPlan,
        batch: int,
        state: StepState,
        x_NI: Tensor,
        labels_N: Tensor,
        momentum_T1: Tensor,
        decay_GT: Tensor,
    ) -> None:
        """Bind the tensors that steps read and update.

        Args:
            network: Network of all trials.
            plan: Training plan.
            batch: Samples per batch.
            state: Tensors updated in place.
            x_NI: Samples in the kernels' layout.
            labels_N: Classes.
            momentum_T1: Momentum of each trial.
            decay_GT: Weight decay of each of the kernels' groups.
        """
        self.pace = Pace()
        self._loss_T = momentum_T1.new_empty(len(momentum_T1))
        num_trials, num_parameters = state.theta_TP.shape
        self._call = NativeCall(
            self._library,
            network,
            plan.loss,
            x_NI,
            labels_N,
            num_trials=num_trials,
            num_parameters=num_parameters,
            batch=batch,
            is_adam=plan.optimizer == "adam",
            clip_norm=plan.clip_norm or 0.0,
            beta1=plan.adam_betas[0],
            beta2=plan.adam_betas[1],
            adam_eps=plan.adam_eps,
            look_every=CHECK_STEPS,
            theta_TP=state.theta_TP,
            first_TP=state.moment_TP,
            second_TP=state.square_TP,
            decay_GT=decay_GT,
            momentum_T=momentum_T1,
            loss_T=self._loss_T,
        )

    def release(self) -> None:
        """Release the bound tensors."""
        self._call = None

    def __call__(
        self,
        first_step: int,
        rate_ST1: Tensor,
        correction_S: Tensor,
        order_TN: Tensor | None,
        divergence: Divergence | None,
    ) -> Tensor:
        """Take one step per rate, and record divergence.

        Args:
            first_step: Number of the first step.
            rate_ST1: Learning rates.
            correction_S: Square roots of Adam's second bias correction.
            order_TN: Sample indices of each trial, from the next batch on. None: every batch is all samples.
            divergence: Record of diverged trials, None to skip it.

        Returns:
            Losses [T] of the last step, in a buffer that the next call overwrites.
        """
        assert self._call is not None
        num_steps = len(rate_ST1)
        self._call.set_fields(
            num_steps=num_steps,
            first_step=first_step,
            rate_ST=rate_ST1,
            correction_S=correction_S,
            order=None if order_TN is None else order_TN.data_ptr(),  # a slice of longer rows
            order_row=0 if order_TN is None else order_TN.stride(0),
            diverged_at_T=torch.full_like(self._loss_T, NEVER, dtype=torch.int64)
            if divergence is None
            else divergence.step_T,
        )
        self.pace.run(self._call, num_steps)
        return self._loss_T
