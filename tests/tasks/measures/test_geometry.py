"""Metrics without classes equal their formulas where the answer is known."""

import numpy as np
import pytest
import torch

import depthrate

RNG = np.random.default_rng(0)
Y = RNG.normal(size=(400, 3)) @ np.array([[2.0, 0, 0], [0.5, 1, 0], [0, 0.3, 0.7]])


def orthonormal(rows, columns):
    return np.linalg.qr(RNG.normal(size=(columns, rows)))[0].T


def weight_of(s):
    """Build three rows in ten dimensions whose Gram matrix is proportional to S - s I."""
    values, vectors = np.linalg.eigh(np.cov(Y.T, bias=True))
    gram = 4 * ((vectors * np.sqrt(values)) @ vectors.T - s * np.eye(3))
    roots, axes = np.linalg.eigh(gram)
    return (axes * np.sqrt(np.maximum(roots, 0))) @ axes.T @ orthonormal(3, 10)


@pytest.mark.parametrize("s", [0.0, 0.2, 0.5])
def test_a_collapsed_regression_has_three_zeros(s):
    weight = weight_of(s)
    features = (Y - Y.mean(0)) @ RNG.normal(size=(3, 3)) @ weight + 7.0
    metrics = depthrate.regression_collapse(features, Y, weight)
    assert metrics == pytest.approx({"nrc1": 0, "nrc2": 0, "nrc3": 0}, abs=1e-12)


def test_what_lies_outside_counts_by_its_share():
    h = RNG.normal(size=(20_000, 10))
    metrics = depthrate.regression_collapse(h, RNG.normal(size=(20_000, 2)), orthonormal(2, 10))
    assert metrics["nrc1"] == pytest.approx(0.8, abs=0.02) and metrics["nrc2"] == pytest.approx(0.8, abs=0.02)
    plane = np.zeros((400, 10))
    plane[:, :3] = Y
    apart = depthrate.regression_collapse(plane, Y, np.eye(10)[5:8])
    assert apart["nrc2"] == pytest.approx(1) and apart["nrc1"] == pytest.approx(0, abs=1e-12)


def test_gram_distance_is_minimal_over_s():
    weight = RNG.normal(size=(3, 10))
    gram = weight @ weight.T / np.linalg.norm(weight @ weight.T)
    values, vectors = np.linalg.eigh(np.cov(Y.T, bias=True))
    root = (vectors * np.sqrt(values)) @ vectors.T
    shifted = (root - s * np.eye(3) for s in np.linspace(0, np.sqrt(values[0]), 20_001))
    minimum = min(np.square(gram - matrix / np.linalg.norm(matrix)).sum() for matrix in shifted)
    assert depthrate.regression_collapse(Y @ weight, Y, weight)["nrc3"] == pytest.approx(minimum, abs=1e-7)


def test_one_target_has_no_gram_to_compare():
    h = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    metrics = depthrate.regression_collapse(h, h[:, 0], torch.ones(1, 4))
    assert metrics["nrc3"] is None and 0 < metrics["nrc1"] < 1 and metrics["nrc1"] <= metrics["nrc2"]
    assert depthrate.regression_collapse(h, h[:, 0])["nrc2"] is None


def test_alignment_knows_rotation_and_scale_and_nothing_else():
    a, b = RNG.normal(size=(300, 8)), RNG.normal(size=(300, 500))
    assert depthrate.linear_cka(a, 3 * a @ orthonormal(8, 8) + 5) == pytest.approx(1)
    assert depthrate.linear_cka(a, a * np.array([9, 1, 1, 1, 1, 1, 1, 1])) < 0.6
    centre = np.eye(300) - 1 / 300
    k, m = centre @ a @ a.T @ centre, centre @ b @ b.T @ centre
    hsic = (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())
    assert depthrate.linear_cka(a, b) == pytest.approx(hsic) == depthrate.linear_cka(b, a)
    assert depthrate.linear_cka(a, b[:, :2]) < 0.05


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_equal_singular_values_count_as_many(rank):
    left = np.linalg.qr(np.hstack([np.ones((40, 1)), RNG.normal(size=(40, rank))]))[0][:, 1:]  # of mean zero
    assert depthrate.effective_rank(left @ orthonormal(rank, 12) + 3) == pytest.approx(rank)


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_flat_dimension_is_recovered(dimension):
    rng = np.random.default_rng(dimension)
    points = rng.uniform(size=(2500, dimension)) @ orthonormal(dimension, 20)
    estimate = depthrate.intrinsic_dimension(points)
    assert estimate == pytest.approx(dimension, rel=0.1)
    assert depthrate.intrinsic_dimension(np.concatenate([points, points[:500]])) == pytest.approx(estimate)


def test_undefined_metrics_raise():
    h = RNG.normal(size=(30, 4))
    for call, words in (
        (lambda: depthrate.regression_collapse(h, Y), r"targets have shape \[400, 3\].*N = 30"),
        (lambda: depthrate.regression_collapse(h, h[:, :2], np.ones((3, 4))), "3 rows.*target dimension, 2"),
        (lambda: depthrate.regression_collapse(h, np.ones(30)), "does not vary"),
        (lambda: depthrate.regression_collapse(np.ones((30, 4)), h), "equal.*regression collapse"),
        (lambda: depthrate.linear_cka(h, h[:9]), "30 samples and second has 9"),
        (lambda: depthrate.linear_cka(h, np.ones((30, 2))), "equal.*CKA"),
        (lambda: depthrate.effective_rank(np.ones((30, 4))), "equal.*effective rank"),
        (lambda: depthrate.intrinsic_dimension(h[:5]), "5 distinct samples"),
        (lambda: depthrate.intrinsic_dimension(np.arange(30.0)[:, None]), "as on a lattice"),
    ):
        with pytest.raises(depthrate.FeaturesError, match=words):
            call()


def test_probe_recovers_linear_maps_held_out():
    labels = np.arange(400) % 5
    centres = 8 * orthonormal(5, 20)
    names = [f"class {label}" for label in labels]
    assert depthrate.probe_accuracy(centres[labels] + RNG.normal(size=(400, 20)), names) > 0.99
    many = RNG.normal(size=(400, 3000))
    assert abs(depthrate.probe_accuracy(many, labels) - 0.2) < 0.1, "chance level, although a fit to all would be exact"
    h = RNG.normal(size=(400, 6))
    assert depthrate.probe_r2(h, h @ RNG.normal(size=(6, 2)) + 3) > 0.999
    assert depthrate.probe_r2(h, (h[:, 0] ** 2)) < 0.1 and depthrate.probe_r2(h[:, :1], h[:, 1]) < 0.05
    for call, words in (
        (lambda: depthrate.probe_accuracy(np.ones((9, 2)), np.arange(9) % 2), "equal.*linear probe"),
        (lambda: depthrate.probe_accuracy(h, h[:, 0]), "targets of a regression"),
        (lambda: depthrate.probe_r2(h, np.ones(400)), "does not vary"),
        (lambda: depthrate.probe_r2(h[:3], h[:3, 0]), "3 samples.*at least 4"),
    ):
        with pytest.raises(depthrate.FeaturesError, match=words):
            call()
