"""Compact the store in the background while trials train."""

from __future__ import annotations

import os
import subprocess

from depthrate.storage.commits.snapshot import Snapshot
from depthrate.tasks.python_process import start_python

COMPACT_THRESHOLD = 512
"""Number of loose commits of one sweep at which a launch starts a compaction."""


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
