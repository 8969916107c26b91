"""Eager steps: every operation of a step is run by torch. A GPU replays the operations of a step.

A GPU executes most operations of a small network faster than the host launches them. They are recorded once as a CUDA graph and
then launched together. The graph holds the operations of the eager step on the same memory, so a replayed step gives the eager
step's numbers to the bit. Shapes: T trials, P parameters of one trial.
"""

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from depthrate.tasks.interface import Engine
from depthrate.tasks.networks.flat_parameters import join_rows
from depthrate.tasks.training.pack_state import Divergence, Steps
from depthrate.tasks.training.step import Moments, StepNumbers, clip_factor, gradients, optimise, subtract

log = logging.getLogger(__name__)

WARM_UP_STEPS = 3
"""Number of steps before the recording. In them libraries allocate their workspaces, which a recording must not do."""

TakeStep = Callable[..., Tensor]
"""Takes tensors, changes a trainer's state in place by one step, and returns the losses [T] before it."""


class ReplayedStep:
    """Takes steps of one function of tensors, first one operation at a time, then as a recording.

    The function's memory, except its arguments, must stay in place. It is not kept, because its owner keeps this object: a
    reference cycle would hold the memory of both until a garbage collection.
    """

    def __init__(self) -> None:
        self._stream = SideStream()
        self._steps_before_recording: float = WARM_UP_STEPS
        self._inputs: list[Tensor] = []
        self._replay: Callable[[], Tensor] | None = None

    def __call__(self, take: TakeStep, inputs: Sequence[Tensor]) -> Tensor:
        """Take a step with these arguments and return its losses [T]. Every call needs the same function and shapes."""
        if self._replay is None and self._steps_before_recording == 0:
            self._record(take, inputs)
        if self._replay is None:
            self._steps_before_recording -= 1
            return self._stream.run(partial(take, *inputs))
        for kept, given in zip(self._inputs, inputs, strict=True):
            kept.copy_(given)
        return self._replay().clone()

    def _record(self, take: TakeStep, inputs: Sequence[Tensor]) -> None:
        """Record the step, unless it cannot be recorded because the host reads one of its numbers."""
        self._inputs = [tensor.clone() for tensor in inputs]
        try:
            self._replay = self._stream.record(partial(take, *self._inputs))
        except torch.OutOfMemoryError:  # the pack is split, as if an eager step had run out of memory
            raise
        except RuntimeError as error:
            log.warning("steps are launched one operation at a time, because they cannot be recorded: %s", error)
            self._inputs, self._steps_before_recording = [], math.inf


class SideStream:
    """A stream beside the default one, as a recording needs it."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def run(self, function: Callable[[], Tensor]) -> Tensor:
        """Run a function. Work before and after it waits for it as if it ran on the default stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = function()
        torch.cuda.current_stream().wait_stream(self._stream)
        return result

    def after_now(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return a function for another thread that runs `function` after the work launched until now, and not later work."""
        self._stream.wait_stream(torch.cuda.current_stream())

        def run() -> None:
            with torch.cuda.stream(self._stream):
                function()

        return run

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record a function's operations without executing them. Return a function that executes them."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            result = function()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


class TorchSteps(Steps):
    """Steps as a function of tensors, run by torch. A GPU replays them as a CUDA graph."""

    engine = Engine.EAGER

    def prepare(self) -> None:
        self._replayed = ReplayedStep() if self.trainer.device.type == "cuda" else None

    def step(self, max_steps: int, divergence: Divergence | None) -> Tensor:
        inputs = self.inputs()
        loss_T = self.take(*inputs) if self._replayed is None else self._replayed(self.take, inputs)
        self.trainer.step_count += 1
        return loss_T

    @abstractmethod
    def inputs(self) -> Sequence[Tensor]:
        """Return the tensors that differ between steps: the batch, and numbers that follow a schedule."""

    @abstractmethod
    def take(self, *inputs: Tensor) -> Tensor:
        """Update the trainer's tensors in place by one step. Return the losses [T] before it."""

    def release(self) -> None:
        super().release()
        self._replayed = None


class EagerSteps(TorchSteps):
    """Takes steps with autograd, updating the parameters of all trials as one tensor."""

    def prepare(self) -> None:
        """Allocate buffers once, since the page faults of new buffers of this size would cost more than the arithmetic."""
        super().prepare()
        self._gradient_TP, self._scratch_TP = (torch.empty_like(self.trainer.theta_TP) for _ in range(2))

    def inputs(self) -> Sequence[Tensor]:
        """Return learning rates [T, 1], rate and correction of `StepNumbers`, and the batch unless it is the training set."""
        trainer = self.trainer
        numbers = trainer.rates.learning_rates(trainer.step_count), *trainer.rates.at(trainer.step_count)
        return numbers if trainer.shares_batches else (*numbers, *trainer.next_batch())

    def take(self, *inputs: Tensor) -> Tensor:
        trainer, plan = self.trainer, self.trainer.plan
        learning_rate_T1, rate_T1, correction, *batch = inputs
        x_TBI, labels_TB = batch if batch else trainer.expand(trainer.x_NI, trainer.labels_N)
        loss_T, pieces, untrained = gradients(
            trainer.network, plan, trainer.parameters(), x_TBI, labels_TB, trainer.untrained
        )
        with torch.no_grad():
            for name, tensor in untrained.items():
                trainer.untrained[name].copy_(tensor)
            gradient_TP, scratch_TP = self._gradient_TP, self._scratch_TP
            join_rows(pieces, out=gradient_TP)
            if plan.decays_by_gradient:
                gradient_TP += torch.mul(trainer.decay_TP, trainer.theta_TP, out=scratch_TP)
            if plan.clip_norm is not None:
                squares_T1 = torch.mul(gradient_TP, gradient_TP, out=scratch_TP).sum(1, keepdim=True)
                gradient_TP *= clip_factor(plan.clip_norm, squares_T1)
            if not plan.decays_by_gradient:
                shrunk_TP = torch.mul(trainer.decay_TP, trainer.theta_TP, out=scratch_TP)
                subtract(trainer.theta_TP, shrunk_TP.mul_(learning_rate_T1), trainer.rate_factor_P)
            moments = Moments(trainer.moment_TP, trainer.square_TP)
            numbers = StepNumbers(trainer.momentum_T1, rate_T1, correction, trainer.eps, trainer.rate_factor_P)
            optimise(plan, trainer.theta_TP, moments, gradient_TP, numbers, scratch_TP)
        return loss_T
