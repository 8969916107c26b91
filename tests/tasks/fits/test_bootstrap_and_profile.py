"""What the fits claim of their uncertainty: coverage, p-values, common exponents, extrapolation.

The fast forms simulate 100 to 400 curves a case; DEPTHRATE_COVERAGE=1000 simulates so many, in minutes.
"""

import os

import numpy as np
import pytest
from scipy import optimize, stats

from depthrate.tasks.fits.bootstrap_and_profile import f_tail
from depthrate.tasks.fits.common_exponent import common_exponent
from depthrate.tasks.fits.models import MODELS
from depthrate.tasks.fits.rates import fit_many, fit_rates, predict, sensitivity


@pytest.fixture
def statsmodels():
    return pytest.importorskip("statsmodels.api", reason="needs pip install statsmodels")


NUM_SIMULATIONS = int(os.environ.get("DEPTHRATE_COVERAGE", "300"))
DEPTHS = np.array([2.0, 3, 5, 8, 13, 21])
X = np.repeat(DEPTHS, 5)
CURVES = {
    "power": (lambda x: 3 * x**-0.5, 0.5),
    "power_floor": (lambda x: 3 * x**-1.5 + 0.05, 1.5),
    "power_correction": (lambda x: 3 * x**-0.5 * (1 + 1 / x), 0.5),
    "power_log": (lambda x: 3 * x**-0.5 * np.log(x), 0.5),
    "exponential": (lambda x: 3 * np.exp(-0.2 * x), 0.2),
    "log_linear": (lambda x: 3 * (1 - 0.3 * np.log(x)), 0.3),
}
SPREADS = {"same": np.full_like(X, 0.1), "grows": 0.05 * (X / 2) ** 0.7}

STATED_SHARES = {
    0.03: {
        "power": 0.844,
        "power_floor": 1.000,
        "power_correction": 0.408,
        "power_log": 0.722,
        "exponential": 1.000,
        "log_linear": 1.000,
    },
    0.1: {
        "power": 0.840,
        "power_floor": 0.864,
        "power_correction": 0.112,
        "power_log": 0.566,
        "exponential": 1.000,
        "log_linear": 0.806,
    },
    0.3: {
        "power": 0.640,
        "power_floor": 0.430,
        "power_correction": 0.012,
        "power_log": 0.326,
        "exponential": 0.946,
        "log_linear": 0.574,
    },
}
"""Of 500 curves, at so much noise; AICc lets a floor, a correction or a log factor into a power law by chance."""


def simulate(model, spread, num=NUM_SIMULATIONS, seed=1):
    noise = np.random.default_rng(seed).standard_normal((num, len(X)))
    return CURVES[model][0](X) * np.exp(SPREADS[spread] * noise)


def fit_all(y, model, x=X, **options):
    return [fit for (fit,) in fit_many(x, y, models=(model,), **({"num_resamples": 1000} | options))]


def holds(low, high, value):
    return (low is None or low <= value) and (high is None or value <= high)


# Coverage


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("model", CURVES)
@pytest.mark.slow
def test_bootstrap_intervals_cover_the_true_exponent(model, spread):
    fits = fit_all(simulate(model, spread), model)
    covered = np.mean([holds(fit.ci_low, fit.ci_high, CURVES[model][1]) for fit in fits])
    # 93 to 97 % at 1000 simulations; at 300 three standard errors are 3.8 %
    slack = 3 * np.sqrt(0.95 * 0.05 / NUM_SIMULATIONS) - 3 * np.sqrt(0.95 * 0.05 / 1000)
    assert 0.93 - slack <= covered <= 0.97 + slack


@pytest.mark.parametrize("model", CURVES)
@pytest.mark.slow
def test_three_seeds_cover_growing_noise(model):
    three = np.arange(len(X)) % 5 < 3
    fits = fit_all(simulate(model, "grows")[:, three], model, X[three])
    covered = np.mean([holds(fit.ci_low, fit.ci_high, CURVES[model][1]) for fit in fits])
    # 0.928 to 0.955 at 1000 simulations; with tails further out in place of stretched ends 0.875 to 0.933
    assert 0.94 - 3 * np.sqrt(0.94 * 0.06 / NUM_SIMULATIONS) <= covered <= 0.985


@pytest.mark.parametrize("model", ["power", "power_floor", "power_log"])
def test_profile_intervals_cover_the_true_exponent(model):
    fits = fit_all(simulate(model, "same"), model, num_resamples=1)
    covered = np.mean([holds(fit.profile_low, fit.profile_high, CURVES[model][1]) for fit in fits])
    assert 0.91 <= covered <= 0.985


# Which model


