"""The law of equi-separation: independent formulas, invariances, refusals."""

import math

import numpy as np
import pytest
from scipy import stats

from depthrate.tasks.fits.layer_law import decay_over_depth, fit_layers
from depthrate.tasks.fits.points import FitError
from depthrate.tasks.fits.rates import fit_rates


def noisy(depth: int, rho: float, seeds: int = 4, bend: float = 0.0, seed: int = 0) -> tuple[list, list, list]:
    rng = np.random.default_rng(seed)
    layers = np.arange(1, depth + 1)
    log_SL = 0.7 + layers * math.log(rho) - bend * layers**2 + rng.normal(0, 0.05, (seeds, depth))
    log_SL += layers * rng.normal(0, 0.01, (seeds, 1))
    return np.tile(layers, seeds).tolist(), np.exp(log_SL).ravel().tolist(), np.repeat(range(seeds), depth).tolist()


@pytest.mark.parametrize(("depth", "rho"), [(3, 0.5), (13, 0.8), (34, 1.02)])
def test_numbers_agree_with_numpy_and_scipy(depth, rho):
    layers, values, units = noisy(depth, rho)
    found = fit_layers(layers, values, units)
    log_SL = np.log(values).reshape(4, depth)
    slopes = np.array([np.polyfit(np.arange(1, depth + 1), row, 1)[0] for row in log_SL])
    slope, intercept = np.polyfit(np.arange(1, depth + 1), log_SL.mean(0), 1)
    assert found.rho == pytest.approx(math.exp(slope)) and found.fit.prefactor == pytest.approx(math.exp(intercept))
    assert found.r == pytest.approx(np.corrcoef(np.arange(1, depth + 1), log_SL.mean(0))[0, 1])
    half = stats.t.ppf(0.975, 3) * slopes.std(ddof=1) / 2
    assert found.rho_interval == pytest.approx((math.exp(slope - half), math.exp(slope + half)))
    assert [found.decays[unit] for unit in range(4)] == pytest.approx(-slopes)
    assert list(found.means.values()) == pytest.approx(np.exp(log_SL.mean(0)))


def test_a_bend_is_found():
    assert fit_layers(*noisy(13, 0.8, bend=0.005)).fit.p_lack_of_fit < 0.01
    layers, values, _ = noisy(13, 0.8, bend=0.01)
    assert fit_rates(layers, values, models=("exponential",))[0].p_lack_of_fit < 0.01  # independent values


def test_scale_changes_the_prefactor_alone():
    layers, values, units = noisy(8, 0.7)
    found, scaled = fit_layers(layers, values, units), fit_layers(layers, 10 * np.array(values), units)
    assert scaled.fit.prefactor == pytest.approx(10 * found.fit.prefactor)
    assert (scaled.rho, scaled.r, scaled.fit.p_lack_of_fit) == pytest.approx(
        (found.rho, found.r, found.fit.p_lack_of_fit)
    )
    assert scaled.rho_interval == pytest.approx(found.rho_interval)
    backwards = fit_layers(layers[::-1], values[::-1], units[::-1])
    assert (backwards.rho, backwards.fit.p_lack_of_fit) == pytest.approx((found.rho, found.fit.p_lack_of_fit))


def test_the_decay_follows_depth():
    fits = {depth: fit_layers(*noisy(depth, math.exp(-1.3 * depth**-0.6), seed=depth)) for depth in (5, 8, 13, 21, 34)}
    decay = decay_over_depth(fits)
    x, y = (np.log([value for depth in fits for value in pair(depth)]) for pair in (
        lambda depth: [depth] * 4, lambda depth: fits[depth].decays.values()))  # fmt: skip
    assert decay.exponent == pytest.approx(-np.polyfit(x, y, 1)[0]) and decay.ci_low < 0.6 < decay.ci_high
    assert decay.n_seeds == 4
    assert decay_over_depth({depth: fits[depth] for depth in (5, 8)}) is None
    assert decay_over_depth(fits | {55: fit_layers(*noisy(55, 1.1))}) is None  # D grows


def test_one_unit_has_no_interval():
    found = fit_layers(*noisy(8, 0.7, seeds=1))
    assert found.rho_interval is None and found.fit.p_lack_of_fit is None and found.r < -0.99


def test_constant_values_have_no_correlation():
    found = fit_layers([1, 2, 3, 4], [2.0] * 4, ["a"] * 4)
    assert found.rho == pytest.approx(1) and found.r is None


@pytest.mark.parametrize(
    ("layers", "values", "message"),
    [
        ([1], [1.0], "1 layer, at least 3 needed"),
        ([1, 2, 2], [1.0, 0.5, 0.4], "2 layers"),
        ([], [], "0 layers"),
        ([1, 2, 3], [1.0, 0.0, 0.5], "1 of 3 values"),
        ([1, 2, 3], [1.0, math.nan, 0.5], "1 of 3 values"),
        ([0, 1, 2], [1.0, 0.7, 0.5], "x has 1 of 3 values"),
        ([1, 2, 3], [1.0, 0.5], "two lists of one length"),
    ],
)
def test_values_that_cannot_be_fitted(layers, values, message):
    with pytest.raises(FitError, match=message):
        fit_layers(layers, values, ["a"] * len(layers))
