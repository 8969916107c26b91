"""Constructed solutions, moved by noise, are named as what they are."""

import numpy as np
import pytest

from depthrate.tasks.papers.unconstrained.deep_solutions import (
    Solution,
    SolutionKind,
    classify,
    dnc_solution,
    geometry,
    repeated,
    srg_solution,
)
from depthrate.tasks.papers.unconstrained.theory import DufmProblem

SAMPLES = 4
PROBLEM = DufmProblem(10, SAMPLES, (0.004,) * 4, 0.004 * 50 / SAMPLES)


def disguised(solution, rng, noise):
    """Classes and neurons in another order, every matrix with noise."""
    classes = rng.permutation(PROBLEM.num_classes)
    h, weights = solution.h_ND[classes], list(solution.weights)
    weights[-1] = weights[-1][classes]
    for layer in range(len(weights) - 1):
        neurons = rng.permutation(len(weights[layer]))
        weights[layer], weights[layer + 1] = weights[layer][neurons], weights[layer + 1][:, neurons]
    moved = repeated(Solution(h, weights), SAMPLES)
    pushed = [m + noise * np.sqrt((m**2).mean()) * rng.normal(size=m.shape) for m in (moved.h_ND, *moved.weights)]
    return Solution(pushed[0], pushed[1:])


def name(solution, drift=0.0):
    return classify(PROBLEM, solution, drift=drift, relu=True, rank_tol=0.01)


@pytest.mark.parametrize("noise", [0.0, 1e-4, 0.01])
@pytest.mark.parametrize(("make", "kind"), [(dnc_solution, SolutionKind.DNC), (srg_solution, SolutionKind.SRG)])
def test_the_two_closed_forms(make, kind, noise):
    found = disguised(make(PROBLEM, 14), np.random.default_rng(1), noise)
    assert name(found) == kind and name(found, drift=0.011) == SolutionKind.UNCONVERGED


def test_zero():
    rng = np.random.default_rng(2)
    small = Solution(1e-3 * rng.normal(size=(40, 14)), [1e-3 * rng.normal(size=(14, 14)) for _ in range(3)])
    small.weights.append(1e-3 * rng.normal(size=(10, 14)))
    assert name(small, drift=1.0) == SolutionKind.ZERO


def test_geometry_alone():
    rng = np.random.default_rng(3)
    full = [rng.normal(size=(10, 14)) for _ in range(4)]
    assert geometry(full, 10, 0.01) == SolutionKind.FULL_RANK
    merged = [np.eye(10, 14) for _ in range(4)]
    merged[2][1] = merged[2][0]  # two classes are one
    assert geometry(merged, 10, 0.01) == SolutionKind.LOW_RANK
    spread = [np.repeat(np.eye(10, 14), 2, axis=0) for _ in range(4)]
    assert geometry(spread, 10, 0.01) == SolutionKind.DNC
    spread[0] = spread[0] + 0.5 * rng.normal(size=spread[0].shape)  # samples of a class apart
    assert geometry(spread, 10, 0.01) == SolutionKind.FULL_RANK
