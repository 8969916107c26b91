"""Kernels of unconstrained features, free and held (handwritten) and deep (generated): steps are the eager ones but for
rounding, and a trial's results depend neither on its pack nor on the steps per call."""

import functools
import random

import pytest
import torch

from depthrate.tasks.interface import Engine
from depthrate.tasks.papers.unconstrained.task import DUFM, MUFM, UFM
from tests.support.native_trials import assert_native_pack, error, taken
from tests.support.training_context import Context, ids_of

SHAPES = {
    "held 5": (5, 3, "float32"),
    "held 9": (9, 4, "float64"),
    "deep 5": (5, 3, "relu", "float32"),
    "deep 30": (30, 10, "none", "float32"),
    "deep 30 relu": (30, 10, "relu", "float64"),
}
"""Dimension, classes, activation of `dufm`, dtype: few, so that libraries are built once for many cases."""
each_shape = pytest.mark.parametrize("name", SHAPES)


def natively(training, trainer):
    trainer.use_native(training.native_library(lambda: False)[0])
    return trainer


def trials_of(task, shape, count=4, **changes):
    size, classes, *activation, dtype = shape
    shared = {"steps": 40, "num_classes": classes, "dtype": dtype}
    if task is DUFM:
        shared |= {"width": size, "activation": activation[0], "depth": 3, "samples_per_class": 4, "init_scale": 0.5}
        by_trial = [{"lr": 0.03 / (1 + seed), "weight_decay_features": 0.002 * (1 + seed)} for seed in range(count)]
    else:
        shared |= {"solver": "gradient", "dimension": size}
        pull = "proximity" if task is MUFM else "weight_decay_features"
        by_trial = [
            {"data_seed": seed, "lr": 0.2 / (1 + seed), pull: 0.02 * (1 + seed), "weight_decay": 0.01 * seed}
            for seed in range(count)
        ]
    return [task.schema.fill({**shared, "seed": seed, **item, **changes}) for seed, item in enumerate(by_trial)]


@functools.cache
def cases(name):
    """Return the trainings of packs. Exact optima take longer than all else here."""
    shape = SHAPES[name]
    rng, made = random.Random(repr(shape)), []
    for task in (DUFM,) * 4 if "deep" in name else (UFM, MUFM, MUFM):
        if task is DUFM:
            changes = {"depth": rng.choice([1, 2, 4, 9]), "samples_per_class": rng.choice([1, 7, 13, 50])}
            changes |= {"loss": rng.choice(["mse", "ce"])}
        else:
            changes = {"samples_per_class": rng.choice([1, 7, 33]), "loss": rng.choice(["mse", "ce"])}
            changes |= {"start": rng.choice(["input", "normal"]), "scaled_steps": rng.random() < 0.7}
            changes |= {"depth": rng.choice([1, 2, 9])} if task is MUFM else {}
        made.append(task.training([task.read(params) for params in trials_of(task, shape, **changes)], None))
    return made


@pytest.mark.slow
@each_shape
def test_steps_are_the_eager_ones_but_for_rounding(name):
    for training in cases(name):
        eager, native = training.begin(), natively(training, training.begin())
        exact = eager.to_float64()
        start_TP = exact.theta_TP.clone()
        losses = [trainer.step().double() for trainer in (exact, eager, native)]
        exact_TP, eager_TP, native_TP = (trainer.theta_TP.double() - start_TP for trainer in (exact, eager, native))
        least = 1e-11 if SHAPES[name][-1] == "float64" else 2e-7
        assert error(losses[2], losses[0]) <= 2 * error(losses[1], losses[0]) + least, training.network
        assert error(native_TP, exact_TP) <= 2 * error(eager_TP, exact_TP) + least, training.network
        for _ in range(5):
            eager.step(), native.step()
        assert error(native.theta_TP.double(), eager.theta_TP.double()) < 1e3 * least, training.network


@pytest.mark.slow
@each_shape
def test_invariant_to_pack_and_calls(name):
    for training in cases(name):
        together = taken(natively(training, training.begin()), 25, most=25)
        for members, most in (([0], 1), ([3, 1], 7)):
            apart = training.begin()
            apart.select(members)
            assert torch.equal(taken(natively(training, apart), 25, most), together[members]), (
                training.network,
                members,
            )


@pytest.mark.parametrize(
    "task", [UFM, MUFM, pytest.param(DUFM, marks=pytest.mark.slow)], ids=lambda task: getattr(task, "name", "dufm")
)
def test_fused_alone_interrupted_and_diverged(task):
    trials = trials_of(task, SHAPES["deep 5" if task is DUFM else "held 5"], 3, samples_per_class=4)
    trials[1] = {**trials[1], "lr": 1e6}
    assert task.engine(trials[0], Engine.AUTO, "cpu") is Engine.NATIVE
    assert_native_pack(task, trials)


def test_exact_solver_has_no_engine():
    (params,) = trials_of(MUFM, SHAPES["held 5"], 1, solver="exact", steps=None, lr=0.1, samples_per_class=3)
    context = Context(ids_of([params]), engine=Engine.NATIVE)
    assert [result.status for result in MUFM.run([params], context)] == ["ok"]
    assert MUFM.engine(params, Engine.NATIVE, "cpu") is None and context.ran_as == [(Engine.EAGER, None)]
