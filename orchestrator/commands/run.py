"""`depthrate run`: plan, launch what is pending, fit, and say how it ended and how to go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from depthrate.orchestrator.commands.launch_arguments import LaunchRequest, plan_at, plan_sentence
from depthrate.orchestrator.executors.place import Place
from depthrate.orchestrator.plan import CheckedSweep, Plan, check_contents, make_estimate
from depthrate.orchestrator.search.proposals import SearchView, with_search
from depthrate.orchestrator.terminal import make_console, print_search, print_warnings
from depthrate.orchestrator.usage import UsageError, next_call
from depthrate.orchestrator.watch import JobWatcher
from depthrate.storage.data_folder import DataFolder, open_data_folder
from depthrate.storage.snapshot import Snapshot
from depthrate.storage.specs import write_spec
from depthrate.storage.store import Store, open_store

if TYPE_CHECKING:
    from depthrate.orchestrator.driver import Outcome
    from depthrate.orchestrator.launch import LaunchEnd
    from depthrate.orchestrator.search.studies import SearchFeed


def run_sweep(request: LaunchRequest, *, detach: bool, checkpoint_s: float) -> int:
    """Run what is pending of a sweep, fit its rates, and return the exit code: 0 all done, 1 not all, 130 interrupted.

    Raises:
        ValueError: one of our packages' errors for what a user gave; nothing was started then.
    """
    if detach and request.executor != "slurm" and not request.is_allocation:
        raise UsageError(
            f"--detach goes with --executor slurm, or ray with --cluster; {request.executor} workers end with their launch"
        )
    started = time.monotonic()
    console, data = make_console(), open_data_folder()
    checked = request.check(data)
    if request.is_allocation:
        return _run_in_allocation(request, checked, console, data, detach=detach, checkpoint_s=checkpoint_s)
    if detach and checked.sweep.search is not None:
        raise UsageError("a search needs its launch to stay and propose; leave out --detach")
    store = open_store(request.store)
    place = request.open_place(checked.sweep, store)
    checked, view, feed = _start_search(checked, store, place)
    plan = plan_at(place, checked, store)
    check_contents(plan, data)
    print_warnings(plan.snapshot.problems)
    console.print(plan_sentence(plan), highlight=False)
    if view is not None and feed is not None:
        console.print(view.sentence(), highlight=False)
        feed.hand_out(trial_id for pack in (*plan.packs, *plan.underway.values()) for trial_id in pack.trial_ids)
    end: LaunchEnd | None = None
    if plan.packs or plan.underway:
        from depthrate.orchestrator.launch import launch, submit

        estimate_s = make_estimate(plan, store)
        place.check(plan, estimate_s)
        console.print(f"{place.sentence()}; store {store.url}", highlight=False)
        if detach:
            count = submit(plan, store, place, estimate_s, data=data.url, checkpoint_s=checkpoint_s)
            how_far = next_call("status", checked.sweep.name, request.store)
            console.print(f"{count} packs are on their way; how far: {how_far}")
            return 0
        try:
            end = launch(
                plan, store, place, estimate_s, data=data.url, checkpoint_s=checkpoint_s, console=console, feed=feed
            )
        except KeyboardInterrupt:
            console.print(f"stopped; resume: {request.again()}", highlight=False)
            return 130
    return _conclude(request, console, store, plan, view, end, started)


def _run_in_allocation(
    request: LaunchRequest,
    checked: CheckedSweep,
    console: Console,
    data: DataFolder,
    *,
    detach: bool,
    checkpoint_s: float,
) -> int:
    """Submit a job that launches the sweep inside, follow it, and return the exit code."""
    started = time.monotonic()
    store = open_store(request.store)
    place = request.open_place(checked.sweep, store)
    checked, view = with_search(checked, store)
    plan = plan_at(place, checked, store)
    check_contents(plan, data)
    print_warnings(plan.snapshot.problems)
    console.print(plan_sentence(plan), highlight=False)
    if not plan.packs and (view is None or view.is_over):
        return _conclude(request, console, store, plan, view, None, started)
    from depthrate.orchestrator.executors.ray_allocation import AllocationPlace

    assert isinstance(place, AllocationPlace)
    place.check(plan, make_estimate(plan, store))
    store.check_writable()
    _remember(store, checked)
    job = place.running()
    console.print(f"{place.sentence()}; store {store.url}", highlight=False)
    if job is None:
        job = place.submit(request.words_inside(checkpoint_s), data.url)
    status = next_call("status", checked.sweep.name, request.store)
    console.print(f"job {job.job_ids[0]}; how far: {status}", highlight=False)
    if detach:
        return 0
    try:
        state, printed = place.follow(job, JobWatcher(checked, store, console).show)
    except KeyboardInterrupt:
        cancel = next_call("cancel", checked.sweep.name, request.store)
        console.print(f"left; the job goes on; end it: {cancel}; look again: {request.again()}", highlight=False)
        return 130
    checked, view = with_search(checked, store)
    plan = plan_at(place, checked, store)
    code = _conclude(request, console, store, plan, view, None, started)
    if code:
        words = " / ".join(printed.strip().splitlines()[-3:])
        print(f"depthrate: job {job.job_ids[0]} ended as {state.state}: {words}; see {job.folder}", file=sys.stderr)
        print(f"  try what is left again: {request.again()}", file=sys.stderr)
    else:
        place.remove_folder(job)
    return code


def _start_search(
    checked: CheckedSweep, store: Store, place: Place
) -> tuple[CheckedSweep, SearchView | None, SearchFeed | None]:
    """Propose what can be proposed now, and return the sweep with all trials so far; nothing happens without a search."""
    checked, view = with_search(checked, store)
    if view is None or view.is_over:
        return checked, view, None
    store.check_writable()
    try:
        from depthrate.orchestrator.search.studies import SearchFeed
    except ImportError as error:
        raise UsageError(f"a search needs Optuna ({error}); install it: pip install 'depthrate[search]'") from None
    feed = SearchFeed(view, device=place.device, workers=place.workers, memory_bytes=place.memory_bytes)
    return replace(checked, trials=view.trials()), view, feed


def _conclude(
    request: LaunchRequest,
    console: Console,
    store: Store,
    plan: Plan,
    view: SearchView | None,
    end: LaunchEnd | None,
    started: float,
) -> int:
    """Fit what is there, say how the sweep stands, and return the exit code."""
    checked = plan.checked
    snapshot, outcome = (plan.snapshot, None) if end is None else (end.snapshot, end.outcome)
    if view is not None:
        view.refresh()
        checked = replace(checked, trials=view.trials())
        console.print(view.sentence(), highlight=False)
    left = len({trial.trial_id for trial in checked.trials} - snapshot.trial_ids())
    is_all = left == 0 and (view is None or view.is_over)
    if is_all:
        took_s = time.monotonic() - started
        console.print(f"all {len(checked.trials)} trials are committed ({took_s:.0f} s)", highlight=False)
        _print_diverged(console, checked, snapshot)
    if view is not None:
        _remember(store, checked)
        print_search(console, view)
    if len(plan.done) + left < len(checked.trials) or left == 0:
        from depthrate.orchestrator.commands.fit import fit_and_print

        fit_and_print(console, checked, store, view)
    if is_all:
        _remember(store, checked)
        console.print(f"picture: {next_call('report', checked.sweep.name, request.store)}", highlight=False)
        return 0
    interrupted = outcome is not None and outcome.interrupted
    if outcome is not None and interrupted:
        how = "cancelled" if outcome.cancelled else "left" if request.executor == "slurm" else "interrupted"
        console.print(f"{how} with {left} trials to do; resume: {request.again()}", highlight=False)
        if how == "left":
            cancel = next_call("cancel", checked.sweep.name, request.store)
            console.print(f"the jobs go on; end them: {cancel}", highlight=False)
    if outcome is not None and (outcome.failures or not interrupted):
        _print_failures(outcome, left, 0 if end is None else end.unseen, request)
    return 130 if interrupted else 1


def _remember(store: Store, checked: CheckedSweep) -> None:
    """Make this the sweep that status, fit and report mean by its name, also when there was nothing to run."""
    with suppress(OSError):
        trial_ids = [trial.trial_id for trial in checked.trials]
        write_spec(store, checked.sweep.name, checked.sweep.spec_hash(), checked.sweep.spec(), trial_ids)


def _print_diverged(console: Console, checked: CheckedSweep, snapshot: Snapshot) -> None:
    ours = {trial.trial_id for trial in checked.trials}
    rows = snapshot.trials.select(["trial_id", "status"]).to_pylist()
    count = sum(row["trial_id"] in ours and row["status"] == "diverged" for row in rows)
    if count:
        console.print(
            f"{count} of them diverged: depthrate query \"select * from trials where status = 'diverged'\"",
            highlight=False,
        )


def _print_failures(outcome: Outcome, left: int, unseen: int, request: LaunchRequest) -> None:
    print(f"depthrate: {left} trials are not done", file=sys.stderr)
    if unseen:
        print(
            f"  {unseen} of them this launch has committed: the store's listing lags and does not show them yet; look again "
            "later, nothing is lost",
            file=sys.stderr,
        )
    for failure in outcome.failures[:10]:
        trials: Sequence[object] = failure.pack.trials
        first = failure.pack.trial_ids[0] if trials else "?"
        see = next_call("logs", first, request.store)
        print(f"  {len(trials)} trials: {failure.error}; see: {see}", file=sys.stderr)
    if outcome.stopped_early:
        print("  stopped early: several packs failed with the same error", file=sys.stderr)
    print(f"  try what is left again: {request.again()}", file=sys.stderr)
