"""Detect changed task code before a launch, so that results of two versions never mix without the user's decision.

Each trial's record contains its code version. If committed trials of the sweep, checkpoints or running attempts have another
version, the launch does not start until the user has decided which versions count.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from depthrate.errors import InputError
from depthrate.orchestrator.attempts.liveness import is_live
from depthrate.orchestrator.attempts.options import LaunchOptions
from depthrate.orchestrator.code.diff import changed_files, short_diff
from depthrate.orchestrator.code.store import code_hash
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import SubmittedPack
from depthrate.orchestrator.launch.launch_plan import CheckedSweep, Plan, read_checkpoints
from depthrate.storage.attempts.records import read_loose_records, records_of_attempts
from depthrate.storage.catalog.code import read_code
from depthrate.storage.catalog.code_decisions import DecisionKind, Decisions, decide
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.paths import sweep_of_path
from depthrate.storage.files.store import Store
from depthrate.tasks.interface import Engine


class CodeChangedError(InputError):
    """A launch would mix results of different code."""


@dataclass(frozen=True)
class CodeMismatch:
    """Work of a sweep that was done by other versions of the task's code, without a decision that these versions count."""

    version: str
    """Current version."""
    committed: Mapping[str, list[str]]
    """Version -> committed trials."""
    checkpointed: Mapping[str, list[str]] = field(default_factory=dict)
    """Version -> trials with a checkpoint."""
    in_flight: Mapping[str, str] = field(default_factory=dict)
    """Description of a running or queued pack -> version."""
    num_unknown: int = 0
    """Committed trials whose code was not recorded."""
    accepted: frozenset[str] = frozenset()
    """Other versions that count as the current version by the user's decision."""

    @property
    def versions(self) -> list[str]:
        """All other versions, starting with the version that has the most committed trials."""
        by_version = Counter({version: len(trials) for version, trials in self.committed.items()})
        others = [version for version in (*self.checkpointed, *self.in_flight.values()) if version not in by_version]
        return list(dict.fromkeys([version for version, _ in by_version.most_common()] + others))


def find_code_mismatch(checked: CheckedSweep, snapshot: Snapshot) -> CodeMismatch | None:
    """Compare the task's current code with the committed trials' code. Return None for a built-in task."""
    version = code_hash(checked.task)
    if version is None:
        return None
    planned = set(checked.trials.ids)
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
    for trial_id in planned & snapshot.decisions.by_trial.keys():
        decision = snapshot.decisions.by_trial[trial_id]
        if decision.kind is DecisionKind.ACCEPT and version in decision.counting:
            accepted |= {other for other in decision.counting if other not in (None, version)}
    return CodeMismatch(version, committed, num_unknown=num_unknown, accepted=frozenset(accepted))


def counts_as(decisions: Decisions, trial_id: str, code: str, version: str) -> bool:
    """Return whether the user decided that a trial's results of version `code` count as results of `version`."""
    decision = decisions.by_trial.get(trial_id)
    return decision is not None and decision.kind is DecisionKind.ACCEPT and {code, version} <= decision.counting


def _is_to_rerun(decisions: Decisions, trial_id: str, version: str) -> bool:
    """Return whether the user decided that only results of `version` count for this trial."""
    decision = decisions.by_trial.get(trial_id)
    return decision is not None and decision.kind is DecisionKind.RERUN and version in decision.counting


