"""How a sweep is getting on: the state of every planned trial, derived from commits and attempts."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.attempt import is_live
from storage.snapshot import Problem, Snapshot
from sweeps.trial import Trial

STATES = ("ok", "diverged", "running", "failed", "pending")
"""Committed (ok, diverged), in a live attempt, uncommitted after a failed attempt, or still to do."""


@dataclass(frozen=True)
class TrialState:
    """What became of one planned trial."""

    trial: Trial
    state: str
    row: dict[str, Any]
    """Its row of the trials table, if committed."""
    attempt: Mapping[str, Any]
    """The newest attempt that had it, if any."""


@dataclass(frozen=True)
class SweepStatus:
    """The states of a sweep's trials, and what is wrong with the store."""

    name: str
    trials: list[TrialState]
    problems: list[Problem]

    def counts(self) -> dict[str, int]:
        """Return how many trials are in each state."""
        counted = Counter(trial.state for trial in self.trials)
        return {state: counted[state] for state in STATES}

    def trial_hours(self) -> float:
        """Return the hours that the committed trials took."""
        return sum(trial.row.get("wall_s") or 0.0 for trial in self.trials) / 3600

    def errors(self) -> Counter[str]:
        """Return what failed trials failed with."""
        return Counter(str(trial.attempt.get("error")) for trial in self.trials if trial.state == "failed")

    def to_json(self) -> dict[str, Any]:
        """Return the status for programs."""
        return {
            "sweep": self.name,
            "num_trials": len(self.trials),
            **self.counts(),
            "trial_hours": self.trial_hours(),
            "errors": dict(self.errors()),
            "problems": [str(problem) for problem in self.problems],
        }


def sweep_status(
    name: str, trials: Sequence[Trial], snapshot: Snapshot, attempts: Iterable[Mapping[str, Any]]
) -> SweepStatus:
    """Derive the state of each trial; a trial is done if and only if its commit is in the store."""
    # time stamps as Python objects would import pandas: half a second for a table that shows none
    table = snapshot.trials.select([name for name in snapshot.trials.column_names if name != "committed_at"])
    rows = {row["trial_id"]: row for row in table.to_pylist()}
    planned = {trial.trial_id for trial in trials}
    newest: dict[str, Mapping[str, Any]] = {}
    live: set[str] = set()
    now = time.time()
    for state in attempts:
        running = is_live(state, now)
        for trial_id in planned.intersection(state.get("trial_ids") or ()):
            if state.get("started_at", 0) >= newest.get(trial_id, {}).get("started_at", 0):
                newest[trial_id] = state
            if running:
                live.add(trial_id)

    def state_of(trial_id: str) -> str:
        if trial_id in rows:
            return str(rows[trial_id]["status"])
        if trial_id in live:
            return "running"
        return "failed" if newest.get(trial_id, {}).get("state") == "failed" else "pending"

    states = [TrialState(t, state_of(t.trial_id), rows.get(t.trial_id, {}), newest.get(t.trial_id, {})) for t in trials]
    return SweepStatus(name, states, snapshot.problems)


def find_params(trials: Sequence[Trial], snapshot: Snapshot, prefix: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (trial_id, task, params) of the planned and committed trials whose identity begins with `prefix`."""
    found = {trial.trial_id: (trial.trial_id, trial.task, dict(trial.params)) for trial in trials}
    for row in snapshot.trials.select(["trial_id", "task", "params"]).to_pylist():
        found.setdefault(row["trial_id"], (row["trial_id"], row["task"], json.loads(row["params"])))
    return [entry for trial_id, entry in sorted(found.items()) if trial_id.startswith(prefix)]
