"""A sweep in a notebook: what the command line does with it, as methods, with tables that show as HTML."""

from __future__ import annotations

import html
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthrate.deprecated import LAUNCH_OPTIONS, accept_old_arguments, rename_launch_options, warn_renamed
from depthrate.sweeps.load import load_sweep, sweep_of_spec

if TYPE_CHECKING:
    import pandas as pd

    from depthrate.orchestrator.executors.options import LaunchOptions, Option
    from depthrate.orchestrator.launch.launch_plan import CheckedSweep
    from depthrate.orchestrator.notebook.results import StoreResults
    from depthrate.orchestrator.search.proposals import SearchView
    from depthrate.storage.files.store import Store

StoreUrl = str | os.PathLike[str] | None


class RunError(RuntimeError):
    """Not all trials of a sweep are done; what was said above it has the reasons."""


@dataclass(frozen=True)
class Table:
    """A frame with a sentence above it; a notebook shows both as HTML."""

    sentence: str
    frame: pd.DataFrame

    def __repr__(self) -> str:
        return f"{self.sentence}\n{self.frame.to_string(index=False)}" if len(self.frame) else self.sentence

    def _repr_html_(self) -> str:
        table = self.frame.to_html(index=False, na_rep="", border=0) if len(self.frame) else ""
        return f"<p>{html.escape(self.sentence)}</p>{table}"


@dataclass(frozen=True)
class ReportFile:
    """A report that was written; a notebook shows a link to it."""

    path: Path

    def _repr_html_(self) -> str:
        name = html.escape(str(self.path), quote=True)
        return f'<a href="{name}" target="_blank">{name}</a> ({self.path.stat().st_size / 1e6:.1f} MB)'


