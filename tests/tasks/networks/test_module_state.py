"""State of a user's module outside of its parameters: what influences its numbers is refused, and what does not is accepted."""

import functools
import itertools
import random
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.networks.module import ModuleNetwork
from depthrate.tasks.parameters import ParameterError

SWITCH = 30
GLOBAL_CALLS = 0


class Schedule:
    """A plain object that a module holds."""

    def __init__(self):
        self.steps = SimpleNamespace(done=0)

    def next(self):
        self.steps.done += 1
        return self.steps.done


class Slotted:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


class Stateful(nn.Module):
    """Two blocks and a map. A subclass's `scale` has the state."""

    total = 0

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.head = nn.Linear(6, 3)

    def scale(self, h):
        return 1.0

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(x) * self.scale(x)


def stateful(scale, **attributes):
    """Make a module with a function as its scale, and attributes that functions make."""

    class Made(Stateful):
        def __init__(self):
            super().__init__()
            for name, made in attributes.items():
                setattr(self, name, made())

        def scale(self, h):
            return scale(self, h)

    return Made


def late(count):
    return 0.5 if count > SWITCH else 1.0


def counted(self, h):
    self.count += 1
    return late(self.count)


def counted_much_later(self, h):
    self.count += self.training
    return 0.5 if self.count > 2000 else 1.0


def counted_in_training(self, h):
    self.count += self.training
    return 1.0 if self.training else late(self.count)


def counted_by_class(self, h):
    type(self).total += 1
    return late(type(self).total)


def counted_globally(self, h):
    global GLOBAL_CALLS
    GLOBAL_CALLS += 1
    return late(GLOBAL_CALLS)


def counted_by_function(self, h):
    counted_by_function.calls = getattr(counted_by_function, "calls", 0) + 1
    return late(counted_by_function.calls)


def counted_by_default(self, h, calls=[0]):  # noqa: B006
    calls[0] += 1
    return late(calls[0])


def appended(self, h):
    self.history.append(float(h.detach().mean()))
    return late(len(self.history))


def kept_in_dict(self, h):
    self.kept["calls"] = self.kept.get("calls", 0) + 1
    return late(self.kept["calls"])


def scheduled(self, h):
    return late(self.schedule.next())


def slotted(self, h):
    self.kept.count += 1
    return late(self.kept.count)


def iterated(self, h):
    return late(next(self.steps))


def partially(self, h):
    return late(next(self.steps()))


def generated_numbers(self, h):
    return 1 + float(self.rng.normal())


def drawn_numbers(self, h):
    return 1 + self.rng.random()


def torch_numbers(self, h):
    return 1 + torch.rand((), generator=self.rng)


def mean_of_calls(self, h):
    self.mean = 0.9 * self.mean + 0.1 * h.detach().mean()
    return 1 + self.mean


def mean_for_evaluation(self, h):
    if self.training:
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean()
        return 1.0
    return 1 + self.mean


def annealed(self, h):
    self.temperature = max(0.2, self.temperature * 0.999)
    return 1 / self.temperature


def detached_first(self, h):
    self.count += self.training
    return 1 + (h.mean() if self.count > SWITCH else h.detach().mean())


def closure():
    calls = 0

    def scale(self, h):
        nonlocal calls
        calls += 1
        return late(calls)

    return scale


INFLUENTIAL = {
    "count": stateful(counted, count=int),
    "much later": stateful(counted_much_later, count=int),
    "in training": stateful(counted_in_training, count=int),
    "gradient": stateful(detached_first, count=int),
    "total": stateful(counted_by_class),
    "GLOBAL_CALLS": stateful(counted_globally),
    "calls of a function": stateful(counted_by_function),
    "defaults": stateful(counted_by_default),
    "calls of a closure": stateful(closure()),
    "history": stateful(appended, history=list),
    "deque history": stateful(appended, history=deque),
    "kept": stateful(kept_in_dict, kept=dict),
    "done": stateful(scheduled, schedule=Schedule),
    "slots of kept": stateful(slotted, kept=Slotted),
    "steps": stateful(iterated, steps=itertools.count),
    "partial steps": stateful(partially, steps=lambda: functools.partial(iter, itertools.count())),
    "rng": stateful(generated_numbers, rng=np.random.default_rng),
    "random rng": stateful(drawn_numbers, rng=lambda: random.Random(0)),
    "torch rng": stateful(torch_numbers, rng=torch.Generator),
    "mean": stateful(mean_of_calls, mean=lambda: torch.zeros(())),
    "evaluated mean": stateful(mean_for_evaluation, mean=lambda: torch.zeros(())),
    "temperature": stateful(annealed, temperature=lambda: 1.0),
}
"""Name that a refusal has, with more words -> a module that computes other numbers once it has been called often."""


def network(make):
    data = DataShape(num_samples=12, sample_shape=(6,), num_classes=3)
    return ModuleNetwork(make=make, name="Made", arguments={}, data=data, patterns=("blocks.*",), dtype="float32")


@pytest.mark.parametrize("name", INFLUENTIAL)
def test_influential_state_is_refused_at_plan(name):
    with pytest.raises(ParameterError) as refused:
        _ = network(INFLUENTIAL[name]).report
    shown = {"much later": "count", "in training": "count", "gradient": "count", "total": "Made.total"}
    assert shown.get(name, name.split()[0] if "of a" in name else name.split()[-1]) in str(refused.value)
    assert "outside of its tensors" in str(refused.value) and "register_buffer" in str(refused.value)


def logged(self, h):
    self.count += 1
    self.history.append(h.detach().mean())
    self.last, self.seen[len(self.history)] = h, h.detach()
    Stateful.total += 1
    return 1.0


def cached(self, h):
    if self.cache is None:
        self.cache = torch.ones(h.shape[-1])
    return self.cache.mean()


@pytest.mark.parametrize(
    "make",
    [
        stateful(logged, count=int, history=list, seen=dict, last=lambda: None),
        stateful(cached, cache=lambda: None),
        stateful(lambda self, h: 1.0, schedule=Schedule, rng=np.random.default_rng, kept=Slotted),
    ],
)
def test_state_without_influence_is_accepted(make):
    made = network(make)
    assert made.report.training.unfused_reason is None and "tensors" not in (made.unfused_reason or "")
