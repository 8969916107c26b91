"""Run a sweep: plan it, drive or submit its pending packs, then fit the rates and report the result on a console."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Console

from depthrate.orchestrator.api.planning import (
    check_launch,
    cost_lines,
    estimates_on,
    machines_of,
    plan_on,
    plan_sentence,
    resume_command,
)
from depthrate.orchestrator.attempts.retry import error_pattern
from depthrate.orchestrator.console.errors import UsageError, next_call
from depthrate.orchestrator.console.fit_table import print_fit_result
from depthrate.orchestrator.console.tables import counted, make_console, print_line, print_table, print_warnings
from depthrate.orchestrator.executors.base import ComputeTarget, Executor, RemoteLauncher
from depthrate.orchestrator.executors.options import LaunchOptions
from depthrate.orchestrator.launch.code_changes import describe, find_code_mismatch, settle, unknown_sentence
from depthrate.orchestrator.launch.launch import (
    LaunchEnd,
    delete_checkpoints,
    follow_launch,
    launch,
    send_launch,
    submit,
    write_launch,
)
from depthrate.orchestrator.launch.launch_plan import CheckedSweep, Plan, check_contents
from depthrate.orchestrator.launch.notify import Notifier
from depthrate.orchestrator.launch.outcome import RunState
from depthrate.orchestrator.search.proposals import SearchView, with_search
from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.commits.snapshot import Snapshot
from depthrate.storage.files.data_folder import open_data_folder
from depthrate.storage.files.store import Store, open_store
from depthrate.sweeps.packing import one_of_each_shape

if TYPE_CHECKING:
    from depthrate.orchestrator.executors.base import Estimate
    from depthrate.orchestrator.launch.outcome import Outcome, PackFailure
    from depthrate.orchestrator.search.studies import SearchFeed
    from depthrate.sweeps.spec import SweepSpec


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A call of `depthrate run`, its plan made."""

    options: LaunchOptions
    console: Console
    store: Store
    machines: ComputeTarget
    plan: Plan
    view: SearchView | None
    feed: SearchFeed | None
    started: float
    notifier: Notifier | None = None
    """Who is told how it goes."""

    def next(self, verb: str) -> str:
        """Return a line to call next about this sweep."""
        return next_call(verb, self.plan.checked.sweep.name, self.options.store)

    def say(self, text: str) -> None:
        """Print a line as it is."""
        self.console.print(text)


def run_sweep(options: LaunchOptions, loaded: SweepSpec | None = None) -> RunState:
    """Run the pending trials of a sweep and fit its rates.

    Args:
        options: The sweep by name or file, and the options of the launch.
        loaded: The sweep, where it is neither in a file nor launched before.

    Raises:
        ValueError: An error of this project's packages for wrong input. Nothing was started.
    """
    if options.rerun and options.keep_results:
        raise UsageError("--rerun and --keep-results exclude each other. Give one of them.")
    if options.pilot and options.detach:
        raise UsageError("--pilot reports at its end, so the launch cannot detach. Leave out --detach.")
    if options.notify is not None and options.detach:
        raise UsageError("--notify needs the launch to keep running. Leave out --detach.")
    started = time.monotonic()
    console, data = make_console(quiet=options.quiet), open_data_folder()
    checked = check_launch(options, data, loaded)
    store = open_store(options.store)
    store.require_writer()
    machines = machines_of(options, checked.sweep, store)
    with_all, view, feed = _see_search(checked, store, machines, options)
    plan = plan_on(machines, with_all, store)
    if settle(plan, store, machines.submitted_codes, options, again=resume_command(options)):
        with_all, view, feed = _see_search(checked, store, machines, options)
        plan = plan_on(machines, with_all, store)
    check_contents(plan, data)
    if options.pilot:
        if view is not None or isinstance(machines, RemoteLauncher):
            raise UsageError(
                "--pilot runs packs of a grid from this machine. Leave it out for a search and for --executor ray --cluster."
            )
        plan = replace(plan, packs=one_of_each_shape(plan.packs, checked.task))
    run = _Run(
        options=replace(options, data=data.url),
        console=console,
        store=store,
        machines=machines,
        plan=plan,
        view=view,
        feed=feed,
        started=started,
        notifier=None if options.notify is None else Notifier(options.notify, checked.sweep.name),
    )
    print_warnings(plan.snapshot.problems)
    run.say(plan_sentence(plan))
    _say_unknown_code(run)
    if view is not None and feed is not None:
        run.say(view.sentence())
        feed.mark_dispatched(
            trial_id for pack in (*plan.packs, *plan.in_flight.values()) for trial_id in pack.trial_ids
        )
    if not (plan.packs or plan.in_flight or (view is not None and not view.is_over)):
        if isinstance(machines, Executor) and machines.outlives_driver:
            machines.close()  # tidies up after the launches before
        delete_checkpoints(plan.stale_checkpoints, store)
        return _conclude(run, None)
    return _launch(run) if run.notifier is None else run.notifier.around(lambda: _launch(run))


