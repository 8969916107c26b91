"""What other launches of a sweep are doing: which trials they run now, and the ends that nobody wrote down."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence

from depthrate.orchestrator.attempts.liveness import is_live
from depthrate.orchestrator.attempts.record import write_lost
from depthrate.storage.attempts.claims import Claims
from depthrate.storage.attempts.records import Record, RecordReader
from depthrate.storage.files.paths import attempt_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.sweeps.packing import Pack


class PeerLaunches:
    """Looks at what is not this launch's own: attempts that run, and claims of trials about to be."""

    def __init__(self, store: Store, sweep: str = "", launch_id: str = ""):
        self._store = store
        self._claims = Claims(store, sweep, launch_id)
        self._records = RecordReader(store)
        self._seen: set[str] = set()
        """Attempts that are this launch's own, or have ended."""
        self.running: set[str] = set()
        """Trials that others were running at the last look."""
        self.holders: list[Record] = []
        """The attempts that were running them."""

    def __enter__(self) -> PeerLaunches:
        self._claims.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._claims.release_all()

    @property
    def busy(self) -> set[str]:
        """Trials that others were running, or about to run, at the last look."""
        return self.running | self._claims.peer_trials

    @property
    def had_peers(self) -> bool:
        """Whether another launch of the sweep was seen at any time."""
        return self._claims.has_peers

    @property
    def is_alone(self) -> bool:
        """Whether nothing of another launch was seen at the last look."""
        return not self.holders and not self._claims.has_peers and not self._claims.peer_trials

    def detect_peers(self) -> None:
        """See whether another launch has come, at the cost of one request."""
        self._claims.refresh()

    def claim(self, packs: Sequence[Pack], following: Sequence[Pack], own: Collection[str]) -> bool:
        """Claim packs beside this launch's `own` trials, unless they are its already; return whether that had to be asked.

        Where a claim costs time, of requests or for others to see it, those that follow are claimed with them.
        """
        if all(self.is_claimed(pack) for pack in packs):
            return False
        is_costly = self.had_peers or not self._store.is_local
        wanted = {trial_id for pack in (*packs, *(following if is_costly else ())) for trial_id in pack.trial_ids}
        self._claims.acquire(wanted, own)
        return True

    def is_claimed(self, pack: Pack) -> bool:
        """Whether this launch holds the claim of all of a pack."""
        return self._claims.holds(pack.trial_ids)

    def renew(self, own: Collection[str]) -> None:
        """Keep the claims of what runs, now and then."""
        self._claims.renew(own)

    def register_attempts(self, sweep: str, *attempt_ids: str) -> None:
        """Note attempts of this launch."""
        self._seen.update(attempt_path(sweep, attempt_id) for attempt_id in attempt_ids)

    def poll(self) -> set[str]:
        """See which trials others run or claim, and write down the end of those that were killed together with their driver.

        Returns the trials that were claimed at the look before and are no more.

        Raises:
            OSError: the store cannot be listed just now.
        """
        before = self._claims.peer_trials
        self._claims.refresh()
        records = self._records.refresh(lambda path: path not in self._seen)
        now = time.time()
        self.running, self.holders = set(), []
        for path, record in records.items():
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
        return before - self._claims.peer_trials
