"""Newest logged values of running trials, as a table for `status`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.monitor.status import SweepStatus, TrialState
from depthrate.storage.attempts.live_curves import LivePack

MAX_TRIALS_SHOWN = 20
"""Maximum number of trials in the printed table. --json lists all trials."""
_LOGGED = ("loss", "accuracy")


@dataclass(frozen=True)
class RunningTrial:
    """Newest rows that one trial has logged."""

    sweep: str
    trial_id: str
    params: Mapping[str, Any]
    written_at: float
    last: Mapping[str, Mapping[str, Any]]
    """Split -> last row: step and logged values, without None."""

    @property
    def step(self) -> int:
        """Last step over all splits."""
        return max(int(row["step"]) for row in self.last.values())

    def to_json(self) -> dict[str, Any]:
        """Return the trial as JSON values."""
        return {"trial_id": self.trial_id, "written_at": self.written_at, "splits": self.last}


def running_trials(states: Sequence[SweepStatus], packs: Sequence[LivePack]) -> list[RunningTrial]:
    """Return the running trials of these sweeps that have logged values, sorted by sweep and decreasing step."""
    running = []
    for pack in packs:
        last: dict[str, dict[str, dict[str, Any]]] = {}
        for row in pack.rows.to_pylist():
            trial_id, split = row.pop("trial_id"), row.pop("split")
            last.setdefault(trial_id, {})[split] = {name: value for name, value in row.items() if value is not None}
        for state in states:
            for trial_id in last:
                if state.states.get(trial_id) is TrialState.RUNNING:
                    params = pack.params[trial_id]
                    running.append(RunningTrial(state.name, trial_id, params, pack.written_at, last[trial_id]))
    return sorted(running, key=lambda trial: (trial.sweep, -trial.step, trial.trial_id))


def running_table(trials: Sequence[RunningTrial]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and rows of the first trials: step, loss and accuracy, then the parameters that vary in a sweep."""
    first_trials = trials[:MAX_TRIALS_SHOWN]
    names = [(split, name) for name in _LOGGED for split in ("train", "test")]
    names = [(split, name) for split, name in names if any(name in t.last.get(split, {}) for t in first_trials)]
    first = {trial.sweep: trial.params for trial in reversed(first_trials)}
    differing = (name for t in first_trials for name, value in first[t.sweep].items() if t.params.get(name) != value)
    varying = list(dict.fromkeys(differing))
    sweep_column = ["sweep"] if len(first) > 1 else []
    logged = [name if split == "train" else f"{split} {name}" for split, name in names]
    columns = ["running", *sweep_column, "step", *logged, *varying]
    rows = [
        [trial.trial_id, *([trial.sweep] if sweep_column else []), trial.step]
        + [trial.last.get(split, {}).get(name) for split, name in names]
        + [trial.params.get(name) for name in varying]
        for trial in first_trials
    ]
    return columns, rows
