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
from depthrate.orchestrator.serve.errors import RenderError
from depthrate.orchestrator.serve.poller import StoreView
from depthrate.orchestrator.serve.rows import state_of
from depthrate.storage.files.store import Store

MAX_RENDER_S = 180.0
"""Time limit of a render in seconds."""
REPORT_WAIT_TIMEOUT_S = 60.0
"""Time in seconds that a report waits for the render of newer commits."""
RENDER_INTERVAL_S = 15.0
"""Minimum interval between two renders of a sweep, in seconds."""
RENDER_INTERVAL_FACTOR = 10.0
"""Minimum interval between two renders of a sweep, as a multiple of the last render time."""
MAX_CACHED_REPORTS = 8
"""Maximum number of sweeps with cached figures. The least recently used figures are dropped first."""


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
        self._one_at_a_time = ThreadPoolExecutor(1, "rendering")
        self._process: ChildProcess | None = None
        self._sweeps: OrderedDict[str, RenderedSweep] = OrderedDict()
        self._lock, self._number, self._is_ended = threading.Lock(), 0, False

    def stop(self) -> None:
        """Terminate the render process and delete its files."""
        with self._lock:
            self._is_ended = True
            self._terminate()
        self._one_at_a_time.shutdown(cancel_futures=True)
        self._scratch.cleanup()

    def page(self, sweep: str, view: StoreView) -> tuple[bytes | None, str]:
        """Return the gzipped report and the error since its render. Waits for a running render."""
        render = self.figures(sweep, view)
        if render.running is not None:
            wait([render.running], REPORT_WAIT_TIMEOUT_S)
        with contextlib.suppress(OSError):
            return self._path(render.name, "page").read_bytes(), render.last_error
        return None, render.last_error or "The report is being rendered. Reload the page shortly."

    def packed_figures(self, name: str) -> bytes | None:
        """Return the gzipped figures of a render, or None if they were replaced."""
        with self._lock:
            is_current = any(name == render.name for render in self._sweeps.values())
        with contextlib.suppress(OSError):
            return self._path(name, "figures").read_bytes() if is_current else None
        return None

    def figures(self, sweep: str, view: StoreView) -> RenderedSweep:
        """Return the last render at once, and start a new one if there are new commits."""
        render = self._entry(sweep)
        with render.lock:
            if render.running is not None and render.running.done():
                render.running = None
            if render.running is None and time.monotonic() >= render.due_at and not self._is_ended:
                commits = _visible_commits(view, sweep)
                if commits != render.visible_commits:
                    render.running = self._one_at_a_time.submit(self._render, sweep, render, commits)
            return render

    def _entry(self, sweep: str) -> RenderedSweep:
        with self._lock:
            render = self._sweeps.setdefault(sweep, RenderedSweep())
            self._sweeps.move_to_end(sweep)
            evicted = [self._sweeps.popitem(last=False)[1] for _ in range(len(self._sweeps) - MAX_CACHED_REPORTS)]
        for dropped in evicted:
            self._forget(dropped.name)
        return render

    def _render(self, sweep: str, render: RenderedSweep, commits: frozenset[tuple[str, str]]) -> None:
        self._number += 1
        began, previous, name = time.monotonic(), render.name, f"{time.time_ns():x}-{self._number}"
        request = {"sweep": sweep} | {what: str(self._path(name, what)) for what in ("figures", "page")}
        try:
            error = self._request(request)
        except RenderError as failure:
            error = str(failure)
        ended = time.monotonic()
        render.name, render.last_error, render.visible_commits = (
            (previous, error, None) if error else (name, "", commits)
        )
        render.due_at = ended + max(RENDER_INTERVAL_S, RENDER_INTERVAL_FACTOR * (ended - began))
        if not error:
            self._forget(previous)

    def _request(self, request: Mapping[str, str]) -> str:
        """Send a render request and return its error, empty on success."""
        for is_last in (False, True):
            process = self._running_process()
            with contextlib.suppress(OSError, EOFError, ValueError):  # the process has ended since its last use
                process.send(request)
                if (line := process.line(MAX_RENDER_S)) is not None:
                    return str(json.loads(line)["error"])
                self._terminate()
                raise RenderError(f"rendering took longer than {MAX_RENDER_S:.0f} s and was stopped")
            code = process.popen.wait()
            self._terminate()
            if code or is_last:
                break  # an idle process exits with 0, so start another
        ended = f"the render process has ended ({exit_text(code)})"
        raise RenderError(f"{ended}. Its output is in the terminal of depthrate serve.")

    def _running_process(self) -> ChildProcess:
        with self._lock:
            if self._is_ended:
                raise RenderError("the server is stopping")
            if self._process is None or self._process.popen.poll() is not None:
                self._terminate()
                self._process = ChildProcess("render_process", self._store.address)
            return self._process

    def _terminate(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _path(self, name: str, what: str) -> Path:
        return self._folder / f"{name or 'nothing'}.{what}.gz"

    def _forget(self, name: str) -> None:
        for what in ("figures", "page"):
            self._path(name, what).unlink(missing_ok=True)


def _visible_commits(view: StoreView, sweep: str) -> frozenset[tuple[str, str]]:
    """Return the visible (trial, attempt) pairs of a sweep."""
    assert view.status is not None
    trial_ids = state_of(view, sweep).states
    columns = (view.status.snapshot.trials[name].to_pylist() for name in ("trial_id", "attempt_id"))
    return frozenset(pair for pair in zip(*columns, strict=True) if pair[0] in trial_ids)
