"""Write a sweep's report: an HTML page, and optionally figure and LaTeX files."""

import io
import re
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path

from depthrate.orchestrator.analysis.fit_requests import fit_requests
from depthrate.orchestrator.analysis.observations import in_memory
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.api.fit import fits_of
from depthrate.orchestrator.console.errors import UsageError, next_call
from depthrate.orchestrator.console.output_file import check_folder, check_output, write_output
from depthrate.orchestrator.explorer.data import SweepData
from depthrate.orchestrator.explorer.page import explorer_page
from depthrate.orchestrator.export.latex import export_latex
from depthrate.orchestrator.launch.code_changes import mixtures
from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.orchestrator.monitor.status import SweepStatus, sweep_status
from depthrate.orchestrator.report.drawing.style import DARK, SCREEN, FigureStyle, PaperWidth, StyleName, paper_style
from depthrate.orchestrator.report.figure_files import export_figures
from depthrate.orchestrator.report.figures.layer_law import layer_law_panels
from depthrate.orchestrator.report.figures.surfaces import surface_figure
from depthrate.orchestrator.report.page import all_plots, render_report
from depthrate.orchestrator.report.read_store import read_report
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.report.sheet_html import sheet_panel
from depthrate.orchestrator.search.search_view import with_search
from depthrate.orchestrator.sheet.value_sheets import surface_sheet
from depthrate.storage.attempts.records import RecordReader
from depthrate.storage.commits.visible_commits import Problem
from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.files.store import Store, existing_store
from depthrate.storage.query.results import Results
from depthrate.sweeps.spec import SweepSpec
from depthrate.sweeps.trial import Trial, Trials

MAX_SECTIONS = 6
"""Maximum number of fits over layers and in several variables on the explorer's page. The report has all."""