@pytest.mark.parametrize(("noise", "model"), [(noise, model) for noise in STATED_SHARES for model in CURVES])
@pytest.mark.slow
def test_the_right_model_wins_in_the_stated_share(noise, model):
    num = max(NUM_SIMULATIONS, 500) if "DEPTHRATE_COVERAGE" in os.environ else 100
    y = CURVES[model][0](X) * np.exp(noise * np.random.default_rng(3).standard_normal((num, len(X))))
    winners = []
    for fits in fit_many(X, y, num_resamples=1):
        winners.append(max(fits, key=lambda fit: fit.weight).form)
        assert winners[-1] == min(fits, key=lambda fit: fit.aicc).form
    stated = STATED_SHARES[noise][model]
    slack = 3 * np.sqrt(stated * (1 - stated) / num) + 0.01
    assert stated - slack <= winners.count(model) / num <= stated + slack
    if noise == 0.03:  # what wins instead bends like the truth
        assert set(winners) <= {model, "power_floor", "power_correction", "power_log"}


# p-values


NULLS = {
    ("power", 0.5): lambda x: 3 * x**-0.5,
    ("power", 1): lambda x: 3 / x,
    ("power_log", 0.5): lambda x: 3 * x**-0.5 * np.log(x),
    ("power_log", 1): lambda x: 3 / x * np.log(x) ** 2,
    ("power_floor", 0.5): lambda x: 3 * x**-0.5 + 1,
    ("power_floor", 1): lambda x: 3 / x + 0.1,
}


@pytest.mark.parametrize(("model", "exponent"), NULLS)
def test_p_values_are_uniform_under_the_null(model, exponent):
    num, noise = (300, 0.02) if model == "power_floor" else (1000, 0.1)
    y = NULLS[model, exponent](X) * np.exp(noise * np.random.default_rng(2).standard_normal((num, len(X))))
    p = [fit.p_half if exponent == 0.5 else fit.p_one for fit in fit_all(y, model, num_resamples=1)]
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_p_values_fall_where_the_null_is_wrong():
    fits = fit_all(simulate("power", "same", 50), "power", num_resamples=1)
    assert np.median([fit.p_one for fit in fits]) < 1e-6 < np.median([fit.p_half for fit in fits])
    assert all(f.p_half is None for f in fit_all(simulate("exponential", "same", 5), "exponential", num_resamples=1))


@pytest.mark.slow
def test_common_exponent_p_values_are_uniform():
    y = simulate("power", "same", 1200).reshape(-1, 3, len(X))
    common = [common_exponent([(X, part) for part in parts]).p_common for parts in y[:400]]
    assert stats.kstest(common, "uniform").pvalue > 0.01
    lack = [fit.p_lack_of_fit for (fit,) in fit_many(X, y[:400, 0], models=("power",))]
    assert stats.kstest(lack, "uniform").pvalue > 0.01


# Other people's programs


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
@pytest.mark.parametrize(("model", "transform"), [("power", np.log), ("exponential", lambda x: x)])
def test_lines_equal_statsmodels(model, transform, scale, statsmodels):
    x, y = scale * X[3:], simulate("power", "grows", 3)[:, 3:]  # groups of unequal size
    for values, fit in zip(y, fit_all(y, model, x), strict=True):
        theirs = statsmodels.OLS(np.log(values), statsmodels.add_constant(-transform(x))).fit()
        assert (np.log(fit.prefactor), fit.exponent) == pytest.approx(tuple(theirs.params), rel=1e-9)
        assert fit.stderr == pytest.approx(theirs.bse[1], rel=1e-9)
        assert (fit.profile_low, fit.profile_high) == pytest.approx(tuple(theirs.conf_int()[1]), rel=1e-9)
        means = [np.log(values)[x == at].mean() for at in np.unique(x)]
        fitted = [np.log(fit.prefactor) - fit.exponent * transform(at) for at in np.unique(x)]
        weights = np.unique(x, return_counts=True)[1]
        mean = np.average(means, weights=weights)
        left, whole = (np.average((np.array(means) - at) ** 2, weights=weights) for at in (fitted, mean))
        assert fit.r2 == pytest.approx(1 - left / whole), "R^2 of the means"
        if model == "power":
            assert fit.p_half == pytest.approx(float(theirs.t_test("x1 = 0.5").pvalue), rel=1e-7)
            assert fit.p_one == pytest.approx(float(theirs.t_test("x1 = 1").pvalue), rel=1e-7)


def test_power_log_equals_statsmodels_and_curve_fit(statsmodels):
    (y,) = simulate("power_log", "same", 1)
    (fit,) = fit_all(y[None], "power_log")
    theirs = statsmodels.OLS(np.log(y), np.stack([np.ones_like(X), -np.log(X), np.log(np.log(X))], axis=1)).fit()
    assert (np.log(fit.prefactor), fit.exponent, fit.log_power) == pytest.approx(tuple(theirs.params), rel=1e-8)
    assert fit.stderr == pytest.approx(theirs.bse[1], rel=1e-8)
    best, _ = optimize.curve_fit(lambda x, c, a, b: c - a * np.log(x) + b * np.log(np.log(x)), X, np.log(y))
    assert (np.log(fit.prefactor), fit.exponent, fit.log_power) == pytest.approx(tuple(best), rel=1e-5)


