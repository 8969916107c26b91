"""Intervals over whole seeds: they cover where a seed's values belong together, and equal what is known by other means."""

import numpy as np
import pytest
from scipy import stats

from depthrate.tasks.fits.common_exponent import common_exponent
from depthrate.tasks.fits.points import FitError
from depthrate.tasks.fits.rates import check_bound, fit_many, fit_rates

DEPTHS = np.array([2.0, 3, 5, 8, 13])
CURVES = {"power": (lambda x: 3 * x**-0.5, 0.5), "power_floor": (lambda x: 3 / x + 0.15, 1.0)}


def noise(kind, num_curves, num_seeds, seed=1):
    """What is added to log y, [C, S, G]: benchmarks/coverage.py has more kinds and designs."""
    rng = np.random.default_rng(seed)
    own_CSG, of_seed_CS1 = (rng.standard_normal((num_curves, num_seeds, n)) for n in (5, 1))
    if kind == "independent":
        return 0.1 * own_CSG
    log_x = np.log(DEPTHS) - np.log(DEPTHS).mean()
    shape = {"shift": 0.2 + 0 * log_x, "slope": 0.05 * log_x, "bend": 0.1 * np.sin(3 * log_x)}[kind]
    return 0.03 * own_CSG + of_seed_CS1 * shape


def simulated(curve, kind, num_curves=200, num_seeds=5):
    """x [N], y [C, N] and seeds [N]."""
    y_CSG = curve(DEPTHS) * np.exp(noise(kind, num_curves, num_seeds))
    seeds = np.repeat(np.arange(num_seeds), len(DEPTHS)).tolist()
    return np.tile(DEPTHS, num_seeds), y_CSG.reshape(num_curves, -1), seeds


@pytest.mark.parametrize("kind", ["independent", "shift", "slope", "bend"])
@pytest.mark.parametrize("model", CURVES)
@pytest.mark.parametrize("num_seeds", [3, 5])
def test_intervals_cover_correlated_seeds(model, kind, num_seeds):
    curve, truth = CURVES[model]
    x, y, seeds = simulated(curve, kind, num_seeds=num_seeds)
    fits = [fit for (fit,) in fit_many(x, y, models=(model,), seeds=seeds)]
    low = np.array([-np.inf if fit.ci_low is None else fit.ci_low for fit in fits])
    high = np.array([np.inf if fit.ci_high is None else fit.ci_high for fit in fits])
    held = np.mean((low <= truth) & (truth <= high))
    assert 0.95 - 4 * 0.0154 < held < 0.998, "four standard errors of 200 simulations: sqrt(.05 * .95 / 200) = .0154"
    assert {fit.ci_method for fit in fits} == {"seeds"} and {fit.n_seeds for fit in fits} == {num_seeds}


@pytest.mark.parametrize("num_seeds", [3, 10])
@pytest.mark.parametrize("kind", ["independent", "slope"])
def test_a_floor_that_may_be_zero_keeps_the_power_law_s_interval(kind, num_seeds):
    # along curves without a floor, the profile has the noise of the power law's exponent
    x, y, seeds = simulated(CURVES["power"][0], kind, num_seeds=num_seeds)
    covers = []
    for power, floor in fit_many(x, y, models=("power", "power_floor"), seeds=seeds):
        (low, high), (power_low, power_high) = (fit.intervals[0] for fit in (floor, power))
        if not floor.floor:
            assert floor.exponent == pytest.approx(power.exponent) and floor.stderr == pytest.approx(power.stderr)
            assert low == pytest.approx(power_low, rel=1e-5) and high > power_high - 1e-5
        covers.append(low <= 0.5 <= high)
    assert np.mean(covers) > 0.95 - 4 * 0.0154, "five depths and seeds of their own slopes covered 85 %"


def test_complete_seeds_give_t_intervals():
    x, (y, *_), seeds = simulated(CURVES["power"][0], "slope")
    (fit,) = fit_rates(x, y, models=("power",), seeds=seeds)
    slopes = [-stats.linregress(np.log(x[rows]), np.log(y[rows])).slope for rows in np.arange(25).reshape(5, 5)]
    interval = stats.t.interval(0.95, 4, loc=np.mean(slopes), scale=stats.sem(slopes))
    assert (fit.exponent, fit.ci_low, fit.ci_high) == pytest.approx((np.mean(slopes), *interval), rel=1e-12)
    assert fit.seed_spread == pytest.approx(np.std(slopes, ddof=1)) and fit.stderr == pytest.approx(stats.sem(slopes))
    assert fit.p_half == pytest.approx(stats.ttest_1samp(slopes, 0.5).pvalue)
    assert fit.profile_low is None, "it takes values to be independent"


