"""Trainers of random residual networks, eager and native."""

import random

import pytest
import torch

from depthrate.tasks.interface import Engine, Interrupted
from depthrate.tasks.networks.residual import ResidualNetwork
from depthrate.tasks.networks.transformer import Transformer
from depthrate.tasks.training.engines.native import native_library
from depthrate.tasks.training.pack_state import Divergence
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import Hyperparameters, TrainingPlan
from tests.support.training_context import Context, assert_same, ids_of

WIDTHS = {
    (1, False): (5, 64, 200),
    (1, True): (19, 64, 128),
    (2, False): (5, 65, 200),
    (2, True): (19, 65, 128),
}
"""(Linear layers, pre-LN) -> below a vector or ragged, vectors whole or not, wider than what stays in cache: a library each."""


def network_of(width, *, linear_layers=1, pre_norm=False, depth=3, inputs=12, classes=5, last_bias=True):
    shape = {"linear_layers": linear_layers, "pre_norm": pre_norm, "depth": depth, "width": width}
    return ResidualNetwork(**shape, input_dimensions=inputs, num_classes=classes, last_bias=last_bias)


def transformer_of(attention_layers, mlp_layers, pre_norm, *, patch=None, vocabulary=None, classes=5, **changes):
    """A transformer that reads patches or tokens."""
    usual = {"depth": 2, "width": 7, "positions": 4, "num_classes": classes, "last_bias": True} | changes
    kind = {"attention_layers": attention_layers, "mlp_layers": mlp_layers, "pre_norm": pre_norm}
    return Transformer(patch_dimensions=patch, vocabulary_size=vocabulary, **kind, **usual)


def plan_of(**changes):
    given = {"loss": "ce", "optimizer": "sgd", "schedule": "cosine", "num_steps": 60, "batch_size": None}
    return TrainingPlan(**{**given, "init": "uniform", "clip_norm": None, "dtype": torch.float32, **changes})


def trials_of(count):
    decays = [{"hidden": 0.005 * (1 + seed), "last": 0.01 / (1 + seed)} for seed in range(count)]
    return [Hyperparameters(s, 0.02 / (1 + s), 0.9 - 0.1 * s, decay) for s, decay in enumerate(decays)]


def trainer_of(network, plan, trials, samples):
    """Train on random samples whose classes are of very different sizes."""
    generator = torch.Generator().manual_seed(samples)
    x_NI = torch.randn(samples, network.input_dimensions, generator=generator, dtype=torch.float64).to(plan.dtype)
    labels_N = (torch.rand(samples, generator=generator) ** 2 * network.num_classes).long()
    return FusedTrainer(network, plan, trials, x_NI, labels_N)


def native_trainer(network, plan, trials, samples):
    trainer = trainer_of(network, plan, trials, samples)
    trainer.use_native(native_library(network, plan, lambda: False)[0])
    return trainer


def random_case(seed, family):
    """A network of a family (linear layers, pre-LN, number type) and a plan for it, and how many samples to train on.

    Shapes come from a few, so that libraries are built once for many cases; all else is any.
    """
    rng = random.Random(f"{seed} {family}")
    linear_layers, pre_norm, dtype = family
    width = rng.choice(WIDTHS[linear_layers, pre_norm])
    network = network_of(
        width,
        linear_layers=linear_layers,
        pre_norm=pre_norm,
        depth=rng.choice([1, 2, 3, 5, 9]),
        inputs={5: 3, 19: 64, 64: 12, 65: 7, 128: 64, 200: 64}[width],
        classes={5: 2, 19: 17, 64: 10, 65: 3, 128: 10, 200: 10}[width],
        last_bias=rng.random() < 0.5,
    )
    samples = rng.choice([2, 5, 31, 63, 64, 65, 130, 197])
    drawn = {"loss": rng.choice(["ce", "mse"]), "optimizer": rng.choice(["sgd", "adam"])}
    drawn |= {"clip_norm": rng.choice([None, None, 0.1, 1e-3])}
    plan = plan_of(**drawn, batch_size=rng.choice([None, max(1, samples // 2), max(1, samples // 3)]), dtype=dtype)
    return network, plan, samples


def gradient(trainer):
    """The gradient of the first step that a trainer took [T, P], weight decay included and clipped."""
    first = 1.0 if trainer.plan.optimizer == "sgd" else 1 - trainer.plan.adam_betas[0]
    return trainer.moment_TP.double() / first


def taken(trainer, num_steps, most):
    """The parameters and losses after so many steps, `most` of them in a call."""
    divergence = Divergence(trainer.num_trials, trainer.device)
    while trainer.step_count < num_steps:
        trainer._steps.pace.steps_per_call = most
        trainer.advance(num_steps, divergence)
    assert divergence.diverged_steps() == {}
    return torch.cat([trainer.theta_TP, trainer._steps.loss_T.unsqueeze(1)], dim=1)


def error(found, exact):
    return ((found - exact).norm() / exact.norm()).item()


class _Stopping(Context):
    def should_stop(self):
        return bool(self.steps_seen) and self.steps_seen[-1] >= 7


def assert_native_pack(task, trials):
    """Check that a pack's native results are those of its trials alone and after an interruption, and return them.

    Eager steps give the same outcomes and numbers of steps.
    """

    def run(trials, **options):
        context = Context(ids_of(trials), **{"engine": Engine.NATIVE, **options})
        return list(task.run(trials, context)), context

    whole, context = run(trials)
    assert context.ran_as[-1][0] is Engine.NATIVE and context.ran_as[-1][1] is not None
    eager, _ = run(trials, engine=Engine.EAGER)
    assert [(r.status, r.num_steps) for r in whole] == [(r.status, r.num_steps) for r in eager]
    assert_same(whole, [result for trial in trials for result in run([trial])[0]])
    first = _Stopping(ids_of(trials), engine=Engine.NATIVE)
    with pytest.raises(Interrupted):
        list(task.run(trials, first))
    assert_same(run(trials, checkpoint=first.checkpoint, engine=Engine.AUTO)[0], whole)
    return whole


def random_parameters(network, trials, seed=0):
    """Return normally distributed float64 parameters of so many trials."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {spec.name: spec.shape for spec in network.parameter_specs()}
    return {n: torch.randn(trials, *shape, generator=generator, dtype=torch.float64) for n, shape in shapes.items()}
