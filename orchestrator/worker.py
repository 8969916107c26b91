"""A compute process: takes packs from its input one by one, trains, commits, and says on its output that one ended.

What went wrong is told through the attempt's record in the store. It ends when its input does, when asked by SIGTERM
(after a checkpoint), or when the driver that started it is gone.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import logging
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from depthrate.orchestrator.attempt import AttemptState, heartbeat_s
from depthrate.orchestrator.executors.executor import PackJob
from depthrate.storage.commit import commit_trials
from depthrate.storage.data_folder import DataFolder
from depthrate.storage.layout import (
    DATA_TABLES,
    checkpoint_folder,
    checkpoint_path,
    checkpoint_trials_path,
    log_path,
    reports_path,
)
from depthrate.storage.schema import TableError, task_table
from depthrate.storage.store import Store
from depthrate.tasks.loading import load_task
from depthrate.tasks.task import Interrupted, Task, TrialResult

if TYPE_CHECKING:
    import pyarrow as pa

COMMIT_EVERY_S = 20.0
"""Longest a finished trial of a pack that runs in turn waits for its commit."""
LOG_TAIL_BYTES = 200_000
log = logging.getLogger("depthrate")


class CommitError(Exception):
    """The store refused a commit: nothing of it is visible, and it is worth trying again."""


class StopFlag:
    """Set by a signal or by the death of the driver; tasks look at it between steps."""

    def __init__(self) -> None:
        self.is_set = False
        self.reason = ""

    def set(self, reason: str) -> None:
        """Ask whatever runs to save a checkpoint and end."""
        self.is_set, self.reason = True, reason


Judge = Callable[[int, Mapping[str, float]], Collection[str]]
"""Told a step and what trials report there (trial -> value), says which of them are to be left out."""


class Pruning:
    """What the trials of a pack reported while they trained, and which of them their search left out."""

    def __init__(self, job: PackJob, judge: Judge | None = None):
        self._job = job
        self._judge = judge
        self.reports: dict[str, dict[str, Any]] = {}
        """Trial -> values (step -> value) and, for one that was left out, pruned_at."""

    def report(self, step: int, values: Mapping[int, Mapping[str, float | None]]) -> set[int]:
        """Note what trials report (position in the pack -> metric -> value); return the positions of those to leave out.

        They are those worse than the threshold of this step, which the search set when it proposed them, and those that
        whoever watches all packs at once leaves out.
        """
        reported: dict[str, float] = {}
        left_out = set()
        for index, metrics in values.items():
            rule = self._job.pruning[index] if self._job.pruning else None
            value = None if rule is None else metrics.get(rule["metric"])
            if rule is None or value is None:
                continue
            trial_id = self._job.trial_ids[index]
            reported[trial_id] = value
            self.reports.setdefault(trial_id, {"values": {}})["values"][str(step)] = value
            threshold = rule["thresholds"].get(str(step))
            if threshold is not None and not (value >= threshold if rule["maximize"] else value <= threshold):
                left_out.add(index)  # also where the value is not a number
        if self._judge is not None and reported:
            chosen = self._judge(step, reported)
            left_out |= {index for index in values if self._job.trial_ids[index] in chosen}
        for index in left_out:
            self.reports[self._job.trial_ids[index]]["pruned_at"] = step
        return left_out

    def write(self, store: Store) -> None:
        """Put the reports into the store; before the commit, so that a pruned trial is never pending after it."""
        if self.reports:
            content = json.dumps({"sweep": self._job.sweep, "reports": self.reports})
            store.write(reports_path(self._job.sweep, self._job.attempt_id), content.encode())


@dataclass
class WorkerContext:
    """What a running task may ask of the outside (`tasks.task.TaskContext`)."""

    store: Store
    job: PackJob
    data: DataFolder
    state: AttemptState
    stop: StopFlag
    trial_ids: Sequence[str]
    pruning: Pruning
    first: int = 0
    """Position in the pack of the first of `trial_ids`."""
    name: str = "pack"
    wall_s_before: float = 0.0
    """Training time of earlier attempts that the checkpoint stands for."""

    def __post_init__(self) -> None:
        self.last_checkpoint = time.monotonic()

    @property
    def device(self) -> str:
        """Where to compute."""
        return self.job.options.device

    def should_stop(self) -> bool:
        """Whether to save a checkpoint now and raise `Interrupted`."""
        return self.stop.is_set

    def progress(self, step: int, num_steps: int) -> None:
        """Note how far the pack has come."""
        self.state.step, self.state.num_steps = step, num_steps

    def report(self, step: int, values: Mapping[int, Mapping[str, float | None]]) -> set[int]:
        """Tell what trials measure while they train; return the positions of those to leave out."""
        left_out = self.pruning.report(step, {self.first + index: row for index, row in values.items()})
        return {position - self.first for position in left_out}

    def checkpoint_due(self) -> bool:
        """Whether the last checkpoint is old enough."""
        return time.monotonic() - self.last_checkpoint >= self.job.options.checkpoint_s

    def save_checkpoint(self, content: bytes) -> None:
        """Keep `content` until the commit; a store that refuses it costs time after a crash, not results."""
        self.last_checkpoint = time.monotonic()
        pack_id = self.job.pack_id
        wall_s = self.wall_s_before + time.time() - self.state.started_at
        try:
            self.pruning.write(self.store)
            self.store.write(checkpoint_path(pack_id, self.name), content)
            members = {"trial_ids": self.job.trial_ids, "wall_s": wall_s}
            self.store.write(checkpoint_trials_path(pack_id), json.dumps(members).encode())
            self.state.checkpoints += 1
        except OSError as error:
            log.warning("checkpoint not written: %s", error)

    def load_checkpoint(self) -> bytes | None:
        """Return what an earlier attempt saved, or None."""
        try:
            content = self.store.read(checkpoint_path(self.job.pack_id, self.name))
            self.wall_s_before = float(json.loads(self.store.read(checkpoint_trials_path(self.job.pack_id)))["wall_s"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return content

    def for_trial(self, index: int) -> WorkerContext:
        """Return this context narrowed to one trial, with a checkpoint of its own."""
        trial_id = self.trial_ids[index]
        return WorkerContext(
            self.store, self.job, self.data, self.state, self.stop, [trial_id], self.pruning, index, trial_id
        )


class PackRun:
    """One attempt of a pack, from its record to its commit."""

    def __init__(
        self, job: PackJob, task: Task, store: Store, state: AttemptState, stop: StopFlag, judge: Judge | None = None
    ):
        self.job, self.task, self.store, self.state, self.stop = job, task, store, state, stop
        self._pruning = Pruning(job, judge)
        self._finished: list[tuple[TrialResult, dict[str, pa.Table], float]] = []
        self._oldest_finished = 0.0
        self._part = -1
        self._lock = threading.Lock()  # the heartbeat commits finished trials while the next one trains

    def run(self) -> None:
        """Train and commit the pack.

        Raises:
            Interrupted: asked to stop; a checkpoint is saved and trials that had finished are committed.
        """
        data = DataFolder(self.job.options.data)
        context = WorkerContext(self.store, self.job, data, self.state, self.stop, self.job.trial_ids, self._pruning)
        started = time.monotonic()
        try:
            for result in self.task.run(self.job.params, context):
                wall_s = time.monotonic() - started
                tables = self._arrow_tables(result)
                with self._lock:
                    self._oldest_finished = self._oldest_finished or time.monotonic()
                    self._finished.append((result, tables, wall_s))
                    self.state.trials_done += 1
                if not self.task.fused:
                    started = time.monotonic()
                    self.commit_if_due()
        finally:
            if not self.task.fused:
                self._commit()
        if self.task.fused:
            share_s = (time.monotonic() - started + context.wall_s_before) / len(self.job.trial_ids)
            self._finished = [(result, tables, share_s) for result, tables, _ in self._finished]
            self._commit()
        self.store.delete(checkpoint_folder(self.job.pack_id))

    def commit_if_due(self) -> None:
        """Commit the finished trials of a pack that runs in turn, if they waited long enough."""
        waited = self._finished and time.monotonic() - self._oldest_finished >= COMMIT_EVERY_S
        if waited and not self.task.fused:
            self._commit()

    def _commit(self) -> None:
        with self._lock:
            if not self._finished:
                return
            self._part += 1  # before: what a failed write has stored, nobody knows, and it must not be written over
            self._write_commit()
            self._finished, self._oldest_finished = [], 0.0

    def _write_commit(self) -> None:
        try:
            self._pruning.write(self.store)
            finished = [each for each in self._finished if each[0].status != "pruned"]
            if not finished:
                return
            commit_trials(
                self.store,
                sweep=self.job.sweep,
                attempt_id=self.job.attempt_id,
                part=None if self.task.fused else self._part,
                trials=[self._trial_row(result, wall_s) for result, _, wall_s in finished],
                tables={name: [tables[name] for _, tables, _ in finished if name in tables] for name in DATA_TABLES},
            )
        except TableError:
            raise
        except Exception as error:
            raise CommitError(f"{type(error).__name__}: {error}") from error

    def _arrow_tables(self, result: TrialResult) -> dict[str, pa.Table]:
        if not isinstance(result.tables, Mapping):
            raise TableError(
                f"task returned {type(result.tables).__name__} for a trial; "
                "return a mapping from table to rows, such as {'metrics': [...]}"
            )
        trial_id, attempt_id = self.job.trial_ids[result.index], self.job.attempt_id
        return {
            name: task_table(name, content, trial_id=trial_id, attempt_id=attempt_id)
            for name, content in result.tables.items()
        }

    def _trial_row(self, result: TrialResult, wall_s: float) -> dict[str, Any]:
        peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        return {
            "trial_id": self.job.trial_ids[result.index],
            "sweep": self.job.sweep,
            "task": self.task.name,
            "task_version": self.task.version,
            "attempt_id": self.job.attempt_id,
            "pack_id": self.job.pack_id,
            "status": result.status,
            "wall_s": wall_s,
            "steps": result.num_steps,
            "device": self.job.options.device,
            "peak_memory_gb": peak_gb if result.peak_memory_gb is None else result.peak_memory_gb,
            "git_sha": self.job.options.git_sha,
            "git_dirty": self.job.options.git_dirty,
            "versions": json.dumps(_versions()),
            "host": self.state.host,
            "job_id": self.state.job_id,
            "params": json.dumps(self.job.params[result.index], sort_keys=True),
        }


def run_job(job: PackJob, stop: StopFlag, judge: Judge | None = None) -> AttemptState:
    """Run one attempt and return its state, which also stands in the store whatever happened."""
    store = Store(job.options.store)
    state = AttemptState(
        attempt_id=job.attempt_id,
        sweep=job.sweep,
        pack_id=job.pack_id,
        trial_ids=job.trial_ids,
        device=job.options.device,
    )
    with _captured_output() as output:
        try:
            _begin(state, store)
            run = PackRun(job, load_task(job.task), store, state, stop, judge)
            with _Heartbeat(run, output, stop):
                run.run()
            state.state = "done"
        except Interrupted:
            state.state, state.error = "interrupted", stop.reason or None
        except (Exception, SystemExit) as error:
            log.exception("attempt %s failed", job.attempt_id)
            state.state = "failed"
            state.error_kind = error_kind(error)
            state.error = f"{type(error).__name__}: {error}"
            state.traceback = traceback.format_exc()
    state.ended_at = time.time()
    try:
        state.beat(store)
    except OSError as error:  # the driver takes an attempt without a last word for lost, and tries again
        log.warning("end of attempt %s not written: %s", job.attempt_id, error)
    return state


def _begin(state: AttemptState, store: Store) -> None:
    try:
        state.beat(store)
    except OSError as error:
        raise CommitError(f"{type(error).__name__}: {error}") from error


def error_kind(error: BaseException) -> str:
    """Return the kind of failure that decides about a retry."""
    if isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "ArrowMemoryError"):
        return "out_of_memory"
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):
        return "out_of_memory"  # torch's CPU allocator has no type of its own
    if isinstance(error, CommitError):
        return "store"
    if isinstance(error, TableError):
        return "table"
    return "task"


@functools.cache  # reading them takes as long as all the rest of a small pack
def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for name in ("depthrate", "torch", "numpy", "pyarrow"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"  # depthrate itself, where its code came with the job
    return versions


class _captured_output:
    """Sends everything this process prints (native code included) into a file while a pack runs."""

    def __enter__(self) -> IO[bytes]:
        self._file = tempfile.TemporaryFile()
        self._saved = [os.dup(1), os.dup(2)]
        for descriptor in (1, 2):
            os.dup2(self._file.fileno(), descriptor)
        return self._file

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)
        self._file.close()


class _Heartbeat:
    """A thread that keeps the attempt's record and log fresh, commits what waits, and notices a dead driver."""

    def __init__(self, run: PackRun, output: IO[bytes], stop: StopFlag):
        self._run, self._output, self._stop = run, output, stop
        self._parent = int(os.environ.get("DEPTHRATE_DRIVER_PID") or os.getppid())
        self._ended = threading.Event()
        self._uploaded = 0
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> _Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._upload_log()

    def _beat(self) -> None:
        pause_s, last = heartbeat_s(self._run.store), time.monotonic()
        while not self._ended.wait(1.0):
            if os.getppid() != self._parent:
                self._stop.set("the driver is gone")
            if time.monotonic() - last < pause_s:
                continue
            last = time.monotonic()
            try:
                self._run.state.beat(self._run.store)
                self._run.commit_if_due()
            except Exception as error:  # a hint that is late; the commit itself is tried again at the pack's end
                log.warning("heartbeat: %s", error)
            self._upload_log()

    def _upload_log(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        size = os.fstat(self._output.fileno()).st_size
        if size == self._uploaded:
            return
        start = max(0, size - LOG_TAIL_BYTES)
        content = os.pread(self._output.fileno(), size - start, start)
        try:
            self._run.store.write(log_path(self._run.job.sweep, self._run.job.attempt_id), content)
            self._uploaded = size
        except Exception as error:
            log.warning("log not written: %s", error)


def main() -> None:
    """Run the jobs that come in, one JSON line each, and answer each with its attempt's name."""
    answers = os.fdopen(os.dup(1), "w")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    stop = StopFlag()
    for number in (signal.SIGTERM, signal.SIGUSR2):  # SLURM signals every process of a job
        signal.signal(number, lambda *_: stop.set("asked to stop"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while not stop.is_set and (line := sys.stdin.readline()):
        job = PackJob.from_json(line)
        run_job(job, stop)
        try:
            print(job.attempt_id, file=answers, flush=True)
        except BrokenPipeError:
            return  # the driver is gone; everything stands in the store


if __name__ == "__main__":
    main()
