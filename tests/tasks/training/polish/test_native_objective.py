"""Native polish equals eager polish; a trial's results do not depend on its pack or on interruptions."""

import dataclasses
import random

import pytest
import torch

from depthrate.tasks.interface import Engine, Interrupted
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.native.library import Library
from depthrate.tasks.networks.network import FreeParameters
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.engines.native import smoothed_library
from depthrate.tasks.training.polish.smoothed_objective import NativeObjective, SmoothedObjective
from depthrate.tasks.training.training_plan import PolishPlan
from tests.support.native_trials import error, network_of, plan_of, trainer_of, trials_of
from tests.support.training_context import Context, assert_same, ids_of


def objectives(layers, pre_norm, seed):
    rng = random.Random(f"{seed} {layers} {pre_norm}")
    width, inputs, classes = rng.choice([(5, 3, 2), (19, 64, 17)])
    shape = {"linear_layers": layers, "pre_norm": pre_norm, "depth": rng.choice([1, 2, 5, 9])}
    network = network_of(width, **shape, inputs=inputs, classes=classes, last_bias=rng.random() < 0.5)
    plan = plan_of(loss=rng.choice(["ce", "mse"]), dtype=torch.float64)
    trainer = trainer_of(network, plan, trials_of(4), rng.choice([2, 31, 64, 65, 197]))
    barrier = rng.choice([0, 1e-3, 0.5])
    return objective(trainer, polish_of(barrier)), SmoothedObjective(trainer, polish_of(barrier)), trainer


def polish_of(barrier=0.1, *, to_stationary=False):
    return PolishPlan(
        num_evaluations=60, tolerance=1e-6, smoothing=(0.1,), memory=5, barrier=barrier, to_stationary=to_stationary
    )


def objective(trainer, polish):
    return NativeObjective(smoothed_library(trainer.network, polish, lambda: False)[0], trainer, polish)


@pytest.mark.parametrize(
    ("family", "seeds"),
    [pytest.param((1, False), range(3), id="rn1-post"), pytest.param((2, True), range(3), id="rn2-pre")]
    + [
        pytest.param((layers, pre), range(3, 12), id=f"many-rn{layers}-{pre}", marks=pytest.mark.slow)
        for layers in (1, 2)
        for pre in (False, True)
    ],
)
def test_objective_matches_eager_per_trial(family, seeds):
    for seed in seeds:
        native, eager, trainer = objectives(*family, seed)
        widths = [0.01, 0.1, 0.5, 2.0]
        given = list(range(4)), trainer.theta_TP, widths
        (value_T, gradient_TP), (exact_T, exact_TP) = native(*given), eager(*given)
        assert error(value_T, exact_T) < 1e-13 and error(gradient_TP, exact_TP) < 1e-12, (family, seed)
        chosen = [3, 1]
        found_T, found_TP = native(chosen, trainer.theta_TP[chosen], [widths[position] for position in chosen])
        assert torch.equal(found_T, value_T[chosen]) and torch.equal(found_TP, gradient_TP[chosen]), (family, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "pre_norm"), [(1, False), (2, True)])
def test_roots_and_fixed_embeddings_are_the_eager_ones(layers, pre_norm):
    network = network_of(19, linear_layers=layers, pre_norm=pre_norm, inputs=64, classes=17)
    network = dataclasses.replace(network, free=FreeParameters(train_embedding=False))
    trainer = trainer_of(network, plan_of(dtype=torch.float64), trials_of(4), 197)
    polish = polish_of(0, to_stationary=True)
    given = list(range(4)), trainer.theta_TP, [0.01, 0.1, 0.5, 2.0]
    ours, theirs = objective(trainer, polish), SmoothedObjective(trainer, polish)
    (value_T, gradient_TP), (exact_T, exact_TP) = ours(*given), theirs(*given)
    assert error(value_T, exact_T) < 1e-13 and error(gradient_TP, exact_TP) < 1e-12
    fixed = 19 * 64 + 19
    assert not gradient_TP[:, :fixed].any() and not exact_TP[:, :fixed].any() and gradient_TP[:, fixed:].any()


def test_an_objective_that_is_another_is_refused():
    class Wrong(Library):
        def run(self, call):
            call.is_mse = not call.is_mse
            super().run(call)

    trainer = trainer_of(network_of(5, inputs=3, classes=2), plan_of(dtype=torch.float64), trials_of(1), 9)
    library, _ = smoothed_library(trainer.network, polish_of(), lambda: False)
    wrong = Wrong.__new__(Wrong)
    vars(wrong).update(vars(library))
    with pytest.raises(EngineError, match="native polish of ResidualNetwork has objective .*--engine eager"):
        NativeObjective(wrong, trainer, polish_of())


def params_of(seed, **changes):
    given = {"arch": "rn1", "depth": 3, "width": 9, "samples_per_class": 4, "steps": 20, "lr": 0.05, "polish": 60}
    return COLLAPSE.schema.fill({**given, "seed": seed, **changes})


def run(trials, **given):
    context = Context(ids_of(trials), **{"engine": Engine.NATIVE, **given})
    return list(COLLAPSE.run(trials, context)), context


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [7, 33])
def test_fused_polish_alone_and_interrupted(stop_at):
    class Stopping(Context):
        def should_stop(self):
            return bool(self.steps_seen) and self.steps_seen[-1] >= stop_at

    trials = [params_of(seed, weight_decay=0.005 * (1 + seed)) for seed in range(3)]
    whole, _ = run(trials)
    assert_same(whole, [result for trial in trials for result in run([trial])[0]])
    first = Stopping(ids_of(trials), engine=Engine.NATIVE)
    with pytest.raises(Interrupted):
        list(COLLAPSE.run(trials, first))
    resumed, context = run(trials, checkpoint=first.checkpoint, engine=Engine.AUTO)
    assert_same(resumed, whole)
    assert context.ran_as[-1][0] is Engine.NATIVE


@pytest.mark.slow
def test_it_ends_where_eager_polish_ends():
    trials = [params_of(seed, polish=200) for seed in range(2)]
    natively, eagerly = run(trials)[0], run(trials, engine=Engine.EAGER)[0]
    for one, other in zip(natively, eagerly, strict=True):
        assert one.tables["curves"][-1]["objective"] == pytest.approx(other.tables["curves"][-1]["objective"], rel=1e-2)
    chain = [params_of(0, depth=depth, continuation=[2, 3]) for depth in (2, 3)]
    assert [result.num_steps > 0 for result in run(chain)[0]] == [True, True]
