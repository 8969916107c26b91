"""Plan the run of a sweep, and read the state of the sweep after it. `launch.launch` runs what is planned."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from depthrate.orchestrator.api.planning import check_launch, plan_on, resume_command
from depthrate.orchestrator.attempts.options import LaunchOptions
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.executors.base import Executor, ExecutorRequest
from depthrate.orchestrator.executors.registry import open_executor
from depthrate.orchestrator.launch.code_changes import CodeMismatch, find_code_mismatch, resolve_code_change
from depthrate.orchestrator.launch.launch import LaunchEnd, delete_checkpoints, write_launch
from depthrate.orchestrator.launch.launch_plan import CheckedSweep, Plan, check_contents
from depthrate.orchestrator.launch.outcome import RunState
from depthrate.orchestrator.search.search_view import SearchView, with_search
from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.data_folder import open_data_folder
from depthrate.storage.files.store import Store, open_store
from depthrate.sweeps.packing import one_of_each_shape
from depthrate.sweeps.spec import SweepSpec

if TYPE_CHECKING:
    from depthrate.orchestrator.search.studies import SearchFeed


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A planned launch."""

    options: LaunchOptions
    store: Store
    target: Executor
    plan: Plan
    view: SearchView | None
    feed: SearchFeed | None
    """Source of a search's new proposals."""

    @property
    def has_work(self) -> bool:
        """Whether packs are pending or running, or a search will propose more."""
        return bool(self.plan.packs or self.plan.in_flight) or (self.view is not None and not self.view.is_over)


@dataclass(frozen=True)
class RunEnd:
    """State of a sweep after a run."""

    state: RunState
    checked: CheckedSweep
    """The sweep, with all trials of its search so far."""
    snapshot: Snapshot
    num_open: int
    """Number of trials that are not committed."""
    has_results: bool
    """Whether the launch committed a trial, or all trials are committed."""
    num_diverged: int
    mismatch: CodeMismatch | None
    """Trials of other code versions, in which case nothing is fitted."""
    launch: LaunchEnd | None
    """End of the launch, or None if nothing was pending."""


def plan_run(options: LaunchOptions, loaded: SweepSpec | None = None) -> PlannedRun:
    """Plan the pending trials of a sweep and check that they can run. The options name the sweep unless it is `loaded`.

    Raises:
        ValueError: An error of this project's packages for wrong input. Nothing was started.
    """
    if options.rerun and options.keep_results:
        raise UsageError("--rerun and --keep-results are mutually exclusive. Give one of them.")
    if options.pilot and options.detach:
        raise UsageError("--pilot reports at its end, so the launch cannot detach. Leave out --detach.")
    for flag in ("notify", "report"):
        if getattr(options, flag) and options.detach:
            raise UsageError(f"--{flag} needs the launch to keep running. Leave out --detach.")
    if options.report and options.pilot:
        raise UsageError("--pilot runs only a part of the sweep. Leave out --report.")
    data = open_data_folder()
    checked = check_launch(options, data, loaded)
    store = open_store(options.store)
    store.require_writer()
    target = open_executor(ExecutorRequest(sweep=checked.sweep, store=store, options=options))
    with_all, view, feed = _open_search(checked, store, target, options)
    plan = plan_on(target, with_all, store)
    if resolve_code_change(plan, store, target.submitted(), options, command=resume_command(options)):
        with_all, view, feed = _open_search(checked, store, target, options)
        plan = plan_on(target, with_all, store)
    check_contents(plan, data)
    if options.pilot:
        if view is not None:
            raise UsageError("--pilot runs packs of a grid. Leave it out for a search.")
        plan = replace(plan, packs=one_of_each_shape(plan.packs, checked.task))
    if view is not None and feed is not None:
        feed.mark_dispatched(
            trial_id for pack in (*plan.packs, *plan.in_flight.values()) for trial_id in pack.trial_ids
        )
    return PlannedRun(options=options, store=store, target=target, plan=plan, view=view, feed=feed)


def _open_search(
    checked: CheckedSweep, store: Store, target: Executor, options: LaunchOptions
) -> tuple[CheckedSweep, SearchView | None, SearchFeed | None]:
    """Return the sweep with its trials so far, its search, and the feed of new proposals. The last two may be None."""
    checked, view = with_search(checked, store)
    if view is None:
        return checked, None, None
    if options.detach:
        raise UsageError("a search needs its launch to make proposals, so it cannot detach. Leave out --detach.")
    if view.is_over:
        return checked, view, None
    require_clock(store)
    try:
        from depthrate.orchestrator.search.studies import SearchFeed
    except ImportError as error:
        raise UsageError(f"a search needs Optuna ({error}). Install it: pip install 'depthrate[search]'") from None
    feed = SearchFeed(view, device=target.device, workers=target.workers, memory_bytes=target.memory_bytes)
    return replace(checked, trials=view.trials()), view, feed


def end_run(run: PlannedRun, launch: LaunchEnd | None) -> RunEnd:
    """Read the state of a sweep after its launch (None: nothing was pending), and clean up after a complete sweep."""
    checked, view, plan = run.plan.checked, run.view, run.plan
    if launch is None:
        if run.target.outlives_driver:
            run.target.close()  # deletes the leftovers of earlier launches
        delete_checkpoints(plan.stale_checkpoints, run.store)
    snapshot = plan.snapshot if launch is None else launch.snapshot
    if view is not None:
        view.refresh()
        checked = replace(checked, trials=view.trials())
    trial_ids = set(checked.trials.ids)
    num_open = len(trial_ids - snapshot.trial_ids())
    is_done = num_open == 0 and (view is None or view.is_over)
    rows = snapshot.trials.select(["trial_id", "status"]).to_pylist() if is_done else ()
    num_diverged = sum(row["trial_id"] in trial_ids and row["status"] == "diverged" for row in rows)
    mismatch = find_code_mismatch(checked, snapshot)
    if mismatch is None or not mismatch.versions:  # other versions, for example because of a concurrent launch
        mismatch = None
        if is_done or view is not None:
            with suppress(OSError):  # so that status, fit and report find the sweep, even if nothing was pending
                write_launch(run.store, checked)
    outcome = None if launch is None else launch.outcome
    if is_done and mismatch is None:
        state = RunState.COMPLETE
    elif outcome is not None and outcome.interrupted and mismatch is None:
        state = RunState.INTERRUPTED
    else:
        state = RunState.INCOMPLETE
    has_results = num_open == 0 or len(plan.done) + num_open < len(checked.trials)
    return RunEnd(state, checked, snapshot, num_open, has_results, num_diverged, mismatch, launch)
