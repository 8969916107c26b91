"""What other launches of a sweep are doing: which trials they run now, and the ends that nobody wrote down."""

from __future__ import annotations

import contextlib
import time

from depthrate.orchestrator.attempt import is_live, write_lost
from depthrate.storage.layout import attempt_path
from depthrate.storage.records import Record, read_loose_records
from depthrate.storage.states import AttemptState, FailureKind
from depthrate.storage.store import Store


class OtherLaunches:
    """Looks at the attempts that are not this launch's own."""

    def __init__(self, store: Store):
        self._store = store
        self._seen: set[str] = set()
        """Attempts that are this launch's own, or have ended."""
        self.running: set[str] = set()
        """Trials that others were running at the last look."""
        self.holders: list[Record] = []
        """The attempts that were running them."""

    def note_own(self, sweep: str, attempt_id: str) -> None:
        """Note an attempt of this launch."""
        self._seen.add(attempt_path(sweep, attempt_id))

    def look(self) -> None:
        """See which trials others run, and write down the end of those that were killed together with their driver.

        Raises:
            OSError: the store cannot be listed just now.
        """
        attempts = {path for path in self._store.list("attempts") if path.endswith(".json")}
        now = time.time()
        self.running, self.holders = set(), []
        for path, record in read_loose_records(self._store, attempts - self._seen):
            if is_live(record, now):
                self.running.update(record["trial_ids"])
                self.holders.append(record)
                continue
            if record["state"] is AttemptState.RUNNING:
                how = "its process ended without a word"
                with contextlib.suppress(OSError):  # a hint: a store that refuses it stops nothing
                    write_lost(
                        self._store,
                        {"pack_id": "", "device": ""},
                        record,
                        kind=FailureKind.WORKER_LOST,
                        error=how,
                    )
            self._seen.add(path)
