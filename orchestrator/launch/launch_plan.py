"""What a launch would do: the sweep's trials, minus the committed ones, in packs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass

from depthrate.orchestrator.analysis.columns import columns_of, result_columns
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.json_objects import read_with_digest
from depthrate.storage.files.paths import checkpoint_trials_path, identity, is_identity
from depthrate.storage.files.store import Store
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.expand import expand
from depthrate.sweeps.expression import Expression, ExpressionError
from depthrate.sweeps.packing import Pack, check_memory, estimated_wall_s, make_pack, pack_trials
from depthrate.sweeps.spec import SweepSpec, check_figures, check_fits
from depthrate.sweeps.trial import Trial, canonical_json
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.interface import Task

MIN_DISTINCT_X = 3
"""Values of x from which on a power law, which has two parameters, can fail to fit."""


@dataclass(frozen=True)
class CheckedSweep:
    """A sweep whose task is loaded and whose trials passed every check that needs no store."""

    sweep: SweepSpec
    task: Task
    trials: list[Trial]


@dataclass(frozen=True)
class Plan:
    """What is done and what would run."""

    checked: CheckedSweep
    snapshot: Snapshot
    done: set[str]
    packs: list[Pack]
    """Pending trials, longest pack first."""
    in_flight: dict[str, Pack]
    """Attempt -> pack of the jobs that an earlier launch submitted and a scheduler still has."""
    stale_checkpoints: list[str]
    """Packs that left a checkpoint although all their trials are committed."""
    num_resumed: int = 0
    """How many of the packs go on from a checkpoint."""

    @property
    def num_packs_expected(self) -> int | None:
        """Packs that would run; null where a search adds more."""
        return None if self.checked.sweep.search else len(self.packs)

    @property
    def num_pending(self) -> int:
        """Trials that would run."""
        return sum(len(pack.trials) for pack in self.packs)


def check_sweep(sweep: SweepSpec, files: Mapping[str, bytes] | None = None) -> CheckedSweep:
    """Load the sweep's task, as these files of its code have it or as it is now, and expand it.

    Raises:
        ValueError: `SweepError`, `TaskError`, `ParameterError` or `TableError` for what cannot run.
    """
    task = sweep.load_task(files)
    trials = expand(sweep, task)
    check_fits(sweep, task)
    check_figures(sweep, task)
    columns_of(task)  # refuses columns that the store cannot keep
    check_filters(sweep, task)
    return CheckedSweep(sweep, task, trials)


def check_filters(sweep: SweepSpec, task: Task) -> None:
    """Check that each `where` of the sweep's fits is SQL over what its trials will have.

    Raises:
        SweepError: it is not; found out after the training it would be too late.
    """
    filters = [request.where for request in sweep.fit if request.where is not None]
    if not filters:
        return
    from depthrate.storage.query.sql_checks import QueryError, check_expression  # here: most sweeps have no filter

    for text in filters:
        try:
            check_expression(text, result_columns(task))
        except QueryError as error:
            raise SweepError(f"fit where: {error}") from None


def thin_fit_remarks(checked: CheckedSweep) -> Iterator[str]:
    """Yield a remark for each fit of a grid whose longest curve has too few values of x to test the power law."""
    for request in checked.sweep.fit if checked.sweep.search is None else ():
        expression, curves = Expression(request.x), defaultdict[str, set[float]](set)
        for trial in checked.trials:
            with suppress(ExpressionError):  # x is null there, or divides by zero: the fit leaves the trial out
                curves[canonical_json([trial.params[name] for name in request.by])].add(
                    expression.evaluate(trial.params)
                )
        most = max(map(len, curves.values()), default=0)
        if most < MIN_DISTINCT_X:
            yield (
                f"fit of {request.metric} over {request.x}: at most {most} different {request.x} in a curve, and a power law "
                f"passes through any {MIN_DISTINCT_X - 1} points; give {MIN_DISTINCT_X} or more"
            )


def check_data(checked: CheckedSweep, source: DataSource) -> None:
    """Check that everything the trials read is there.

    Raises:
        DatasetError: saying where it looked and how to get it.
    """
    checked.task.check_data([trial.params for trial in checked.trials], source)


def check_contents(plan: Plan, source: DataSource) -> None:
    """Read everything that the pending trials read, once, so that damage is found before anything starts.

    Raises:
        DatasetError: naming the file, what was expected of it, and what to do.
    """
    pending = [trial.params for pack in plan.packs for trial in pack.trials]
    plan.checked.task.check_contents(pending, source)


def make_plan(
    checked: CheckedSweep,
    store: Store,
    *,
    device: str = "cpu",
    workers: int = 1,
    submitted: Mapping[str, tuple[str, list[str]]] | None = None,
    memory_bytes: float | None = None,
) -> Plan:
    """Compare the sweep with the store, and with what was submitted: attempt -> (pack, trials).

    `memory_bytes` is what one worker may use.

    Packs that left a checkpoint are formed again as they were, so that nothing trained is trained anew.

    Raises:
        MemoryLimitError: a pending trial needs more than that even alone.
        EngineError: one cannot train as the sweep asks for.
    """
    snapshot = take_snapshot(store)
    committed = snapshot.trial_ids()
    pending = {trial.trial_id: trial for trial in checked.trials if trial.trial_id not in committed}
    underway = {}
    for attempt_id, (pack_id, trial_ids) in (submitted or {}).items():
        theirs = [pending.pop(trial_id) for trial_id in trial_ids if trial_id in pending]
        if theirs:
            underway[attempt_id] = Pack(pack_id, tuple(theirs))
    packs = []
    checkpointed = _checkpointed_packs(store)
    for pack_id, members in checkpointed.items():
        again = [pending.pop(trial_id) for trial_id in members if trial_id in pending]
        if again:
            packs.append(Pack(pack_id, tuple(again)))
    new = pack_trials(pending.values(), checked.task, device=device, workers=workers, memory_bytes=memory_bytes)
    check_memory(new, checked.task, device, memory_bytes)
    packs += new
    if (engine := checked.task.engine) is not None:
        for pack in packs:  # refuses what was asked for and cannot be
            engine(pack.trials[0].params, checked.sweep.engine, device)
    packs.sort(key=lambda pack: -estimated_wall_s(pack, checked.task))
    done = committed & {trial.trial_id for trial in checked.trials}
    num_resumed = sum(pack.pack_id in checkpointed for pack in packs)
    return Plan(checked, snapshot, done, packs, underway, _stale(checkpointed, committed), num_resumed)


def stale_checkpoints(store: Store, committed: Set[str]) -> list[str]:
    """Return the packs that left a checkpoint and whose trials are all committed."""
    return _stale(_checkpointed_packs(store), committed)


def _stale(checkpointed: Mapping[str, list[str]], committed: Set[str]) -> list[str]:
    return [pack_id for pack_id, members in checkpointed.items() if committed >= set(members)]


def split_pack(pack: Pack) -> list[Pack]:
    """Return the pack's trials in two packs, for one that ran out of memory."""
    middle = len(pack.trials) // 2
    return [make_pack(pack.trials[:middle]), make_pack(pack.trials[middle:])]


def _checkpointed_packs(store: Store) -> dict[str, list[str]]:
    packs = {}
    found = {path: path.split("/")[1] for path in store.list("checkpoints")}
    named = [
        path for path, pack_id in found.items() if is_identity(pack_id) and path == checkpoint_trials_path(pack_id)
    ]
    for path, content in store.read_many(named):
        try:
            if not isinstance(content, OSError):
                packs[found[path]] = [identity(trial_id) for trial_id in read_with_digest(content)["trial_ids"]]
        except (ValueError, KeyError, TypeError):
            continue  # torn or foreign: its trials are packed as if they had no checkpoint
    return packs