def find_launch_mismatch(plan: Plan, store: Store, submitted: Mapping[str, SubmittedPack]) -> CodeMismatch | None:
    """Compare the current code with the code of committed trials, checkpoints, running attempts and submitted jobs.

    Args:
        submitted: Attempt -> pack of the jobs that a scheduler still has.
    """
    mismatch = find_code_mismatch(plan.checked, plan.snapshot)
    if mismatch is None:
        return None
    version, decisions = mismatch.version, plan.snapshot.decisions
    open_trials = set(plan.checked.trials.ids) - plan.done

    def with_other_code(code: object, trial_ids: Sequence[str]) -> list[str]:
        """Return the pending trials whose code version is not `code`."""
        if not isinstance(code, str) or code == version:
            return []
        return [t for t in trial_ids if t in open_trials and not counts_as(decisions, t, code, version)]

    checkpointed: dict[str, list[str]] = {}
    for members in read_checkpoints(store).values():
        code = members.get("code_hash")
        other_ids = with_other_code(code, members["trial_ids"])
        if other_ids := [trial_id for trial_id in other_ids if not _is_to_rerun(decisions, trial_id, version)]:
            checkpointed.setdefault(str(code), []).extend(other_ids)
    in_flight: dict[str, str] = {}
    for attempt_id, pack in plan.in_flight.items():
        if with_other_code(submitted[attempt_id].code_hash, pack.trial_ids):
            in_flight[f"submitted pack {pack.pack_id}"] = str(submitted[attempt_id].code_hash)
    paths = [path for path in plan.snapshot.attempts if sweep_of_path(path) == plan.checked.sweep.name]
    now = time.time()
    for _, record in read_loose_records(store, paths) if open_trials else ():
        if is_live(record, now) and with_other_code(record["code_hash"], record["trial_ids"]):
            description = f"attempt {record['attempt_id']} on {record['host']}, pid {record['pid']}"
            in_flight[description] = str(record["code_hash"])
    return replace(mismatch, checkpointed=checkpointed, in_flight=in_flight)


def resolve_code_change(
    plan: Plan, store: Store, submitted: Mapping[str, SubmittedPack], options: LaunchOptions, *, command: str
) -> bool:
    """Check that the code has not changed, or write the user's decision from `options`.

    Args:
        submitted: Attempt -> pack of the jobs that a scheduler still has.
        command: The command that repeats this launch.
    Returns: Whether a decision was written, in which case the plan must be made again.
    Raises:
        CodeChangedError: If the code has changed and nothing is decided. The message lists the changes and the choices.
        OSError: If the decision cannot be written.
    """
    mismatch, rerun = find_launch_mismatch(plan, store, submitted), options.rerun
    if mismatch is None:
        return False
    if not mismatch.versions and not (rerun and (mismatch.num_unknown or mismatch.accepted)):
        return False
    if not (rerun or options.keep_results) or (rerun and mismatch.in_flight):
        raise CodeChangedError(mismatch_message(mismatch, plan.checked, store, command, "nothing was started"))
    planned = plan.checked.trials.ids
    others: set[str | None] = {*mismatch.versions, *mismatch.accepted, *([None] if mismatch.num_unknown else [])}
    kind = DecisionKind.RERUN if rerun else DecisionKind.ACCEPT
    counting = {mismatch.version} if rerun else {mismatch.version, None, *others}
    decide(store, plan.snapshot.decisions, kind, plan.checked.sweep.name, mismatch.version, counting, planned)
    return True


def mismatch_message(
    mismatch: CodeMismatch, checked: CheckedSweep, store: Store, command: str, consequence: str
) -> str:
    """Describe the results of other code versions, the changes since, and the user's choices.

    Args:
        command: The command that repeats the launch.
        consequence: The effect on the failing command, for example "nothing was started".
    """
    assert checked.task.code is not None
    task, now = checked.task, checked.task.code.contents
    num_committed = sum(map(len, mismatch.committed.values()))
    num_checkpointed = sum(map(len, mismatch.checkpointed.values()))
    parts = [f"{num_committed} of {counted(len(checked.trials), 'trial')} committed"] if num_committed else []
    parts += [f"{counted(num_checkpointed, 'trial')} checkpointed"] if num_checkpointed else []
    parts += [f"{counted(len(mismatch.in_flight), 'pack')} in flight"] if mismatch.in_flight else []
    lines = [f"the code of task {task.name!r} has changed. Done with other versions: {', '.join(parts)}."]
    for version in mismatch.versions[:3]:
        old = read_code(store, version)
        if old is None:
            lines.append(f"  version {version[:12]}: its code is not in the store")
            continue
        lines.append(f"  since version {version[:12]}: {', '.join(changed_files(old, now))}")
        lines += [f"    {line}" for line in short_diff(old, now)]
    lines += [f"  {description}" for description in list(mismatch.in_flight)[:5]]
    lines.append(f"{consequence}. Choose one:")
    if mismatch.in_flight:
        lines.append(f"  wait for the packs in flight, or cancel them: depthrate cancel {checked.sweep.name}")
    else:
        lines.append(f"  rerun these trials with the new code: {command} --rerun")
    lines.append(f"  keep these results (the change does not affect them): {command} --keep-results")
    raise_version = f"raise the version, @depthrate.task(version={task.version + 1}) in {task.defined_at}"
    lines.append(f"  keep both, as different trials: {task.distinguished_by or raise_version}")
    return "\n".join(lines)


