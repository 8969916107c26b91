"""Output of `run` and `plan`: what is planned, what it costs, and how a run ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from depthrate.grouping import grouped
from depthrate.orchestrator.api.planning import estimates_on, plan_on, resume_command
from depthrate.orchestrator.api.run import PlannedRun, RunEnd, end_run, plan_run
from depthrate.orchestrator.attempts.options import LaunchOptions
from depthrate.orchestrator.attempts.retry_policy import error_pattern
from depthrate.orchestrator.console.errors import next_call
from depthrate.orchestrator.console.tables import counted, make_console, print_line, print_table, print_warnings
from depthrate.orchestrator.executors.base import Estimate, Executor
from depthrate.orchestrator.launch.code_changes import (
    find_code_mismatch,
    mismatch_message,
    mixtures,
    unknown_code_message,
)
from depthrate.orchestrator.launch.estimates import Estimates
from depthrate.orchestrator.launch.launch import LaunchEnd, launch, submit
from depthrate.orchestrator.launch.launch_plan import Plan
from depthrate.orchestrator.launch.notify import Notifier
from depthrate.orchestrator.launch.outcome import Outcome, RunState
from depthrate.storage.files.delayed_call import call_after
from depthrate.sweeps.packing import Pack, gigabytes, predicted_bytes
from depthrate.sweeps.spec import SweepSpec

SLOW_NOTICE = "reading the sweep, its code and its data (custom data is hashed, unless it is streamed), and the store"
"""Notice printed if planning takes long."""
SLOW_NOTICE_AFTER_S = 5.0
"""Seconds until the notice is printed."""
PILOT = "depthrate run SWEEP --pilot"
MAX_VALUES_SHOWN = 6
"""Maximum number of values of a parameter printed per pack."""
MAX_ERRORS_SHOWN = 10
"""Maximum number of different errors printed after a run."""


def slow_notice(text: str = SLOW_NOTICE) -> AbstractContextManager[None]:
    """Print a notice in a terminal if the block takes long."""
    after_s = SLOW_NOTICE_AFTER_S if sys.stderr.isatty() else None  # stderr of a script is for errors
    return call_after(after_s, partial(print_line, text, stderr=True))


def pack_values(pack: Pack, names: Sequence[str]) -> list[str]:
    """Return the first values of some parameters in a pack, as one string per parameter."""
    texts = []
    for name in names:  # distinct by text, since lists are not hashable
        values = list(dict.fromkeys(str(trial.params[name]) for trial in pack.trials))
        texts.append(", ".join(values[:MAX_VALUES_SHOWN]) + (", ..." if len(values) > MAX_VALUES_SHOWN else ""))
    return texts


def plan_summary(plan: Plan) -> str:
    """Return a sentence about the committed and pending trials of a plan."""
    checked = plan.checked
    text = f"{checked.sweep.name}: {counted(len(checked.trials), 'trial')}, {len(plan.done)} done"
    text += f", {plan.num_pending} to run in {counted(len(plan.packs), 'pack')}" if plan.packs else ""
    return text + (f", {plan.num_resumed} of them from a checkpoint" if plan.num_resumed else "")


def peak_gb(pack: Pack, plan: Plan, target: Executor) -> float | None:
    """Return the predicted peak memory of a pack in GB, or None if the task does not predict it."""
    peak_bytes = predicted_bytes(pack, plan.checked.task, target.device)
    return None if peak_bytes is None else peak_bytes / 1e9


def cost_lines(plan: Plan, target: Executor, estimates: Estimates, details: Mapping[str, Any]) -> list[str]:
    """Return the expected cost of a plan, one line per item: hours, memory per worker, details of the executor."""
    lines = []
    hours = estimates.hours(plan.packs, target.workers)
    if hours is not None:
        wall = hours / min(target.workers, len(plan.packs))
        text = (
            f"about {hours:.2g} {estimates.unit}-hours, {wall:.2g} h with "
            f"{counted(target.workers, 'worker')} on {target.device}"
        )
        lines.append(
            f"{text}, {estimates.remark}"
            if estimates.remark
            else f"{text}. Calculated, not measured. To measure: {PILOT}"
        )
    else:
        lines.append(f"hours: unknown. To measure them on one pack: {PILOT}")
    if target.memory_bytes is not None and any(peak_gb(pack, plan, target) is not None for pack in plan.packs):
        lines.append(f"a worker may use {gigabytes(target.memory_bytes)} of memory")
    if details:
        lines.append(target.summary())
    for name, value in details.items():
        text = f"{value:.2g}" if isinstance(value, float) else str(value)
        if value is not None:
            lines.append(f"{name.replace('_', ' ')}:" + (f"\n{text}" if "\n" in text else f" {text}"))
    return lines


def run_sweep(options: LaunchOptions, loaded: SweepSpec | None = None) -> RunState:
    """Run the pending trials of a sweep, fit its rates, and print the plan, the progress and the end.

    Args:
        options: Sweep by name or file, and the options of the launch.
        loaded: The sweep, if it is neither in a file nor launched before.

    Raises:
        ValueError: An error of this project's packages for wrong input. Nothing was started.
    """
    started, console = time.monotonic(), make_console(quiet=options.quiet)
    with slow_notice():
        run = plan_run(options, loaded)
    notifier = None if options.notify is None else Notifier(options.notify, run.plan.checked.sweep.name)
    plan, view = run.plan, run.view
    print_warnings(plan.snapshot.problems)
    console.print(plan_summary(plan))
    mismatch = find_code_mismatch(plan.checked, plan.snapshot)
    if mismatch is not None and mismatch.num_unknown and plan.packs:
        console.print(unknown_code_message(mismatch.num_unknown))
    if view is not None and run.feed is not None:
        console.print(view.summary())
    if not run.has_work:
        return _print_end(run, end_run(run, None), console, started)

    def run_packs() -> RunState:
        end = _launch(run, console, notifier)
        if isinstance(end, RunState):
            return end
        return (
            _print_pilot(run, end, console) if options.pilot else _print_end(run, end_run(run, end), console, started)
        )

    return run_packs() if notifier is None else notifier.notify_end(run_packs)


def _launch(run: PlannedRun, console: Console, notifier: Notifier | None) -> LaunchEnd | RunState:
    """Run the packs and return the end of the launch, or the state if this process detaches or stops."""
    estimate_s = estimates_on(run.target, run.plan, run.store)
    run.target.check(run.plan.packs, estimate_s)
    console.print(f"{run.target.summary()}. Store: {run.store.url}")
    if run.options.detach:
        return _detach(run, estimate_s, console)
    arguments = (run.plan, run.store, run.target, estimate_s, run.options)
    try:
        return launch(*arguments, console=console, feed=run.feed, notifier=notifier)
    except KeyboardInterrupt:
        console.print(f"stopped. Resume: {resume_command(run.options)}")
        return RunState.INTERRUPTED


def _detach(run: PlannedRun, estimate_s: Estimate, console: Console) -> RunState:
    submitted = submit(run.plan, run.store, run.target, estimate_s, run.options)
    console.print(f"{counted(submitted.submitted, 'pack')} submitted. Progress: {_next(run, 'status')}")
    if submitted.claimed_by_peers:
        console.print(f"{counted(submitted.claimed_by_peers, 'pack is', 'packs are')} claimed by another launch")
    if submitted.not_submitted:
        rest = counted(submitted.not_submitted, "pack is", "packs are")
        why = f": {submitted.refusal.rstrip('.')}" if submitted.refusal else ""
        text = f"depthrate: {rest} not submitted{why}. Submit more once jobs have ended: {resume_command(run.options)}"
        print_line(text, stderr=True)
        return RunState.INCOMPLETE
    return RunState.DETACHED


def _print_pilot(run: PlannedRun, end: LaunchEnd, console: Console) -> RunState:
    """Print the cost of the remaining packs, estimated from finished packs."""
    target, store = run.target, run.store
    trial_ids = {trial_id for pack in run.plan.packs for trial_id in pack.trial_ids}
    if num_open := len(trial_ids - end.snapshot.trial_ids()):
        _print_incomplete(run, end, num_open, console)
        interrupted = end.outcome is not None and end.outcome.interrupted
        return RunState.INTERRUPTED if interrupted else RunState.INCOMPLETE
    plan = plan_on(target, run.plan.checked, store)
    console.print(f"pilot run of {counted(len(run.plan.packs), 'pack')} finished. {plan_summary(plan)}")
    if plan.packs:
        estimates = estimates_on(target, plan, store)
        details = target.details(plan.packs, estimates.allocated_s)
        costs = {name: value for name, value in details.items() if name.endswith("hours") or name == "jobs"}
        for line in cost_lines(plan, target, estimates, costs):
            console.print(line)
    console.print(f"run the rest: {resume_command(replace(run.options, pilot=False))}")
    return RunState.PROBED


def _print_end(run: PlannedRun, end: RunEnd, console: Console, started: float) -> RunState:
    """Print the state of the sweep and the fits, and return the state."""
    checked, view = end.checked, run.view
    if view is not None:
        console.print(view.summary())
    if end.num_open == 0 and (view is None or view.is_over):
        trials = "the trial is" if len(checked.trials) == 1 else f"all {len(checked.trials)} trials are"
        console.print(f"{trials} committed ({time.monotonic() - started:.0f} s)")
    if end.num_diverged:
        query = "select * from trials where status = 'diverged'"
        console.print(f'{end.num_diverged} of them diverged. List them: depthrate query "{query}"')
    if end.mismatch is not None:
        text = mismatch_message(end.mismatch, checked, run.store, resume_command(run.options), "nothing was fitted")
        print_line(f"depthrate: {text}", stderr=True)
        return end.state
    if view is not None:
        print_table(console, *view.table())
    state = end.state
    if end.has_results and _print_fits(run, end, console) and state is RunState.COMPLETE:
        state = RunState.NO_METRIC
    if run.options.report and end.state is not RunState.INTERRUPTED:
        _write_report(run, end, console)
    elif end.state is RunState.COMPLETE:
        console.print(f"report: {_next(run, 'report')}")
    if end.state is not RunState.COMPLETE:
        _print_incomplete(run, end.launch, end.num_open, console)
    return state


def _print_fits(run: PlannedRun, end: RunEnd, console: Console) -> bool:
    """Print the requested fits and warnings about mixed trials, and return whether a metric is missing in all trials."""
    if not end.checked.sweep.fit:
        print_warnings(mixtures(end.checked, run.store, end.snapshot))
        return False
    from depthrate.orchestrator.api.fit import fit_sweep  # imports scipy and duckdb, which many runs do not need
    from depthrate.orchestrator.console.sheet_table import print_fits

    result = fit_sweep(end.checked, run.store, run.view)
    print_warnings(result.warnings)
    print_fits(console, result, more=next_call("fit", end.checked.sweep.name, run.store.url, "--wide"))
    return bool(result.missing)


def _write_report(run: PlannedRun, end: RunEnd, console: Console) -> None:
    """Write the report, and print its path. A failure is printed and changes nothing about the run."""
    page = Path("report.html")
    try:
        from depthrate.orchestrator.api.report import ReportOptions, write_report  # imports pandas and matplotlib

        command = ["depthrate", "run", run.options.sweep, "--store", run.store.url]
        written = write_report(end.checked, run.store, command, page, ReportOptions())
        instead = f", in place of the report on {written.replaced}" if written.replaced is not None else ""
        console.print(f"wrote {page} ({written.megabytes:.1f} MB){instead}. Open it in a browser.")
    except Exception as error:  # the results are committed, whatever the reason
        print_line(f"depthrate: no report: {error}. Try again: {_next(run, 'report')}", stderr=True)


def _print_incomplete(run: PlannedRun, end: LaunchEnd | None, num_open: int, console: Console) -> None:
    """Print why trials are not done, and the command that resumes."""
    command = resume_command(run.options)
    if end is None or end.outcome is None:
        return
    outcome = end.outcome
    if outcome.interrupted:
        jobs_continue = run.target.outlives_driver and not outcome.cancelled
        how = "cancelled" if outcome.cancelled else "detached" if jobs_continue else "interrupted"
        console.print(f"{how} with {counted(num_open, 'trial')} to do. Resume: {command}")
        if jobs_continue:
            console.print(f"the jobs continue. Cancel them: {_next(run, 'cancel')}")
    if outcome.failures or not outcome.interrupted:
        _print_failures(outcome, num_open, end.not_visible, run.options)


def _print_failures(outcome: Outcome, num_open: int, unseen: int, options: LaunchOptions) -> None:
    lines = [f"depthrate: {counted(num_open, 'trial is', 'trials are')} not done"]
    if unseen:
        text = "committed, but the store's listing does not show them yet. Nothing is lost. Check again later."
        lines.append(f"  {unseen} of them are {text}")
    by_pattern = grouped(outcome.failures, lambda failure: error_pattern(failure.error))
    for failures in list(by_pattern.values())[:MAX_ERRORS_SHOWN]:
        trial_ids = [trial_id for failure in failures for trial_id in failure.pack.trial_ids]
        nodes = sorted({failure.node for failure in failures})
        where = ""
        if len(failures) > 1:
            where = f" in {counted(len(failures), 'pack')}"
            others = " and others" if len(nodes) > 5 else ""
            where += f" on {', '.join(nodes[:5])}{others}" if all(nodes) else ""
        command = next_call("logs", trial_ids[0] if trial_ids else "?", options.store)
        error = failures[0].error.rstrip(".")
        lines.append(f"  {counted(len(trial_ids), 'trial')}{where}: {error}. See: {command}")
    if outcome.stopped_early:
        lines.append("  stopped early: several packs failed with the same error")
    print_line("\n".join([*lines, f"  retry: {resume_command(options)}"]), stderr=True)


def _next(run: PlannedRun, verb: str) -> str:
    """Return a command for this sweep, as a suggestion to the user."""
    return next_call(verb, run.plan.checked.sweep.name, run.options.store)
