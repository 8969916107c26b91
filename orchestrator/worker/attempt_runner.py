"""Run one attempt of a pack: write its record, train, convert the results to tables, commit them, record the end."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import logging
import os
import resource
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from depthrate.orchestrator.analysis.columns import columns_of
from depthrate.orchestrator.attempts.node_health import is_hardware_error
from depthrate.orchestrator.attempts.record import Attempt
from depthrate.orchestrator.attempts.spec import BATCH_S, AttemptSpec
from depthrate.orchestrator.code.store import code_hash, load_stored_task
from depthrate.orchestrator.worker.context import StopFlag, WorkerContext, node_scratch_store
from depthrate.orchestrator.worker.heartbeat import Heartbeat, captured_output
from depthrate.orchestrator.worker.live_curve_writer import LiveCurves
from depthrate.orchestrator.worker.pruning import Judge, Pruning
from depthrate.storage.commits.commit import commit_trials, join_rows
from depthrate.storage.files.data_folder import worker_data_folder
from depthrate.storage.files.full import is_full, needed_bytes
from depthrate.storage.files.paths import DATA_TABLES, checkpoint_path, data_path, table_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.custom_columns import add_columns
from depthrate.storage.tables.feature_file import FeatureFile
from depthrate.storage.tables.from_task import layer_parts, pick_columns, skip_pandas, task_table
from depthrate.storage.tables.schema import TableError
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.tasks.importing import torch_errors
from depthrate.tasks.interface import Interrupted, ResultStatus, Tables, Task, TrialResult, has_diverged
from depthrate.tasks.native.compiler import NoCompilerError

if TYPE_CHECKING:
    import pyarrow as pa

MAX_COMMIT_DELAY_S = 20.0
"""Maximum time in seconds that a finished trial waits for its commit, if trials run in turn."""
COMMIT_LOCK_TIMEOUT_S = 10.0
"""Seconds to wait for the lock on finished trials before a hanging attempt is terminated."""
FULL_RETRY_INTERVAL_S = 10.0
"""Seconds between two writes to a full store."""
log = logging.getLogger("depthrate")


class CommitError(Exception):
    """The store refused a commit. No part of it is visible, and a retry may succeed."""


@dataclass(frozen=True)
class _UncommittedTrial:
    """A finished trial that is not committed yet."""

    row: dict[str, Any] | None
    """Row of the trials table, or None if the trial was pruned."""
    tables: dict[str, pa.Table]


class AttemptRunner:
    """Runs one attempt of a pack, or a batched attempt of several short packs."""

    def __init__(
        self, job: AttemptSpec, task: Task, store: Store, attempt: Attempt, stop: StopFlag, judge: Judge | None = None
    ):
        self.job, self.task, self.store, self.attempt, self.stop = job, task, store, attempt, stop
        self._judge, self._data = judge, worker_data_folder(job.options.data)
        self._columns = columns_of(task)
        self._started = time.monotonic()
        self._commits_in_parts = bool(job.then) or not task.fused
        self._max_commit_delay_s = BATCH_S if job.then else MAX_COMMIT_DELAY_S
        self._start_pack(job)
        self._open: list[tuple[TrialResult, dict[str, pa.Table]]] = []
        """Results of the running fused pack, whose trials are committed together."""
        self._finished: list[_UncommittedTrial] = []
        self._oldest_finished = 0.0
        self._features = FeatureFile()
        self._types: dict[str, dict[str, str]] = {}
        """Types of the custom columns of the store and of this attempt's trials, by table."""
        self._part = -1
        self._not_before = float("-inf")
        """Monotonic time before which no write to a full store is retried."""
        self._lock = threading.Lock()  # the heartbeat commits finished trials while the next trial trains

    def run(self) -> None:
        """Train and commit the attempt's packs in turn. Packs not started within `BATCH_S` are returned to the queue.

        Raises:
            Interrupted: If a stop is requested, after a checkpoint and a commit of the finished trials.
        """
        started: list[AttemptSpec] = []
        checkpointed = []
        try:
            try:
                for pack in self.job.packs():
                    if started and (self.stop.is_set or time.monotonic() - self._started > BATCH_S):
                        break
                    started.append(pack)
                    self._live.close()
                    self._start_pack(pack)
                    self.attempt.trial_ids = [trial_id for spec in started for trial_id in spec.trial_ids]
                    if self._run_pack():
                        checkpointed.append(pack.pack_id)
                    if self._features.num_rows:  # one features file per pack
                        self._commit_when_not_full()
            finally:
                if self._commits_in_parts:
                    self._commit_when_not_full()
            self._commit_when_not_full()
            self._delete_checkpoints(checkpointed)
        finally:
            self._live.close()
            self._features.close()

    def _start_pack(self, pack: AttemptSpec) -> None:
        """Set the running pack."""
        self._pack, self._pruning = pack, Pruning(pack, self._judge)
        # The attempt may have been submitted before parameters were added to the task.
        self._params = [self.task.schema.completed(params) for params in pack.params]
        self.attempt.pack_id = pack.pack_id
        self._live = LiveCurves(self.store, pack, dict(zip(pack.trial_ids, self._params, strict=True)))

    def _run_pack(self) -> bool:
        """Train the running pack. Return whether it may have a checkpoint."""
        self._open = []
        pack = self._pack
        context = WorkerContext(
            *(self.store, pack, self._data, self.attempt, self.stop, pack.trial_ids, self._pruning), live=self._live
        )
        pack_started = started = time.monotonic()
        failures: dict[str, TableError] = {}
        for result in self.task.run(self._params, context):
            wall_s = time.monotonic() - started
            with self._lock:
                try:
                    self._add(result, self._arrow_tables(result), wall_s)
                except TableError as error:  # does not concern the other trials of the pack
                    failures[pack.trial_ids[result.index]] = error
                    self._commits_in_parts = True
            if not self.task.fused:
                started = time.monotonic()
                self.commit_if_due()
        share_s = (time.monotonic() - started + context.wall_s_before) / len(pack.trial_ids)
        self.attempt.packs_s += time.monotonic() - pack_started
        with self._lock:
            for result, tables in self._open:
                self._finish(result, tables, share_s)
            self._open = []
        for trial_id, failure in failures.items():
            params = self._params[pack.trial_ids.index(trial_id)]
            failure.add_note(f"trial {trial_id} with {params}. Failed trials: {', '.join(failures)}")
            raise failure
        return context.may_have_checkpoint

    def _add(self, result: TrialResult, tables: dict[str, pa.Table], wall_s: float) -> None:
        """Add the result of a trial. The caller holds the lock."""
        if result.status is ResultStatus.OK and _has_diverged(result.tables):
            result = replace(result, status=ResultStatus.DIVERGED)
        self.attempt.trials_done += 1
        if self.task.fused:
            self._open.append((result, tables))
        else:
            self._finish(result, tables, wall_s)

    def _finish(self, result: TrialResult, tables: dict[str, pa.Table], wall_s: float) -> None:
        """Add a trial to the uncommitted trials. The caller holds the lock."""
        self._oldest_finished = self._oldest_finished or time.monotonic()
        is_pruned = result.status is ResultStatus.PRUNED
        self._finished.append(_UncommittedTrial(None if is_pruned else self._trial_row(result, wall_s), tables))

    def _delete_checkpoints(self, pack_ids: Iterable[str]) -> None:
        for pack_id in pack_ids:
            try:
                self.store.delete(checkpoint_path.folder(pack_id))
            except OSError as error:  # harmless, because all trials are committed
                log.warning("checkpoint not deleted: %s", error)
            if (scratch := node_scratch_store()) is not None:
                with contextlib.suppress(OSError):
                    scratch.delete(checkpoint_path.folder(pack_id))

    def commit_finished(self) -> None:
        """Commit the finished trials of a batched attempt or an unfused pack, unless the hanging thread holds the lock."""
        if self._commits_in_parts:
            self._commit(COMMIT_LOCK_TIMEOUT_S)

    def show_live(self) -> None:
        """Write live curves to the store if due."""
        self._live.write_if_due()

    def commit_if_due(self) -> None:
        """Commit the finished trials of a batched attempt or an unfused pack if due."""
        is_due = (
            self._finished
            and time.monotonic() >= self._not_before
            and time.monotonic() - self._oldest_finished >= self._max_commit_delay_s
        )
        if is_due and self._commits_in_parts:
            self._commit(0.0)  # do not wait for the lock, because that would delay the heartbeat

    def _commit_when_not_full(self) -> None:
        """Commit the finished trials, retrying while the store is full."""
        retry_while_full(self._commit, self.stop, self.attempt)

    def _commit(self, wait_s: float = -1.0) -> None:
        """Commit the finished trials, unless the lock is not free within `wait_s` seconds (negative: no limit)."""
        if not self._lock.acquire(timeout=wait_s):
            return
        try:
            if not self._finished:
                return
            self._part += 1  # increment first: a failed write may have stored data that must not be overwritten
            features = None if self._open else self._features  # features of the running pack are not committed yet
            self._write_commit(features)
            self._live.forget({trial.row["trial_id"] for trial in self._finished if trial.row is not None})
            self._finished, self._oldest_finished = [], 0.0
            if features is not None:
                features.close()
                self._features = FeatureFile()
        finally:
            self._lock.release()

    def _write_commit(self, features: FeatureFile | None) -> None:
        try:
            self._pruning.write(self.store)
            peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
            rows = [trial.row for trial in self._finished if trial.row is not None]
            for row in rows:
                row["peak_memory_gb"] = peak_gb if row["peak_memory_gb"] is None else row["peak_memory_gb"]
            tables = [trial.tables for trial in self._finished if trial.row is not None]
            if not rows:
                return
            commit_trials(
                self.store,
                sweep=self.job.sweep,
                attempt_id=self.job.attempt_id,
                part=self._part if self._commits_in_parts else None,
                trials=rows,
                tables={name: [table[name] for table in tables if name in table] for name in DATA_TABLES},
                columns=self._columns,
                features=features,
            )
        except TableError:
            if self.job.then:
                self.attempt.pack_id = ""  # it is unknown which pack's rows are invalid, so each pack is retried alone
            raise
        except Exception as error:
            if is_full(error) and self._commit_or_roll_back():
                return
            raise CommitError(f"{type(error).__name__}: {error}") from error

    def _commit_or_roll_back(self) -> bool:
        """Return whether a commit that a full store refused is visible nevertheless. If not, delete its files."""
        self._not_before = time.monotonic() + FULL_RETRY_INTERVAL_S
        part = self._part if self._commits_in_parts else None
        commit = table_path("trials", self.job.sweep, self.job.attempt_id, part)
        with contextlib.suppress(OSError):
            if self.store.size(commit) is not None:
                return True
            self.store.delete_many([data_path(commit, table) for table in DATA_TABLES])
        return False

    def _arrow_tables(self, result: TrialResult) -> dict[str, pa.Table]:
        if not isinstance(result.tables, Mapping):
            raise TableError(
                f"task returned {type(result.tables).__name__} for a trial, expected a mapping from table to rows. "
                "Return for example {'metrics': [...]}."
            )
        trial_id, attempt_id = self._pack.trial_ids[result.index], self.job.attempt_id
        columns, num_rows = self._columns, self._features.num_rows

        def arrow(name: str, content: Any, curves: pa.Table | None = None) -> pa.Table:
            try:
                return task_table(name, content, columns, trial_id=trial_id, attempt_id=attempt_id, curves=curves)
            except (TableError, MemoryError):
                raise
            except Exception as error:  # of a value's own methods, for example
                raise TableError(f"table {name!r} cannot be converted: {type(error).__name__}: {error}") from error

        try:
            for part in layer_parts(result.tables.get("features")):
                self._features.add(arrow("features", part))
            others = {name: content for name, content in result.tables.items() if name != "features"}
            curves = arrow("curves", others.pop("curves")) if "curves" in others else None
            tables = {name: arrow(name, content, curves) for name, content in others.items()}
            tables |= {} if curves is None else {"curves": curves}
            named = {name: join_rows(name, [table]).schema for name, table in tables.items()}
            add_columns(self.store, self._types, {name: columns.not_standard(name, s) for name, s in named.items()})
            return tables
        except BaseException as error:
            self._features.leave_out(trial_id, num_rows)
            if not isinstance(error, TableError):
                raise
            location = f" (task {self.task.name!r} in {self.task.defined_at})" if self.task.defined_at else ""
            raise TableError(f"{error}{location}") from None

    def _trial_row(self, result: TrialResult, wall_s: float) -> dict[str, Any]:
        return {
            "trial_id": self._pack.trial_ids[result.index],
            "sweep": self.job.sweep,
            "task": self.task.name,
            "task_version": self.task.version,
            "attempt_id": self.job.attempt_id,
            "pack_id": self._pack.pack_id,
            "status": result.status.value,
            "wall_s": wall_s,
            "steps": result.num_steps,
            "device": self.job.options.device,
            "peak_memory_gb": result.peak_memory_gb,
            "git_sha": self.job.options.git_sha,
            "git_dirty": self.job.options.git_dirty,
            "versions": json.dumps(installed_versions("depthrate")),
            "host": self.attempt.host,
            "job_id": self.attempt.job_id,
            "params": json.dumps(self._params[result.index], sort_keys=True),
            "code_hash": self.attempt.code_hash,
            "engine": self.attempt.engine,
        }


