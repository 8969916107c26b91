"""Claims of launches on trials, so that launches started at the same moment do not duplicate work.

A claim is not a lock and needs no conditional write: a launch writes its claim, lists all claims, and the earliest
claim on a trial applies for as long as its launch renews it. A fault costs time but never a result, since only commits are
visible.

This suffices because a launch writes a claim (`enter`) before its first scan. If a launch claims trials and sees no peer, every
later launch sees it and its claim. If it sees a peer, it waits for `settle_s`, which exceeds both the difference between the
clocks of a store and the lag of its listings, and scans again. By then all launches that want a trial see each other's claims
and agree on the earliest. A claim is a new file each time, because file systems may show the old content of a rewritten file.
"""

import contextlib
import json
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field

from depthrate.storage.files.json_objects import read_object
from depthrate.storage.files.paths import CLAIMS, claim_path, launch_of_claim
from depthrate.storage.files.store import Store

log = logging.getLogger("depthrate")
LEASE_S = 90.0
"""Duration in seconds after which an unrenewed claim expires."""
RENEW_S = 20.0
"""Interval between renewals in seconds."""
SETTLE_S = 0.5
"""Wait for claims of peers in seconds, longer than the difference between the clocks of nodes that share a file system."""


@dataclass(frozen=True)
class Claim:
    """The claim of one launch, as stored."""

    launch_id: str
    sweep: str
    host: str
    pid: int
    renewed_at: float
    """Time of the last renewal by the store's clock, as far as it is known."""
    trials: dict[str, float] = field(default_factory=dict)
    """Trial -> time of its claim."""

    def is_live(self, now: float) -> bool:
        """Return whether the launch still renews the claim and, if it runs on this host, its process exists.

        A claim with a renewal time in the future is not live.
        """
        return abs(now - self.renewed_at) <= LEASE_S and not is_process_gone(self.host, self.pid)


