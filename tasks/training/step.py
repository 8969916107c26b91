"""One training step as functions of tensors: loss, gradient and optimiser, used by the eager engine.

The optimiser updates the parameters of T trials as one tensor [T, P], over which per-trial numbers broadcast. Nothing is
reduced across T, and the update consists of single elementwise operations, because a fused multiply-add would round differently
in a vector loop and in its remainder.

Shapes: T trials, B batch, I input dimensions, K classes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from depthrate.tasks.networks.flat_parameters import gradients_of, leaves_of
from depthrate.tasks.networks.network import Network, Tensors
from depthrate.tasks.training.training_plan import TrainingPlan


class Moments(NamedTuple):
    """Optimiser state of a parameter tensor."""

    first: Tensor
    second: Tensor | None
    """Mean of squares in Adam and RMSprop."""


class StepNumbers(NamedTuple):
    """Per-trial factors of a step, in shapes that broadcast over the parameters."""

    momentum: Tensor
    rate: Tensor
    """Learning rate, for Adam divided by the first bias correction."""
    correction: Tensor
    """Square root of Adam's second bias correction."""
    eps: float | Tensor
    """Epsilon of Adam and RMSprop, or one per parameter."""
    rate_factor: Tensor | None = None
    """Factor on the rate of each parameter, or None for equal rates."""


def losses(kind: str, logits_TBK: Tensor, labels_TB: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Compute each trial's data term [T], without weight decay.

    Args:
        kind: "ce" for mean cross-entropy, "mse" for (1/2B) ||f - Y||^2.
        logits_TBK: Outputs, or [T, B, S, K] with one class per token, averaged over all tokens.
        labels_TB: Classes, [T, B] or [T, B, S], or float targets Y [T, B, K].
        label_smoothing: e of cross-entropy with (1 - e) of the label's one-hot row and e / K of each class.
    """
    if kind == "ce":
        logits_TBK, labels_TB = logits_TBK.flatten(1, -2), labels_TB.flatten(1)
        log_probabilities_TBK = F.log_softmax(logits_TBK, dim=-1)
        loss_T = -log_probabilities_TBK.gather(-1, labels_TB.unsqueeze(-1)).squeeze(-1).mean(1)
        if not label_smoothing:
            return loss_T
        return (1 - label_smoothing) * loss_T - label_smoothing * log_probabilities_TBK.mean(-1).mean(1)
    is_target = labels_TB.is_floating_point()
    targets_TBK = labels_TB if is_target else F.one_hot(labels_TB, logits_TBK.shape[-1]).to(logits_TBK.dtype)
    return (logits_TBK - targets_TBK).square().sum(-1).mean(1) / 2


@contextmanager
def lowered_precision(precision: str, device: str) -> Iterator[None]:
    """Compute matrix products in the precision of `TrainingPlan.matmul_precision` within the context."""
    if precision == "full":
        yield
        return
    if precision == "tf32":
        products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
        previous = products.allow_tf32, convolutions.allow_tf32
        products.allow_tf32 = convolutions.allow_tf32 = True
        try:
            yield
        finally:
            products.allow_tf32, convolutions.allow_tf32 = previous
        return
    # a cached cast would outlive the step, which CUDA graphs record once and replay
    with torch.autocast(device, torch.bfloat16, cache_enabled=False):
        yield


def gradients(
    network: Network, plan: TrainingPlan, parameters: Tensors, x_TBI: Tensor, labels_TB: Tensor, untrained: Tensors
) -> tuple[Tensor, tuple[Tensor, ...], Tensors]:
    """Compute the loss [T] of each trial's batch, its gradient per parameter, and the new untrained state."""
    leaves: Mapping[str, Tensor] = leaves_of(parameters, network.fixed_parameters)
    with lowered_precision(plan.matmul_precision, x_TBI.device.type):
        logits_TBK, after = network.training_logits(leaves, x_TBI, untrained)
        loss_T = losses(plan.loss, logits_TBK.to(plan.dtype), labels_TB, plan.label_smoothing)
        pieces = gradients_of(loss_T.sum(), leaves, some_unused=network.may_skip_parameters)
    return loss_T.detach(), pieces, {name: tensor.detach().to(untrained[name].dtype) for name, tensor in after.items()}


def clip_factor(clip_norm: float, squared_norm: Tensor) -> Tensor:
    """Compute the factor that scales a gradient of this squared norm down to at most `clip_norm`."""
    return (clip_norm / (squared_norm.sqrt() + 1e-6)).clamp(max=1.0)


def optimise(
    plan: TrainingPlan,
    theta: Tensor,
    moments: Moments,
    gradient: Tensor,
    numbers: StepNumbers,
    scratch: Tensor,
) -> None:
    """Update parameters and moments in place by one step of the plan's optimiser.

    The gradient is overwritten, and so is the scratch tensor of its size, which saves fresh memory, whose page faults cost more
    than the arithmetic.
    """
    if plan.optimizer == "sgd":
        moments.first.mul_(numbers.momentum).add_(gradient)
        subtract(theta, torch.mul(moments.first, numbers.rate, out=scratch), numbers.rate_factor)
        return
    assert moments.second is not None
    if plan.optimizer == "rmsprop":
        moments.second.mul_(plan.rms_alpha).add_(torch.mul(gradient, gradient, out=scratch).mul_(1 - plan.rms_alpha))
        gradient /= torch.sqrt(moments.second, out=scratch).add_(numbers.eps)
        moments.first.mul_(numbers.momentum).add_(gradient)
        subtract(theta, torch.mul(moments.first, numbers.rate, out=scratch), numbers.rate_factor)
        return
    beta1, beta2 = plan.adam_betas
    moments.first.mul_(beta1).add_(torch.mul(gradient, 1 - beta1, out=scratch))
    gradient *= gradient
    moments.second.mul_(beta2).add_(gradient.mul_(1 - beta2))
    root = torch.sqrt(moments.second, out=scratch).div_(numbers.correction).add_(numbers.eps)
    subtract(theta, torch.div(moments.first, root, out=scratch).mul_(numbers.rate), numbers.rate_factor)


def subtract(theta: Tensor, change: Tensor, rate_factor: Tensor | None) -> None:
    """Subtract a change of the parameters, times the factor on their rates. The change is overwritten."""
    theta -= change if rate_factor is None else change.mul_(rate_factor)
