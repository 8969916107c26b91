"""The report of a sweep, for its figures on the page and as a page of its own: read again when somebody asks after a change."""

from __future__ import annotations

import threading
import time
from typing import Any

from depthrate.orchestrator.cli.commands.report import read_sweep
from depthrate.orchestrator.cli.find_sweep import find_launch
from depthrate.orchestrator.cli.serve.poller import Seen
from depthrate.orchestrator.cli.serve.readers import Readers
from depthrate.orchestrator.report.data import ReportData
from depthrate.orchestrator.report.page import all_plots, render_report
from depthrate.storage.files.store import Store

PATIENCE_S = 60.0
EVERY_S, SHARE = 15.0, 20.0
"""A report is made again no sooner than this after the last, nor than so many times what that took."""


class DrawnReport:
    """The report of one sweep, as it was when it was read last."""

    def __init__(self, store: Store, readers: Readers, sweep: str):
        self._store, self._readers, self._sweep = store, readers, sweep
        self._lock = threading.Lock()
        self._data: ReportData | None = None
        self._figures: list[dict[str, Any]] = []
        self._of: frozenset[str] = frozenset()
        """The attempts whose trials counted then."""
        self._due_at = 0.0

    def figures(self, seen: Seen) -> list[dict[str, Any]]:
        """Return every figure: title, notes, and what plotly draws.

        Raises:
            ValueError: the sweep's task is not to be had, or the store does not answer.
            OSError: the store does not answer.
            BusyError: too much is asked at once.
        """
        with self._lock:
            self._catch_up(seen)
            return self._figures

    def page(self, seen: Seen) -> str:
        """Return the whole report as one HTML text.

        Raises:
            ValueError, OSError, BusyError: as `figures`.
        """
        with self._lock:
            return render_report(self._catch_up(seen))

    def _catch_up(self, seen: Seen) -> ReportData:
        counting = self._of if seen.look is None else frozenset(seen.look.snapshot.trials["attempt_id"].to_pylist())
        if self._data is not None and (counting == self._of or time.monotonic() < self._due_at):
            return self._data
        began = time.monotonic()
        checked, _ = find_launch(seen.specs[self._sweep], self._store)
        with self._readers.fresh(PATIENCE_S) as results:
            command = ["depthrate", "run", self._sweep, "--store", self._store.url]
            self._data, _ = read_sweep(checked, self._store, results, command)
        self._figures = [
            {
                "title": plot.title,
                "notes": " ".join(plot.notes),
                "rows": plot.legend_rows,
                "data": plot.traces,
                "layout": plot.layout,
                "frames": plot.frames,
            }
            for plot in all_plots(self._data)
        ]
        self._of, ended = counting, time.monotonic()
        self._due_at = ended + max(EVERY_S, SHARE * (ended - began))
        return self._data
