"""Track peer launches of a sweep: the trials that they run or claim, and attempts that ended without a record of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence

from depthrate.orchestrator.attempts.liveness import STALE_S, is_live, stale_after_s
from depthrate.orchestrator.attempts.record import lost_attempt, write_lost
from depthrate.storage.attempts.claims import LEASE_S, Claims, is_process_gone
from depthrate.storage.attempts.records import Record, RecordReader
from depthrate.storage.files.paths import attempt_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.sweeps.packing import Pack


class PeerLaunches:
    """Live attempts and claims of peer launches."""

    def __init__(self, store: Store, sweep: str = "", launch_id: str = ""):
        self._store = store
        self.claims = Claims(store, sweep, launch_id)
        self._records = RecordReader(store)
        self._seen: set[str] = set()
        """Paths of the records of this launch's attempts and of ended attempts."""
        self.running: set[str] = set()
        """Trials that peers were running at the last poll."""
        self.live_records: list[Record] = []
        """Records of the attempts that were running them."""

    def __enter__(self) -> PeerLaunches:
        self.claims.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.claims.release_all()

    @property
    def busy(self) -> set[str]:
        """Trials that peers were running or had claimed at the last poll."""
        return self.running | self.claims.peer_trials

    def describe_blocking(self, trial_ids: Collection[str]) -> list[str]:
        """Describe the peer launches that claim any of these trials, or else the attempts that run them.

        Contains the host, the process and, after half of its time without a heartbeat, the seconds until the take-over.
        """
        blocking = [("launch", c.host, c.pid, silent_s, LEASE_S) for c, silent_s in self.claims.peers_of(trial_ids)]
        records = [] if blocking else [r for r in self.live_records if not set(r["trial_ids"]).isdisjoint(trial_ids)]
        for record in records:
            silent_s = time.time() - (record["heartbeat_at"] or 0.0)
            limit_s = stale_after_s(record.get("beat_s") or 0.0, min_s=STALE_S)
            blocking.append(("attempt", record["host"], record["pid"], silent_s, limit_s))
        return [
            f"the {noun} on {host}, pid {pid}"
            + (f" (silent for {s:.0f} s, taken over in {max(0.0, limit_s - s):.0f} s)" if s > limit_s / 2 else "")
            for noun, host, pid, s, limit_s in blocking
        ]

    @property
    def is_alone(self) -> bool:
        """True if the last poll found no attempts, claims or launches of peers."""
        return not self.live_records and not self.claims.has_peers and not self.claims.peer_trials

    def claim(self, packs: Sequence[Pack], following: Sequence[Pack], running_ids: Collection[str]) -> bool:
        """Claim packs for this launch, which already runs `running_ids`. Return whether a new claim was needed.

        If a claim is slow (an object store, or peers that must see it), the `following` packs are claimed too.
        """
        if all(self.claims.holds(pack.trial_ids) for pack in packs):
            return False
        is_costly = self.claims.has_peers or self._store.uses_requests
        wanted = {trial_id for pack in (*packs, *(following if is_costly else ())) for trial_id in pack.trial_ids}
        self.claims.acquire(wanted, running_ids)
        return True

    def register_attempts(self, sweep: str, *attempt_ids: str) -> None:
        """Register attempts of this launch, so that they do not count as a peer's."""
        self._seen.update(attempt_path(sweep, attempt_id) for attempt_id in attempt_ids)

    def poll(self) -> set[str]:
        """Read the peers' attempts and claims, and record as lost the attempts that were killed together with their driver.

        Returns:
            The trials that were claimed at the previous poll and are no longer claimed.
        Raises:
            OSError: If the store cannot be listed.
        """
        previous = self.claims.peer_trials
        self.claims.refresh()
        records = self._records.refresh(lambda path: path not in self._seen)
        now = time.time()
        self.running, self.live_records = set(), []
        for path, record in records.items():
            if is_live(record, now):
                self.running.update(record["trial_ids"])
                self.live_records.append(record)
                continue
            if record["state"] is AttemptState.RUNNING:
                is_gone = is_process_gone(record["host"], record["pid"])
                problem = "the worker process has ended" if is_gone else "no heartbeat from the worker"
                kind, error = FailureKind.WORKER_LOST, f"{problem}, cause unknown"
                with contextlib.suppress(OSError):  # the record is informative only
                    write_lost(
                        self._store, lost_attempt(record["attempt_id"], record["sweep"], record, kind=kind, error=error)
                    )
            self._seen.add(path)
        return previous - self.claims.peer_trials
