"""Rates in several variables: public tables with known answers, scipy's minima, whole seeds, and what is left undecided."""

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from depthrate.orchestrator.analysis.table_fit import TableFit
from depthrate.orchestrator.sheet.value_sheets import undecided
from depthrate.tasks.fits.bootstrap_and_profile import holm
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.models import FORMS
from depthrate.tasks.fits.points import FitError, gather
from depthrate.tasks.fits.rates import fit_rates
from depthrate.tasks.fits.several_variables import MAX_INFLATION, SurfaceFits, fit_surfaces

DATA = Path(os.environ.get("DEPTHRATE_DATA", "missing")) / "scaling"
tables = pytest.mark.skipif(not DATA.is_dir(), reason="needs the public tables in DEPTHRATE_DATA")


def judged(fits: SurfaceFits, x_KN: Any, y_N: Any) -> TableFit:
    """Return fits with the values that judge them."""
    return TableFit("y", fits, 0, 0, {}, np.array(x_KN, float), np.array(y_N, float), np.arange(len(y_N)))


def of_form(fits: Any, form: str = "power_floor") -> Fit:
    return next(fit for fit in fits.fits if fit.form == form)


def table(
    seeds: int = 5, noise: float = 0.1, shift: float = 0.05, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return depth and width [2, N], a sum of powers with a floor [N], and its seed [N]."""
    rng = np.random.default_rng(seed)
    rows = np.array([(d, w, s) for d in (2, 3, 5, 8, 13) for w in (16, 32, 64, 128) for s in range(seeds)], float)
    shifts = rng.normal(0, shift, seeds)[rows[:, 2].astype(int)]
    y = 0.05 + rows[:, 0] ** -0.9 + 4 * rows[:, 1] ** -0.7
    return rows[:, :2].T, y * np.exp(rng.normal(0, noise, len(y)) + shifts), rows[:, 2].astype(int)


@tables
def test_chinchilla() -> None:
    frame = pd.read_csv(DATA / "chinchilla_extracted.csv")
    frame = frame[frame["loss"].rank(ascending=False) > 5]
    size, tokens = frame["Model Size"], frame["Training FLOP"] / 6 / frame["Model Size"]
    found = fit_surfaces([size, tokens], frame["loss"].to_numpy(), ["N", "D"], delta=1e-3, num_resamples=2000)
    fit = of_form(found)
    assert fit.objective <= 0.00101827402 * (1 + 1e-6)
    assert fit.exponents == pytest.approx((0.34731, 0.36717), abs=2e-4)
    assert fit.floor == pytest.approx(1.81722, abs=2e-4)
    assert fit.coefficients == pytest.approx((477.8, 2143.4), rel=1e-3)
    printed = ((0.317, 0.373), (0.331, 0.415))
    for interval, expected in zip((*fit.intervals, fit.floor_interval), (*printed, (1.769, 1.871)), strict=True):
        assert interval is not None
        assert interval == pytest.approx(expected, abs=0.15 * (expected[1] - expected[0]))
    for interval, (low, high) in zip(fit.coefficient_intervals, ((285, 744), (1042, 5810)), strict=True):
        assert interval is not None
        assert np.log(interval) == pytest.approx(np.log((low, high)), abs=0.15 * np.log(high / low))
    assert fit.floor_interval is not None and fit.intervals[1] is not None
    assert fit.floor_interval[0] > 1.69 and fit.intervals[1][0] > 0.28, "the earlier published values are rejected"
    table = judged(found, [size, tokens], frame["loss"])
    assert [fit.form for fit in table.preferred] == ["power_floor"] and not list(undecided(table))


@tables
def test_depth_width_and_tokens() -> None:
    frame = pd.read_csv(DATA / "depth_width_tokens.csv")
    frame = frame[frame["loss"] < frame["loss"].sort_values().iloc[-40]]
    assert len(frame) == 203
    x = [frame["d_model"], frame["n_layers"], frame["num_tokens"] / 1e6]
    found = fit_surfaces(x, frame["loss"].to_numpy(), ["width", "depth", "tokens"], num_resamples=300)
    fit = of_form(found)
    assert 2 * fit.objective / 203 <= 3.02738e-5 * (1 + 1e-5)
    assert fit.exponents == pytest.approx((0.9455, 1.3251, 0.2991), abs=2e-4)
    assert fit.floor == pytest.approx(1.7536, abs=2e-4)
    (confounded,) = undecided(judged(found, x, frame["loss"]))
    assert confounded.startswith("width and depth are confounded (variance inflation 6.6)")
    later = fit_surfaces([x[0], x[1] - 2, x[2]], frame["loss"].to_numpy(), ["w", "d", "t"], num_resamples=0)
    assert of_form(later).exponents == pytest.approx((0.951, 1.098, 0.2989), abs=1e-3)
    assert of_form(later).floor == pytest.approx(1.7450, abs=1e-4)


@tables
def test_gemstones_have_no_floor() -> None:
    frame = pd.read_csv(DATA / "gemstones_hot.csv")
    x, y = [frame[name] for name in ("width", "depth", "tokens")], frame["loss"].to_numpy()
    found = fit_surfaces(x, y, ["width", "depth", "tokens"], units=frame["run"].tolist(), delta=1e-3, num_resamples=200)
    fit = of_form(found)
    assert fit.n_units == 22 and fit.floor == 0
    assert fit.objective <= 0.0038782174 * (1 + 1e-6)
    assert fit.exponents == pytest.approx((0.2607, 0.1416, 0.5309), abs=2e-4)
    assert np.log(fit.coefficients) == pytest.approx((2.114, 0.731, 11.283), abs=2e-3)
    assert any(text.startswith("E not identified") for text in undecided(judged(found, x, y)))
    finer = fit_surfaces(
        x, y, ["w", "d", "t"], units=frame["run"].tolist(), delta=1e-4, forms=["power_floor"], num_resamples=0
    )
    assert finer.fits[0].exponents == pytest.approx((0.26077, 0.14180, 0.54206), abs=3e-4)


@pytest.mark.parametrize("delta", [None, 0.05])
def test_minimum_is_scipys(delta: float | None) -> None:
    x_KN, y_N, _ = table()
    fit = fit_surfaces(x_KN, y_N, ["depth", "width"], delta=delta, forms=["power_floor"], num_resamples=0).fits[0]

    def residuals(theta: np.ndarray) -> np.ndarray:
        a, b, log_c, log_d, floor = theta
        return np.log(np.exp(log_c) * x_KN[0] ** -a + np.exp(log_d) * x_KN[1] ** -b + floor) - np.log(y_N)

    start = [0.8, 0.8, 0.0, 1.0, 0.04]
    bounds = ([-9, -9, -20, -20, 0], [9, 9, 20, 20, 9])
    options: dict[str, Any] = {} if delta is None else {"loss": "huber", "f_scale": delta}
    reference = optimize.least_squares(residuals, start, bounds=bounds, xtol=1e-15, ftol=1e-15, gtol=1e-15, **options)
    assert fit.objective <= reference.cost * (1 + 1e-9)
    assert (*fit.exponents, *np.log(fit.coefficients), fit.floor) == pytest.approx(reference.x, abs=1e-5)


@pytest.mark.parametrize("num_variables", [2, 3])
def test_derivatives_are_those_of_differences(num_variables: int) -> None:
    rng = np.random.default_rng(1)
    points = gather(
        np.exp(rng.uniform(0.1, 3, (num_variables, 30))), np.exp(rng.normal(0, 1, (1, 30))), names="abc"[:num_variables]
    )
    family = FORMS["power_floor"].family(points)
    assert family is not None
    theta_PR = rng.uniform(0.1, 0.9, (2 * num_variables + 1, 1))
    for p, by_theta_GR in enumerate(family.shape(theta_PR, family.ref_C)[1:]):
        step_PR = np.zeros_like(theta_PR)
        step_PR[p] = 1e-6
        ahead_GR, behind_GR = (family.shape(theta_PR + sign * step_PR, family.ref_C)[0] for sign in (1, -1))
        assert by_theta_GR == pytest.approx((ahead_GR - behind_GR) / 2e-6, rel=1e-5, abs=1e-8)


def test_ends_of_intervals_are_heights_of_the_profile() -> None:
    x_KN, y_N, seed_N = table()
    fit = fit_surfaces(x_KN, y_N, ["depth", "width"], units=seed_N.tolist(), forms=["power_floor"]).fits[0]
    assert fit.method == "profile" and fit.intervals[0] is not None

    def least(a: float) -> float:
        def residuals(theta: np.ndarray) -> np.ndarray:
            b, log_c, log_d, floor = theta
            return np.log(np.exp(log_c) * x_KN[0] ** -a + np.exp(log_d) * x_KN[1] ** -b + floor) - np.log(y_N)

        bounds = ([-9, -20, -20, 0], [9, 20, 20, 9])
        return float(optimize.least_squares(residuals, [0.7, 0.0, 1.0, 0.04], bounds=bounds, xtol=1e-14).cost)

    low, high = (least(end) - fit.objective for end in fit.intervals[0])
    assert low > 0 and low == pytest.approx(high, rel=0.02), "both ends are equally high above the minimum"


@pytest.mark.parametrize("floor", [0.05, 0.2])
def test_no_interval_of_three_noisy_seeds_ends_at_its_estimate(floor: float) -> None:
    rows = np.array(list(itertools.product((2, 3, 5, 8, 13), (16, 32, 64, 128), range(3))))
    rng, x_KN = np.random.default_rng(0), rows[:, :2].T.astype(float)
    for _ in range(12):
        y_N = (floor + x_KN[0] ** -0.9 + 4 * x_KN[1] ** -0.7) * np.exp(rng.normal(0, 0.1, len(rows)))
        fit = fit_surfaces(x_KN, y_N, ["depth", "width"], units=rows[:, 2].tolist(), forms=["power_floor"]).fits[0]
        for a, interval in zip(fit.exponents, fit.intervals, strict=True):
            assert interval is not None
            assert interval[0] < a - 0.01 and interval[1] > a + 0.01, "the noise is 10 %: no end is the estimate"


def test_an_interval_of_exact_values_is_its_estimate() -> None:
    x_KN, y_N, seed_N = table(noise=0.0, shift=0.0)
    fit = fit_surfaces(x_KN, y_N, ["depth", "width"], units=seed_N.tolist(), forms=["power_floor"]).fits[0]
    assert np.ravel(fit.intervals) == pytest.approx([0.9, 0.9, 0.7, 0.7], abs=1e-6)


def test_a_plane_over_whole_seeds_is_students_t_of_the_seeds_own_slopes() -> None:
    x_KN, y_N, seed_N = table()
    fit = of_form(fit_surfaces(x_KN, y_N, ["depth", "width"], units=seed_N.tolist()), "power")
    design = np.stack([-np.log(x_KN[0]), -np.log(x_KN[1]), np.ones(len(y_N))], axis=1)
    own = [np.linalg.lstsq(design[seed_N == s], np.log(y_N[seed_N == s]), rcond=None)[0] for s in range(5)]
    for k, interval in enumerate(fit.intervals):
        slopes = np.array(own)[:, k]
        reach = stats.t.ppf(0.975, 4) * slopes.std(ddof=1) / np.sqrt(5)
        assert fit.exponents[k] == pytest.approx(slopes.mean())
        assert interval == pytest.approx((slopes.mean() - reach, slopes.mean() + reach))
        assert fit.exponent_estimates[k].p_half == pytest.approx(stats.ttest_1samp(slopes, 0.5).pvalue)


def test_one_variable_is_the_power_law_of_fit_rates() -> None:
    x_KN, y_N, seed_N = table()
    one = of_form(fit_surfaces(x_KN[:1], y_N, ["depth"], units=seed_N.tolist()), "power")
    power = next(fit for fit in fit_rates(x_KN[0], y_N, models=["power"], seeds=seed_N.tolist()))
    assert one.exponents[0] == pytest.approx(power.exponent)


def test_scales_and_order_change_nothing() -> None:
    x_KN, y_N, seed_N = table()
    order = np.random.default_rng(0).permutation(len(y_N))
    first = fit_surfaces(x_KN, y_N, ["depth", "width"], units=seed_N.tolist())
    other = fit_surfaces(
        (x_KN * [[7.0], [1e-3]])[:, order], 1e5 * y_N[order], ["depth", "width"], units=seed_N[order].tolist()
    )
    for one, two in zip(first.fits, other.fits, strict=True):
        assert one.exponents == pytest.approx(two.exponents, abs=1e-7)
        assert np.array(one.intervals) == pytest.approx(np.array(two.intervals), abs=1e-3)
        assert (one.objective, one.aicc, one.left_out) == pytest.approx(
            (two.objective, two.aicc, two.left_out), abs=1e-6
        )
        assert (one.floor or 0.0) * 1e5 == pytest.approx(two.floor or 0.0, rel=1e-5)
    assert first.fits[1].predict(x_KN)[order] * 1e5 == pytest.approx(
        other.fits[1].predict(x_KN[:, order] * [[7], [1e-3]])
    )


def test_forms_are_told_apart() -> None:
    x_KN, y_N, seed_N = table()
    found = fit_surfaces(x_KN, y_N, ["depth", "width"], units=seed_N.tolist())
    one = judged(found, x_KN, y_N)
    assert [fit.form for fit in one.preferred] == ["power_floor"] and one.inadequacy["power"]
    plane = 2 * x_KN[0] ** -0.5 * x_KN[1] ** -0.3 * np.exp(np.random.default_rng(3).normal(0, 0.1, len(y_N)))
    found = fit_surfaces(x_KN, plane, ["depth", "width"], units=seed_N.tolist())
    one = judged(found, x_KN, plane)
    assert [fit.form for fit in one.preferred] == ["power"] and one.inadequacy["power_floor"]


def test_confounded_variables_are_named() -> None:
    x_KN, y_N, seed_N = table()
    wide = np.stack([x_KN[0], 16 * x_KN[0] * np.where(x_KN[1] > 40, 1.2, 1.0)])
    found = fit_surfaces(wide, y_N, ["depth", "width"], units=seed_N.tolist())
    assert found.inflation > MAX_INFLATION and next(undecided(judged(found, wide, y_N))).startswith(
        "depth and width are confounded"
    )
    nearly = np.stack([x_KN[0], 16 * x_KN[0] * (1 + 1e-6 * x_KN[1])])
    (fit,) = fit_surfaces(nearly, y_N, ["depth", "width"], units=seed_N.tolist(), forms=["power"]).fits
    assert fit.coefficient_intervals[0] is not None
    assert fit.coefficient_intervals[0][1] > 1e300, "any coefficient is possible"


def test_a_floor_that_the_data_lack_is_not_identified() -> None:
    x_KN, _, seed_N = table()
    rng = np.random.default_rng(5)
    y_N = (x_KN[0] ** -0.9 + 4 * x_KN[1] ** -0.7) * np.exp(rng.normal(0, 0.05, len(seed_N)))
    found = fit_surfaces(x_KN, y_N, ["depth", "width"], units=seed_N.tolist(), forms=["power_floor"])
    fit = found.fits[0]
    assert fit.floor_interval is not None and fit.floor_interval[0] == 0 < fit.floor_interval[1] < 0.2
    assert any(text.startswith("E not identified") for text in undecided(judged(found, x_KN, y_N)))


def test_starts_find_the_minimum_of_exact_data() -> None:
    x_KN, y_N, _ = table(noise=0.0, shift=0.0)
    fit = fit_surfaces(x_KN, y_N, ["depth", "width"], forms=["power_floor"], num_resamples=0).fits[0]
    found = (*fit.exponents, *fit.coefficients, fit.floor)
    assert found == pytest.approx([0.9, 0.7, 1, 4, 0.05], abs=1e-6) and fit.objective < 1e-20


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": [[1, 2, 3]]}, "expected \\[2, 3\\]"),
        ({"x": np.ones((4, 12)), "names": "abcd"}, "at most 3 names"),
        ({"y": [0.0, *range(1, 12)]}, "y has 1 of 12 values that cannot be fitted"),
        ({"x": [np.ones(12), np.arange(1, 13)]}, "depth has 1 distinct values"),
        ({"units": ["a"]}, "units has 1 entries, expected 12"),
        ({"forms": ["cubic"]}, "form 'cubic' is unknown, expected some of power, power_floor"),
        ({"x": np.arange(1, 11).reshape(2, 5), "y": range(1, 6)}, "more than the 5 parameters"),
    ],
)
def test_wrong_input_is_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "x": np.arange(1, 25).reshape(2, 12),
        "y": range(1, 13),
        "names": ["depth", "width"],
    } | change
    if "x" in change and "y" not in change and np.shape(change["x"]) == (1, 3):
        given["y"] = range(1, 4)
    options = {name: given[name] for name in ("units", "forms") if name in given}
    with pytest.raises(FitError, match=message):
        fit_surfaces(np.array(given["x"], dtype=float), given["y"], list(given["names"]), **options)


def log_table(power: float = 2.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return depth and width [2, N], 3 log(depth)^power / (depth^0.9 width^0.4) with noise [N], and its seed [N]."""
    x_KN, _, seed_N = table(shift=0.0)
    rng = np.random.default_rng(4)
    shift_N = rng.normal(0, 0.05, 5)[seed_N]
    clean_N = 3 * np.log(x_KN[0]) ** power * x_KN[0] ** -0.9 * x_KN[1] ** -0.4
    return x_KN, clean_N * np.exp(rng.normal(0, 0.03, len(seed_N)) + shift_N), seed_N


def test_a_logarithm_is_a_column_of_the_plane() -> None:
    x_KN, y_N, seed_N = log_table()
    found = fit_surfaces(
        x_KN, y_N, ["depth", "width"], units=seed_N.tolist(), forms=["power_log", "power_log2", "power"]
    )
    free, fixed, product = found.fits
    design = np.stack([-np.log(x_KN[0]), -np.log(x_KN[1]), np.log(np.log(x_KN[0])), np.ones(len(y_N))], axis=1)
    a, b, power, log_c = np.linalg.lstsq(design, np.log(y_N), rcond=None)[0]
    assert (*free.exponents, free.log_power, *np.log(free.coefficients)) == pytest.approx((a, b, power, log_c))
    assert free.predict(x_KN) == pytest.approx(np.exp(design @ [a, b, power, log_c]))
    a, b, log_c = np.linalg.lstsq(np.delete(design, 2, 1), np.log(y_N) - 2 * design[:, 2], rcond=None)[0]
    assert (*fixed.exponents, fixed.log_power, *np.log(fixed.coefficients)) == pytest.approx((a, b, 2, log_c))
    assert fixed.log_power_interval is None and free.log_power_interval is not None
    assert free.log_power_interval[0] < 2 < free.log_power_interval[1]
    preferred = judged(found, x_KN, y_N).preferred
    assert preferred[0] in (free, fixed) and product not in preferred
    assert free.trade_offs[0][:2] == ("the exponent of depth", "the power of log depth") and not fixed.trade_offs
    alone = fit_surfaces(x_KN, y_N, ["depth", "width"], units=seed_N.tolist(), forms=["power_log"])
    assert any("the power of log depth correlate at" in text for text in undecided(judged(alone, x_KN, y_N)))
    with pytest.raises(FitError, match="needs values above 1"):
        fit_surfaces(x_KN - 1, y_N, ["depth - 1", "width"], forms=["power_log"])


def test_one_constant_times_a_whole_bound() -> None:
    x_KN, _, seed_N = table()
    bound_N = 8 / x_KN[0] + 4 * np.log(x_KN[0]) ** 2 / (x_KN[0] * x_KN[1])
    rng = np.random.default_rng(2)
    y_N = 0.3 * bound_N * np.exp(rng.normal(0, 0.1, len(seed_N)) + rng.normal(0, 0.05, 5)[seed_N])
    found = fit_surfaces(
        [1 / bound_N], y_N, ["1 / bound"], units=seed_N.tolist(), forms=["proportional", "power", "power_floor"]
    )
    constant, product, _ = found.fits
    means = np.array([np.log(y_N / bound_N)[seed_N == seed].mean() for seed in range(5)])
    reach = stats.t.ppf(0.975, 4) * means.std(ddof=1) / np.sqrt(5)
    assert np.log(constant.coefficients[0]) == pytest.approx(means.mean())
    assert np.log(constant.coefficient_intervals[0] or ()) == pytest.approx(
        (means.mean() - reach, means.mean() + reach)
    )
    assert constant.exponents == (1.0,) and constant.intervals == (None,) and constant.p_one is None
    assert constant in judged(found, [1 / bound_N], y_N).preferred and product.intervals[0] is not None
    assert product.intervals[0][0] < 1 < product.intervals[0][1]


@pytest.mark.parametrize("form", ["power", "power_floor"])
def test_intervals_of_coefficients_move_with_the_unit_of_a_variable(form: str) -> None:
    x_KN, y_N, seed_N = table()
    one, other = (
        of_form(fit_surfaces(x_KN * [[scale], [1]], y_N, ["depth", "width"], units=seed_N.tolist()), form)
        for scale in (1.0, 10.0)
    )
    for here, there in zip(one.coefficient_intervals, other.coefficient_intervals, strict=True):
        assert here is not None and there is not None and here[0] < here[1]
    factor = 10.0 ** one.exponents[0]
    assert other.coefficients[0] == pytest.approx(factor * one.coefficients[0], rel=1e-5)
    assert one.coefficients[-1] == pytest.approx(other.coefficients[-1] / (factor if form == "power" else 1), rel=1e-5)


def test_exponents_without_noise_are_those_of_variable_projection_on_y() -> None:
    """The published algorithm fits y by least squares, so that only values without noise have the same minimum."""
    x_KN, _, _ = table(seeds=1)
    y_N = 0.05 + x_KN[0] ** -0.9 + 4 * x_KN[1] ** -0.7

    def squares(exponents: np.ndarray) -> float:
        columns = [*(x**-a for x, a in zip(x_KN, exponents, strict=True)), np.ones(len(y_N))]
        return float(optimize.nnls(np.stack(columns, axis=1), y_N)[1])

    options = {"xatol": 1e-10, "fatol": 1e-16, "maxiter": 4000}
    reference = optimize.minimize(squares, [0.5, 0.5], method="Nelder-Mead", options=options).x
    fit = fit_surfaces(x_KN, y_N, ["depth", "width"], forms=["power_floor"], num_resamples=0).fits[0]
    assert fit.exponents == pytest.approx(reference, abs=1e-6) and fit.exponents == pytest.approx((0.9, 0.7), abs=1e-6)


def test_correlated_estimates_are_named() -> None:
    rng = np.random.default_rng(0)
    depth_N = np.exp(rng.uniform(1, 3, 60))
    width_N = 10 * depth_N * np.exp(rng.normal(0, 0.12, 60))
    y_N = depth_N**-0.5 * width_N**-0.3 * np.exp(rng.normal(0, 0.01, 60))
    (fit,) = fit_surfaces([depth_N, width_N], y_N, ["depth", "width"], forms=["power"]).fits
    ((one, other, size),) = fit.trade_offs
    design = np.stack([np.log(depth_N), np.log(width_N), np.ones(60)], axis=1)
    covariance = np.linalg.inv(design.T @ design)
    assert (one, other) == ("the exponent of depth", "the exponent of width")
    assert size == pytest.approx(covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1]), abs=0.05)


