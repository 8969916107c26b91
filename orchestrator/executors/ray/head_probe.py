"""Whether Ray's head is there, asked without Ray, whose own calls wait for a minute and then end the process."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable

PROBE_INTERVAL_S = 2.0
HEAD_CONNECT_TIMEOUT_S = 3.0
"""How long the head's port may take to accept a connection."""


class HeadProbe:
    """Asks the head's port again and again, in a thread of its own."""

    def __init__(self, address: str, also: Callable[[], object] = lambda: None):
        """Watch the head at `host:port`; `also` is called after each answer, and one that hangs counts as silence."""
        self.address = address
        host, _, port = address.rpartition(":")
        self._host_port = host, int(port)
        self._on_answer = also
        self._answered_at = time.monotonic()
        self._is_over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def silent_s(self) -> float:
        """For how many seconds it has not answered."""
        return time.monotonic() - self._answered_at

    def close(self) -> None:
        """Ask no more."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                socket.create_connection(self._host_port, HEAD_CONNECT_TIMEOUT_S).close()
                self._on_answer()
                self._answered_at = time.monotonic()
            except Exception:  # whatever it is, the head did not answer
                pass
            self._is_over.wait(PROBE_INTERVAL_S)


def is_orphan(parent: int) -> bool:
    """Whether the process that started this one, Ray's own of this node, is gone."""
    return os.getppid() != parent