class Claims:
    """The claims of one launch and its peers. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        sweep: str,
        launch_id: str,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], object] = time.sleep,
    ):
        self._store, self._sweep, self._launch_id = store, sweep, launch_id
        self._clock, self._sleep = clock, sleep
        self._skew_s = 0.0
        """Offset of the store's clock ahead of the local one in seconds."""
        self._settle_s = SETTLE_S + store.files.time_unit_s
        self._claimed: dict[str, float] = {}
        self._number = 0
        self._files: list[str] = []
        """Claim files of this launch that may be in the store, newest last."""
        self._written_at = float("-inf")
        self._peers: list[Claim] = []
        self._last_error = ""
        self.has_peers = False
        """Whether any scan found another launch of this sweep."""

    @property
    def peer_trials(self) -> set[str]:
        """Trials that other launches had claimed at the last scan."""
        return {trial_id for claim in self._peers for trial_id in claim.trials}

    def peers_of(self, trial_ids: Collection[str]) -> list[tuple[Claim, float]]:
        """Return the peer claims on any of these trials, each with the seconds since its last renewal."""
        wanted = set(trial_ids)
        return [(claim, self._now() - claim.renewed_at) for claim in self._peers if wanted & claim.trials.keys()]

    def enter(self) -> None:
        """Announce this launch, and scan for peers."""
        with self._tolerating_errors():
            started_at = self._clock()
            self._write()
            modified = self._store.modified(self._path())
            self._skew_s = 0.0 if modified is None else modified - started_at
            self.refresh()

    def release_all(self) -> None:
        """Release all claims."""
        with self._tolerating_errors():
            self._store.delete_many(self._files)

    def refresh(self) -> None:
        """Refresh peers' claims and delete expired ones."""
        with self._tolerating_errors():
            now = self._now()
            claims = read_claims(self._store, except_launch=self._launch_id)
            self._peers = [claim for _, claim in claims if claim.is_live(now)]
            self.has_peers |= any(claim.sweep == self._sweep for claim in self._peers)
            expired = [path for path, claim in claims if now - claim.renewed_at > 10 * LEASE_S]
            self._store.delete_many(expired)

    def acquire(self, wanted: Collection[str], keep: Collection[str] = ()) -> None:
        """Claim trials, and release all that are neither in `wanted` nor in `keep`.

        `holds` then reports the claimed ones.

        If the store refuses claims, all `wanted` trials count as claimed. Work may then be done twice, but is committed once.
        """
        peer_trials, now = self.peer_trials, self._now()
        keep, wanted = set(keep), set(wanted)
        self._claimed = {
            trial_id: at for trial_id, at in self._claimed.items() if trial_id in keep or trial_id in wanted
        }
        new = {trial_id: now for trial_id in wanted if trial_id not in self._claimed and trial_id not in peer_trials}
        if new:
            self._claimed |= new
            with self._tolerating_errors():
                self._write()
                self.refresh()
                if any(claim.sweep == self._sweep or new.keys() & claim.trials.keys() for claim in self._peers):
                    self._sleep(self._settle_s)
                    self.refresh()
                self._yield_to_earlier(new)

    def holds(self, trial_ids: Collection[str]) -> bool:
        """Return whether this launch has claimed all of these trials."""
        return self._claimed.keys() >= set(trial_ids)

    def renew(self, keep: Collection[str]) -> None:
        """Renew the claims on the trials in `keep` and release all other claims, if a renewal is due."""
        if not 0 <= self._now() - self._written_at < RENEW_S:  # also if the clock was set back
            self._claimed = {trial_id: at for trial_id, at in self._claimed.items() if trial_id in keep}
            with self._tolerating_errors():
                self._write()

    def _yield_to_earlier(self, new: dict[str, float]) -> None:
        lost = {
            trial_id
            for claim in self._peers
            for trial_id, at in claim.trials.items()
            if trial_id in new and (at, claim.launch_id) < (new[trial_id], self._launch_id)
        }
        if lost:
            self._claimed = {trial_id: at for trial_id, at in self._claimed.items() if trial_id not in lost}
            self._write()

    def _write(self) -> None:
        self._number += 1
        self._files.append(self._path())  # first: a failed write may have created the file
        now = self._now()
        claim = Claim(self._launch_id, self._sweep, socket.gethostname(), os.getpid(), now, self._claimed)
        self._store.write(self._path(), json.dumps(asdict(claim)).encode())
        self._written_at = now
        if previous := self._files[:-1]:
            self._store.delete_many(previous)
            self._files = self._files[-1:]

    @contextlib.contextmanager
    def _tolerating_errors(self) -> Iterator[None]:
        """Continue if the store refuses claims, and log each distinct error once."""
        try:
            yield
        except OSError as error:
            if str(error) != self._last_error:
                log.warning("claims not written or read: %s", error)
            self._last_error = str(error)

    def _path(self) -> str:
        return claim_path(self._launch_id, self._number)

    def _now(self) -> float:
        return self._clock() + self._skew_s


def is_process_gone(host: str, pid: int) -> bool:
    """Return whether a process belonged to this host and no longer runs."""
    if host != socket.gethostname() or not pid:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return False


def read_claims(store: Store, except_launch: str = "") -> list[tuple[str, Claim]]:
    """Return (path, claim) of all launches except one. If a launch has several files, the newest applies.

    A running launch has a claim even while it claims no trial.
    """
    for _ in range(5):
        newest = {launch_of_claim(path): path for path in sorted(store.list(CLAIMS))}
        contents = list(store.read_many(path for launch, path in newest.items() if launch != except_launch))
        if not any(isinstance(content, FileNotFoundError) for _, content in contents):
            break  # otherwise a launch replaced its claim between the listing and the read
    return [(path, claim) for path, content in contents if (claim := _parse_claim(content)) is not None]


def _parse_claim(content: bytes | OSError) -> Claim | None:
    if isinstance(content, OSError):
        return None
    try:
        claim = Claim(**read_object(content))
        is_typed = all(isinstance(text, str) for text in (claim.launch_id, claim.sweep, claim.host))
        is_typed &= isinstance(claim.pid, int) and isinstance(claim.trials, dict)
        return claim if is_typed and all(map(math.isfinite, (claim.renewed_at, *claim.trials.values()))) else None
    except (ValueError, TypeError, OverflowError):
        return None
