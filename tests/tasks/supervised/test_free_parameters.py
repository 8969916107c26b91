"""What of a network is free and what costs something: fixed embeddings, decayed embeddings and biases."""

import numpy as np
import pytest
import torch

from depthrate.tasks.interface import Engine
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.parameters import weight_decays
from depthrate.tasks.supervised.targets.collapse import objective_bound
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.supervised.theory import bound_of_gap
from tests.support.training_context import Context, assert_same, ids_of

STEPS = 15


def params_of(**changes):
    base = {"arch": "rn1", "depth": 3, "width": 8, "samples_per_class": 3, "steps": STEPS, "lr": 0.05}
    return COLLAPSE.schema.fill({**base, **changes})


def run(trials, **context):
    return list(COLLAPSE.run(trials, Context(ids_of(trials), **context)))


def trainer_of(*trials):
    read = [COLLAPSE.read(params) for params in trials]
    return COLLAPSE.training(read, Context().data).begin()


SHAPES = [
    {},
    {"arch": "rn2", "optimizer": "adam", "norm": "pre"},
    {"arch": "t11", "depth": 1},
    {"polish": 20, "polish_to": "stationary", "polish_barrier": 0.0},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fixed_embedding_stays_as_sampled(shape):
    trainer = trainer_of(*(params_of(**shape, train_embedding=False, seed=seed) for seed in (0, 1)))
    names = ("W_e", "W_p") if shape.get("arch") == "t11" else ("W_0", "b_0")
    before = {name: tensor.clone() for name, tensor in trainer.parameters().items()}
    for _ in range(5):
        trainer.step()
    for name, tensor in trainer.parameters().items():
        assert torch.equal(tensor, before[name]) == (name in names), name
    assert torch.equal(before[names[0]][0], before[names[0]][1]), "both seeds have one embedding"
    assert not torch.equal(before["W_L"][0], before["W_L"][1])


def test_embedding_seed_changes_only_the_embedding():
    first, second = (trainer_of(params_of(train_embedding=False, embedding_seed=seed)) for seed in (0, 1))
    other = {name for name, tensor in first.parameters().items() if not torch.equal(tensor, second.parameters()[name])}
    assert other == {"W_0", "b_0"}


def test_own_seed_embeds_like_training():
    fixed, trained = trainer_of(params_of(train_embedding=False)), trainer_of(params_of())
    assert torch.equal(fixed.theta_TP, trained.theta_TP)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Engine.EAGER, Engine.AUTO])
def test_fixed_together_is_fixed_alone(engine):
    trials = [params_of(train_embedding=False, seed=seed, embedding_seed=seed % 2) for seed in range(3)]
    together = run(trials, engine=engine)
    assert_same(together, [result for params in trials for result in run([params], engine=engine)])


def test_the_gradient_norm_leaves_out_what_is_fixed():
    fixed, trained = trainer_of(params_of(train_embedding=False)), trainer_of(params_of())
    assert 0 < fixed.evaluate()["grad_norm"].item() < trained.evaluate()["grad_norm"].item()
    assert fixed.evaluate()["objective"].item() == trained.evaluate()["objective"].item()


def test_decayed_embeddings_and_biases_cost_what_they_are():
    decays = {"weight_decay_embedding": 0.01, "weight_decay_biases": 0.02}
    (result,) = run([params_of(**decays, measure_steps=[0])])
    trainer = trainer_of(params_of(**decays))
    wanted = {"hidden": 0.005, "last": 0.005, "embedding": 0.01, "biases": 0.02}
    assert weight_decays(COLLAPSE.read(params_of(**decays))) == wanted
    weights = {name: tensor.double().square().sum().item() for name, tensor in trainer.parameters().items()}
    first = next(row for row in result.tables["metrics"] if row["step"] == 0 and row["is_last"])
    assert first["regularisation_embedding"] == pytest.approx(0.005 * (weights["W_0"] + weights["b_0"]))
    biases = weights["b_1"] + weights["b_2"] + weights["b_L"]
    assert first["regularisation_biases"] == pytest.approx(0.01 * biases)
    curve = result.tables["curves"][0]
    parts = sum(value for name, value in first.items() if name.startswith("regularisation_") and value is not None)
    assert curve["objective"] == pytest.approx(curve["loss"] + parts, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_embedding": False, "weight_decay_embedding": 0.1}, "is false, but weight_decay_embedding is 0.1"),
        ({"embedding_seed": 1}, "embedding_seed is 1, but train_embedding is true"),
        ({"arch": "resnet20_mlp", "train_embedding": False}, "train_embedding is False, but 'resnet20_mlp'"),
        ({"arch": "resnet_dense", "weight_decay_biases": 0.1}, "weight_decay_biases is 0.1, but 'resnet_dense'"),
    ],
)
def test_what_means_nothing_is_refused(changes, message):
    with pytest.raises(ParameterError, match=message):
        COLLAPSE.check(COLLAPSE.read(params_of(**changes)))


