"""Beside a pack that trains: its record and log are kept fresh in the store, and a driver that has died is noticed."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
from typing import IO, Protocol

from depthrate.orchestrator.attempt import Attempt, heartbeat_s
from depthrate.orchestrator.worker_context import StopFlag
from depthrate.storage.layout import log_path
from depthrate.storage.store import Store

LOG_TAIL_BYTES = 200_000
log = logging.getLogger("depthrate")


class Beating(Protocol):
    """What runs beside the heartbeat: one attempt of a pack."""

    store: Store
    attempt: Attempt

    def commit_if_due(self) -> None:
        """Commit what has waited long enough."""
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

    def __init__(self, run: Beating, output: IO[bytes], stop: StopFlag):
        self._run, self._output, self._stop = run, output, stop
        self._parent = int(os.environ.get("DEPTHRATE_DRIVER_PID") or os.getppid())
        self._ended = threading.Event()
        self._uploaded = 0
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Heartbeat:
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
                self._run.attempt.beat(self._run.store)
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
            self._run.store.write(log_path(self._run.attempt.sweep, self._run.attempt.attempt_id), content)
            self._uploaded = size
        except Exception as error:
            log.warning("log not written: %s", error)
