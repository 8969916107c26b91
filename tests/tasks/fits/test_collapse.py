"""Finite-size collapse: known exponents, an independent quality, invariances, refusals."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.interpolate import interp1d

from depthrate.tasks.fits.collapse import fit_collapse
from depthrate.tasks.fits.points import FitError

DEPTHS = (5, 8, 13, 21, 34)
SHAPES = {"exponential": np.exp, "square": lambda x: 1 + x**2, "bent": lambda x: np.exp(x) / (1 + x)}


def curves(a, b, shape="exponential", seeds=1, noise=0.0, depths=DEPTHS):
    rng, rows = np.random.default_rng(3), []
    for seed in range(seeds):
        for depth in depths:
            layers = np.arange(1, depth + 1)
            values = depth**-a * SHAPES[shape]((depth - layers) / depth**b)
            values = values * np.exp(noise * (rng.normal() + rng.normal(size=depth) / 3))
            rows += [(depth, layer, value, seed) for layer, value in zip(layers, values, strict=True)]
    return tuple(list(column) for column in zip(*rows, strict=True))


def quality(a, b, depth_N, layer_N, value_N):
    """The mean deviation, written out with scipy's interpolation of one curve at a time."""
    depth_N, layer_N, value_N = map(np.array, (depth_N, layer_N, value_N))
    scaled = {d: ((d - layer_N[depth_N == d]) / d**b, np.log(d**a * value_N[depth_N == d])) for d in set(depth_N)}
    deviations = []
    for base, (x, y) in scaled.items():
        interpolate = interp1d(x, y)
        for other, (u, v) in scaled.items():
            inside = (u >= min(x)) & (u <= max(x)) & (other != base)
            deviations += list(abs(v[inside] - interpolate(u[inside])))
    return np.mean(deviations)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("a", "b"), [(0.8, 0.6), (0.5, 1.0), (1.0, 0.0)])
def test_known_exponents_are_found(shape, a, b):
    found = fit_collapse(*curves(a, b, shape)[:3])
    assert (found.a, found.b) == pytest.approx((a, b), abs=1e-9 if shape == "exponential" else 0.003)
    assert found.quality < (1e-12 if shape == "exponential" else 0.003)  # interpolation is exact for exponentials
    assert found.a_interval is None and not found.is_at_edge


def test_quality_is_the_least_of_its_formula():
    *values, units = curves(0.8, 0.6, "bent", seeds=1, noise=0.1)
    found = fit_collapse(*values, units)
    assert found.quality == pytest.approx(quality(found.a, found.b, *values))
    assert found.unscaled == pytest.approx(quality(0, 0, *values))
    for step in (-1e-3, 1e-3):
        assert found.quality <= quality(found.a + step, found.b, *values) + 1e-12
        assert found.quality <= quality(found.a, found.b + step, *values)


def test_intervals_are_over_whole_units():
    *values, units = curves(0.8, 0.6, "bent", seeds=5, noise=0.05)
    found = fit_collapse(*values, units)
    own = [fit_collapse(*(np.array(column)[np.array(units) == unit] for column in values)) for unit in range(5)]
    half = stats.t.ppf(0.975, 4) * np.std([one.b for one in own], ddof=1) / math.sqrt(5)
    assert found.b_interval == pytest.approx((found.b - half, found.b + half)) and found.num_units == 5
    assert found.a_interval[0] < 0.8 < found.a_interval[1] and found.b_interval[0] < 0.6 < found.b_interval[1]
    kept = [place for place, unit in enumerate(units) if unit < 3 or values[0][place] > 5]  # two units lack a depth
    assert fit_collapse(*([column[place] for place in kept] for column in (*values, units))).num_units == 3


def test_scale_and_order_change_nothing():
    *values, units = curves(0.8, 0.6, "square", seeds=3, noise=0.05)
    found = fit_collapse(*values, units)
    scaled = fit_collapse(values[0], values[1], 100 * np.array(values[2]), units)
    backwards = fit_collapse(*(column[::-1] for column in (*values, units)))
    for other in (scaled, backwards):
        assert (other.a, other.b, other.quality) == pytest.approx((found.a, found.b, found.quality), abs=1e-9)
        assert other.b_interval == pytest.approx(found.b_interval, abs=1e-9)


def test_curves_without_collapse_are_at_the_edge():
    assert fit_collapse(*curves(0.5, 3.0)[:3]).is_at_edge


@pytest.mark.parametrize(
    ("depths", "layers", "values", "message"),
    [
        ([5, 5, 5], [1, 2, 3], [1.0, 0.5, 0.2], "1 depths with two layers"),
        ([2, 3, 5], [2, 3, 5], [1.0, 0.5, 0.2], "0 depths with two layers"),
        ([], [], [], "0 depths"),
        ([5, 5, 8, 8], [4, 5, 7, 8], [1.0, 0.0, 1.0, 0.5], "value has 1 of 4"),
        ([5, 5, 8, 8], [4, 5, 7, 8], [1.0, math.nan, 1.0, 0.5], "value has 1 of 4"),
        ([0, 5, 8, 8], [0, 5, 7, 8], [1.0, 1.0, 1.0, 0.5], "depth has 1 of 4"),
        ([5, 5, 80, 80], [4, 5, 2, 3], [1.0, 0.9, 1.0, 0.5], "do not overlap"),
        ([5, 5, 8, 8], [4, 6, 7, 8], [1.0, 1.0, 1.0, 0.5], "a layer is beyond its depth 5"),
        ([5, 5, 8], [4, 6, 7, 8], [1.0, 1.0, 1.0, 0.5], "different lengths"),
    ],
)
def test_values_that_cannot_be_collapsed(depths, layers, values, message):
    with pytest.raises(FitError, match=message):
        fit_collapse(depths, layers, values)
