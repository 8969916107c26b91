"""`depthrate report`: write the report of a sweep as one self-contained HTML file."""

from __future__ import annotations

import html
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.api.report import ReportFiles, WrittenReport, write_report
from depthrate.orchestrator.cli.options import FILE, declared, store_option, sweep_argument
from depthrate.orchestrator.console.errors import UsageError, next_call
from depthrate.orchestrator.console.output_file import check_folder, check_output, is_replaceable
from depthrate.orchestrator.console.tables import print_line, print_warnings
from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.orchestrator.report.drawing.style import DARK, SCREEN, FigureStyle, PaperWidth, StyleName, paper_style
from depthrate.storage.files.store import Store, existing_store


@dataclass(frozen=True)
class ReportOptions:
    """Outputs besides the page, and the style of figures."""

    figures: Path | None = None
    """Folder for figures as files."""
    dark: bool = False
    """Whether figure files are for a dark background."""
    style: StyleName | None = None
    width: PaperWidth | None = None
    latex: Path | None = None
    """Folder for LaTeX files."""
    overlay: str | None = None
    """Second sweep to draw in the same figures."""

    def figure_style(self) -> FigureStyle:
        """Return the style of the figure files.

        Raises:
            UsageError: Options contradict each other, or need --figures.
        """
        flags = [f"--{name}" for name in ("dark", "style", "width") if getattr(self, name)]
        if flags and self.figures is None:
            names, verb = " and ".join(flags), "needs" if len(flags) == 1 else "need"
            raise UsageError(f"{names} {verb} --figures FOLDER. Give it too, or leave out {names}.")
        if self.width is not None and self.style is not StyleName.paper:
            raise UsageError(f"--width {self.width.value} is for figures in paper style. Add --style paper.")
        if self.style is not StyleName.paper:
            return DARK if self.dark else SCREEN
        if self.dark:
            raise UsageError("--style paper and --dark exclude each other. Give one of them.")
        return paper_style(self.width or PaperWidth.column)


def report_sweep(sweep_ref: str, url: str | None, page: Path, options: ReportOptions) -> None:
    """Write a sweep's report and print its path.

    Raises:
        ValueError: The sweep is unknown or has no trials, options contradict each other, or a file cannot be written.
    """
    style = options.figure_style()
    check_output(page)
    for folder in (options.figures, options.latex):
        if folder is not None:
            check_folder(folder)
    store = existing_store(url)
    checked = _with_trials(sweep_ref, store, url)
    overlay = None if options.overlay is None else _with_trials(options.overlay, store, url)
    command = ["depthrate", "run", sweep_ref, "--store", store.url]
    targets = ReportFiles(page, options.figures, command, style, options.latex, overlay)
    replaced = _title(page)
    written = write_report(checked, store, targets)
    _print_written(written, targets)
    if replaced is not None and replaced != _title(page):
        print_line(f"{page} held the report of {replaced} before. To keep both: -o FILE")


def _title(page: Path) -> str | None:
    """Return the title of a report on disk, which names its sweeps, or None."""
    try:
        with page.open("rb") if page.is_file() else io.BytesIO() as file:
            title = re.search(r"<title>(.*?) · depthrate</title>", file.read(4096).decode(errors="replace"))
    except OSError:
        return None
    return html.unescape(title[1]) if title else None


def _with_trials(sweep_ref: str, store: Store, url: str | None) -> CheckedSweep:
    checked, _ = find_sweep(sweep_ref, store)
    if not checked.trials:
        command = next_call("run", sweep_ref, url)
        raise UsageError(f"sweep {checked.sweep.name!r} has no trials yet. Run it: {command}")
    return checked


def _print_written(written: WrittenReport, targets: ReportFiles) -> None:
    """Print the paths of the written files, and warnings."""
    print_warnings(written.problems)
    for warning in written.mixtures:
        print_line(f"warning: {warning}", stderr=True)
    aside = not is_replaceable(targets.page)  # the page itself may have been written to stdout
    print_line(f"wrote {targets.page} ({written.megabytes:.1f} MB). Open it in a browser.", stderr=aside)
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
        "--compare": "To draw a second sweep in the same figures: --overlay SWEEP",
        "--watch": "To watch a running sweep: depthrate serve",
    },
)
@sweep_argument("sweep")
@store_option
@click.option("-o", "--output", type=FILE, default=Path("report.html"), help="HTML file to write.")
@click.option("--figures", type=FILE, help="Folder for the figures as SVG, PDF and CSV.")
@click.option("--dark", is_flag=True, help="Render --figures for a dark background.")
@click.option(
    "--style", type=click.Choice([*StyleName]), help="Style of --figures: screen or paper (serif). Default: screen."
)
@click.option(
    "--width",
    type=click.Choice([*PaperWidth]),
    help="Width with --style paper: column (3.25 in) or text (5.5 in). Default: column.",
)
@click.option("--latex", type=FILE, help="Folder for fits.tex, the fits as a LaTeX table.")
@click.option("--overlay", help="Second sweep to draw in the same figures.")
def command(sweep: str, store: str | None, output: Path, **options: Any) -> None:
    report_sweep(sweep, store, output, ReportOptions(**options))
