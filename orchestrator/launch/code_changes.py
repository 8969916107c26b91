"""Detect changed code of a task before a launch, so that results of two versions never mix without the user's decision.

Each trial's record holds its code version. If committed trials of the sweep, their checkpoints or running attempts have another
version, the launch does not start until the user has decided which versions count.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from depthrate.orchestrator.attempts.liveness import is_live
from depthrate.orchestrator.code.diff import changed_files, short_diff
from depthrate.orchestrator.code.store import code_hash
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.options import LaunchOptions
from depthrate.orchestrator.launch.launch_plan import CheckedSweep, Plan
from depthrate.storage.attempts.records import read_loose_records
from depthrate.storage.catalog.code import read_code
from depthrate.storage.catalog.code_decisions import DecisionKind, Decisions, decide
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.json_objects import read_with_digest
from depthrate.storage.files.paths import sweep_of_path
from depthrate.storage.files.store import Store
from depthrate.tasks.interface import Task

NOTHING_STARTED = "nothing was started"


class CodeChangedError(ValueError):
    """A launch would mix results of different code."""


@dataclass(frozen=True)
class CodeMismatch:
    """What other versions of a task's source than today's have done of a sweep, without a decision that they count."""

    version: str
    """Today's."""
    committed: Mapping[str, list[str]]
    """Version -> committed trials."""
    half_done: Mapping[str, list[str]] = field(default_factory=dict)
    """Version -> trials of which there is a checkpoint."""
    underway: Mapping[str, str] = field(default_factory=dict)
    """What runs or waits, in words -> version."""
    num_unknown: int = 0
    """Committed trials whose source was not recorded."""
    accepted: frozenset[str] = frozenset()
    """Other versions that were said to count as today's."""

    @property
    def versions(self) -> list[str]:
        """All of them, the one with the most trials first."""
        counted = Counter({version: len(trials) for version, trials in self.committed.items()})
        others = [version for version in (*self.half_done, *self.underway.values()) if version not in counted]
        return list(dict.fromkeys([version for version, _ in counted.most_common()] + others))


def find_code_mismatch(checked: CheckedSweep, snapshot: Snapshot) -> CodeMismatch | None:
    """Compare today's source with that of a sweep's committed trials; None for a task that comes with depthrate."""
    version = code_hash(checked.task)
    if version is None:
        return None
    planned = {trial.trial_id for trial in checked.trials}
    committed: dict[str, list[str]] = {}
    accepted, num_unknown = set(), 0
    columns = (snapshot.trials[name].to_pylist() for name in ("trial_id", "code_hash"))
    for trial_id, code in zip(*columns, strict=True):
        if trial_id not in planned or code == version:
            continue
        if code is None:
            num_unknown += 1
        elif counts_as(snapshot.decisions, trial_id, code, version):
            accepted.add(code)
        else:
            committed.setdefault(code, []).append(trial_id)
    for trial_id in planned & snapshot.decisions.of_trial.keys():
        decision = snapshot.decisions.of_trial[trial_id]
        if decision.kind is DecisionKind.ACCEPT and version in decision.counting:
            accepted |= {each for each in decision.counting if each not in (None, version)}
    return CodeMismatch(version, committed, num_unknown=num_unknown, accepted=frozenset(accepted))


def counts_as(decisions: Decisions, trial_id: str, code: str, version: str) -> bool:
    """Return whether a user decided that a trial's results of version `code` count as those of `version`."""
    decision = decisions.of_trial.get(trial_id)
    return decision is not None and decision.kind is DecisionKind.ACCEPT and {code, version} <= decision.counting


def _runs_anew(decisions: Decisions, trial_id: str, version: str) -> bool:
    """Whether it was decided that of a trial only what this version gives counts."""
    decision = decisions.of_trial.get(trial_id)
    return decision is not None and decision.kind is DecisionKind.RERUN and version in decision.counting


def other_code_of_launch(plan: Plan, store: Store, submitted: Mapping[str, str | None]) -> CodeMismatch | None:
    """Compare today's source also with that of checkpoints, of what runs, and of what was submitted (attempt -> version)."""
    found = find_code_mismatch(plan.checked, plan.snapshot)
    if found is None:
        return None
    version, decisions = found.version, plan.snapshot.decisions
    open_trials = {trial.trial_id for trial in plan.checked.trials} - plan.done

    def others(code: object, trial_ids: Sequence[str]) -> list[str]:
        """Return those of the trials still to do for which this code is another one."""
        if not isinstance(code, str) or code == version:
            return []
        return [t for t in trial_ids if t in open_trials and not counts_as(decisions, t, code, version)]

    half_done: dict[str, list[str]] = {}
    for members in _checkpoints(store):
        trial_ids, code = members.get("trial_ids"), members.get("code_hash")
        left = others(code, trial_ids) if isinstance(trial_ids, list) else []
        if left := [trial_id for trial_id in left if not _runs_anew(decisions, trial_id, version)]:
            half_done.setdefault(str(code), []).extend(left)
    underway: dict[str, str] = {}
    for attempt_id, pack in plan.in_flight.items():
        if others(submitted.get(attempt_id), pack.trial_ids):
            underway[f"submitted pack {pack.pack_id}"] = str(submitted[attempt_id])
    ours = [path for path in plan.snapshot.attempts if sweep_of_path(path) == plan.checked.sweep.name]
    now = time.time()
    for _, record in read_loose_records(store, ours) if open_trials else ():
        if is_live(record, now) and others(record["code_hash"], record["trial_ids"]):
            underway[f"attempt {record['attempt_id']} on {record['host']}, pid {record['pid']}"] = str(
                record["code_hash"]
            )
    return CodeMismatch(found.version, found.committed, half_done, underway, found.num_unknown, found.accepted)


