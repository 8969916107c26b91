"""The report's page: a sentence and a table of rates, folded sections, users' text as text, no scripts."""

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.report.page import RATES, render_report
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.sheet_html import drawn_table
from depthrate.orchestrator.sheet.curve_sheets import rates_sheet
from tests.orchestrator.report.test_report import make_curve, make_fit, sentences_of, words
from tests.support.browser import Browser, browser
from tests.support.report_data import make_data, plain_data

LONG = "<b>\u202eab$x^2$" + "n" * 10_000


@functools.cache
def four_groups() -> ReportData:
    return make_data(by={"weight_decay": [0.001, 0.002, 0.005, 0.01]}, depths=(2, 3, 5, 8))


@functools.cache
def long_data() -> ReportData:
    """A report whose names and values are hostile and long."""
    data = make_data(by={"arch_name": [LONG, f"{LONG}2"]}, name=LONG, depths=(2, 3, 5, 8))
    trials = data.trials.assign(error=LONG, host=LONG, state="failed")
    problems, versions = [LONG], {"torch": LONG}
    return replace(data, trials=trials, problems=problems, versions=versions, git=LONG, spec={"name": "s"})


def group(width: int, decay: float, *fits: Any, **changes: Any) -> FittedGroup:
    return replace(make_curve(*fits, by={"width": width, "weight_decay": decay}), **changes)


def test_sentence_of_groups() -> None:
    """It names the extreme exponents, and the groups without a power law by what they share."""
    steep, flat = make_fit(exponent=0.73, ci_low=0.58, ci_high=0.87), make_fit(exponent=0.4, ci_low=0.3, ci_high=0.5)
    bad = make_fit(r2=0.2)
    curves = [group(32, 0.001, steep), group(32, 0.003, flat, excluded={"diverged": 1, "untrained": 2})]
    curves += [group(64, 0.001, bad), group(64, 0.003, flat), group(128, 0.001, bad), group(128, 0.003, bad)]
    curves.append(group(256, 0.001, excluded={"diverged": 3}))
    assert sentences_of(*curves) == [
        "NC1 falls as a power of depth in 3 of 7 groups, with exponents from 0.40 [0.30, 0.50] at width 32, "
        "weight_decay 0.003, to 0.73 [0.58, 0.87] at width 32, weight_decay 0.001. No form fits at width 128; "
        "width 64, weight_decay 0.001 (R² 0.20). "
        "Too few values at width 256, weight_decay 0.001 (2 points with 1 x). Excluded: 4 diverged."
    ]
    assert sentences_of(curves[2]) == [
        "NC1 at width 64, weight_decay 0.001: no form fits (R² 0.20); the nearest is the power law; local exponents over depth "
        "from 0.58 to 0.58."
    ]
    (sentence,) = sentences_of(curves[0], group(32, 0.1, make_fit(ci_low=-0.1, ci_high=0.9)))
    assert "goes as a power" in sentence


def test_table_of_groups() -> None:
    few = group(64, 0.001, make_fit())
    three_values = replace(few, rows=few.rows[:3])
    curves = [
        group(32, 0.001, make_fit()),
        group(32, 0.003, make_fit(r2=0.2)),
        three_values,
    ]
    sheet = rates_sheet([*curves, group(64, 0.003)]).pick(("width", "weight_decay", *RATES))
    table = drawn_table(sheet, {"width 32": "ramp-3"})
    rows = [
        [words(cell) for cell in re.findall("<td.*?>(.*?)</td>", row)] for row in re.findall("<tr.*?</tr>", table)[1:]
    ]
    assert rows[0] == ["32", "0.001", "", "0.580 [0.510, 0.660]", "0.970", "4", "power", "yes"]
    hidden = "no power law: local exponents from 0.58 to 0.58"
    assert rows[1] == ["32", "0.003", "", hidden, "0.200", "4", "no form (R² 0.20)", "no: R² 0.20"]
    assert rows[2][-1] == "no: 3 values of depth, at least 4 needed"
    assert rows[3][3:5] == ["no fit: 2 points with 1 x", "—"]
    strips = re.findall('<svg class="facet".*?</svg>', table)
    assert [words(text) for text in re.findall("<text.*?</text>", strips[0])] == ["0", "0.2", "0.4", "0.6"]
    assert ["linecap:round" in strip for strip in strips[1:]] == [True, False, False, False], "a dot at each exponent"
    assert all("dasharray" in strip for strip in strips[1:]), "the axis includes 1/2"
    assert ["var(--ramp-3)" in strip for strip in strips[1:]] == [True, False, False, False], "as in the figure"


@pytest.mark.slow
def test_metrics_without_groups_share_a_table() -> None:
    page = render_report(plain_data())
    assert page.count("<table class=groups>") == 1
    (table,) = re.findall("<table class=groups>.*?</table>", page)
    assert [words(row).split("0.")[0] for row in re.findall("<tr.*?</tr>", table)[1:]] == [
        "NC1",
        "NC2A",
        "NC3",
        "Objective gap",
    ]
    page = render_report(four_groups())
    assert page.count("<table class=groups>") == 4
    keys = re.findall(r"<tr style='--c:var\(--ramp-\d\)' class=first><td class='key '>(.*?)</td>", page)
    assert keys == ["0.001", "0.002", "0.005", "0.01"] * 4, "in the colours of the figures"


@pytest.mark.slow
def test_sections_are_folded_and_say_what_is_inside() -> None:
    page = render_report(plain_data())
    sections = re.findall(
        '<details id="([^"]*)"><summary><h2>(.*?)</h2> <span class=quiet>(.*?)</span></summary>', page
    )
    assert len(sections) == len({anchor for anchor, _, _ in sections}) == page.count("<details") > 6
    assert all(inside for _, _, inside in sections)
    assert "depthrate report quickstart --store ./results --interactive" in words(page)
    assert "Report of 15 trials: depth 2 to 13, seeds 0 to 2." in words(page)
    assert "NC1nc1: " in words(page), "metrics are defined"


class _Elements(HTMLParser):
    """Collects the elements and attributes as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}


@pytest.mark.slow
def test_page_has_no_scripts_and_cuts_long_text() -> None:
    page = render_report(long_data())
    elements = _Elements(page)
    assert not elements.tags & {"script", "img", "link", "iframe", "object"}
    assert not [name for name in elements.names if name.startswith("on") or name == "src"]
    assert "script-src" not in page and "default-src 'none'" in page and "url(" not in page
    assert "n" * 301 not in page, "cut"
    assert "&lt;b&gt;\\u202eab$x^2$nn" in page and "\u202e" not in page, "a mark of direction is shown as its code"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.mark.browser
@pytest.mark.parametrize("make", [plain_data, four_groups, long_data])
@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (390, True)])
def test_page_is_as_wide_as_the_screen(window: Browser, tmp_path: Path, make: Any, width: int, is_dark: bool) -> None:
    """Folded or open, in light and dark."""
    path = tmp_path / "report.html"
    path.write_text(render_report(make()), encoding="utf-8")
    window.open(path, width, is_dark=is_dark)
    assert window.run("return document.documentElement.scrollHeight") < 15_000
    window.run("for (const part of document.querySelectorAll('details')) part.open = true")
    assert window.run("return document.documentElement.scrollWidth") == width
    background = window.run("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(21, 23, 26)" if is_dark else "rgb(255, 255, 255)")
    assert window.messages() == []
