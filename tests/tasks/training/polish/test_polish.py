"""Polish and continuation in depth: stationary points, the same alone as in a pack, stopped as not stopped."""

import functools
import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from depthrate.tasks.data.published import load_dataset
from depthrate.tasks.networks.operations import relu
from depthrate.tasks.networks.smooth_relu import parabola, root
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.task import COLLAPSE
from depthrate.tasks.training.polish.lbfgs import Lbfgs
from depthrate.tasks.training.training_pack import run_training
from tests.support.training_context import Context, assert_same, ids_of, run_resumed, training_on

STEPS, BUDGET = 20, 40


def params_of(**changes):
    base = {"arch": "rn1", "depth": 3, "width": 16, "samples_per_class": 3, "steps": STEPS, "lr": 0.05}
    return COLLAPSE.schema.fill({**base, "polish": BUDGET, **changes})


def chain_of(*depths, **changes):
    return [params_of(depth=depth, continuation=[2, 3, 5], **changes) for depth in depths]


def run(trials, **context):
    return list(COLLAPSE.run(trials, Context(ids_of(trials), **context)))


def minimised(function, start, num_evaluations=300, memory=10):
    search = Lbfgs(torch.tensor(start, dtype=torch.float64), memory)
    for _ in range(num_evaluations):
        point = search.point_P.clone().requires_grad_()
        value = function(point)
        (gradient,) = torch.autograd.grad(value, point)
        search.update(value.item(), gradient)
        if search.gradient_norm < 1e-9 or search.is_stalled:
            break
    return search


def test_lbfgs_finds_the_minimum_of_a_curved_valley():
    def rosenbrock(x):
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    search = minimised(rosenbrock, [-1.2, 1.0, -0.5, 0.8, 1.3])
    assert search.iterate_P.numpy() == pytest.approx(np.ones(5), abs=1e-8)


def test_lbfgs_solves_badly_scaled_quadratics():
    scales = torch.logspace(-3, 3, 8, dtype=torch.float64)
    seen = []

    def quadratic(x):
        seen.append(1)
        return (scales * (x - 1).square()).sum() / 2

    assert minimised(quadratic, [0.0] * 8).gradient_norm < 1e-9 and len(seen) < 150


def test_lbfgs_leaves_undefined_points():
    assert minimised(lambda x: (x - x.log()).sum(), [0.01, 5.0]).iterate_P.tolist() == pytest.approx([1, 1], abs=1e-8)


@pytest.mark.parametrize("width", [0.1, 1.0])
@pytest.mark.parametrize(
    ("rounded", "expected_of"),
    [
        (parabola, lambda z, e: torch.where(z.abs() < e, (z + e) ** 2 / (4 * e), z.relu())),
        (root, lambda z, w: (z + (z * z + w * w).sqrt()) / 2),
    ],
)
def test_smoothed_relu_and_its_slope(rounded, expected_of, width):
    z = torch.linspace(-2, 2, 401, dtype=torch.float64).view(1, -1, 1).requires_grad_()
    smooth = relu(z, rounded(torch.full((1, 1, 1), width, dtype=torch.float64)))
    expected = expected_of(z, width)
    torch.testing.assert_close(smooth, expected, rtol=1e-12, atol=1e-15)
    found, wanted = (torch.autograd.grad(values.sum(), z)[0] for values in (smooth, expected))
    torch.testing.assert_close(found[:, 1:-1], wanted[:, 1:-1], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_polish_lowers_the_objective_and_its_gradient():
    (result,) = run([params_of(polish=300, steps=50)])
    curve = {row["step"]: row for row in result.tables["curves"]}
    assert curve[350]["objective"] < 0.8 * curve[50]["objective"]
    assert curve[350]["smoothed_grad_norm"] < 0.1 * curve[50]["grad_norm"]
    assert result.tables["metrics"][-1]["smallest_deviation"] > 0 and "lr" not in curve[350]


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"dtype": "float64", "norm": "pre", "polish_memory": 3},
        {"arch": "rn2", "loss": "mse", "polish_tolerance": 0.02},
        {"arch": "t11", "depth": 2, "polish_smoothing": [0.05]},
    ],
    ids=str,
)
def test_polished_together_is_polished_alone(shape):
    trials = [params_of(**shape, seed=seed, weight_decay=0.005 * (1 + seed), features="all") for seed in range(3)]
    assert_same(run(trials), [result for params in trials for result in run([params])])


@pytest.mark.slow
def test_trials_of_a_chain_are_the_same_alone():
    trials = [*chain_of(2, 3, 5), *chain_of(3, 5, seed=1, weight_decay=0.02)]
    results = sorted(run(trials), key=lambda result: result.index)
    assert [result.index for result in results] == list(range(5))
    assert_same(results, [result for params in trials for result in run([params])])


@functools.cache
def chain_results():
    return sorted(run([*chain_of(2, 3, 5), *chain_of(5, seed=1)]), key=lambda result: result.index)


