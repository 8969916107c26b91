"""Fused training: T trials of one shape advance together, and each gets the same results as if it ran alone.

On the CPU with one thread, a trial's numbers are bitwise independent of its pack, with every engine. This relies on three
rules: matrix products are batched over T (never merged), reductions never cross the trial axis, and the update consists of
single elementwise operations (see `step.py`, and `engines/native.py` for native steps).

Shapes: T trials, N samples, B batch, I input dimensions, K classes, P parameters of one trial.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.native.library import Library
from depthrate.tasks.networks.flat_parameters import gradients_of, join_rows, leaves_of, products_of, split_parameters
from depthrate.tasks.networks.network import Tensors
from depthrate.tasks.training.engines.eager import EagerSteps
from depthrate.tasks.training.engines.native import NativeEvaluation, NativeSteps
from depthrate.tasks.training.pack_state import MakeSteps, PackState, Steps
from depthrate.tasks.training.step import losses
from depthrate.tasks.training.training_plan import evaluation_rows


class FusedTrainer(PackState):
    """Trains and evaluates T networks of one shape on one data set."""

    _native_evaluation: NativeEvaluation | None = None

    def use(self, make_steps: MakeSteps) -> None:
        """Switch from eager steps to another engine's.

        Raises:
            EngineError: The first trial's first step differs from the eager one by more than rounding.
        """
        check_first_step(self, make_steps)
        self._steps = make_steps(self)

    def use_native(self, library: Library) -> None:
        """Switch to native steps, and to native evaluation if the kernels support it.

        Raises:
            EngineError: As `use`.
        """
        if any(bool((t != t[:1]).any()) for t in self.untrained.values() if not t.is_floating_point()):
            raise EngineError("trials have different integer buffers, which generated kernels cannot have")
        self.use(partial(NativeSteps, library=library))
        if self.kernels.evaluates:
            self._native_evaluation = NativeEvaluation(library, self.kernels, self.plan, self.x_NI, self.labels_N)

    def eager_steps(self) -> Steps:
        return EagerSteps(self)

    def evaluate(self) -> dict[str, Tensor]:
        """Compute loss, objective, accuracy and the objective's gradient norm over the whole training set, or the measured part
        of a streamed one, [T] in float64 each."""
        native = self._native_evaluation
        loss_T, correct_T, gradient_TP = (
            self._losses_and_gradients() if native is None else native(self.theta_TP, self.native_state())
        )
        theta_TP, decay_TP = self.theta_TP.double(), self.decay_TP.double()
        gradient_TP += decay_TP * theta_TP
        objective_T = loss_T + (decay_TP * theta_TP.square()).sum(1) / 2
        accuracy_T, norm_T = correct_T / len(self.x_NI), gradient_TP.square().sum(1).sqrt()
        return {"loss": loss_T, "objective": objective_T, "accuracy": accuracy_T, "grad_norm": norm_T}

    def _losses_and_gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Compute loss [T], correct samples [T] and the loss's gradient [T, P] over the whole training set."""
        leaves = leaves_of(self.parameters(), self.network.fixed_parameters)
        loss_T = torch.zeros(self.num_trials, dtype=torch.float64, device=self.device)
        correct_T = torch.zeros_like(loss_T)
        gradient_TP = torch.zeros_like(self.theta_TP, dtype=torch.float64)
        for x_TBI, labels_TB in self._chunks():
            logits_TBK = self.network.logits(leaves, x_TBI, self.untrained)
            weight = x_TBI.shape[1] / len(self.x_NI)
            chunk_loss_T = self._losses(logits_TBK, labels_TB) * weight
            pieces = gradients_of(chunk_loss_T.sum(), leaves, some_unused=self.network.may_skip_parameters)
            gradient_TP += join_rows(pieces)
            loss_T += chunk_loss_T.detach().double()
            correct_T += self.num_correct(logits_TBK.detach(), labels_TB)
        return loss_T, correct_T, gradient_TP

    def hessian_product(self, first: int, direction_TP: Tensor) -> Tensor:
        """Multiply the Hessian of the objective of `evaluate` by a direction per trial, for consecutive trials, [T, P].

        It is the Hessian with respect to the trained parameters: directions are 0 elsewhere. The second derivative of a ReLU
        counts as 0.
        """
        trials = slice(first, first + len(direction_TP))
        parameters, untrained = self._state_of_trials(trials)
        leaves = leaves_of(parameters, self.network.fixed_parameters)
        directions = split_parameters(direction_TP, self.specs)
        product_TP = self.decay_TP[trials] * direction_TP
        for x_TBI, labels_TB in self._chunks(len(direction_TP)):
            loss_T = self._losses(self.network.logits(leaves, x_TBI, untrained), labels_TB)
            pieces = products_of(loss_T.sum() * (x_TBI.shape[1] / len(self.x_NI)), leaves, directions)
            product_TP += join_rows(pieces)
        return product_TP

    def _chunks(self, num_trials: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        size = self.samples_per_evaluation()
        for x_NI, labels_N in zip(torch.split(self.x_NI, size), torch.split(self.labels_N, size), strict=True):
            yield self.expand(x_NI, labels_N, num_trials)

    def _losses(self, logits_TBK: Tensor, labels_TB: Tensor) -> Tensor:
        return losses(self.plan.loss, logits_TBK, labels_TB, self.plan.label_smoothing)

    def num_correct(self, logits_TBK: Tensor, labels_TB: Tensor) -> Tensor:
        """Count the correctly classified samples, [T] in float64."""
        return (logits_TBK.argmax(-1) == labels_TB).double().sum(1)

    def on_samples(self, x_NI: Tensor, labels_N: Tensor) -> FusedTrainer:
        """Return a copy of this trainer on other samples, for evaluation and measurement but not for training."""
        other = copy.copy(self)
        other.x_NI, other.labels_N, other._native_evaluation = x_NI, labels_N, None
        return other

    def snapshot(self) -> FusedTrainer:
        """Return a copy for measurement whose parameters stay as they are now while kernels train this one."""
        other = copy.copy(self)
        other.theta_TP = self.theta_TP.clone()
        return other

    def scores(self) -> dict[str, Tensor]:
        """Compute loss and accuracy over all samples without gradients, [T] in float64 each."""
        parameters = self.parameters()
        loss_T = torch.zeros(self.num_trials, dtype=torch.float64, device=self.device)
        correct_T = torch.zeros_like(loss_T)
        with torch.no_grad():
            for x_TBI, labels_TB in self._chunks():
                logits_TBK = self.network.logits(parameters, x_TBI, self.untrained)
                loss_T += self._losses(logits_TBK, labels_TB).double() * x_TBI.shape[1]
                correct_T += self.num_correct(logits_TBK, labels_TB)
        return {"loss": loss_T / len(self.x_NI), "accuracy": correct_T / len(self.x_NI)}

    def features(self, first: int, num_trials: int = 1) -> Iterator[Tensor]:
        """Yield the features [T, N, *shape] of consecutive trials layer by layer, in the training dtype.

        A network with several rows per sample runs in chunks of samples, because its activations are larger than its features.
        """
        trials = slice(first, first + num_trials)
        if self._native_evaluation is not None and self._native_evaluation.can_hold_layers:
            yield from self._native_evaluation.layers(self.theta_TP[trials])
            return
        parameters, untrained = self._state_of_trials(trials)
        x_TNI = self.x_NI.expand(num_trials, *self.x_NI.shape)
        with torch.no_grad():
            if self.network.rows_per_sample == 1:
                yield from self.network.features(parameters, x_TNI, untrained)
                return
            chunk_size = self.samples_per_evaluation()
            inputs = [x_TNI[:, start : start + chunk_size] for start in range(0, x_TNI.shape[1], chunk_size)]
            parts: list[Iterable[Tensor]] = [self.network.features(parameters, part, untrained) for part in inputs]
            if not self.network.holds_only_features:
                parts = [list(part) for part in parts]
            yield from (torch.cat(layer, dim=1) for layer in zip(*parts, strict=True))

    def last_weights(self) -> Tensor | None:
        """Compute the weight of each trial's last linear map [T, K, D], or return None without one."""
        with torch.no_grad():
            return self.network.last_weights(self.parameters(), self.untrained, self.x_NI)

    def outputs(self, trial: int) -> Tensor:
        """Compute the outputs [1, N, ...] of one trial for all samples at once, without gradients."""
        parameters, untrained = self._state_of_trials(slice(trial, trial + 1))
        with torch.no_grad():
            return self.network.logits(parameters, self.x_NI.unsqueeze(0), untrained)

    def _state_of_trials(self, trials: slice) -> tuple[Tensors, Tensors]:
        """Return parameters and untrained state of some trials, [T, ...] each."""
        untrained = {name: tensor[trials] for name, tensor in self.untrained.items()}
        return {name: p[trials] for name, p in self.parameters().items()}, untrained

    def smallest_variance(self, trial: int) -> float | None:
        """Return the smallest variance of any LayerNorm input row in one trial, or None if the kernels cannot compute it."""
        native = self._native_evaluation
        if native is None or not native.gives_layers:
            return None
        return native.smallest_variance(self.theta_TP[trial : trial + 1])

    def samples_per_evaluation(self) -> int:
        """Return the number of samples evaluated at a time. It is the same for every pack, so that sums round identically."""
        return max(1, evaluation_rows() // self.network.rows_per_sample)


CHECKED_STARTS = 2
"""Number of starts at which another engine's first step has to be as exact as the eager one."""
MAX_CHECKED_STARTS = 12
"""Maximum number of starts that are tried for it. Among millions of values one may be so close to ReLU's kink that rounding
decides on which side it lies, and thus a sample's contribution to the gradient. If a start is an optimum, its gradient consists
of rounding errors only. Both occur at individual starts, whereas a fault occurs at every start."""
START_NOISE = 0.01
"""Relative noise on the parameters of all starts but the first."""
MAX_ERROR_RATIO = 2
"""Maximum error of another engine's first step against float64, relative to the eager step's error."""
MIN_ERROR = {torch.float32: 1e-6, torch.float64: 1e-9}
"""Relative errors of a loss or a gradient that always count as rounding."""


def check_first_step(trainer: PackState, make_steps: MakeSteps) -> None:
    """Check that an engine's first step on the first trial is as close to float64 as the eager step. The trainer is left
    unchanged.

    Raises:
        EngineError: The loss or the gradient differs by more than rounding error from all but at most one starting point.
    """
    passed = 0
    for start in range(MAX_CHECKED_STARTS):
        eager, other = (_first_trial(trainer, start) for _ in range(2))
        steps, exact = make_steps(other), _first_trial(trainer, start).to_float64()
        losses_T = torch.stack([eager.step(), steps.advance(1, None), exact.step()]).double().squeeze(1)
        gradients = torch.stack(
            [g.double() for g in (eager.first_gradient(), steps.gradient(), exact.first_gradient())]
        )
        least = MIN_ERROR[trainer.plan.dtype]
        passed += _is_as_exact(losses_T, least) and _is_as_exact(gradients, least)
        if passed == CHECKED_STARTS:
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


def _is_as_exact(numbers: Tensor, least: float) -> bool:
    """Return whether the second of three rows is about as close to the third, exact one as the first, or overflows as it does.

    In a network of hundreds of layers, rounding alone changes both by more than a fault might.
    """
    eager, other, exact = numbers
    if not eager.isfinite().all():
        return torch.equal(eager.isfinite(), other.isfinite())
    eager_error, error = (eager - exact).norm(), (other - exact).norm()
    return bool(error <= MAX_ERROR_RATIO * eager_error + least * exact.norm())