def _launch(run: _Run) -> RunState:
    """Run the pending trials, here or as jobs, and return the state."""
    estimate_s = estimates_on(run.machines, run.plan, run.store)
    run.machines.check(run.plan.packs, estimate_s)
    run.say(f"{run.machines.summary()}; store {run.store.url}")
    if isinstance(run.machines, RemoteLauncher):
        end = _submit_driver(run, run.machines)
    else:
        assert isinstance(run.machines, Executor)
        end = _run_driver(run, run.machines, estimate_s)
    if run.options.pilot and isinstance(end, LaunchEnd):
        return _conclude_pilot(run, end)
    return end if isinstance(end, RunState) else _conclude(run, end)


def _conclude_pilot(run: _Run, end: LaunchEnd) -> RunState:
    """Report the cost of the remaining packs, estimated from those that have run."""
    machines, store = run.machines, run.store
    trial_ids = {trial_id for pack in run.plan.packs for trial_id in pack.trial_ids}
    if left := len(trial_ids - end.snapshot.trial_ids()):
        return _report_incomplete(run, end, left)
    plan = plan_on(machines, run.plan.checked, store)
    run.say(f"pilot run of {counted(len(run.plan.packs), 'pack')} finished. {plan_sentence(plan)}")
    if plan.packs:
        estimates = estimates_on(machines, plan, store)
        details = machines.details(plan.packs, estimates.held_s)
        costs = {name: value for name, value in details.items() if name.endswith("hours") or name == "jobs"}
        for line in cost_lines(plan, machines, estimates, costs):
            run.say(line)
    run.say(f"run the rest: {resume_command(replace(run.options, pilot=False))}")
    return RunState.PROBED


def _say_unknown_code(run: _Run) -> None:
    found = find_code_mismatch(run.plan.checked, run.plan.snapshot)
    if found is not None and found.num_unknown and run.plan.packs:
        run.say(unknown_sentence(found.num_unknown))


def _see_search(
    checked: CheckedSweep, store: Store, machines: ComputeTarget, options: LaunchOptions
) -> tuple[CheckedSweep, SearchView | None, SearchFeed | None]:
    """Return the sweep with all trials so far, its search, and what proposes more; as it is without a search.

    A launch that is sent away proposes by itself.
    """
    checked, view = with_search(checked, store)
    if view is None or isinstance(machines, RemoteLauncher):
        return checked, view, None
    if options.detach:
        raise UsageError("a search needs its launch to stay and propose; leave out --detach")
    if view.is_over:
        return checked, view, None
    require_clock(store)
    try:
        from depthrate.orchestrator.search.studies import SearchFeed
    except ImportError as error:
        raise UsageError(f"a search needs Optuna ({error}); install it: pip install 'depthrate[search]'") from None
    feed = SearchFeed(view, device=machines.device, workers=machines.workers, memory_bytes=machines.memory_bytes)
    return replace(checked, trials=view.trials()), view, feed


def _run_driver(run: _Run, executor: Executor, estimate_s: Estimate) -> LaunchEnd | RunState:
    """Drive the packs from this process; return the end of the launch, or the state if this process leaves before."""
    if run.options.detach:
        sent = submit(run.plan, run.store, executor, estimate_s, run.options)
        run.say(f"{counted(sent.on_their_way, 'pack is', 'packs are')} on the way; how far: {run.next('status')}")
        if sent.elsewhere:
            run.say(f"{counted(sent.elsewhere, 'pack is', 'packs are')} another launch's, which was there first")
        if sent.job is not None:
            run.say(f"job {sent.job.job_id} submits {sent.not_submitted} more as the cluster takes them")
        elif sent.not_submitted:
            left = counted(sent.not_submitted, "pack is", "packs are")
            print_line(f"depthrate: {left} not submitted; go on: {resume_command(run.options)}", stderr=True)
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
        run.say(f"stopped; resume: {resume_command(run.options)}")
        return RunState.INTERRUPTED


def _submit_driver(run: _Run, site: RemoteLauncher) -> LaunchEnd | RunState:
    """Submit the whole launch and follow it; return its end, or the state if this process leaves before."""
    job = send_launch(run.plan, run.store, site, run.options)
    run.say(f"job {job.job_id}; how far: {run.next('status')}")
    if run.options.detach:
        return RunState.DETACHED
    try:
        return follow_launch(run.plan, run.store, site, job, run.console)
    except KeyboardInterrupt:
        run.say(f"left; the job goes on; end it: {run.next('cancel')}; look again: {resume_command(run.options)}")
        return RunState.INTERRUPTED