@pytest.mark.slow
def test_chain_continues_from_shallower_depths():
    objectives = [[row["objective"] for row in result.tables["curves"]] for result in chain_results()[:3]]
    for shallow, deep in itertools.pairwise(objectives):
        assert deep[0] == pytest.approx(shallow[-1], rel=1e-12) and deep[-1] < shallow[-1]


@pytest.mark.slow
def test_trial_ends_at_its_lowest():
    """Near a kink as wide as this the smoothed objective and the true one are different functions."""
    (result,) = run([params_of(polish=200, polish_smoothing=[3.0], steps=200, measure_steps=[0])])
    polished = [row["objective"] for row in result.tables["curves"] if row["step"] >= 200]
    assert polished[-1] == min(polished) and max(polished[-3:-1]) > polished[-1]


def test_a_trial_is_measured_where_it_says():
    for result, depth in zip(chain_results(), (2, 3, 5, 5), strict=True):
        (params,) = chain_of(depth)
        rows = [(row["step"], row["layer"]) for row in result.tables["metrics"]]
        assert rows == list(itertools.product(*COLLAPSE.measured(params, result.num_steps)))
        assert result.num_steps == BUDGET + (STEPS if depth == 2 else 0)


@pytest.mark.parametrize("tolerance", [0.01, 0.03])
def test_finished_trial_stays(tolerance):
    trials = [params_of(seed=seed, polish=200, polish_tolerance=tolerance, steps=seed * 40 + 1) for seed in (0,)]
    (result,) = run(trials)
    assert result.num_steps < 201
    last = result.tables["curves"][-1]
    assert last["step"] == result.num_steps and last["smoothed_grad_norm"] <= tolerance
    rows = [(row["step"], row["layer"]) for row in result.tables["metrics"]]
    assert rows == list(itertools.product(*COLLAPSE.measured(trials[0], result.num_steps)))


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [7, STEPS, *random.Random(0).sample(range(STEPS + 1, STEPS + 3 * BUDGET), 3)])
def test_a_chain_interrupted_and_resumed_is_uninterrupted(stop_at):
    trials = [*chain_of(2, 3, 5), *chain_of(5, seed=1)]
    found, steps = run_resumed(COLLAPSE.run, trials, stop_at)
    assert steps == list(range(stop_at + 1, STEPS + 3 * BUDGET + 1))
    assert_same(sorted(found, key=lambda result: result.index), list(chain_results()))


def test_test_split_has_the_same_steps():
    trials = [params_of(depth=2, width=8, seed=seed, polish_tolerance=0.08) for seed in (0, 1)]
    draw = functools.partial(load_dataset, "digits", None, samples_per_class=3, normalize="global", dtype="float32")
    train, test = (draw(data_seed=seed) for seed in (0, 1))
    results = list(run_training(training_on(trials, replace(train, test=test)), Context(ids_of(trials))))
    for result in results:
        for table in ("metrics", "curves"):
            steps = {s: [r["step"] for r in result.tables[table] if r["split"] == s] for s in ("train", "test")}
            assert max(steps["train"]) == result.num_steps > STEPS and set(steps["test"]) == set(steps["train"])
    ends = [result.num_steps for result in results]
    assert len(set(ends)) == 2, "one is done before the other"


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [STEPS, STEPS + 5])
def test_polish_keeps_running_statistics(stop_at):
    trials = [params_of(arch="resnet_dense", depth=1, width=8, seed=seed) for seed in (0, 1)]
    found, steps = run_resumed(COLLAPSE.run, trials, stop_at)
    assert steps[0] == stop_at + 1
    assert_same(found, run(trials))


@pytest.mark.slow
def test_part_of_a_chain_resumes():
    trials = [*chain_of(2, 3, 5), *chain_of(5, seed=1)]
    found, steps = run_resumed(COLLAPSE.run, trials, STEPS + BUDGET + 10, trials[3:])
    assert steps[0] == STEPS + BUDGET + 11
    assert_same(found, [run(trials[3:])[0]])


def test_a_lane_that_diverges_has_no_further_depths():
    results = sorted(run([*chain_of(2, 3), *chain_of(2, 3, lr=1e30, seed=5)]), key=lambda result: result.index)
    assert [result.status for result in results] == ["ok", "ok", "diverged", "diverged"]
    assert_same(results[:2], list(chain_results()[:2]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"polish": 0, "polish_memory": 5}, "polish_memory is 5, but polish is 0"),
        ({"polish": 0, "continuation": [2, 3]}, r"continuation is \[2, 3\], but polish is 0"),
        ({"continuation": [3, 2]}, "expected increasing depths that include depth"),
        ({"continuation": [2, 5]}, "depth is 3, expected increasing depths"),
        ({"continuation": [2, 3], "arch": "rn2"}, "arch 'rn2' has no neutral block"),
        ({"polish_smoothing": []}, "polish_smoothing is empty"),
        (
            {"arch": "resnet20_mlp", "regularise": "head_and_features", "weight_decay_features": 0.01},
            "regularise is 'head_and_features', whose term on the features",
        ),
    ],
    ids=str,
)
def test_what_means_nothing_is_refused(changes, message):
    with pytest.raises(ParameterError, match=message):
        COLLAPSE.check_trial(params_of(**changes))
