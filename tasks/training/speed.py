"""Training steps per second of a pack, measured, with those of a plain PyTorch loop.

Shapes: N samples, B batch, I input dimensions.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from depthrate.tasks.interface import Engine, MeasuredSpeed
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.training.computing import computing
from depthrate.tasks.training.pack_state import Divergence
from depthrate.tasks.training.step import losses, lowered_precision
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training import NetworkTraining
from depthrate.tasks.training.training_plan import TrainingPlan, learning_rate_factor

ENDLESS = 10**9
"""Number of steps of measured trials, so that they do not end during the measurement."""
ROUNDS = 2
"""Number of times that each side is measured, in turn, so that both see the same changes of the processor's clock."""


def measure_speed(training: NetworkTraining, requested: Engine, seconds: float) -> MeasuredSpeed:
    """Measure the steps of a pack and of a plain loop, as `Task.measure_speed` does.

    Raises:
        EngineError: The requested engine is not available.
    """
    engine, fault = training.engine(requested, "cpu"), None
    plan = dataclasses.replace(training.plan, num_steps=ENDLESS)
    training = dataclasses.replace(training, plan=plan)
    with computing("cpu", training.matmul_precision):
        trainer = training.begin()
        if engine is Engine.NATIVE:
            try:
                trainer.use_native(training.native_library(lambda: False)[0])
            except EngineError as error:
                if requested is Engine.NATIVE or not training.may_lack_kernels:
                    raise
                engine, fault = Engine.EAGER, str(error)
        divergence = Divergence(trainer.num_trials, trainer.device)
        plain = plain_losses(training)

        def advance() -> int:
            before = trainer.step_count
            trainer.advance(ENDLESS, divergence)
            return (trainer.step_count - before) * trainer.num_trials

        def take_plain() -> int:
            next(plain)
            return 1

        sides = advance, take_plain
        for take in sides:
            take()  # libraries allocate their workspaces in the first step
        rates = [[_steps_per_s(take, seconds / ROUNDS) for take in sides] for _ in range(ROUNDS)]
    return MeasuredSpeed(engine, *(sum(of_side) / ROUNDS for of_side in zip(*rates, strict=True)), fault)


def _steps_per_s(take: Callable[[], int], seconds: float) -> float:
    steps, started, passed_s = 0, time.process_time(), 0.0
    while passed_s < seconds:
        steps += take()
        passed_s = time.process_time() - started
    return steps / passed_s


def plain_losses(training: NetworkTraining) -> Iterator[Tensor]:
    """Train the first trial of a pack as a plain PyTorch loop does, and yield its loss before each step.

    Parameters, batches and learning rates are those of the trial. With both clipping and weight decay, numbers differ from the
    trial's, because `torch.optim` adds the decay to the clipped gradient.
    """
    start_TP = None if training.start_TP is None else training.start_TP[:1]
    alone = dataclasses.replace(training, hyperparameters=training.hyperparameters[:1], start_TP=start_TP)
    trainer = alone.begin()
    plan, trial = trainer.plan, trainer.hyperparameters[0]
    untrained = {name: tensor[0] for name, tensor in trainer.untrained.items()}
    leaves, module = trainer.network.plain_module(
        {name: tensor[0] for name, tensor in trainer.parameters().items()}, untrained
    )
    decays = {spec.name: 0.0 if spec.decay is None else trial.weight_decays[spec.decay] for spec in trainer.specs}
    groups = [
        {"params": [leaf for name, leaf in leaves.items() if decays[name] == decay], "weight_decay": decay}
        for decay in {decays[name] for name in leaves}
    ]
    optimizer = _optimizer(plan, groups, trial.lr, trial.momentum)
    for step in itertools.count():
        if plan.schedule != "constant":
            for group in optimizer.param_groups:
                group["lr"] = trial.lr * learning_rate_factor(plan.schedule, step, plan.num_steps, plan.milestones)
        x_BI, labels_B = _batch(trainer)
        optimizer.zero_grad()
        with lowered_precision(plan.matmul_precision, "cpu"):
            output = module(x_BI)
        loss = _loss(plan, output.to(plan.dtype), labels_B)
        loss.backward()  # type: ignore[no-untyped-call]
        if plan.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(leaves.values(), plan.clip_norm)
        optimizer.step()
        yield loss.detach()


def _batch(trainer: FusedTrainer) -> tuple[Tensor, Tensor]:
    x, labels = trainer.next_batch()
    return (x, labels) if trainer.shares_batches else (x[0], labels[0])


def _loss(plan: TrainingPlan, output: Tensor, labels: Tensor) -> Tensor:
    if plan.loss == "ce":
        return F.cross_entropy(output.flatten(0, -2), labels.flatten(), label_smoothing=plan.label_smoothing)
    return losses(plan.loss, output.unsqueeze(0), labels.unsqueeze(0))[0]


def _optimizer(plan: TrainingPlan, groups: list[dict[str, Any]], lr: float, momentum: float) -> torch.optim.Optimizer:
    if plan.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum)
    if plan.optimizer == "rmsprop":
        return torch.optim.RMSprop(groups, lr=lr, alpha=plan.rms_alpha, eps=plan.adam_eps, momentum=momentum)
    kind = torch.optim.Adam if plan.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=lr, betas=plan.adam_betas, eps=plan.adam_eps)
