"""Write a pack's live curves to the store every few seconds, thinned and without delaying the training."""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.storage.attempts.live_curves import Row, write_live
from depthrate.storage.files.paths import live_path
from depthrate.storage.files.store import Store

MIN_WRITE_INTERVAL_S = 5.0
"""Minimum seconds between two writes. A launch with a longer heartbeat interval writes at that interval."""
REWRITE_AFTER_S = 600.0
"""Seconds after which unchanged curves are written again, so that they are not treated as orphaned."""
MAX_VALUES_PER_FILE = 30_000
"""Maximum number of values in one file, which is 240 kB before compression."""
MIN_POINTS = 4
"""Lower bound on the maximum number of points of a thinned series."""
log = logging.getLogger("depthrate")


@dataclass
class _TrackedCurve:
    """A trial's rows, which grow in another thread, and the part that was read."""

    rows: Sequence[Row]
    num_read: int = 0
    splits: dict[str, list[Row]] = field(default_factory=dict)

    def read_new(self) -> bool:
        """Read the new rows. Return whether any exist."""
        length = len(self.rows)
        for row in self.rows[self.num_read : length]:
            self.splits.setdefault(str(row.get("split") or "train"), []).append(row)
        has_new, self.num_read = length > self.num_read, length
        return has_new


class LiveCurves:
    """Writes the live curves of a running pack to the store. A failed write is logged and does not affect the pack."""

    def __init__(self, store: Store, job: AttemptSpec, params: Mapping[str, Mapping[str, Any]]):
        self._store, self._job, self._params = store, job, params
        self._interval_s = max(MIN_WRITE_INTERVAL_S, job.options.beat_s or 0.0)
        self._followed: dict[str, _TrackedCurve] = {}
        self._last = time.monotonic()  # a pack that ends within the interval writes nothing
        self._has_written = self._has_failed = self._is_closed = False
        self._lock = threading.Lock()  # guards _followed, which the task extends and the heartbeat reads
        self._file = threading.Lock()  # guards the file, so that it is not written again after its deletion

    def follow(self, curves: Mapping[str, Sequence[Row]]) -> None:
        """Start following these lists: trial -> rows."""
        with self._lock:
            self._followed |= {trial_id: _TrackedCurve(rows) for trial_id, rows in curves.items()}

    def forget(self, trial_ids: Collection[str]) -> None:
        """Stop following committed trials. Delete the file once no trial remains."""
        with self._lock:
            self._followed = {t: curve for t, curve in self._followed.items() if t not in trial_ids}
            is_empty = not self._followed
        if is_empty:
            self._delete()

    def write_if_due(self) -> None:
        """Write the curves if the interval has passed and rows are new."""
        waited_s = time.monotonic() - self._last
        if waited_s < self._interval_s:
            return
        with self._file:
            with self._lock:
                has_new = [curve.read_new() for curve in self._followed.values()]
                is_due = any(has_new) or (self._has_written and waited_s >= REWRITE_AFTER_S)
                params, rows = self._thinned() if is_due else ({}, [])
            if rows and not self._is_closed:
                self._last, job = time.monotonic(), self._job
                try:
                    self._has_written = True  # set first, because a failed write may have created the file
                    write_live(self._store, job.sweep, job.pack_id, job.attempt_id, params, rows)
                except Exception as error:
                    self._warn_once("written", error)

    def close(self) -> None:
        """Stop writing and delete the file, because the pack has ended."""
        with self._file:
            self._is_closed = True
        self._delete()

    def _thinned(self) -> tuple[dict[str, Mapping[str, Any]], list[tuple[str, Row]]]:
        all_series = [series for curve in self._followed.values() for series in curve.splits.values()]
        names = {name for series in all_series for name in series[-1]}
        max_rows = max(MIN_POINTS, MAX_VALUES_PER_FILE // max(1, len(all_series) * len(names)))
        followed = {trial_id: curve for trial_id, curve in self._followed.items() if trial_id in self._params}
        rows = [(t, row) for t, curve in followed.items() for s in curve.splits.values() for row in _thin(s, max_rows)]
        return {trial_id: self._params[trial_id] for trial_id in followed}, rows

    def _delete(self) -> None:
        with self._file:
            if not self._has_written:
                return
            try:
                self._store.delete_many([live_path(self._job.sweep, self._job.pack_id)])
                self._has_written = False
            except Exception as error:  # a later compaction deletes the file
                self._warn_once("deleted", error)

    def _warn_once(self, action: str, error: Exception) -> None:
        """Log the first failure only, because it would recur every few seconds."""
        if not self._has_failed:
            log.warning("live curves not %s: %s: %s", action, type(error).__name__, error)
        self._has_failed = True


def _thin(rows: list[Row], max_rows: int) -> list[Row]:
    """Return every n-th row, and the newest. n is a power of two, so that a curve that grows keeps its points."""
    stride = 1 << (-(-len(rows) // max_rows) - 1).bit_length()
    return [*rows[:-1:stride], rows[-1]]
