"""Factors of residual branches and depth parametrisations, against identities, torch's optimisers and a coordinate check."""

import math

import numpy as np
import pytest
import torch

from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import sweep_of_spec
from depthrate.tasks.interface import Engine
from depthrate.tasks.networks.parametrisation import Factors, Parametrisation
from depthrate.tasks.networks.residual import ResidualNetwork
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.targets.collapse import objective_bound
from depthrate.tasks.supervised.task import COLLAPSE, REGRESSION
from depthrate.tasks.supervised.theory import bound_of_gap, construction_excess, may_idle, reaches_limit
from tests.support.training_context import Context, assert_same, ids_of, run_resumed

STEPS = 15
DEPTHS = [4, 8, 16, 32, 64, 128, 256]


def params_of(**changes):
    base = {"arch": "rn1", "depth": 5, "width": 8, "samples_per_class": 3, "steps": STEPS, "lr": 0.05}
    return COLLAPSE.schema.fill({**base, **changes})


def trainer_of(*trials):
    read = [COLLAPSE.read(params) for params in trials]
    return COLLAPSE.training(read, Context().data).begin()


def run(trials, **context):
    return list(COLLAPSE.run(trials, Context(ids_of(trials), **context)))


def outputs(trainer):
    return trainer.network.logits(trainer.parameters(), trainer.x_NI.expand(trainer.num_trials, *trainer.x_NI.shape))


class LinearBlocks(ResidualNetwork):
    """h + s W h, without LayerNorm."""

    def _norm(self, h_TND):
        return h_TND


@pytest.mark.parametrize(("alpha", "deviation"), [(0.5, 1.0), (1.0, 1.5), (0.5, 0.3)])
def test_linear_blocks_grow_as_computed(alpha, deviation):
    blocks, width, trials = 34, 32, 400
    shape = {"linear_layers": 1, "pre_norm": False, "input_dimensions": width, "num_classes": 2, "last_bias": False}
    network = LinearBlocks(**shape, depth=blocks + 1, width=width, block_scale=blocks**-alpha, relu=lambda z: z)
    generator = torch.Generator().manual_seed(0)
    parameters = {s.name: torch.zeros(trials, *s.shape, dtype=torch.float64) for s in network.parameter_specs()}
    for name, tensor in parameters.items():
        if name.startswith("W_"):
            tensor.normal_(0, deviation / math.sqrt(width), generator=generator)
    parameters["W_0"] = torch.eye(width, dtype=torch.float64).expand(trials, width, width)
    x = torch.randn(1, 1, width, generator=generator, dtype=torch.float64).expand(trials, 1, width)
    first, *_, last = network.features(parameters, x)
    ratio = (last.square().sum(2) / first.square().sum(2)).squeeze(1)
    expected = (1 + deviation**2 * blocks ** (-2 * alpha)) ** blocks
    assert expected == pytest.approx(2.679, abs=1e-3) or (alpha, deviation) != (0.5, 1.0)
    assert ratio.mean().item() == pytest.approx(expected, abs=4 * ratio.std().item() / math.sqrt(trials))


def change_after_a_step(depth, **changes):
    """Root of the mean squared change of the outputs in the first step."""
    shape = {"depth": depth, "width": 16, "samples_per_class": 2, "steps": 1, "schedule": "constant", "init": "normal"}
    trials = [params_of(**shape, dtype="float64", weight_decay=0.0, seed=s, **changes) for s in range(8)]
    trainer = trainer_of(*trials)
    before = outputs(trainer)
    trainer.step()
    return (outputs(trainer) - before).square().mean().sqrt().item()


@pytest.mark.parametrize(("optimizer", "lr"), [("adam", 1e-4), ("sgd", 1e-2)])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("arch", ["rn1", "rn2"])
def test_a_step_changes_outputs_independently_of_depth(arch, norm, optimizer, lr):
    shape = {"arch": arch, "norm": norm, "optimizer": optimizer, "lr": lr}
    presets = [{}, *({"parametrisation": name, "base_width": 16} for name in ("depth_mup", "complete_p"))]
    changes = [[change_after_a_step(depth, **shape, **preset) for depth in DEPTHS] for preset in presets]
    sp, depth_mup, complete_p = (float(np.polyfit(np.log(DEPTHS), np.log(values), 1)[0]) for values in changes)
    assert abs(depth_mup) < 0.05 and abs(complete_p) < 0.05
    assert sp > 0.25


