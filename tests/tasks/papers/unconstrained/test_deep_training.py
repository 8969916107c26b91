"""Packs of the model: gradient by hand against autograd, what is measured, what is refused, interruption."""

import itertools
import logging
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from depthrate.tasks.interface import Engine
from depthrate.tasks.measures.named_columns import WEIGHT_NAMES
from depthrate.tasks.papers.unconstrained.deep_solutions import SolutionKind
from depthrate.tasks.papers.unconstrained.parameters import problem_of
from depthrate.tasks.papers.unconstrained.task import DUFM
from depthrate.tasks.papers.unconstrained.theory import dnc_loss
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.training.trainer import FusedTrainer
from tests.support.training_context import Context, assert_same, ids_of

SMALL = {"depth": 3, "num_classes": 3, "samples_per_class": 4, "width": 5, "weight_decay": 0.01, "lr": 0.2}


def trial(**params):
    filled = DUFM.schema.fill({**SMALL, "steps": 30, **params})
    DUFM.check_trial(filled)
    return filled


def run(trials):
    return list(DUFM.run(trials, Context(ids_of(trials))))


def trainer_of(trials, make=None):
    training = DUFM.training([DUFM.read(params) for params in trials], None)
    data = training.dataset
    given = training.network, training.plan, training.hyperparameters
    return (make or training.trainer)(*given, torch.tensor(data.x_NI), torch.tensor(data.labels_N))


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [{}, {"activation": "none"}, {"depth": 1}, {"schedule": "cosine"}, {"loss": "ce"}, {"loss": "ce", "depth": 1}],
)
def test_manual_step_equals_autograd(params):
    shared = params | {"dtype": "float64"}
    trials = [trial(**shared, seed=seed, lr=0.1 + 0.1 * seed, weight_decay_features=0.02 * seed) for seed in range(3)]
    by_hand = trainer_of(trials)
    reference = trainer_of(trials, FusedTrainer)
    reference.theta_TP = by_hand.theta_TP.clone()
    for _ in range(20):
        torch.testing.assert_close(by_hand.step(), reference.step(), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(by_hand.theta_TP, reference.theta_TP, rtol=1e-11, atol=1e-13)
    assert not torch.equal(by_hand.theta_TP[0], by_hand.theta_TP[1])


def test_every_declared_column_is_measured_and_no_other():
    declared = {measurement.name: measurement for measurement in DUFM.measurements}
    (result,) = run([trial(num_classes=6, width=8, features="class_means", measure=", ".join(WEIGHT_NAMES))])
    keys = {"step", "split", "layer", "is_last"}
    metrics, curves = result.tables["metrics"], result.tables["curves"]
    assert {name for row in metrics for name in row} - keys - {"solution"} == {
        name for name, item in declared.items() if item.per == "layer"
    } - {"class_order"}
    assert {name for row in curves for name in row} - keys == {n for n, item in declared.items() if item.per == "step"}
    last = [row for row in metrics if row["step"] == 30]
    assert [row["layer"] for row in last] == [1, 2, 3] and [row["is_last"] for row in last] == [False, False, True]
    assert "rank_pre" not in last[0] and last[1]["rank_pre"] >= last[1]["rank"] - 6
    for row in last:
        singular = np.linalg.svd(np.asarray(row["class_gram"]).reshape(6, 6), compute_uv=False) ** 0.5
        np.testing.assert_allclose(row["singular_values"], singular, rtol=1e-3, atol=1e-3)
        assert row["ranks"] == sorted(row["ranks"]) and row["ranks"][1] == row["rank"]
    assert result.tables["features"]["feature"].shape == (3 * 6, 8)


def test_objective_and_ratios_are_the_theorys():
    """At a closed form the ratios are 1, and gradient descent stays."""
    params = trial(init="dnc", weight_decay=0.002, dtype="float64", weight_decays=[0.001, 0.002, 0.003])
    (result,) = run([params])
    last = result.tables["curves"][-1]
    assert last["loss_over_dnc"] == pytest.approx(1, rel=1e-12) and last["loss_over_srg"] is None
    assert last["best_known"] == pytest.approx(dnc_loss(problem_of(DUFM.read(params))), rel=1e-12)
    assert last["grad_norm"] < 1e-10 and last["accuracy"] == 1
    row = result.tables["metrics"][-1]
    assert "class_order" not in row
    assert row["solution"] == SolutionKind.DNC
    assert row["dnc2"] == pytest.approx(1)
    assert row["dnc3"] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("init", ["dnc", "srg"])
def test_noisy_closed_form_descends(init):
    start = trial(depth=4, num_classes=10, samples_per_class=2, width=12, weight_decay=0.004, weight_decay_features=0.1)
    start |= {"init": init, "init_noise": 0.01, "lr": 0.01, "dtype": "float64", "steps": 300}
    params = [start | {"seed": seed} for seed in range(2)]
    for result in run(params):
        values = [row["objective"] for row in result.tables["curves"]]
        assert len(values) > 15 and all(after <= before + 1e-12 for before, after in itertools.pairwise(values))
        assert result.tables["curves"][-1][f"loss_over_{init}"] < 1.01


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [{"num_classes": 2, "depth": 3}, {"num_classes": 2, "depth": 4}, {"num_classes": 4, "depth": 2}]
)
def test_collapse_is_optimal_for_small_cases(shape):
    given = shape | {"samples_per_class": 2, "width": 6, "weight_decay": 0.03, "lr": 0.4}
    trials = [trial(**given, dtype="float64", steps=600, seed=seed) for seed in range(4)]
    ratios = [result.tables["curves"][-1]["loss_over_dnc"] for result in run(trials)]
    assert min(ratios) > 1 - 1e-12 and min(ratios) < 1.05


