"""Define exporters and the sweep that they export.

A package registers an `Exporter` by name in the entry-point group `depthrate.exporters`. `depthrate export` then has a flag
of that name.
"""

import heapq
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from operator import itemgetter, methodcaller
from typing import Any

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.launch.launch_plan import CheckedSweep
from depthrate.orchestrator.search.search_view import SearchView
from depthrate.storage.files.store import Store
from depthrate.storage.query.results import Results
from depthrate.storage.tables.custom_columns import quoted
from depthrate.sweeps.trial import varying_parameters
from depthrate.tasks.plugins import load_plugin, load_plugins

GROUP = "depthrate.exporters"
"""Entry-point group of exporters."""
MAX_RUN_NAME = 120
"""Maximum number of characters of a run's name."""
Scalars = tuple[int, Mapping[str, float]]
"""A step, and the value of each tag."""


@dataclass(frozen=True)
class CommittedRun:
    """One committed trial as a run, with its parameters and finite numbers by step."""

    trial_id: str
    attempt_id: str
    name: str
    """Varying parameters, as in `depth=3,seed=0`."""
    params: Mapping[str, Any]
    ended_at: float
    """Time of the commit, in seconds since 1970."""
    steps: list[Scalars]
    """Numbers by step, tagged `curves/loss`, `metrics/nc1`, or `curves/loss/test` for a test split."""


@dataclass(frozen=True)
class ExportedSweep:
    """A sweep with its committed results."""

    checked: CheckedSweep
    search: SearchView | None
    store: Store

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.checked.sweep.name

    @cached_property
    def results(self) -> Results:
        """Committed results of its trials, for SQL."""
        trial_ids = self.checked.trials.ids
        return results_of(self.store, self.checked.task).only(trial_ids, self.name)

    def runs(self) -> Iterator[CommittedRun]:
        """Return the committed trials with their numbers, which are read trial by trial.

        Raises:
            UsageError: No trial is committed.
        """
        query = "select trial_id, attempt_id, epoch(committed_at) from trials order by trial_id"
        rows = self.results.sql(query).fetchall()
        if not rows:
            raise UsageError(f"sweep {self.name!r} has no committed trials. Run it first.")
        return self._with_steps(rows)

    def _with_steps(self, rows: Sequence[tuple[str, str, float]]) -> Iterator[CommittedRun]:
        trials, names = {trial.trial_id: trial for trial in self.checked.trials}, self._run_names()
        measured = _scalars_of_trials(self.results)
        measured_id, steps = next(measured, ("", []))
        for trial_id, attempt_id, at in rows:
            own: list[Scalars] = []
            if measured_id == trial_id:
                own = steps
                measured_id, steps = next(measured, ("", []))
            yield CommittedRun(trial_id, attempt_id, names[trial_id], trials[trial_id].params, at, own)

    def _run_names(self) -> dict[str, str]:
        trials = self.checked.trials
        varying = varying_parameters(trials) if trials else []
        names = {}
        for trial in trials:
            text = ",".join(f"{name}={trial.params[name]}" for name in varying) or trial.trial_id
            safe = re.sub(r"[^A-Za-z0-9_.,=+-]+", "-", text)
            is_short = len(safe) <= MAX_RUN_NAME
            names[trial.trial_id] = safe if is_short else f"{safe[:MAX_RUN_NAME]}-{trial.trial_id}"
        return names


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """Exports a sweep to another program."""

    name: str
    """Name of its flag: `wandb` gives `--wandb`."""
    doc: str
    """Help text of its flag."""
    export: Callable[[ExportedSweep, str], str]
    """Function that exports a sweep to a folder or URL and returns the line to print. Raises UsageError if writing fails.
    """
    takes: Callable[[str], bool] = lambda place: False
    """Whether it handles the given folder or URL if no flag is set."""
    library: str = ""
    """Required library, as named in messages."""
    install: str = ""
    """Command that installs the library."""

    def run(self, sweep: ExportedSweep, place: str | None) -> str:
        """Copy a sweep, and return the line to print.

        Raises:
            UsageError: The place is missing or not writable, there is nothing to copy, or the library is not installed.
        """
        if place is None:
            raise UsageError(f"--{self.name} needs a folder or URL: depthrate export SWEEP PLACE --{self.name}")
        try:
            return self.export(sweep, place)
        except ImportError as error:
            raise UsageError(f"--{self.name} needs {self.library} ({error}). Install it: {self.install}") from None


@cache
def exporters() -> dict[str, Exporter]:
    """Return the registered exporters by name. A faulty exporter of another package is logged and skipped."""
    return load_plugins(GROUP, lambda name: load_plugin(GROUP, name, Exporter))


def select_exporter(names: Sequence[str], place: str | None) -> Exporter:
    """Return the exporter with a name or, without a name, for a place.

    Raises:
        UsageError: Several names are given, or no name is given and no exporter handles the place.
    """
    if len(names) > 1:
        raise UsageError(f"{' and '.join(f'--{name}' for name in names)} are mutually exclusive. Give one of them.")
    if names:
        return exporters()[names[0]]
    for exporter in exporters().values():
        if place is not None and exporter.takes(place):
            return exporter
    raise UsageError(f"export needs a folder or URL, with or without an exporter (--{', --'.join(exporters())})")


def _scalars_of_trials(results: Results) -> Iterator[tuple[str, list[Scalars]]]:
    """Yield each trial's finite numbers by step, in the order of the trials' ids."""
    tables = _rows(results, "curves", "true"), _rows(results, "metrics", "is_last")
    rows = heapq.merge(*tables, key=itemgetter(0, 1))
    for trial_id, trial_rows in itertools.groupby(rows, key=itemgetter(0)):
        steps: list[Scalars] = []
        for step, at_step in itertools.groupby(trial_rows, key=itemgetter(1)):
            values = {tag: value for _, _, tagged in at_step for tag, value in tagged.items()}
            if values:
                steps.append((step, values))
        yield trial_id, steps


def _rows(results: Results, table: str, condition: str) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Yield trial_id, step and the finite numbers by tag, in order."""
    relation = results.sql(f"select * from {table} limit 0")
    numbers = [n for n, kind in zip(relation.columns, relation.types, strict=True) if str(kind) == "DOUBLE"]
    listed = "".join(f", {quoted(name)}" for name in numbers)
    chosen = f"from {table} where {condition} and step is not null order by trial_id, step"
    relation = results.sql(f"select trial_id, step, split{listed} {chosen}")
    batches = (
        zip(*map(methodcaller("to_pylist"), batch.columns), strict=True) for batch in relation.to_arrow_reader(10_000)
    )
    for trial_id, step, split, *values in itertools.chain.from_iterable(batches):
        ending = "" if split in (None, "train") else f"/{split}"
        named = zip(numbers, values, strict=True)
        yield trial_id, step, {f"{table}/{n}{ending}": v for n, v in named if v is not None and math.isfinite(v)}
