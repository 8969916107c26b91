"""Figures at a paper's size, and the fits as a LaTeX table."""

import html
import itertools
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.table_fit import fit_table
from depthrate.orchestrator.api.report import ReportOptions
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.export.latex import export_latex, fits_table, latex
from depthrate.orchestrator.report.drawing.render import draw
from depthrate.orchestrator.report.drawing.scale import ticks
from depthrate.orchestrator.report.drawing.style import DARK, LIGHT, PaperWidth, StyleName, paper_style
from depthrate.orchestrator.report.drawing.svg import DASHES
from depthrate.orchestrator.report.figure import Axis, EndLabel, Facet, Figure, mean_line
from depthrate.orchestrator.report.page import STYLE
from tests.support.report_data import make_data

COLUMN = paper_style(PaperWidth.column)
GRID = list(itertools.product((2, 3, 5, 8), (16, 32, 64), range(3)))
NASTY = r"50% of a_b & {c} #1 $x^2$ \def ~ < >"


def small_figure(names: Sequence[str] = ("weight_decay 0.1",), **style: Any) -> Figure:
    marks = [mean_line([2, 4, 8], [0.2, 0.05, 0.02 * i], name, "ramp-0", **style) for i, name in enumerate(names, 1)]
    axes = Axis(title="depth", is_log=True, ticks=(2, 4, 8)), Axis(title="NC1", is_log=True)
    return Figure("NC1 against depth", [Facet(x=axes[0], y=axes[1], marks=marks)])


def words_of(svg: str) -> list[str]:
    return [html.unescape(text) for text in re.findall("<text[^>]*>(.*?)</text>", svg)]


@pytest.mark.slow
def test_paper_figure_has_width_and_text() -> None:
    files = draw(small_figure(), COLUMN)
    svg = files["svg"].decode()
    assert re.search(r'<svg [^>]*width="234pt"', svg), "3.25 inches"
    words = words_of(svg)
    assert "weight decay 0.1" in words and "depth" in words
    assert {"0.02", "0.05", "0.1", "0.2"} <= set(words), "ticks are plain numbers"
    assert "Times New Roman" in svg, "Times is the fallback for STIX"
    pdf = files["pdf"]
    assert re.search(rb"/MediaBox \[ 0 0 234 ", pdf) and b"/FontFile2" in pdf and b"/ToUnicode" in pdf
    assert b"/Type3" not in pdf
    assert draw(small_figure(), COLUMN) == files, "the same figure gives the same bytes"
    for width, points in ((PaperWidth.text, 396), (PaperWidth.page, 486)):
        wide = draw(small_figure(), paper_style(width), ["svg"])["svg"].decode()
        assert f'width="{points}pt"' in wide, "5.5 and 6.75 inches"


def test_the_text_of_a_pdf_is_found(tmp_path: Path) -> None:
    if (pdftotext := shutil.which("pdftotext")) is None:
        pytest.skip("no pdftotext executable found on PATH")
    path = tmp_path / "figure.pdf"
    path.write_bytes(draw(small_figure([NASTY]), COLUMN, ["pdf"])["pdf"])
    text = subprocess.run([pdftotext, str(path), "-"], capture_output=True, text=True, check=True).stdout
    assert "depth" in text and "NC₁" in text and "$x^2$ \\def" in text, "a user's dollar is no mathematics"


@pytest.mark.slow
@pytest.mark.parametrize("dash", DASHES)
def test_dashes_are_in_all_formats(dash: str) -> None:
    files = draw(small_figure(dash=dash), formats=["svg", "pdf", "png"])
    assert (b"dasharray" in files["svg"]) == bool(dash) and files["png"].startswith(b"\x89PNG")


def test_short_names_are_at_the_lines_and_long_ones_above_the_axes() -> None:
    def place_of(names: list[str]) -> int:
        svg = draw(small_figure(names), formats=["svg"])["svg"].decode()
        groups = re.findall(r"<g transform.*?</g>", svg, re.DOTALL)
        return next(place for place, content in enumerate(groups) if names[1] in words_of(content))

    assert place_of(["depth 2", "depth 3"]) == 1, "in the facet"
    assert place_of([f"{depth} and many other words" for depth in (2, 3)]) == 0, "in the legend"


def test_labels_at_the_end_do_not_touch() -> None:
    labels = [EndLabel(x=8, y=0.1 + i / 1e4, text=f"0.{i}1", detail="[0.1, 0.2]", colour="ramp-0") for i in range(6)]
    figure = small_figure()
    (facet,) = figure.facets
    svg = draw(replace(figure, facets=[replace(facet, marks=[*facet.marks, *labels])]), formats=["svg"])["svg"].decode()
    places = re.findall(r'<text x="\S+" y="(\S+?)"[^>]*>0\.\d1<', svg)
    heights = sorted(map(float, places))
    assert len(heights) == 6 and min(b - a for a, b in itertools.pairwise(heights)) > 22


