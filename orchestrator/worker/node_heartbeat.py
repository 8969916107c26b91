"""One sign of life for all workers of a node: each leaves word in a folder of this machine, and one of them tells the store.

Who tells holds a lock on a file of that folder, which the kernel frees when its process ends, so that the next one goes on.
Who sees that nobody tells speaks for itself, in its own record.
"""

from __future__ import annotations

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

from depthrate.orchestrator.attempts.liveness import stale_after_s
from depthrate.orchestrator.attempts.record import Attempt
from depthrate.storage.attempts.heartbeats import HEARTBEAT_FIELDS, write_heartbeats
from depthrate.storage.files.store import Store


class NodeHeartbeat:
    """An attempt's part in the signs of life of its node."""

    def __init__(self, store: Store, attempt: Attempt, beat_s: float):
        self._store, self._attempt, self._beat_s = store, attempt, beat_s
        whose = hashlib.sha256(f"{store.url} {attempt.sweep}".encode()).hexdigest()[:16]
        self._folder = Path(tempfile.gettempdir()) / f"depthrate-{os.getuid()}" / whose
        self._lock: IO[bytes] | None = None
        self._began = time.time()

    def publish(self) -> None:
        """Say in this machine's folder how the attempt is."""
        self._attempt.heartbeat_at = time.time()
        with contextlib.suppress(OSError):
            self._make_folder()
            _write(self._folder / f"{self._attempt.attempt_id}.json", json.dumps(self._own_heartbeat()))

    def _own_heartbeat(self) -> Mapping[str, Any]:
        return {name: getattr(self._attempt, name) for name in HEARTBEAT_FIELDS}

    def beat(self) -> None:
        """See that the store hears of this attempt, from whoever tells it of this node or from the attempt itself.

        Raises:
            OSError: the store refuses it.
        """
        self.publish()
        try:
            leads = self._is_reporter()
            name = self._name() if leads else ""
        except OSError:  # no place on this machine for a lock
            self._attempt.beat(self._store)
            return
        if leads:
            own = {self._attempt.attempt_id: self._own_heartbeat()}  # of which a full disk may have kept nothing
            write_heartbeats(self._store, self._attempt.sweep, name, {**self._recent_heartbeats(), **own})
            with contextlib.suppress(OSError):
                _write(self._folder / "told", "")
        elif time.time() - max(self._last_heartbeat_at(), self._began) > 2 * self._beat_s:
            self._attempt.beat(self._store)

    def end(self) -> None:
        """Leave the others of this node to themselves."""
        with contextlib.suppress(OSError):
            (self._folder / f"{self._attempt.attempt_id}.json").unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()

    def _make_folder(self) -> None:
        """Make the folder; in a place that is everybody's another user may have been faster.

        Raises:
            PermissionError: it is another's.
        """
        for folder in (self._folder.parent, self._folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
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
        """Return this folder's name in the store: containers of one host may have one each."""
        path = self._folder / "name"
        if not path.exists():
            host = re.sub("[^A-Za-z0-9]", "-", socket.gethostname())[:60]
            _write(path, f"{host or 'node'}.{secrets.token_hex(4)}".lstrip("-"))
        return path.read_text()

    def _recent_heartbeats(self) -> Mapping[str, Mapping[str, Any]]:
        """Return attempt -> its beat of all that have left word lately."""
        words = {}
        oldest = time.time() - stale_after_s(self._beat_s)
        for path in self._folder.glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                if path.stat().st_mtime >= oldest:
                    words[path.stem] = json.loads(path.read_text())
                else:
                    path.unlink()  # its process was killed, or comes again
        return words

    def _last_heartbeat_at(self) -> float:
        try:
            return (self._folder / "told").stat().st_mtime
        except OSError:
            return 0.0


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.write_text(text)
    draft.replace(path)