def run_job(job: AttemptSpec, stop: StopFlag, judge: Judge | None = None) -> Attempt:
    """Run one attempt. Return its record, which is also written to the store, whatever the outcome is."""
    store = Store(job.options.store)
    attempt = Attempt(
        attempt_id=job.attempt_id,
        sweep=job.sweep,
        pack_id=job.pack_id,
        trial_ids=job.all_trial_ids,
        device=job.options.device,
        code_hash=job.options.code_version,
        beat_s=job.options.beat_s,
        gpu_share=job.options.gpu_share if job.options.device == "cuda" else None,
    )
    initial_cpu_s = sum(os.times()[:4])
    with captured_output() as output:
        try:
            try:
                retry_while_full(lambda: attempt.beat(store), stop, attempt)
                task = load_stored_task(job.task, store, job.options.code_version)
            except OSError as error:  # an error of the store, after which the pack is retried
                raise CommitError(f"{type(error).__name__}: {error}") from error
            attempt.code_hash = code_hash(task)
            if task.code is None:
                skip_pandas()
            runner = AttemptRunner(job, task, store, attempt, stop, judge)
            heartbeat = Heartbeat(
                *(store, attempt, output, stop),
                stall_minutes=job.options.stall_minutes,
                upkeep={"commit": runner.commit_if_due, "live curves": runner.show_live},
                commit_finished=runner.commit_finished,
            )
            with heartbeat:
                runner.run()
            attempt.state = AttemptState.DONE
        except Interrupted:
            attempt.state, attempt.error = AttemptState.INTERRUPTED, stop.reason or None
        except (Exception, SystemExit) as error:
            log.exception("attempt %s failed", job.attempt_id)
            attempt.state = AttemptState.FAILED
            attempt.error_kind = failure_kind(error)
            attempt.error = f"{type(error).__name__}: {error}"
            attempt.traceback = traceback.format_exc()
    attempt.ended_at, attempt.cpu_s = time.time(), sum(os.times()[:4]) - initial_cpu_s
    try:
        attempt.beat(store)
    except OSError as error:  # the driver treats the attempt as lost and retries its packs
        log.warning("end of attempt %s not written: %s", job.attempt_id, error)
    return attempt


