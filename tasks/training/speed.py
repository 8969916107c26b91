"""Training steps per second of a pack, measured, with those of a plain PyTorch loop.

Shapes: N samples, B batch, I input dimensions.
"""

import dataclasses
import itertools
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from depthrate.tasks.interface import Engine
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.training.computing import computing
from depthrate.tasks.training.pack_state import Divergence
from depthrate.tasks.training.step import losses, lowered_precision
from depthrate.tasks.training.training import NetworkTraining
from depthrate.tasks.training.training_plan import TrainingPlan, learning_rate_factor


def measure_speed(training: NetworkTraining, requested: Engine, seconds: float) -> tuple[Engine, float, float]:
    """Measure the steps of a pack and of a plain loop, as `Task.measure_speed` does."""
    engine = training.engine(requested, "cpu")
    endless = dataclasses.replace(training.plan, num_steps=10**9)  # trials do not end during the measurement
    training = dataclasses.replace(training, plan=endless)
    with computing("cpu", training.matmul_precision):
        trainer, plain = training.begin(), plain_losses(training)
        if engine is Engine.NATIVE:
            try:
                training.use_native(trainer, lambda: False)
            except EngineError as error:
                if requested is Engine.NATIVE or not training.may_lack_kernels("cpu"):
                    raise
                logging.getLogger(__name__).warning("training runs eagerly, because %s", error)
                engine = Engine.EAGER
        divergence = Divergence(trainer.num_trials, trainer.device)

        def advance() -> int:
            before = trainer.step_count
            trainer.advance(endless.num_steps, divergence)
            return (trainer.step_count - before) * trainer.num_trials

        def take_plain() -> int:
            next(plain)
            return 1

        rounds = [(_steps_per_s(advance, seconds / 3), _steps_per_s(take_plain, seconds / 3)) for _ in range(3)]
        rate, plain_rate = (statistics.median(rates) for rates in zip(*rounds, strict=True))
        return engine, rate, plain_rate


def _steps_per_s(take: Callable[[], int], seconds: float) -> float:
    take()  # libraries allocate their workspaces in the first step
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
    trainer = dataclasses.replace(training, hyperparameters=training.hyperparameters[:1]).begin()
    plan, trial = trainer.plan, trainer.hyperparameters[0]
    leaves, module = trainer.network.plain_module(trainer.parameters(), trainer.untrained)
    decays = {spec.name: 0.0 if spec.decay is None else trial.weight_decays[spec.decay] for spec in trainer.specs}
    groups = [
        {"params": [leaf for name, leaf in leaves.items() if decays[name] == decay], "weight_decay": decay}
        for decay in {decays[name] for name in leaves}
    ]
    optimizer = _optimizer(plan, groups, trial.lr, trial.momentum)
    for step in itertools.count():
        for group in optimizer.param_groups:
            group["lr"] = trial.lr * learning_rate_factor(plan.schedule, step, plan.num_steps, plan.milestones)
        x_BI, labels_B = trainer.next_batch()
        if not trainer.shares_batches:
            x_BI, labels_B = x_BI[0], labels_B[0]
        optimizer.zero_grad()
        with lowered_precision(plan.matmul_precision, "cpu"):
            output = module(x_BI).to(plan.dtype)
        if plan.loss == "ce":
            loss = F.cross_entropy(output.flatten(0, -2), labels_B.flatten(), label_smoothing=plan.label_smoothing)
        else:
            loss = losses(plan.loss, output.unsqueeze(0), labels_B.unsqueeze(0))[0]
        loss.backward()  # type: ignore[no-untyped-call]
        if plan.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(leaves.values(), plan.clip_norm)
        optimizer.step()
        yield loss.detach()


def _optimizer(plan: TrainingPlan, groups: list[dict[str, Any]], lr: float, momentum: float) -> torch.optim.Optimizer:
    if plan.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum)
    if plan.optimizer == "rmsprop":
        return torch.optim.RMSprop(groups, lr=lr, alpha=plan.rms_alpha, eps=plan.adam_eps, momentum=momentum)
    kind = torch.optim.Adam if plan.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=lr, betas=plan.adam_betas, eps=plan.adam_eps)