def _conclude(run: _Run, end: LaunchEnd | None) -> RunState:
    """Fit the committed trials and report the state of the sweep."""
    checked, view, plan = run.plan.checked, run.view, run.plan
    snapshot = plan.snapshot if end is None else end.snapshot
    if view is not None:
        view.refresh()
        checked = replace(checked, trials=view.trials())
        run.say(view.sentence())
    left = len({trial.trial_id for trial in checked.trials} - snapshot.trial_ids())
    is_all = left == 0 and (view is None or view.is_over)
    if is_all:
        run.say(f"{_all_trials(len(checked.trials))} committed ({time.monotonic() - run.started:.0f} s)")
        _say_diverged(run, checked, snapshot)
    found = find_code_mismatch(checked, snapshot)
    if found is not None and found.versions:  # by a launch that began at the same time, say
        text = describe(found, checked, run.store, resume_command(run.options), "nothing was fitted")
        print_line(f"depthrate: {text}", stderr=True)
        return RunState.INCOMPLETE
    if view is not None:
        _remember(run.store, checked)
        print_table(run.console, *view.table())
    if len(plan.done) + left < len(checked.trials) or left == 0:
        from depthrate.orchestrator.api.fit import fit_sweep  # scipy and pandas, which many runs do without

        more = next_call("fit", checked.sweep.name, run.store.url, "--wide")
        print_fit_result(run.console, fit_sweep(checked, run.store, view), more=more)
    if not is_all:
        return _report_incomplete(run, end, left)
    _remember(run.store, checked)
    if end is not None and end.job is not None:
        shutil.rmtree(end.job.folder, ignore_errors=True)
    run.say(f"picture: {run.next('report')}")
    return RunState.COMPLETE


def _all_trials(count: int) -> str:
    return "the trial is" if count == 1 else f"all {count} trials are"


def _remember(store: Store, checked: CheckedSweep) -> None:
    """Make this the sweep that status, fit and report mean by its name, also when there was nothing to run."""
    with suppress(OSError):
        write_launch(store, checked)


def _say_diverged(run: _Run, checked: CheckedSweep, snapshot: Snapshot) -> None:
    ours = {trial.trial_id for trial in checked.trials}
    rows = snapshot.trials.select(["trial_id", "status"]).to_pylist()
    count = sum(row["trial_id"] in ours and row["status"] == "diverged" for row in rows)
    if count:
        run.say(f"{count} of them diverged: depthrate query \"select * from trials where status = 'diverged'\"")


def _report_incomplete(run: _Run, end: LaunchEnd | None, left: int) -> RunState:
    """Report why trials are left, and the command that resumes."""
    go_on = resume_command(run.options)
    if end is not None and end.job is not None:
        print_line(f"depthrate: {end.job_end}\n  try what is left again: {go_on}", stderr=True)
    outcome = None if end is None else end.outcome
    if outcome is None:
        return RunState.INCOMPLETE
    if outcome.interrupted:
        goes_on = run.machines.outlives_driver and not outcome.cancelled
        how = "cancelled" if outcome.cancelled else "left" if goes_on else "interrupted"
        run.say(f"{how} with {counted(left, 'trial')} to do; resume: {go_on}")
        if goes_on:
            run.say(f"the jobs go on; end them: {run.next('cancel')}")
    if outcome.failures or not outcome.interrupted:
        _print_failures(outcome, left, end.unseen if end else 0, run.options)
    return RunState.INTERRUPTED if outcome.interrupted else RunState.INCOMPLETE


def _print_failures(outcome: Outcome, left: int, unseen: int, options: LaunchOptions) -> None:
    print_line(f"depthrate: {counted(left, 'trial is', 'trials are')} not done", stderr=True)
    if unseen:
        print_line(
            f"  {unseen} of them this launch has committed: the store's listing lags and does not show them yet; look again "
            "later, nothing is lost",
            stderr=True,
        )
    alike: dict[str, list[PackFailure]] = {}
    for failure in outcome.failures:
        alike.setdefault(error_pattern(failure.error), []).append(failure)
    for failures in list(alike.values())[:10]:
        trial_ids = [trial_id for failure in failures for trial_id in failure.pack.trial_ids]
        nodes = sorted({failure.node for failure in failures if failure.node})
        where = (
            f" on {', '.join(nodes[:5])}{' and others' if len(nodes) > 5 else ''}"
            if len(failures) > 1 and nodes
            else ""
        )
        of_packs = f" in {counted(len(failures), 'pack')}" if len(failures) > 1 else ""
        see = next_call("logs", trial_ids[0] if trial_ids else "?", options.store)
        error = failures[0].error.rstrip(".")
        print_line(f"  {counted(len(trial_ids), 'trial')}{of_packs}{where}: {error}; see: {see}", stderr=True)
    if outcome.stopped_early:
        print_line("  stopped early: several packs failed with the same error", stderr=True)
    print_line(f"  try what is left again: {resume_command(options)}", stderr=True)
