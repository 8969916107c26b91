"""`depthrate report`: collect, draw, write; once, or again and again while the sweep runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from depthrate.orchestrator.aggregate import fit_curves
from depthrate.orchestrator.commands.find_sweep import find_sweep
from depthrate.orchestrator.output_file import check_folder, check_output, is_replaceable, output_file
from depthrate.orchestrator.plan import CheckedSweep
from depthrate.orchestrator.provenance import mixed_sentence
from depthrate.orchestrator.report.data import ReportData
from depthrate.orchestrator.report.figure_files import export_figures
from depthrate.orchestrator.report.page import all_plots, render_report
from depthrate.orchestrator.report.read_store import hold_numbers, read_report
from depthrate.orchestrator.results import results_of
from depthrate.orchestrator.search.proposals import fitted_trials, with_search
from depthrate.orchestrator.status import sweep_status
from depthrate.orchestrator.terminal import print_warnings
from depthrate.orchestrator.usage import UsageError, next_call
from depthrate.storage.query import Results
from depthrate.storage.source import Problem
from depthrate.storage.store import Store, existing_store


@dataclass(frozen=True)
class ReportFiles:
    """Where the report goes, and the command that ran the sweep."""

    page: Path
    figures: Path | None
    command: list[str]
    dark: bool = False
    """Whether the figures are for a dark background; the page is white."""


@dataclass(frozen=True)
class Written:
    """What came of a report."""

    megabytes: float
    num_figures: int
    problems: list[Problem]
    num_open: int
    """Trials that are pending or running."""
    mixed_code: str | None = None
    """Says that its trials were run by several versions of the code."""


def report_sweep(
    given: str, url: str | None, page: Path, figures: Path | None, watch_every_s: float | None, *, dark: bool = False
) -> None:
    """Write a sweep's report, again and again with `watch_every_s`, and say where it is.

    Raises:
        ValueError: there is no such sweep, it has no trials, or a file cannot be written.
    """
    if dark and figures is None:
        raise UsageError("--dark is about the figures of --figures FOLDER; give that, or leave --dark out")
    check_output(page)
    if figures is not None:
        check_folder(figures)
    store = existing_store(url)
    checked, _ = find_sweep(given, store)
    if not checked.trials:
        again = next_call("run", given, url)
        raise UsageError(f"sweep {checked.sweep.name!r} has proposed nothing yet; run it: {again}")
    targets = ReportFiles(page, figures, ["depthrate", "run", given, "--store", store.url], dark)
    try:
        if watch_every_s is None:
            written = write_report(checked, store, targets)
        else:
            written = write_reports(checked, store, targets, watch_every_s)
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or page}: {error}") from None
    print_warnings(written.problems)
    if written.mixed_code is not None:
        print(f"warning: {written.mixed_code}", file=sys.stderr)
    said = sys.stdout if is_replaceable(page) else sys.stderr  # the page itself may have gone to the former
    print(f"wrote {page} ({written.megabytes:.1f} MB); open it in a browser", file=said)
    if figures:
        print(f"wrote {written.num_figures} figures to {figures}", file=said)


def write_report(checked: CheckedSweep, store: Store, targets: ReportFiles, refresh_s: float | None = None) -> Written:
    """Write a sweep's report, and its figures if a folder is given; with refresh_s the page loads itself again.

    Raises:
        OSError: a file cannot be written.
    """
    results = results_of(store, checked.task)
    data, num_open = _read(checked, store, results, targets.command)
    html = render_report(data, refresh_s=refresh_s if num_open else None)
    with output_file(targets.page) as stream:  # a browser that loads the page again must not meet half of it
        stream.write(html)
    num_figures = 0
    if targets.figures is not None:
        num_figures = export_figures(all_plots(data), targets.figures, dark=targets.dark)
    mixed_code = mixed_sentence(checked, results.snapshot)
    return Written(len(html.encode()) / 1e6, num_figures, results.problems, num_open, mixed_code)


def write_reports(
    checked: CheckedSweep,
    store: Store,
    targets: ReportFiles,
    every_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Written:
    """Write the report every so often until no trial is pending or running.

    Raises:
        OSError: a file cannot be written.
    """
    while True:
        written = write_report(checked, store, targets, refresh_s=every_s)
        if not written.num_open:
            return written
        sleep(every_s)


def _read(checked: CheckedSweep, store: Store, results: Results, command: list[str]) -> tuple[ReportData, int]:
    sweep = checked.sweep
    checked, view = with_search(checked, store)
    state = sweep_status(sweep.name, [trial.trial_id for trial in checked.trials], results.snapshot, store)
    held = hold_numbers(checked, results)
    curves = fit_curves(held, sweep.fit, fitted_trials(checked, view), checked.task)
    counts = state.counts()
    data = read_report(checked, state, results, curves, command, view, held)
    return data, counts["pending"] + counts["running"]
