"""What polish minimises, by kernels: as `smoothed_objective.py` has it, each trial alone in one call.

Shapes: T trials, P parameters of one trial.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from depthrate.tasks.native.library import Call, Library
from depthrate.tasks.training.engine import EngineError
from depthrate.tasks.training.plan import PolishPlan
from depthrate.tasks.training.smoothed_objective import SmoothedObjective
from depthrate.tasks.training.trainer import FusedTrainer

CHECK_RTOL = 1e-5
"""What a value or a gradient, by its norm, may differ from the eager one when it is first formed: far more than rounding."""


class NativeObjective:
    """The smoothed objective of T trials with its gradient, of networks whose kernels can form it."""

    def __init__(self, library: Library, trainer: FusedTrainer, polish: PolishPlan):
        """Take a trainer in float64, and compare with what is formed eagerly, at the first smoothing width.

        Raises:
            EngineError: value or gradient of the first trial are not the eager ones, but for rounding.
        """
        kernels = trainer.network.kernels()
        assert kernels is not None and kernels.can_smooth
        self._library, self._decay_TP = library, trainer.decay_TP
        self._x_NI, self._labels_N = trainer.x_NI.contiguous(), trainer.labels_N.contiguous()
        self._call = Call(
            num_parameters=trainer.theta_TP.shape[1],
            batch=len(self._x_NI),
            is_mse=trainer.plan.loss == "mse",
            barrier=polish.barrier,
            x_NI=self._x_NI.data_ptr(),
            labels_N=self._labels_N.data_ptr(),
            gradient_TP=trainer.theta_TP.data_ptr(),  # that there is one: room is taken for it
            **kernels.arguments,
        )
        self._scratch = torch.zeros(library.scratch_bytes(self._call), dtype=torch.uint8)
        self._call.scratch = self._scratch.data_ptr()
        given = [0], trainer.theta_TP[:1], polish.smoothing[:1]
        (value_1, gradient_1P), (eager_1, eager_1P) = self(*given), SmoothedObjective(trainer, polish)(*given)
        off = (value_1 - eager_1).abs() / eager_1.abs(), (gradient_1P - eager_1P).norm() / eager_1P.norm()
        if not all(share <= CHECK_RTOL or share.isnan() for share in off):
            raise EngineError(
                f"native polish of {type(trainer.network).__name__} gives objective {value_1.item():.10g} where the eager one "
                f"gives {eager_1.item():.10g}, or another gradient; train with --engine eager, and report this"
            )

    def __call__(self, trials: Sequence[int], theta_TP: Tensor, widths: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Return the values [T] and gradients [T, P] of these trials at these parameters, with these smoothing widths."""
        call, theta_TP = self._call, theta_TP.contiguous()
        gradient_TP, loss_T, width_T = (
            torch.empty_like(theta_TP),
            theta_TP.new_empty(len(theta_TP)),
            theta_TP.new_tensor(widths),
        )
        call.num_trials, call.theta_TP, call.gradient_TP = len(theta_TP), theta_TP.data_ptr(), gradient_TP.data_ptr()
        call.loss_T, call.smoothing_T = loss_T.data_ptr(), width_T.data_ptr()
        self._library.run(call)
        decay_TP = self._decay_TP if len(trials) == len(self._decay_TP) else self._decay_TP[list(trials)]
        pull_TP = decay_TP * theta_TP
        gradient_TP += pull_TP
        return loss_T + pull_TP.mul_(theta_TP).sum(1) / 2, gradient_TP