def test_missing_values_have_statsmodels_bias_reduced_sandwich():
    """Bell and McCaffrey's variance, computed seed by seed with whole matrices."""
    x, (y, *_), seeds = simulated(CURVES["power"][0], "slope")
    kept = np.array([i for i in range(25) if i not in (3, 4, 11, 20)])
    (fit,) = fit_rates(x[kept], y[kept], models=("power",), seeds=[seeds[i] for i in kept])
    design, of_seed = np.stack([np.ones(len(kept)), -np.log(x[kept])], axis=1), np.array(seeds)[kept]
    bread = np.linalg.inv(design.T @ design)
    left = np.log(y[kept]) - design @ (bread @ design.T @ np.log(y[kept]))
    meat = np.zeros((2, 2))
    for seed in range(5):
        own = design[of_seed == seed]
        values, vectors = np.linalg.eigh(np.eye(len(own)) - own @ bread @ own.T)
        score = own.T @ (vectors @ np.diag(values**-0.5) @ vectors.T) @ left[of_seed == seed]
        meat += np.outer(score, score)
    assert fit.stderr == pytest.approx(np.sqrt((bread @ meat @ bread)[1, 1]), rel=1e-9)
    half = (fit.ci_high - fit.ci_low) / 2
    assert stats.t.ppf(0.975, 4) * fit.stderr < half < stats.t.ppf(0.975, 2) * fit.stderr


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_too_few_seeds_have_no_interval(num_seeds):
    x, (y, *_), seeds = simulated(CURVES["power"][0], "independent", num_curves=1, num_seeds=num_seeds)
    for fit in fit_rates(x, y, seeds=seeds):
        assert (fit.ci_low, fit.ci_high, fit.ci_method, fit.p_half, fit.profile_low) == (None,) * 5
        assert fit.n_seeds == num_seeds


def test_value_order_is_irrelevant():
    x, (y, *_), seeds = simulated(CURVES["power_floor"][0], "shift", num_curves=1)
    order = np.random.default_rng(0).permutation(25)
    fits = fit_rates(x, y, seeds=seeds), fit_rates(x[order], y[order], seeds=[f"s{seeds[i]}" for i in order])
    for one, other in zip(*fits, strict=True):
        assert (one.exponent, one.ci_low, one.ci_high) == pytest.approx(
            (other.exponent, other.ci_low, other.ci_high), rel=1e-6
        )


def p_of_power(x, y, seeds=None):
    """Return the p-value of the test of a power law against one mean per x."""
    (fit,) = fit_rates(x, y, models=("power",), seeds=seeds)
    return fit.p_lack_of_fit


def test_target_interval_is_fieller_s():
    x, (y, *_), seeds = simulated(CURVES["power"][0], "slope", num_curves=1)
    (fit,) = fit_rates(x, y, models=("power",), seeds=seeds, target=0.2)
    for log_x in (np.log(fit.x_at_low), np.log(fit.x_at_high)):
        at = [np.polyval(np.polyfit(np.log(x[r]), np.log(y[r]), 1), log_x) for r in np.arange(25).reshape(5, 5)]
        t = (np.mean(at) - np.log(0.2)) / stats.sem(at)
        assert abs(t) == pytest.approx(stats.t.ppf(0.975, 4), rel=1e-6)
    assert fit.x_at_low < fit.x_at_target < fit.x_at_high


@pytest.mark.parametrize("kind", ["independent", "shift", "slope", "bend"])
def test_true_hypotheses_are_rarely_rejected(kind):
    x, y, seeds = simulated(CURVES["power"][0], kind, num_curves=200)
    # the spread of seeds that bend has a few directions, and five seeds know them badly
    assert np.mean([p_of_power(x, y_N, seeds) < 0.05 for y_N in y]) <= (0.1 if kind == "bend" else 0.09)
    pairs = [common_exponent([(x, y[i]), (x, y[i + 1])], seeds=[seeds, seeds]).p_common for i in range(0, 200, 2)]
    assert np.mean(np.array(pairs) < 0.05) <= 0.13, "four standard errors of 100 pairs"


def test_bends_and_distinct_exponents_are_found():
    x, (y, *_), seeds = simulated(lambda x: 3 / x + 1, "shift", num_curves=1, num_seeds=10)
    assert p_of_power(x, y, seeds) < 0.01
    other = y * x**-0.2
    common = common_exponent([(x, y), (x, other)], seeds=[seeds, seeds])
    assert common.p_common < 1e-6 and common.ci_low < common.exponent < common.ci_high


def test_what_cannot_be_fitted_over_seeds_is_named():
    with pytest.raises(FitError, match="seeds has 2 entries, expected 3"):
        fit_rates([1, 2, 3], [3, 2, 1], seeds=[0, 1])
    curve = ([2, 3, 5, 2, 3, 5], [3, 2, 1, 3, 2, 1.1])
    with pytest.raises(FitError, match="2 seeds have a value at every x of every curve, expected at least 3"):
        common_exponent([curve, curve], seeds=[[0, 0, 0, 1, 1, 1]] * 2)


