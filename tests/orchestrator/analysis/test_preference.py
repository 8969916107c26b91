"""The preferred model: adequacy, and agreement of terminal, report and LaTeX."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from rich.console import Console

from depthrate.orchestrator.analysis.fit_requests import Fits
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.judged_groups import (
    adequate_power,
    curves_with_common_exponent,
    inadequacy,
    local_exponents,
)
from depthrate.orchestrator.console.sheet_table import print_fits
from depthrate.orchestrator.export.latex import RATES, tabular
from depthrate.orchestrator.report.text import markup
from depthrate.orchestrator.sheet.curve_sheets import rates_sheet
from depthrate.orchestrator.sheet.fit_words import MODEL_WORDS, doubt, preferred_text
from depthrate.tasks.fits.common_exponent import CommonFit
from depthrate.tasks.fits.rates import fit_rates

DEPTHS = [2, 3, 5, 8, 13]


def curve_of(x: Sequence[float], y: Sequence[float], **changes: object) -> FittedGroup:
    """Return a curve of one value per x with all models fitted."""
    pairs = zip(x, y, strict=True)
    rows = [{"x": a, "y": b, "seed": 0, "trial_id": f"{i}"} for i, (a, b) in enumerate(pairs)]
    return FittedGroup("nc1", "depth", {}, rows, fit_rates(x, y), {}, **changes)  # type: ignore[arg-type]


POWER = partial(curve_of, DEPTHS, [0.3 * x**-0.5 * (1 + 0.01 * (-1) ** x) for x in DEPTHS])
SCATTERED = partial(curve_of, DEPTHS, [0.2, 0.3, 0.08, 0.25, 0.1])
EXPONENTIAL = partial(curve_of, [*DEPTHS, 21, 34], [0.3 * math.exp(-0.3 * x) for x in [*DEPTHS, 21, 34]])
RISING_AND_FALLING = partial(curve_of, DEPTHS, [0.1, 0.2, 0.3, 0.2, 0.1])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (POWER, ""),
        (partial(curve_of, [2, 3, 5], [0.3, 0.2, 0.12]), "3 values of depth, at least 4 needed"),
        (SCATTERED, "R^2 0.20"),
        (RISING_AND_FALLING, "R^2 0.00"),
        (partial(curve_of, DEPTHS, [0.1] * 5), ""),
    ],
)
def test_adequacy_of_a_power_law(make: Callable[[], FittedGroup], why: str) -> None:
    curve = make()
    assert curve.power is not None
    assert inadequacy(curve, curve.power) == why
    assert adequate_power(curve) is (None if why else curve.power)


def test_distant_mean_is_inadequate() -> None:
    x = [*np.geomspace(2, 2.2, 20), 8, *np.geomspace(30, 33, 20)]
    y = [a**-0.5 * (2.0 if a == 8 else 1.0) for a in x]
    curve = curve_of(x, y)
    assert curve.power is not None and curve.power.r2 is not None and curve.power.r2 > 0.95
    assert inadequacy(curve, curve.power) == "the mean at depth = 8 is off by a factor 2.0"


def test_local_exponents_are_those_between_neighbours() -> None:
    assert local_exponents(curve_of([1, 2, 4, 8], [1.0, 0.5, 0.5, 1.0])) == pytest.approx([1, 0, -1])


def over_seeds(curve: Sequence[float], spread: float, p: float) -> FittedGroup:
    """Return a curve of three seeds around given means, with the p-value of its power law."""
    rng = np.random.default_rng(0)
    y = np.exp(np.log(curve) + spread * rng.standard_normal((3, len(curve)))).reshape(-1).tolist()
    x, seeds = [*DEPTHS, 21, 34] * 3, np.repeat([0, 1, 2], 7).tolist()
    rows = [{"x": a, "y": b, "seed": 0, "trial_id": f"{i}"} for i, (a, b) in enumerate(zip(x, y, strict=True))]
    fits = fit_rates(x, y, seeds=seeds)
    fits = [replace(fit, p_lack_of_fit=p if fit.form == "power" else fit.p_lack_of_fit) for fit in fits]
    return FittedGroup("nc1", "depth", {}, rows, fits, {})


LOG_FACTOR = [math.log(x) / x for x in [*DEPTHS, 21, 34]]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (POWER, ["power"]),
        (SCATTERED, []),
        (RISING_AND_FALLING, []),
        (EXPONENTIAL, ["exponential"]),
        (partial(over_seeds, LOG_FACTOR, 0.1, 0.2), ["power_log", "power_correction", "log_linear", "power"]),
        (partial(over_seeds, LOG_FACTOR, 0.1, 0.01), ["power_log", "power_correction", "log_linear"]),
    ],
)
def test_terminal_report_and_latex_agree(make: Callable[[], FittedGroup], names: list[str]) -> None:
    curve = make()
    preference = curve.preference
    assert preference.names == names
    print_fits(console := Console(file=io.StringIO(), width=300), Fits(curves=[curve]))
    sheet = rates_sheet([curve])
    printed, sentence = console.file.getvalue(), markup(sheet.sentences[0])  # type: ignore[attr-defined]
    latex, others = tabular(sheet.pick(RATES)), str(sheet.rows[0]["others"])
    assert (" or ".join(names).replace("_", r"\_") or "no form (") in latex
    assert (" or ".join(names) or "no form (") in printed
    undecided = "cannot decide"
    texts = (printed, sentence, preferred_text(preference), others)
    assert [undecided in text for text in texts] == [len(names) > 1] * 4
    assert ("Another curve is not ruled out." in printed) == bool(names), "too few seeds at too few depths"
    assert doubt(preference) in sentence and doubt(preference) in others
    for name in names:
        assert name == "power" or MODEL_WORDS[name] in sentence
    if not names:
        assert "no power law: local exponents from" in printed and "no form fits" in sentence and "--- & ---" in latex
        assert "local exponents over depth from" in sentence
        assert f"{curve.power.exponent:.3f}" not in printed  # type: ignore[union-attr]
    if "power" in names:
        power = curve.power
        assert power is not None and f"{power.exponent:.3f}" in printed and f"${power.exponent:.3f}$" in latex
        assert f"depth<strong><sup>−{power.exponent:.2f}" in sentence.replace("</strong>", "")


def test_an_indistinguishable_rival_is_never_hidden() -> None:
    """A rival with an AICc far below the power law's stays visible where whole seeds do not reject the power law."""
    curve = over_seeds(LOG_FACTOR, 0.1, 0.2)
    preference = curve.preference
    power = curve.power
    assert power is not None and power.aicc is not None and preference.models[0].aicc is not None
    assert preference.models[0].aicc < power.aicc - 2 and not preference.is_decided


def test_common_exponent_needs_adequate_groups() -> None:
    common = CommonFit(0.5, 0.4, 0.6, 0.5, 2)
    good, bad = replace(POWER(), common=common), replace(SCATTERED(), common=common)
    assert [curve.common for curve in curves_with_common_exponent([good, good])] == [common]
    assert curves_with_common_exponent([good, bad]) == []
