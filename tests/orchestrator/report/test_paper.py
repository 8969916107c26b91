"""Figures at a paper's size, and the fits as a LaTeX table."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from depthrate.orchestrator.api.report import ReportOptions
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.export.latex import export_latex, fits_table, latex
from depthrate.orchestrator.report.drawing.render_files import draw, label
from depthrate.orchestrator.report.drawing.style import SCREEN, PaperWidth, StyleName, paper_style
from depthrate.orchestrator.report.drawing.ticks import set_ticks
from depthrate.orchestrator.report.plot import Axes, Plot, make_layout, make_trace
from tests.support.report_data import make_data

COLUMN = paper_style(PaperWidth.column)
NASTY = r"50% of a_b & {c} #1 $x^2$ \def ~ < >"


def small_plot(**style: Any) -> Plot:
    trace = make_trace(
        [2, 4, 8], [0.2, 0.05, 0.02], "g", name="weight_decay: depth<sup>−0.41</sup> [−0.5, −0.3]", **style
    )
    layout = make_layout(Axes("x", "y", "depth", "NC1", x_log=True, y_log=True), [0.2, 0.02])
    return Plot("NC1 against depth", [trace], layout, [])


def words_of(svg: str) -> list[str]:
    texts = re.findall(r"<text[^>]*>(.*?)</text>", svg, re.DOTALL)
    return [re.sub("<[^>]*>", "", text).strip() for text in texts]


def test_exponents_are_typeset_and_dollars_escaped() -> None:
    assert label("depth<sup>−0.41</sup>", SCREEN) == "depth$^{-0.41}$"
    assert label("(depth − 1)<sup>0.5</sup>", SCREEN) == "(depth − 1)$^{0.5}$"
    assert label("cost_in_$ &lt;b&gt;", SCREEN) == r"cost_in_\$ <b>"
    assert label("weight_decay = 0.1", COLUMN) == "weight decay = 0.1"
    assert label("x<sup>$a$</sup>", SCREEN) == r"x^\$a\$"


@pytest.mark.slow
def test_paper_figure_has_width_and_text() -> None:
    files = draw(small_plot(), COLUMN)
    svg = files["svg"].decode()
    assert re.search(r'<svg [^>]*width="234pt"', svg), "3.25 inches"
    words = words_of(svg)
    assert "weight decay: depth−0.41 [−0.5, −0.3]" in words and "depth" in words
    raised = re.search(r'<tspan dy="-[\d.]+" style="font-size: 4.9px[^"]*"[^>]*>−0.41</tspan>', svg)
    assert raised and "^" not in "".join(words)
    assert {"0.02", "0.05", "0.1", "0.2"} <= set(words), "ticks are plain numbers"
    assert "Times New Roman" in svg, "Times is the fallback for STIX"
    pdf = files["pdf"]
    assert re.search(rb"/MediaBox \[ 0 0 234 ", pdf) and b"/FontFile2" in pdf and b"/ToUnicode" in pdf
    assert b"/Type3" not in pdf
    assert draw(small_plot(), COLUMN) == files, "the same figure gives the same bytes"
    wide = draw(small_plot(), paper_style(PaperWidth.text))["svg"].decode()
    assert re.search(r'<svg [^>]*width="396pt"', wide), "5.5 inches"


def test_the_text_of_a_pdf_is_found(tmp_path: Path) -> None:
    if (pdftotext := shutil.which("pdftotext")) is None:
        pytest.skip("no pdftotext executable found on PATH")
    path = tmp_path / "figure.pdf"
    path.write_bytes(draw(small_plot(), COLUMN)["pdf"])
    text = subprocess.run([pdftotext, str(path), "-"], capture_output=True, text=True, check=True).stdout
    assert "depth" in text and "NC1" in text and "−0.41" in text


@pytest.mark.slow
@pytest.mark.parametrize("dash", ["solid", "dash", "dot", "dashdot", "longdashdot"])
def test_dashes_match_the_page(dash: str) -> None:
    assert draw(small_plot(line={"color": "#000000", "dash": dash}))["svg"].startswith(b"<?xml")


@pytest.mark.slow
def test_legend_inside_or_below() -> None:
    def lowest_name(plot: Plot) -> float:
        svg = draw(plot, COLUMN)["svg"].decode()
        height = float(re.search(r'<svg [^>]*height="([\d.]+)pt"', svg)[1])  # type: ignore[index]
        axis = [float(y) for y in re.findall(r'y="([\d.]+)"[^>]*>depth<', svg)]
        names = [float(y) for y in re.findall(r"translate\([\d.]+ ([\d.]+)\)[^>]*>\s*<text><tspan", svg)]
        assert names, svg
        return (max(names) - axis[0]) / height

    few = small_plot()
    many = replace(few, traces=[t | {"name": f"{i}: depth<sup>−{i}</sup>"} for i in range(9) for t in few.traces])
    assert lowest_name(few) < 0 < lowest_name(many)


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
    assert ReportOptions(figures=Path("f"), style=StyleName.paper).figure_style().size_in[0] == 3.25


# LaTeX


def test_any_text_is_latex() -> None:
    assert latex("weight_decay = 5%") == r"weight\_decay = 5\%"
    assert latex("R² ≥ −½ λ Δ α₁ Ω") == r"R$^{2}$ $\ge$ $-$$\tfrac{1}{2}$ $\lambda$ $\Delta$ $\alpha$$_{1}$ $\Omega$"
    assert latex("a\\b{c}~^") == r"a\textbackslash{}b\{c\}\textasciitilde{}\textasciicircum{}"
    assert latex("naïve\x1b") == "naïve "


@pytest.mark.slow
def test_fits_as_a_booktabs_table() -> None:
    data = make_data(by={"weight_decay": [0.0025, 0.005]}, seeds=3)
    table = fits_table(data)
    assert [table.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
    head, *rows = re.findall(r"^.* & .*\\\\$", table, re.MULTILINE)
    assert r"weight\_decay" in head and "_" not in head.replace(r"\_", "")
    assert len(rows) == len(data.fits) and {row.count("&") for row in rows} == {head.count("&")}
    columns = re.search(r"\\begin{tabular}{([lr]+)}", table)
    assert columns and len(columns[1]) == head.count("&") + 1
    power = data.fits[0].fits[0]
    assert f"${power.exponent:.3f}$ & $[{power.ci_low:.3f}, {power.ci_high:.3f}]$" in rows[0]
    assert "weight" in table and r"\label{tab:quickstart-rates}" in table


@pytest.mark.slow
def test_latex_compiles_whatever_things_are_called(tmp_path: Path) -> None:
    data = make_data(by={"name_of": [NASTY, "λ²"]}, seeds=3, name=NASTY)
    fits = [replace(curve, excluded={NASTY: 2}) for curve in data.fits]
    paths = export_latex(replace(data, fits=fits, versions={NASTY: NASTY}, git=NASTY), tmp_path)
    assert [path.name for path in paths] == ["fits.tex"]
    for path in paths:
        assert not re.search(r"(?<!\\)%(?! needs)", path.read_text()), "a percent sign would hide what follows"
    if (pdflatex := shutil.which("pdflatex")) is None:
        pytest.skip("no pdflatex executable found on PATH")
    lines = [r"\documentclass{article}\usepackage{booktabs}\usepackage{amsmath}\begin{document}"]
    lines += [r"\input{fits}\end{document}"]
    (tmp_path / "paper.tex").write_text("\n".join(lines))
    command = [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in (tmp_path / "paper.log").read_text(errors="replace")


def test_narrow_log_axis_has_ticks() -> None:
    """Round numbers around it may start at 0, which has no logarithm."""
    figure, axes = plt.subplots()
    axes.set_yscale("log")
    axes.set_ylim(1e-8, 4.5e-8)
    set_ticks(axes.yaxis, {}, is_log=True)
    figure.draw_without_rendering()
    assert [text.get_text() for text in axes.get_yticklabels() if text.get_text()]
    plt.close(figure)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "written"),
    [((0.0899, 0.0912), ["0.0900", "0.0905", "0.0910"]), ((0.02, 0.5), ["0.02", "0.05", "0.1", "0.2", "0.5"])],
)
def test_evenly_spaced_ticks_have_the_same_decimals(ends: tuple[float, float], written: list[str]) -> None:
    figure, axes = plt.subplots()
    axes.set_yscale("log")
    axes.set_ylim(*ends)
    set_ticks(axes.yaxis, {}, is_log=True)
    figure.draw_without_rendering()
    low, high = axes.get_ylim()
    places = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    assert [text.get_text() for place, text in places if low * 0.999 <= place <= high * 1.001] == written
    plt.close(figure)
