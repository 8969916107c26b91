"""Closed forms against numbers that were published for them, and exact optima against another solver and the task's table."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from depthrate.tasks.papers.unconstrained.held_optimum import UnconstrainedProblem, solve, ufm_optimum
from depthrate.tasks.papers.unconstrained.task import MUFM
from depthrate.tasks.papers.unconstrained.training import inputs


def gaussian(data_seed=0, classes=5, per_class=100, dimension=20):
    params = {"num_classes": classes, "samples_per_class": per_class, "dimension": dimension}
    return inputs(MUFM.read({**params, "data": "gaussian", "data_seed": data_seed}), None)


def problem(x, classes=5, weight_decay=0.005, proximity=0.001):
    labels = np.repeat(np.arange(classes), len(x) // classes)
    return UnconstrainedProblem(x, labels, classes, weight_decay, proximity)


def optimum(given, loss="mse", seed=0):
    return solve(given, loss, np.random.default_rng(seed))


def value(given, loss, h, w):
    """The objective as it is printed, from features [N, d] and W [K, d]."""
    out, count = h @ w.T, len(h)
    if loss == "mse":
        data = ((out - given.targets_NK) ** 2).sum() / (2 * count)
    else:
        data = (np.log(np.exp(out).sum(1)) - (out * given.targets_NK).sum(1)).mean()
    pull = given.proximity / (2 * count) * ((h - given.target_ND) ** 2).sum()
    return data + given.weight_decay / (2 * given.num_classes) * (w**2).sum() + pull


def test_the_unconstrained_models_optimum_is_the_closed_form():
    c = math.sqrt(0.005 * 0.001)
    assert c == pytest.approx(0.002236068, abs=1e-9)
    closed = ufm_optimum("mse", num_classes=5, weight_decay=0.005, weight_decay_features=0.001)
    assert closed == c - c**2 / 2
    found = optimum(problem(np.zeros((500, 20))))
    assert found.objective == pytest.approx(closed, abs=1e-10)
    assert value(problem(np.zeros((500, 20))), "mse", found.h_ND, found.weight_KD) == pytest.approx(closed, abs=1e-10)


@pytest.mark.parametrize(("decay", "features"), [(0.05, 0.01), (0.5, 0.3), (2.0, 1.0)])
@pytest.mark.parametrize("loss", ["mse", "ce"])
def test_closed_form_holds_for_both_losses(loss, decay, features):
    closed = ufm_optimum(loss, num_classes=3, weight_decay=decay, weight_decay_features=features)
    found = optimum(problem(np.zeros((12, 4)), 3, decay, features), loss)
    assert found.objective == pytest.approx(closed, abs=1e-10)
    if decay * features >= 1:
        assert closed == (0.5 if loss == "mse" else math.log(3))


@pytest.mark.parametrize("loss", ["mse", "ce"])
def test_exact_solution_is_stationary(loss):
    given = problem(gaussian(1, 3, 6, 5), 3, 0.02, 0.01)
    found = optimum(given, loss)
    assert value(given, loss, found.h_ND, found.weight_KD) == pytest.approx(found.objective, rel=1e-12)
    rng = np.random.default_rng(0)
    for _ in range(20):
        h = found.h_ND + 1e-4 * rng.normal(size=found.h_ND.shape)
        w = found.weight_KD + 1e-4 * rng.normal(size=found.weight_KD.shape)
        assert value(given, loss, h, w) > found.objective
    assert optimum(given, loss, seed=5).objective == pytest.approx(found.objective, rel=1e-10)


@pytest.mark.parametrize("blocks", [1, 2, 5, 10])
def test_blocks_share_the_proximity(blocks):
    """Theorem 3, with the L that its print drops: all L layers and W are minimised together, by another solver."""
    x, classes, decay, proximity = gaussian(2, 3, 4, 4), 3, 0.02, 0.05
    targets, count = np.repeat(np.eye(classes), 4, axis=0), len(x)

    def multilayer(flat):
        w, layers = flat[:12].reshape(3, 4), flat[12:].reshape(blocks, *x.shape)
        ways = np.diff(np.concatenate([x[None], layers]), axis=0)
        error = layers[-1] @ w.T - targets
        objective = (error**2).sum() / (2 * count) + decay / (2 * classes) * (w**2).sum()
        gradient = proximity / count * ways
        gradient[:-1] -= gradient[1:].copy()
        gradient[-1] += error @ w / count
        flat_gradient = np.concatenate([(error.T @ layers[-1] / count + decay / classes * w).ravel(), gradient.ravel()])
        return objective + proximity / (2 * count) * (ways**2).sum(), flat_gradient

    found = optimum(problem(x, classes, decay, proximity / blocks))
    start = np.concatenate([found.weight_KD.ravel() + 0.1, *[x.ravel()] * blocks])
    options = {"ftol": 0, "gtol": 1e-11, "maxiter": 20000, "maxfun": 40000}
    joint = minimize(multilayer, start, jac=True, method="L-BFGS-B", options=options)
    assert joint.fun == pytest.approx(found.objective, rel=1e-8)
    layers = joint.x[12:].reshape(blocks, *x.shape)
    line = [x + (layer + 1) / blocks * (found.h_ND - x) for layer in range(blocks)]
    np.testing.assert_allclose(layers, line, atol=2e-4)
    if blocks > 1:  # with the printed lambda it is another model
        assert abs(optimum(problem(x, classes, decay, proximity)).objective / found.objective - 1) > 1e-3


def test_large_lambda_is_one_gradient_step():
    """Theorem 4, expanded in 1 / lambda: W is ridge regression on X, H = X + (Y - X W^T) W / lambda, and PFC1(H) < PFC1(X)."""
    x, proximity = gaussian(3), 1e5
    given = problem(x, proximity=proximity)
    w = np.linalg.solve(x.T @ x + 100 * given.weight_decay * np.eye(20), x.T @ given.targets_NK).T
    change = (given.targets_NK - x @ w.T) @ w
    found = optimum(given)
    np.testing.assert_allclose(
        found.h_ND - x, change / proximity, rtol=1e-3, atol=1e-3 * np.abs(change).max() / proximity
    )

    def nc1(h):
        classes = h.reshape(5, 100, 20)
        means = classes.mean(1)
        return classes.var(1).sum() / means.var(0).sum() / 5

    assert (nc1(found.h_ND) / nc1(x) - 1) * proximity == pytest.approx(
        (nc1(x + change / 1e6) / nc1(x) - 1) * 1e6, rel=1e-3
    )
    assert nc1(found.h_ND) < nc1(x)
