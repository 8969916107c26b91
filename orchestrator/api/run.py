"""Run a sweep: plan it, drive or submit its pending packs, then fit the rates and report the result on a console."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Console

from depthrate.orchestrator.api.planning import (
    check_launch,
    cost_lines,
    estimates_on,
    open_compute_target,
    plan_on,
    plan_summary,
    resume_command,
)
from depthrate.orchestrator.attempts.options import LaunchOptions
from depthrate.orchestrator.attempts.retry_policy import error_pattern
from depthrate.orchestrator.console.errors import UsageError, next_call
from depthrate.orchestrator.console.tables import counted, make_console, print_line, print_table, print_warnings
from depthrate.orchestrator.executors.base import Estimate, Executor
from depthrate.orchestrator.launch.code_changes import (
    find_code_mismatch,
    mismatch_message,
    mixtures,
    resolve_code_change,
    unknown_code_message,
)
from depthrate.orchestrator.launch.launch import (
    LaunchEnd,
    delete_checkpoints,
    launch,
    submit,
    write_launch,
)
from depthrate.orchestrator.launch.launch_plan import CheckedSweep, Plan, check_contents
from depthrate.orchestrator.launch.notify import Notifier
from depthrate.orchestrator.launch.outcome import Outcome, PackFailure, RunState
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
class _Run:
    """A planned launch."""

    options: LaunchOptions
    console: Console
    store: Store
    target: Executor
    plan: Plan
    view: SearchView | None
    feed: SearchFeed | None
    started: float
    notifier: Notifier | None = None
    """Notifier of --notify."""

    def next(self, verb: str) -> str:
        """Return a command for this sweep, as a suggestion to the user."""
        return next_call(verb, self.plan.checked.sweep.name, self.options.store)

    def print(self, text: str) -> None:
        """Print a line."""
        self.console.print(text)


def run_sweep(options: LaunchOptions, loaded: SweepSpec | None = None) -> RunState:
    """Run the pending trials of a sweep and fit its rates.

    Args:
        options: Sweep by name or file, and the options of the launch.
        loaded: The sweep, if it is neither in a file nor launched before.

    Raises:
        ValueError: An error of this project's packages for wrong input. Nothing was started.
    """
    if options.rerun and options.keep_results:
        raise UsageError("--rerun and --keep-results are mutually exclusive. Give one of them.")
    if options.pilot and options.detach:
        raise UsageError("--pilot reports at its end, so the launch cannot detach. Leave out --detach.")
    if options.notify is not None and options.detach:
        raise UsageError("--notify needs the launch to keep running. Leave out --detach.")
    started = time.monotonic()
    console, data = make_console(quiet=options.quiet), open_data_folder()
    checked = check_launch(options, data, loaded)
    store = open_store(options.store)
    store.require_writer()
    target = open_compute_target(options, checked.sweep, store)
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
    run = _Run(
        options=options,
        console=console,
        store=store,
        target=target,
        plan=plan,
        view=view,
        feed=feed,
        started=started,
        notifier=None if options.notify is None else Notifier(options.notify, checked.sweep.name),
    )
    print_warnings(plan.snapshot.problems)
    run.print(plan_summary(plan))
    mismatch = find_code_mismatch(plan.checked, plan.snapshot)
    if mismatch is not None and mismatch.num_unknown and plan.packs:
        run.print(unknown_code_message(mismatch.num_unknown))
    if view is not None and feed is not None:
        run.print(view.summary())
        feed.mark_dispatched(
            trial_id for pack in (*plan.packs, *plan.in_flight.values()) for trial_id in pack.trial_ids
        )
    if not (plan.packs or plan.in_flight or (view is not None and not view.is_over)):
        if target.outlives_driver:
            target.close()  # deletes the leftovers of earlier launches
        delete_checkpoints(plan.stale_checkpoints, store)
        return _conclude(run, None)
    return _launch(run) if run.notifier is None else run.notifier.notify_end(lambda: _launch(run))


def _launch(run: _Run) -> RunState:
    """Run the pending trials and return the state."""
    estimate_s = estimates_on(run.target, run.plan, run.store)
    run.target.check(run.plan.packs, estimate_s)
    run.print(f"{run.target.summary()}. Store: {run.store.url}")
    end = _run_driver(run, run.target, estimate_s)
    if run.options.pilot and isinstance(end, LaunchEnd):
        return _conclude_pilot(run, end)
    return end if isinstance(end, RunState) else _conclude(run, end)


def _conclude_pilot(run: _Run, end: LaunchEnd) -> RunState:
    """Report the cost of the remaining packs, estimated from finished packs."""
    target, store = run.target, run.store
    trial_ids = {trial_id for pack in run.plan.packs for trial_id in pack.trial_ids}
    if num_open := len(trial_ids - end.snapshot.trial_ids()):
        return _report_incomplete(run, end, num_open)
    plan = plan_on(target, run.plan.checked, store)
    run.print(f"pilot run of {counted(len(run.plan.packs), 'pack')} finished. {plan_summary(plan)}")
    if plan.packs:
        estimates = estimates_on(target, plan, store)
        details = target.details(plan.packs, estimates.allocated_s)
        costs = {name: value for name, value in details.items() if name.endswith("hours") or name == "jobs"}
        for line in cost_lines(plan, target, estimates, costs):
            run.print(line)
    run.print(f"run the rest: {resume_command(replace(run.options, pilot=False))}")
    return RunState.PROBED


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


def _run_driver(run: _Run, executor: Executor, estimate_s: Estimate) -> LaunchEnd | RunState:
    """Drive the packs from this process. Return the end of the launch, or the state if this process detaches or stops."""
    if run.options.detach:
        submitted = submit(run.plan, run.store, executor, estimate_s, run.options)
        run.print(f"{counted(submitted.submitted, 'pack')} submitted. Progress: {run.next('status')}")
        if submitted.claimed_by_peers:
            run.print(f"{counted(submitted.claimed_by_peers, 'pack is', 'packs are')} claimed by another launch")
        if submitted.not_submitted:
            rest = counted(submitted.not_submitted, "pack is", "packs are")
            text = f"depthrate: {rest} not submitted. Submit more once jobs have ended: {resume_command(run.options)}"
            print_line(text, stderr=True)
            return RunState.INCOMPLETE
        return RunState.DETACHED
    try:
        return launch(
            run.plan,
            run.store,
            executor,
            estimate_s,
            run.options,
            console=run.console,
            feed=run.feed,
            notifier=run.notifier,
        )
    except KeyboardInterrupt:
        run.print(f"stopped. Resume: {resume_command(run.options)}")
        return RunState.INTERRUPTED


def _conclude(run: _Run, end: LaunchEnd | None) -> RunState:
    """Fit the committed trials and report the state of the sweep."""
    checked, view, plan = run.plan.checked, run.view, run.plan
    snapshot = plan.snapshot if end is None else end.snapshot
    if view is not None:
        view.refresh()
        checked = replace(checked, trials=view.trials())
        run.print(view.summary())
    num_open = len(set(checked.trials.ids) - snapshot.trial_ids())
    is_all = num_open == 0 and (view is None or view.is_over)
    if is_all:
        trials = "the trial is" if len(checked.trials) == 1 else f"all {len(checked.trials)} trials are"
        run.print(f"{trials} committed ({time.monotonic() - run.started:.0f} s)")
        _print_diverged(run, checked, snapshot)
    mismatch = find_code_mismatch(checked, snapshot)
    if mismatch is not None and mismatch.versions:  # for example because of a concurrent launch
        text = mismatch_message(mismatch, checked, run.store, resume_command(run.options), "nothing was fitted")
        print_line(f"depthrate: {text}", stderr=True)
        return RunState.INCOMPLETE
    if view is not None:
        _remember(run.store, checked)
        print_table(run.console, *view.table())
    if len(plan.done) + num_open < len(checked.trials) or num_open == 0:
        _fit(run, checked, snapshot)
    if not is_all:
        return _report_incomplete(run, end, num_open)
    _remember(run.store, checked)
    run.print(f"report: {run.next('report')}")
    return RunState.COMPLETE


def _fit(run: _Run, checked: CheckedSweep, snapshot: Snapshot) -> None:
    """Print the requested fits, and warn if the trials mix code versions or engines."""
    if not checked.sweep.fit:
        print_warnings(mixtures(checked, run.store, snapshot))
        return
    from depthrate.orchestrator.api.fit import fit_sweep  # imports scipy and duckdb, which many runs do not need
    from depthrate.orchestrator.console.fit_table import print_fits

    result = fit_sweep(checked, run.store, run.view)
    print_warnings(result.warnings)
    print_fits(run.console, result.curves, more=next_call("fit", checked.sweep.name, run.store.url, "--wide"))


def _remember(store: Store, checked: CheckedSweep) -> None:
    """Record the launch, so that status, fit and report find the sweep by name, even if nothing was pending."""
    with suppress(OSError):
        write_launch(store, checked)


def _print_diverged(run: _Run, checked: CheckedSweep, snapshot: Snapshot) -> None:
    trial_ids = set(checked.trials.ids)
    rows = snapshot.trials.select(["trial_id", "status"]).to_pylist()
    count = sum(row["trial_id"] in trial_ids and row["status"] == "diverged" for row in rows)
    if count:
        run.print(
            f"{count} of them diverged. List them: depthrate query \"select * from trials where status = 'diverged'\""
        )


def _report_incomplete(run: _Run, end: LaunchEnd | None, num_open: int) -> RunState:
    """Report why trials are not done, and the command that resumes."""
    command = resume_command(run.options)
    outcome = None if end is None else end.outcome
    if outcome is None:
        return RunState.INCOMPLETE
    if outcome.interrupted:
        jobs_continue = run.target.outlives_driver and not outcome.cancelled
        how = "cancelled" if outcome.cancelled else "detached" if jobs_continue else "interrupted"
        run.print(f"{how} with {counted(num_open, 'trial')} to do. Resume: {command}")
        if jobs_continue:
            run.print(f"the jobs continue. Cancel them: {run.next('cancel')}")
    if outcome.failures or not outcome.interrupted:
        _print_failures(outcome, num_open, end.not_visible if end else 0, run.options)
    return RunState.INTERRUPTED if outcome.interrupted else RunState.INCOMPLETE


def _print_failures(outcome: Outcome, num_open: int, unseen: int, options: LaunchOptions) -> None:
    print_line(f"depthrate: {counted(num_open, 'trial is', 'trials are')} not done", stderr=True)
    if unseen:
        print_line(
            f"  {unseen} of them are committed, but the store's listing does not show them yet. Nothing is lost. Check again "
            "later.",
            stderr=True,
        )
    by_pattern: dict[str, list[PackFailure]] = {}
    for failure in outcome.failures:
        by_pattern.setdefault(error_pattern(failure.error), []).append(failure)
    for failures in list(by_pattern.values())[:10]:
        trial_ids = [trial_id for failure in failures for trial_id in failure.pack.trial_ids]
        nodes = sorted({failure.node for failure in failures})
        location = (
            f" on {', '.join(nodes[:5])}{' and others' if len(nodes) > 5 else ''}"
            if len(failures) > 1 and all(nodes)
            else ""
        )
        of_packs = f" in {counted(len(failures), 'pack')}" if len(failures) > 1 else ""
        command = next_call("logs", trial_ids[0] if trial_ids else "?", options.store)
        error = failures[0].error.rstrip(".")
        print_line(f"  {counted(len(trial_ids), 'trial')}{of_packs}{location}: {error}. See: {command}", stderr=True)
    if outcome.stopped_early:
        print_line("  stopped early: several packs failed with the same error", stderr=True)
    print_line(f"  retry: {resume_command(options)}", stderr=True)
