"""The report: sentences match the fits, users' text is escaped, missing data is no error, and a browser renders it."""

import functools
import html
import io
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from depthrate.orchestrator.analysis.convergence import UNCONVERGED_RULE, Drift
from depthrate.orchestrator.analysis.fit_requests import Fits
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.console.sheet_table import print_fits
from depthrate.orchestrator.report import figures as report_figures
from depthrate.orchestrator.report.drawing.render import draw, figure_html
from depthrate.orchestrator.report.drawing.style import DARK, SCREEN
from depthrate.orchestrator.report.figure import EndLabel, Figure, HeatMap, Range, Series
from depthrate.orchestrator.report.figure_files import export_figures
from depthrate.orchestrator.report.figures.last_layer import matrix_plots
from depthrate.orchestrator.report.figures.metric_against_x import rate_plots
from depthrate.orchestrator.report.page import EVIDENCE, all_plots, render_report
from depthrate.orchestrator.report.report_data import ReportData, ReportSection
from depthrate.orchestrator.report.sheet_html import paragraphs, sheet_table
from depthrate.orchestrator.report.text import markup, number_text
from depthrate.orchestrator.report.trial_tables import left_out_table
from depthrate.orchestrator.sheet.curve_sheets import rates_sheet
from depthrate.orchestrator.sheet.fit_sheet import Column, Kind
from depthrate.sweeps.spec import FitRequest
from depthrate.tasks.fits.common_exponent import CommonFit
from depthrate.tasks.fits.fit import Estimate, Fit
from depthrate.tasks.fits.rates import BoundCheck, predict
from tests.support.browser import Browser, browser, chromium_path
from tests.support.report_data import DEPTHS, EXPONENTS, MEASUREMENTS, make_data, plain_data

HOSTILE = "<img src=x onerror=alert(1)>"
ENDING = "</script><script>alert(2)</script><!--"


@functools.cache
def plain_page() -> str:
    return render_report(plain_data())


@functools.cache
def hostile_page() -> str:
    return render_report(hostile_data())


def make_fit(
    model: str = "power",
    exponent: float = 0.58,
    prefactor: float = 0.4,
    floor: float | None = None,
    stderr: float | None = 0.04,
    ci_low: float | None = 0.51,
    ci_high: float | None = 0.66,
    **changes: Any,
) -> Fit:
    usual = {"r2": 0.97, "aicc": -40.0, "weight": 0.9, "n_points": 15, "method": "bootstrap"}
    others = {} if floor is None else {"floor": Estimate(floor)}
    exponents = (Estimate(exponent, stderr, ci_low, ci_high, has_interval=True),)
    return Fit(model, exponents, (Estimate(prefactor),), others, **(usual | changes))


def make_curve(*fits: Fit, excluded: dict[str, int] | None = None, by: dict[str, Any] | None = None) -> FittedGroup:
    """A curve whose values lie on the first of its fits, a power law."""
    values = [(x, predict(fits[0], x).item() if fits else 0.1) for x in (2, 3, 5, 8)]
    rows = [{"x": x, "y": y, "seed": 0, "trial_id": name} for (x, y), name in zip(values, "abcd", strict=True)]
    note, shown = None if fits else "2 points with 1 x", MEASUREMENTS["nc1"]
    return FittedGroup("nc1", "depth", by or {}, rows, list(fits), excluded or {}, note, measurement=shown)


def words(content: str) -> str:
    """The text a reader sees, with ^ for a superscript."""
    return html.unescape(re.sub(r"<[^>]*>", "", content.replace("<sup>", "^")))


def sentences_of(*curves: FittedGroup) -> list[str]:
    """The sentences on the page."""
    return [words(markup(sentence)) for sentence in rates_sheet(curves).sentences]


def remarks_of(*curves: FittedGroup) -> str:
    """The remarks on the page."""
    return " ".join(words(markup(remark)) for remark in rates_sheet(curves).remarks)


def evidence_of(curve: FittedGroup) -> str:
    """The table of what speaks for and against a curve's fits."""
    sheet = rates_sheet([curve])
    return sheet_table(sheet.pick(EVIDENCE)) + paragraphs(sheet.details)


