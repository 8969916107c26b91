"""The store's upkeep beside a launch: many small files are put together while trials train."""

from __future__ import annotations

import os
import subprocess

from depthrate.storage.commits.snapshot import Snapshot
from depthrate.tasks.python_process import start_python

COMPACT_THRESHOLD = 512
"""A launch starts a compaction when a sweep has this many loose commits."""


class AutoCompactor:
    """Compacts the store beside a launch, in a process of its own, whenever a sweep has many loose commits."""

    def __init__(self, store: str, threshold: int = COMPACT_THRESHOLD):
        self._store, self._threshold = store, threshold
        self._process: subprocess.Popen[bytes] | None = None

    def refresh(self, snapshot: Snapshot) -> bool:
        """Start a compaction if it is worth it and none runs, and return whether one was started."""
        if max(snapshot.num_loose().values(), default=0) < self._threshold:
            return False
        if self._process is not None and self._process.poll() is None:
            return False
        self._process = start_python(
            *("depthrate", "compact", "--store", self._store),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the launch, which then ends this
        )
        os.setpriority(os.PRIO_PROCESS, self._process.pid, 10)  # training comes first
        return True

    def close(self, *, wait: bool) -> None:
        """Let a running compaction finish, or end it: what it has not finished stays as it was."""
        if self._process is None:
            return
        if not wait:
            self._process.terminate()
        self._process.wait()
