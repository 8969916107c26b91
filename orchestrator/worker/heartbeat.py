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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

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

    def __init__(
        self,
        store: Store,
        attempt: Attempt,
        output: IO[bytes],
        stop: StopFlag,
        *,
        stall_minutes: float | None,
        upkeep: Mapping[str, Callable[[], None]],
        commit_finished: Callable[[], None],
    ):
        """Args: upkeep: names and functions called every second. commit_finished: called before a hanging attempt exits."""
        self._store, self._attempt, self._output, self._stop = store, attempt, output, stop
        self._stall_minutes, self._upkeep, self._commit_finished = stall_minutes, upkeep, commit_finished
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
        interval_s = self._attempt.beat_s or heartbeat_s(self._store)
        node = NodeHeartbeat(self._store, self._attempt, interval_s)
        node.publish()
        last = time.monotonic() - random.uniform(0.0, interval_s)  # spread the writes of attempts that start together
        while not self._ended.wait(1.0):
            if os.getppid() != self._parent:
                self._stop.set("the driver has exited")
            self._check_progress()
            for name, write in self._upkeep.items():
                self._try(name, write)
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
        attempt = self._attempt
        progress = (attempt.step, attempt.num_steps, attempt.trials_done, attempt.checkpoints, attempt.compile_s)
        if progress != self._progress or attempt.needs_bytes is not None:
            self._progress, self._progressed_at = progress, time.monotonic()
            attempt.progress_at = time.time()
        stalled_s = time.monotonic() - self._progressed_at
        if self._stall_minutes is not None and stalled_s > 60 * self._stall_minutes:
            step = f"step {attempt.step}/{attempt.num_steps or '?'}"
            error = f"no progress for {stalled_s / 60:.3g} min at {step}: terminated by --stall-minutes"
            self._terminate(FailureKind.TASK, error)

    def _terminate_if_forced(self) -> None:
        """Exit if `depthrate cancel --force` was called, because a hanging task does not check for stop requests."""
        if self._store.uses_requests and not self._stop.is_set:
            return  # do not send a request to a remote store at every heartbeat
        if self._attempt.attempt_id in forced_attempts(read_cancel_mark(self._store, self._attempt.sweep)):
            self._terminate(FailureKind.CANCELLED, "terminated by depthrate cancel --force")

    def _terminate(self, kind: FailureKind, error: str) -> None:
        """Commit the finished trials, record the failure, and exit without waiting for other threads."""
        attempt = self._attempt
        with contextlib.suppress(Exception):
            self._commit_finished()
        attempt.state, attempt.error_kind, attempt.error = AttemptState.FAILED, kind, error
        attempt.ended_at = time.time()
        with contextlib.suppress(Exception):
            faulthandler.dump_traceback(self._output)
            self._upload_log()
        with contextlib.suppress(Exception):
            attempt.beat(self._store)
        os._exit(SELF_TERMINATED_CODE)

    def _upload_log(self) -> None:
        _flush()
        size = os.fstat(self._output.fileno()).st_size
        if size == self._uploaded:
            return
        start = max(0, size - LOG_TAIL_BYTES)
        content = os.pread(self._output.fileno(), size - start, start)
        try:
            self._store.write(log_path(self._attempt.sweep, self._attempt.attempt_id), content)
            self._uploaded = size
        except Exception as error:
            log.warning("log not written: %s", error)
