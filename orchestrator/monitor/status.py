"""How a sweep is getting on: the state of every planned trial, derived from commits and attempts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Any

from depthrate.orchestrator.attempts.liveness import is_live, stalled_s
from depthrate.orchestrator.attempts.retry import error_pattern
from depthrate.storage.attempts.records import Record, RecordReader, read_records
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.commits.source import Problem
from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.sweeps.trial import Trial
from depthrate.tasks.interface import ResultStatus

STALLED_S = 900.0
"""An attempt that has come no further for so long is named."""


class TrialState(StrEnum):
    """How a trial of a sweep stands."""

    OK = ResultStatus.OK.value
    """Committed."""
    DIVERGED = ResultStatus.DIVERGED.value
    """Committed: that its loss stopped being finite is its result."""
    RUNNING = "running"
    """In a live attempt."""
    FAILED = "failed"
    """Not committed, and its newest attempt failed, or died of something that a new one may die of too."""
    PENDING = "pending"
    """Still to do."""


_TAKEN_AWAY = (FailureKind.CANCELLED, FailureKind.NODE_LOST, FailureKind.PREEMPTED)
"""Deaths that say nothing about the trial."""
_COMMITTED: dict[str, TrialState] = {"ok": TrialState.OK, "diverged": TrialState.DIVERGED}


@dataclass(frozen=True)
class SweepStatus:
    """The states of a sweep's trials, and what is wrong with the store."""

    name: str
    states: dict[str, TrialState]
    """Trial -> state."""
    attempts: dict[str, Record]
    """Uncommitted trial -> record of the newest attempt that had it."""
    committed_s: float
    """Seconds that the committed trials took."""
    problems: list[Problem]
    stalled: list[Record] = field(default_factory=list)
    """Attempts that run and have come no further for a while."""

    def counts(self) -> dict[str, int]:
        """Return how many trials are in each state."""
        counted = Counter(self.states.values())
        return {state.value: counted[state] for state in TrialState}

    def trial_hours(self) -> float:
        """Return the hours that the committed trials took."""
        return self.committed_s / 3600

    def error_of(self, trial_id: str) -> str | None:
        """Return what a failed trial failed with."""
        failed = self.states[trial_id] is TrialState.FAILED
        return str(self.attempts[trial_id]["error"]) if failed else None

    def errors(self) -> Counter[str]:
        """Return what failed trials failed with; of errors that differ only in the job, the first stands for all."""
        errors = [error for trial_id in self.states if (error := self.error_of(trial_id)) is not None]
        first = {error_pattern(error): error for error in reversed(errors)}
        return Counter(first[error_pattern(error)] for error in errors)

    def to_json(self) -> dict[str, Any]:
        """Return the status for programs."""
        return {
            "sweep": self.name,
            "num_trials": len(self.states),
            **self.counts(),
            "trial_hours": self.trial_hours(),
            "errors": dict(self.errors()),
            "stalled": [
                {name: each[name] for name in ("attempt_id", "host", "pid", "step", "num_steps")}
                | {"stalled_s": stalled_s(each)}
                for each in self.stalled
            ],
            "problems": [str(problem) for problem in self.problems],
        }


def sweep_status(
    name: str,
    trial_ids: Sequence[str],
    snapshot: Snapshot,
    store: Store,
    deaths: Iterable[Record] = (),
    reader: RecordReader | None = None,
) -> SweepStatus:
    """Derive the state of each trial; a trial is done if and only if its commit is in the store.

    `deaths` are records of attempts that nobody has written down; `reader` keeps what it read for who looks again.
    """
    columns = (snapshot.trials[column].to_pylist() for column in ("trial_id", "status", "wall_s"))
    committed = {trial_id: (status, wall_s or 0.0) for trial_id, status, wall_s in zip(*columns, strict=True)}
    left = [trial_id for trial_id in trial_ids if trial_id not in committed]
    newest, live, stalled, ignored = _attempts_of(left, store, snapshot, deaths, reader)

    def state_of(trial_id: str) -> TrialState:
        if trial_id in committed:  # with a status of a later version it is done all the same
            return _COMMITTED.get(committed[trial_id][0], TrialState.OK)
        if trial_id in live:
            return TrialState.RUNNING
        return TrialState.FAILED if trial_id in newest and _has_failed(newest[trial_id]) else TrialState.PENDING

    seconds = sum(committed[trial_id][1] for trial_id in trial_ids if trial_id in committed)
    states = {trial_id: state_of(trial_id) for trial_id in trial_ids}
    return SweepStatus(name, states, newest, seconds, [*snapshot.problems, *ignored], stalled)


def _has_failed(record: Record) -> bool:
    if record["state"] is AttemptState.LOST:
        return record["error_kind"] not in _TAKEN_AWAY
    return record["state"] is AttemptState.FAILED


def _attempts_of(
    trial_ids: Iterable[str],
    store: Store,
    snapshot: Snapshot,
    deaths: Iterable[Record],
    reader: RecordReader | None,
) -> tuple[dict[str, Record], set[str], list[Record], list[Problem]]:
    """Return the newest attempt of each trial, the trials that a live attempt has, those of which come no further, and the
    records that are none.
    """
    sought = set(trial_ids)
    newest: dict[str, Record] = {}
    live: set[str] = set()
    ignored: set[str] = set()
    stalled: list[Record] = []
    if not sought:
        return newest, live, [], []  # thousands of records need not be read to learn that all is done
    now = time.time()
    kept = read_records(store, snapshot, snapshot.finished_attempts(), ignored.add, reader)
    for record in chain(kept, deaths):
        running = is_live(record, now)
        if running and stalled_s(record) > STALLED_S and sought.intersection(record["trial_ids"]):
            stalled.append(record)
        for trial_id in sought.intersection(record["trial_ids"]):
            if trial_id not in newest or record["started_at"] >= newest[trial_id]["started_at"]:
                newest[trial_id] = record
            if running:
                live.add(trial_id)
    return (
        newest,
        live,
        stalled,
        [Problem(path, "is no record of an attempt; it is ignored") for path in sorted(ignored)],
    )


def find_params(trials: Sequence[Trial], snapshot: Snapshot, prefix: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (trial_id, task, params) of the planned and committed trials whose identity begins with `prefix`."""
    found = {trial.trial_id: (trial.trial_id, trial.task, dict(trial.params)) for trial in trials}
    for row in snapshot.trials.select(["trial_id", "task", "params"]).to_pylist():
        found.setdefault(row["trial_id"], (row["trial_id"], row["task"], parse_object(row["params"])))
    return [entry for trial_id, entry in sorted(found.items()) if trial_id.startswith(prefix)]