def test_huber_with_a_wide_threshold_is_squares() -> None:
    """Squares are fitted to the means of cells, and Huber's function to all values. Its intervals are those of resamples."""
    x_KN, y_N, seed_N = table(seeds=24)
    options: dict[str, Any] = {"units": seed_N.tolist(), "forms": ["power_floor"], "num_resamples": 200}
    squares, huber = (
        of_form(fit_surfaces(x_KN, y_N, ["depth", "width"], delta=delta, **options)) for delta in (None, 1e3)
    )
    assert (squares.method, huber.method) == ("profile", "bootstrap")
    assert huber.exponents == pytest.approx(squares.exponents, abs=1e-8)
    assert np.array(huber.intervals) == pytest.approx(np.array(squares.intervals), abs=0.05)
    assert squares.left_out == pytest.approx(huber.left_out, abs=1e-8)


@pytest.mark.parametrize("form", ["power", "power_floor"])
def test_squares_of_y_have_scipys_minimum(form: str) -> None:
    x_KN, y_N, seed_N = table()
    units = seed_N.tolist()
    fit = fit_surfaces(x_KN, 1e-4 * y_N, ["depth", "width"], units=units, forms=[form], loss="y").fits[0]

    def residuals(theta: np.ndarray) -> np.ndarray:
        a, b, c, *rest = theta
        terms = c * x_KN[0] ** -a, x_KN[1] ** -b
        return (terms[0] * terms[1] if form == "power" else terms[0] + rest[0] * terms[1] + rest[1]) - y_N

    start = [0.5, 0.5, 1.0] if form == "power" else [0.9, 0.7, 1.0, 4.0, 0.05]
    reference = optimize.least_squares(residuals, start, bounds=(0, 99), xtol=1e-15, ftol=1e-15, gtol=1e-15)
    assert fit.exponents == pytest.approx(reference.x[:2], abs=1e-5)
    assert fit.objective == pytest.approx(1e-8 * reference.cost, rel=1e-8)
    assert 1e4 * fit.prefactor == pytest.approx(reference.x[2], rel=1e-4) and fit.method == "profile"


