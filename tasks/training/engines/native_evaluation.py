"""Evaluation in the training kernels: loss, gradient and layers of all samples without a forward pass in torch.

Shapes: T trials, N samples, I input dimensions, P parameters of one trial, L layers, M LayerNorms, D width.
"""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from depthrate.tasks.native.library import Library
from depthrate.tasks.networks.network import Network
from depthrate.tasks.training.engines.native_call import NativeCall
from depthrate.tasks.training.training_plan import TrainingPlan

MAX_BUFFER_BYTES = 64_000_000
"""Maximum bytes of one trial's layers in memory. For larger networks, torch computes the layers one by one."""


class NativeEvaluation:
    """Evaluates trials on one data set, one at a time."""

    def __init__(self, library: Library, network: Network, plan: TrainingPlan, x_NI: Tensor, labels_N: Tensor):
        kernels = network.kernels()
        assert kernels is not None
        self._library, self._dtype, self._num_samples = library, plan.dtype, len(x_NI)
        self._depth, self._width = int(kernels.arguments["depth"]), kernels.constants["WIDTH"]
        self._ln_eps = kernels.arguments["ln_eps"]
        placeholder = x_NI.new_empty(1)  # an arbitrary gradient, so that scratch memory for it is allocated
        self._call = NativeCall(library, network, plan.loss, x_NI, labels_N, gradient_TP=placeholder)
        self._variances: dict[bytes, float | None] = {}
        """Smallest variances computed with a trial's layers, by a digest of its parameters, until they are read."""

    @property
    def can_hold_layers(self) -> bool:
        """Whether the features of all layers of one trial fit into memory."""
        num_bytes = self._depth * self._num_samples * self._width * self._dtype.itemsize
        return num_bytes <= MAX_BUFFER_BYTES

    def __call__(self, theta_TP: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute loss [T], correct samples [T] and the loss's gradient [T, P] at these parameters, in float64."""
        gradient_TP, loss_T = torch.empty_like(theta_TP), theta_TP.new_empty(len(theta_TP))
        correct_T = torch.zeros(len(theta_TP), dtype=torch.int64)
        self._run(theta_TP, gradient_TP=gradient_TP, loss_T=loss_T, correct_T=correct_T)
        return loss_T.double(), correct_T.double(), gradient_TP.double()

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

    def _run(self, theta_TP: Tensor, **outputs: Tensor | None) -> None:
        num_trials, num_parameters = theta_TP.shape
        self._call.set_fields(num_trials=num_trials, num_parameters=num_parameters, theta_TP=theta_TP.contiguous())
        self._call.set_fields(**dict.fromkeys(("gradient_TP", "correct_T", "features_LND", "scales_MN")) | outputs)
        self._library.evaluate(self._call.fields)


def _digest(theta_1P: Tensor) -> bytes:
    return hashlib.sha256(theta_1P.contiguous().numpy().tobytes()).digest()
