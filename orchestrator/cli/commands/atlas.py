"""`depthrate atlas`: list the papers' figures, their reruns, and whether both agree."""

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
    """FIGURE: key of one figure, for example p1-rn1-mnist."""
    figures = atlas_figures()
    if figure is not None:
        key = figure.removeprefix(PREFIX)
        if not (figures := [entry for entry in figures if entry.key == key]):
            keys = [entry.key for entry in atlas_figures()]
            raise UsageError(f"the atlas has no figure {figure!r}{nearest(key, keys)}. List all: depthrate atlas")
    if json:
        print_json([asdict(entry) for entry in figures])
    elif figure is not None:
        _print_figure(figures[0])
    else:
        _print_all(figures)


def _print_all(figures: list[AtlasFigure]) -> None:
    console = make_console()
    for paper, title in PAPERS.items():
        console.print(f"\n{paper}: {title}")
        rows = [[entry.key, entry.figure, entry.verdict] for entry in figures if entry.paper == paper]
        print_described(console, ["key", "figure", "verdict"], rows)
    counts = Counter(entry.verdict for entry in figures)
    print_line("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    print_line("details: depthrate atlas KEY. Figures and values: docs/atlas/index.md")


def _print_figure(figure: AtlasFigure) -> None:
    console = make_console()
    facts = {
        "paper": f"{figure.paper}: {PAPERS[figure.paper]}",
        "figure": figure.figure,
        "claim": figure.claim,
        "verdict": f"{figure.verdict}: {figure.why}" if figure.why else figure.verdict,
        "printed": figure.printed,
        "run": figure.run or "not run",
        "size": figure.size or ("as in the paper" if figure.run and not figure.theorem else ""),
        "at the paper's size": figure.sweep or "no sweep",
    }
    print_described(console, ["", figure.key], [[name, text] for name, text in facts.items() if text])
    if figure.run or figure.sweep:
        print_line(f"rerun: depthrate run {PREFIX}{figure.key}")
