"""A fit model is one object: those we have say the same of themselves everywhere, and one from outside needs nothing more."""

import html
import json
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from depthrate.orchestrator.analysis.fit_requests import Fits, fit_requests
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.console.sheet_table import print_fits
from depthrate.orchestrator.console.tables import make_console
from depthrate.orchestrator.report.sheet_html import paragraphs, sheet_table
from depthrate.orchestrator.report.text import markup
from depthrate.orchestrator.sheet.curve_sheets import models_sheet, rates_sheet
from depthrate.orchestrator.sheet.fit_words import MODEL_WORDS
from depthrate.storage.catalog.fits import write_fits
from depthrate.storage.files.store import Store
from depthrate.sweeps.spec import FitRequest
from depthrate.sweeps.trial import Trial
from depthrate.tasks.fits.least_squares import Array
from depthrate.tasks.fits.model import CurveFamily, FitParameter, LinearModel, Mask, Model, last_above, never_unless
from depthrate.tasks.fits.models import MODELS
from depthrate.tasks.fits.points import Points, gather
from depthrate.tasks.fits.rates import fit_rates, predict
from tests.support.tests_rows import commit_rows

DEPTHS = np.array([2.0, 3, 5, 8, 13, 21])
X = np.repeat(DEPTHS, 4)
BUILT_IN = tuple(MODELS.values())

pytestmark = pytest.mark.filterwarnings("error")


class PowerExponential(LinearModel):
    """y = c x^-a exp(-b x)."""

    name = "power_exponential"
    formula = "c x^{-a} e^{-b x}"
    parameters = (FitParameter("decay", "decay b"),)
    values_are_told = True

    def basis(self, x_KG: Array) -> Array:
        return np.concatenate([-np.log(x_KG), -x_KG]).T

    def value(
        self, x_K: Array, coefficients: Sequence[float], exponents: Sequence[float], others: Mapping[str, float]
    ) -> Array:
        return coefficients[0] * x_K[0] ** -exponents[0] * np.exp(-others["decay"] * x_K[0])

    def log_x_at(self, theta_PR: Array, log_c_R: Array, ref_R: Array, log_target: float) -> Array:
        (a_R, b_R), drop_R = theta_PR, log_c_R - log_target

        def above(v_R: Array) -> Mask:
            return drop_R - a_R * v_R - b_R * np.exp(v_R) > 0

        falls_R = (a_R > 0) & (b_R > 0)
        return never_unless(falls_R, last_above(above, np.full_like(a_R, -20.0), np.full_like(a_R, 20.0)))


class Stretched(Model):
    """y = c exp(-(x / s)^a), found by iteration."""

    name = "stretched"
    formula = "c e^{-(x / s)^a}"
    parameters = (FitParameter("scale", "s"),)

    def family(self, points: Points) -> CurveFamily:
        log_x_G1 = np.log(points.x_G)[:, None]

        def shape(theta_PR: Array, ref_R: Array) -> Array:
            v_GR = log_x_G1 - theta_PR[1]
            power_GR = np.exp(theta_PR[0] * v_GR)
            return np.stack([-power_GR, -power_GR * v_GR, power_GR * theta_PR[0]])

        ones_C = np.ones(points.mean_GC.shape[1])
        theta_PC = np.stack([ones_C, ones_C * log_x_G1.mean()])
        lower_PC, upper_PC = np.stack([0.01 * ones_C, -5 * ones_C]), np.stack([5 * ones_C, 10 * ones_C])
        return CurveFamily(self, shape, None, theta_PC[None], lower_PC, upper_PC, np.zeros_like(ones_C))

    def value(
        self, x_K: Array, coefficients: Sequence[float], exponents: Sequence[float], others: Mapping[str, float]
    ) -> Array:
        return coefficients[0] * np.exp(-((x_K[0] / others["scale"]) ** exponents[0]))

    def log_x_at(self, theta_PR: Array, log_c_R: Array, ref_R: Array, log_target: float) -> Array:
        return theta_PR[1] + np.log(log_c_R - log_target) / theta_PR[0]

    def others(self, theta_PR: Array, ref_R: Array) -> dict[str, Array]:
        return {"scale": np.exp(theta_PR[1])}


TRUE_CURVES = {
    "power_exponential": (lambda x: 3 * x**-0.5 * np.exp(-0.1 * x), {"decay": 0.1}),
    "stretched": (lambda x: 3 * np.exp(-((x / 8) ** 0.5)), {"scale": 8.0}),
}
WORDS = {"power_exponential": "power law with exponential cut-off", "stretched": "stretched exponential"}


