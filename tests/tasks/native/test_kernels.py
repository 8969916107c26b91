"""Kernels: their gradient is the eager one, and a trial's numbers do not depend on its pack, on calls or on interruptions."""

import copy
import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch

from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.native.library import Library
from depthrate.tasks.training.engines import native_call
from depthrate.tasks.training.engines.native import native_library
from depthrate.tasks.training.pack_state import Divergence
from tests.support.native_trials import (
    error,
    gradient,
    native_trainer,
    network_of,
    plan_of,
    random_case,
    taken,
    trainer_of,
    trials_of,
)

FAMILIES = [(layers, pre_norm, torch.float32) for layers in (1, 2) for pre_norm in (False, True)]
QUICK, CASES = 1, 19
"""Random cases of each family, and how many of them are run only when all is."""


def families(dtype=torch.float32):
    """Parametrise over families, with few cases by default and many in slow tests."""
    for layers, pre_norm, _ in FAMILIES:
        name = f"rn{layers}-{'pre' if pre_norm else 'post'}"
        yield pytest.param((layers, pre_norm, dtype), range(QUICK), id=name)
        yield pytest.param(
            (layers, pre_norm, dtype), range(QUICK, QUICK + CASES), id=f"{name}-many", marks=pytest.mark.slow
        )


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seeds"), list(families()))
def test_first_gradient_matches_float64(family, seeds):
    for seed in seeds:
        network, plan, samples = random_case(seed, family)
        made = [make(network, plan, trials_of(2), samples) for make in (trainer_of, native_trainer)]
        trainers = [made[0].to_float64(), *made]
        losses = [trainer.step().double() for trainer in trainers]
        exact, eager, native = (gradient(trainer) for trainer in trainers)
        assert error(native, exact) <= 2 * error(eager, exact) + 2e-7, (network, plan, samples)
        assert error(losses[2], losses[0]) <= 2 * error(losses[1], losses[0]) + 2e-7, (network, plan, samples)


@pytest.mark.parametrize(
    ("family", "seeds"),
    [pytest.param((2, True, torch.float64), range(1), id="rn2-pre")]
    + [
        pytest.param((f[0], f[1], torch.float64), range(9), id=f"many-{f[:2]}", marks=pytest.mark.slow)
        for f in FAMILIES
    ],
)
def test_so_it_is_in_float64(family, seeds):
    for seed in seeds:
        network, plan, samples = random_case(seed, family)
        eager, native = (make(network, plan, trials_of(2), samples) for make in (trainer_of, native_trainer))
        assert error(native.step(), eager.step()) < 1e-13, (network, plan, samples)
        assert error(gradient(native), gradient(eager)) < 1e-12, (network, plan, samples)


@pytest.mark.parametrize(("layers", "pre_norm"), [(1, True), pytest.param(2, False, marks=pytest.mark.slow)])
def test_layer_norm_without_epsilon(layers, pre_norm):
    """Rows that fill a tile up were zeros, and their LayerNorm made each gradient NaN."""
    network = dataclasses.replace(network_of(8, linear_layers=layers, pre_norm=pre_norm), ln_eps=0.0)
    plan = plan_of(init="normal", dtype=torch.float64)
    eager, native = (make(network, plan, trials_of(1), 5) for make in (trainer_of, native_trainer))
    assert error(native.step(), eager.step()) < 1e-13 and error(gradient(native), gradient(eager)) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seeds"), list(families()))
def test_invariant_to_pack_calls_and_interruption(family, seeds):
    for seed in seeds:
        network, plan, samples = random_case(100 + seed, family)
        trials = trials_of(5)
        together = taken(native_trainer(network, plan, trials, samples), 25, most=25)
        for members, most in (([0], 1), ([4], 7), ([3, 1], 25), ([4, 3, 2, 1, 0], 3)):
            apart = native_trainer(network, plan, [trials[member] for member in members], samples)
            assert torch.equal(taken(apart, 25, most), together[members]), (network, plan, samples, members, most)
        first = native_trainer(network, plan, trials, samples)
        taken(first, 11, most=4)
        state = copy.deepcopy(first.state())
        taken(first, 13, most=1)  # which the one that goes on knows nothing of
        second = native_trainer(network, plan, [trials[2], trials[0]], samples)
        second.load_state(state, [2, 0])
        assert torch.equal(taken(second, 25, most=25), together[[2, 0]]), (network, plan, samples)


