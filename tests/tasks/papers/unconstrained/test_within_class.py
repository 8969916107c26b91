"""Theorems 6 and 8 of P2: samples of one class at optima of the model, found by L-BFGS from several starts."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from depthrate.tasks.papers.unconstrained.deep_solutions import Solution, forward


def sigma(z, epsilon):
    """ReLU, or the smooth activation of Definition 7: x^2 (2e - x) / e^2 between 0 and e."""
    if not epsilon:
        return torch.relu(z)
    return torch.where((z > 0) & (z < epsilon), z**2 * (2 * epsilon - z) / epsilon**2, torch.relu(z))


def optimum(classes, depth, samples, decay, features, width, epsilon=0.0, starts=8):
    """The lowest objective of several starts, its features in each layer, its weights."""
    shapes = [(classes * samples, width), *[(width, width)] * (depth - 1), (classes, width)]
    targets = torch.eye(classes, dtype=torch.float64).repeat_interleave(samples, 0)

    def layers(flat):
        sizes = [math.prod(shape) for shape in shapes]
        h, *weights = (part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True))
        h = [h]
        for weight in weights[:-1]:
            h.append(sigma(h[-1] @ weight.T, epsilon))
        return h, weights

    def objective(values):
        flat = torch.from_numpy(values).requires_grad_()
        h, weights = layers(flat)
        loss = ((h[-1] @ weights[-1].T - targets) ** 2).sum() / (2 * len(targets)) + features / 2 * (h[0] ** 2).sum()
        loss = loss + decay / 2 * sum((weight**2).sum() for weight in weights)
        loss.backward()
        return loss.item(), flat.grad.numpy()

    generator, best = np.random.default_rng(0), None
    options = {"maxiter": 4000, "maxfun": 8000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 30}
    for _ in range(starts):
        start = 1.2 * generator.normal(size=sum(map(math.prod, shapes))) / np.sqrt(width)
        for _ in range(2):
            found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
            start = found.x
        best = found if best is None or found.fun < best.fun else best
    return best.fun, *layers(torch.from_numpy(best.x))


def largest_distance(h_ND, classes):
    return max(float(torch.pdist(rows_nD).max()) for rows_nD in h_ND.view(classes, -1, h_ND.shape[1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "depth", "samples", "decay", "width", "starts", "value"),
    [(3, 2, 4, 0.02, 6, 4, 0.088162205931), (3, 3, 4, 0.01, 6, 6, 0.0595430391)],
)
def test_samples_of_a_class_share_last_features(classes, depth, samples, decay, width, starts, value):
    """Theorem 6. The atlas has these and a third problem by descent."""
    many, h, weights = optimum(classes, depth, samples, decay, decay / samples, width, starts=starts)
    one, _, _ = optimum(classes, depth, 1, decay, decay, width, starts=starts)
    assert many == pytest.approx(one, abs=1e-9) and one == pytest.approx(value, abs=1e-9)
    assert largest_distance(h[-1], classes) < 1e-5 * float(h[-1].norm())
    _, output_NK = forward(Solution(h[0].numpy(), [weight.numpy() for weight in weights]), relu=True)
    np.testing.assert_allclose(output_NK, (h[-1] @ weights[-1].T).numpy(), atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1e-2, 1e-4, 1e-6])
def test_smooth_activation_bounds_distances_in_classes(epsilon):
    """Theorem 8, 6 e sqrt(D (L+1)) / ((L+1)^(L+1) lambda_bar sqrt n): 2.4e5 e here, far above the distances found."""
    classes, depth, samples, decay, width = 3, 2, 4, 0.02, 6
    _, h, _ = optimum(classes, depth, samples, decay, decay / samples, width, epsilon, starts=4)
    lambda_bar = decay / samples * decay**depth
    bound = (
        6 * epsilon * math.sqrt(width * (depth + 1)) / ((depth + 1) ** (depth + 1) * lambda_bar * math.sqrt(samples))
    )
    assert bound == pytest.approx(2.357e5 * epsilon, rel=1e-3)
    assert max(largest_distance(h_ND, classes) for h_ND in h) < min(bound, 1e-5)
