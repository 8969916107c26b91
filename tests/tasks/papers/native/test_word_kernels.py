"""Kernels of words: a step is the eager one, a trial's the same in every pack, with any steps a call, and after a pause."""

import copy
import random

import pytest
import torch

from depthrate.tasks.interface import Engine
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.native.library import Library
from depthrate.tasks.papers.words.task import WORDS
from depthrate.tasks.papers.words.word_trainer import words_library
from depthrate.tasks.training.pack_state import Divergence
from tests.support.native_trials import assert_native_pack, error

SHAPES = [
    # concepts, width, sequences, words of a sentence, LayerNorm, dtype: so few, so that libraries are built once for many cases
    (3, 7, 12, 4, False, "float32"),
    (6, 16, 128, 3, True, "float32"),
    (9, 19, 70, 2, True, "float64"),
    (3, 100, 130, 5, False, "float32"),
]


def params_of(seed, shape, **changes):
    names = ("concepts", "width", "sequences", "sentence_length", "layer_norm", "dtype")
    given = {
        **dict(zip(names, shape, strict=True)),
        "vocabulary_size": 10 * shape[0],
        "seed": seed,
        "steps": 40,
        "lr": 0.5 / (1 + seed),
        "init_scale": 1.0,
        "batch_size": 9,
        "weight_decay": 0.05 / (1 + seed),
        "weight_decay_embedding": 0.02 * seed,
        "zipf": 0.7 * seed,
        **changes,
    }
    params = WORDS.schema.fill(given)
    WORDS.check_trial(params)
    return params


def cases(shape):
    rng = random.Random(repr(shape))
    for _ in range(4):
        samples = rng.choice([1, 2, 7])
        batch_sizes = [None, 1, 9, shape[2] * samples - 1]
        changes = {"vocabulary_size": shape[0] * rng.choice([1, 5, 40]), "batch_size": rng.choice(batch_sizes)}
        changes |= {"schedule": rng.choice(["constant", "cosine"]), "weight_decay": rng.choice([0.0, 0.3])}
        fused = [samples] * 4 if changes["batch_size"] is None else [samples, 7, samples, 9]
        yield [params_of(seed, shape, **changes, samples_per_sequence=n) for seed, n in enumerate(fused)]


def trainer_of(trials, *, native=False):
    trainer = WORDS.training([WORDS.read(params) for params in trials], None).begin()
    if native:
        trainer.use_native(words_library(trainer.shape, lambda: False)[0])
    return trainer


def weights(trainer):
    """What its matrices stand for, [T, numbers]."""
    trials = range(trainer.num_trials)
    return torch.stack([torch.cat([trainer.embedding(i).flatten(), trainer.linear(i).flatten()]) for i in trials])


def taken(trainer, num_steps, most):
    divergence = Divergence(trainer.num_trials, trainer.device)
    while trainer.step_count < num_steps:
        trainer._native.pace.steps_per_call = most
        trainer.advance(num_steps, divergence)
    assert divergence.diverged_steps() == {}
    return torch.cat([weights(trainer), trainer._epoch_T3], dim=1)


PARAMETERS = [pytest.param(SHAPES[0], id="small")] + [
    pytest.param(shape, id=f"{shape[1]}-{shape[2]}-{shape[5]}", marks=pytest.mark.slow) for shape in SHAPES[1:]
]


@pytest.mark.slow
@pytest.mark.parametrize("shape", PARAMETERS)
def test_step_matches_float64(shape):
    for trials in cases(shape):
        eager, native = trainer_of(trials), trainer_of(trials, native=True)
        exact = trainer_of([{**params, "dtype": "float64"} for params in trials])
        exact._words_TVD, exact._linear_TKM = (eager._words_TVD.double(), eager._linear_TKM.double())
        if shape[5] == "float64":
            exact._words_TVD, exact._linear_TKM = exact._words_TVD.clone(), exact._linear_TKM.clone()
        start = weights(exact)
        for trainer in (exact, eager, native):
            trainer.step()
        moved, by_eager, by_native = (weights(item).double() - start for item in (exact, eager, native))
        least = 1e-13 if shape[5] == "float64" else 1e-7
        assert error(by_native, moved) <= 2 * error(by_eager, moved) + least, trials[0]
        for _ in range(9):
            exact.step(), eager.step(), native.step()
        assert error(weights(native), weights(eager)) < 1e3 * least, trials[0]
        # eager steps cut a sentence's loss off where its probability leaves the range of float32
        assert error(native._epoch_T3[:, 0], exact._epoch_T3[:, 0]) < 1e4 * least, trials[0]
        assert (native._epoch_T3[:, 1] - exact._epoch_T3[:, 1]).abs().max() <= 1, trials[0]
        assert torch.equal(native._epoch_T3[:, 2], exact._epoch_T3[:, 2]), trials[0]