@pytest.mark.parametrize("changes", [{"weight_decay_embedding": 0.1}, {"label_smoothing": 0.1}])
def test_theorem_bound_needs_its_problem(changes):
    trials = [params_of(depth=depth, **changes) for depth in (3, 5)]
    assert bound_of_gap(trials) is None
    assert objective_bound(COLLAPSE.read(trials[1]), 30, 0.5) is None


def test_decayed_biases_scale_the_bound():
    free, fixed, decayed = (
        [params_of(arch="rn1", depth=depth, width=8, weight_decay=0.01, **changes) for depth in (3, 5)]
        for changes in ({}, {"train_embedding": False}, {"weight_decay_biases": 0.01})
    )
    assert bound_of_gap(free) == bound_of_gap(fixed) == bound_of_gap(decayed) is not None
    assert bound_of_gap([free[0], decayed[1]]) is None  # their factors differ
    bounds = [objective_bound(COLLAPSE.read(trials[1]), 30, 0.5) for trials in (free, fixed, decayed)]
    # 32 pi^2 d lambda N / (L_1 m^2) + 2^7 N d lambda log^2 L_2 / (m^2 L_2) with L_1 = L_2 = 2
    expected = 30 * 8 * 0.01 / 0.25 * (16 * np.pi**2 + 64 * np.log(2) ** 2)
    assert bounds == pytest.approx([expected, expected, 9 * expected])


def test_smallest_deviation_per_layer_norm():
    (result,) = run([params_of(arch="rn1", depth=4, polish=5)])
    last = result.tables["metrics"][-1]
    assert len(last["deviations"]) == 4 and np.min(last["deviations"]) == last["smallest_deviation"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"optimizer": "adam", "clip_norm": 0.1}, {"batch_size": 7}])
def test_native_steps_keep_fixed_embeddings(changes):
    trials = [params_of(train_embedding=False, dtype="float64", arch="rn1", measure_steps=[0], **changes)]
    (native,), (eager,) = run(trials, engine=Engine.NATIVE), run(trials, engine=Engine.EAGER)
    for one, other in zip(native.tables["curves"], eager.tables["curves"], strict=True):
        for name in ("objective", "grad_norm"):
            assert one[name] == pytest.approx(other[name], rel=1e-9)
    first, last = ([r for r in native.tables["metrics"] if r["step"] == step and r["layer"] == 1] for step in (0, 15))
    assert first[0]["nc1"] == last[0]["nc1"], "what the first block reads stays as it is"


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{}, {"arch": "t11", "depth": 1}, {"polish_to": "stationary"}], ids=str)
def test_polish_takes_fixed_embeddings(shape):
    """The barrier is then a constant: each engine adds it to the objective, and it has no gradient."""
    trials = [params_of(dtype="float64", polish=40, train_embedding=False, **shape)]
    (native,), (eager,) = run(trials, engine=Engine.AUTO), run(trials, engine=Engine.EAGER)
    for one, other in zip(native.tables["curves"], eager.tables["curves"], strict=True):
        assert one["objective"] == pytest.approx(other["objective"], rel=1e-9)
    curves = [row for row in eager.tables["curves"] if row["split"] == "train"]
    trained, polished = (row for row in curves if row["step"] in (STEPS, eager.num_steps))
    assert polished["objective"] < 0.9 * trained["objective"]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["rn1", "rn2"])
def test_native_steps_and_polish_decay_embeddings_and_biases(arch):
    """Decays so large that what was left out would be seen; L-BFGS from the same point takes the same way at first."""
    decays = {"weight_decay_embedding": 0.3, "weight_decay_biases": 0.2}
    trials = [params_of(dtype="float64", arch=arch, polish=5, **decays)]
    (native,), (eager,) = run(trials, engine=Engine.NATIVE), run(trials, engine=Engine.EAGER)
    (without,) = run([{**trials[0], "weight_decay_biases": 0.0}], engine=Engine.NATIVE)
    for one, other, third in zip(*(result.tables["curves"] for result in (native, eager, without)), strict=True):
        assert one["objective"] == pytest.approx(other["objective"], rel=1e-9)
        assert one["objective"] != pytest.approx(third["objective"], rel=1e-4)
