"""Write a sweep's report: an HTML page, and optionally figure and LaTeX files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from depthrate.orchestrator.analysis.fit_curves import fit_curves
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.api.mixtures import mixtures
from depthrate.orchestrator.console.output_file import write_output
from depthrate.orchestrator.export.latex.files import export_latex
from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.orchestrator.monitor.status import sweep_status
from depthrate.orchestrator.report.drawing.style import SCREEN, FigureStyle
from depthrate.orchestrator.report.figure_files import export_figures
from depthrate.orchestrator.report.overlay import merge_reports
from depthrate.orchestrator.report.page import all_plots, render_report
from depthrate.orchestrator.report.read_store import hold_numbers, read_report
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.orchestrator.search.proposals import fitted_trials, with_search
from depthrate.storage.commits.source import Problem
from depthrate.storage.files.store import Store
from depthrate.storage.query.results import Results


@dataclass(frozen=True)
class ReportFiles:
    """Files of a report, and the command that ran the sweep."""

    page: Path
    figures: Path | None
    command: list[str]
    style: FigureStyle = SCREEN
    latex: Path | None = None
    overlay: CheckedSweep | None = None
    """Second sweep to draw in the same figures."""


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


def write_report(checked: CheckedSweep, store: Store, targets: ReportFiles) -> WrittenReport:
    """Write a sweep's report, and its figures and LaTeX files if `targets` has folders for them.

    Raises:
        UsageError: A file cannot be written.
    """
    results = results_of(store, checked.task)
    data = read_sweep(checked, store, results, targets.command)
    if targets.overlay is not None:
        command = [*targets.command[:2], targets.overlay.sweep.name, *targets.command[3:]]
        second = read_sweep(targets.overlay, store, results_of(store, targets.overlay.task), command)
        data = merge_reports(data, second)
    html = render_report(data)
    write_output(targets.page, html)
    num_figures = 0
    if targets.figures is not None:
        num_figures = export_figures(all_plots(data), targets.figures, targets.style)
    latex = () if targets.latex is None else tuple(export_latex(data, targets.latex))
    return WrittenReport(len(html.encode()) / 1e6, num_figures, results.problems, latex, mixtures(checked, results))


def read_sweep(checked: CheckedSweep, store: Store, results: Results, command: list[str]) -> ReportData:
    """Read the content of a sweep's report.

    Args:
        command: Command that ran the sweep, shown in the report.
    """
    sweep = checked.sweep
    checked, view = with_search(checked, store)
    state = sweep_status(sweep.name, [trial.trial_id for trial in checked.trials], results.snapshot, store)
    results_in_memory = hold_numbers(checked, results)
    curves = fit_curves(results_in_memory, sweep.fit, fitted_trials(checked, view), checked.task)
    return read_report(checked, state, results, curves, command, view, results_in_memory)
