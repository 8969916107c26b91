"""`depthrate run` once its plan is made: packs driven from here, or the whole launch sent away, and a clean end."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console

from depthrate.orchestrator.attempts.liveness import heartbeat_s
from depthrate.orchestrator.code.store import keep_source
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import Executor, LaunchJob, RemoteLauncher, SubmitError
from depthrate.orchestrator.executors.options import JobOptions, LaunchOptions
from depthrate.orchestrator.launch.autocompact import AutoCompactor
from depthrate.orchestrator.launch.code_changes import find_code_mismatch
from depthrate.orchestrator.launch.display import JobWatcher, watcher_for
from depthrate.orchestrator.launch.driver import Driver
from depthrate.orchestrator.launch.events import EventLog
from depthrate.orchestrator.launch.launch_plan import CheckedSweep, Plan, stale_checkpoints
from depthrate.orchestrator.launch.notify import Notifier
from depthrate.orchestrator.launch.outcome import Detached, Outcome
from depthrate.orchestrator.launch.pack_queue import Feed
from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.attempts.live_curves import delete_ended_live
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.commits.await_commits import await_commits
from depthrate.storage.commits.snapshot import Snapshot, take_snapshot
from depthrate.storage.files.data_folder import open_data_folder
from depthrate.storage.files.format import FORMAT, Format
from depthrate.storage.files.paths import checkpoint_folder
from depthrate.storage.files.store import Store, StoreError
from depthrate.tasks.interface import Task

if TYPE_CHECKING:
    from depthrate.orchestrator.executors.base import Estimate

log = logging.getLogger("depthrate")


@dataclass(frozen=True)
class LaunchEnd:
    """How a launch ended, and what the store held then."""

    snapshot: Snapshot
    outcome: Outcome | None = None
    """Of a launch that was driven from here."""
    job: LaunchJob | None = None
    """In which a launch ran that was sent away."""
    job_end: str = ""
    """How that job ended, in words."""
    unseen: int = 0
    """Trials that it has committed and that the store's listing does not show."""


def launch(
    plan: Plan,
    store: Store,
    executor: Executor,
    estimate_s: Estimate,
    options: LaunchOptions,
    *,
    console: Console,
    feed: Feed | None = None,
    notifier: Notifier | None = None,
) -> LaunchEnd:
    """Run a plan's packs, and those that a search adds, until all are committed, given up, or Ctrl-C.

    Raises:
        StoreError: the store cannot be written, or other processes would not see it.
        ValueError: the executor cannot be started.
    """
    of_jobs = _begin(plan, store, executor, options)
    executor.start(plan.num_packs_expected)
    autocompactor = AutoCompactor(of_jobs.store)
    sweep = plan.checked.sweep.name
    with (
        watcher_for(plan, console) as watcher,
        EventLog(store, sweep, watcher.say, calls=executor.scheduler_calls) as events,
    ):
        watch = events.watching(watcher if notifier is None else notifier.watching(watcher))
        driver = Driver(
            plan, store, executor, of_jobs, watch, upkeep=autocompactor.refresh, estimate_s=estimate_s, feed=feed
        )
        with _Interrupts(driver, console):
            try:
                outcome = driver.run()
            finally:
                executor.close()
                autocompactor.close(wait=False)
    done = _done(plan, outcome) if feed is None else set()  # a search leaves out trials that it prunes
    snapshot = await_commits(store, done)
    if not outcome.interrupted:
        if autocompactor.refresh(snapshot):
            console.print("putting small files together, as depthrate compact does")
        autocompactor.close(wait=True)
    committed = snapshot.trial_ids()
    own = [pack.pack_id for pack in plan.packs if committed.issuperset(pack.trial_ids)]
    with contextlib.suppress(OSError):  # what is left of one costs room and no result
        own += stale_checkpoints(store, committed)  # of packs that others formed, and workers whose launch was killed
        delete_ended_live(store, committed, sweep=plan.checked.sweep.name)
    delete_checkpoints(dict.fromkeys(own), store)
    return LaunchEnd(snapshot, outcome, unseen=len(done - committed))


def _done(plan: Plan, outcome: Outcome) -> set[str]:
    """Return the trials that a launch which went to its end has committed: all but those that it gave up."""
    if outcome.stopped_early or outcome.interrupted:
        return set()
    given_up = {trial_id for failure in outcome.failures for trial_id in failure.pack.trial_ids}
    packs = (*plan.packs, *plan.in_flight.values())
    return {trial_id for pack in packs for trial_id in pack.trial_ids} - given_up


def submit(plan: Plan, store: Store, executor: Executor, estimate_s: Estimate, options: LaunchOptions) -> Detached:
    """Submit a plan's packs to machines that go on without us.

    Raises:
        StoreError: the store cannot be written.
    """
    of_jobs = _begin(plan, store, executor, options)
    supervise = partial(executor.supervise, plan.packs, estimate_s, of_jobs)
    try:
        if job := supervise():
            return Detached(len(plan.in_flight), 0, len(plan.packs), job)
    except SubmitError as error:
        log.warning("%s", error)
    executor.start(plan.num_packs_expected)
    sent = Driver(plan, store, executor, of_jobs, lambda progress: None, estimate_s=estimate_s).detach()
    try:
        return replace(sent, job=supervise()) if sent.not_submitted else sent  # the limit was learnt on the way
    except SubmitError as error:
        log.warning("%s", error)
        return sent


