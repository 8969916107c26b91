"""Kernels of deep unconstrained features: a step is the eager one, a trial's the same in every pack, with any steps a call."""

import random

import pytest
import torch

from depthrate.tasks.interface import Engine, Interrupted
from depthrate.tasks.papers.unconstrained.deep_training import training
from depthrate.tasks.papers.unconstrained.task import DUFM
from depthrate.tasks.training.engines.native import native_library
from tests.support.native_trials import error, taken
from tests.support.training_context import Context, assert_same, ids_of

SHAPES = [(5, 3, "relu", "float32"), (30, 10, "none", "float32"), (30, 10, "relu", "float64")]
"""Width, classes, activation, dtype: so few, so that libraries are built once for many cases."""


def params_of(seed, shape, **changes):
    width, classes, activation, dtype = shape
    given = {
        "width": width,
        "num_classes": classes,
        "activation": activation,
        "dtype": dtype,
        "seed": seed,
        "steps": 40,
    }
    own = {
        "depth": 3,
        "samples_per_class": 4,
        "lr": 0.03 / (1 + seed),
        "init_scale": 0.5,
        "weight_decay_features": 0.002 * (1 + seed),
    }
    return DUFM.schema.fill({**given, **own, **changes})


def trainer_of(trials, engine=Engine.EAGER):
    read = [DUFM.read(params) for params in trials]
    trainer = training(read, DUFM.network(read[0], DUFM.data_shape(read[0]))).begin()
    if engine is Engine.NATIVE:
        trainer.use_native(native_library(trainer.network, trainer.plan, lambda: False)[0])
    return trainer


def cases(shape):
    rng = random.Random(repr(shape))
    for _ in range(4):
        changes = {"depth": rng.choice([1, 2, 4, 9]), "samples_per_class": rng.choice([1, 7, 13, 50])}
        yield [params_of(seed, shape, **changes) for seed in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_steps_are_the_eager_ones_but_for_rounding(shape):
    for trials in cases(shape):
        eager, native = (trainer_of(trials, engine) for engine in (Engine.EAGER, Engine.NATIVE))
        exact = trainer_of([{**params, "dtype": "float64"} for params in trials])
        exact.theta_TP = eager.theta_TP.double().clone()
        start_TP = exact.theta_TP.clone()
        losses = [trainer.step().double() for trainer in (exact, eager, native)]
        exact_TP, eager_TP, native_TP = (trainer.theta_TP.double() - start_TP for trainer in (exact, eager, native))
        least = 1e-11 if shape[3] == "float64" else 2e-7
        assert error(losses[2], losses[0]) <= 2 * error(losses[1], losses[0]) + least, trials[0]
        assert error(native_TP, exact_TP) <= 2 * error(eager_TP, exact_TP) + least, trials[0]
        for _ in range(5):
            eager.step(), native.step()
        assert error(native.theta_TP.double(), eager.theta_TP.double()) < 1e3 * least, trials[0]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_trial_is_the_same_in_every_pack_and_with_any_steps_a_call(shape):
    for trials in cases(shape):
        together = taken(trainer_of(trials, Engine.NATIVE), 25, most=25)
        for members, most in (([0], 1), ([3, 1], 7)):
            apart = trainer_of([trials[member] for member in members], Engine.NATIVE)
            assert torch.equal(taken(apart, 25, most), together[members]), (trials[0], members)


@pytest.mark.slow
def test_a_pack_is_the_same_alone_and_interrupted_and_notes_who_diverges():
    class Stopping(Context):
        def should_stop(self):
            return bool(self.steps_seen) and self.steps_seen[-1] >= 7

    trials = [params_of(seed, SHAPES[0]) for seed in range(3)]
    trials[1] = {**trials[1], "lr": 1e6}

    def run(trials, **given):
        context = Context(ids_of(trials), **{"engine": Engine.NATIVE, **given})
        return list(DUFM.run(trials, context)), context

    whole, context = run(trials)
    assert context.ran_as[-1][0] is Engine.NATIVE
    assert [result.status for result in whole] == [result.status for result in run(trials, engine=Engine.EAGER)[0]]
    assert_same(whole, [result for trial in trials for result in run([trial])[0]])
    first = Stopping(ids_of(trials), engine=Engine.NATIVE)
    with pytest.raises(Interrupted):
        list(DUFM.run(trials, first))
    assert_same(run(trials, checkpoint=first.checkpoint, engine=Engine.AUTO)[0], whole)
