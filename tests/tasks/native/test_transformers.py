"""Steps generated for built-in transformers: their gradient is the eager one, and a trial's numbers do not depend on its pack,
on calls or on interruptions.
"""

import copy
import dataclasses
import random

import pytest
import torch

from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.training.engines.generated import generated_library
from depthrate.tasks.training.trainer import FusedTrainer
from tests.support.native_trials import error, gradient, plan_of, taken, transformer_of, trials_of

FAMILIES = [
    # attention layers, MLP layers, pre-LN, width, positions, numbers of a patch (else tokens), dtype
    (1, 1, False, 16, 4, 3, torch.float32),
    (2, 2, True, 19, 5, None, torch.float32),
    (1, 2, True, 16, 70, 1, torch.float32),
    (2, 1, False, 19, 5, None, torch.float64),
    (1, 1, True, 64, 16, 4, torch.float64),
]
VOCABULARY = 7


def case(family, seed):
    attention, mlp, pre_norm, width, positions, patch, dtype = family
    rng = random.Random(f"{seed} {family}")
    shape = {"depth": rng.choice([1, 2, 4]), "width": width, "positions": positions, "last_bias": rng.random() < 0.5}
    network = transformer_of(attention, mlp, pre_norm, patch=patch, vocabulary=None if patch else VOCABULARY, **shape)
    samples = rng.choice([2, 5, 33, 40])
    drawn = {"loss": rng.choice(["ce", "mse"]), "optimizer": rng.choice(["sgd", "adam"])}
    drawn |= {"clip_norm": rng.choice([None, None, 0.1]), "batch_size": rng.choice([None, max(1, samples // 3)])}
    plan = plan_of(**drawn, dtype=dtype)
    return network, plan, samples


def trainer_of(network, plan, trials, samples, *, native=False):
    generator = torch.Generator().manual_seed(samples)
    if network.patch_dimensions is None:
        x_NI = torch.randint(VOCABULARY, (samples, network.positions), generator=generator)
    else:
        x_NI = torch.randn(samples, network.positions * network.patch_dimensions, generator=generator).to(plan.dtype)
    labels_N = torch.randint(network.num_classes, (samples,), generator=generator)
    trainer = FusedTrainer(network, plan, trials, x_NI, labels_N)
    if native:
        counts_K = labels_N.bincount(minlength=network.num_classes).numpy()
        dataset = Dataset(
            x_NI.numpy(), labels_N.numpy(), counts_K, vocabulary_size=None if network.patch_dimensions else VOCABULARY
        )
        trainer.use_native(generated_library(network, plan, dataset, lambda: False)[0])
    return trainer


def parameters(family):
    name = f"t{family[0]}{family[1]}-{'pre' if family[2] else 'post'}-{family[6]}"
    yield pytest.param(family, range(1), id=name, marks=[pytest.mark.slow] * (family not in FAMILIES[:1]))
    yield pytest.param(family, range(1, 4), id=f"{name}-many", marks=pytest.mark.slow)


ALL = [parameter for family in FAMILIES for parameter in parameters(family)]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seeds"), ALL)
def test_first_gradient_matches_float64(family, seeds):
    for seed in seeds:
        network, plan, samples = case(family, seed)
        eager, native = (trainer_of(network, plan, trials_of(2), samples, native=native) for native in (False, True))
        trainers = [eager.to_float64(), eager, native]
        losses = [trainer.step().double() for trainer in trainers]
        exact, *others = (gradient(trainer) for trainer in trainers)
        least = 2e-7 if plan.dtype is torch.float32 else 1e-12
        assert error(others[1], exact) <= 2 * error(others[0], exact) + least, (network, plan, samples)
        assert error(losses[2], losses[0]) <= 2 * error(losses[1], losses[0]) + least, (network, plan, samples)


@pytest.mark.slow
@pytest.mark.parametrize("patch", [3, None], ids=["patches", "tokens"])
def test_layer_norm_without_epsilon(patch):
    network, plan, _ = case((1, 1, patch is None, 16, 5, patch, torch.float64), 0)
    network = dataclasses.replace(network, ln_eps=0.0)
    plan = dataclasses.replace(plan, init="normal", batch_size=None)
    eager, native = (trainer_of(network, plan, trials_of(1), 5, native=native) for native in (False, True))
    assert error(native.step(), eager.step()) < 1e-13 and error(gradient(native), gradient(eager)) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("family", "seeds"), ALL)
def test_invariant_to_pack_calls_and_interruption(family, seeds):
    for seed in seeds:
        network, plan, samples = case(family, 100 + seed)
        trials = trials_of(4)
        together = taken(trainer_of(network, plan, trials, samples, native=True), 13, most=13)
        for members, most in (([0], 1), ([3, 1], 5)):
            apart = trainer_of(network, plan, [trials[member] for member in members], samples, native=True)
            assert torch.equal(taken(apart, 13, most), together[members]), (network, plan, samples, members, most)
        first = trainer_of(network, plan, trials, samples, native=True)
        taken(first, 6, most=4)
        state = copy.deepcopy(first.state())
        second = trainer_of(network, plan, [trials[2], trials[0]], samples, native=True)
        second.load_state(state, [2, 0])
        assert torch.equal(taken(second, 13, most=13), together[[2, 0]]), (network, plan, samples)