def send_launch(plan: Plan, store: Store, site: RemoteLauncher, options: LaunchOptions) -> LaunchJob:
    """Send the whole launch away, or find the one that is on its way already; it goes on without us.

    Raises:
        StoreError: the store cannot be written.
        ValueError: a scheduler refused, or does not answer.
    """
    require_clock(store)
    write_launch(store, plan.checked)
    return site.send_launch(replace(options, code_version=keep_source(store, plan.checked.task)))


def follow_launch(plan: Plan, store: Store, site: RemoteLauncher, job: LaunchJob, console: Console) -> LaunchEnd:
    """Show how a launch that was sent away is getting on, until its job is over."""
    job_end = site.follow(job, JobWatcher(plan.checked, store, console).show)
    return LaunchEnd(take_snapshot(store), job=job, job_end=job_end)


def write_launch(store: Store, checked: CheckedSweep) -> None:
    """Make this the sweep that status, fit and report mean by its name."""
    sweep = checked.sweep
    write_spec(store, sweep.name, sweep.spec_hash(), sweep.spec(), [trial.trial_id for trial in checked.trials])


def _begin(plan: Plan, store: Store, executor: Executor, options: LaunchOptions) -> JobOptions:
    """Check the store, note the launch in it, and return what all its jobs share."""
    store.require_place()
    require_clock(store)
    if not plan.snapshot.listing and store.format == Format():
        store.write_format(Format(FORMAT))
    delete_checkpoints(plan.stale_checkpoints, store)
    write_launch(store, plan.checked)
    _check_not_removed(store, plan)
    found = find_code_mismatch(plan.checked, plan.snapshot)
    git_sha, git_dirty = _git_state(_task_folder(plan.checked.task))
    engine, why = executor.engine(plan.checked.sweep.engine)
    if why is not None and plan.checked.task.engine is not None:
        log.warning("%s", why)
    num_at_once = executor.max_parallel(executor.workers if plan.checked.sweep.search else len(plan.packs))
    decided = {
        "store": store.address,
        "data": options.data or open_data_folder().url,
        "device": executor.device,
        "engine": engine,
        "code_version": keep_source(store, plan.checked.task),
        "shares_libraries": not executor.is_here,
        "notify": None,  # may be an address with a key in it
    }
    return JobOptions(
        **(vars(options) | decided),
        git_sha=git_sha,
        git_dirty=git_dirty,
        accepted_codes=() if found is None else sorted(found.accepted),
        gpu_share=executor.gpu_share,
        beat_s=heartbeat_s(store, num_at_once),
    )


def _check_not_removed(store: Store, plan: Plan) -> None:
    """Check that nobody removed what the plan counts on before it was written down who asks for it.

    Raises:
        StoreError: somebody did.
    """
    if store.list("removals") and (gone := plan.done - take_snapshot(store).trial_ids()):
        raise StoreError(
            f"{counted(len(gone), 'trial that was', 'trials that were')} done removed meanwhile; call it again to run them too"
        )


class _Interrupts:
    """Ctrl-C, SIGTERM or a closed terminal once: checkpoint and stop; twice: stop now."""

    def __init__(self, driver: Driver, console: Console):
        self._driver, self._console = driver, console

    def __enter__(self) -> None:
        self._before = {s: signal.signal(s, self._on_signal) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._driver.stopping:
            raise KeyboardInterrupt
        goes_on = "leaving: the jobs go on without us"
        stops = "stopping: each worker saves a checkpoint after its current step (Ctrl-C again to stop at once)"
        self._console.print(goes_on if self._driver.executor.outlives_driver else stops)
        self._driver.stop()


def _task_folder(task: Task) -> Path:
    return Path(__file__).parent if task.code is None else task.code.root


def _git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return the commit of the task's code and whether it was changed since; nulls outside a repository."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    sha = git("rev-parse", "HEAD")
    changes = git("status", "--porcelain") if sha else None
    return sha or None, None if changes is None else bool(changes)


def delete_checkpoints(pack_ids: Iterable[str], store: Store) -> None:
    """Delete the checkpoints of packs that are done (by another launch, after they were halved, or before a crash).

    What is left of one costs room and no result: the next launch, and `verify`, find it.
    """
    wanted = set(pack_ids)
    if not wanted:
        return
    try:
        there = {path.split("/")[1] for path in store.list("checkpoints")}
    except OSError as error:
        log.warning("checkpoints are not listed, and not deleted: %s", error)
        return
    for pack_id in wanted & there:  # few are there, and asking for one that is not costs requests too
        try:
            store.delete(checkpoint_folder(pack_id))
        except OSError as error:
            log.warning("checkpoint of pack %s, which is done, is not deleted: %s", pack_id, error)
