"""Beside a pack that trains: its record and log are kept fresh in the store, and a driver that has died is noticed."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import IO, Protocol

from depthrate.orchestrator.attempts.cancellation import forced_attempts, read_cancel_mark
from depthrate.orchestrator.attempts.liveness import heartbeat_s
from depthrate.orchestrator.attempts.record import Attempt
from depthrate.orchestrator.worker.context import StopFlag
from depthrate.orchestrator.worker.node_heartbeat import NodeHeartbeat
from depthrate.storage.files.paths import log_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind

LOG_TAIL_BYTES = 200_000
SELF_TERMINATED_CODE = 70
"""Exit code of a worker that ended itself in the middle of a task."""
log = logging.getLogger("depthrate")


class HeartbeatTarget(Protocol):
    """What runs beside the heartbeat: one attempt of a pack."""

    store: Store
    attempt: Attempt

    @property
    def stall_s(self) -> float | None:
        """After how many seconds without progress it is ended; null: never."""
        ...

    def commit_if_due(self) -> None:
        """Commit what has waited long enough."""
        ...

    def show_live(self) -> None:
        """Let the store have what trials have logged, if it is time."""
        ...

    def commit_finished(self) -> None:
        """Commit every trial that has finished."""
        ...


class captured_output:
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


class Heartbeat:
    """A thread that keeps the attempt's record and log fresh, commits what waits, and notices a dead driver."""

    def __init__(self, run: HeartbeatTarget, output: IO[bytes], stop: StopFlag):
        self._run, self._output, self._stop = run, output, stop
        self._parent = int(os.environ.get("DEPTHRATE_DRIVER_PID") or os.getppid())
        self._ended = threading.Event()
        self._uploaded = 0
        self._progress: tuple[object, ...] = ()
        self._progressed_at = time.monotonic()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._upload_log()

    def _beat(self) -> None:
        pause_s = self._run.attempt.beat_s or heartbeat_s(self._run.store)
        node = NodeHeartbeat(self._run.store, self._run.attempt, pause_s)
        node.publish()
        last = time.monotonic() - random.uniform(0.0, pause_s)  # what starts together does not write together
        while not self._ended.wait(1.0):
            if os.getppid() != self._parent:
                self._stop.set("the driver is gone")
            self._check_progress()
            self._try("commit", self._run.commit_if_due)
            self._try("live curves", self._run.show_live)
            if time.monotonic() - last < pause_s:
                node.publish()
                continue
            last = time.monotonic()
            self._try("heartbeat", node.beat)
            self._upload_log()
            self._terminate_if_forced()
        node.close()

    def _try(self, what: str, act: Callable[[], None]) -> None:
        """Do what may fail here: a hint that is late, or a commit that is tried again at the pack's end."""
        try:
            act()
        except Exception as error:
            log.warning("%s: %s", what, error)

    def _check_progress(self) -> None:
        """Note when the attempt came further, and end it where it has not for too long."""
        attempt, limit_s = self._run.attempt, self._run.stall_s
        progress = (attempt.step, attempt.num_steps, attempt.trials_done, attempt.checkpoints, attempt.compile_s)
        if progress != self._progress or attempt.needs_bytes is not None:
            self._progress, self._progressed_at = progress, time.monotonic()
            attempt.progress_at = time.time()
        waited_s = time.monotonic() - self._progressed_at
        if limit_s is not None and waited_s > limit_s:
            step = f"step {attempt.step}/{attempt.num_steps or '?'}"
            self._terminate(
                FailureKind.TASK, f"no progress for {waited_s / 60:.3g} min at {step}: ended by --stall-minutes"
            )

    def _terminate_if_forced(self) -> None:
        """End this process if `depthrate cancel --force` says so; a task that hangs would never look."""
        store, attempt = self._run.store, self._run.attempt
        if not (self._stop.is_set or store.is_local):
            return  # a request to a remote store with every heartbeat is not worth it
        if attempt.attempt_id in forced_attempts(read_cancel_mark(store, attempt.sweep)):
            self._terminate(FailureKind.CANCELLED, "ended by depthrate cancel --force")

    def _terminate(self, kind: FailureKind, error: str) -> None:
        """Commit what has finished, write down the end, and end this process, whatever its other threads do."""
        attempt = self._run.attempt
        with contextlib.suppress(Exception):
            self._run.commit_finished()
        attempt.state, attempt.error_kind, attempt.error = AttemptState.FAILED, kind, error
        attempt.ended_at = time.time()
        with contextlib.suppress(Exception):
            faulthandler.dump_traceback(self._output)
            self._upload_log()
        with contextlib.suppress(Exception):
            attempt.beat(self._run.store)
        os._exit(SELF_TERMINATED_CODE)

    def _upload_log(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        size = os.fstat(self._output.fileno()).st_size
        if size == self._uploaded:
            return
        start = max(0, size - LOG_TAIL_BYTES)
        content = os.pread(self._output.fileno(), size - start, start)
        try:
            self._run.store.write(log_path(self._run.attempt.sweep, self._run.attempt.attempt_id), content)
            self._uploaded = size
        except Exception as error:
            log.warning("log not written: %s", error)