def _checkpoints(store: Store) -> list[dict[str, object]]:
    paths = [path for path in store.list("checkpoints") if path.endswith("/pack.json")]
    found = []
    for _, content in store.read_many(paths):
        try:
            found += [] if isinstance(content, OSError) else [read_with_digest(content)]
        except ValueError:
            continue
    return found


def settle(
    plan: Plan, store: Store, submitted: Mapping[str, str | None], options: LaunchOptions, *, again: str
) -> bool:
    """Let a launch begin whose code is that of what is there, or about which it is decided what counts.

    Returns whether a decision was written, so that the plan is another one now. `again` is the command that goes on.

    Raises:
        CodeChangedError: it is another one, and nothing is decided: what changed, and the ways to go on.
        OSError: the decision could not be written.
    """
    found, rerun = other_code_of_launch(plan, store, submitted), options.rerun
    if found is None:
        return False
    if not found.versions and not (rerun and (found.num_unknown or found.accepted)):
        return False
    if not (rerun or options.keep_results) or (rerun and found.underway):
        raise CodeChangedError(describe(found, plan.checked, store, again, NOTHING_STARTED))
    planned = [trial.trial_id for trial in plan.checked.trials]
    others: set[str | None] = {*found.versions, *found.accepted, *([None] if found.num_unknown else [])}
    kind = DecisionKind.RERUN if rerun else DecisionKind.ACCEPT
    counting = {found.version} if rerun else {found.version, None, *others}
    decide(store, plan.snapshot.decisions, kind, plan.checked.sweep.name, found.version, counting, planned)
    return True


def describe(found: CodeMismatch, checked: CheckedSweep, store: Store, again: str, before: str) -> str:
    """Say what another version of the code has done, what has changed since, and the three ways on, after `before`."""
    assert checked.task.code is not None
    task, now = checked.task, checked.task.code.contents
    done = sum(map(len, found.committed.values()))
    parts = [f"{done} of {counted(len(checked.trials), 'trial is', 'trials are')} committed"] if done else []
    parts += (
        [f"{counted(sum(map(len, found.half_done.values())), 'trial is', 'trials are')} half done"]
        if found.half_done
        else []
    )
    parts += [f"{counted(len(found.underway), 'pack is', 'packs are')} on their way"] if found.underway else []
    lines = [f"the code of task {task.name!r} has changed: {', '.join(parts)}, run by other code than it is now"]
    for version in found.versions[:3]:
        old = read_code(store, version)
        if old is None:
            lines.append(f"  version {version[:12]}: its source is not in the store")
            continue
        lines.append(f"  since version {version[:12]}: {'; '.join(changed_files(old, now))}")
        lines += [f"    {line}" for line in short_diff(old, now)]
    lines += [f"  {what}" for what in list(found.underway)[:5]]
    lines.append(f"{before}; the ways on:")
    if found.underway:
        lines.append(f"  let what is on its way end, or stop it: depthrate cancel {checked.sweep.name}")
    else:
        lines.append(f"  run those trials again; only what the new code gives counts then: {again} --rerun")
    lines.append(f"  keep them, because the change alters no result: {again} --keep-results")
    lines.append(f"  keep both, as different trials: {task.distinguished_by or _raised(task)}")
    return "\n".join(lines)


def _raised(task: Task) -> str:
    return f"raise the version, @depthrate.task(version={task.version + 1}) in {task.defined_at}"


def mixed_sentence(checked: CheckedSweep, snapshot: Snapshot) -> str | None:
    """Say that a sweep's committed trials were run by several versions of the code, or by another one than today's."""
    planned = {trial.trial_id for trial in checked.trials}
    columns = (snapshot.trials[name].to_pylist() for name in ("trial_id", "code_hash"))
    counted = Counter(code for trial_id, code in zip(*columns, strict=True) if trial_id in planned and code is not None)
    if len(counted) < 2:
        return None
    versions = ", ".join(f"{count} by {version[:12]}" for version, count in counted.most_common(5))
    return (
        f"the trials of {checked.sweep.name} were run by {len(counted)} versions of the code of {checked.task.name!r}: "
        f'{versions}; what differs: depthrate diff TRIAL TRIAL, which: depthrate query "select code_hash, trial_id from trials"'
    )


def unknown_sentence(num_unknown: int) -> str:
    """Say that committed trials are of code that nobody recorded."""
    return f"{num_unknown} committed trials are from before code was recorded: whether it has changed is not known"
