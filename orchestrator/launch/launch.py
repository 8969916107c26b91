"""Run a plan: drive its packs from this process, or submit them and leave, and clean up at the end."""

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console

from depthrate.orchestrator.attempts.liveness import heartbeat_s
from depthrate.orchestrator.attempts.options import JobOptions, LaunchOptions
from depthrate.orchestrator.code.store import keep_source
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.executors.base import Estimate, Executor, usable_engine
from depthrate.orchestrator.launch.code_changes import find_code_mismatch
from depthrate.orchestrator.launch.display import make_watcher
from depthrate.orchestrator.launch.driver import Driver
from depthrate.orchestrator.launch.events import EventLog
from depthrate.orchestrator.launch.launch_plan import CheckedSweep, Plan, read_checkpoints, stale_checkpoints
from depthrate.orchestrator.launch.notify import Notifier
from depthrate.orchestrator.launch.outcome import Detached, Outcome, Progress
from depthrate.orchestrator.launch.pack_queue import Feed
from depthrate.storage.attempts.clocks import require_clock
from depthrate.storage.attempts.live_curves import delete_ended_live
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.commits.snapshot import Snapshot, await_commits, take_snapshot
from depthrate.storage.files.data_folder import open_data_folder
from depthrate.storage.files.format import FORMAT_FILE
from depthrate.storage.files.paths import checkpoint_path
from depthrate.storage.files.store import Store, StoreError
from depthrate.tasks.python_process import start_python

log = logging.getLogger("depthrate")
COMPACT_THRESHOLD = 512
"""Number of loose commits of one sweep at which a launch starts a compaction."""


@dataclass(frozen=True)
class LaunchEnd:
    """The end of a launch and the store's snapshot at that time."""

    snapshot: Snapshot
    outcome: Outcome | None = None
    """Outcome of a launch that this process drove."""
    not_visible: int = 0
    """Number of trials that the launch has committed and that the store's listing does not show yet."""


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
    """Run a plan's packs and the packs that a search adds, until all are committed or given up, or until Ctrl-C.

    Raises:
        StoreError: If the store cannot be written, or other processes would not see it.
        ValueError: If the executor cannot be started.
    """
    job_options = _prepare(plan, store, executor, options)
    executor.start(plan.num_packs_expected)
    autocompactor = AutoCompactor(job_options.store)
    sweep, task = plan.checked.sweep.name, plan.checked.task
    # a task without declared metrics may return any, so that a wrong name shows only in its first results
    is_unchecked = bool(plan.checked.sweep.fit) and not task.measurements
    with (
        make_watcher(plan, console) as watcher,
        EventLog(store, sweep, watcher.print_line, calls=executor.scheduler_calls) as events,
    ):

        def watch(progress: Progress) -> None:
            nonlocal is_unchecked
            events.publish()
            if is_unchecked and progress.trials_done > len(plan.done):
                # imported here, as neither a plan nor most launches query results
                from depthrate.orchestrator.analysis.observations import missing_metrics
                from depthrate.orchestrator.analysis.open_results import results_of

                is_unchecked, results = False, results_of(store, task)
                for message in missing_metrics(results, plan.checked.sweep.fit, plan.checked.trials.ids):
                    watcher.print_line(f"warning: {message}")
            watcher(progress)
            if notifier is not None:
                notifier.watch(progress)

        driver = Driver(
            plan, store, executor, job_options, watch, upkeep=autocompactor.refresh, estimate_s=estimate_s, feed=feed
        )
        with _handled_signals(driver, console):
            try:
                outcome = driver.run()
            finally:
                executor.close()
                autocompactor.close(wait=False)
    done = _committed_ids(plan, outcome) if feed is None else set()  # a search commits no pruned trials
    snapshot = await_commits(store, done)
    if not outcome.interrupted:
        if autocompactor.refresh(snapshot):
            console.print("compacting the store, as depthrate compact does")
        autocompactor.close(wait=True)
    committed = snapshot.trial_ids()
    pack_ids = [pack.pack_id for pack in plan.packs if committed.issuperset(pack.trial_ids)]
    with contextlib.suppress(OSError):  # a remaining checkpoint costs space, not results
        pack_ids += stale_checkpoints(read_checkpoints(store), committed)  # left by peer launches and killed workers
        delete_ended_live(store, committed, sweep=plan.checked.sweep.name)
    delete_checkpoints(dict.fromkeys(pack_ids), store)
    return LaunchEnd(snapshot, outcome, not_visible=len(done - committed))


def _committed_ids(plan: Plan, outcome: Outcome) -> set[str]:
    """Return the trials that a finished launch has committed, which are all trials except those given up."""
    if outcome.stopped_early or outcome.interrupted:
        return set()
    given_up = {trial_id for failure in outcome.failures for trial_id in failure.pack.trial_ids}
    packs = (*plan.packs, *plan.in_flight.values())
    return {trial_id for pack in packs for trial_id in pack.trial_ids} - given_up


