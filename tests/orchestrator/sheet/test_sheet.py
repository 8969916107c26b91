"""A sheet's markup and cells, which every renderer turns into its own."""

import pytest

from depthrate.orchestrator.export.latex import tabular
from depthrate.orchestrator.report.sheet_html import sheet_table
from depthrate.orchestrator.report.text import markup
from depthrate.orchestrator.sheet.fit_sheet import Column, FitSheet, IntervalValue, Kind
from depthrate.orchestrator.sheet.fit_words import MODEL_WORDS, STATE_WORDS, GroupState
from depthrate.orchestrator.sheet.markup import literal, plain, typeset
from depthrate.tasks.fits.models import FORMS


@pytest.mark.parametrize(
    ("text", "as_plain", "as_typeset", "as_html"),
    [
        ("**falls as $depth^{-0.50}$** now", "falls as depth^-0.50 now", "falls as depth^−0.50 now",
         "<strong>falls as </strong><strong>depth</strong><strong><sup>−0.50</sup></strong> now"),
        ("$R^{2}$ -1", "R^2 -1", "R² -1", "R² -1"),
        ("$c (log x)^b$", "c (log x)^b", "c (log x)^b", "c (log x)<sup>b</sup>"),
        ("$2e-05$", "2e-05", "2·10⁻⁵", "2·10<sup>−5</sup>"),
        (literal("a**2 $x$ ^{b} \\ <i>"), "a**2 $x$ ^{b} \\ <i>", "a**2 $x$ ^{b} \\ <i>", "a**2 $x$ ^{b} \\ &lt;i&gt;"),
        ("x^2 is text", "x^2 is text", "x^2 is text", "x^2 is text"),
    ],
)  # fmt: skip
def test_markup(text: str, as_plain: str, as_typeset: str, as_html: str) -> None:
    assert (plain(text), typeset(text), markup(text)) == (as_plain, as_typeset, as_html)


SHEET = FitSheet(
    "a sheet",
    [
        Column("name", "group", is_name=True),
        Column("a", "a [95 %]", Kind.INTERVAL),
        Column("p", "p", Kind.P_VALUE),
        Column("n", "n", Kind.COUNT),
        Column("spare", "spare", is_optional=True),
    ],
    [
        {"name": "one", "a": IntervalValue(0.5, None, 0.75), "p": 1e-5, "n": 3},
        {"name": "two", "a": "too few", "p": None, "n": 0, "spare": ""},
    ],
    grouped_by="name",
)


def test_renderers_show_the_same_cells() -> None:
    cells = [[plain(text) for text in row] for row in SHEET.cells(SHEET.used)]
    assert cells == [["one", "0.500 [-∞, 0.750]", "< 0.001", "3"], ["two", "too few", "", "0"]]
    assert [title for title, _ in SHEET.groups] == ["one", "two"]
    assert "<strong>0.500</strong> [−∞, 0.750]" in sheet_table(SHEET)
    lines = tabular(SHEET).splitlines()
    assert lines[2] == r"group & a & 95\,\% interval & p & n \\"
    assert lines[4:6] == [r"one & $0.500$ & $[-\infty, 0.750]$ & $< 0.001$ & 3 \\", r"two & --- & --- & --- & 0 \\"]


def test_each_model_and_state_has_words() -> None:
    assert set(FORMS) == set(MODEL_WORDS) and set(STATE_WORDS) == set(GroupState)
