"""Fused training: T trials together are T trials alone, to the last bit."""

import dataclasses
import functools
import gc
import io
import math
import weakref

import pytest
import torch
import torch.nn.functional as F

from depthrate.tasks.networks.network import NO_STATE
from depthrate.tasks.networks.residual import ResidualNetwork
from depthrate.tasks.training.pack_state import random_stream
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import Hyperparameters, learning_rate_factor
from tests.support import native_trials

INPUTS, CLASSES, SAMPLES = 11, 5, 43
OPTIMIZERS = ["sgd", "adam", "adamw", "rmsprop"]
BATCHES = [None, 8]


plan_of = functools.partial(native_trials.plan_of, schedule="constant")
network_of = functools.partial(native_trials.network_of, 19, inputs=INPUTS, classes=CLASSES)


def trial(seed, **changes):
    """Hyper-parameters that differ in everything that may differ."""
    decays = {"hidden": 0.005 * (1 + seed), "last": 0.01}
    base = Hyperparameters(seed, 0.02 / (1 + seed), 0.9 - 0.1 * seed, decays)
    return dataclasses.replace(base, **changes)


def data(dtype=torch.float32, samples=SAMPLES):
    x_NI = torch.randn(samples, INPUTS, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    return x_NI, torch.arange(samples) % CLASSES


def trainer_of(plan, trials, network=None):
    return FusedTrainer(network or network_of(), plan, trials, *data(plan.dtype))


def trained(plan, trials, num_steps=60, network=None):
    trainer = trainer_of(plan, trials, network)
    for _ in range(num_steps):
        trainer.step()
    return trainer.theta_TP


def reference_of(trainer, index, num_steps, learning_rate):
    """The same trial in a plain torch.optim loop with parameter groups."""
    leaves = {name: p[index].clone().requires_grad_() for name, p in trainer.parameters().items()}
    h, (x_NI, labels_N) = trainer.hyperparameters[index], data(trainer.plan.dtype)
    groups = [
        {"params": [p for n, p in leaves.items() if n[0] == "b" or n == "W_0"], "weight_decay": 0.0},
        {
            "params": [p for n, p in leaves.items() if n[0] == "W" and n not in ("W_0", "W_L")],
            "weight_decay": h.weight_decays["hidden"],
        },
        {"params": [leaves["W_L"]], "weight_decay": h.weight_decays["last"]},
    ]
    optimizer = {
        "sgd": lambda: torch.optim.SGD(groups, lr=h.lr, momentum=h.momentum),
        "adam": lambda: torch.optim.Adam(groups, lr=h.lr),
        "adamw": lambda: torch.optim.AdamW(groups, lr=h.lr),
        "rmsprop": lambda: torch.optim.RMSprop(groups, lr=h.lr, momentum=h.momentum),
    }[trainer.plan.optimizer]()
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(h.lr, step)
        state = F.layer_norm(F.linear(x_NI, leaves["W_0"], leaves["b_0"]), (19,), eps=1e-12)
        for block in (1, 2):
            inner = torch.relu(F.linear(state, leaves[f"W_{block}"], leaves[f"b_{block}"]))
            state = F.layer_norm(state + inner, (19,), eps=1e-12)
        optimizer.zero_grad()
        F.cross_entropy(F.linear(state, leaves["W_L"], leaves["b_L"]), labels_N).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in leaves.values()])


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["constant", "cosine", "step"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_pack_follows_torch_optim(optimizer, schedule):
    """Tight but not bitwise: torch.optim fuses multiply and add, which rounds once where we round twice."""
    num_steps = 60
    plan = plan_of(optimizer=optimizer, schedule=schedule, dtype=torch.float64)
    trainer = trainer_of(plan, [trial(0), trial(1), trial(2)])
    rates = {
        "constant": lambda lr, step: lr,
        "cosine": lambda lr, step: lr * (1 + math.cos(math.pi * step / 60)) / 2,
        "step": lambda lr, step: lr * (1.0 if step < 20 else 0.1 if step < 40 else 0.01),
    }
    expected = [reference_of(trainer, index, num_steps, rates[schedule]) for index in range(3)]
    start_TP = trainer.theta_TP.clone()
    for _ in range(num_steps):
        trainer.step()
    assert (trainer.theta_TP - start_TP).abs().amax(1).min() > 1e-3
    # RMSprop divides by roots that may be near 0 and corrects no bias, which widens differences of rounding
    atol = 1e-11 if optimizer == "rmsprop" else 1e-13
    torch.testing.assert_close(trainer.theta_TP, torch.stack(expected), rtol=1e-12, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", BATCHES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("width", "depth", "linear_layers", "pre_norm"),
    [(19, 3, 1, False), (64, 2, 1, True), (33, 3, 2, False), (7, 1, 2, True)],
)
def test_a_pack_equals_its_trials_alone_bitwise(optimizer, batch_size, width, depth, linear_layers, pre_norm):
    shape = {"depth": depth, "linear_layers": linear_layers, "pre_norm": pre_norm}
    network = native_trials.network_of(width, inputs=INPUTS, classes=CLASSES, **shape)
    plan = plan_of(optimizer=optimizer, batch_size=batch_size, schedule="cosine")
    trials = [trial(seed) for seed in range(5)]
    together_TP = trained(plan, trials, network=network)
    alone_TP = torch.cat([trained(plan, [t], network=network) for t in trials])
    assert torch.equal(together_TP, alone_TP)


@pytest.mark.parametrize(
    "changes", [{"loss": "mse"}, {"clip_norm": 0.05}, {"dtype": torch.float64}, {"init": "he"}], ids=str
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equality_holds_for_every_plan(optimizer, changes):
    plan = plan_of(optimizer=optimizer, **changes)
    trials = [trial(seed) for seed in range(3)]
    assert torch.equal(trained(plan, trials), torch.cat([trained(plan, [t]) for t in trials]))


@pytest.mark.parametrize("position", [0, 2, 6])
@pytest.mark.parametrize("batch_size", BATCHES)
def test_position_and_mates_do_not_matter(batch_size, position):
    plan = plan_of(batch_size=batch_size)
    mates = [trial(seed) for seed in range(6)]
    pack = [*mates[:position], trial(9, momentum=0.5), *mates[position:]]
    assert torch.equal(trained(plan, pack)[position], trained(plan, [trial(9, momentum=0.5)])[0])


@pytest.mark.parametrize("batch_size", BATCHES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_diverging_mate_changes_nothing(optimizer, batch_size):
    plan = plan_of(optimizer=optimizer, batch_size=batch_size)
    healthy = [trial(0), trial(2)]
    pack_TP = trained(plan, [healthy[0], trial(1, lr=1e30), healthy[1]])
    assert not torch.isfinite(pack_TP[1]).all()
    assert torch.equal(pack_TP[[0, 2]], trained(plan, healthy))


def test_keep_leaves_the_others_as_they_are():
    plan = plan_of(optimizer="adam", batch_size=8)
    trainer = trainer_of(plan, [trial(seed) for seed in range(4)])
    for step in range(60):
        if step == 13:
            trainer.select([0, 3])
        trainer.step()
    assert torch.equal(trainer.theta_TP, trained(plan, [trial(0), trial(3)]))


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [("constant", (1, 1, 1, 1)), ("step", (1, 0.1, 0.01, 0.01)), ("cosine", (1, 0.75, 0.25, 0))],
)
def test_schedules_at_start_thirds_and_end(schedule, factors):
    found = [learning_rate_factor(schedule, step, 300) for step in (0, 100, 200, 300)]
    assert found == pytest.approx(factors, abs=1e-12)


def test_step_schedule_drops_at_thirds():
    assert [learning_rate_factor("step", step, 300) for step in (99, 199, 299)] == pytest.approx([1, 0.1, 0.01])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spy(ResidualNetwork):
    """Records the first input coordinate, where the data keep the sample's number."""

    seen: list = dataclasses.field(default_factory=list)

    def logits(self, parameters, x_TNI, state=NO_STATE):
        self.seen.append(x_TNI[..., 0].long())
        return super().logits(parameters, x_TNI, state)


def batches_seen(batch_size, num_steps, seeds):
    x_NI, labels_N = data()
    x_NI[:, 0] = torch.arange(SAMPLES)
    spy = Spy(**{field.name: getattr(network_of(), field.name) for field in dataclasses.fields(ResidualNetwork)})
    trials = [trial(seed) for seed in seeds]
    trainer = FusedTrainer(spy, plan_of(batch_size=batch_size), trials, x_NI, labels_N)
    for _ in range(num_steps):
        trainer.step()
    return torch.stack(spy.seen, dim=1)


def test_an_epoch_visits_each_sample_at_most_once():
    per_epoch = SAMPLES // 8
    seen_TSB = batches_seen(8, 3 * per_epoch, [0, 1, 2])
    epochs = [seen_TSB[t, e * per_epoch : (e + 1) * per_epoch].flatten().tolist() for t in range(3) for e in range(3)]
    assert all(len(set(epoch)) == len(epoch) == 8 * per_epoch for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 9  # another order for every seed and epoch


@pytest.mark.parametrize("batch_size", [None, SAMPLES])
def test_full_batch_keeps_order(batch_size):
    assert batches_seen(batch_size, 2, [0, 1]).tolist() == [[list(range(SAMPLES))] * 2] * 2


@pytest.mark.slow
def test_clipping_bounds_the_gradient_of_each_trial_alone():
    """One step of plain gradient descent at lr 1 moves by the gradient."""
    decays = [{"hidden": decay, "last": 0.01} for decay in (50.0, 0.005, 0.0)]
    trials = [trial(s, lr=1.0, momentum=0.0, weight_decays=decay) for s, decay in enumerate(decays)]

    def moved(clip_norm):
        trainer = trainer_of(plan_of(clip_norm=clip_norm, dtype=torch.float64), trials)
        before_TP = trainer.theta_TP.clone()
        trainer.step()
        return trainer.theta_TP - before_TP

    free_TP, clipped_TP = moved(None), moved(2.0)
    assert free_TP[0].norm() > 100 and free_TP[1:].norm(dim=1).max() < 2
    torch.testing.assert_close(clipped_TP[0], free_TP[0] * 2.0 / free_TP[0].norm(), rtol=1e-6, atol=0)
    assert torch.equal(clipped_TP[1:], free_TP[1:])


@pytest.mark.parametrize("batch_size", BATCHES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_going_on_from_saved_state_is_bitwise(optimizer, batch_size):
    plan, trials = plan_of(optimizer=optimizer, batch_size=batch_size, schedule="cosine"), [trial(0), trial(1)]
    first = trainer_of(plan, trials)
    for _ in range(23):
        first.step()
    buffer = io.BytesIO()
    torch.save(first.state(), buffer)
    second = trainer_of(plan, trials)
    second.load_state(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    for _ in range(37):
        second.step()
    assert torch.equal(second.theta_TP, trained(plan, trials))


def test_streams_differ_by_seed_and_purpose():
    draws = {torch.rand(1, generator=random_stream(s, p)).item() for s in range(3) for p in ("init", "data order")}
    assert len(draws) == 6


def test_a_trainer_is_freed_at_once():
    """A cycle between trainer and steps would keep a pack's tensors in memory while the next one trains."""
    x, labels = torch.randn(SAMPLES, INPUTS), torch.arange(SAMPLES) % CLASSES
    trainer = FusedTrainer(network_of(), plan_of(), [trial(0), trial(1)], x, labels)
    trainer.step()
    reference = weakref.ref(trainer)
    gc.disable()
    try:
        del trainer
        assert reference() is None
    finally:
        gc.enable()