@pytest.fixture(params=[PowerExponential(), Stretched()], ids=lambda model: model.name)
def added(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model from outside, and the only things to do for it: a line in the table, and its words."""
    monkeypatch.setitem(MODEL_WORDS, request.param.name, WORDS[request.param.name])
    monkeypatch.setitem(MODELS, request.param.name, request.param)
    return request.param


ATTEMPT = "20260101T000000_aaaaaaaaaaaa"


def noisy(curve, sigma: float) -> Array:
    return curve(X) * np.exp(sigma * np.random.default_rng(0).standard_normal(len(X)))


def text(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", markup.replace("<sup>", "^")))


def test_outside_model_is_fitted_everywhere(added: Model) -> None:
    curve, others = TRUE_CURVES[added.name]
    target = float(curve(np.array(15.0)))
    fits = fit_rates(X, noisy(curve, 1e-4), num_resamples=200, target=target)
    assert [fit.form for fit in fits] == [*(model.name for model in BUILT_IN), added.name]
    fit = fits[-1]
    assert {name: fit.parameter(name) for name in others} == pytest.approx(others, rel=1e-2)
    assert fit.exponent == pytest.approx(0.5, rel=1e-2) and fit.prefactor == pytest.approx(3, rel=1e-2)
    assert fit.ci_low is not None and fit.ci_high is not None and fit.ci_low < fit.exponent < fit.ci_high
    assert fit.profile_low is not None and fit.profile_high is not None
    assert fit.weight == pytest.approx(1) and sum(fit.weight or 0 for fit in fits) == pytest.approx(1)
    assert fit.p_half is None  # no theorem speaks of its exponent
    assert predict(fit, DEPTHS) == pytest.approx(curve(DEPTHS), rel=1e-3)
    assert fit.x_at_target == pytest.approx(15, rel=1e-2)
    assert fit.x_at_low is not None and fit.x_at_high is not None and fit.x_at_low < 15.1 and fit.x_at_high > 14.9


def committed(store: Store, values: Array) -> list[Trial]:
    """A trial a value, as a sweep would leave them."""
    pairs = enumerate(zip(X, values, strict=True))
    trials = [Trial(f"t{n}", "task", 1, {"depth": depth, "seed": n % 4, "y": value}) for n, (depth, value) in pairs]
    contents = {t.trial_id: {"metrics": [{"layer": t.params["depth"], "nc1": t.params["y"]}]} for t in trials}
    params = {t.trial_id: {"params": json.dumps(t.params)} for t in trials}
    commit_rows(store, ATTEMPT, contents, fields=params.__getitem__)
    return trials


def test_outside_model_is_kept_and_printed(added: Model, folder: Store, capsys: pytest.CaptureFixture[str]) -> None:
    trials = committed(folder, noisy(TRUE_CURVES[added.name][0], 0.01))
    curves = fit_requests(results_of(folder), [FitRequest("nc1")], trials).curves
    rows = [row for curve in curves for row in curve.table_rows("s")]
    assert {name: value for name, value in rows[-1].items() if name in curves[0].fits[-1].other_estimates} == (
        pytest.approx(TRUE_CURVES[added.name][1], rel=0.3)
    )
    write_fits(folder, "s", rows)
    kept = results_of(folder).sql("select model from fits order by weight desc limit 1").fetchall()
    assert kept == [(added.name,)]
    print_fits(make_console(), Fits(curves=curves))
    assert added.name in capsys.readouterr().out
    assert_told(added, curves[0])


def assert_told(added: Model, curve: FittedGroup) -> None:
    """The report's sentence and its table say the model's words, formula and parameters."""
    sheet = models_sheet([curve])
    (sentence,) = (text(markup(sentence)) for sentence in rates_sheet([curve]).sentences)
    table = text(paragraphs(sheet.notes) + sheet_table(sheet))
    told = r" \(exponent 0\.\d+, decay b 0\.\d+\)" if added.values_are_told else ""
    assert re.search(
        f"^nc1 follows a {MODEL_WORDS[added.name]}{told}[^;]*; (as a power law it|it follows no power law)", sentence
    )
    formula = added.formula.replace("{", "").replace("}", "").replace("-", "−")
    assert f"{MODEL_WORDS[added.name]}: {formula}" in table
    assert all(parameter.symbol in table for parameter in added.parameters)


@pytest.mark.parametrize("model", BUILT_IN, ids=lambda model: model.name)
def test_a_model_s_value_is_its_shape(model: Model) -> None:
    # what least squares fits and what predict draws are two formulas: they must be one curve
    points = gather(DEPTHS, (3 * DEPTHS**-0.5 + 0.01 * DEPTHS)[None])
    family = model.family(points)
    assert family is not None
    theta_PC = np.array([[0.2], [0.7], [0.3]])[: family.starts_SPC.shape[1]]
    shape_G, level_C = family.shape(theta_PC, family.ref_C)[0, :, 0], np.array([1.1 if family.has_level else 0.0])
    others = {name: float(value[0]) for name, value in model.others(theta_PC, family.ref_C).items()}
    assert list(others) == [parameter.name for parameter in model.parameters]
    log_c = float(family.log_coefficients(theta_PC, level_C, family.ref_C)[0, 0])
    y = model.value(DEPTHS[None], [math.exp(log_c)], [0.2], others)
    assert np.log(y) - shape_G == pytest.approx(level_C[0], abs=1e-12)
    h = 1e-6  # and the Jacobian is its slope
    for p, jacobian_G in enumerate(family.shape(theta_PC, family.ref_C)[1:, :, 0]):
        step = h * (np.arange(len(theta_PC)) == p)[:, None]
        moved_G = [family.shape(theta_PC + sign * step, family.ref_C)[0, :, 0] for sign in (-1, 1)]
        slope_G = (moved_G[1] - moved_G[0]) / (2 * h)
        assert slope_G == pytest.approx(jacobian_G, abs=1e-8)


def test_models_are_told_apart() -> None:
    for texts in ([MODEL_WORDS[model.name] for model in BUILT_IN], [model.formula for model in BUILT_IN]):
        assert len(set(texts)) == len(texts)
    assert {model.name for model in BUILT_IN if not model.has_theory} == {"exponential", "log_linear"}
    assert {model.name for model in BUILT_IN if model.num_parameters == 2} == {"power", "exponential", "log_linear"}
