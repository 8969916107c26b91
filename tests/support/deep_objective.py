"""The deep unconstrained features model at explicit matrices: its objective with the gradient, in float64."""

import numpy as np

from depthrate.tasks.papers.unconstrained.deep_solutions import Solution, forward

KINK = 1e-12
"""Share of the largest value before a ReLU below which values count as zero to rounding."""


def objective(problem, solution, *, relu=True):
    """Return the objective of all samples and its gradient, laid out as a solution.

    Where a value before a ReLU is zero to rounding, the ReLU's derivative may be any number from 0 to 1 (Clarke). Each
    layer uses the derivative that minimises the gradient. The graph's solution has zeros of this kind. In this sense it is
    stationary for K = 10 and 15, and for K = 21 at L = 3. For K = 6, for 21 at L > 3 and for 28 and more the derivative
    would have to lie outside [0, 1]. A gradient proportional to lambda remains, so better solutions exist nearby.
    """
    num_samples = len(solution.h_ND)
    h, output_NK = forward(solution, relu)
    before = [values @ weight.T for values, weight in zip(h, solution.weights[:-1], strict=False)]
    targets_NK = np.repeat(np.eye(problem.num_classes), num_samples // problem.num_classes, axis=0)
    delta = output_NK - targets_NK
    value = float((delta**2).sum()) / (2 * num_samples)
    decays = (problem.weight_decay_features, *problem.weight_decays)
    value += sum(float(d * (m**2).sum()) / 2 for d, m in zip(decays, (solution.h_ND, *solution.weights), strict=True))
    delta, gradients = delta / num_samples, []
    for layer in reversed(range(problem.depth)):
        weight, decay = solution.weights[layer], problem.weight_decays[layer]
        if relu and layer < problem.depth - 1:
            delta = _through_relu(before[layer], delta, h[layer], decay * weight)
        gradients.append(delta.T @ h[layer] + decay * weight)
        delta = delta @ weight
    return value, Solution(delta + problem.weight_decay_features * solution.h_ND, gradients[::-1])


def _through_relu(before, delta, h, decayed):
    """Return the gradient before a ReLU, choosing its derivative at zeros to minimise the gradient of the weight before it."""
    bound = KINK * np.abs(before).max(initial=0)
    sure, free = np.where(before > bound, delta, 0), np.where(np.abs(before) <= bound, delta, 0)
    fixed, change = sure.T @ h + decayed, free.T @ h
    size = float((change**2).sum())
    derivative = float(np.clip(-(fixed * change).sum() / size, 0, 1)) if size > 0 else 0.0
    return sure + derivative * free


def norm(solution):
    """Return the joint norm of all matrices of a solution."""
    return float(np.sqrt(sum((matrix**2).sum() for matrix in (solution.h_ND, *solution.weights))))