@pytest.mark.parametrize("shape", [{"arch": arch} for arch in ("rn1", "rn2", "t11", "t22")], ids=str)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_factor_equals_larger_weights(shape, norm):
    shape = {**shape, "norm": norm, "depth": 3, "dtype": "float64"}
    scaled, plain = (trainer_of(params_of(**shape, block_scale=s)) for s in (0.3, 1.0))
    last = {"rn1": ("1", "2"), "rn2": ("1,2", "2,2"), "t11": ("1,VO", "2,VO", "3,VO", "1", "2", "3")}
    last["t22"] = tuple(f"{block},{name}" for block in (1, 2, 3) for name in ("O", "2"))
    for name, tensor in plain.parameters().items():
        if name.partition("_")[2] in last[shape["arch"]]:
            tensor *= 0.3
    torch.testing.assert_close(outputs(scaled), outputs(plain), rtol=1e-12, atol=1e-12)
    for one, other in zip(
        scaled.network.norm_inputs(scaled.parameters(), scaled.x_NI[None]),
        plain.network.norm_inputs(plain.parameters(), plain.x_NI[None]),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("preset", ["depth_mup", "complete_p"])
def test_presets_change_nothing_at_their_base(preset):
    (found,), (expected,) = (
        run([params_of(optimizer="adamw", **changes)])
        for changes in ({"parametrisation": preset, "base_depth": 5, "base_width": 8}, {})
    )
    assert_same([found], [expected])


def test_steps_equal_torch_with_the_papers_table():
    """AdamW with Table 1 of 2505.01618 as it is: the last weight has its own multiplier 1 / m_N."""
    alpha, m_L, m_N, lr, eps, decay = 0.5, 2.0, 4.0, 0.01, 1e-3, 0.1
    shape = {"depth": 5, "base_depth": 3, "width": 8, "base_width": 2, "dtype": "float64", "schedule": "constant"}
    trial = params_of(**shape, parametrisation="depth_mup", optimizer="adamw", lr=lr, weight_decay=decay)
    trainer = trainer_of(trial)
    assert trainer.network.block_scale == pytest.approx(m_L**-alpha)
    sp = trainer_of(params_of(**{**shape, "base_depth": 2, "base_width": 64}))
    ratio = trainer.parameters()["W_L"] / sp.parameters()["W_L"]
    torch.testing.assert_close(ratio, torch.full_like(ratio, m_N**-0.5))
    trainer.eps = trainer.eps * eps / 1e-8  # large enough to have an effect
    leaves = {name: tensor.clone() for name, tensor in trainer.parameters().items()}
    leaves["W_L"] *= m_N
    groups = []
    for name, tensor in leaves.items():
        tensor.requires_grad_()
        is_bias, place = name.startswith("b_"), name[2:]
        group = {"params": [tensor], "lr": lr, "eps": eps / m_N, "weight_decay": 0.0}
        if place.isdecimal() and place != "0":
            group["lr"] *= m_L ** (alpha - 1) * (1 if is_bias else 1 / m_N)
            group["eps"] = eps / m_N * m_L**-alpha
            group["weight_decay"] = 0 if is_bias else decay * m_N
        elif name == "W_L":
            group["weight_decay"] = decay
        elif name == "b_L":
            group["eps"] = eps
        groups.append(group)
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.999))
    for _ in range(5):
        optimizer.zero_grad()
        logits = trainer.network.logits({**leaves, "W_L": leaves["W_L"] / m_N}, trainer.x_NI[None])
        torch.nn.functional.cross_entropy(logits[0], trainer.labels_N).backward()
        optimizer.step()
        trainer.step()
    for name, tensor in trainer.parameters().items():
        expected = leaves[name].detach() / (m_N if name == "W_L" else 1)
        torch.testing.assert_close(tensor, expected, rtol=1e-9, atol=1e-12)


def test_factors_of_sgd():
    preset = Parametrisation(1.0, 3.0, 2.0)
    found = {name: preset.factors(name, "sgd") for name in ("W_0", "W_2,1", "b_2", "W_L", "b_L", "W_e", "W_p")}
    rates = {name: factors.rate for name, factors in found.items()}
    assert rates == {"W_0": 2.0, "W_2,1": 3.0, "b_2": 6.0, "W_L": 0.5, "b_L": 1.0, "W_e": 2.0, "W_p": 2.0}
    assert Parametrisation(0.5, 3.0, 1.0).factors("W_2", "sgd") == Factors()


