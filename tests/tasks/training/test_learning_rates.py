"""Learning rates computed for many steps together are bitwise equal to rates computed step by step."""

import functools
import math

import pytest
import torch

from depthrate.tasks.training import pack_state
from depthrate.tasks.training.pack_state import Rates
from depthrate.tasks.training.training_plan import Hyperparameters, learning_rate_factor
from tests.support import native_trials

TRIALS = [Hyperparameters(seed=0, lr=lr, momentum=0.9, weight_decays={}) for lr in (0.3, 0.01, 1 / 3)]


plan_of = functools.partial(native_trials.plan_of, num_steps=50)


@pytest.mark.parametrize("at_once", [1, 7, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop"])
@pytest.mark.parametrize("schedule", ["constant", "step", "cosine", "warmup_cosine", "one_cycle"])
def test_together_and_alone_are_one_number(schedule, optimizer, dtype, at_once, monkeypatch):
    monkeypatch.setattr(pack_state, "STEPS_PER_BLOCK", at_once)
    plan = plan_of(schedule=schedule, optimizer=optimizer, dtype=dtype)
    formed = Rates(plan, TRIALS, torch.device("cpu"))
    for step in [0, 1, 49, 3, 20, 21, 50, 70]:  # forward, back, and beyond the end
        factor = learning_rate_factor(schedule, step, plan.num_steps)
        beta1, beta2 = plan.adam_betas
        adam = optimizer in ("adam", "adamw")
        expected = [h.lr * factor / (1 - beta1 ** (step + 1) if adam else 1.0) for h in TRIALS]
        rate_T1, correction = formed.at(step)
        assert rate_T1.equal(torch.tensor(expected, dtype=torch.float64).to(dtype).unsqueeze(1))
        root = math.sqrt(1 - beta2 ** (step + 1)) if adam else 1.0
        assert correction.equal(torch.tensor(root, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("num_steps", [10, 50, 1000])
def test_one_cycle_is_torch_s(num_steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=num_steps)
    for step in range(num_steps):
        found = learning_rate_factor("one_cycle", step, num_steps)
        assert found == pytest.approx(cycle.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        if step < num_steps - 1:
            cycle.step()


def test_warm_up_then_cosine():
    factors = [learning_rate_factor("warmup_cosine", step, 200) for step in range(201)]
    assert factors[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    cosine = [learning_rate_factor("cosine", step, 190) for step in range(191)]
    assert factors[10:] == pytest.approx(cosine) and factors[10] == 1 and factors[200] == pytest.approx(0, abs=1e-15)
    for few in (1, 2, 3):
        for schedule in ("warmup_cosine", "one_cycle"):
            assert all(0 < learning_rate_factor(schedule, step, few) <= 1 for step in range(few))
        assert learning_rate_factor("warmup_cosine", few, few) == 0, "what is reported at the end"
