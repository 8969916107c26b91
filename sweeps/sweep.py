"""A sweep: a named set of trials, and the spec that a file or the store holds of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from depthrate.sweeps.expansion import expand
from depthrate.sweeps.figure_requests import FigureRequest
from depthrate.sweeps.fit_requests import FitRequest
from depthrate.sweeps.limits import MAX_TRIALS
from depthrate.sweeps.search import Search
from depthrate.sweeps.trial import Trial, canonical_json
from depthrate.tasks.loading import load_task
from depthrate.tasks.own.references import references_of_sweep
from depthrate.tasks.task import Engine, Task


@dataclass(frozen=True)
class Sweep:
    """A named set of trials, as written in a sweep file."""

    name: str
    task: str
    params: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Any] = field(default_factory=dict)
    zip: Mapping[str, Any] = field(default_factory=dict)
    grids: tuple[Mapping[str, Any], ...] = ()
    include: tuple[Mapping[str, Any], ...] = ()
    exclude: tuple[Mapping[str, Any], ...] = ()
    derive: Mapping[str, Any] = field(default_factory=dict)
    seeds: Any = None
    """A count n for seeds 0..n-1, a list of seeds, or null for the task's default."""
    search: Search | None = None
    """One study for each combination of the above."""
    fit: tuple[FitRequest, ...] = ()
    figures: tuple[FigureRequest, ...] = ()
    """What the report draws besides what it always does."""
    max_trials: int = MAX_TRIALS
    """More are refused before they are formed."""
    engine: Engine = Engine.AUTO
    """How its trials' steps are run; no parameter: a trial is the same with each."""

    @property
    def loaded_task(self) -> str:
        """The task as workers load it: by its name, and with the user's network and data where the sweep names some.

        Raises:
            TaskError: it names several networks or data sets.
        """
        references = references_of_sweep(self.task, self._parts(), Path.cwd())
        return self.task if references is None else references.text

    @property
    def code_files(self) -> list[Path]:
        """The user's files whose code is executed for it.

        Raises:
            TaskError: see `loaded_task`.
        """
        references = references_of_sweep(self.task, self._parts(), Path.cwd())
        where = self.task.rpartition(":")[0]
        return ([Path(where)] if where.endswith(".py") else []) + ([] if references is None else references.code_files)

    def _parts(self) -> list[Mapping[str, Any]]:
        return [self.params, self.grid, self.zip, *self.grids, *self.include]

    def spec(self) -> dict[str, Any]:
        """Return the sweep as the mapping a file would hold."""
        content: dict[str, Any] = {"name": self.name, "task": self.task}
        for key in ("params", "grid", "zip", "derive"):
            content[key] = dict(getattr(self, key))
        for key in ("grids", "include", "exclude"):
            content[key] = [dict(part) for part in getattr(self, key)]
        content["search"] = None if self.search is None else self.search.spec()
        content["fit"] = [request.spec() for request in self.fit]
        content["figures"] = [request.spec() for request in self.figures]
        content["engine"] = None if self.engine is Engine.AUTO else self.engine.value
        content["max_trials"] = None if self.max_trials == MAX_TRIALS else self.max_trials
        return {key: value for key, value in content.items() if value} | (
            {} if self.seeds is None else {"seeds": self.seeds}
        )

    def spec_hash(self) -> str:
        """Return the first 16 hex digits of sha256 over the canonical spec."""
        return hashlib.sha256(canonical_json(self.spec()).encode()).hexdigest()[:16]

    def load_task(self, files: Mapping[str, bytes] | None = None) -> Task:
        """Load the task this sweep names, as these files of its code have it or as it is now."""
        return load_task(self.loaded_task, files=files)

    def expand(self, task: Task | None = None) -> list[Trial]:
        """Return the trials, each once, checked against the task's schema; none for a search, whose trials come as it goes.

        Raises:
            SweepError: a parameter is unknown, of the wrong type, given twice, or a derived value cannot be formed.
        """
        return expand(self, task or self.load_task())