class Sweep:
    """A named set of trials, with the parts of a sweep file as keyword arguments, and what can be done with it.

    Every method takes the store: any fsspec URL, else DEPTHRATE_STORE, else ./results.
    """

    def __init__(self, name: str, task: str, **parts: Any):
        """Describe a sweep: params, grid, zip, grids, include, exclude, derive, seeds, search, fit, figures.

        Raises:
            SweepError: a part is unknown or has the wrong form.
        """
        self._spec = sweep_of_spec({"name": name, "task": task} | {key: _plain(part) for key, part in parts.items()})

    @property
    def name(self) -> str:
        """Its name."""
        return self._spec.name

    def spec(self) -> dict[str, Any]:
        """Return the sweep as the mapping a sweep file would hold."""
        return self._spec.spec()

    def __repr__(self) -> str:
        return f"Sweep({', '.join(f'{key}={part!r}' for key, part in self.spec().items())})"

    def plan(self, store: StoreUrl = None, **options: Any) -> Table:
        """Return what would run, in packs, and how much is done; nothing starts. Options are those of `run`.

        Raises:
            ValueError: the sweep cannot run: a parameter, its task, its data.
        """
        import pandas as pd

        from depthrate.orchestrator.api.planning import check_launch, estimates_on, machines_of, plan_on, plan_sentence
        from depthrate.orchestrator.search.proposals import with_search
        from depthrate.storage.files.data_folder import open_data_folder
        from depthrate.storage.files.store import open_store
        from depthrate.sweeps.trial import varying_parameters

        launch, opened = self._options(store, options), open_store(store)
        checked, _ = with_search(check_launch(launch, open_data_folder(), self._spec), opened)
        machines = machines_of(launch, checked.sweep, opened)
        plan = plan_on(machines, checked, opened)
        estimates = estimates_on(machines, plan, opened)
        names = varying_parameters(checked.trials) if checked.trials else []
        rows = []
        for pack in plan.packs:
            values = {name: _values([trial.params[name] for trial in pack.trials]) for name in names}
            rows.append(
                {
                    "pack": pack.pack_id,
                    "trials": len(pack.trials),
                    **values,
                    f"est. {estimates.unit}-s": estimates(pack),
                }
            )
        return Table(plan_sentence(plan), pd.DataFrame(rows))

    def run(self, store: StoreUrl = None, **options: Any) -> Table:
        """Run what is pending with a live bar, fit its rates, and return them; what is committed is never redone.

        Interrupting the cell stops it: each worker saves a checkpoint after its current step, and calling `run` again
        goes on from there. `options` are those of `depthrate run` with the same words, as in workers=4, rerun=True,
        cluster="gpu.toml"; with detach=True the jobs go on by themselves, and what is returned is the status.

        Raises:
            KeyboardInterrupt: it was interrupted, and has stopped.
            RunError: trials are left that failed.
            TypeError: there is no such option.
            ValueError: the sweep cannot run; nothing was started.
        """
        from depthrate.orchestrator.api.run import run_sweep
        from depthrate.orchestrator.launch.outcome import RunState

        launch = self._options(store, options)
        state = run_sweep(launch, self._spec)
        if state is RunState.INTERRUPTED:
            raise KeyboardInterrupt("stopped; run the cell again to go on")
        if state is RunState.INCOMPLETE:
            raise RunError(
                f"sweep {self.name!r} is not done; the reasons stand above; run it again to try what is left"
            )
        return self.status(store) if launch.detach else self.fit(store)

    def status(self, store: StoreUrl = None) -> Table:
        """Return how many of its trials are in which state."""
        import pandas as pd

        from depthrate.orchestrator.monitor.status import sweep_status
        from depthrate.storage.commits.snapshot import take_snapshot
        from depthrate.storage.files.store import existing_store

        opened = existing_store(store)
        from depthrate.orchestrator.console.tables import counted

        checked, _ = self.checked(opened)
        state = sweep_status(self.name, [t.trial_id for t in checked.trials], take_snapshot(opened), opened)
        said = f"{self.name}: {counted(len(state.states), 'trial')}, {state.trial_hours():.3g} trial-hours"
        errors = "".join(f"; {count} failed with: {message}" for message, count in state.errors().most_common(3))
        return Table(said + errors, pd.DataFrame([state.counts()]))

    def results(self, store: StoreUrl = None) -> StoreResults:
        """Return the committed results of its trials alone: `.sql(...)`, `.df()`, `.plot(...)`, `.features(...)`."""
        from depthrate.orchestrator.notebook.results import store_results
        from depthrate.storage.files.store import existing_store

        opened = existing_store(store)
        checked, _ = self.checked(opened)
        trial_ids = [trial.trial_id for trial in checked.trials]
        return store_results(opened, checked.task).only(trial_ids, self.name)

    def fit(self, store: StoreUrl = None) -> Table:
        """Fit the rates that the sweep asks for and return them, a row a curve and model; the store keeps them."""
        import pandas as pd

        from depthrate.orchestrator.api.fit import fit_sweep
        from depthrate.orchestrator.console.tables import counted
        from depthrate.storage.files.json_objects import object_of
        from depthrate.storage.files.store import existing_store

        opened = existing_store(store)
        checked, view = self.checked(opened)
        result = fit_sweep(checked, opened, view)
        curves, rows = result.curves, result.rows
        groups = ["by"] if any(object_of(row["by"]) for row in rows) else []
        shown = [
            "metric",
            "x",
            *groups,
            "model",
            "exponent",
            "ci_low",
            "ci_high",
            "prefactor",
            "r2",
            "weight",
            "n_points",
        ]
        frame = pd.DataFrame(rows, columns=shown if rows else [])
        if groups:
            frame["by"] = [", ".join(f"{k} = {v}" for k, v in object_of(by).items()) for by in frame["by"]]
        notes = Counter(curve.note for curve in curves if not curve.fits)
        said = [f"{counted(len(curves) - notes.total(), 'curve')} fitted"]
        said += [f"{number} without a fit ({note})" for note, number in notes.items()]
        return Table(f"{self.name}: {', '.join(said)}" if curves else f"{self.name} asks for no fit", frame)

    def report(self, path: str | os.PathLike[str] = "report.html", store: StoreUrl = None) -> ReportFile:
        """Write the report, one HTML file that opens from disk, and return it.

        Raises:
            OSError: it cannot be written.
        """
        from depthrate.orchestrator.api.report import ReportFiles, write_report
        from depthrate.storage.files.store import existing_store

        opened = existing_store(store)
        checked, _ = self.checked(opened)
        command = ["depthrate", "run", self.name, "--store", opened.url]
        write_report(checked, opened, ReportFiles(Path(path), None, command))
        return ReportFile(Path(path))

    def checked(self, store: Store) -> tuple[CheckedSweep, SearchView | None]:
        """Return its trials so far, and its search.

        Raises:
            ValueError: the sweep cannot run: a parameter, its task, its data.
        """
        from depthrate.orchestrator.launch.launch_plan import check_sweep
        from depthrate.orchestrator.search.proposals import with_search

        return with_search(check_sweep(self._spec), store)

    def _options(self, store: StoreUrl, given: Mapping[str, Any]) -> LaunchOptions:
        from depthrate.orchestrator.executors.registry import make_launch_options

        for old in given.keys() & LAUNCH_OPTIONS.keys():
            warn_renamed(f"option {old}", LAUNCH_OPTIONS[old], stacklevel=3)
        given = rename_launch_options(given)
        known = [option.name for option in run_options()]
        if unknown := given.keys() - known:
            raise TypeError(f"{', '.join(sorted(unknown))}: no option of run; there are {', '.join(known)}")
        url = None if store is None else os.fspath(store)
        return make_launch_options(self.name, {**given, "store": url})


def run_options() -> list[Option]:
    """Return the options that `Sweep.run` takes: those of `depthrate run` but for what a sweep in Python says itself."""
    from depthrate.orchestrator.executors.registry import launch_options

    return [option for option in launch_options() if option.name not in ("store", "set_")]


@accept_old_arguments
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
    """Return a part of a sweep as a sweep file has it: mappings for what are objects in Python."""
    if isinstance(part, list | tuple):
        return [_plain(each) for each in part]
    return part.spec() if hasattr(part, "spec") else part


def _values(values: list[Any]) -> str:
    unique = list(dict.fromkeys(map(str, values)))
    return ", ".join(unique[:6]) + (", ..." if len(unique) > 6 else "")
