"""The limit of the objective for infinite depth, against the science page and against numerical optimisation."""

import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize

from depthrate.tasks.supervised.theory import (
    bound_of_basis,
    bound_of_gap,
    bound_of_simplex,
    construction_cost,
    gufm_optimum,
    has_equal_classes,
)


def limit(loss="ce", num_classes=10, width=64, weight_decay_last=0.005, last_bias=True):
    optimum = gufm_optimum(
        loss, num_classes=num_classes, width=width, weight_decay_last=weight_decay_last, last_bias=last_bias
    )
    return None if optimum is None else optimum.objective


@pytest.mark.parametrize(
    ("loss", "last_bias", "weight_decay", "expected"),
    [
        ("ce", True, 0.005, 0.02275937),
        ("ce", False, 0.005, 0.02275937),
        ("ce", True, 0.0025, 0.01310346),
        ("ce", True, 0.01, 0.03915415),
        ("mse", False, 0.005, 3.90320e-4),
        ("mse", True, 0.005, 3.16184e-4),
    ],
)
def test_published_settings(loss, last_bias, weight_decay, expected):
    found = limit(loss, weight_decay_last=weight_decay, last_bias=last_bias)
    assert found == pytest.approx(expected, rel=3e-6 if loss == "mse" else 5e-7)


def lowest_objective(loss, num_classes, width, weight_decay, last_bias, starts=2):
    """Minimise over one LayerNormed feature a class, W and b at once, from random starts."""
    shapes = [(num_classes, width), (num_classes, width), (num_classes,)]
    sizes = [int(np.prod(shape)) for shape in shapes]
    identity = torch.eye(num_classes, dtype=torch.float64)

    def value_and_slope(flat):
        theta = torch.tensor(flat, requires_grad=True)
        h, w, b = (p.view(s) for p, s in zip(theta.split(sizes), shapes, strict=True))
        logits = F.layer_norm(h, (width,), eps=0.0) @ w.T + (b if last_bias else 0)
        entropy, squares = -F.log_softmax(logits, 1).diagonal().mean(), (logits - identity).square().sum()
        data = entropy if loss == "ce" else squares / (2 * num_classes)
        objective = data + weight_decay / 2 * w.square().sum()
        objective.backward()
        return objective.item(), theta.grad.numpy()

    rng = np.random.default_rng(0)
    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-16, "gtol": 1e-12}
    how = {"jac": True, "options": options, "method": "L-BFGS-B"}
    runs = [minimize(value_and_slope, rng.normal(size=sum(sizes)), **how) for _ in range(starts)]
    return min(run.fun for run in runs)


@pytest.mark.parametrize("weight_decay", [0.002, 0.1])
@pytest.mark.parametrize(
    ("loss", "last_bias", "num_classes", "width"),
    [
        ("ce", True, 4, 8),
        ("ce", False, 4, 4),  # K - 1 = d - 1: the tightest fit
        ("mse", False, 4, 7),
        ("mse", False, 4, 5),
        ("mse", True, 4, 7),
        ("mse", True, 4, 4),
    ],
)
@pytest.mark.slow
def test_limit_is_the_minimum_of_the_unconstrained_model(loss, last_bias, num_classes, width, weight_decay):
    expected = lowest_objective(loss, num_classes, width, weight_decay, last_bias)
    assert limit(loss, num_classes, width, weight_decay, last_bias) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "last_bias", "smallest_width"), [("ce", True, 10), ("mse", True, 10), ("mse", False, 11)]
)
def test_excess_classes_have_no_limit(loss, last_bias, smallest_width):
    assert limit(loss, width=smallest_width, last_bias=last_bias) is not None
    assert limit(loss, width=smallest_width - 1, last_bias=last_bias) is None
    assert limit(loss, weight_decay_last=0.0, last_bias=last_bias) == 0
    assert all(0 < limit(weight_decay_last=extreme) < np.log(10) for extreme in (1e-12, 1e3))


@pytest.mark.parametrize("matrices", [1, 2])
def test_no_cheaper_weights_make_the_same_change(matrices):
    """Minimise (lambda/2) sum of squares over norms whose products, one a block, add up to the change."""
    blocks, weight_decay, change = 4, 0.01, 1.7
    found = minimize(
        lambda norms: weight_decay / 2 * (norms**2).sum(),
        np.random.default_rng(0).uniform(0.5, 1.0, blocks * matrices),
        constraints={"type": "eq", "fun": lambda n: n.reshape(blocks, matrices).prod(1).sum() - change},
        bounds=[(1e-9, None)] * (blocks * matrices),
        tol=1e-12,
    )
    expected = construction_cost(blocks, weight_decay, matrices=matrices, total_change=change)
    assert found.fun == pytest.approx(expected, rel=1e-4)


def test_infimum_falls_for_one_matrix():
    def costs(matrices, weight_decay):
        cost = functools.partial(construction_cost, matrices=matrices, total_change=3.0)
        return [cost(L, weight_decay(L)) * (L if scale else 1) for scale in (False, True) for L in (2, 8, 32)]

    assert costs(1, lambda L: 0.005)[3:] == pytest.approx([0.0225] * 3)
    assert costs(2, lambda L: 0.0025)[:3] == pytest.approx([0.0075] * 3)
    assert costs(2, lambda L: 0.005 / L)[3:] == pytest.approx([0.015] * 3)


@pytest.mark.parametrize(
    ("loss", "last_bias", "holds"),
    [("ce", None, "simplex"), ("ce", False, "simplex"), ("mse", True, "simplex"), ("mse", None, "basis")],
)
def test_row_bound_matches_the_optimum(loss, last_bias, holds):
    shared = {"arch": "rn1", "loss": loss, "last_bias": last_bias, "samples_per_class": 20}
    trials = [{**shared, "depth": depth} for depth in (3, 5, 9)]
    bounds = {"simplex": bound_of_simplex(trials), "basis": bound_of_basis(trials)}
    assert [name for name, bound in bounds.items() if bound is not None] == [holds]
    assert bounds[holds] == pytest.approx(np.sqrt(bound_of_gap(trials)))


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "pre"},
        {"arch": "rn2"},
        {"samples_per_class": None},
        *({name: [1, 2, 3]} for name in ("samples_per_class", "dataset", "width")),
    ],
)
def test_other_networks_have_no_bound(changes):
    trials = [{"arch": "rn1", "norm": "post", "samples_per_class": 20, "depth": depth} for depth in (3, 5, 9)]
    assert bound_of_gap(trials) is not None
    changed = {name: value if isinstance(value, list) else [value] * 3 for name, value in changes.items()}
    assert bound_of_gap([{**p, **{n: v[i] for n, v in changed.items()}} for i, p in enumerate(trials)]) is None


@pytest.mark.parametrize(
    ("dataset", "samples_per_class", "is_equal"),
    [
        *(("digits", 20, True), ("digits", None, False), ("digits", math.nan, False), ("mine.npz", 20, True)),
        *(("mine.npz", None, False), ("mnist", None, False), ("cifar10", None, True), ("cifar10_batch1", None, False)),
    ],
)
def test_classes_are_known_to_be_equal(dataset, samples_per_class, is_equal):
    trial = {"dataset": dataset, "samples_per_class": samples_per_class}
    assert has_equal_classes([trial]) is has_equal_classes([{"samples_per_class": 3}, trial]) is is_equal
