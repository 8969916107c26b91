"""Combine the heartbeats of all workers of a node: each worker writes to a local folder, and one of them writes to the store.

The reporting worker holds a lock on a file in the folder. When its process ends, the kernel releases the lock and another
worker takes over. A worker that finds the combined heartbeat overdue writes its heartbeat to its attempt's record.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from depthrate.orchestrator.attempts.liveness import MAX_MISSED_NODE_HEARTBEATS, stale_after_s
from depthrate.orchestrator.attempts.record import Attempt
from depthrate.storage.attempts.heartbeats import HEARTBEAT_FIELDS, write_heartbeats
from depthrate.storage.files.store import Store


class NodeHeartbeat:
    """One attempt's part in the combined heartbeat of its node."""

    def __init__(self, store: Store, attempt: Attempt, beat_s: float):
        self._store, self._attempt, self._beat_s = store, attempt, beat_s
        name = hashlib.sha256(f"{store.url} {attempt.sweep}".encode()).hexdigest()[:16]
        self._folder = Path(tempfile.gettempdir()) / f"depthrate-{os.getuid()}" / name
        self._lock: IO[bytes] | None = None
        self._started = time.time()

    def publish(self) -> None:
        """Write the attempt's heartbeat to the node's folder."""
        self._attempt.heartbeat_at = time.time()
        with contextlib.suppress(OSError):
            self._make_folder()
            _write(self._folder / f"{self._attempt.attempt_id}.json", json.dumps(self._own_heartbeat()))

    def _own_heartbeat(self) -> Mapping[str, Any]:
        return {name: getattr(self._attempt, name) for name in HEARTBEAT_FIELDS}

    def beat(self) -> None:
        """Write the node's heartbeats to the store if this worker is the reporter, or only this attempt's if they are overdue.

        Raises:
            OSError: If the store refuses the write.
        """
        self.publish()
        try:
            is_reporter = self._is_reporter()
            name = self._name() if is_reporter else ""
        except OSError:  # the local disk has no space for a lock
            self._attempt.beat(self._store)
            return
        if is_reporter:
            heartbeat = {self._attempt.attempt_id: self._own_heartbeat()}  # file may be missing on a full local disk
            write_heartbeats(self._store, self._attempt.sweep, name, {**self._recent_heartbeats(), **heartbeat})
            with contextlib.suppress(OSError):
                _write(self._folder / "told", "")
            return
        latest = self._started
        with contextlib.suppress(OSError):
            latest = max(latest, (self._folder / "told").stat().st_mtime)
        if time.time() - latest > stale_after_s(self._beat_s, max_missed=MAX_MISSED_NODE_HEARTBEATS):
            self._attempt.beat(self._store)

    def close(self) -> None:
        """Remove the attempt's heartbeat from the folder and release the lock."""
        with contextlib.suppress(OSError):
            (self._folder / f"{self._attempt.attempt_id}.json").unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()

    def _make_folder(self) -> None:
        """Create the folder, and check that no other user created it first in the shared temporary folder."""
        for folder in (self._folder.parent, self._folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                raise PermissionError(f"{folder} belongs to another user")

    def _is_reporter(self) -> bool:
        if self._lock is None:
            self._make_folder()
            lock = (self._folder / "lock").open("ab")
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by processes that a task forks
            except BlockingIOError:
                lock.close()
                return False
            except OSError:
                lock.close()
                raise
            self._lock = lock
        return True

    def _name(self) -> str:
        """Return the folder's name in the store. Containers on one host may have different folders."""
        path = self._folder / "name"
        if not path.exists():
            host = re.sub("[^A-Za-z0-9]", "-", socket.gethostname())[:60]
            _write(path, f"{host or 'node'}.{secrets.token_hex(4)}".lstrip("-"))
        return path.read_text()

    def _recent_heartbeats(self) -> Mapping[str, Mapping[str, Any]]:
        """Map all attempts with a recent heartbeat in the folder to their heartbeats."""
        heartbeats = {}
        oldest = time.time() - stale_after_s(self._beat_s)
        for path in self._folder.glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                if path.stat().st_mtime >= oldest:
                    heartbeats[path.stem] = json.loads(path.read_text())
                else:
                    path.unlink()  # the process was killed, or will write the file again
        return heartbeats


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.write_text(text)
    draft.replace(path)
