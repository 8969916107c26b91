"""Native steps: many steps of a pack's trials in one call of a kernel library.

Shapes: T trials, S steps, N samples, I input dimensions, G groups of weight decay, P parameters of one trial.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from depthrate.tasks.interface import Engine, SharedLibraries
from depthrate.tasks.native.build import NUMBERS, load_library
from depthrate.tasks.native.library import Library
from depthrate.tasks.networks.network import Network
from depthrate.tasks.training.divergence import CHECK_STEPS, NEVER, Divergence
from depthrate.tasks.training.engines.native_call import NativeCall, Pace
from depthrate.tasks.training.pack_state import PackState, Steps
from depthrate.tasks.training.training_plan import PolishPlan, TrainingPlan


def native_library(
    network: Network, plan: TrainingPlan, should_stop: Callable[[], bool], shared: SharedLibraries | None = None
) -> tuple[Library, float]:
    """Load the kernels that train a network. Also return the seconds spent building or waiting.

    Raises:
        EngineError: As `load_library`.
        Interrupted: As `load_library`.
    """
    return _library(network, {"NUMBER": NUMBERS[str(plan.dtype).removeprefix("torch.")]}, should_stop, shared)


def smoothed_library(
    network: Network, polish: PolishPlan, should_stop: Callable[[], bool], shared: SharedLibraries | None = None
) -> tuple[Library, float]:
    """Load the kernels that polish a network, in float64 with smoothed kinks, as `native_library` does for training."""
    smoothing_kind = 2 if polish.to_stationary else 1
    return _library(network, {"NUMBER": NUMBERS["float64"], "SMOOTHED": smoothing_kind}, should_stop, shared)


def _library(
    network: Network, constants: dict[str, object], should_stop: Callable[[], bool], shared: SharedLibraries | None
) -> tuple[Library, float]:
    kernels = network.kernels()
    assert kernels is not None, "select_engine passes no other network"
    return load_library(kernels.family, {**constants, **kernels.constants}, should_stop, shared)


class NativeSteps(Steps):
    """Takes many steps in one call of a library, within one epoch."""

    engine = Engine.NATIVE
    records_divergence = True

    def __init__(self, trainer: PackState, library: Library):
        super().__init__(trainer)
        self._library, self.pace = library, Pace()
        self._call: NativeCall | None = None

    def prepare(self) -> None:
        """Bind the tensors that steps read and update."""
        trainer, plan = self.trainer, self.trainer.plan
        self.pace = Pace()
        self.loss_T = trainer.momentum_T1.new_empty(trainer.num_trials)
        """Losses of the last step, in a buffer that the next call overwrites."""
        self._call = NativeCall(
            self._library,
            trainer.network,
            plan.loss,
            trainer.native_inputs(),
            trainer.labels_N,
            num_trials=trainer.num_trials,
            num_parameters=trainer.theta_TP.shape[1],
            batch=trainer.samples_per_step,
            is_adam=plan.optimizer == "adam",
            clip_norm=plan.clip_norm or 0.0,
            beta1=plan.adam_betas[0],
            beta2=plan.adam_betas[1],
            adam_eps=plan.adam_eps,
            look_every=CHECK_STEPS,
            theta_TP=trainer.theta_TP,
            first_TP=trainer.moment_TP,
            second_TP=trainer.square_TP,
            decay_GT=trainer.native_decays(),
            momentum_T=trainer.momentum_T1,
            loss_T=self.loss_T,
        )

    def release(self) -> None:
        super().release()
        self._call = None

    def step(self, max_steps: int, divergence: Divergence | None) -> Tensor:
        """Take between 1 and `max_steps` steps, and record divergence. Return the losses [T] of the last."""
        assert self._call is not None
        trainer, order_TN = self.trainer, None
        max_steps = min(max_steps, self.pace.steps_per_call)
        if not trainer.shares_batches:
            order_TN = trainer.next_order()[:, trainer.position :]  # from the next batch on, a slice of longer rows
            max_steps = min(max_steps, order_TN.shape[1] // trainer.samples_per_step)
        rate_ST1, correction_S = trainer.rates.block(trainer.step_count, max_steps)
        never_T = torch.full_like(self.loss_T, NEVER, dtype=torch.int64)
        self._call.set_fields(
            num_steps=len(rate_ST1),
            first_step=trainer.step_count,
            rate_ST=rate_ST1,
            correction_S=correction_S,
            order=None if order_TN is None else order_TN.data_ptr(),
            order_row=0 if order_TN is None else order_TN.stride(0),
            diverged_at_T=never_T if divergence is None else divergence.step_T,
        )
        self.pace.run(self._call, len(rate_ST1))
        trainer.step_count += len(rate_ST1)
        trainer.position += 0 if order_TN is None else trainer.samples_per_step * len(rate_ST1)
        return self.loss_T
