"""Sweeps in a notebook: the commands on a sweep as methods, with tables shown as HTML."""

import html
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.api.fit import fit_sweep
from depthrate.orchestrator.api.planning import plan_sweep
from depthrate.orchestrator.api.report import ReportOptions, explore, write_report
from depthrate.orchestrator.api.status import StatusPoller
from depthrate.orchestrator.attempts.options import LaunchOptions, Option
from depthrate.orchestrator.cli.launch_output import pack_values, plan_summary, run_sweep, slow_notice
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.registry import launch_options, make_launch_options
from depthrate.orchestrator.launch.launch_plan import CheckedSweep, check_sweep
from depthrate.orchestrator.launch.outcome import RunState
from depthrate.orchestrator.notebook.results import StoreResults, store_results
from depthrate.orchestrator.search.search_view import SearchView, with_search
from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.files.store import Store, existing_store
from depthrate.sweeps.load import load_sweep, sweep_of_spec
from depthrate.sweeps.trial import varying_parameters

if TYPE_CHECKING:
    from depthrate.orchestrator.notebook.explorer import Explorer

StoreUrl = str | os.PathLike[str] | None


class RunError(RuntimeError):
    """Some trials of a sweep are not done. The reasons are printed above the exception."""


@dataclass(frozen=True)
class Table:
    """A frame with a sentence above it, shown as HTML in a notebook."""

    sentence: str
    frame: pd.DataFrame

    def __repr__(self) -> str:
        return f"{self.sentence}\n{self.frame.to_string(index=False)}" if len(self.frame) else self.sentence

    def _repr_html_(self) -> str:
        table = self.frame.to_html(index=False, na_rep="", border=0) if len(self.frame) else ""
        return f"<p>{html.escape(self.sentence)}</p>{table}"


@dataclass(frozen=True)
class ReportFile:
    """A written report, shown as a link in a notebook."""

    path: Path

    def _repr_html_(self) -> str:
        name = html.escape(str(self.path), quote=True)
        return f'<a href="{name}" target="_blank">{name}</a> ({self.path.stat().st_size / 1e6:.1f} MB)'