def retry_while_full(write: Callable[[], None], stop: StopFlag, attempt: Attempt) -> None:
    """Call `write`, retrying while the store is full. Meanwhile `attempt` reports the bytes needed.

    Raises:
        Interrupted: If a stop is requested before the write succeeds.
        Exception: Any other exception of `write`.
    """
    while True:
        try:
            write()
            attempt.needs_bytes = None
            return
        except Exception as error:
            if not is_full(error):
                raise
            attempt.needs_bytes = needed_bytes(error)
            log.warning("store full, finished trials are buffered: %s", error)
        until = time.monotonic() + FULL_RETRY_INTERVAL_S
        while time.monotonic() < until:
            if stop.is_set:
                raise Interrupted
            time.sleep(min(0.2, FULL_RETRY_INTERVAL_S))


def _has_diverged(tables: Tables) -> bool:
    """Return whether a trial with status ok has diverged, judged by its returned tables before NaN becomes null."""
    returned = [(name, tables[name]) for name in ("curves", "metrics") if name in tables]
    return any(has_diverged(zip(*pick_columns(*table, ("step", "split", "loss")), strict=True)) for table in returned)


_TRANSIENT_ERRORS = (OSError, EOFError, subprocess.SubprocessError)
"""Exceptions caused by a disk, a network or another process, after which a retry on the same node may succeed."""


