"""The distance to the unconstrained model's optima, against scipy's Procrustes solution and a search over rotations."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import expm, orthogonal_procrustes
from scipy.optimize import minimize
from scipy.stats import ortho_group

from depthrate.tasks.measures.alignment import distance_to_optima
from depthrate.tasks.measures.neural_collapse import class_moments

COUNTS = [4, 4, 4]
LABELS = np.repeat(np.arange(3), COUNTS)


def helmert(size):
    """Orthonormal rows [size - 1, size] whose coordinates sum to zero: row i has i equal entries and then -i."""
    rows = [[1.0] * i + [-i] + [0.0] * (size - i - 1) for i in range(1, size)]
    return np.array(rows) / np.sqrt([[i * (i + 1)] for i in range(1, size)])


def optimum(width, row_norm, is_simplex, rotation=None):
    """W* and H* with the corners on the first axes of the mean-zero subspace, rotated in it."""
    corners = math.sqrt(3 / 2) * helmert(3).T if is_simplex else np.eye(3)
    rotation = np.eye(width - 1) if rotation is None else rotation
    units = corners @ rotation[: corners.shape[1]] @ helmert(width)
    return row_norm * units, math.sqrt(width) * units[LABELS]


def distance(weight, h, row_norm, is_simplex):
    counts_K = torch.tensor(COUNTS)
    moments = class_moments(torch.from_numpy(h).unsqueeze(0), counts_K)
    means_KD, within = moments["means"][0], moments["within"][0]
    return distance_to_optima(
        means_KD, within, counts_K, torch.from_numpy(weight), row_norm, is_simplex=is_simplex
    ).item()


def random_pair(width, seed):
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(12, width)) + 2 * rng.normal(size=(3, width))[LABELS]
    h -= h.mean(1, keepdims=True)
    return rng.normal(size=(3, width)), math.sqrt(width) * h / np.linalg.norm(h, axis=1, keepdims=True)


@pytest.mark.parametrize(("width", "is_simplex"), [(8, True), (8, False), (4, False), (3, True)])
def test_zero_at_optima_and_linear_nearby(width, is_simplex):
    weight, h = optimum(width, 0.7, is_simplex, ortho_group.rvs(width - 1, random_state=0))
    assert distance(weight, h, 0.7, is_simplex) < 1e-13
    # all classes at one common offset along the vector of ones, which no rotation of the subspace undoes
    assert distance(weight + 0.01, h, 0.7, is_simplex) == pytest.approx(0.01 * math.sqrt(3 * width), rel=1e-9)
    assert distance(weight, 1.25 * h, 0.7, is_simplex) == pytest.approx(0.25 * np.linalg.norm(h), rel=1e-9)


@pytest.mark.parametrize(("width", "is_simplex"), [(8, True), (8, False), (4, False), (3, True)])
@pytest.mark.parametrize("seed", [1, 2])
def test_it_is_scipy_s_procrustes_distance(width, is_simplex, seed):
    weight, h = random_pair(width, seed)
    basis = helmert(width)
    actual = np.vstack([weight, h])
    ideal = np.vstack(optimum(width, 0.7, is_simplex))
    rotation, _ = orthogonal_procrustes(ideal @ basis.T, actual @ basis.T)
    expected = np.linalg.norm(actual - ideal @ basis.T @ rotation @ basis)
    assert distance(weight, h, 0.7, is_simplex) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("is_simplex", [True, False])
def test_no_rotation_or_reflection_comes_closer(is_simplex):
    width = 5
    weight, h = random_pair(width, 3)
    upper = np.triu_indices(width - 1, 1)

    def objective(angles, reflection):
        skew = np.zeros((width - 1, width - 1))
        skew[upper] = angles
        ideal_weight, ideal_h = optimum(width, 0.7, is_simplex, reflection @ expm(skew - skew.T))
        return ((weight - ideal_weight) ** 2).sum() + ((h - ideal_h) ** 2).sum()

    reflections = [np.eye(width - 1), np.diag([-1.0] + [1.0] * (width - 2))]
    starts = np.random.default_rng(0).normal(size=(3, len(upper[0])))
    lowest = min(minimize(objective, start, args=(r,)).fun for r in reflections for start in starts)
    assert distance(weight, h, 0.7, is_simplex) == pytest.approx(math.sqrt(lowest), rel=1e-6)


def test_invariant_to_rotations_and_class_order():
    width, (weight, h) = 8, random_pair(8, 4)
    reference = distance(weight, h, 0.7, True)
    basis = helmert(width)
    turned = basis.T @ ortho_group.rvs(width - 1, random_state=1) @ basis + 1 / width
    assert distance(weight @ turned, h @ turned, 0.7, True) == pytest.approx(reference, rel=1e-12)
    order = [2, 0, 1]
    permuted = h.reshape(3, 4, width)[order].reshape(12, width)
    assert distance(weight[order], permuted, 0.7, True) == pytest.approx(reference, rel=1e-12)
    # a rotation that moves the vector of ones leaves the features of LayerNorm
    weight, h = (x @ ortho_group.rvs(width, random_state=2) for x in optimum(width, 0.7, True))
    assert distance(weight, h, 0.7, True) > 1


def test_infinite_input_is_undefined():
    weight, h = random_pair(8, 5)
    h[0, 0] = np.inf
    assert math.isnan(distance(weight, h, 0.7, True))