def mixtures(checked: CheckedSweep, store: Store, snapshot: Snapshot) -> tuple[str, ...]:
    """Return warnings that the trials of a sweep mix code versions or engines, or are of an earlier version of their task."""
    sentences = [_mixed_code_message(checked, snapshot), _earlier_version_message(checked)]
    if checked.trials and checked.task.engine(checked.trials[0].params, Engine.EAGER, "cpu") is not None:
        sentences.append(_engines_sentence(checked.sweep.name, checked.trials.ids, store, snapshot))
    return tuple(sentence for sentence in sentences if sentence is not None)


def _mixed_code_message(checked: CheckedSweep, snapshot: Snapshot) -> str | None:
    """Describe the code versions of a sweep's committed trials. Return None for fewer than two."""
    planned = set(checked.trials.ids)
    columns = (snapshot.trials[name].to_pylist() for name in ("trial_id", "code_hash"))
    codes = Counter(code for trial_id, code in zip(*columns, strict=True) if trial_id in planned and code is not None)
    if len(codes) < 2:
        return None
    versions = ", ".join(f"{count} by {version[:12]}" for version, count in codes.most_common(5))
    return (
        f"{checked.sweep.name}: trials were run by {len(codes)} versions of task {checked.task.name!r} ({versions}). "
        'List them: depthrate query "select code_hash, trial_id from trials".'
    )


def _earlier_version_message(checked: CheckedSweep) -> str | None:
    """Describe trials of earlier versions of a built-in task. Return None if there are none."""
    task, versions = checked.task, Counter(trial.task_version for trial in checked.trials)
    earlier = ", ".join(
        f"{count} of version {version}" for version, count in versions.items() if version != task.version
    )
    if not earlier:
        return None
    return (
        f"{checked.sweep.name}: trials of earlier versions of task {task.name!r} ({earlier}; this is version {task.version}). "
        f"Train them by this version: depthrate run {checked.sweep.name}"
    )


def _engines_sentence(sweep: str, trial_ids: Iterable[str], store: Store, snapshot: Snapshot) -> str | None:
    """Describe the engines of a sweep's trials if the attempt records name several engines, and otherwise return None."""
    trials, wanted_ids = snapshot.trials, set(trial_ids)
    pairs = zip(trials["trial_id"].to_pylist(), trials["attempt_id"].to_pylist(), strict=True)
    attempt_of = {trial_id: attempt_id for trial_id, attempt_id in pairs if trial_id in wanted_ids}
    records = records_of_attempts(store, snapshot, set(attempt_of.values()))
    names = (records.get(attempt_id, {}).get("engine") for attempt_id in attempt_of.values())
    counts = Counter(name for name in names if name is not None)
    if len(counts) < 2:
        return None
    engines = ", ".join(f"{count} {engine}" for engine, count in counts.most_common())
    return (
        f"the trials of {sweep} were trained by {len(counts)} engines ({engines}), which agree up to rounding. "
        'List them: depthrate query "select engine, trial_ids from attempts". Use one engine: depthrate run --engine'
    )


def unknown_code_message(num_unknown: int) -> str:
    """Describe committed trials without a recorded code version."""
    trials = counted(num_unknown, "committed trial has", "committed trials have")
    return f"{trials} no recorded code version. A change of code since then is not detected."