@pytest.mark.slow
def test_balanced_starts_are_balanced():
    start = trainer_of([trial(init="balanced", dtype="float64")]).parameters()
    h, *weights = (matrix[0] for matrix in start.values())
    torch.testing.assert_close(h.mT @ h, weights[0].mT @ weights[0])
    for before, after in itertools.pairwise(weights):
        torch.testing.assert_close(before @ before.mT, after.mT @ after)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weight_decay", "optimum", "of_collapse"), [(0.02, 0.2308635116, 0.99379), (0.04, 0.4363719, 0.97734)]
)
def test_six_classes_collapse_to_a_bipartite_graph(weight_decay, optimum, of_collapse):
    """Optimum: minimised over the 9 numbers that the graph's symmetry leaves, by Nelder-Mead, without this code.

    Six neurons are -1 at the ends of an edge and +1 at other vertices up to a factor, three belong to the vertices of one side.
    """
    shape = {"num_classes": 6, "samples_per_class": 1, "width": 12, "lr": 0.3, "schedule": "cosine", "dtype": "float64"}
    given = shape | {"init": "bipartite", "weight_decay": weight_decay, "steps": 40_000, "measure_steps": []}
    starts = [trial(**given, seed=seed) for seed in (2, 4, 7)]
    for result in run(starts):
        last, row = result.tables["curves"][-1], result.tables["metrics"][-1]
        assert last["objective"] == pytest.approx(optimum, abs=1e-6)
        assert last["loss_over_dnc"] == pytest.approx(of_collapse, abs=1e-5)
        assert row["rank_pre"] == 4 and row["solution"] == SolutionKind.LOW_RANK


def test_a_bipartite_start_has_classes_as_edges():
    shape = {"num_classes": 8, "width": 9, "samples_per_class": 2, "depth": 4}
    start = trainer_of([trial(**shape, init="bipartite", dtype="float64")]).parameters()
    h_ND = start["H_1"][0, ::2]
    gram_KK = (h_ND @ h_ND.T).numpy()
    edges = [(a, b) for a in range(2) for b in range(4)]
    np.testing.assert_array_equal(gram_KK, [[(a == c) + (b == d) for c, d in edges] for a, b in edges])
    np.testing.assert_array_equal(start["W_1"][0], 0.9 * np.eye(9))
    np.testing.assert_allclose(start["W_3"][0].abs(), 1 / 3)


def test_scale_and_noise_of_a_start():
    changes = ({}, {"init_scale": 3.0}, {"init_noise": 0.1})
    plain, scaled, noisy = (trainer_of([trial(dtype="float64", **params)]).theta_TP[0] for params in changes)
    torch.testing.assert_close(scaled, 3 * plain)
    assert 0.05 < (noisy - plain).norm() / plain.norm() < 0.2


def test_the_network_reports_what_it_computes():
    smallest = DUFM.read(trial())
    network = DUFM.network(smallest, DUFM.data_shape(smallest))
    assert network.num_parameters == 12 * 5 + 5 * 5 * 2 + 3 * 5
    assert [spec.decay for spec in network.parameter_specs()] == ["H_1", "W_1", "W_2", "W_3"]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"num_classes": 1}, "num_classes.*>= 2"),
        ({"init": "srg", "num_classes": 11, "width": 20}, "num_classes is 11.* 6, 10, 15"),
        ({"init": "srg", "num_classes": 10, "width": 20, "depth": 2}, "depth is 2.*at least 3"),
        ({"init": "dnc", "num_classes": 10, "width": 9}, "width is 9.*at least 10"),
        ({"init": "bipartite", "num_classes": 7, "width": 9}, "num_classes is 7.*product.*4, 6, 8"),
        ({"init": "bipartite", "num_classes": 6, "width": 9, "depth": 2}, "depth is 2.*at least 3"),
        ({"weight_decays": [0.1]}, "weight_decays has 1 numbers, depth is 3"),
        ({"init": "dnc", "weight_decay": 0}, "weight decays above 0"),
        ({"init": "dnc", "loss": "ce"}, "loss is 'ce', expected loss mse"),
        ({"measure_steps": [99]}, "measure_steps has 99"),
    ],
)
def test_bad_input(params, words):
    with pytest.raises(ParameterError, match=words):
        trial(**params)


