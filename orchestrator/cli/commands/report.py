"""`depthrate report`: draw the sweep's report: one HTML file that opens from disk."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from depthrate.orchestrator.analysis.fit_curves import fit_curves
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.cli.find_sweep import find_sweep
from depthrate.orchestrator.cli.mixtures import mixtures
from depthrate.orchestrator.cli.options import FILE, declared, store_option, sweep_argument
from depthrate.orchestrator.cli.polling import looks
from depthrate.orchestrator.console.errors import UsageError, next_call
from depthrate.orchestrator.console.output_file import check_folder, check_output, is_replaceable, output_file
from depthrate.orchestrator.console.tables import print_warnings
from depthrate.orchestrator.export.latex.files import export_latex
from depthrate.orchestrator.launch.plan import CheckedSweep
from depthrate.orchestrator.monitor.status import sweep_status
from depthrate.orchestrator.report.data import ReportData
from depthrate.orchestrator.report.drawing.style import DARK, SCREEN, FigureStyle, PaperWidth, StyleName, paper_style
from depthrate.orchestrator.report.figure_files import export_figures
from depthrate.orchestrator.report.overlay import overlaid
from depthrate.orchestrator.report.page import all_plots, render_report
from depthrate.orchestrator.report.read_store import hold_numbers, read_report
from depthrate.orchestrator.search.proposals import fitted_trials, with_search
from depthrate.storage.commits.source import Problem
from depthrate.storage.files.store import Store, existing_store
from depthrate.storage.query.results import Results


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


@dataclass(frozen=True)
class ReportFiles:
    """Where the report goes, and the command that ran the sweep."""

    page: Path
    figures: Path | None
    command: list[str]
    style: FigureStyle = SCREEN
    latex: Path | None = None
    overlay: CheckedSweep | None = None
    """A second sweep, which is drawn into the same figures."""


@dataclass(frozen=True)
class Written:
    """What came of a report."""

    megabytes: float
    num_figures: int
    problems: list[Problem]
    num_open: int
    """Trials that are pending or running."""
    latex: tuple[Path, ...] = ()
    """The LaTeX files."""
    mixtures: tuple[str, ...] = ()
    """Sentences on how its trials are not alike."""


def report_sweep(given: str, url: str | None, page: Path, options: ReportOptions, watch_every_s: float | None) -> None:
    """Write a sweep's report, again and again with `watch_every_s`, and say where it is.

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
    try:
        if watch_every_s is None:
            written = write_report(checked, store, targets)
        else:
            written = write_reports(checked, store, targets, watch_every_s)
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or page}: {error}") from None
    _say(written, targets)


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
        print(f"warning: {sentence}", file=sys.stderr)
    said = sys.stdout if is_replaceable(targets.page) else sys.stderr  # the page itself may have gone to the former
    print(f"wrote {targets.page} ({written.megabytes:.1f} MB); open it in a browser", file=said)
    if targets.figures:
        print(f"wrote {written.num_figures} figures to {targets.figures}", file=said)
    if written.latex:
        print(f"wrote {' and '.join(map(str, written.latex))}", file=said)


def write_report(checked: CheckedSweep, store: Store, targets: ReportFiles) -> Written:
    """Write a sweep's report, and its figures if a folder is given.

    Raises:
        OSError: a file cannot be written.
    """
    return _write(_read_all(checked, store, targets), targets, refresh_s=None)


def write_reports(
    checked: CheckedSweep,
    store: Store,
    targets: ReportFiles,
    every_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Written:
    """Write the report every so often until no trial is pending or running; the page loads itself again until then.

    A store that stops answering in between is asked again.

    Raises:
        OSError: a file cannot be written.
    """
    seen = looks(store, lambda: _read_all(checked, store, targets), every_s, sleep)
    written = (_write(found, targets, refresh_s=every_s) for found in seen)
    return next(each for each in written if not each.num_open)


@dataclass(frozen=True)
class _Found:
    """What a report shows, and what was found on the way."""

    data: ReportData
    num_open: int
    problems: list[Problem]
    mixtures: tuple[str, ...]


def _read_all(checked: CheckedSweep, store: Store, targets: ReportFiles) -> _Found:
    results = results_of(store, checked.task)
    data, num_open = read_sweep(checked, store, results, targets.command)
    if targets.overlay is not None:
        command = [*targets.command[:2], targets.overlay.sweep.name, *targets.command[3:]]
        second, more_open = read_sweep(targets.overlay, store, results_of(store, targets.overlay.task), command)
        data, num_open = overlaid(data, second), num_open + more_open
    return _Found(data, num_open, results.problems, mixtures(checked, results))


def _write(found: _Found, targets: ReportFiles, refresh_s: float | None) -> Written:
    html = render_report(found.data, refresh_s=refresh_s if found.num_open else None)
    with output_file(targets.page) as stream:  # a browser that loads the page again must not meet half of it
        stream.write(html)
    num_figures = 0
    if targets.figures is not None:
        num_figures = export_figures(all_plots(found.data), targets.figures, targets.style)
    latex = () if targets.latex is None else tuple(export_latex(found.data, targets.latex))
    return Written(len(html.encode()) / 1e6, num_figures, found.problems, found.num_open, latex, found.mixtures)


def read_sweep(checked: CheckedSweep, store: Store, results: Results, command: list[str]) -> tuple[ReportData, int]:
    """Return what the report of a sweep shows, and how many of its trials are pending or running."""
    sweep = checked.sweep
    checked, view = with_search(checked, store)
    state = sweep_status(sweep.name, [trial.trial_id for trial in checked.trials], results.snapshot, store)
    held = hold_numbers(checked, results)
    curves = fit_curves(held, sweep.fit, fitted_trials(checked, view), checked.task)
    counts = state.counts()
    data = read_report(checked, state, results, curves, command, view, held)
    return data, counts["pending"] + counts["running"]


@declared(__doc__, {"--compare": "--overlay SWEEP draws a second sweep in the same figures"})
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
@click.option("--latex", type=FILE, help="A folder for fits.tex and methods.tex.")
@click.option("--overlay", help="A second sweep, in the same figures.")
@click.option("--watch", is_flag=True, help="Write it again while the sweep runs, until it is done.")
@click.option("--every", type=click.FloatRange(min=1.0), default=15.0, help="Seconds between two reports of --watch.")
def command(sweep: str, store: str | None, output: Path, watch: bool, every: float, **options: Any) -> None:
    report_sweep(sweep, store, output, ReportOptions(**options), every if watch else None)
