"""Which launch is about to run which trials, so that launches begun at the same moment do nothing twice.

A claim is no lock and needs no conditional write: a launch writes its claim, lists those of all, and the earliest of a trial
wins. It holds as long as its launch renews it. What goes wrong costs time, never a result, since commits alone count.

Why that is enough: a launch shows itself (`enter`) before it looks for the first time. Who claims and sees nobody else is
therefore seen, with the claim, by whoever comes later. Who sees another launch waits for `settle_s`, longer than the clocks of
a store differ and than its listings lag, and looks again: then all who want a trial see each other's claims and agree on the
earliest. A claim is a new file each time, because file systems may show the old content of one that is written anew.
"""

from __future__ import annotations

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
"""A claim that was not renewed for so long counts no more."""
RENEW_S = 20.0
SETTLE_S, REMOTE_SETTLE_S = 0.5, 1.5
"""Object stores tell times in whole seconds; the clocks of machines that share a file system are closer."""


@dataclass(frozen=True)
class Claim:
    """What one launch has claimed, as it stands in the store."""

    launch_id: str
    sweep: str
    host: str
    pid: int
    renewed_at: float
    """By the store's clock, as far as it tells the time."""
    trials: dict[str, float] = field(default_factory=dict)
    """Trial -> when it was claimed."""

    def is_live(self, now: float) -> bool:
        """Whether its launch renews it, and runs if it is one of this machine; what is renewed in the future is not."""
        return abs(now - self.renewed_at) <= LEASE_S and not is_process_gone(self.host, self.pid)


class Claims:
    """The claims of one launch, and what it sees of others'; for one thread."""

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
        """By how much the store's clock is ahead of ours."""
        self._settle_s = SETTLE_S if store.is_local else REMOTE_SETTLE_S
        self._held: dict[str, float] = {}
        self._number = 0
        self._files: list[str] = []
        """Its files that may be in the store, the newest last."""
        self._written_at = float("-inf")
        self._others: list[Claim] = []
        self._refusal = ""
        self.has_peers = False
        """Whether another launch of this sweep was there at any look."""

    @property
    def peer_trials(self) -> set[str]:
        """Trials that other launches had claimed at the last look."""
        return {trial_id for claim in self._others for trial_id in claim.trials}

    def enter(self) -> None:
        """Show that this launch is there, and see who else is."""
        with self._as_hint():
            before = self._clock()
            self._write()
            modified = self._store.modified(self._path())
            self._skew_s = 0.0 if modified is None else modified - before
            self.refresh()

    def release_all(self) -> None:
        """Give back everything that is claimed."""
        with self._as_hint():
            self._store.delete_many(self._files)

    def refresh(self) -> None:
        """See what others have claimed, and take away what launches left behind that ended without a word."""
        with self._as_hint():
            now = self._now()
            claims = _read_claims(self._store, but=self._launch_id)
            self._others = [claim for _, claim in claims if claim.is_live(now)]
            self.has_peers |= any(claim.sweep == self._sweep for claim in self._others)
            left = [path for path, claim in claims if now - claim.renewed_at > 10 * LEASE_S]
            self._store.delete_many(left)

    def acquire(self, wanted: Collection[str], keep: Collection[str] = ()) -> None:
        """Claim trials, and give back all that is not among these and `keep`; `has` says which are ours then.

        Where the store refuses claims all are: then work may be done twice, and is committed once.
        """
        others, now = self.peer_trials, self._now()
        keep, wanted = set(keep), set(wanted)
        self._held = {trial_id: at for trial_id, at in self._held.items() if trial_id in keep or trial_id in wanted}
        new = {trial_id: now for trial_id in wanted if trial_id not in self._held and trial_id not in others}
        if new:
            self._held |= new
            with self._as_hint():
                self._write()
                self.refresh()
                if any(claim.sweep == self._sweep or new.keys() & claim.trials.keys() for claim in self._others):
                    self._sleep(self._settle_s)
                    self.refresh()
                self._yield_to_earlier(new)

    def holds(self, trial_ids: Collection[str]) -> bool:
        """Whether all of these are claimed by this launch."""
        return self._held.keys() >= set(trial_ids)

    def renew(self, keep: Collection[str]) -> None:
        """Say again that this launch is there and what it still holds, if that is due."""
        if not 0 <= self._now() - self._written_at < RENEW_S:  # a clock that was set back would be waited for
            self._held = {trial_id: at for trial_id, at in self._held.items() if trial_id in keep}
            with self._as_hint():
                self._write()

    def _yield_to_earlier(self, new: dict[str, float]) -> None:
        lost = {
            trial_id
            for claim in self._others
            for trial_id, at in claim.trials.items()
            if trial_id in new and (at, claim.launch_id) < (new[trial_id], self._launch_id)
        }
        if lost:
            self._held = {trial_id: at for trial_id, at in self._held.items() if trial_id not in lost}
            self._write()

    def _write(self) -> None:
        self._number += 1
        self._files.append(self._path())  # before: of a write that failed nobody knows whether it is there
        now = self._now()
        claim = Claim(self._launch_id, self._sweep, socket.gethostname(), os.getpid(), now, self._held)
        self._store.write(self._path(), json.dumps(asdict(claim)).encode())
        self._written_at = now
        if before := self._files[:-1]:
            self._store.delete_many(before)
            self._files = self._files[-1:]

    @contextlib.contextmanager
    def _as_hint(self) -> Iterator[None]:
        """Let a store that refuses claims stop nothing; it is said once for each reason."""
        try:
            yield
        except OSError as error:
            if str(error) != self._refusal:
                log.warning("claims not written or read: %s", error)
            self._refusal = str(error)

    def _path(self) -> str:
        return claim_path(self._launch_id, self._number)

    def _now(self) -> float:
        return self._clock() + self._skew_s


def is_process_gone(host: str, pid: int) -> bool:
    """Whether a process is one of this machine and runs no more."""
    if host != socket.gethostname() or not pid:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return False


def _read_claims(store: Store, but: str) -> list[tuple[str, Claim]]:
    """Return (path, claim) of all launches but one; of several files of one, the newest."""
    for _ in range(5):
        newest = {launch_of_claim(path): path for path in sorted(store.list(CLAIMS))}
        read = list(store.read_many(path for launch, path in newest.items() if launch != but))
        if not any(isinstance(content, FileNotFoundError) for _, content in read):
            break  # else a launch replaced its claim between the listing and the reading
    return [(path, claim) for path, content in read if (claim := _parsed(content)) is not None]


def _parsed(content: bytes | OSError) -> Claim | None:
    if isinstance(content, OSError):
        return None
    try:
        claim = Claim(**read_object(content))
        is_typed = all(isinstance(text, str) for text in (claim.launch_id, claim.sweep, claim.host))
        is_typed &= isinstance(claim.pid, int) and isinstance(claim.trials, dict)
        return claim if is_typed and all(map(math.isfinite, (claim.renewed_at, *claim.trials.values()))) else None
    except (ValueError, TypeError, OverflowError):
        return None