@dataclass(frozen=True)
class ReportOptions:
    """Outputs in addition to the page, and the style of figures."""

    figures: Path | None = None
    """Folder for figures as files."""
    dark: bool = False
    """Whether figure files are for a dark background."""
    style: StyleName | None = None
    width: PaperWidth | None = None
    latex: Path | None = None
    """Folder for LaTeX files."""
    interactive: bool = False
    """Whether the page is the explorer, with the data of its figures."""

    def figure_style(self) -> FigureStyle:
        """Return the style of the figure files.

        Raises:
            UsageError: Options contradict each other, or require --figures.
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
            raise UsageError("--style paper and --dark are mutually exclusive. Give one of them.")
        return paper_style(self.width or PaperWidth.column)


@dataclass(frozen=True)
class WrittenReport:
    """A written report."""

    megabytes: float
    num_figures: int
    problems: list[Problem]
    latex: tuple[Path, ...] = ()
    """Paths of the LaTeX files."""
    mixtures: tuple[str, ...] = ()
    """Warnings that the trials mix code versions or engines."""
    replaced: str | None = None
    """Sweep whose report this one replaced, if it was another sweep."""


def report_sweep(sweep_ref: str, url: str | None, page: Path, options: ReportOptions) -> WrittenReport:
    """Write a sweep's report to a page, and its figures and LaTeX files if the options name folders for them.

    Raises:
        ValueError: The sweep is unknown or has no trials, options contradict each other, or a file cannot be written.
    """
    options.figure_style()
    check_output(page)
    for folder in (options.figures, options.latex):
        if folder is not None:
            check_folder(folder)
    store = existing_store(url)
    checked, _ = find_sweep(sweep_ref, store)
    if not checked.trials:
        command = next_call("run", sweep_ref, url)
        raise UsageError(f"sweep {checked.sweep.name!r} has no trials yet. Run it: {command}")
    return write_report(checked, store, ["depthrate", "run", sweep_ref, "--store", store.url], page, options)


def write_report(
    checked: CheckedSweep, store: Store, command: list[str], page: Path, options: ReportOptions
) -> WrittenReport:
    """Write the report of a sweep, which `command` ran.

    Raises:
        UsageError: A file cannot be written.
    """
    results, previous = results_of(store, checked.task), _title(page)
    html, num_figures, latex = "", 0, tuple[Path, ...]()
    if options.interactive:
        html = explorer_page(checked.sweep.name, explore(checked, store, results).packed())
        write_output(page, html)
    if not options.interactive or options.figures is not None or options.latex is not None:
        data = read_sweep(checked, store, results, command)
        if not options.interactive:
            html = render_report(data)
            write_output(page, html)
        if options.figures is not None:
            num_figures = export_figures(all_plots(data), options.figures, options.figure_style())
        latex = () if options.latex is None else tuple(export_latex(data, options.latex))
    return WrittenReport(
        len(html.encode()) / 1e6,
        num_figures,
        results.problems,
        latex,
        mixtures(checked, store, results.snapshot),
        previous if previous != _title(page) else None,
    )


def _title(page: Path) -> str | None:
    """Return the title of a report on disk, which names its sweep, or None if no title can be read."""
    try:
        with page.open("rb") if page.is_file() else io.BytesIO() as file:
            title = re.search(r"<title>(.*?) · depthrate</title>", file.read(4096).decode(errors="replace"))
    except OSError:
        return None
    return unescape(title[1]) if title else None


def read_sweep(checked: CheckedSweep, store: Store, results: Results, command: list[str]) -> ReportData:
    """Read the content of a sweep's report.

    Args:
        command: Command that ran the sweep, shown in the report.
    """
    checked, view = with_search(checked, store)
    sweep = checked.sweep
    state = sweep_status(sweep.name, checked.trials.ids, results.snapshot, store)
    numbers = in_memory(results, sweep.fit, checked.trials.ids)
    fits = fits_of(checked, view, numbers, sweep.fit, state.unfinished)
    return read_report(checked, state, results, fits, command, view)


def explore(checked: CheckedSweep, store: Store, results: Results, reader: RecordReader | None = None) -> SweepData:
    """Read the content of a sweep's explorer. Of a search, these are the trials of all proposals.

    Args:
        reader: Cache of the attempts' records, for repeated calls.
    """
    checked, view = with_search(checked, store)
    sweep, ids = checked.sweep, checked.trials.ids
    members = results.only(ids, sweep.name)
    state = sweep_status(sweep.name, ids, results.snapshot, store, reader=reader)
    numbers = members.in_memory(ids, all_layers=any(request.reads_layers for request in sweep.fit))
    fits = fits_of(checked, view, numbers, sweep.fit, state.unfinished)
    surfaces = fits.surfaces[:MAX_SECTIONS]
    panels = [sheet_panel(surface_sheet(surface), surface_figure(surface)) for surface in surfaces]
    sections = [*layer_law_panels(fits.layer_laws), *panels][:MAX_SECTIONS]
    return SweepData(sweep, checked.trials, checked.task, state, fits.curves, members, numbers, sections)


def explore_committed(sweep: SweepSpec, status: SweepStatus, results: Results) -> SweepData:
    """Read the content of the explorer of a sweep whose task cannot be loaded: its committed trials.

    Raises:
        QueryError: It has none.
    """
    members = results.for_sweep(sweep.name)
    rows = members.sql("select trial_id, task, task_version, params from trials order by all").fetchall()
    trials = [Trial(trial_id, task, version, parse_object(params)) for trial_id, task, version, params in rows]
    names = dict.fromkeys(name for trial in trials for name in trial.params)
    trials = [replace(trial, params={name: trial.params.get(name) for name in names}) for trial in trials]
    requests = [fit for fit in sweep.fit if fit.is_curve and {*fit.by, *fit.x_names} <= names.keys()]
    curves = fit_requests(members, requests, trials).curves
    return SweepData(sweep, Trials(trials), None, status, curves, members, members)
