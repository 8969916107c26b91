"""The geodesic's predictions equal metrics of interpolated features; distances from it; effective depth."""

import numpy as np
import pytest
import torch

import depthrate
from depthrate.tasks.measures.geodesic import Geodesic, effective_depth, line_distances, monotonicity
from depthrate.tasks.supervised.task import COLLAPSE
from tests.support.training_context import Context, ids_of


def independent(h, labels):
    """Apply the definitions with whole covariance matrices, in numpy."""
    classes = range(labels.max() + 1)
    means = np.array([h[labels == k].mean(0) for k in classes])
    centred = means - means.mean(0)
    deviations = h - means[labels]
    within, between = deviations.T @ deviations / len(h), centred.T @ centred / len(means)
    gram = centred @ centred.T
    simplex = np.eye(len(means)) - 1 / len(means)
    nearest = ((h[:, None] - means[None]) ** 2).sum(-1).argmin(1)
    return {
        "nc1": np.trace(within) / np.trace(between),
        "nc1_pinv": np.trace(within @ np.linalg.pinv(between, rcond=1e-10, hermitian=True)) / len(means),
        "pfc2": np.linalg.norm(gram / np.linalg.norm(gram) - simplex / np.linalg.norm(simplex)),
        "ncc_accuracy": (nearest == labels).mean(),
    }


def two_layers(counts=(7, 4, 9), width=6, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    first = rng.normal(size=(len(labels), width)) + 5
    last = scale * rng.normal(size=(len(labels), width)) + 3 * rng.normal(size=(len(counts), width))[labels] - 8
    return first, last, labels


@pytest.mark.parametrize("scale", [1.0, 1e-5])
@pytest.mark.parametrize("counts", [(7, 4, 9), (5, 5), (3, 3, 3, 3, 3, 3, 3, 3)])
def test_predictions_equal_metrics_of_interpolated_features(counts, scale):
    first, last, labels = two_layers(counts, scale=scale)
    line = depthrate.geodesic(first, last, labels)
    for t in (0, 0.1, 0.37, 0.5, 0.99, 1):
        expected = independent((1 - t) * first + t * last, labels)
        assert line.at(t) == pytest.approx(expected, rel=1e-10, abs=1e-13)


def test_sample_order_and_tensors():
    first, last, labels = two_layers()
    order = np.random.default_rng(1).permutation(len(labels))
    shuffled = depthrate.geodesic(torch.tensor(first[order]), torch.tensor(last[order]), torch.tensor(labels[order]))
    assert shuffled.at(0.3) == pytest.approx(depthrate.geodesic(first, last, labels).at(0.3), rel=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f, la, y: (f, la[:, :3], y), "shape .20, 6., last features .20, 3."),
        (lambda f, la, y: (f, la, y[:5]), "expected .N, D. and .N."),
        (lambda f, la, y: (f, la, np.where(y == 1, 2, y)), "class 1 has no samples"),
        (lambda f, la, y: (f, la, y + 0.5), "targets of a regression"),
        (lambda f, la, y: (f, la, np.ma.array(y, mask=y == 1)), "masked"),
        (lambda f, la, y: (np.ma.array(f, mask=f > 1), la, y), "masked"),
    ],
)
def test_bad_input(change, words):
    with pytest.raises(ValueError, match=words):
        depthrate.geodesic(*change(*two_layers()))


