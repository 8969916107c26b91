"""SQL queries of browsers: each runs in a separate process, killed at its limits or when the client disconnects."""

import contextlib
import json
import queue
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from depthrate.orchestrator.serve.child_process import ChildProcess, exit_text
from depthrate.orchestrator.serve.errors import BusyError
from depthrate.storage.files.store import Store
from depthrate.storage.query.sql_checks import QueryError

MAX_ROWS = 1000
"""Maximum number of rows in an answer."""
MAX_READERS = 4
"""Maximum number of parallel queries. Further queries wait for `READER_WAIT_TIMEOUT_S`."""
MAX_READERS_PER_CLIENT = 2
"""Maximum number of parallel queries per client."""
READER_WAIT_TIMEOUT_S = 5.0
READER_GRACE_S = 0.5
"""Time in seconds after the time limit at which a process that has not interrupted its query is killed."""
READ_WAIT_S = 60.0
"""Maximum time in seconds for a process to start and read the store, in addition to the time limit of a query."""


@dataclass(frozen=True)
class Limits:
    """Limits of queries."""

    timeout_s: float = 30.0
    """Seconds of one query."""
    memory_gb: float = 1.0
    """Memory of all `MAX_READERS` processes together. Each has an equal share, whether or not others run."""


class SqlProcesses:
    """Pool of processes that run queries on one store, started on demand and reused."""

    def __init__(self, store: Store, limits: Limits):
        self._store, self._limits = store, limits
        self._free: queue.LifoQueue[ChildProcess | None] = queue.LifoQueue()
        for _ in range(MAX_READERS):
            self._free.put(None)
        self._num_running = Counter[str]()
        self._lock, self._is_ended = threading.Lock(), False

    def stop(self) -> None:
        """Terminate all idle processes. Busy processes end after their queries."""
        self._is_ended = True
        for _ in range(MAX_READERS):
            with contextlib.suppress(queue.Empty):
                process = self._free.get_nowait()
                if process is not None:
                    process.end()

    def run(self, query: str, sweep: str | None, client: str, is_gone: Callable[[], bool]) -> bytes:
        """Run a query and return JSON: columns, first rows, whether there are more, problems with the store.

        Raises:
            QueryError: The query is refused or exceeds its limits.
            BusyError: Too many queries are running, or the store does not answer.
            ClientGoneError: The client has disconnected.
        """
        with self._limit_client(client):
            try:
                free = self._free.get(timeout=READER_WAIT_TIMEOUT_S)
            except queue.Empty:
                raise BusyError(f"too many queries running (limit {MAX_READERS}). Try again shortly.") from None
            idle: ChildProcess | None = None
            try:
                idle, answer = self._exchange(free, {"sql": query, "sweep": sweep}, is_gone)
            finally:
                if self._is_ended and idle is not None:
                    idle.end()
                    idle = None
                self._free.put(idle)
        status, body = answer[:1], answer[1:]
        if status == b"=":
            return body
        raise (QueryError if status == b"?" else BusyError)(json.loads(body))

    @contextlib.contextmanager
    def _limit_client(self, client: str) -> Iterator[None]:
        with self._lock:
            if self._num_running[client] >= MAX_READERS_PER_CLIENT:
                raise BusyError(
                    f"too many of your queries running (limit {MAX_READERS_PER_CLIENT}). Try again shortly."
                )
            self._num_running[client] += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_running[client] -= 1
                if not self._num_running[client]:
                    del self._num_running[client]

    def _exchange(
        self, process: ChildProcess | None, request: dict[str, str | None], is_gone: Callable[[], bool]
    ) -> tuple[ChildProcess, bytes]:
        """Return the process and its answer. A process without an answer is terminated."""
        timeout_s = self._limits.timeout_s
        is_new = process is None
        process = process or self._start()
        try:
            process.send(request)
            if process.line(READ_WAIT_S, is_gone) is None:
                raise BusyError(f"{self._store.url} was not read in {READ_WAIT_S:.0f} s. Try again shortly.")
            answer = process.line(timeout_s + READER_GRACE_S, is_gone)
            if answer is None:
                raise QueryError(
                    f"the query took longer than {timeout_s:g} s and was stopped. Allow more with --timeout-seconds."
                )
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(READER_GRACE_S)  # the process has closed its output and is ending
            process.end()
            code = process.popen.returncode
            if code == 0 and not is_new:  # it was idle for too long, or its last query took all memory
                return self._exchange(None, request, is_gone)
            raise QueryError(
                f"the process that ran the query has ended ({exit_text(code)}), "
                f"probably because it needs more than its {self._limits.memory_gb / MAX_READERS:g} GB. Raise --memory-gb, "
                "or select less data at a time."
            ) from None
        except BaseException:
            process.end()
            raise
        return process, answer

    def _start(self) -> ChildProcess:
        return ChildProcess(
            "sql_process", self._store.address, str(self._limits.timeout_s), str(self._limits.memory_gb / MAX_READERS)
        )