def test_a_loss_that_moves_an_exponent_is_named() -> None:
    x_KN, y_N, seed_N = table(noise=0.02, shift=0.0)
    y_N[x_KN[0] == 13] *= 1.5  # small values, which squares of y hardly see
    for loss, delta in (("y", None), ("huber", 0.02)):
        options: dict[str, Any] = {"units": seed_N.tolist(), "forms": ["power"], "loss": loss, "delta": delta}
        (fit,) = fit_surfaces(x_KN, y_N, ["depth", "width"], **options).fits
        (squares,) = fit_surfaces(x_KN, y_N, ["depth", "width"], units=seed_N.tolist(), forms=["power"]).fits
        change = fit.exponents[0] - squares.exponents[0]
        found = {warning.values["variable"]: warning.values for warning in fit.warnings if warning.code == "loss"}
        assert fit.intervals[0] is not None
        half = (fit.intervals[0][1] - fit.intervals[0][0]) / 2
        assert ("depth" in found) == (abs(change) > half)
        assert "depth" not in found or found["depth"]["change"] == pytest.approx(change)
    assert fit_rates(x_KN[0], y_N, seeds=seed_N.tolist(), models=["power"], loss="y")[0].exponent > 0


@pytest.mark.parametrize(
    ("loss", "delta", "message"),
    [("l1", None, "expected one of log, y, huber"), ("huber", None, "without a threshold"), ("y", 0.1, "Leave out one"),
     ("huber", -1.0, "expected a finite number > 0")],
)  # fmt: skip
def test_a_wrong_loss_is_refused(loss: str, delta: float | None, message: str) -> None:
    x_KN, y_N, _ = table()
    with pytest.raises(FitError, match=message):
        fit_surfaces(x_KN, y_N, ["depth", "width"], loss=loss, delta=delta)
