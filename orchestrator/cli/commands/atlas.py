"""`depthrate atlas`: list the figures of the four papers, what was run of each, and whether it agrees with the print."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import click

from depthrate.orchestrator.cli.options import declared, json_option
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import make_console, print_described, print_json, print_line
from depthrate.sweeps.atlas import PREFIX, AtlasFigure, atlas_figures
from depthrate.tasks.citations import PAPERS
from depthrate.tasks.parameters import nearest


@declared(__doc__)
@click.argument("figure", required=False)
@json_option
def command(figure: str | None, json: bool) -> None:
    """FIGURE: one of them, as p1-rn1-mnist."""
    figures = atlas_figures()
    if figure is not None:
        key = figure.removeprefix(PREFIX)
        if not (figures := [each for each in figures if each.key == key]):
            known = [each.key for each in atlas_figures()]
            raise UsageError(f"the atlas has no figure {figure!r}{nearest(key, known)}; depthrate atlas lists them")
    if json:
        print_json([asdict(each) for each in figures])
    elif figure is not None:
        _print_figure(figures[0])
    else:
        _print_all(figures)


def _print_all(figures: list[AtlasFigure]) -> None:
    console = make_console()
    for paper, title in PAPERS.items():
        console.print(f"\n{paper}: {title}")
        rows = [[each.key, each.figure, each.verdict] for each in figures if each.paper == paper]
        print_described(console, ["figure", "of the paper", "verdict"], rows)
    counts = Counter(each.verdict for each in figures)
    print_line("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    print_line("one of them: depthrate atlas FIGURE; pictures and numbers: docs/atlas/index.md")


def _print_figure(figure: AtlasFigure) -> None:
    console = make_console()
    told = {
        "paper": f"{figure.paper}: {PAPERS[figure.paper]}",
        "figure": figure.figure,
        "claim": figure.claim,
        "verdict": f"{figure.verdict}: {figure.why}" if figure.why else figure.verdict,
        "printed": figure.printed,
        "run": figure.run or "not run",
        "size": figure.size or ("the paper's own" if figure.run else ""),
        "at the paper's size": figure.sweep or "no sweep",
    }
    print_described(console, ["", figure.key], [[name, text] for name, text in told.items() if text])
    if figure.run or figure.sweep:
        print_line(f"again: depthrate run {PREFIX}{figure.key}")