@pytest.mark.slow
def test_trials_that_leave_change_nothing_for_the_others():
    network, plan, trials = network_of(19), plan_of(batch_size=20), trials_of(4)
    together = taken(native_trainer(network, plan, trials, 70), 30, most=30)
    trainer = native_trainer(network, plan, trials, 70)
    taken(trainer, 10, most=30)
    trainer.select([0, 3])
    assert torch.equal(taken(trainer, 30, most=30), together[[0, 3]])


@pytest.mark.slow
def test_a_few_steps_stay_near_the_eager_ones():
    """The optimiser, the data order, the learning rates: all that a first gradient does not show."""
    for changes in (
        {},
        {"optimizer": "adam", "batch_size": 20, "schedule": "step"},
        {"clip_norm": 0.05, "loss": "mse"},
    ):
        plan = plan_of(dtype=torch.float64, **changes)
        eager, native = (make(network_of(19), plan, trials_of(3), 70) for make in (trainer_of, native_trainer))
        for _ in range(40):
            eager.step(), native.step()
        assert error(native.theta_TP, eager.theta_TP) < 1e-11, changes
        assert native.position == eager.position and native.step_count == eager.step_count == 40


@pytest.mark.slow
def test_divergence_matches_eager_and_is_isolated():
    trials = trials_of(4)
    trials[1] = dataclasses.replace(trials[1], lr=1e30)
    trials[2] = dataclasses.replace(trials[2], lr=3.0)
    network, plan = network_of(19), plan_of(schedule="constant", loss="mse")
    noted = []
    for make, most in ((trainer_of, None), (native_trainer, 1), (native_trainer, 7), (native_trainer, 60)):
        trainer = make(network, plan, trials, 70)
        divergence = Divergence(4, trainer.device)
        while trainer.step_count < 60:
            if most is not None:
                trainer._steps.pace.steps_per_call = most
            trainer.advance(60, divergence)
        noted.append(divergence.diverged_steps())
    assert noted[0][1] == 9 and set(noted[0]) == {1, 2} and noted[0][2] > 9
    assert all(call == noted[0] for call in noted)
    calm = native_trainer(network, plan, [trials[0], trials[3]], 70)
    assert torch.equal(taken(calm, 60, most=60)[:, :-1], trainer.theta_TP[[0, 3]])


@pytest.mark.slow
@pytest.mark.parametrize(("call_s", "calls"), [(0.05, [1, 3, 7, 15, 20]), (0.2, [1, 2, 3]), (9.0, [1, 2, 3])])
def test_calls_grow_to_their_end(call_s, calls, monkeypatch):
    clock = itertools.count(step=call_s)
    trainer = native_trainer(network_of(5, inputs=3, classes=2), plan_of(), trials_of(1), 5)
    monkeypatch.setattr(native_call, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    divergence = Divergence(1, trainer.device)
    for expected in calls:
        trainer.advance(20, divergence)
        assert trainer.step_count == expected


def test_deep_networks_match_float64():
    network, plan = network_of(19, depth=400, inputs=64, classes=17), plan_of()
    eager, native = (make(network, plan, trials_of(1), 20) for make in (trainer_of, native_trainer))
    eager.step(), native.step()
    assert error(native.moment_TP, eager.moment_TP) > 1e-4


@pytest.mark.slow
def test_a_step_that_does_something_else_is_refused():
    class Wrong(Library):
        def run(self, call):
            call.ln_eps = 1.0  # another network
            super().run(call)

    network, plan = network_of(19, depth=400, inputs=64, classes=17), plan_of()
    library, _ = native_library(network, plan, lambda: False)
    wrong = Wrong.__new__(Wrong)
    vars(wrong).update(vars(library))
    with pytest.raises(EngineError, match="the native step of ResidualNetwork has loss .*--engine eager"):
        trainer_of(network, plan, trials_of(1), 20).use_native(wrong)


def test_one_bad_start_passes():
    """This simulates rounding that decides the side of a ReLU's kink."""
    calls = []

    class AtOneStart(Library):
        def run(self, call):
            calls.append(call)
            call.ln_eps = 1.0 if len(calls) == 1 else 1e-12
            super().run(call)

    network, plan = network_of(19, depth=3, inputs=64, classes=17), plan_of()
    library, _ = native_library(network, plan, lambda: False)
    once = AtOneStart.__new__(AtOneStart)
    vars(once).update(vars(library))
    trainer_of(network, plan, trials_of(1), 20).use_native(once)
    assert len(calls) == 3
