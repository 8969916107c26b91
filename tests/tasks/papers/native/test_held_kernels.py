"""Kernels of unconstrained features: a step is the eager one, a trial's the same in every pack, with any steps a call."""

import functools
import random

import pytest
import torch

from depthrate.tasks.interface import Engine, Interrupted
from depthrate.tasks.papers.unconstrained.task import MUFM, UFM
from depthrate.tasks.training.engines.native import native_library
from tests.support.native_trials import error, taken
from tests.support.training_context import Context, assert_same, ids_of

SHAPES = [(5, 3, "float32"), (9, 4, "float64")]
"""Dimension, classes, dtype: so few, so that libraries are built once for many cases."""


def training_of(task, trials):
    return task.training([task.read(params) for params in trials], None)


def natively(trainer):
    trainer.use_native(native_library(trainer.network, trainer.plan, lambda: False)[0])
    return trainer


def trials_of(task, shape, count=4, **changes):
    dimension, classes, dtype = shape
    given = {"solver": "gradient", "steps": 40, "dimension": dimension, "num_classes": classes, "dtype": dtype}
    pull = "proximity" if task is MUFM else "weight_decay_features"
    own = [
        {"seed": seed, "data_seed": seed, "lr": 0.2 / (1 + seed), pull: 0.02 * (1 + seed), "weight_decay": 0.01 * seed}
        for seed in range(count)
    ]
    return [task.schema.fill({**given, **item, **changes}) for item in own]


@functools.cache
def cases(shape):
    """What packs do: looking for their optima takes longer than all else here."""
    rng, made = random.Random(repr(shape)), []
    for task in (UFM, MUFM, MUFM):
        changes = {
            "samples_per_class": rng.choice([1, 7, 33]),
            "loss": rng.choice(["mse", "ce"]),
            "start": rng.choice(["input", "normal"]),
            "scaled_steps": rng.random() < 0.7,
        }
        depth = {"depth": rng.choice([1, 2, 9])} if task is MUFM else {}
        made.append(training_of(task, trials_of(task, shape, **changes, **depth)))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_steps_are_the_eager_ones_but_for_rounding(shape):
    for training in cases(shape):
        eager, native = training.begin(), natively(training.begin())
        exact = eager.to_float64()
        start_TP = exact.theta_TP.clone()
        losses = [trainer.step().double() for trainer in (exact, eager, native)]
        exact_TP, eager_TP, native_TP = (trainer.theta_TP.double() - start_TP for trainer in (exact, eager, native))
        least = 1e-12 if shape[2] == "float64" else 2e-7
        assert error(losses[2], losses[0]) <= 2 * error(losses[1], losses[0]) + least, training.network
        assert error(native_TP, exact_TP) <= 2 * error(eager_TP, exact_TP) + least, training.network
        for _ in range(5):
            eager.step(), native.step()
        assert error(native.theta_TP.double(), eager.theta_TP.double()) < 1e3 * least, training.network


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_trial_is_the_same_in_every_pack_and_with_any_steps_a_call(shape):
    for training in cases(shape):
        together = taken(natively(training.begin()), 25, most=25)
        for members, most in (([0], 1), ([3, 1], 7)):
            apart = training.begin()
            apart.select(members)
            assert torch.equal(taken(natively(apart), 25, most), together[members]), (training.network, members)


class Stopping(Context):
    def should_stop(self):
        return bool(self.steps_seen) and self.steps_seen[-1] >= 7


@pytest.mark.parametrize("task", [UFM, MUFM], ids=lambda task: task.name)
def test_a_pack_is_the_same_alone_and_interrupted_and_notes_who_diverges(task):
    trials = trials_of(task, SHAPES[0], 3, samples_per_class=4)
    trials[1] = {**trials[1], "lr": 1e6}

    def run(trials, **given):
        context = Context(ids_of(trials), **{"engine": Engine.AUTO, **given})
        return list(task.run(trials, context)), context

    whole, context = run(trials)
    assert context.ran_as[-1][0] is Engine.NATIVE is task.engine(trials[0], Engine.AUTO, "cpu")
    assert [result.status for result in whole] == [result.status for result in run(trials, engine=Engine.EAGER)[0]]
    assert_same(whole, [result for trial in trials for result in run([trial])[0]])
    first = Stopping(ids_of(trials), engine=Engine.NATIVE)
    with pytest.raises(Interrupted):
        list(task.run(trials, first))
    assert_same(run(trials, checkpoint=first.checkpoint)[0], whole)


def test_the_exact_solver_has_no_steps_and_so_no_engine():
    (params,) = trials_of(MUFM, SHAPES[0], 1, solver="exact", steps=None, lr=0.1, samples_per_class=3)
    context = Context(ids_of([params]), engine=Engine.NATIVE)
    assert [result.status for result in MUFM.run([params], context)] == ["ok"]
    assert MUFM.engine(params, Engine.NATIVE, "cpu") is None and context.ran_as == [(Engine.EAGER, None)]
