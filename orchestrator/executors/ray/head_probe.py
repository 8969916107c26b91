"""Probe Ray's head without using Ray, whose calls would wait for a minute and then abort the process."""

import socket
import threading
import time
from collections.abc import Callable

PROBE_INTERVAL_S = 2.0
"""Seconds between probes."""
HEAD_CONNECT_TIMEOUT_S = 3.0
"""Time limit for a connection to the head's port, in seconds."""


class HeadProbe:
    """Thread that regularly connects to the head's port."""

    def __init__(self, address: str, also: Callable[[], object] = lambda: None):
        """Probe the head at `host:port`. The probe succeeds when `also`, called after each connection, returns."""
        self.address = address
        host, _, port = address.rpartition(":")
        self._host_port = host, int(port)
        self._on_answer = also
        self._answered_at = time.monotonic()
        self._is_over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def silent_s(self) -> float:
        """Seconds since the last successful probe."""
        return time.monotonic() - self._answered_at

    def close(self) -> None:
        """Stop probing."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                socket.create_connection(self._host_port, HEAD_CONNECT_TIMEOUT_S).close()
                self._on_answer()
                self._answered_at = time.monotonic()
            except Exception:  # any error means that the head did not answer
                pass
            self._is_over.wait(PROBE_INTERVAL_S)
