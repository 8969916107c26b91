"""The objective of polish: smoothed, of T trials over the whole training set, with its gradient, by torch or kernels.

On a CPU each trial's value and gradient are bitwise equal to a run of the trial alone, because nothing is summed across trials.
Shapes: T trials, N samples, B samples of a chunk, I input dimensions, K classes, P parameters of one trial.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.native.library import Library
from depthrate.tasks.networks.flat_parameters import gradients_of, join_rows, leaves_of, split_parameters
from depthrate.tasks.networks.network import Tensors
from depthrate.tasks.networks.smooth_relu import parabola, root
from depthrate.tasks.training.engines.native_call import NativeCall
from depthrate.tasks.training.step import losses
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import EVALUATION_ROWS, PolishPlan

Objective = Callable[[Sequence[int], Tensor, Sequence[float]], tuple[Tensor, Tensor]]
"""Computes values [T] and gradients [T, P] of trials, at parameters [T, P] and smoothing widths."""


class SmoothedObjective:
    """Data term, weight decay and barrier, with every ReLU's kink smoothed over a width per trial.

    The barrier is b mean_i(v / v_i) with v_i the variance before the first LayerNorm at sample i and v their mean. The
    objective does not depend on the scale of W_0, and without the barrier the variance of a single sample could go to zero,
    where LayerNorm is singular. Scaling W_0 and b_0 together changes neither LayerNorm nor the barrier.
    """

    def __init__(self, trainer: FusedTrainer, polish: PolishPlan):
        """Use a trainer's network, weight decay, untrained state and data, and the plan's smoothing and barrier."""
        self._smooth_relu = root if polish.to_stationary else parabola
        self._network, self._specs, self._loss = trainer.network, trainer.specs, trainer.plan.loss
        self._x_NI, self._labels_N = trainer.x_NI, trainer.labels_N
        self._decay_TP, self._barrier = trainer.decay_TP, polish.barrier
        self._trainer = trainer  # its untrained state is read at each call, because a checkpoint may replace it

    def __call__(self, trials: Sequence[int], theta_TP: Tensor, widths: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Compute values [T] and gradients [T, P] of these trials at these parameters and smoothing widths."""
        width_T11 = theta_TP.new_tensor(widths).view(-1, 1, 1)
        network = self._network.with_relu(self._smooth_relu(width_T11))
        leaves = leaves_of(split_parameters(theta_TP, self._specs), network.fixed_parameters)
        index = list(trials)
        decay_TP = self._decay_TP if len(index) == len(self._decay_TP) else self._decay_TP[index]
        untrained = {name: tensor[index] for name, tensor in self._trainer.untrained.items()}
        gradient_TP = decay_TP * theta_TP
        value_T = (gradient_TP * theta_TP).sum(1) / 2
        num_samples = len(self._x_NI)
        chunk = max(1, EVALUATION_ROWS // network.rows_per_sample)
        for start in range(0, num_samples, chunk):
            x_TBI, labels_TB = self._share_samples(slice(start, start + chunk), len(trials))
            logits_TBK = network.logits(leaves, x_TBI, untrained)
            loss_T = losses(self._loss, logits_TBK, labels_TB) * (x_TBI.shape[1] / num_samples)
            self._add_term(loss_T, leaves, value_T, gradient_TP)
        if self._barrier:
            first = next(network.norm_inputs(leaves, self._share_samples(slice(None), len(trials))[0]), None)
            if first is not None:
                self._add_term(self._barrier * _variance_ratio(first), leaves, value_T, gradient_TP)
        return value_T, gradient_TP

    def _add_term(self, term_T: Tensor, leaves: Tensors, value_T: Tensor, gradient_TP: Tensor) -> None:
        if term_T.requires_grad:  # the barrier of an untrained embedding is a constant
            gradients = gradients_of(term_T.sum(), leaves, some_unused=True)
            gradient_TP += join_rows(gradients)
        value_T += term_T.detach()

    def _share_samples(self, rows: slice, num_trials: int) -> tuple[Tensor, Tensor]:
        x_NI, labels_N = self._x_NI[rows], self._labels_N[rows]
        return x_NI.expand(num_trials, *x_NI.shape), labels_N.expand(num_trials, len(labels_N))


def _variance_ratio(x_TND: Tensor) -> Tensor:
    """Compute the mean [T] over samples of v / v_i, v_i a sample's variance over the last axis and v their mean, >= 1."""
    variance_TN = x_TND.var(-1, correction=0).flatten(1)
    return variance_TN.mean(1) * variance_TN.reciprocal().mean(1)


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
            trainer.kernels,
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
