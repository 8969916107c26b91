"""Child processes of the server: each answers requests, lines of JSON, until it is idle or the server ends it."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from depthrate.orchestrator.serve.errors import ClientGoneError
from depthrate.tasks.python_process import start_python

IDLE_TIMEOUT_S = 120.0
"""Seconds without a request after which a process exits."""
CLIENT_POLL_INTERVAL_S = 0.1


class ChildProcess:
    """A module of this package in a separate process, with a temporary folder and the incomplete last line of its output."""

    def __init__(self, module: str, *arguments: str):
        self._temp = tempfile.TemporaryDirectory(prefix="depthrate-serve-", ignore_cleanup_errors=True)
        variables, pipe = {"TMPDIR": self._temp.name}, subprocess.PIPE
        self.popen: subprocess.Popen[bytes] = start_python(
            f"{__package__}.{module}",
            *arguments,
            variables=variables,
            stdin=pipe,
            stdout=pipe,
            start_new_session=True,  # Ctrl-C reaches only the server, which then ends the process
        )
        self._rest = b""

    def send(self, request: Mapping[str, str | None]) -> None:
        """Send a request.

        Raises:
            OSError: The process has ended.
        """
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(request).encode() + b"\n")
        self.popen.stdin.flush()

    def line(self, wait_s: float, is_gone: Callable[[], bool] = lambda: False) -> bytes | None:
        """Return the next line of output, or None after a timeout.

        Raises:
            ClientGoneError: The client has disconnected.
            EOFError: The process has ended.
        """
        assert self.popen.stdout is not None
        deadline = time.monotonic() + wait_s
        while b"\n" not in self._rest:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            if is_gone():
                raise ClientGoneError
            if select.select([self.popen.stdout], [], [], min(CLIENT_POLL_INTERVAL_S, left_s))[0]:
                read = os.read(self.popen.stdout.fileno(), 1 << 20)
                if not read:
                    raise EOFError
                self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def end(self) -> None:
        """Kill the process and delete its folder."""
        self.popen.kill()
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout):
            with contextlib.suppress(OSError):  # an incomplete line that is no longer read
                stream.close() if stream is not None else None
        self._temp.cleanup()


def exit_text(code: int) -> str:
    """Describe the exit of a process."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def receive_requests() -> Iterator[tuple[dict[str, Any], IO[str]]]:
    """Yield the requests that this process receives, each with the stream for its answer, until it is idle."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of a task's code must not mix with answers
    while select.select([sys.stdin], [], [], IDLE_TIMEOUT_S)[0] and (line := sys.stdin.readline()):
        yield json.loads(line), answers
