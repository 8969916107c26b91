"""A trial has diverged at the first step at which its loss was looked at and not finite."""

import math

import torch

from depthrate.tasks.training.divergence import Divergence


def test_the_first_step_counts_and_stays():
    seen = Divergence(4, torch.device("cpu"))
    assert seen.found() == {}
    seen.look(torch.tensor([1.0, math.inf, 2.0, 3.0]), 0)
    seen.look(torch.tensor([1.0, 0.5, math.nan, 3.0]), 10)
    seen.look(torch.tensor([1.0, math.nan, -math.inf, 3.0]), 20)
    assert seen.found() == {1: 0, 2: 10}


def test_those_that_stay_keep_what_was_noted():
    seen = Divergence(4, torch.device("cpu"))
    seen.look(torch.tensor([math.nan, 1.0, math.nan, 1.0]), 5)
    seen.keep([1, 2])
    assert seen.found() == {1: 5}
    seen.look(torch.tensor([math.nan, math.nan]), 7)
    assert seen.found() == {0: 7, 1: 5}