def supported(curve: FittedGroup) -> list[str]:
    """The cells of a curve's row of what speaks for and against it."""
    return [words(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", evidence_of(curve))]


def figures(page: str) -> list[str]:
    return re.findall("<figure.*?</figure>", page, re.DOTALL)


def series_of(figure: Figure) -> list[Series]:
    return [mark for facet in figure.facets for mark in facet.marks if isinstance(mark, Series)]


# The words


@pytest.mark.slow
def test_cited_titles_are_on_the_page() -> None:
    page = render_report(make_data())
    assert "(P2)" in page and "P2: Neural Collapse versus Low-Rank Bias" in page


# The sentence


FLOOR = make_fit("power_floor", 0.81, prefactor=0.45, floor=0.0123)
BARE = make_fit(stderr=None, ci_low=None, ci_high=None, method="", r2=None, aicc=None, weight=None, n_points=2)
DOUBT = " (15 values at 4 depths cannot rule out another curve)"
SENTENCES = {
    "a power law is preferred": (
        make_curve(make_fit(), make_fit("exponential", aicc=-33.9)),
        f"NC1 falls as depth^−0.58{DOUBT}, 95 % interval [0.51, 0.66].",
        [
            "NC1",
            f"preferred: power law{DOUBT}; exponential: ΔAICc +6.1, does not fit "
            "(the mean at depth = 8 is off by a factor 31.0)",
        ],
    ),
    "another model is preferred": (
        make_curve(make_fit(), replace(FLOOR, aicc=-52.0), make_fit("exponential", aicc=-33.9)),
        f"NC1 follows a power law with floor (exponent 0.81, floor 0.0123){DOUBT}; as a power "
        "law it falls as depth^−0.58, 95 % interval [0.51, 0.66].",
        [f"preferred: power law with floor{DOUBT}; power law with floor: ΔAICc −12.0"],
    ),
    "one seed prefers no other model": (
        make_curve(make_fit(n_seeds=1, ci_low=None, ci_high=None), replace(FLOOR, aicc=-62.0, n_seeds=1)),
        "NC1 goes as depth^−0.58 or follows a power law with floor (exponent 0.81, floor 0.0123) or another curve: "
        "1 seed at 4 depths cannot decide, no interval (1 seed, at least 3 needed)",
        [
            "preferred: power law with floor or power law or another curve: 1 seed at 4 depths cannot decide; "
            "power law with floor: ΔAICc −22.0"
        ],
    ),
    "models are indistinguishable": (
        make_curve(make_fit(), replace(FLOOR, aicc=-41.0)),
        "NC1 falls as depth^−0.58 or follows a power law with floor (exponent 0.81, floor 0.0123) or another curve: "
        "15 values at 4 depths cannot decide",
        [
            "preferred: power law with floor or power law or another curve: 15 values at 4 depths cannot decide; "
            "power law with floor: ΔAICc −1.0"
        ],
    ),
    "a metric grows": (
        make_curve(make_fit(exponent=-0.2, ci_low=-0.3, ci_high=-0.1)),
        f"NC1 grows as depth^0.20{DOUBT}, 95 % interval of a [−0.30, −0.10]",
        [],
    ),
    "an interval holds zero": (
        make_curve(make_fit(exponent=0.1, ci_low=-0.05, ci_high=0.3)),
        f"NC1 neither falls nor grows significantly, as depth^−0.10{DOUBT}, 95 % interval of a [−0.05, 0.30]",
        [],
    ),
    "no interval": (
        make_curve(BARE),
        "NC1 goes as depth^−0.58 (2 values at 4 depths cannot rule out another curve), no interval (too few points).",
        ["NC1", "none (too few distinct values or points)"],
    ),
    "no fit": (
        make_curve(excluded={"diverged": 2, "not positive": 1, "failed": 0}, by={"lr": 0.1}),
        "NC1 at lr 0.1: no fit: 2 points with 1 x. Excluded: 2 diverged, 1 not positive.",
        [],
    ),
}


@pytest.mark.parametrize(("curve", "sentence", "cells"), SENTENCES.values(), ids=SENTENCES)
def test_a_sentence_and_its_evidence(curve: FittedGroup, sentence: str, cells: list[str]) -> None:
    """A sentence that ends with a full stop is the whole one. The cells are the last ones of the evidence."""
    (written,) = sentences_of(curve)
    assert written == sentence if sentence.endswith(".") else written.startswith(sentence)
    assert not cells or supported(curve)[-len(cells) :] == cells


@pytest.mark.slow
def test_summary_has_a_sentence_per_fit() -> None:
    data = plain_data()
    text = words(plain_page())
    for curve in data.fits:
        power = curve.fits[0]
        assert power.form == "power"
        assert f"falls as depth^−{power.exponent:.2f}" in text
        assert f"95 % interval [{power.ci_low:.2f}, {power.ci_high:.2f}]" in text
        assert abs(power.exponent - EXPONENTS[curve.metric]) < 0.1
    assert "Accuracy at the last step: mean 1.000, minimum 1.000 of 15 trials." in text


# Figures and tables


@pytest.mark.slow
def test_a_report_is_small_enough_to_send() -> None:
    assert len(plain_data().trials) >= 15
    assert len(plain_page().encode()) < 300_000


@pytest.mark.slow
def test_every_figure_is_on_the_page() -> None:
    # 4 fits; the objective against depth; objective, loss, accuracy, gradient norm and three metrics by step; two profiles
    # (nc2a is of W_L alone); spectra; Gram matrices
    drawn = figures(plain_page())
    assert len(drawn) == 4 + 1 + 7 + 2 + 1 + 1 and drawn[-1].count('class="facet"') == 4
    assert all("<title" not in figure and " id=" not in figure for figure in drawn)
    assert not re.findall("#[0-9a-f]{6}", "".join(drawn)), "colours are variables, which suit light and dark"


def test_fitted_line_and_mean() -> None:
    data = plain_data()
    figure = all_plots(data)[0]
    power, points = data.fits[0].fits[0], data.fits[0].points
    (line,) = [mark for mark in series_of(figure) if mark.width]
    assert line.y[0] == pytest.approx(power.prefactor * 2**-power.exponent)
    (label,) = [mark for mark in figure.facets[0].marks if isinstance(mark, EndLabel)]
    assert label.text == f"{power.exponent:.2f}" and label.detail == f"[{power.ci_low:.2f}, {power.ci_high:.2f}]"
    (means,) = [mark for mark in series_of(figure) if list(mark.x) == list(DEPTHS)]
    logs = np.log(points["y"].astype(float)).groupby(points["x"])
    assert means.y == pytest.approx(list(np.exp(logs.mean()))) and means.symbol == "dot"
    (band,) = [mark for mark in figure.facets[0].marks if isinstance(mark, Range)]
    assert band.low == pytest.approx(list(np.exp(logs.min())))


def test_no_power_law_is_hollow() -> None:
    curve = plain_data().fits[0]
    poor = replace(curve.fits[0], r2=0.5)
    (figure,) = rate_plots([replace(curve, fits=[poor])])
    (label,) = [mark for mark in figure.facets[0].marks if isinstance(mark, EndLabel)]
    assert (label.text, label.detail, label.symbol) == ("no form", "R² 0.50", "ring")
    joined = [mark.dash for mark in series_of(figure) if mark.width]
    assert joined == ["join"] and "Hollow: the values do not prefer a power law." in figure.notes


def test_nine_groups_have_three_facets_and_their_exponents() -> None:
    groups = [(width, decay) for width in (32, 64, 128) for decay in (0.001, 0.003, 0.01)]
    by = {"width": [width for width, _ in groups], "weight_decay": [decay for _, decay in groups]}
    curves = [curve for curve in make_data(by=by).fits if curve.metric == "nc1"]
    rates, exponents, ungrouped = rate_plots([*curves, replace(curves[0], by={})])
    assert rates.title == ungrouped.title and len(ungrouped.facets) == 1, "another fit request"
    assert [facet.title for facet in rates.facets] == ["width 32", "width 64", "width 128"]
    colours = [{mark.colour for mark in facet.marks} for facet in rates.facets]
    assert [key.name for key in rates.keys] == [f"weight_decay {decay}" for decay in (0.001, 0.003, 0.01)]
    assert colours == [{"ramp-0", "ramp-4", "ramp-8"}] * 3
    marks = exponents.facets[0].marks
    assert exponents.facets[0].x.ticks == (0.001, 0.003, 0.01)
    assert {mark.text for mark in marks if isinstance(mark, EndLabel)} == {"½", "width 32", "width 64", "width 128"}
    drawn = sorted(mark.y[0] for mark in marks if isinstance(mark, Series) and mark.symbol)
    assert drawn == pytest.approx(sorted(curve.power.exponent for curve in curves if curve.power))


def test_nonpositive_values_are_counted() -> None:
    data = plain_data()
    first, second, *rest = data.fits[0].rows
    (figure,) = rate_plots([replace(data.fits[0], rows=[first | {"y": 0.0}, second | {"y": -1.0}, *rest])])
    assert "2 values omitted: zero, negative or not finite." in figure.notes
    assert all(y > 0 for mark in series_of(figure) for y in mark.y)


@pytest.mark.slow
def test_many_groups_and_points_are_thinned_and_said() -> None:
    data = make_data(depths=tuple(range(2, 42)), seeds=1)
    long = pd.concat([data.curves.assign(step=data.curves["step"] + shift) for shift in range(0, 200, 2)])
    drawn = all_plots(replace(data, curves=long))
    assert "8 of 40 groups shown." in [note for figure in drawn for note in figure.notes]
    assert max(len(mark.x) for figure in drawn for mark in series_of(figure)) <= 120


def test_many_groups_share_a_sentence() -> None:
    data = make_data(by={"lr": [1, 2, 3, 4]}, depths=(2, 3, 5, 8))
    fits = [replace(curve, unconverged=frozenset(row["trial_id"] for row in curve.rows)) for curve in data.fits]
    sentences = sentences_of(*fits)
    assert len(sentences) == len(fits) / 4
    assert sentences[0].startswith("NC1 falls as a power of depth in 4 of 4 groups, with exponents from 0.")
    assert "unconverged" not in " ".join(sentences)
    num_trials = len({row["trial_id"] for curve in fits for row in curve.rows})
    assert (
        f"at this budget, not an optimum: {num_trials} of {num_trials} trials are unconverged. To train longer, raise steps."
        in remarks_of(*fits)
    )
    assert left_out_table(replace(data, fits=fits)).count("<tr>") == 2, "its header and a line"
    some = [replace(fits[0], unconverged=frozenset()), *fits[1:]]
    assert left_out_table(replace(data, fits=some)).count("<tr>") == 2, "one line per reason"


def test_numbers_keep_trailing_zeros() -> None:
    assert [Column("r2", "", Kind.NUMBER).text(value) for value in (0.42, -1, None)] == ["$0.420$", "$-1.000$", ""]
    assert [number_text(v) for v in (1.44e14, -2e-7, 1e10, 0.05)] == ["1.44·10¹⁴", "−2·10⁻⁷", "1·10¹⁰", "0.05"]


def test_table_of_trials_is_cut_and_says_so() -> None:
    data = plain_data()
    trials = pd.concat([data.trials] * 40, ignore_index=True)
    trials.loc[599, ["state", "error"]] = ["failed", "ValueError: no"]
    page = render_report(replace(data, trials=trials))
    assert "The first 500 trials of 600 are shown." in page
    assert "ValueError: no" in page  # failures come first, wherever they are planned
    assert "599 ok" in page
    assert "1 failed" in page


def test_each_trial_stands_once_with_its_numbers() -> None:
    data = plain_data()
    page = plain_page()
    text, trial = words(page), data.results.iloc[0]
    assert all(text.count(str(trial_id)) == 1 for trial_id in data.trials["trial_id"])
    row = re.findall(f'<tr id="trial-{trial["trial_id"]}">(.*?)</tr>', page)[0]
    assert f">{trial['nc1']:.3g}<" in row
    assert f">{trial['objective_gap']:.3g}<" in row
    assert f">{trial['loss']:.3g}<" in row
    falling = frozenset(str(trial_id) for trial_id in data.trials["trial_id"][1:3])
    told = render_report(replace(data, fits=[replace(curve, unconverged=falling) for curve in data.fits]))
    doubts = re.findall('<details id="excluded-and-unconverged-trials">.*?</details>', told, re.DOTALL)[0]
    assert doubts.count("included, but unconverged") == 1, "one line a reason, however many curves"
    assert "NC1, NC2A, NC3, Objective gap" in words(doubts)
    links = re.findall('<a href="#trial-([^"]*)">([^<]*)</a>', doubts)
    assert [name for _, name in links] == ["depth 2, seed 1", "depth 2, seed 2"]
    assert {link for link, _ in links} == falling


def test_reproduction_holds_spec_commands_and_versions() -> None:
    text = words(plain_page())
    assert "task: collapse\ngrid:\n  depth:\n  - 2\n" in text
    assert "depthrate run quickstart.yaml\ndepthrate report quickstart -o report.html" in text
    for fact in ("2.13.0", "0123abc", "./results", "2025-11-20T23:50:00Z"):
        assert fact in text


# What users wrote stays text


class _Tags(HTMLParser):
    """Counts elements and attributes as a browser would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


@functools.cache
def hostile_data() -> ReportData:
    data = make_data(by={"arch_name": [HOSTILE, ENDING]}, name=f"sweep {HOSTILE}{ENDING}")
    trials = data.trials.assign(error=HOSTILE, host=ENDING, device="<b>", committed_at=HOSTILE)
    trials.loc[:2, "state"] = "failed"
    fits = [replace(curve, excluded={HOSTILE: 1}) for curve in data.fits]
    texts = {"store": ENDING, "commands": [HOSTILE], "versions": {HOSTILE: ENDING}, "git": HOSTILE}
    problems = [f"{HOSTILE} is not Parquet", "half a pair: \ud800"]
    return replace(data, trials=trials, fits=fits, problems=problems, **texts)


@pytest.mark.slow
def test_hostile_text_makes_no_elements() -> None:
    page = hostile_page()
    page.encode()
    tags, clean = _Tags(), _Tags()
    tags.feed(page)
    clean.feed(plain_page())
    assert "img" not in tags.tags
    assert "b" in tags.tags  # the report's own
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    assert "script" not in tags.tags + clean.tags
    assert html.escape(HOSTILE) in page


def test_nothing_is_loaded_from_a_network() -> None:
    tags = _Tags()
    tags.feed(plain_page())
    places = [value for name, value in tags.attributes if name in ("src", "href", "srcset", "action")]
    assert not [value for value in places if not re.fullmatch("#[a-z-]+|data:image/png;base64,.*", value)], (
        "links lead to places of the page itself"
    )
    assert "link" not in tags.tags
    assert "url(" not in plain_page()


# Missing pieces


def _all_diverged(data: ReportData) -> ReportData:
    results = data.results.assign(status="diverged", nc1=np.nan, nc2a=np.nan, nc3=np.nan, accuracy=np.nan)
    metrics = data.metrics.assign(nc1=np.nan, nc2a=np.nan, nc3=np.nan)
    curves = data.curves.assign(loss=np.nan, objective=np.inf, grad_norm=0.0)
    note = "0 points with 0 distinct x"
    fits = [replace(curve, fits=[], rows=[], excluded={"diverged": 15}, note=note) for curve in data.fits]
    trials = data.trials.assign(state="diverged", wall_s=None)
    return replace(data, trials=trials, results=results, metrics=metrics, curves=curves, fits=fits)


MISSING = {
    "no fits": lambda data: replace(data, fits=[]),
    "nothing committed": lambda data: replace(
        data,
        trials=data.trials.assign(state="pending", wall_s=None, steps_done=None, committed_at=None, host=None),
        fits=[],
        **dict.fromkeys(("results", "metrics", "curves"), pd.DataFrame()),
    ),
    "empty frames": lambda data: replace(
        data, **{name: getattr(data, name).iloc[:0] for name in ("trials", "results", "metrics", "curves")}
    ),
    "all diverged": _all_diverged,
    "no git": lambda data: replace(data, git=None, versions={}, commands=[]),
    "null measurements": lambda data: replace(data, metrics=data.metrics.astype({"nc1": object}).assign(nc1=None)),
    "one trial": lambda data: replace(data, fits=[replace(data.fits[0], rows=data.fits[0].rows[:1], fits=[])]),
    "two splits": lambda data: replace(data, curves=pd.concat([data.curves, data.curves.assign(split="test")])),
    "text as parameter": lambda data: replace(data, trials=data.trials.assign(depth="<deep>")),
    "lists as parameter": lambda data: replace(data, trials=data.trials.assign(widths=[[64, 32]] * len(data.trials))),
}


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.slow
def test_missing_pieces_are_said(missing: str) -> None:
    page = render_report(MISSING[missing](plain_data()))
    assert "nan" not in "".join(re.findall(' d="(.*?)"', page))
    text = words(page)
    assert ("The sweep requests no fits." in text) == (missing == "no fits") == ("All fits" not in text)
    if missing == "nothing committed":
        assert text.count("No fits yet.") >= 2
        assert "No training curves yet." in text
        assert "15 pending" in text
    if missing == "all diverged":
        assert "NC1: no fit: 0 points with 0 distinct x" in text
        assert "Excluded: 15 diverged." in text


# In a browser


@pytest.fixture(scope="module")
def chromium() -> str:
    return chromium_path()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with the plain page on disk."""
    with browser() as opened:
        opened.page = tmp_path_factory.mktemp("window") / "report.html"
        opened.page.write_text(plain_page(), encoding="utf-8")
        yield opened


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_texts_of_four_groups_are_whole_and_apart(window: Browser, tmp_path: Path, width: int) -> None:
    page = tmp_path / "groups.html"
    page.write_text(render_report(make_data(by={"weight_decay": [0.001, 0.002, 0.005, 0.01]})), encoding="utf-8")
    window.open(page, width)
    window.run("for (const part of document.querySelectorAll('details')) part.open = true")
    assert window.faults() == [] and window.messages() == []


@pytest.mark.browser
def test_page_refuses_scripts_and_networks(window: Browser, tmp_path: Path) -> None:
    intruder = (
        "<script>document.title = 'taken'</script><img src='https://example.org/x.png' onerror='document.title=1'>"
    )
    page = tmp_path / "report.html"
    page.write_text(hostile_page().replace("</main>", f"{intruder}</main>"), encoding="utf-8")
    window.open(page, 1280)
    assert window.run("return document.title").startswith("sweep <img src=x")
    assert window.run("return document.querySelectorAll('figure img').length") == 0


# Doubts, tests, targets


def test_summary_says_tests_cuts_targets_and_doubts() -> None:
    fit = make_fit(x_at_target=120.0, x_at_low=90.0, x_at_high=None)
    rows = [{"x_min": 2.0, "exponent": 0.58, "ci_low": 0.5, "ci_high": 0.66, "n_points": 15}]
    rows.append(rows[0] | {"x_min": 3.0, "exponent": 0.61, "n_points": 12})
    curve = replace(
        make_curve(fit),
        sensitivity=rows,
        unconverged=frozenset({"a"}),
        request=FitRequest("nc1", layer=-2, target=0.01, x_min=2),
        above={"b": 0.123},
        drift=Drift(-0.02, 0.11),
        bound=BoundCheck(0.4, -0.05, -0.1, 0.02),
        stationary=frozenset("abcd"),
        common=CommonFit(0.6, 0.5, 0.7, 0.02, 3),
    )
    assert sentences_of(curve)[0].startswith(
        f"NC1, layer −2, x_min 2 falls as depth^−0.58{DOUBT}, 95 % interval [0.51,"
    )
    remarks = remarks_of(curve)
    assert "1 of 4 trials are unconverged" in remarks_of(replace(curve, stationary=frozenset("bcd")))
    assert "1 of 4 trials have a higher objective" in remarks
    facts = ("not rejected (depth^−0.40)", "0.01 at depth 120 [90, ∞]", "−0.020 (<0.110)", "−0.050 [−0.100, 0.020]")
    facts += ("none (too few distinct values or points)", "by up to 12.3%", "a = 0.61 without depth = 2")
    for fact, cell in zip(facts, supported(curve)[-7:], strict=True):
        assert fact in cell
    shown = Fits(curves=[replace(curve, by={"width": 8}, judged=2)])
    print_fits(console := Console(file=io.StringIO(), width=300), shown)
    assert re.search(r"layer -2, x_min 2.* -0\.020 \(<0\.110\)", console.file.getvalue())
    for low, high, verdict in ((-0.1, 0.02, "not rejected"), (-0.1, -0.01, "slower"), (0.1, 0.5, "respected")):
        judged = replace(curve, bound=BoundCheck(0.4, (low + high) / 2, low, high))
        assert supported(judged)[-7].startswith(verdict)
    unfinished = replace(curve, stationary=frozenset("a"))
    evidence = words(evidence_of(unfinished))
    assert "respected" not in evidence and "holds for optima and is not compared" in evidence
    assert "F test, p = 0.020). Common fit: a = 0.600 [0.500, 0.700]" in remarks


def test_exclusions_and_doubts_are_listed() -> None:
    data = plain_data()
    lost = {"x": 5, "y": None, "seed": 1, "trial_id": "feed0001", "reason": "diverged"}
    falling = frozenset({str(data.fits[0].rows[0]["trial_id"])})
    curve = replace(data.fits[0], left_out=[lost], excluded={"diverged": 1}, unconverged=falling)
    page = render_report(replace(data, fits=[curve]))
    text = words(page)
    assert "feed0001" in text and f"included, but unconverged: {UNCONVERGED_RULE}" in text
    triangles = [mark.x for mark in series_of(rate_plots([curve])[0]) if mark.symbol == "up"]
    assert triangles == [[5.0]]


@pytest.mark.slow
def test_failures_are_grouped_with_commands() -> None:
    data = plain_data()
    trials = data.trials.copy()
    trials.loc[:2, "state"], trials.loc[:2, "error"] = "failed", "ValueError: no"
    text = words(render_report(replace(data, trials=trials)))
    assert f"3ValueError: nodepthrate logs {trials['trial_id'][0]} --store ./results" in text


@pytest.mark.slow
def test_limit_for_infinite_depth() -> None:
    curves = plain_data().curves.assign(objective_gap=plain_data().curves["objective"] - 0.0227)
    drawn = all_plots(replace(plain_data(), curves=curves))
    marks = [m for figure in drawn if figure.facets[0].x.title == "Step" for m in series_of(figure)]
    limits = [mark.y for mark in marks if mark.name == "limit (or lower bound) for infinite depth"]
    assert limits == [[0.0227, 0.0227]]


def test_gram_maps_and_spectra() -> None:
    drawn = all_plots(plain_data())
    maps = [
        mark.values for figure in drawn for facet in figure.facets for mark in facet.marks if isinstance(mark, HeatMap)
    ]
    assert len(maps) == 4 and np.diag(maps[-1]).tolist() == [1, 1, 1, 1]
    assert maps[-1][~np.eye(4, dtype=bool)] == pytest.approx([-1 / 3] * 12, abs=0.02)
    spectrum = next(figure for figure in drawn if "Singular value" in figure.facets[0].y.title)
    assert all(mark.y[0] == 1 for mark in series_of(spectrum))


def test_depth_without_a_map() -> None:
    data = plain_data()
    (name,) = [m.name for m in data.panel_metrics("layer", ("cosines",), kind="matrix") if m.name in data.lists]
    lists = data.lists.copy()
    of_depth = data.trials.set_index("trial_id")["depth"].loc[lists["trial_id"]].to_numpy()
    lists[name] = [0 * gram if depth == 5 else gram for gram, depth in zip(lists[name], of_depth, strict=True)]
    notes = [note for plot in matrix_plots(replace(data, lists=lists)) for note in plot.notes]
    assert "No figure, since a vector is zero and has no direction: depth 5." in notes
    assert "Not shown: depth 5." in [note for plot in matrix_plots(data) for note in plot.notes], "of five four"


# Figures for a paper


@pytest.mark.slow
def test_figures_are_exported_with_their_data(tmp_path: Path) -> None:
    plots = all_plots(plain_data())
    chosen = [plots[0], plots[-1]]
    assert export_figures(chosen, tmp_path / "figures") == 2
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert len(names) == 6 and names[0] == "figure-01-nc1-against-depth.csv"
    for path in (tmp_path / "figures").glob("*.pdf"):
        assert path.read_bytes().startswith(b"%PDF")
    svg = (tmp_path / "figures" / "figure-01-nc1-against-depth.svg").read_text()
    assert ">NC1<" in svg and ">depth<" in svg, "text stays text"
    rows = pd.read_csv(tmp_path / "figures" / names[0])
    values = plain_data().fits[0].points["y"]
    assert set(values.round(6)) <= set(rows["y"].round(6)), "the trials' values are in the data file"


@pytest.mark.slow
def test_dark_figures_are_transparent() -> None:
    figure = all_plots(plain_data())[0]
    light, dark = (draw(figure, style)["svg"].decode() for style in (SCREEN, DARK))
    assert draw(figure, DARK)["svg"].decode() == dark and "<rect" in light and "<rect" not in dark
    coloured = [set(re.findall("(?:fill|stroke):(#[0-9a-f]{6})", svg)) for svg in (light, dark)]
    assert coloured[0] and coloured[1] and not coloured[0] & coloured[1]


@pytest.mark.slow
def test_exported_figures_keep_hostile_text_as_text(tmp_path: Path) -> None:
    curve = plain_data().fits[0]
    curves = [replace(curve, by={"arch_name": text}) for text in (f"$x^2$ {HOSTILE}", ENDING)]
    figure = rate_plots(curves)[0]
    for svg in (draw(figure)["svg"].decode(), figure_html(figure)):
        assert "<img" not in svg and "<script" not in svg and "$x^2$ &lt;img src=x" in svg


@pytest.mark.browser
def test_printed_figures_are_not_broken_over_pages(chromium: str, tmp_path: Path) -> None:
    """A figure that a page break cut in two would leave its caption on the next page, without any picture above."""
    path = tmp_path / "report.html"
    path.write_text(plain_page(), encoding="utf-8")
    flags = f"--headless --no-sandbox --disable-gpu --no-first-run --virtual-time-budget=10000 --print-to-pdf={tmp_path}/r.pdf"
    command = [chromium, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")
    pdftotext = shutil.which("pdftotext")
    if pdftotext is None:
        pytest.skip("no pdftotext executable found on PATH")
    text = subprocess.run([pdftotext, "-layout", f"{tmp_path}/r.pdf", "-"], capture_output=True, text=True, check=True)
    figures_seen = 0
    for sheet in text.stdout.split("\f"):
        captions = re.findall(r"(?<!\S)Figure \d+\.", sheet)
        titles = re.findall(r"\s{4,}(?:depth|Step|Layer / depth|Index|Other class)(?!\S)", sheet)
        assert len(captions) <= len(titles), sheet
        figures_seen += len(captions)
    assert figures_seen == len(figures(plain_page()))


@pytest.mark.slow
def test_section_is_a_list_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = all_plots(plain_data())[0]
    mine = ReportSection(80, "My section", lambda data: [replace(drawn, title="Mine")], lambda data: "How to read it.")
    monkeypatch.setattr(report_figures, "SECTIONS", [*report_figures.SECTIONS, mine])
    assert [plot.title for plot in all_plots(plain_data())][-1] == "Mine"
    page = render_report(plain_data())
    assert "<h2>My section</h2>" in page and "How to read it." in page
