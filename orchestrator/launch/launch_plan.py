"""Plan a launch by forming packs of the sweep's uncommitted trials."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.analysis.columns import columns_of, result_columns
from depthrate.orchestrator.executors.base import SubmittedPack
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.json_objects import read_with_digest
from depthrate.storage.files.paths import checkpoint_trials_path, identity, is_identity
from depthrate.storage.files.store import Store
from depthrate.storage.tables.custom_columns import check_names
from depthrate.sweeps.errors import ExpressionError, SweepError
from depthrate.sweeps.expand import expand
from depthrate.sweeps.expression import Expression
from depthrate.sweeps.packing import Pack, check_memory, estimated_wall_s, make_pack, pack_trials
from depthrate.sweeps.spec import FitRequest, SweepSpec, check_figures, check_fits
from depthrate.sweeps.trial import Trial, Trials, canonical_json
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.interface import Task
from depthrate.tasks.parameters import format_value

MIN_DISTINCT_X = 3
"""Minimum number of distinct x values at which a power law, with its two parameters, can fail to fit."""


@dataclass(frozen=True)
class CheckedSweep:
    """A sweep with its loaded task and its trials, which passed all checks that need no store."""

    sweep: SweepSpec
    task: Task
    trials: Trials
    varied: frozenset[str] | None = None
    """Parameters that may differ within a fit of an earlier launch. None: the grid decides."""


@dataclass(frozen=True)
class Plan:
    """The committed and the pending trials of a sweep."""

    checked: CheckedSweep
    snapshot: Snapshot
    done: set[str]
    packs: list[Pack]
    """Pending trials, longest pack first."""
    in_flight: dict[str, Pack]
    """Attempt -> pack, for jobs that an earlier launch submitted and that the scheduler still has."""
    stale_checkpoints: list[str]
    """Packs with a checkpoint although all their trials are committed."""
    num_resumed: int = 0
    """Number of packs that resume from a checkpoint."""

    @property
    def num_packs_expected(self) -> int | None:
        """Number of packs to run, or None if a search adds more."""
        return None if self.checked.sweep.search else len(self.packs)

    @property
    def num_pending(self) -> int:
        """Number of trials to run."""
        return sum(len(pack.trials) for pack in self.packs)


def check_sweep(sweep: SweepSpec, files: Mapping[str, bytes] | None = None) -> CheckedSweep:
    """Load the sweep's task and expand the sweep.

    Args:
        files: Files of the task's code. None for the current code.
    Raises:
        ValueError: `SweepError`, `TaskError`, `ParameterError` or `TableError` if the sweep cannot run.
    """
    task = sweep.load_task(files)
    trials = expand(sweep, task)
    check_fits(sweep, task)
    check_figures(sweep, task)
    columns = columns_of(task)  # this refuses columns that the store does not support
    standard = [*columns.schemas["metrics"].names, *columns.schemas["curves"].names]
    check_names("metrics", [request.measured for request in sweep.fit], standard)
    check_filters(sweep, task)
    return CheckedSweep(sweep, task, trials)


def check_filters(sweep: SweepSpec, task: Task) -> None:
    """Check before training that each `where` of the sweep's fits is SQL over its result columns.

    Raises:
        SweepError: If a `where` is not valid.
    """
    filters = [request.where for request in sweep.fit if request.where is not None]
    if not filters:
        return
    from depthrate.storage.query.sql_checks import QueryError, check_expression  # needed by few sweeps

    for text in filters:
        try:
            check_expression(text, result_columns(task))
        except QueryError as error:
            raise SweepError(f"fit where: {error}") from None


def _x_of_curves(request: FitRequest, trials: Iterable[Trial]) -> dict[str, set[float]]:
    """Return the distinct x values per curve of a fit."""
    expression, curves = Expression(request.variables[0]), defaultdict[str, set[float]](set)
    for trial in trials:
        with suppress(ExpressionError):  # x is None or divides by zero: the fit excludes the trial
            curves[canonical_json([trial.params[name] for name in request.by])].add(expression.evaluate(trial.params))
    return curves


def thin_fit_remarks(checked: CheckedSweep) -> Iterator[str]:
    """Yield a remark for each fit whose longest curve has too few distinct x values to test the power law."""
    for request in checked.sweep.fit if checked.sweep.search is None else ():
        if request.is_over_layers:
            continue
        if request.forms:
            yield from _confounding_remarks(request, checked.trials.representatives())
            continue
        has_seed = "seed" in (*request.x_names, *request.by)
        curves = _x_of_curves(request, checked.trials if has_seed else checked.trials.representatives())
        if excluded := sorted({x for values in curves.values() for x in values if x <= 0}):
            yield f"fit of {request.metric} over {request.x}: leaves out trials with {request.x} = {excluded[0]:g}, not above 0"
        max_distinct = max((sum(x > 0 for x in values) for values in curves.values()), default=0)
        if max_distinct < MIN_DISTINCT_X:
            yield (
                f"fit of {request.metric} over {request.x}: at most {max_distinct} values of {request.x} per curve. A "
                f"form with two parameters fits any {MIN_DISTINCT_X - 1} points. Use {MIN_DISTINCT_X} or more."
            )


def _confounding_remarks(request: FitRequest, trials: Iterable[Trial]) -> Iterator[str]:
    """Yield a remark if the grid cannot separate the variables of a fit."""
    from depthrate.tasks.fits.several_variables import MAX_INFLATION, inflation_of

    rows, expressions = [], [Expression(text) for text in request.variables]
    for trial in trials:
        with suppress(ExpressionError):
            rows.append([float(expression.evaluate(trial.params)) for expression in expressions])
    rows = [row for row in rows if min(row) > 0]
    inflation = inflation_of(rows)
    if len(expressions) > 1 and inflation > MAX_INFLATION:
        size = f"variance inflation {inflation:.1f}" if inflation < 1e6 else "one follows from the others"
        yield (
            f"fit of {request.metric} over {request.x_text}: {' and '.join(request.variables)} are confounded in this grid "
            f"({size}), so their exponents cannot be told apart. Vary them independently."
        )


def check_fit_points(checked: CheckedSweep) -> None:
    """Check that no seed or fit is repeated, and that each fit's options leave two x values on a curve, and replicates.

    Raises:
        SweepError: One is repeated, they leave fewer, or no trial measures the layer.
    """
    final = checked.sweep.search and checked.sweep.search.measure
    for seeds in (checked.sweep.seeds, final and final.seeds):
        if isinstance(seeds, list | tuple) and len(set(seeds)) < len(seeds):
            raise SweepError(f"seeds is {format_value(seeds)}, which repeats a seed. Give each seed once.")
    trials = checked.trials.representatives() if checked.sweep.fit else []
    for request in checked.sweep.fit:
        place = f"fit {format_value(request.spec())}"
        if checked.sweep.fit.count(request) > 1:
            raise SweepError(f"{place} is in the sweep twice. Keep one.")
        if request.over != request.SEED and len({canonical_json(trial.params[request.over]) for trial in trials}) == 1:
            raise SweepError(f"{place}: over is {request.over}, which has one value. Give a parameter with several.")
        if request.is_over_layers:
            continue
        with_layer = trials
        if request.layer is not None:
            layers = [(measured := checked.task.measured(trial.params, 1)) and [*measured[1]] for trial in trials]
            is_fraction = isinstance(request.layer, float)
            is_there = [of is None or is_fraction or request.layer in (*of, *range(-len(of), 0)) for of in layers]
            with_layer = [trial for trial, there in zip(trials, is_there, strict=True) if there]
            if not with_layer:
                last = max(max(of) for of in layers if of is not None)
                raise SweepError(
                    f"{place}: layer is {request.layer}, expected 0 to {last}, or -1 for the last, -2, ..."
                )
        x_min = request.x_min if isinstance(request.x_min, int | float) else 0.0
        given = max(map(len, _x_of_curves(request, trials).values()), default=0)
        curves = _x_of_curves(request, with_layer).values()
        left = max((sum(x > 0 and x >= x_min for x in values) for values in curves), default=0)
        if left < 2 <= given:
            raise SweepError(
                f"{place}: at most {left} of {given} values of {request.x} per curve are above 0, not below x_min and of "
                "trials with this layer, expected at least 2. Change the fit or the grid."
            )


def check_data(checked: CheckedSweep, source: DataSource) -> None:
    """Check that all data of the trials exist.

    Raises:
        DatasetError: If some are missing. The message names the folder and how to get them.
    """
    checked.task.check_data([trial.params for trial in checked.trials.representatives()], source)


def check_contents(plan: Plan, source: DataSource) -> None:
    """Read all data of the pending trials once, so that corrupt files are found before anything starts.

    Raises:
        DatasetError: If a file is corrupt. The message names the file, the expected content and the fix.
    """
    pending = [trial.params for pack in plan.packs for trial in pack.trials]
    plan.checked.task.check_contents(pending, source)


def make_plan(
    checked: CheckedSweep,
    store: Store,
    *,
    device: str = "cpu",
    workers: int = 1,
    submitted: Mapping[str, SubmittedPack] | None = None,
    memory_bytes: float | None = None,
) -> Plan:
    """Compare the sweep with the store and with the submitted jobs.

    Packs with a checkpoint keep their trials, so that training resumes.

    Args:
        submitted: Attempt -> pack of the jobs that a scheduler still has.
        memory_bytes: Memory limit of one worker, or None.
    Raises:
        MemoryLimitError: If a single pending trial exceeds `memory_bytes`.
        EngineError: If a pending trial does not support the sweep's engine.
    """
    snapshot = take_snapshot(store)
    committed = snapshot.trial_ids()
    pending = {trial.trial_id: trial for trial in checked.trials.without(committed)}
    in_flight = {}
    for attempt_id, job in (submitted or {}).items():
        trials = [pending.pop(trial_id) for trial_id in job.trial_ids if trial_id in pending]
        if trials:
            in_flight[attempt_id] = Pack(job.pack_id, tuple(trials))
    packs = []
    checkpointed = read_checkpoints(store)
    for pack_id, members in checkpointed.items():
        trials = [pending.pop(trial_id) for trial_id in members["trial_ids"] if trial_id in pending]
        if trials:
            packs.append(Pack(pack_id, tuple(trials)))
    new = pack_trials(pending.values(), checked.task, device=device, workers=workers, memory_bytes=memory_bytes)
    check_memory(new, checked.task, device, memory_bytes)
    packs += new
    if (engine := checked.task.engine) is not None:
        for pack in packs:  # raises if a pack does not support the requested engine
            engine(pack.trials[0].params, checked.sweep.engine, device)
    packs.sort(key=lambda pack: -estimated_wall_s(pack, checked.task))
    done = committed.intersection(checked.trials.ids)
    num_resumed = sum(pack.pack_id in checkpointed for pack in packs)
    return Plan(checked, snapshot, done, packs, in_flight, stale_checkpoints(checkpointed, committed), num_resumed)


def stale_checkpoints(checkpointed: Mapping[str, dict[str, Any]], committed: Set[str]) -> list[str]:
    """Return the packs with a checkpoint whose trials are all committed."""
    return [pack_id for pack_id, members in checkpointed.items() if committed >= set(members["trial_ids"])]


def split_pack(pack: Pack) -> list[Pack]:
    """Split a pack that ran out of memory into two."""
    middle = len(pack.trials) // 2
    return [make_pack(pack.trials[:middle]), make_pack(pack.trials[middle:])]


def read_checkpoints(store: Store) -> dict[str, dict[str, Any]]:
    """Map each pack with a checkpoint to its trials (trial_ids) and the version of its task's code (code_hash)."""
    packs = {}
    pack_ids = {path: path.split("/")[1] for path in store.list("checkpoints")}
    paths = [
        path for path, pack_id in pack_ids.items() if is_identity(pack_id) and path == checkpoint_trials_path(pack_id)
    ]
    for path, content in store.read_many(paths):
        try:
            if not isinstance(content, OSError):
                members = read_with_digest(content)
                packs[pack_ids[path]] = {**members, "trial_ids": [identity(name) for name in members["trial_ids"]]}
        except (ValueError, KeyError, TypeError):
            continue  # the file is corrupt or foreign: its trials are packed as if they had no checkpoint
    return packs