class Sweep:
    """A named set of trials, defined by the keys of a sweep file as keyword arguments.

    Every method takes the store: a folder or fsspec URL. Default: DEPTHRATE_STORE, else ./results.
    """

    def __init__(self, name: str, task: str, **parts: Any):
        """Define a sweep.

        Args:
            name: Name of the sweep.
            task: Name of a task, or file.py:function.
            **parts: Keys of a sweep file: params, grid, zip, grids, include, exclude, derive, seeds, search, fit, figures.

        Raises:
            SweepError: A key is unknown or has an invalid value.
        """
        self._spec = sweep_of_spec({"name": name, "task": task} | {key: _plain(part) for key, part in parts.items()})

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self._spec.name

    def spec(self) -> dict[str, Any]:
        """Return the content of the sweep file of this sweep."""
        return self._spec.spec()

    def __repr__(self) -> str:
        return f"Sweep({', '.join(f'{key}={part!r}' for key, part in self.spec().items())})"

    def plan(self, store: StoreUrl = None, **options: Any) -> Table:
        """List the pending packs with estimated time, as `depthrate plan` does. Nothing is started.

        Args:
            store: Folder or fsspec URL. Default: DEPTHRATE_STORE, else ./results.
            **options: Options of `run`.
        Returns:
            One row per pack.
        Raises:
            ValueError: The sweep cannot run: a parameter, its task or its data is invalid.
        """
        with slow_notice():
            planned = plan_sweep(self._options(store, options), self._spec)
        packs, trials = planned.plan.packs, planned.plan.checked.trials
        names = varying_parameters(trials) if trials else []
        columns = ["pack", "trials", *names, f"est. {planned.estimates.unit}-s"]
        rows = [[p.pack_id, len(p.trials), *pack_values(p, names), planned.estimates(p)] for p in packs]
        return Table(plan_summary(planned.plan), pd.DataFrame(rows, columns=columns if rows else None))

    def run(self, store: StoreUrl = None, **options: Any) -> Table:
        """Run the pending trials with a progress bar, and fit the rates. Committed trials are never rerun.

        Interrupting the cell stops the run: each worker saves a checkpoint after its current step, and the next call of
        `run` resumes from there.

        Args:
            store: Folder or fsspec URL. Default: DEPTHRATE_STORE, else ./results.
            **options: Options of `depthrate run`, as in workers=4, rerun=True, cluster="gpu.toml".
        Returns:
            The fits, or the status with detach=True.
        Raises:
            KeyboardInterrupt: The run was interrupted and has stopped.
            RunError: Trials have failed.
            TypeError: An option is unknown.
            ValueError: The sweep cannot run. Nothing was started.
        """
        launch = self._options(store, options)
        state = run_sweep(launch, self._spec)
        if state is RunState.INTERRUPTED:
            raise KeyboardInterrupt("stopped. Run the cell again to resume.")
        if state is RunState.INCOMPLETE:
            raise RunError(f"sweep {self.name!r} is not done, for the reasons above. Run it again to retry the rest.")
        return self.status(store) if launch.detach else self.fit(store)

    def status(self, store: StoreUrl = None) -> Table:
        """Return the number of trials per state."""
        opened = existing_store(store)
        checked, _ = self.checked(opened)
        snapshot = StatusPoller(opened, {self.name: checked.trials.ids}, with_costs=False).poll()
        (state,) = snapshot.states
        texts = [f"{self.name}: {counted(len(state.states), 'trial')}, {state.trial_hours():.3g} trial-hours"]
        texts += snapshot.unattended.values()
        texts += [f"{count} failed with: {message}" for message, count in state.errors().most_common(3)]
        return Table(". ".join(texts), pd.DataFrame([state.counts()]))

    def results(self, store: StoreUrl = None) -> StoreResults:
        """Return the committed results of this sweep: `.sql(...)`, `.df()`, `.plot(...)`, `.features(...)`."""
        opened = existing_store(store)
        checked, _ = self.checked(opened)
        trial_ids = checked.trials.ids
        return store_results(opened, checked.task).only(trial_ids, self.name)

    def fit(self, store: StoreUrl = None) -> Table:
        """Fit and save the rates of the sweep, and return one row per curve and model."""
        opened = existing_store(store)
        checked, view = self.checked(opened)
        result = fit_sweep(checked, opened, view)
        rows, groups = result.rows, result.groups
        by = ["by"] if any(parse_object(row["by"]) for row in rows) else []
        columns = ["metric", "x", *by, "model", "exponent", "ci_low", "ci_high", "prefactor", "r2", "weight"]
        columns.append("n_points")
        frame = pd.DataFrame(rows, columns=columns if rows else [])
        if by:
            frame["by"] = [", ".join(f"{k} = {v}" for k, v in parse_object(by).items()) for by in frame["by"]]
        notes = Counter(group.note for group in groups if not group.fits)
        counts = [f"{counted(len(groups) - notes.total(), 'curve')} fitted"]
        counts += [f"{number} without a fit ({note})" for note, number in notes.items()]
        return Table(f"{self.name}: {', '.join(counts)}" if groups else f"{self.name} requests no fit", frame)

    def report(self, path: str | os.PathLike[str] = "report.html", store: StoreUrl = None) -> ReportFile:
        """Write the report as one self-contained HTML file, and return a link to it.

        Raises:
            OSError: The file cannot be written.
        """
        opened = existing_store(store)
        checked, _ = self.checked(opened)
        command = ["depthrate", "run", self.name, "--store", opened.url]
        write_report(checked, opened, command, Path(path), ReportOptions())
        return ReportFile(Path(path))

    def explore(self, store: StoreUrl = None, view: str = "") -> "Explorer":
        """Show the explorer of this sweep: figures and a table of its trials, with one filter for all of them.

        Args:
            store: Folder or fsspec URL. Default: DEPTHRATE_STORE, else ./results.
            view: Filters, axes and selection, as an explorer's address has them after `#`.
        Returns:
            A widget. `.refresh()` shows new results, and `.view` is the current view.
        Raises:
            StoreError: The store does not exist.
            UsageError: anywidget is not installed.
        """
        opened = existing_store(store)
        try:
            from depthrate.orchestrator.notebook.explorer import Explorer
        except ImportError as error:
            raise UsageError(
                f"explore needs anywidget ({error}). Install it: pip install 'depthrate[notebook]'"
            ) from None

        def read() -> bytes:
            checked, _ = self.checked(opened)
            return explore(checked, opened, results_of(opened, checked.task)).packed()

        return Explorer(read, view.removeprefix("#"))

    def checked(self, store: Store) -> tuple[CheckedSweep, SearchView | None]:
        """Return the sweep with its trials so far, and its search.

        Raises:
            ValueError: A parameter, the task or the data is invalid.
        """
        return with_search(check_sweep(self._spec), store)

    def _options(self, store: StoreUrl, options: Mapping[str, Any]) -> LaunchOptions:
        allowed = [option.name for option in run_options()]
        if unknown := options.keys() - allowed:
            raise TypeError(f"unknown option of run: {', '.join(sorted(unknown))}. Allowed: {', '.join(allowed)}")
        url = None if store is None else os.fspath(store)
        return make_launch_options(self.name, {**options, "store": url})


def run_options() -> list[Option]:
    """Return the options of `Sweep.run`: all of `depthrate run` except the store and --set."""
    return [option for option in launch_options() if option.name not in ("store", "set_")]


def load(sweep: str | os.PathLike[str], **parameters: Any) -> Sweep:
    """Load a sweep.

    Args:
        sweep: A sweep file, the name of a shipped sweep, or `file.py:function`.
        **parameters: Parameters of the sweep to replace.

    Raises:
        SweepError: The file is missing, is not YAML, or does not describe a sweep.
    """
    return Sweep(**load_sweep(os.fspath(sweep), parameters).spec())


def _plain(part: Any) -> Any:
    """Convert a part of a sweep to plain data, as in a sweep file."""
    if isinstance(part, list | tuple):
        return [_plain(item) for item in part]
    return part.spec() if hasattr(part, "spec") else part