@pytest.mark.parametrize("model", ["power_floor", "log_linear"])
def test_profiles_equal_a_search_by_scipy(model):
    (y,) = simulate(model, "same", 1, seed=4)
    (fit,) = fit_all(y[None], model, num_resamples=1)
    shapes = {
        "power_floor": lambda a, f: np.log(X**-a + np.exp(f)),
        "log_linear": lambda a, f: np.log(1 - a * np.log(X)),
    }

    def squares(a):
        def left(f):
            values = np.log(y) - shapes[model](a, f)
            return np.sum((values - values.mean()) ** 2)

        return optimize.minimize_scalar(left, bounds=(-12, 2), method="bounded", options={"xatol": 1e-9}).fun

    k = 3 if model == "power_floor" else 2
    limit = squares(fit.exponent) * (1 + stats.t.ppf(0.975, len(X) - k) ** 2 / (len(X) - k))
    for end in (fit.profile_low, fit.profile_high):
        assert squares(end) == pytest.approx(limit, rel=1e-5)


def test_common_exponent_equals_the_nested_models_of_statsmodels(statsmodels):
    rng = np.random.default_rng(0)
    curves = [(x, c * x**-a * np.exp(0.1 * rng.standard_normal(len(x)))) for x, c, a in
              ((X, 1.0, 0.5), (X[5:], 3.0, 0.55), (X[::2], 0.2, 0.6))]  # fmt: skip
    group = np.repeat(np.arange(3), [len(x) for x, _ in curves])
    log_x, log_y = (np.log(np.concatenate([curve[i] for curve in curves])) for i in (0, 1))
    levels = np.eye(3)[group]
    shared = statsmodels.OLS(log_y, np.column_stack([levels, -log_x])).fit()
    separate = statsmodels.OLS(log_y, np.column_stack([levels, levels * -log_x[:, None]])).fit()
    f, p, _ = separate.compare_f_test(shared)
    ours = common_exponent(curves)
    assert ours.exponent == pytest.approx(shared.params[3], rel=1e-9)
    assert (ours.ci_low, ours.ci_high) == pytest.approx(tuple(shared.conf_int()[3]), rel=1e-9)
    assert ours.p_common == pytest.approx(p, rel=1e-7) and ours.num_groups == 3
    assert f_tail(f, 2, separate.df_resid) == pytest.approx(p, rel=1e-9)
    steep = [curves[0], (X, X**-0.9 * np.exp(0.1 * rng.standard_normal(len(X))))]
    assert common_exponent(steep).p_common < 1e-3


# Cuts, targets


def test_sensitivity_is_the_fit_of_what_is_left():
    (y,) = simulate("power", "same", 1)
    rows = sensitivity(X, y)
    assert [row["x_min"] for row in rows] == [2, 3, 5, 8]
    for row in rows:
        kept = row["x_min"] <= X
        (fit,) = fit_rates(X[kept], y[kept], models=("power",))
        assert (row["exponent"], row["ci_low"], row["ci_high"]) == (fit.exponent, fit.ci_low, fit.ci_high)


@pytest.mark.parametrize("model", MODELS)
def test_the_curve_meets_its_target_where_it_says(model):
    (y,) = simulate(model, "same", 1)
    target = float(CURVES[model][0](np.array(30.0)) if model != "log_linear" else 3 * (1 - 0.3 * np.log(22)))
    if model == "power_log":
        target = 0.9
    fit = fit_rates(X, y, models=(model,), target=target)[0]
    assert predict(fit, fit.x_at_target) == pytest.approx(target, rel=1e-9)
    assert fit.x_at_low < fit.x_at_target < (fit.x_at_high or np.inf)


def test_a_target_below_the_floor_is_never_met():
    (y,) = simulate("power_floor", "same", 1)
    fit = fit_rates(X, y, models=("power_floor",), target=0.001)[0]
    assert (fit.x_at_target, fit.x_at_high) == (None, None)


def test_x_at_target_covers_the_true_depth():
    fits = fit_all(simulate("power", "same"), "power", target=0.3)
    covered = np.mean([holds(fit.x_at_low, fit.x_at_high, (3 / 0.3) ** 2) for fit in fits])
    assert 0.91 <= covered <= 0.985


# Many curves at once


def test_many_curves_at_once_are_each_alone():
    y = simulate("power_floor", "grows", 4)
    together = fit_many(X, y, num_resamples=50, target=0.1)
    for values, fits in zip(y, together, strict=True):
        for ours, alone in zip(fits, fit_rates(X, values, num_resamples=50, target=0.1), strict=True):
            for name in ("exponent", "stderr", "aicc", "ci_low", "ci_high", "profile_low", "p_half", "x_at_target"):
                expected = getattr(alone, name)
                given = getattr(ours, name)
                assert given == (expected if expected is None else pytest.approx(expected, rel=1e-5)), (name, ours)
