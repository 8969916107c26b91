"""Status of a sweep: the state of every planned trial, derived from commits and attempts."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Any

from depthrate.orchestrator.attempts.liveness import STALLED_AFTER_S, is_live, stalled_s
from depthrate.orchestrator.attempts.retry_policy import error_pattern
from depthrate.storage.attempts.records import Record, RecordReader, read_records
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.commits.visible_commits import Problem
from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.sweeps.trial import Trial
from depthrate.tasks.interface import ResultStatus


class TrialState(StrEnum):
    """State of a trial of a sweep."""

    OK = ResultStatus.OK.value
    """Committed."""
    DIVERGED = ResultStatus.DIVERGED.value
    """Committed, with a loss that became infinite or NaN."""
    RUNNING = "running"
    """The trial is part of a live attempt."""
    FAILED = "failed"
    """The trial is not committed, and its newest attempt failed for a reason that may recur."""
    PENDING = "pending"
    """The trial is not committed, not running and has not failed."""


_NEUTRAL_KINDS = (FailureKind.CANCELLED, FailureKind.NODE_LOST, FailureKind.PREEMPTED)
"""Failure kinds that do not concern the trial."""
_COMMITTED: dict[str, TrialState] = {"ok": TrialState.OK, "diverged": TrialState.DIVERGED}


@dataclass(frozen=True)
class SweepStatus:
    """The states of a sweep's trials, and problems with the store."""

    name: str
    states: dict[str, TrialState]
    """Trial -> state."""
    attempts: dict[str, Record]
    """Uncommitted trial -> record of its newest attempt."""
    committed_s: float
    """Seconds of training of the committed trials."""
    problems: list[Problem]
    stalled: list[Record] = field(default_factory=list)
    """Running attempts without progress for `STALLED_AFTER_S`."""

    @cached_property
    def unfinished(self) -> frozenset[str]:
        """Trials that are running or pending."""
        open_states = (TrialState.RUNNING, TrialState.PENDING)
        return frozenset(trial_id for trial_id, state in self.states.items() if state in open_states)

    def counts(self) -> dict[str, int]:
        """Map each state to its number of trials."""
        return {state.value: self._counts[state] for state in TrialState}

    @property
    def num_done(self) -> int:
        """Number of committed trials. A failed trial is not done, and `run` tries it again."""
        return self._counts[TrialState.OK] + self._counts[TrialState.DIVERGED]

    @cached_property
    def _counts(self) -> Counter[TrialState]:
        return Counter(self.states.values())

    def trial_hours(self) -> float:
        """Return the training hours of the committed trials."""
        return self.committed_s / 3600

    def error_of(self, trial_id: str) -> str | None:
        """Return the error of a failed trial, or None."""
        failed = self.states[trial_id] is TrialState.FAILED
        return str(self.attempts[trial_id]["error"]) if failed else None

    def errors(self) -> Counter[str]:
        """Map errors to numbers of failed trials. Errors that differ only in the job are counted under the first of them."""
        if not self._counts[TrialState.FAILED]:
            return Counter()
        failed = [trial_id for trial_id, state in self.states.items() if state is TrialState.FAILED]
        errors = [error for trial_id in failed if (error := self.error_of(trial_id)) is not None]
        first = {error_pattern(error): error for error in reversed(errors)}
        return Counter(first[error_pattern(error)] for error in errors)

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        return {
            "sweep": self.name,
            "num_trials": len(self.states),
            "num_done": self.num_done,
            **self.counts(),
            "trial_hours": self.trial_hours(),
            "errors": dict(self.errors()),
            "stalled": [
                {name: record[name] for name in ("attempt_id", "host", "pid", "step", "num_steps")}
                | {"stalled_s": stalled_s(record)}
                for record in self.stalled
            ],
            "problems": [str(problem) for problem in self.problems],
        }


def sweep_status(
    name: str,
    trial_ids: Sequence[str],
    snapshot: Snapshot,
    store: Store,
    lost_records: Iterable[Record] = (),
    reader: RecordReader | None = None,
) -> SweepStatus:
    """Derive the state of each trial. A trial is done if and only if its commit is in the store.

    Args:
        lost_records: Records of lost attempts that the store does not have yet.
        reader: Cache of records for repeated calls.
    """
    ok, pending = TrialState.OK, TrialState.PENDING  # there may be a million trials, and each look-up takes time
    states, committed_s = dict.fromkeys(trial_ids, pending), 0.0
    columns = (snapshot.trials[column].to_pylist() for column in ("trial_id", "status", "wall_s"))
    for trial_id, status, wall_s in zip(*columns, strict=True):
        if trial_id in states:
            states[trial_id] = _COMMITTED.get(status, ok)  # of a later version: ok
            committed_s += wall_s or 0.0
    any_pending = pending in states.values()
    uncommitted = [trial_id for trial_id, state in states.items() if state is pending] if any_pending else []
    newest, live, stalled, ignored = _classify_attempts(uncommitted, store, snapshot, lost_records, reader)
    for trial_id in uncommitted:
        if trial_id in live:
            states[trial_id] = TrialState.RUNNING
        elif trial_id in newest and _has_failed(newest[trial_id]):
            states[trial_id] = TrialState.FAILED
    return SweepStatus(name, states, newest, committed_s, [*snapshot.problems, *ignored], stalled)


def _has_failed(record: Record) -> bool:
    if record["state"] is AttemptState.LOST:
        return record["error_kind"] not in _NEUTRAL_KINDS
    return record["state"] is AttemptState.FAILED


def _classify_attempts(
    trial_ids: Iterable[str],
    store: Store,
    snapshot: Snapshot,
    lost_records: Iterable[Record],
    reader: RecordReader | None,
) -> tuple[dict[str, Record], set[str], list[Record], list[Problem]]:
    """Return each trial's newest attempt, the trials of live attempts, the stalled attempts, and the invalid records."""
    wanted = set(trial_ids)
    newest: dict[str, Record] = {}
    live: set[str] = set()
    ignored: set[str] = set()
    stalled: list[Record] = []
    if not wanted:
        return newest, live, [], []  # all trials are committed, so no record needs to be read
    now = time.time()
    stored = read_records(store, snapshot, snapshot.finished_attempts(), ignored.add, reader)
    for record in chain(stored, lost_records):
        running = is_live(record, now)
        if running and stalled_s(record) > STALLED_AFTER_S and wanted.intersection(record["trial_ids"]):
            stalled.append(record)
        for trial_id in wanted.intersection(record["trial_ids"]):
            if trial_id not in newest or record["started_at"] >= newest[trial_id]["started_at"]:
                newest[trial_id] = record
            if running:
                live.add(trial_id)
    return (
        newest,
        live,
        stalled,
        [Problem(path, "is not a valid attempt record and is ignored") for path in sorted(ignored)],
    )


def find_params(trials: Sequence[Trial], snapshot: Snapshot, prefix: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (trial_id, task, params) of the planned and committed trials whose id starts with `prefix`."""
    entries = {trial.trial_id: (trial.trial_id, trial.task, dict(trial.params)) for trial in trials}
    for row in snapshot.trials.select(["trial_id", "task", "params"]).to_pylist():
        entries.setdefault(row["trial_id"], (row["trial_id"], row["task"], parse_object(row["params"])))
    return [entry for trial_id, entry in sorted(entries.items()) if trial_id.startswith(prefix)]
