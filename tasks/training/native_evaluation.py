"""Evaluation by the kernels that train: loss, gradient and layers of all samples without another forward pass in torch.

Shapes: T trials, N samples, I input dimensions, P parameters of one trial, L layers, M LayerNorms, D width.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from depthrate.tasks.native.library import Call, Library
from depthrate.tasks.networks.network import Kernels
from depthrate.tasks.training.plan import TrainingPlan

MOST_HELD_BYTES = 64_000_000
"""Of one trial's layers at once; a network that has more of them gives them layer by layer, from torch."""


class NativeEvaluation:
    """Evaluates trials on one data set, each alone."""

    def __init__(self, library: Library, kernels: Kernels, plan: TrainingPlan, x_NI: Tensor, labels_N: Tensor):
        self._library, self._dtype = library, plan.dtype
        self._x_NI, self._labels_N = x_NI.contiguous(), labels_N.contiguous()
        self._depth, self._width = int(kernels.arguments["depth"]), kernels.constants["WIDTH"]
        self._ln_eps = kernels.arguments["ln_eps"]
        self._call = Call(
            batch=len(x_NI),
            is_mse=plan.loss == "mse",
            x_NI=self._x_NI.data_ptr(),
            labels_N=self._labels_N.data_ptr(),
            gradient_TP=x_NI.data_ptr(),  # that there is one: room is taken for it
            **kernels.arguments,
        )
        self._scratch = torch.zeros(library.scratch_bytes(self._call), dtype=torch.uint8)
        self._call.scratch = self._scratch.data_ptr()

    @property
    def holds_layers(self) -> bool:
        """Whether it gives a trial's features of all layers."""
        num_bytes = self._depth * len(self._x_NI) * self._width * self._dtype.itemsize
        return num_bytes <= MOST_HELD_BYTES

    def __call__(self, theta_TP: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss [T], samples whose class is found [T] and the loss's gradient [T, P] at these parameters, in float64."""
        gradient_TP, loss_T = torch.empty_like(theta_TP), theta_TP.new_empty(len(theta_TP))
        correct_T = torch.zeros(len(theta_TP), dtype=torch.int64)
        self._run(theta_TP, gradient_TP=gradient_TP, loss_T=loss_T, correct_T=correct_T)
        return loss_T.double(), correct_T.double(), gradient_TP.double()

    def layers(self, theta_1P: Tensor) -> Iterator[Tensor]:
        """Yield the features [1, N, D] of a trial, layer by layer."""
        features_LND = torch.empty(self._depth, len(self._x_NI), self._width, dtype=self._dtype)
        self._run(theta_1P, features_LND=features_LND, scales_MN=self._scales(), loss_T=theta_1P.new_empty(1))
        yield from features_LND.unsqueeze(1)

    def smallest_variance(self, theta_1P: Tensor) -> float | None:
        """Return the smallest variance of a row that a LayerNorm of a trial reads; null where eps hides it."""
        scales_MN = self._scales()
        self._run(theta_1P, scales_MN=scales_MN, loss_T=theta_1P.new_empty(1))
        variance = 1 / scales_MN.max().item() ** 2 - self._ln_eps
        return variance if variance > self._ln_eps else None  # of what is smaller, rounding leaves too little; nor NaN

    def _scales(self) -> Tensor:
        return torch.zeros(self._depth + 1, len(self._x_NI), dtype=self._dtype)  # post-LN has one fewer

    def _run(self, theta_TP: Tensor, **given: Tensor) -> None:
        theta_TP = theta_TP.contiguous()
        self._call.num_trials, self._call.num_parameters = theta_TP.shape
        self._call.theta_TP = theta_TP.data_ptr()
        for name in ("gradient_TP", "loss_T", "correct_T", "features_LND", "scales_MN"):
            setattr(self._call, name, given[name].data_ptr() if name in given else None)
        self._library.evaluate(self._call)