@pytest.mark.parametrize(
    ("params", "solution"),
    [
        ({"weight_decay": 0}, SolutionKind.UNCONVERGED),
        ({"weight_decay_features": 0}, SolutionKind.UNCONVERGED),
        ({"weight_decays": [0.01, 0, 0.01]}, SolutionKind.UNCONVERGED),
        ({"loss": "ce"}, None),
        ({"loss": "ce", "weight_decay": 0}, None),
    ],
)
def test_closed_forms_are_silent_without_weight_decay_or_squared_loss(params, solution):
    (result,) = run([trial(**params)])
    row = result.tables["curves"][-1]
    assert row["loss_over_dnc"] is row["loss_over_srg"] is row["best_known"] is None
    assert math.isfinite(row["objective"])
    assert result.tables["metrics"][-1].get("solution") == solution


def test_cross_entropy_alone_and_fused():
    trials = [trial(loss="ce", seed=seed, lr=0.1 * (seed + 1), weight_decay=0.01 * seed) for seed in range(3)]
    for params, expected in zip(trials, run(trials), strict=True):
        assert_same(run([params]), [expected])


@pytest.mark.parametrize("loss", ["mse", "ce"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_both_losses_have_kernels_on_both_devices(loss, device):
    assert DUFM.eager_reason(trial(loss=loss), device) is None
    assert DUFM.engine(trial(loss=loss), Engine.AUTO, device) is Engine.NATIVE


@pytest.mark.slow
@pytest.mark.parametrize(("num_classes", "samples_per_class"), [(3, 1), (4, 3)])
def test_one_layer_with_cross_entropy_reaches_the_simplex(num_classes, samples_per_class):
    """The cost of both decays is at least c ||Z||_* of the logits Z = a (I - 1 1^T / K), with c^2 = n lambda_H lambda_1.

    log(1 + (K-1) e^-a) + c (K-1) a has its minimum at a = log(1/c - K + 1), if c < 1/K. scipy confirms it.
    """
    decays = {"weight_decay": 0.004, "weight_decay_features": 0.01}
    k, c = num_classes, math.sqrt(samples_per_class * 0.004 * 0.01)
    scale = math.log(1 / c - k + 1)

    def objective_of(a):
        return math.log1p((k - 1) * math.exp(-a)) + c * (k - 1) * a

    best = minimize_scalar(objective_of, bounds=(0, 20), method="bounded", options={"xatol": 1e-10})
    assert best.x == pytest.approx(scale, abs=1e-6)
    shape = {"depth": 1, "num_classes": k, "samples_per_class": samples_per_class, "width": k + 2, "loss": "ce"}
    params = trial(**shape, **decays, lr=1.0, steps=15_000, dtype="float64", measure_steps=[], features="all")
    (result,) = run([params])
    last = result.tables["curves"][-1]
    assert last["objective"] == pytest.approx(objective_of(scale), rel=1e-9) and last["grad_norm"] < 1e-6
    # at the optimum n lambda_H H^T H = lambda_1 W W^T, so that H^T H = a c / (n lambda_H) (I - 1 1^T / K)
    gram_KK = np.asarray(result.tables["metrics"][-1]["class_gram"]).reshape(k, k)
    simplex_KK = scale * c / (samples_per_class * 0.01) * (np.eye(k) - 1 / k)
    np.testing.assert_allclose(gram_KK, simplex_KK, atol=1e-4 * scale)
    assert result.tables["metrics"][-1]["nc1"] < 1e-9


@pytest.mark.slow
def test_a_warning_where_zero_is_the_best(caplog):
    with caplog.at_level(logging.WARNING):
        (result,) = run([trial(weight_decay=0.4, lr=0.5, steps=400)])
    assert "the zero solution (objective 0.5) is the best closed form" in caplog.text and "0.4" in caplog.text
    assert result.tables["metrics"][-1]["solution"] == SolutionKind.ZERO
