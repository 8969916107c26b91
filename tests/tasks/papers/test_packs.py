"""Packs of the papers' tasks: a trial's results depend neither on its pack, nor on an interruption or a diverging trial."""

import pytest

from depthrate.tasks.papers.unconstrained.task import DUFM, MUFM
from depthrate.tasks.papers.words.task import WORDS
from tests.support.training_context import Context, assert_same, ids_of, run_resumed

SMALL = {
    DUFM: {"depth": 3, "num_classes": 3, "samples_per_class": 4, "width": 5, "weight_decay": 0.01, "steps": 30},
    MUFM: {"num_classes": 3, "samples_per_class": 4, "dimension": 4, "depth": 2, "weight_decay": 0.05}
    | {"solver": "gradient", "steps": 30},
    WORDS: {"vocabulary_size": 30, "sentence_length": 4, "sequences": 12, "width": 7, "batch_size": 20, "epochs": 8}
    | {"lr": 0.5, "init_scale": 0.5},
}
PACKS = {
    DUFM: [{"seed": s, "lr": 0.1 * (s + 1), "init": init} for s, init in enumerate(("normal", "he", "balanced"))],
    MUFM: [{"seed": seed, "data_seed": seed, "proximity": 0.01 * (seed + 1)} for seed in range(3)],
    WORDS: [
        {"seed": 1, "features": "projections"},
        {"seed": 2, "zipf": 1.0, "samples_per_sequence": 10},  # twice as many steps
        {"seed": 3, "weight_decay": 0.01, "zipf": 0.5, "features": "projection"},
    ],
}
WILD = {DUFM: {"lr": 1e6}, MUFM: {"lr": 1e6}, WORDS: {"seed": 7, "lr": 1e6, "init_scale": 1e6, "weight_decay": 0.0}}
each_task = pytest.mark.parametrize("task", PACKS, ids=lambda task: task.name)


def trials_of(task, *changes):
    return [task.schema.fill(SMALL[task] | item) for item in changes]


def run(task, trials, **context):
    return list(task.run(trials, Context(ids_of(trials), **context)))


@pytest.mark.slow
@each_task
def test_fused_is_alone_and_resumed(task):
    trials = trials_of(task, *PACKS[task])
    together = run(task, trials)
    if task is WORDS:
        assert [result.num_steps for result in together] == [24, 48, 24]
    for params, expected in zip(trials, together, strict=True):
        assert_same(run(task, [params]), [expected])
    for stop_at in (1, 10, 24, 30) if task is WORDS else (17,):
        resumed, steps = run_resumed(task.run, trials, stop_at)
        assert steps[0] == stop_at + 1
        assert_same(resumed, together)


@each_task
def test_a_diverging_trial_disturbs_no_other(task):
    calm, wild = trials_of(task, PACKS[task][0], WILD[task])
    first, second = run(task, [wild, calm])
    assert (first.status, second.status) == ("diverged", "ok") and first.num_steps < 30
    assert_same([second], run(task, [calm]))
