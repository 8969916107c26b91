"""A trial has diverged at the first checked step with a non-finite loss."""

import math
from dataclasses import replace
from functools import partial

import torch

from depthrate.tasks.data.published import load_dataset
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.pack_state import Divergence
from depthrate.tasks.training.training_pack import run_training
from tests.support.training_context import Context, ids_of, training_on


def test_the_first_step_counts_and_stays():
    seen = Divergence(4, torch.device("cpu"))
    assert seen.diverged_steps() == {}
    seen.check(torch.tensor([1.0, math.inf, 2.0, 3.0]), 0)
    seen.check(torch.tensor([1.0, 0.5, math.nan, 3.0]), 10)
    seen.check(torch.tensor([1.0, math.nan, -math.inf, 3.0]), 20)
    assert seen.diverged_steps() == {1: 0, 2: 10}


def test_those_that_stay_keep_what_was_noted():
    seen = Divergence(4, torch.device("cpu"))
    seen.check(torch.tensor([math.nan, 1.0, math.nan, 1.0]), 5)
    seen.select([1, 2])
    assert seen.diverged_steps() == {1: 5}
    seen.check(torch.tensor([math.nan, math.nan]), 7)
    assert seen.diverged_steps() == {0: 7, 1: 5}


def test_all_diverged_with_a_test_split():
    base = {"arch": "resnet_dense", "depth": 1, "width": 4, "steps": 4, "lr": 1e30, "samples_per_class": 2}
    trials = [COLLAPSE.schema.fill({**base, "seed": seed}) for seed in (0, 1)]
    draw = partial(load_dataset, "digits", None, samples_per_class=2, normalize="global", dtype="float32")
    dataset = replace(draw(data_seed=0), test=draw(data_seed=1))
    results = list(run_training(training_on(trials, dataset), Context(ids_of(trials))))
    assert [result.status for result in results] == ["diverged", "diverged"]
    for result in results:
        assert {row["split"] for row in result.tables["curves"]} == {"train", "test"}
