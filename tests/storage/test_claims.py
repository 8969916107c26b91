"""Claims: if several launches want the same trials at the same moment, one launch gets each trial."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from collections import defaultdict
from typing import Any

import pytest

from depthrate.storage.attempts.claims import LEASE_S, Claims
from depthrate.storage.files.store import Store

TRIALS = [f"t{index}" for index in range(4)]


class Clock:
    """A clock that advances only while a process waits."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def held(claims: Claims) -> set[str]:
    return {trial_id for trial_id in TRIALS if claims.holds([trial_id])}


def entered(store: Store, launch_id: str, sweep: str = "s") -> Claims:
    claims = Claims(store, sweep, launch_id)
    claims.enter()
    return claims


@pytest.mark.slow
def test_who_comes_later_leaves_what_is_claimed(store: Store) -> None:
    first, later = entered(store, "b"), Claims(store, "s", "a")
    first.acquire(TRIALS[:2])
    later.enter()
    later.acquire(TRIALS)
    assert held(first) == {"t0", "t1"} and held(later) == {"t2", "t3"} and later.peer_trials == {"t0", "t1"}
    first.release_all()
    later.refresh()
    later.acquire(TRIALS)
    assert held(later) == set(TRIALS) and later.has_peers
    later.release_all()
    assert store.list() == {}


@pytest.mark.slow
def test_what_is_done_is_given_back(store: Store) -> None:
    first, second = entered(store, "a"), entered(store, "b")
    first.acquire(TRIALS[:2])
    first.acquire([TRIALS[2]], keep=[TRIALS[1]])
    second.refresh()
    assert second.peer_trials == {"t1", "t2"} and len(store.list()) == 2, "a launch keeps one file"


@pytest.mark.slow
def test_of_launches_at_the_same_moment_one_gets_each_trial(store: Store) -> None:
    """Several parallel races of four launches each, whose requests take random times."""
    chance = random.Random(0)
    delays = [chance.uniform(0, 0.3) * chance.randrange(2) for _ in range(1000)]
    winners: dict[tuple[int, str], list[str]] = defaultdict(list)

    def launch(race: int, name: str) -> None:
        claims = Claims(Slow(store, delays), f"s{race}", f"{race}{name}")  # type: ignore[arg-type]
        claims.enter()
        claims.acquire([f"{race}{trial_id}" for trial_id in TRIALS])
        for trial_id in TRIALS:
            if claims.holds([f"{race}{trial_id}"]):
                winners[race, trial_id].append(name)

    threads = [threading.Thread(target=launch, args=(race, name)) for race in range(6) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(winners[race, trial_id]) == 1 for race in range(6) for trial_id in TRIALS), winners


class Slow:
    """A store whose requests are delayed."""

    def __init__(self, store: Store, delays: list[float]):
        self._store, self._delays = store, delays

    def __getattr__(self, name: str) -> Any:
        if name in ("write", "list"):
            time.sleep(self._delays.pop())
        return getattr(self._store, name)


def test_of_two_that_see_each_other_the_earlier_wins(folder: Store) -> None:
    """Both write before either scans. The order is decided by their times, then by their names."""
    clock = Clock(time.time())
    early, late = (Claims(folder, "s", name, clock, clock.sleep) for name in ("b", "a"))
    early.enter(), late.enter()
    real_look = early.refresh
    early.refresh = lambda: (setattr(early, "refresh", real_look), clock.sleep(0.1), late.acquire(["t0"]), real_look())  # type: ignore[method-assign]
    early.acquire(["t0"])
    assert early.holds(["t0"]) and not late.holds(["t0"])


def test_a_claim_ends_with_its_lease_or_its_process(folder: Store) -> None:
    clock = Clock(time.time())
    first, second = (Claims(folder, "s", name, clock, clock.sleep) for name in "ab")
    first.enter()
    first.acquire(TRIALS)
    second.enter()
    assert second.peer_trials == set(TRIALS)
    clock.sleep(LEASE_S - 1)
    first.renew(TRIALS)
    clock.sleep(2)
    second.refresh()
    assert second.peer_trials == set(TRIALS), "it was renewed"
    clock.sleep(LEASE_S)
    second.refresh()
    assert not second.peer_trials
    (path,) = [path for path in folder.list("claims") if "/a-" in path]
    content = json.loads(folder.read(path)) | {"renewed_at": clock(), "pid": 2**22 + 1}
    folder.write(path, json.dumps(content).encode())
    second.refresh()
    assert not second.peer_trials, "its process runs no more"
    folder.write(path, json.dumps(content | {"host": "elsewhere"}).encode())
    second.refresh()
    assert second.peer_trials == set(TRIALS), "of another machine's processes nothing is known"
    clock.sleep(11 * LEASE_S)
    second.refresh()
    assert path not in folder.list("claims"), "what nobody renews for long is taken away"


def test_what_is_no_claim_and_a_store_that_refuses_stop_nothing(
    folder: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, content in enumerate((b"{", b"[]", b'{"x": 1}', b'{"launch_id": "x"}')):
        folder.write(f"claims/x{number}-00000001.json", content)
    claims = entered(folder, "a")
    assert claims.peer_trials == set()

    def refuse(*arguments: Any) -> None:
        raise OSError("quota")

    monkeypatch.setattr(folder, "write", refuse)
    claims.acquire(TRIALS)
    claims.renew(TRIALS)
    claims.release_all()
    assert claims.holds(TRIALS) and caplog.text.count("claims not written or read: quota") == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("pid", "1"), ("pid", [1]), ("host", [1]), ("launch_id", 7), ("sweep", None), ("trials", [])),
        *(("trials", {"t1": "now"}), ("trials", {"t1": float("nan")}), ("trials", {"t1": 10**400})),
        *(("renewed_at", 10**400), ("renewed_at", None), ("renewed_at", 1e300), ("more", 1)),
    ],
)
def test_a_claim_that_nobody_can_have_written_holds_nothing(key: str, value: Any, folder: Store) -> None:
    claim = {
        "launch_id": "b",
        "sweep": "s",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "renewed_at": time.time(),
    }
    claim |= {"trials": {"t1": 1.0}}
    path = "claims/b-00000001.json"
    folder.write(path, json.dumps(claim).encode())
    claims = entered(folder, "a")
    assert claims.peer_trials == {"t1"}
    folder.write(path, json.dumps(claim | {key: value}).encode())
    claims.refresh()
    assert claims.peer_trials == set()


def test_a_clock_that_is_set_back_is_not_waited_for(store: Store) -> None:
    clock = Clock(time.time())
    claims = Claims(store, "s", "a", clock=clock)
    claims.enter()
    claims.acquire(TRIALS)
    written = set(store.list())
    clock.now -= 3600
    claims.renew(TRIALS)
    assert set(store.list()).isdisjoint(written) and len(store.list()) == 1 and held(claims) == set(TRIALS)


def test_a_claim_that_was_refused_leaves_no_earlier_one_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = entered(store, "a")
    plain = Store.write

    def write(self: Store, path: str, content: bytes) -> None:
        plain(self, path, content)
        raise OSError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", write)
        claims.acquire(TRIALS[:2])
    claims.acquire(TRIALS[2:], keep=TRIALS[:2])
    assert len(store.list()) == 1
    claims.release_all()
    assert store.list() == {}
