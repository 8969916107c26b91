"""Native steps, many of a pack's trials in one call of a kernel library, and evaluation by its kernels.

Shapes: T trials, S steps, N samples, I input dimensions, G groups of weight decay, P parameters of one trial, L layers,
M LayerNorms, D width.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.interface import Engine, SharedLibraries
from depthrate.tasks.native.build import NUMBERS, load_library
from depthrate.tasks.native.library import Library
from depthrate.tasks.networks.network import Kernels, Network
from depthrate.tasks.training.engines.native_call import NativeCall, Pace
from depthrate.tasks.training.pack_state import CHECK_STEPS, NEVER, Divergence, PackState, Steps
from depthrate.tasks.training.training_plan import PolishPlan, TrainingPlan


def native_library(
    network: Network, plan: TrainingPlan, should_stop: Callable[[], bool], shared: SharedLibraries | None = None
) -> tuple[Library, float]:
    """Load the kernels that train a network. Also return the seconds spent building or waiting.

    Raises:
        EngineError: As `load_library`.
        Interrupted: As `load_library`.
    """
    return _library(network, {"NUMBER": NUMBERS[plan.dtype_name]}, should_stop, shared)


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
        trainer, plan = self.trainer, self.trainer.plan
        self.pace = Pace()
        self.loss_T = trainer.momentum_T1.new_empty(trainer.num_trials)
        """Losses of the last step, in a buffer that the next call overwrites."""
        self._call = NativeCall(
            self._library,
            trainer.kernels,
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
            state_TS=(state_TS := trainer.native_state()),
            num_state=state_TS.shape[1],
        )

    def release(self) -> None:
        super().release()
        self._call = None

    def step(self, max_steps: int, divergence: Divergence | None) -> Tensor:
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


MAX_BUFFER_BYTES = 64_000_000
"""Maximum bytes of one trial's layers in memory. For larger networks, torch computes the layers one by one."""


class NativeEvaluation:
    """Evaluates trials on one data set, one at a time."""

    def __init__(self, library: Library, kernels: Kernels, plan: TrainingPlan, x_NI: Tensor, labels_N: Tensor):
        self.gives_layers = kernels.gives_layers
        self._library, self._dtype, self._num_samples = library, plan.dtype, len(x_NI)
        self._depth, self._width = int(kernels.arguments["depth"]), kernels.constants.get("WIDTH", 0)
        self._ln_eps = kernels.arguments["ln_eps"]
        self._has_classes = not labels_N.is_floating_point()
        self._outputs = labels_N[:1].numel() if self._has_classes else 1
        placeholder = x_NI.new_empty(1)  # an arbitrary gradient, so that scratch memory for it is allocated
        self._call = NativeCall(library, kernels, plan.loss, x_NI, labels_N, gradient_TP=placeholder)
        self._variances: dict[bytes, float | None] = {}
        """Smallest variances computed with a trial's layers, by a digest of its parameters, until they are read."""

    @property
    def can_hold_layers(self) -> bool:
        """Whether the kernels return layers, and the features of all layers of one trial fit into memory."""
        num_bytes = self._depth * self._num_samples * self._width * self._dtype.itemsize
        return self.gives_layers and num_bytes <= MAX_BUFFER_BYTES

    def __call__(self, theta_TP: Tensor, state_TS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute loss [T], correct samples [T] and the loss's gradient [T, P] at these parameters, in float64.

        A sample with several outputs counts by the share of correct ones. Without classes the count is NaN.
        """
        gradient_TP, loss_T = (
            torch.zeros_like(theta_TP),
            theta_TP.new_empty(len(theta_TP)),
        )  # untrained parameters keep 0
        correct_T = None
        if self._has_classes:
            correct_T = torch.zeros(len(theta_TP), dtype=torch.int64, device=theta_TP.device)
        self._call.set_fields(state_TS=state_TS, num_state=state_TS.shape[1])
        self._run(theta_TP, gradient_TP=gradient_TP, loss_T=loss_T, correct_T=correct_T)
        counts_T = torch.full_like(loss_T, torch.nan).double() if correct_T is None else correct_T / self._outputs
        return loss_T.double(), counts_T.double(), gradient_TP.double()

    def layers(self, theta_1P: Tensor) -> Iterator[Tensor]:
        """Yield the features [1, N, D] of a trial, layer by layer."""
        features_LND = torch.empty(self._depth, self._num_samples, self._width, dtype=self._dtype)
        self._variances[_digest(theta_1P)] = self._run_layers(theta_1P, features_LND)
        yield from features_LND.unsqueeze(1)

    def smallest_variance(self, theta_1P: Tensor) -> float | None:
        """Return the smallest variance of a LayerNorm's input row, or None if it is hidden by eps."""
        digest = _digest(theta_1P)
        return self._variances.pop(digest) if digest in self._variances else self._run_layers(theta_1P)

    def _run_layers(self, theta_1P: Tensor, features_LND: Tensor | None = None) -> float | None:
        """Run the layers of a trial, storing their features if a buffer is passed, and return the smallest variance."""
        scales_MN = torch.zeros(self._depth + 1, self._num_samples, dtype=self._dtype)  # post-LN uses one fewer
        self._run(theta_1P, features_LND=features_LND, scales_MN=scales_MN, loss_T=theta_1P.new_empty(1))
        variance = 1 / scales_MN.max().item() ** 2 - self._ln_eps
        return variance if variance > self._ln_eps else None  # smaller ones are lost to rounding; also excludes NaN

    def _run(self, theta_TP: Tensor, **outputs: Any) -> None:
        num_trials, num_parameters = theta_TP.shape
        self._call.set_fields(num_trials=num_trials, num_parameters=num_parameters, theta_TP=theta_TP.contiguous())
        self._call.set_fields(**dict.fromkeys(("gradient_TP", "correct_T", "features_LND", "scales_MN")) | outputs)
        self._library.evaluate(self._call.fields)


def _digest(theta_1P: Tensor) -> bytes:
    return hashlib.sha256(theta_1P.contiguous().numpy().tobytes()).digest()
