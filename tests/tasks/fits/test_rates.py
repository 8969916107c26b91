"""The science of fit: known rates come back, other people's least squares agree, intervals cover what they say."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import optimize, stats

from depthrate.tasks.fits.bootstrap_and_profile import bca_interval, draw, effective_freedom
from depthrate.tasks.fits.common_exponent import common_exponent
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.models import MODELS
from depthrate.tasks.fits.points import FitError, gather
from depthrate.tasks.fits.rates import fit_many, fit_rates, predict, sensitivity

DEPTHS = np.array([2.0, 3, 5, 8, 13, 21])
TRUE_CURVES = {
    "power": (lambda x: 3 * x**-0.5, 0.5, 3.0, None),
    "power_floor": (lambda x: 3 * x**-1.5 + 0.02, 1.5, 3.0, 0.02),
    "power_correction": (lambda x: 3 * x**-0.5 * (1 + 2 / x), 0.5, 3.0, None),
    "power_log": (lambda x: 3 * x**-0.5 * np.log(x) ** 1.5, 0.5, 3.0, None),
    "exponential": (lambda x: 3 * np.exp(-0.2 * x), 0.2, 3.0, None),
    "log_linear": (lambda x: 3 * (1 - 0.3 * np.log(x)), 0.3, 3.0, None),
}

pytestmark = pytest.mark.filterwarnings("error")


def noisy(curve, x, num_seeds, sigma, seed):
    x = np.repeat(x, num_seeds)
    return x, curve(x) * np.exp(sigma * np.random.default_rng(seed).standard_normal(len(x)))


def one(x, y, model, **options) -> Fit:
    (fit,) = fit_rates(x, y, models=(model,), **options)
    return fit


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("num_seeds", [1, 3])
@pytest.mark.slow
def test_recovers_noise_free_curves(model, num_seeds):
    curve, exponent, prefactor, floor = TRUE_CURVES[model]
    x = np.repeat(np.append(DEPTHS, 34.0 if model == "power_log" else 1.5), num_seeds)
    fits = fit_rates(x, curve(x), num_resamples=50)
    assert [f.form for f in fits] == list(MODELS)
    fit = fits[list(MODELS).index(model)]
    assert (fit.exponent, fit.prefactor) == pytest.approx((exponent, prefactor), rel=1e-7)
    assert fit.floor == (floor if floor is None else pytest.approx(floor, rel=1e-7))
    assert fit.log_power == (pytest.approx(1.5) if model == "power_log" else None)
    assert (fit.profile_low, fit.profile_high) == pytest.approx((exponent, exponent), rel=1e-6)
    assert (fit.ci_low, fit.ci_high) == pytest.approx((exponent, exponent), rel=1e-7)
    is_curved = model in ("power_floor", "power_correction", "log_linear")
    assert fit.ci_method == ("bca" if num_seeds > 1 else "profile" if is_curved else "t")
    assert fit.r2 == pytest.approx(1)
    assert predict(fit, DEPTHS) == pytest.approx(curve(DEPTHS), rel=1e-7)
    assert max(fits, key=lambda f: f.weight) is fit
    assert sum(f.weight for f in fits if f.form not in (model, "power_floor", "power_correction", "power_log")) < 1e-9
    assert sum(f.weight for f in fits) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("model", ["power_floor", "log_linear"])
@pytest.mark.slow
def test_nonlinear_models_equal_scipy_curve_fit_on_logs(model, seed):
    curve, exponent, prefactor, floor = TRUE_CURVES[model]
    x, y = noisy(curve, DEPTHS, 4, 0.03, seed=seed)
    functions = {"power_floor": lambda x, c, a, f: np.log(c * x**-a + f)}
    functions["log_linear"] = lambda x, c, a: np.log(c * (1 - a * np.log(x)))
    start = [value for value in (prefactor, exponent, floor) if value is not None]
    best, covariance = optimize.curve_fit(functions[model], x, np.log(y), p0=start, xtol=1e-14, ftol=1e-14)
    fit = one(x, y, model, num_resamples=10)
    assert (fit.prefactor, fit.exponent) == pytest.approx(best[:2], rel=1e-5)
    assert fit.floor == (None if floor is None else pytest.approx(best[2], rel=1e-4))
    assert fit.stderr == pytest.approx(covariance[1, 1] ** 0.5, rel=1e-3)


@pytest.mark.slow
def test_floor_fit_is_the_global_optimum():
    def squares(parameters, x, y):
        return np.log(y) - parameters[0] - np.logaddexp(-parameters[1] * np.log(x), parameters[2])

    rng = np.random.default_rng(5)
    for seed in range(12):  # true exponents, floors and noises of all kinds, none favourable
        exponent, floor, sigma = rng.uniform(0.2, 4), 10 ** rng.uniform(-4, 0), rng.uniform(0.01, 0.5)
        x, y = noisy(lambda x, a=exponent, f=floor: x**-a + f, DEPTHS, 3, sigma, seed)
        fit = one(x, y, "power_floor", num_resamples=1)
        ours = np.sum((np.log(y) - np.log(predict(fit, x))) ** 2)
        starts = [(0.0, a, rho) for a in (0.1, 1, 3, 10) for rho in (-20, -5, -1)]
        theirs = min(2 * optimize.least_squares(squares, start, args=(x, y), method="trf").cost for start in starts)
        assert ours <= theirs * (1 + 1e-6), (seed, exponent, floor, sigma)


@pytest.mark.parametrize("curve", [lambda x: 2 * x**-0.5, lambda x: 2 * x**0.5, lambda x: 4 - np.log(x)])
@pytest.mark.parametrize("sigma", [0.0, 0.002])
@pytest.mark.slow
def test_no_floor_means_a_power_law(curve, sigma):
    # bent the other way than a floor bends it, so that zero is the best floor whatever the noise
    x, y = noisy(lambda x: curve(x) * np.exp(-0.02 * np.log(x) ** 2 * bool(sigma)), DEPTHS, 3, sigma, seed=0)
    power, floored = fit_rates(x, y, models=("power", "power_floor"))
    assert floored.floor == pytest.approx(0, abs=1e-9)
    assert (floored.exponent, floored.prefactor) == pytest.approx((power.exponent, power.prefactor), rel=1e-7)
    assert floored.r2 == pytest.approx(power.r2)
    assert floored.aicc > power.aicc


@pytest.mark.parametrize("y", [[1.0] * 6, [1, 9, 1, 9, 1, 9], [9, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1e-9]])
@pytest.mark.parametrize("x", [DEPTHS, DEPTHS / 100, DEPTHS + 100])
@pytest.mark.parametrize("num_seeds", [1, 2])
@pytest.mark.slow
def test_unsuitable_points_give_finite_fits(x, y, num_seeds):
    spread = np.tile([1.0, 1.1][:num_seeds], len(x))
    for fit in fit_rates(np.repeat(x, num_seeds), np.repeat(y, num_seeds) * spread, num_resamples=100):
        numbers = [value for value in fit.row().values() if isinstance(value, float)]
        assert np.isfinite(numbers).all(), fit
        assert (predict(fit, x) > 0).all(), fit


def test_bootstrap_interval_covers_the_true_exponent():
    num_simulations = 600  # by plain 2.5 % tails 0.90 would be covered
    x = np.repeat(DEPTHS[:5], 3)
    y = 2 * x**-0.5 * np.exp(0.3 * np.random.default_rng(0).standard_normal((num_simulations, len(x))))
    fits = [fit for (fit,) in fit_many(x, y, models=("power",), num_resamples=300)]
    assert {fit.ci_method for fit in fits} == {"bca"}
    assert 0.93 <= np.mean([fit.ci_low <= 0.5 <= fit.ci_high for fit in fits]) <= 0.975


def resampled_means(points, num_resamples, seed):
    return draw(points, num_resamples, seed).means(points)


def test_bootstrap_spread_is_unbiased():
    # two values a depth: the plain bootstrap's variance would be half of sigma^2 / 2
    rng = np.random.default_rng(0)
    y = np.exp(0.2 * rng.standard_normal((200, 12)))
    means = resampled_means(gather(np.repeat(DEPTHS, 2), y), 200, 0)
    assert means.var(2).mean() == pytest.approx(0.2**2 / 2, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["power_floor", "power_log", "log_linear"])
def test_resamples_fitted_together_equal_resamples_fitted_alone(model):
    # some resamples have a floor and others have none: the rows of one batch end at the bound and inside
    x, y = noisy(lambda x: x**-1.0, DEPTHS, 3, 0.1, seed=1)
    points = gather(x, y[None])
    alone = [one(DEPTHS, y, model) for y in np.exp(resampled_means(points, 40, 0)[:, 0].T)]
    if model == "power_floor":
        assert 4 < sum(fit.floor == 0 for fit in alone) < 36
    resampled = np.array([[fit.exponent for fit in alone]])
    together = one(x, y, model, num_resamples=40, seed=0)
    middle = np.array([together.exponent])
    # the jackknife by hand: what leaving one value out of its group does to the exponent, to first order
    slopes = np.array([_slope_by_mean(x, y, model, depth) for depth in DEPTHS])
    pulls = slopes.repeat(3) * np.concatenate([np.log(y[x == d]) - np.log(y[x == d]).mean() for d in DEPTHS]) / 3
    skewness = np.array([np.sum(pulls**3) / (6 * np.sum(pulls**2) ** 1.5)])
    low, high = bca_interval(middle, resampled, skewness, effective_freedom(slopes[:, None], points))
    assert (together.ci_low, together.ci_high) == pytest.approx((low[0], high[0]), rel=1e-3)


def _slope_by_mean(x, y, model, depth):
    """By how much the exponent moves when all log y at one depth move by 1: a central difference."""
    ends = [one(x, np.where(x == depth, y * np.exp(h), y), model, num_resamples=1).exponent for h in (-1e-4, 1e-4)]
    return (ends[1] - ends[0]) / 2e-4


def test_single_values_borrow_spread():
    x, y = noisy(lambda x: x**-0.5, DEPTHS, 3, 0.2, seed=0)
    kept = np.arange(len(x)) % 3 == 0
    kept[:3] = True  # three seeds at the first depth, one at the others
    full, thin = one(x, y, "power"), one(x[kept], y[kept], "power")
    assert thin.ci_method == "bca"
    assert thin.ci_high - thin.ci_low > full.ci_high - full.ci_low


def test_aicc_counts_the_variance():
    x, y = noisy(lambda x: x**-0.7, DEPTHS, 2, 0.1, seed=0)
    fit = one(x, y, "power", num_resamples=1)
    n, k = 12, 3
    squares = np.sum((np.log(y) - np.log(predict(fit, x))) ** 2)
    assert fit.aicc == pytest.approx(n * np.log(squares / n) + 2 * k + 2 * k * (k + 1) / (n - k - 1))
    assert fit.weight == 1


def test_order_of_the_points_changes_nothing():
    x, y = noisy(TRUE_CURVES["power_floor"][0], DEPTHS, 4, 0.2, seed=0)
    shuffled = np.random.default_rng(1).permutation(len(x))
    assert fit_rates(x[shuffled], y[shuffled]) == fit_rates(x, y) == fit_rates(list(x), list(y))
    assert fit_rates(x, y, seed=1)[0].ci_low != fit_rates(x, y)[0].ci_low


def test_y_scale_moves_prefactor_and_floor():
    x, y = noisy(TRUE_CURVES["power_floor"][0], DEPTHS, 4, 0.05, seed=0)
    for fit, scaled in zip(fit_rates(x, y), fit_rates(x, 1e-4 * y), strict=True):
        for name in ("exponent", "stderr", "ci_low", "ci_high", "r2", "aicc", "weight"):
            assert getattr(scaled, name) == pytest.approx(getattr(fit, name), rel=1e-5), (fit.form, name)
        assert scaled.prefactor == pytest.approx(1e-4 * fit.prefactor, rel=1e-5)
        if fit.floor is not None:
            assert scaled.floor == pytest.approx(1e-4 * fit.floor, rel=1e-4)


def test_one_seed_a_depth_gives_the_t_interval():
    x, y = noisy(lambda x: x**-0.5, DEPTHS, 1, 0.2, seed=0)
    expected = stats.linregress(np.log(x), np.log(y))
    half = stats.t.ppf(0.975, len(x) - 2) * expected.stderr
    fit = one(x, y, "power")
    assert fit.ci_method == "t"
    assert (fit.ci_low, fit.ci_high) == pytest.approx((-expected.slope - half, -expected.slope + half), rel=1e-9)


def test_a_model_needs_more_distinct_x_than_parameters():
    assert [f.form for f in fit_rates([2, 4], [1, 0.5])] == ["power"]
    assert [f.form for f in fit_rates([2, 4, 8], [1, 0.5, 0.3])] == ["power", "exponential", "log_linear"]
    (fit,) = fit_rates([2, 4], [1, 0.5])
    assert fit.exponent == pytest.approx(1)
    assert (fit.stderr, fit.ci_low, fit.ci_high, fit.ci_method, fit.aicc, fit.weight) == (None,) * 6
    assert all(f.aicc is None for f in fit_rates([2, 4, 8, 16], [1, 0.5, 0.3, 0.1]))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([2, 2, 2], [1, 2, 3], r"x has 1 distinct values at 3 points, expected at least 2"),
        ([], [], r"x has 0 distinct values at 0 points"),
        ([1, 2], [1, 2, 3], r"x has shape \(2,\) and y has shape \(3,\), .*one length"),
        ([1, 2, 3], [1, 0, -1], r"y has 2 of 3 values .* first is 0\.0, expected a finite number > 0"),
        ([1, 2], [1, np.nan], r"y has 1 of 2 values .* first is nan"),
        ([1, np.inf], [1, 2], r"x has 1 of 2 values .* first is inf"),
        ([1, 2], [[3, 2], [6, 5]], r"y has shape \(2, 2\), expected one curve .*np\.tile.*fit_many"),
        ([1, 2], [[3], [2]], r"y has shape \(2, 1\), expected one curve"),
        ([[1, 2]], [3, 2], r"x has shape \(1, 2\), expected one curve"),
        ([1, 2], np.ma.array([3, 2], mask=[True, False]), "masked"),
    ],
)
def test_points_that_cannot_be_fitted_are_named(x, y, message):
    with pytest.raises(FitError, match=message):
        fit_rates(x, y)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT, torch.tensor(1)])
def test_missing_seeds_are_refused(missing):
    x, y = [1, 2, 4, 8] * 3, np.linspace(2, 1, 12)
    for seeds in ([0, 1, missing] * 4, [missing] * 12):
        with pytest.raises(FitError, match="seeds has the entry"):
            fit_rates(x, y, seeds=seeds)
    curve = fit_rates(np.tile(x[:4], 3), y, models=["power"], seeds=np.repeat(range(3), 4))[0]
    assert curve.n_points == 12, "a matrix is fitted as its message describes"


def test_cut_offs_refuse_a_matrix_too():
    for fit in (sensitivity, lambda x, y: common_exponent([(x, y), (x, y)])):
        with pytest.raises(FitError, match=r"y has shape \(3, 6\)"):
            fit(np.arange(1, 7), np.ones((3, 6)))


def test_options_that_are_not_allowed_are_named():
    with pytest.raises(FitError, match="target is -1, expected a finite number > 0"):
        fit_rates([1, 2], [2, 1], target=-1)
    with pytest.raises(FitError, match="fitted to 1 curves, expected at least 2"):
        common_exponent([([1, 2], [2, 1])])
    with pytest.raises(FitError, match=r"form 'cubic' is unknown, expected some of power, power_floor"):
        fit_rates([1, 2], [2, 1], models=("power", "cubic"))
    with pytest.raises(FitError, match="num_resamples is 0, expected at least 1"):
        fit_rates([1, 2], [2, 1], num_resamples=0)
    with pytest.raises(FitError, match="x has 1 of 1 values"):
        predict(fit_rates([1, 2], [2, 1])[0], [0.0])