def test_a_bound_is_one_sided():
    x, (y, *_), seeds = simulated(CURVES["power"][0], "slope", num_curves=1)
    slow, fast = (check_bound(x, y, 100 * x**-a, seeds=seeds) for a in (0.3, 1.0))
    assert slow.exponent == pytest.approx(0.3) and slow.ci_low > 0, "what falls faster respects it"
    assert fast.ci_high < 0 and fast.ratio == pytest.approx(slow.ratio - 0.7)
    assert check_bound(x[:5], y[:5], x[:5] ** -0.5, seeds=seeds[:5]) is None, "one seed"


def test_bound_must_depend_on_x():
    x, (y, *_), seeds = simulated(CURVES["power"][0], "slope", num_curves=1)
    assert check_bound(x, y, x**-0.5, seeds=seeds) is not None
    assert check_bound(x, y, np.full_like(x, 0.3), seeds=seeds) is None, "x is a learning rate, for instance"
    assert check_bound(x, y, (x + np.array(seeds)) ** -0.5, seeds=seeds) is None, "networks of several depths at one x"


def test_lack_of_fit_equals_its_definitions():
    x, (y, *_), seeds = simulated(CURVES["power"][0], "shift", num_curves=1)
    log_y_SG = np.log(y.reshape(5, 5))
    line_GP = np.stack([np.ones(5), np.log(DEPTHS)], axis=1)
    # over whole seeds: Huynh and Feldt's test, with Lecoutre's correction, that orthogonal contrasts are zero
    value_SQ = log_y_SG @ np.linalg.qr(line_GP, mode="complete")[0][:, 2:]
    covariance = np.cov(value_SQ.T)
    greenhouse = np.trace(covariance) ** 2 / (3 * np.trace(covariance @ covariance))
    share = np.clip((5 * 3 * greenhouse - 2) / (3 * (4 - 3 * greenhouse)), 1 / 3, 1)
    f = 5 * (value_SQ.mean(0) ** 2).sum() / np.trace(covariance)
    assert p_of_power(x, y, seeds) == pytest.approx(stats.f.sf(f, 3 * share, 12 * share), rel=1e-9)
    # independent values: the textbook's table of lack of fit and pure error
    mean_G = log_y_SG.mean(0)
    residual_G = mean_G - line_GP @ np.linalg.lstsq(line_GP, mean_G, rcond=None)[0]
    f = (5 * residual_G @ residual_G / 3) / (((log_y_SG - mean_G) ** 2).sum() / 20)
    assert p_of_power(x, y) == pytest.approx(stats.f.sf(f, 3, 20), rel=1e-9)


@pytest.mark.parametrize("kind", ["independent", "shift"])
def test_three_seeds_reject_a_log_factor(kind):
    depths = np.array([2.0, 3, 5, 8, 13, 21, 34])
    rng = np.random.default_rng(0)
    shift = 0.2 * rng.standard_normal((300, 3, 1)) if kind == "shift" else 0
    curves = {"power": depths**-0.5, "log factor": np.log(depths) / depths}
    noise_CSG = 0.1 * rng.standard_normal((300, 3, 7)) + shift
    x, seeds = np.tile(depths, 3), np.repeat(np.arange(3), 7).tolist()
    rejected = {
        name: np.mean([p_of_power(x, y.reshape(-1), seeds) < 0.05 for y in curve * np.exp(noise_CSG)])
        for name, curve in curves.items()
    }
    assert rejected["power"] <= 0.09 and rejected["log factor"] > 0.35


def test_restarts_of_one_seed_count_once():
    x, (y, *_), seeds = simulated(CURVES["power"][0], "shift", num_curves=1)
    restarts = np.concatenate([y * 1.02, y / 1.02, y])
    once, thrice = fit_rates(x, y, seeds=seeds), fit_rates(np.tile(x, 3), restarts, seeds=seeds * 3)
    for alone, repeated in zip(once, thrice, strict=True):
        assert repeated.n_points == 25
        found = repeated.exponent, repeated.aicc, repeated.ci_low
        assert found == pytest.approx((alone.exponent, alone.aicc, alone.ci_low), rel=1e-6)


@pytest.mark.parametrize("correction", [0.0, 1.0, 3.0])
@pytest.mark.slow
def test_a_correction_to_scaling_keeps_the_coverage(correction):
    depths = np.array([2.0, 3, 5, 8, 13, 21, 34, 55])
    rng = np.random.default_rng(0)
    noise_CSG = 0.1 * rng.standard_normal((300, 5, 8)) + 0.2 * rng.standard_normal((300, 5, 1))
    y = 3 * depths**-0.5 * (1 + correction / depths) * np.exp(noise_CSG)
    x, seeds = np.tile(depths, 5), np.repeat(np.arange(5), 8).tolist()
    fits = [fit for (fit,) in fit_many(x, y.reshape(300, -1), models=("power_correction",), seeds=seeds)]
    held = np.mean([fit.ci_low <= 0.5 <= fit.ci_high for fit in fits])
    assert 0.95 - 3 * 0.0126 < held < 0.998
