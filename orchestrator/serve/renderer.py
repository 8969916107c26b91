"""Rendered figures and reports of sweeps, made by a process that starts on demand, exits when idle, and may fail."""

import contextlib
import json
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from depthrate.orchestrator.serve.child_process import ChildProcess, exit_text
from depthrate.orchestrator.serve.poller import StoreView
from depthrate.orchestrator.serve.rows import state_of
from depthrate.storage.files.store import Store

MAX_RENDER_S = 180.0
"""Time limit of a render in seconds."""
REPORT_WAIT_TIMEOUT_S = 60.0
"""Time in seconds that a report waits for the render of newer commits."""
RENDER_INTERVAL_S, SHARE = 15.0, 10.0
"""Minimum interval between two renders of a sweep, in seconds and as a multiple of the last render time."""
MAX_CACHED_REPORTS = 8
"""Maximum number of sweeps with cached figures. The least recently used figures are dropped first."""


class DrawingError(Exception):
    """The render process ended or was terminated before it answered."""


@dataclass
class RenderedSweep:
    """Last render of a sweep."""

    name: str = ""
    """Name of the files, empty before the first render."""
    last_error: str = ""
    """Error since the last render. Empty if there was no error."""
    visible_commits: frozenset[tuple[str, str]] | None = None
    """Visible (trial, attempt) pairs at the render."""
    due_at: float = 0.0
    running: Future[None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Renderer:
    """Renders sweeps one at a time, when they are requested and have new commits."""

    def __init__(self, store: Store):
        self._store = store
        self._scratch = tempfile.TemporaryDirectory(prefix="depthrate-serve-", ignore_cleanup_errors=True)
        self._folder = Path(self._scratch.name)
        self._one_at_a_time = ThreadPoolExecutor(1, "drawing")
        self._process: ChildProcess | None = None
        self._sweeps: OrderedDict[str, RenderedSweep] = OrderedDict()
        self._lock, self._number, self._is_ended = threading.Lock(), 0, False

    def stop(self) -> None:
        """Terminate the render process and delete its files."""
        with self._lock:
            self._is_ended = True
            self._end_process()
        self._one_at_a_time.shutdown(cancel_futures=True)
        self._scratch.cleanup()

    def page(self, sweep: str, seen: StoreView) -> tuple[bytes | None, str]:
        """Return the gzipped report and the error since its render. Waits for a running render."""
        drawn = self.figures(sweep, seen)
        if drawn.running is not None:
            wait([drawn.running], REPORT_WAIT_TIMEOUT_S)
        with contextlib.suppress(OSError):
            return self._path(drawn.name, "page").read_bytes(), drawn.last_error
        return None, drawn.last_error or "It is still being rendered. Try again shortly."

    def packed_figures(self, name: str) -> bytes | None:
        """Return the gzipped figures of a render, or None if they were replaced."""
        with self._lock:
            is_known = any(name == drawn.name for drawn in self._sweeps.values())
        with contextlib.suppress(OSError):
            return self._path(name, "figures").read_bytes() if is_known else None
        return None

    def figures(self, sweep: str, seen: StoreView) -> RenderedSweep:
        """Return the last render at once, and start a new one if there are new commits."""
        drawn = self._of(sweep)
        with drawn.lock:
            if drawn.running is not None and drawn.running.done():
                drawn.running = None
            if drawn.running is None and time.monotonic() >= drawn.due_at and not self._is_ended:
                counting = _counting(seen, sweep)
                if counting != drawn.visible_commits:
                    drawn.running = self._one_at_a_time.submit(self._draw, sweep, drawn, counting)
            return drawn

    def _of(self, sweep: str) -> RenderedSweep:
        with self._lock:
            drawn = self._sweeps.setdefault(sweep, RenderedSweep())
            self._sweeps.move_to_end(sweep)
            left = [self._sweeps.popitem(last=False)[1] for _ in range(len(self._sweeps) - MAX_CACHED_REPORTS)]
        for rendered in left:
            self._forget(rendered.name)
        return drawn

    def _draw(self, sweep: str, drawn: RenderedSweep, counting: frozenset[tuple[str, str]]) -> None:
        self._number += 1
        began, before, name = time.monotonic(), drawn.name, f"{time.time_ns():x}-{self._number}"
        request = {"sweep": sweep} | {what: str(self._path(name, what)) for what in ("figures", "page")}
        try:
            said = self._answer(request)
        except DrawingError as error:
            said = str(error)
        ended = time.monotonic()
        drawn.name, drawn.last_error, drawn.visible_commits = (before, said, None) if said else (name, "", counting)
        drawn.due_at = ended + max(RENDER_INTERVAL_S, SHARE * (ended - began))
        if not said:
            self._forget(before)

    def _answer(self, request: Mapping[str, str]) -> str:
        """Send a render request and return its error, empty on success."""
        for is_last in (False, True):
            process = self._started()
            with contextlib.suppress(OSError, EOFError, ValueError):  # the process has ended since its last use
                process.send(request)
                if (line := process.line(MAX_RENDER_S)) is not None:
                    return str(json.loads(line)["said"])
                self._end_process()
                raise DrawingError(f"drawing took longer than {MAX_RENDER_S:.0f} s and was ended")
            code = process.popen.wait()
            self._end_process()
            if code or is_last:
                break  # an idle process exits with 0, so start another
        ended = f"the process that draws has ended ({exit_text(code)})"
        raise DrawingError(f"{ended}. Its output is in the terminal of serve.")

    def _started(self) -> ChildProcess:
        with self._lock:
            if self._is_ended:
                raise DrawingError("the server is being ended")
            if self._process is None or self._process.popen.poll() is not None:
                self._end_process()
                self._process = ChildProcess("render_process", self._store.address)
            return self._process

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _path(self, name: str, what: str) -> Path:
        return self._folder / f"{name or 'nothing'}.{what}.gz"

    def _forget(self, name: str) -> None:
        for what in ("figures", "page"):
            self._path(name, what).unlink(missing_ok=True)


def _counting(seen: StoreView, sweep: str) -> frozenset[tuple[str, str]]:
    """Return the visible (trial, attempt) pairs of a sweep."""
    assert seen.status is not None
    known = state_of(seen, sweep).states
    columns = (seen.status.snapshot.trials[name].to_pylist() for name in ("trial_id", "attempt_id"))
    return frozenset(pair for pair in zip(*columns, strict=True) if pair[0] in known)