@pytest.mark.slow
def test_distances_from_the_line():
    first, last, _ = (torch.tensor(two_layer) for two_layer in two_layers())
    off, place = line_distances(first, last, first + 0.3 * (last - first))
    assert off.max() < 1e-12 and place.numpy() == pytest.approx(np.full(20, 0.3))
    way = last - first
    aside = torch.randn(way.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    aside -= (aside * way).sum(1, keepdim=True) / way.square().sum(1, keepdim=True) * way
    off, place = line_distances(first, last, first + 0.6 * way + aside)
    torch.testing.assert_close(off, aside.norm(dim=1) / way.norm(dim=1))
    assert line_distances(first, first, last)[0].isnan().all()


def test_layers_stream_against_the_line():
    first, last, labels = two_layers()
    layers = [first, 0.8 * first + 0.2 * last, 0.4 * first + 0.6 * last, last]
    held = []

    def read():
        for layer in layers:
            held.append(1)
            yield layer

    rows = depthrate.along_geodesic(read, labels, epsilon=0.5)
    assert len(held) == 8
    assert [row["relative_position"] for row in rows] == pytest.approx([0, 0.2, 0.6, 1])
    for row, layer in zip(rows, layers, strict=True):
        for name, value in independent(layer, labels).items():
            assert row[name] == pytest.approx(value, rel=1e-10, abs=1e-13)
            assert row[f"{name}_geodesic"] == pytest.approx(value, rel=1e-10, abs=1e-13)
        assert row["line_distance"] < 1e-12 and row["line_distance_spread"] < 1e-12
        assert row["line_position"] == pytest.approx(row["relative_position"])
    assert rows[-1]["monotone"] is not None


@pytest.mark.parametrize("sign", [1, -1])
def test_nc1_falls_with_nonnegative_mean_cosine(sign):
    """P3's Theorem 1 amounts to this: if the cosine of the ends' means is negative, nc1 rises at first."""
    labels, rng = np.repeat(np.arange(4), 5), np.random.default_rng(0)
    means = rng.normal(size=(4, 6))
    means -= means.mean(0)
    noise = rng.normal(size=(20, 6))
    noise -= np.array([noise[labels == label].mean(0) for label in range(4)])[labels]
    first, last = means[labels] + noise, (sign * means + 0.3 * np.roll(means, 1, axis=1))[labels]
    last -= last.mean(0)
    layers = [(1 - t) * first + t * last for t in np.linspace(0, 1, 21)]
    rows = depthrate.along_geodesic(lambda: layers, labels)
    cosine = (means[labels] * last).sum() / np.linalg.norm(means[labels]) / np.linalg.norm(last)
    assert rows[-1]["means_cosine"] == pytest.approx(cosine) and rows[-1]["nc1_left"] < 1e-20
    assert (rows[-1]["nc1_rise"] == 0) == (cosine >= 0) == (sign > 0)
    costs = [row["transport_cost"] for row in rows]
    whole = ((last - first) ** 2).sum() / (last**2).sum()
    assert costs == pytest.approx([whole * (1 - t) ** 2 for t in np.linspace(0, 1, 21)], abs=1e-12)


def test_monotonicity_and_its_violations():
    values = ((4.0, 0.5, 0.5), (5.0, 0.4, 0.9), (3.0, 0.4, 0.7))
    rows = [dict(zip(("nc1", "pfc2", "ncc_accuracy"), row, strict=True)) for row in values]
    expected = {"nc1_rise": 0.25, "pfc2_rise": 0, "ncc_fall": 0.2, "monotone": 5}
    assert monotonicity(rows) == pytest.approx(expected)
    assert monotonicity(rows[:1]) == {"nc1_rise": 0, "pfc2_rise": 0, "ncc_fall": 0, "monotone": 0}
    assert monotonicity([{**rows[0], "pfc2": None}, rows[1]])["monotone"] is None


def test_effective_depth():
    layers = [2, 3, 4, 5]
    assert effective_depth([0.5, 0.99, 0.9, 0.995], layers, 0.02) == 5
    assert effective_depth([0.5, 0.99, 0.98, 1.0], layers, 0.02) == 3
    assert effective_depth([1.0, 1.0, 1.0, 0.5], layers, 0.02) is None


def test_geodesic_option_changes_nothing_else():
    base = {"arch": "rn1", "depth": 4, "width": 8, "steps": 20, "samples_per_class": 5, "measure_steps": [], "lr": 0.05}
    plain, with_line = (COLLAPSE.schema.fill({**base, **more}) for more in ({}, {"geodesic": True, "features": "all"}))
    results = [next(iter(COLLAPSE.run([params], Context(ids_of([params]))))) for params in (plain, with_line)]
    without, rows = (result.tables["metrics"] for result in results)
    for one, other in zip(without, rows, strict=True):
        np.testing.assert_equal({name: other[name] for name in one}, one)
    features = results[1].tables["features"]
    labels = features["label"][features["layer"] == 1]
    by_layer = [features["feature"][features["layer"] == layer] for layer in range(1, 5)]
    stored = depthrate.along_geodesic(lambda: by_layer, labels)
    for row, again in zip(rows[1:], stored, strict=True):
        for name, value in again.items():
            assert name == "layer" or row[name] == (value and pytest.approx(value, rel=1e-10, abs=1e-13))
    first, last = (by_layer[index].astype(np.float64) for index in (0, -1))
    for row in rows[1:]:
        t = row["relative_position"]
        for name, value in independent((1 - t) * first + t * last, labels).items():
            assert row[f"{name}_geodesic"] == pytest.approx(value, rel=1e-10, abs=1e-13)
    assert "nc1_geodesic" not in rows[0], "the input has another width"


def test_the_geodesic_stores_no_features():
    first, last, labels = two_layers((50, 50), width=400)
    order = np.argsort(labels, kind="stable")
    line = Geodesic(torch.tensor(first[order]), torch.tensor(last[order]), torch.tensor([50, 50]))
    num_stored = sum(value.numel() for value in vars(line).values() if isinstance(value, torch.Tensor))
    assert num_stored < 100 * 400 / 10