PACKS = [
    {"parametrisation": "complete_p", "block_scale": 0.5, "optimizer": "adam", "batch_size": 7},
    {"parametrisation": "complete_p", "optimizer": "sgd", "arch": "rn2", "norm": "pre", "clip_norm": 0.5},
    {"parametrisation": "depth_mup", "optimizer": "adamw"},
    {"block_scale": 0.5, "optimizer": "rmsprop", "arch": "t11", "depth": 2},
]


@pytest.mark.parametrize("changes", PACKS, ids=str)
def test_together_is_alone_and_resumed_is_uninterrupted(changes):
    trials = [params_of(**changes, seed=seed, lr=0.01 * (seed + 1)) for seed in range(3)]
    together = run(trials)
    assert_same(together, [result for params in trials for result in run([params])])
    assert_same(run_resumed(COLLAPSE.run, trials, 6)[0], together)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"block_scale": 0.5}, {"parametrisation": "depth_mup", "base_width": 8}], ids=str)
def test_generated_kernels_take_factors(changes):
    """Depth-muP at the base width has equal rates with SGD."""
    trials = [params_of(dtype="float64", seed=seed, **changes) for seed in range(3)]
    native, eager = run(trials, engine=Engine.NATIVE), run(trials, engine=Engine.EAGER)
    assert_same(native, [result for params in trials for result in run([params], engine=Engine.NATIVE)])
    for one, other in zip(native, eager, strict=True):
        losses = [[row["loss"] for row in result.tables["curves"]] for result in (one, other)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_plans_say_why_presets_train_eagerly():
    assert COLLAPSE.eager_reason(params_of(), "cpu") is None
    assert COLLAPSE.eager_reason(params_of(block_scale=0.5), "cpu") is None
    message = COLLAPSE.eager_reason(params_of(parametrisation="complete_p", base_width=8), "cpu")
    assert message.startswith("parametrisation gives parameters different learning rates")


def test_block_scale_is_a_power_of_depth():
    spec = {
        "name": "powers",
        "task": "collapse",
        "params": {"arch": "rn1"},
        "grid": {"depth": [4, 16]},
        "derive": {"block_scale": "depth ** -0.5", "weight_decay": "0.005 * block_scale ** 2"},
    }
    params = [trial.params for trial in expand(sweep_of_spec(spec))]
    assert [(p["block_scale"], p["weight_decay"]) for p in params] == [(0.5, 0.00125), (0.25, 0.0003125)]


def test_theory_counts_a_factor_as_a_larger_decay():
    """s relu(W x + b) = relu(s W x + s b), so that decay / s^2 is the same problem."""
    plain, scaled = (
        [params_of(depth=depth, weight_decay=0.01 * s**2, weight_decay_last=0.01, block_scale=s) for depth in (3, 9)]
        for s in (1.0, 0.25)
    )
    assert construction_excess(scaled) == pytest.approx(construction_excess(plain))
    assert objective_bound(COLLAPSE.read(scaled[1]), 30, 0.5) == objective_bound(COLLAPSE.read(plain[1]), 30, 0.5)
    assert bound_of_gap([params_of(depth=9, block_scale=0.25)]) == [16 * bound_of_gap([params_of(depth=9)])[0]]
    assert may_idle(plain[0]) and not may_idle(scaled[0])
    presets = {name: [params_of(depth=L, parametrisation=name) for L in (3, 9)] for name in ("sp", "complete_p")}
    assert reaches_limit(presets["sp"]) and not reaches_limit(presets["complete_p"])
    kept = [params_of(depth=L, parametrisation="complete_p", weight_decay=0.01 / (L - 1) ** 2) for L in (3, 9)]
    assert reaches_limit(kept)


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        (COLLAPSE, {"arch": "mlp", "block_scale": 0.5}, "block_scale is 0.5, but 'mlp' has no such branches"),
        (REGRESSION, {"arch": "mlp", "parametrisation": "complete_p"}, "parametrisation is 'complete_p', but 'mlp'"),
        (COLLAPSE, {"base_depth": 4}, "base_depth is 4, but parametrisation is 'sp'"),
        (COLLAPSE, {"base_width": 4}, "base_width is 4, but parametrisation is 'sp'"),
        (COLLAPSE, {"arch": "t11", "parametrisation": "depth_mup"}, "Set base_width to width"),
        (
            COLLAPSE,
            {"parametrisation": "depth_mup", "polish": 5, "continuation": [3, 5]},
            "whose branches depend on depth",
        ),
    ],
)
def test_meaningless_combinations_are_refused(task, changes, message):
    params = task.schema.fill({"arch": "rn1", "depth": 5, "width": 8, "steps": STEPS, **changes})
    with pytest.raises(ParameterError, match=message):
        task.check_trial(params)