@pytest.mark.slow
@pytest.mark.parametrize("shape", PARAMETERS)
def test_invariant_to_pack_calls_and_interruption(shape):
    for trials in cases(shape):
        together = taken(trainer_of(trials, native=True), 25, most=25)
        for members, most in (([0], 1), ([3, 1], 7)):
            apart = trainer_of([trials[member] for member in members], native=True)
            assert torch.equal(taken(apart, 25, most), together[members]), (trials[0], members)
        first = trainer_of(trials, native=True)
        taken(first, 11, most=4)
        state = copy.deepcopy(first.state())
        second = trainer_of([trials[2], trials[0]], native=True)
        second.load_state(state, [2, 0])
        assert torch.equal(taken(second, 25, most=25), together[[2, 0]]), trials[0]
        first.select([1, 3])
        assert torch.equal(taken(first, 25, most=3), together[[1, 3]]), trials[0]


def test_factors_fold_as_in_eager():
    trials = [params_of(seed, SHAPES[0], weight_decay=1.9, weight_decay_embedding=1.5, lr=0.5) for seed in range(2)]
    eager, native = trainer_of(trials), trainer_of(trials, native=True)
    for _ in range(25):
        eager.step()
    taken(native, 25, most=25)
    assert error(native._epoch_T3, eager._epoch_T3) < 1e-3
    assert native._word_scales == eager._word_scales and native._linear_scales == eager._linear_scales
    assert 2.0**-20 <= min(native._word_scales + native._linear_scales) < 1 and 0.05**25 < 2.0**-20
    assert error(weights(native), weights(eager)) < 1e-3


def test_outputs_decide_accuracy_near_the_start():
    trials = [params_of(seed, SHAPES[0], init_scale=1e-5, batch_size=None) for seed in range(2)]
    eager, native = trainer_of(trials), trainer_of(trials, native=True)
    eager.step(), native.step()
    right, seen = eager._epoch_T3[:, 1], eager._epoch_T3[:, 2]
    assert (native._epoch_T3[:, 1] == right).all() and (right < 0.8 * seen).all()


def test_a_step_that_is_another_is_refused():
    class Wrong(Library):
        def run(self, call):
            call.batch -= 1
            super().run(call)

    trainer = trainer_of([params_of(0, SHAPES[0])])
    wrong = Wrong.__new__(Wrong)
    vars(wrong).update(vars(words_library(trainer.shape, lambda: False)[0]))
    with pytest.raises(EngineError, match="native step of words: distance from the eager step is .*--engine eager"):
        trainer.use_native(wrong)


def test_engine_needs_a_cpu():
    params = params_of(0, SHAPES[0])
    asked = (Engine.AUTO, Engine.NATIVE, Engine.EAGER)
    assert [WORDS.engine(params, item, "cpu") for item in asked] == [Engine.NATIVE, Engine.NATIVE, Engine.EAGER]
    assert WORDS.engine(params, Engine.AUTO, "cuda") is Engine.EAGER
    with pytest.raises(EngineError, match="native steps do not support these trials: .*device is cuda.*--engine auto"):
        WORDS.engine(params, Engine.NATIVE, "cuda")


@pytest.mark.slow
def test_fused_alone_interrupted_and_diverged():
    trials = [params_of(seed, SHAPES[0], batch_size=9, samples_per_sequence=5) for seed in range(3)]
    trials[1] = {**trials[1], "lr": 1e6, "init_scale": 1e6, "weight_decay": 0.0, "weight_decay_embedding": 0.0}
    whole = assert_native_pack(WORDS, trials)
    assert [result.status for result in whole] == ["ok", "diverged", "ok"]