def submit(plan: Plan, store: Store, executor: Executor, estimate_s: Estimate, options: LaunchOptions) -> Detached:
    """Submit a plan's packs to an executor whose jobs continue without this process.

    Raises:
        StoreError: If the store cannot be written.
    """
    job_options = _prepare(plan, store, executor, options)
    executor.start(plan.num_packs_expected)
    return Driver(plan, store, executor, job_options, lambda progress: None, estimate_s=estimate_s).detach()


def write_launch(store: Store, checked: CheckedSweep) -> None:
    """Store the sweep's spec, so that status, fit and report use it for this name."""
    sweep = checked.sweep
    write_spec(store, sweep.name, sweep.spec_hash(), sweep.spec(), checked.trials.ids)


def _prepare(plan: Plan, store: Store, executor: Executor, options: LaunchOptions) -> JobOptions:
    """Check the store, record the launch in it, and return the options that all its attempts share."""
    store.check_location()
    require_clock(store)
    if store.size(FORMAT_FILE) is None:
        store.write_format()
    delete_checkpoints(plan.stale_checkpoints, store)
    write_launch(store, plan.checked)
    _check_not_removed(store, plan)
    mismatch = find_code_mismatch(plan.checked, plan.snapshot)
    code = plan.checked.task.code
    git_sha, git_dirty = _git_state(Path(__file__).parent if code is None else code.root)
    engine, reason = usable_engine(executor, plan.checked.sweep.engine)
    if reason is not None and plan.checked.task.engine is not None:
        log.warning("%s", reason)
    resolved = {
        "store": store.address,
        "data": open_data_folder().url,
        "device": executor.device,
        "engine": engine,
        "code_version": keep_source(store, plan.checked.task),
        "shares_libraries": not executor.is_local,
        "notify": None,  # the URL may contain a key
    }
    return JobOptions(
        **(vars(options) | resolved),
        git_sha=git_sha,
        git_dirty=git_dirty,
        accepted_codes=() if mismatch is None else sorted(mismatch.accepted),
        gpu_share=executor.gpu_share,
        beat_s=heartbeat_s(store, is_local=executor.is_local),
    )


def _check_not_removed(store: Store, plan: Plan) -> None:
    """Raise StoreError if a committed trial of the plan was removed before the launch was recorded."""
    if store.list("removals") and (removed := plan.done - take_snapshot(store).trial_ids()):
        raise StoreError(
            f"{counted(len(removed), 'committed trial was', 'committed trials were')} removed while the launch was planned. "
            "Run the command again to rerun them."
        )


class AutoCompactor:
    """Compacts the store in a separate process whenever a sweep has many loose commits."""

    def __init__(self, store: str, threshold: int = COMPACT_THRESHOLD):
        self._store, self._threshold = store, threshold
        self._process: subprocess.Popen[bytes] | None = None

    def refresh(self, snapshot: Snapshot) -> bool:
        """Start a compaction if a sweep needs one and no compaction is running. Return whether a compaction was started."""
        if max(snapshot.num_loose().values(), default=0) < self._threshold:
            return False
        if self._process is not None and self._process.poll() is None:
            return False
        self._process = start_python(
            *("depthrate", "compact", "--store", self._store),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches only the launch, which then terminates the compaction
        )
        os.setpriority(os.PRIO_PROCESS, self._process.pid, 10)  # training has priority
        return True

    def close(self, *, wait: bool) -> None:
        """Wait for a running compaction, or terminate it, which leaves unmerged files unchanged."""
        if self._process is None:
            return
        if not wait:
            self._process.terminate()
        self._process.wait()


@contextlib.contextmanager
def _handled_signals(driver: Driver, console: Console) -> Iterator[None]:
    """Handle Ctrl-C, SIGTERM and a closed terminal: the first saves checkpoints and stops, the second stops at once."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        if driver.stopping:
            raise KeyboardInterrupt
        detaching = "detaching: the jobs keep running"
        stopping = "stopping: each worker saves a checkpoint after its current step (Ctrl-C again to stop at once)"
        console.print(detaching if driver.executor.outlives_driver else stopping)
        driver.stop()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, on_signal) for number in signals}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return the git commit of a folder and whether it has uncommitted changes, or (None, None) outside a repository."""

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
    """Delete the checkpoints of committed packs.

    A checkpoint that cannot be deleted costs space, not results. The next launch and `verify` find it.
    """
    wanted = set(pack_ids)
    if not wanted:
        return
    try:
        existing = {path.split("/")[1] for path in store.list("checkpoints")}
    except OSError as error:
        log.warning("checkpoints of committed packs not deleted, because they cannot be listed: %s", error)
        return
    for pack_id in wanted & existing:  # few checkpoints exist, and deleting a missing one costs requests too
        try:
            store.delete(checkpoint_path.folder(pack_id))
        except OSError as error:
            log.warning("checkpoint of committed pack %s not deleted: %s", pack_id, error)