def failure_kind(error: BaseException) -> FailureKind:
    """Classify an exception and its causes as the failure kind that decides about retries."""
    if isinstance(error, (MemoryError, *torch_errors("OutOfMemoryError"))):
        return FailureKind.OUT_OF_MEMORY
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):
        return FailureKind.OUT_OF_MEMORY  # torch's CPU allocator raises a plain RuntimeError
    if isinstance(error, CommitError):
        return FailureKind.STORE
    if isinstance(error, TableError):
        return FailureKind.TABLE
    if isinstance(error, NoCompilerError):
        return FailureKind.NOT_HERE
    if is_hardware_error(f"{type(error).__name__}: {error}"):
        return FailureKind.HARDWARE
    transient: tuple[type[BaseException], ...] = (*_TRANSIENT_ERRORS, *torch_errors("AcceleratorError"))
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, transient):
            return FailureKind.TASK
        cause = cause.__cause__
    return FailureKind.CODE


@functools.cache  # reading the versions takes as long as all other work for a small pack
def installed_versions(package: str) -> dict[str, str]:
    """Return the installed versions of a package and of all that affects numbers and file formats."""
    versions = {"python": sys.version.split()[0]}
    for name in (package, "torch", "numpy", "pyarrow"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"  # depthrate itself, if its code was sent with the job
    return versions