def test_the_page_has_the_colours_of_files() -> None:
    light, dark = STYLE.split("/* Figures")[1].split("@media")
    for colours, css in ((LIGHT, light), (DARK.colours, dark)):
        declared = dict(re.findall("--((?:ramp|kind)-[0-9]): (#[0-9a-f]{6});", css))
        assert declared and declared.items() <= (colours or {}).items()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ReportOptions(dark=True), "--dark needs --figures FOLDER"),
        (ReportOptions(style=StyleName.paper, width=PaperWidth.text), "--style and --width need --figures"),
        (
            ReportOptions(figures=Path("f"), width=PaperWidth.text),
            "--width text is for figures in paper style",
        ),
        (ReportOptions(Path("f"), style=StyleName.paper, dark=True), "--style paper and --dark are mutually exclusive"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(options: ReportOptions, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        options.figure_style()
    assert ReportOptions(figures=Path("f"), style=StyleName.paper).figure_style().file_width == 3.25 * 72


# LaTeX


def test_any_text_is_latex() -> None:
    assert latex("weight_decay = 5%") == r"weight\_decay = 5\%"
    assert latex("R² ≥ −½ λ Δ α₁ Ω") == r"R$^{2}$ $\ge$ $-$$\tfrac{1}{2}$ $\lambda$ $\Delta$ $\alpha$$_{1}$ $\Omega$"
    assert latex("a\\b{c}~^") == r"a\textbackslash{}b\{c\}\textasciitilde{}\textasciicircum{}"
    assert latex("naïve\x1b") == "naïve "


@pytest.mark.slow
def test_fits_as_a_booktabs_table() -> None:
    data = make_data(by={"weight_decay": [0.0025, 0.005]}, seeds=3)
    text = fits_table(data)
    tables, num_rows = text.split(r"\end{table}")[:-1], 0
    assert len(tables) == len({curve.metric for curve in data.fits}), "one per metric"
    for table in tables:
        assert [table.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
        head, *rows = re.findall(r"^.* & .*\\\\$", table, re.MULTILINE)
        assert r"weight\_decay" in head and "_" not in head.replace(r"\_", "")
        assert {row.count("&") for row in rows} == {head.count("&")}
        columns = re.search(r"\\begin{tabular}{([lr]+)}", table)
        assert columns and len(columns[1]) == head.count("&") + 1
        num_rows += len(rows)
    assert num_rows == len(data.fits)
    power = data.fits[0].fits[0]
    assert f"${power.exponent:.3f}$ & $[{power.ci_low:.3f}, {power.ci_high:.3f}]$" in text
    assert r"\label{tab:quickstart-nc1-rates}" in text


@pytest.mark.slow
def test_latex_compiles_whatever_things_are_called(tmp_path: Path) -> None:
    data = make_data(by={"name_of": [NASTY, "λ²"]}, seeds=3, name=NASTY)
    fits = [replace(curve, excluded={NASTY: 2}) for curve in data.fits]
    frame = pd.DataFrame([{NASTY: d**-0.5 * w**-0.3 * (1 + s / 9), "depth": d, "width": w, "s": s} for d, w, s in GRID])
    table = fit_table(frame, NASTY, ["depth + 1", "width"], "s", forms=["power", "power_log2"])
    surface = FittedGroup(
        NASTY, "depth - 1, width", {NASTY: NASTY}, [], list(table.surfaces.fits), {NASTY: 2}, table=table
    )
    data = replace(data, fits=fits, surfaces=[surface], versions={NASTY: NASTY}, git=NASTY)
    paths = export_latex(data, tmp_path)
    assert [path.name for path in paths] == ["fits.tex", "surfaces.tex"]
    for path in paths:
        rows = [line for line in path.read_text().splitlines() if not line.startswith("% ")]
        assert not re.search(r"(?<!\\)%(?! needs)", "\n".join(rows)), "a percent sign would hide what follows"
    if (pdflatex := shutil.which("pdflatex")) is None:
        pytest.skip("no pdflatex executable found on PATH")
    lines = [r"\documentclass{article}\usepackage{booktabs}\usepackage{amsmath}\begin{document}"]
    lines += [r"\input{fits}\input{surfaces}\end{document}"]
    (tmp_path / "paper.tex").write_text("\n".join(lines))
    command = [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in (tmp_path / "paper.log").read_text(errors="replace")


@pytest.mark.parametrize(
    ("ends", "written"),
    [
        ((0.0899, 0.0912), ["0.0900", "0.0905", "0.0910"]),
        ((0.02, 0.5), ["0.02", "0.05", "0.1", "0.2", "0.5"]),
        ((1e-8, 4.5e-8), ["10⁻⁸", "1.5·10⁻⁸", "2·10⁻⁸", "3·10⁻⁸"]),
        ((1e-9, 1), ["10⁻⁸", "10⁻⁶", "10⁻⁴", "0.01", "1"]),
    ],
)
def test_ticks_of_log_axes(ends: tuple[float, float], written: list[str]) -> None:
    assert [text for _, text in ticks(Axis(title="", is_log=True), *ends)] == written


def test_evenly_spaced_ticks_have_the_same_decimals() -> None:
    assert [text for _, text in ticks(Axis(title=""), 0, 2.5e6)] == ["0", "1·10⁶", "2·10⁶"]
    assert [text for _, text in ticks(Axis(title=""), -0.6, 1.1)] == ["−0.5", "0", "0.5", "1.0"]
