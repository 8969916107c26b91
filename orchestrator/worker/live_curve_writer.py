"""What a pack's trials log while they train, put into the store every few seconds: thinned, and never in their way."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from depthrate.orchestrator.executors.base import AttemptSpec
from depthrate.storage.attempts.live_curves import Row, write_live
from depthrate.storage.files.paths import live_path
from depthrate.storage.files.store import Store

MIN_WRITE_INTERVAL_S = 5.0
"""Seconds between two writes at least; a launch with so many workers that they beat less often writes less often too."""
REWRITE_AFTER_S = 600.0
"""What has not changed for so long is written once more, so that it is not taken for left behind."""
MAX_VALUES_PER_FILE = 30_000
"""In one file: 240 kB before they are compressed."""
MIN_POINTS = 4
log = logging.getLogger("depthrate")


@dataclass
class _Series:
    """Every so many of the rows of one split of a trial, and the newest."""

    rows: list[Row] = field(default_factory=list)
    stride: int = 1
    seen: int = 0
    newest: Row | None = None

    def add(self, row: Row) -> None:
        if self.seen % self.stride == 0:
            self.rows.append(row)
        self.seen += 1
        self.newest = row

    def thin(self, most: int) -> None:
        while len(self.rows) > most:
            self.rows, self.stride = self.rows[::2], 2 * self.stride

    def thinned_rows(self) -> list[Row]:
        is_last = self.newest is None or (self.rows and self.rows[-1] is self.newest)
        return self.rows if is_last else [*self.rows, self.newest or {}]


@dataclass
class _TrackedCurve:
    """A trial's rows, which grow in another thread, as far as they were looked at."""

    rows: Sequence[Row]
    taken: int = 0
    splits: dict[str, _Series] = field(default_factory=dict)

    def read_new(self) -> bool:
        """Look at what came since; whether there was anything."""
        length = len(self.rows)
        for row in self.rows[self.taken : length]:
            self.splits.setdefault(str(row.get("split") or "train"), _Series()).add(row)
        is_new, self.taken = length > self.taken, length
        return is_new


class LiveCurves:
    """The curves of a pack that trains, as the store is told of them; what goes wrong there is the store's loss alone."""

    def __init__(self, store: Store, job: AttemptSpec, params: Mapping[str, Mapping[str, Any]]):
        self._store, self._job, self._params = store, job, params
        self._every_s = max(MIN_WRITE_INTERVAL_S, job.options.beat_s or 0.0)
        self._followed: dict[str, _TrackedCurve] = {}
        self._last = time.monotonic()  # a pack that is over sooner than that writes nothing
        self._has_written = self._has_failed = self._is_closed = False
        self._lock = threading.Lock()  # of what is followed: the task adds to it, the heartbeat goes through it
        self._file = threading.Lock()  # a file that is deleted must not come back

    def follow(self, curves: Mapping[str, Sequence[Row]]) -> None:
        """Look from now on at these lists: trial -> its rows."""
        with self._lock:
            self._followed |= {trial_id: _TrackedCurve(rows) for trial_id, rows in curves.items()}

    def forget(self, trial_ids: Collection[str]) -> None:
        """Leave out trials that are committed; where none is left, nothing stays in the store."""
        with self._lock:
            self._followed = {t: each for t, each in self._followed.items() if t not in trial_ids}
            is_empty = not self._followed
        if is_empty:
            self._delete()

    def write_if_due(self) -> None:
        """Write what has been logged, if it is time and there is something new."""
        waited_s = time.monotonic() - self._last
        if waited_s < self._every_s:
            return
        with self._file:
            with self._lock:
                is_new = [each.read_new() for each in self._followed.values()]
                is_due = any(is_new) or (self._has_written and waited_s >= REWRITE_AFTER_S)
                params, rows = self._thinned() if is_due else ({}, [])
            if rows and not self._is_closed:
                self._last = time.monotonic()
                self._write(params, rows)

    def close(self) -> None:
        """End: the pack is committed, or over."""
        with self._file:
            self._is_closed = True
        self._delete()

    def _thinned(self) -> tuple[dict[str, Mapping[str, Any]], list[tuple[str, Row]]]:
        series = [one for each in self._followed.values() for one in each.splits.values()]
        names = {name for one in series for name in (one.newest or {})}
        most = max(MIN_POINTS, MAX_VALUES_PER_FILE // max(1, len(series) * len(names)))
        for one in series:
            one.thin(most)
        followed = {trial_id: each for trial_id, each in self._followed.items() if trial_id in self._params}
        rows = [(t, row) for t, each in followed.items() for one in each.splits.values() for row in one.thinned_rows()]
        return {trial_id: self._params[trial_id] for trial_id in followed}, rows

    def _write(self, params: Mapping[str, Mapping[str, Any]], rows: Sequence[tuple[str, Row]]) -> None:
        job = self._job
        try:
            self._has_written = True  # before: of what failed nobody knows whether it is there
            write_live(self._store, job.sweep, job.pack_id, job.attempt_id, params, rows)
        except Exception as error:
            self._warn_once("written", error)

    def _delete(self) -> None:
        with self._file:
            if not self._has_written:
                return
            try:
                self._store.delete_many([live_path(self._job.sweep, self._job.pack_id)])
                self._has_written = False
            except Exception as error:  # a compaction finds it
                self._warn_once("deleted", error)

    def _warn_once(self, what: str, error: Exception) -> None:
        """Say once what went wrong: it would go wrong again every few seconds."""
        if not self._has_failed:
            log.warning("live curves not %s: %s: %s", what, type(error).__name__, error)
        self._has_failed = True
