"""What the trials that run have logged last, as a table for `status`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.monitor.status import SweepStatus, TrialState
from depthrate.storage.attempts.live_curves import LivePack

MAX_TRIALS_SHOWN = 20
"""Trials that are printed; --json has all."""
_LOGGED = ("loss", "accuracy")


@dataclass(frozen=True)
class RunningTrial:
    """The newest rows that one trial has logged."""

    sweep: str
    trial_id: str
    params: Mapping[str, Any]
    written_at: float
    last: Mapping[str, Mapping[str, Any]]
    """Split -> its last row: step and what was logged, without nulls."""

    @property
    def step(self) -> int:
        """The last step of any split."""
        return max(int(row["step"]) for row in self.last.values())

    def to_json(self) -> dict[str, Any]:
        """Return the trial for programs."""
        return {"trial_id": self.trial_id, "written_at": self.written_at, "splits": self.last}


def running_trials(states: Sequence[SweepStatus], packs: Sequence[LivePack]) -> list[RunningTrial]:
    """Return the trials of these sweeps that run and have logged something, those that are furthest first."""
    found = []
    for pack in packs:
        last: dict[str, dict[str, dict[str, Any]]] = {}
        for row in pack.rows.to_pylist():
            trial_id, split = row.pop("trial_id"), row.pop("split")
            last.setdefault(trial_id, {})[split] = {name: value for name, value in row.items() if value is not None}
        for state in states:
            for trial_id in (each for each in last if state.states.get(each) is TrialState.RUNNING):
                own = last[trial_id]
                found.append(RunningTrial(state.name, trial_id, pack.params[trial_id], pack.written_at, own))
    return sorted(found, key=lambda each: (each.sweep, -each.step, each.trial_id))


def running_table(trials: Sequence[RunningTrial]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and rows of the first trials: step, loss and accuracy, then the parameters that differ in a sweep."""
    shown = trials[:MAX_TRIALS_SHOWN]
    names = [(split, name) for name in _LOGGED for split in ("train", "test")]
    names = [(split, name) for split, name in names if any(name in each.last.get(split, {}) for each in shown)]
    first = {each.sweep: each.params for each in reversed(shown)}
    differ = (name for each in shown for name, value in first[each.sweep].items() if each.params.get(name) != value)
    varying = list(dict.fromkeys(differ))
    of_sweep = ["sweep"] if len(first) > 1 else []
    logged = [name if split == "train" else f"{split} {name}" for split, name in names]
    columns = ["running", *of_sweep, "step", *logged, *varying]
    rows = [
        [each.trial_id, *([each.sweep] if of_sweep else []), each.step]
        + [each.last.get(split, {}).get(name) for split, name in names]
        + [each.params.get(name) for name in varying]
        for each in shown
    ]
    return columns, rows
