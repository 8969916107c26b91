"""`depthrate report`: draw the sweep's report: one HTML file that opens from disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.api.report import ReportFiles, Written, write_report
from depthrate.orchestrator.cli.options import FILE, declared, store_option, sweep_argument
from depthrate.orchestrator.console.errors import UsageError, next_call
from depthrate.orchestrator.console.output_file import check_folder, check_output, is_replaceable
from depthrate.orchestrator.console.tables import print_line, print_warnings
from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.orchestrator.report.drawing.style import DARK, SCREEN, FigureStyle, PaperWidth, StyleName, paper_style
from depthrate.storage.files.store import Store, existing_store


@dataclass(frozen=True)
class ReportOptions:
    """What is wanted besides the page."""

    figures: Path | None = None
    """The folder of the figures as files."""
    dark: bool = False
    """Whether these are for a dark background."""
    style: StyleName | None = None
    width: PaperWidth | None = None
    latex: Path | None = None
    """The folder of the LaTeX files."""
    overlay: str | None = None
    """A second sweep."""

    def figure_style(self) -> FigureStyle:
        """Return how the figures look.

        Raises:
            UsageError: the options contradict each other, or there are no figures that they could be about.
        """
        given = [f"--{name}" for name in ("dark", "style", "width") if getattr(self, name)]
        if given and self.figures is None:
            named, verb = " and ".join(given), "is" if len(given) == 1 else "are"
            raise UsageError(
                f"{named} {verb} about the figures of --figures FOLDER; give that too, or leave {named} out"
            )
        if self.width is not None and self.style is not StyleName.paper:
            raise UsageError(f"--width {self.width.value} is the width of a paper's figures; add --style paper")
        if self.style is not StyleName.paper:
            return DARK if self.dark else SCREEN
        if self.dark:
            raise UsageError("--style paper is for white paper; leave --dark out, or --style paper")
        return paper_style(self.width or PaperWidth.column)


def report_sweep(given: str, url: str | None, page: Path, options: ReportOptions) -> None:
    """Write a sweep's report and print its path.

    Raises:
        ValueError: there is no such sweep, it has no trials, options contradict each other, or a file cannot be written.
    """
    style = options.figure_style()
    check_output(page)
    for folder in (options.figures, options.latex):
        if folder is not None:
            check_folder(folder)
    store = existing_store(url)
    checked = _with_trials(given, store, url)
    overlay = None if options.overlay is None else _with_trials(options.overlay, store, url)
    command = ["depthrate", "run", given, "--store", store.url]
    targets = ReportFiles(page, options.figures, command, style, options.latex, overlay)
    _say(write_report(checked, store, targets), targets)


def _with_trials(given: str, store: Store, url: str | None) -> CheckedSweep:
    checked, _ = find_sweep(given, store)
    if not checked.trials:
        again = next_call("run", given, url)
        raise UsageError(f"sweep {checked.sweep.name!r} has proposed nothing yet; run it: {again}")
    return checked


def _say(written: Written, targets: ReportFiles) -> None:
    """Print what was written where, and what is wrong with it."""
    print_warnings(written.problems)
    for sentence in written.mixtures:
        print_line(f"warning: {sentence}", stderr=True)
    aside = not is_replaceable(targets.page)  # the page itself may have gone to standard output
    print_line(f"wrote {targets.page} ({written.megabytes:.1f} MB); open it in a browser", stderr=aside)
    if targets.figures:
        print_line(f"wrote {written.num_figures} figures to {targets.figures}", stderr=aside)
    if targets.latex:
        print_line(
            f"wrote {', '.join(map(str, written.latex))}" if written.latex else "no fits.tex: the sweep has no fits",
            stderr=aside,
        )


@declared(
    __doc__,
    {
        "--compare": "--overlay SWEEP draws a second sweep in the same figures",
        "--watch": "depthrate serve shows a sweep while it runs",
    },
)
@sweep_argument("sweep")
@store_option
@click.option("-o", "--output", type=FILE, default=Path("report.html"), help="The HTML file to write.")
@click.option("--figures", type=FILE, help="A folder for figures: SVG, PDF, CSV.")
@click.option("--dark", is_flag=True, help="Draw these figures for a dark background.")
@click.option(
    "--style", type=click.Choice([*StyleName]), help="Of these figures: screen (default), or paper: serif, at its size."
)
@click.option(
    "--width",
    type=click.Choice([*PaperWidth]),
    help="Of a paper's figures: column (3.25 in, default) or text (5.5 in).",
)
@click.option("--latex", type=FILE, help="A folder for fits.tex.")
@click.option("--overlay", help="A second sweep, in the same figures.")
def command(sweep: str, store: str | None, output: Path, **options: Any) -> None:
    report_sweep(sweep, store, output, ReportOptions(**options))
