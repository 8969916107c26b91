"""Update a running attempt's record and log in the store, and detect stalls, forced cancellation and an exited driver."""

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
from collections.abc import Callable, Iterator, Sequence
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
"""Maximum number of bytes from the end of the worker's output that are stored as the attempt's log."""
SELF_TERMINATED_CODE = 70
"""Exit code of a worker that terminated itself during a task."""
log = logging.getLogger("depthrate")


class HeartbeatTarget(Protocol):
    """Interface of the heartbeat's attempt. `attempt_runner` imports this module, so it is not imported here."""

    store: Store
    attempt: Attempt

    @property
    def stall_s(self) -> float | None:
        """Seconds without progress after which the attempt is terminated. None means never."""
        ...

    def commit_if_due(self) -> None:
        """Commit the finished trials if due."""

    def show_live(self) -> None:
        """Write live curves to the store if due."""

    def commit_finished(self) -> None:
        """Commit all finished trials."""


@contextlib.contextmanager
def captured_output(descriptors: Sequence[int] = (1, 2)) -> Iterator[IO[bytes]]:
    """Redirect the process's output, native code included, to a temporary file, and yield the file."""
    with tempfile.TemporaryFile() as file:
        copies = {descriptor: os.dup(descriptor) for descriptor in descriptors}
        _flush()
        for descriptor in descriptors:
            os.dup2(file.fileno(), descriptor)
        try:
            yield file
        finally:
            _flush()
            for descriptor, copy in copies.items():
                os.dup2(copy, descriptor)
                os.close(copy)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


class Heartbeat:
    """Thread that updates the attempt's record and log, commits finished trials, and detects an exited driver."""

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
        interval_s = self._run.attempt.beat_s or heartbeat_s(self._run.store)
        node = NodeHeartbeat(self._run.store, self._run.attempt, interval_s)
        node.publish()
        last = time.monotonic() - random.uniform(0.0, interval_s)  # spread the writes of attempts that start together
        while not self._ended.wait(1.0):
            if os.getppid() != self._parent:
                self._stop.set("the driver has exited")
            self._check_progress()
            self._try("commit", self._run.commit_if_due)
            self._try("live curves", self._run.show_live)
            if time.monotonic() - last < interval_s:
                node.publish()
                continue
            last = time.monotonic()
            self._try("heartbeat", node.beat)
            self._upload_log()
            self._terminate_if_forced()
        node.close()

    def _try(self, name: str, write: Callable[[], None]) -> None:
        """Call `write` and log its failure. A heartbeat is then late, and a commit is retried at the end of the pack."""
        try:
            write()
        except Exception as error:
            log.warning("%s not written: %s", name, error)

    def _check_progress(self) -> None:
        """Record progress, and terminate the attempt if it has stalled for too long."""
        attempt, limit_s = self._run.attempt, self._run.stall_s
        progress = (attempt.step, attempt.num_steps, attempt.trials_done, attempt.checkpoints, attempt.compile_s)
        if progress != self._progress or attempt.needs_bytes is not None:
            self._progress, self._progressed_at = progress, time.monotonic()
            attempt.progress_at = time.time()
        stalled_s = time.monotonic() - self._progressed_at
        if limit_s is not None and stalled_s > limit_s:
            step = f"step {attempt.step}/{attempt.num_steps or '?'}"
            error = f"no progress for {stalled_s / 60:.3g} min at {step}: terminated by --stall-minutes"
            self._terminate(FailureKind.TASK, error)

    def _terminate_if_forced(self) -> None:
        """Exit if `depthrate cancel --force` was called, because a hanging task does not check for stop requests."""
        store, attempt = self._run.store, self._run.attempt
        if store.uses_requests and not self._stop.is_set:
            return  # do not send a request to a remote store at every heartbeat
        if attempt.attempt_id in forced_attempts(read_cancel_mark(store, attempt.sweep)):
            self._terminate(FailureKind.CANCELLED, "terminated by depthrate cancel --force")

    def _terminate(self, kind: FailureKind, error: str) -> None:
        """Commit the finished trials, record the failure, and exit without waiting for other threads."""
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
        _flush()
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
