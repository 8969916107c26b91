"""The objective of `smoothed_objective.py` computed by kernels, which treat all trials in one call but independently.

Shapes: T trials, P parameters of one trial.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from depthrate.tasks.native.library import Library
from depthrate.tasks.training.engines.choice import EngineError
from depthrate.tasks.training.engines.native_call import NativeCall
from depthrate.tasks.training.polish.smoothed_objective import SmoothedObjective
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import PolishPlan

CHECK_RTOL = 1e-5
"""Relative tolerance of the first value and gradient (by norm) against the eager ones, far above rounding."""


class NativeObjective:
    """Smoothed objective of T trials with its gradient, for networks whose kernels support it."""

    def __init__(self, library: Library, trainer: FusedTrainer, polish: PolishPlan):
        """Bind a float64 trainer, and check against the eager objective at the first smoothing width.

        Raises:
            EngineError: The first trial's value or gradient differs from the eager one by more than rounding.
        """
        self._decay_TP = trainer.decay_TP
        self._call = NativeCall(
            library,
            trainer.network,
            trainer.plan.loss,
            trainer.x_NI,
            trainer.labels_N,
            num_parameters=trainer.theta_TP.shape[1],
            barrier=polish.barrier,
            gradient_TP=trainer.theta_TP,  # a placeholder, so that scratch memory for a gradient is allocated
        )
        inputs = [0], trainer.theta_TP[:1], polish.smoothing[:1]
        (value_1, gradient_1P), (eager_1, eager_1P) = self(*inputs), SmoothedObjective(trainer, polish)(*inputs)
        errors = (value_1 - eager_1).abs() / eager_1.abs(), (gradient_1P - eager_1P).norm() / eager_1P.norm()
        if not all(error <= CHECK_RTOL or error.isnan() for error in errors):
            raise EngineError(
                f"native polish of {type(trainer.network).__name__} has objective {value_1.item():.10g} and eager polish "
                f"{eager_1.item():.10g}, or their gradients differ. Train with --engine eager, and report this."
            )

    def __call__(self, trials: Sequence[int], theta_TP: Tensor, widths: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Compute values [T] and gradients [T, P] of these trials at these parameters and smoothing widths."""
        gradient_TP, loss_T = torch.empty_like(theta_TP), theta_TP.new_empty(len(theta_TP))
        self._call.set_fields(
            num_trials=len(theta_TP),
            theta_TP=theta_TP.contiguous(),
            gradient_TP=gradient_TP,
            loss_T=loss_T,
            smoothing_T=theta_TP.new_tensor(widths),
        )
        self._call.run()
        decay_TP = self._decay_TP if len(trials) == len(self._decay_TP) else self._decay_TP[list(trials)]
        pull_TP = decay_TP * theta_TP
        gradient_TP += pull_TP
        return loss_T + pull_TP.mul_(theta_TP).sum(1) / 2, gradient_TP
