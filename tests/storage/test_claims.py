"""Claims of launches, and clocks that disagree."""

import json
import logging
import os
import random
import socket
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from depthrate.storage.attempts.claims import LEASE_S, Claims
from depthrate.storage.attempts.clocks import age_s, require_clock
from depthrate.storage.attempts.records import read_records
from depthrate.storage.catalog.removals import RemovalKind, remove
from depthrate.storage.catalog.specs import newest_specs, write_spec
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.sweep_removal import plan_removal, remove_sweep, rows_of_trials
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.tables.states import AttemptState
from tests.support.clock import Clock
from tests.support.faulty_store import make_writes_fail
from tests.support.here import invoke, printed
from tests.support.launches import attempt_of
from tests.support.tests_rows import A, B, commit

TRIALS = [f"t{index}" for index in range(4)]


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
def test_concurrent_launches_split_trials(store: Store) -> None:
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


def test_earlier_of_two_wins(folder: Store) -> None:
    """Both write before either scans. The order is decided by their times, then by their names."""
    clock = Clock(time.time())
    early, late = (Claims(folder, "s", name, clock, clock.sleep) for name in ("b", "a"))
    early.enter(), late.enter()
    real_look = early.refresh
    early.refresh = lambda: (setattr(early, "refresh", real_look), clock.sleep(0.1), late.acquire(["t0"]), real_look())  # type: ignore[method-assign]
    early.acquire(["t0"])
    assert early.holds(["t0"]) and not late.holds(["t0"])


def test_claim_ends_with_lease_or_process(folder: Store) -> None:
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


def test_invalid_claims_pass(folder: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_impossible_claim_holds_nothing(key: str, value: Any, folder: Store) -> None:
    claim = {"launch_id": "b", "sweep": "s", "host": socket.gethostname(), "pid": os.getpid()}
    claim |= {"renewed_at": time.time(), "trials": {"t1": 1.0}}
    path = "claims/b-00000001.json"
    folder.write(path, json.dumps(claim).encode())
    claims = entered(folder, "a")
    assert claims.peer_trials == {"t1"}
    folder.write(path, json.dumps(claim | {key: value}).encode())
    claims.refresh()
    assert claims.peer_trials == set()


def test_set_back_clock_costs_no_wait(store: Store) -> None:
    clock = Clock(time.time())
    claims = Claims(store, "s", "a", clock=clock)
    claims.enter()
    claims.acquire(TRIALS)
    written = set(store.list())
    clock.now -= 3600
    claims.renew(TRIALS)
    assert set(store.list()).isdisjoint(written) and len(store.list()) == 1 and held(claims) == set(TRIALS)


def test_refused_claim_leaves_none_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = entered(store, "a")
    with monkeypatch.context() as patch:
        make_writes_fail(patch, lambda path: "after")
        claims.acquire(TRIALS[:2])
    claims.acquire(TRIALS[2:], keep=TRIALS[:2])
    assert len(store.list()) == 1
    claims.release_all()
    assert store.list() == {}


HOUR = 3600.0


def heartbeat(store: Store, said: float, received: float) -> float:
    """Return the heartbeat that readers compute for an attempt with this time, whose record the store received at
    another time."""
    record = {"attempt_id": A, "sweep": "s", "trial_ids": ["t"], "state": "running", "started_at": said - 5}
    path = f"attempts/sweep=s/{A}.json"
    store.write(path, json.dumps(record | {"heartbeat_at": said}).encode())
    os.utime(Path(store.root, path), (received, received))
    (read,) = read_records(store, take_snapshot(store))
    return float(read["heartbeat_at"])


@pytest.mark.parametrize("ahead_s", [10 * HOUR, -10 * HOUR])
def test_heartbeat_counts_from_its_arrival(folder: Store, ahead_s: float) -> None:
    now = time.time()
    assert abs(heartbeat(folder, now + ahead_s, now) - now) < 2, "it lives"
    assert heartbeat(folder, now + ahead_s, now - HOUR) < now - HOUR + 2, "it died an hour ago, whatever its clock says"
    assert heartbeat(folder, now - 5, now - 9) == now - 5, "clocks that agree are believed"


def test_last_launched_spec_is_newest(folder: Store) -> None:
    write_spec(folder, "s", "aaaa", {"name": "s", "seeds": 1}, ["t1"])
    tomorrow = json.loads(folder.read("sweeps/s/aaaa.json")) | {"launched_at": "2999-01-01T00:00:00+00:00"}
    folder.write("sweeps/s/aaaa.json", json.dumps(tomorrow).encode())
    write_spec(folder, "s", "bbbb", {"name": "s", "seeds": 2}, ["t1", "t2"])
    assert newest_specs(folder)["s"].spec_hash == "bbbb"
    write_spec(folder, "s", "aaaa", {"name": "s", "seeds": 1}, ["t1"])
    assert newest_specs(folder)["s"].spec_hash == "aaaa"


def shift(monkeypatch: pytest.MonkeyPatch, ahead_s: float) -> None:
    """Set the store's clock back against the local one."""
    plain = Store.modified

    def modified(self: Store, path: str) -> float | None:
        when = plain(self, path)
        return None if when is None else when - ahead_s

    monkeypatch.setattr(Store, "modified", modified)


COMMANDS = (
    "compact --retain-hours 0",
    "verify --repair",
    "sweeps rm a --yes",
    "sweeps restore gone",
    "trials rm t3 --yes",
    "trials restore --all",
    "trials tag odd t3",
    "tag a --note seen",
)


@pytest.mark.parametrize("ahead_s", [2 * HOUR, -2 * HOUR])
def test_wrong_clock_blocks(folder: Store, tiny_sweep: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float) -> None:
    for name, attempt, trial in (("a", A, "t1"), ("gone", B, "t2")):
        write_spec(folder, name, "1", {"name": name, "task": "t"}, [trial])
        commit(folder, attempt, [trial], sweep=name)
    commit(folder, A.replace("a", "c"), ["t3", "t4"], sweep="a")
    remove_sweep(folder, plan_removal(folder, take_snapshot(folder), "gone"))
    remove(folder, RemovalKind.TRIALS, "", rows_of_trials(take_snapshot(folder), ["t4"]))
    young = f"metrics/sweep=a/{B}.parquet"
    folder.write(young, b"of a worker that is about to commit")
    folder.write(f"attempts/sweep=a/{B}.json", b"{half a record")
    before = {path: folder.read(path) for path in folder.list("")}
    shift(monkeypatch, ahead_s)
    for words in (*COMMANDS, f"run {tiny_sweep}"):
        output = printed(*words.split(), "--store", folder.url, code=2)
        assert ("7200 s ahead of" if ahead_s > 0 else "7200 s behind") in output and "NTP" in output, (words, output)
        assert {path: folder.read(path) for path in folder.list("")} == before, words
    monkeypatch.undo()
    invoke(*COMMANDS[0].split(), "--store", folder.url)
    repair(folder, verify(folder))  # the command would also find that these ids are not the hashes of their trials
    assert take_snapshot(folder).trial_ids() == {"t1", "t3"} and young in folder.list("metrics")


@pytest.mark.parametrize("ahead_s", [2 * HOUR, -2 * HOUR])
def test_cancellation_despite_a_wrong_clock(
    folder: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ahead_s: float
) -> None:
    folder.write_format()
    write_spec(folder, "s", "1", {"name": "s", "task": "t"}, ["t"])
    heartbeat_at = time.time() - ahead_s  # by the clock of its node, which is the store's
    times = {"started_at": heartbeat_at, "heartbeat_at": heartbeat_at}
    attempt_of(A, state=AttemptState.RUNNING, host="h", pid=1, **times).write(folder)
    shift(monkeypatch, ahead_s)
    printed("cancel", "s", "--force", "--store", folder.url)
    assert "7200 s" in caplog.text and A in folder.read("sweeps/s/cancel").decode()


def test_clock_is_corrected(folder: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    require_clock(folder)
    assert folder.clock_ahead_s == 0.0 and not caplog.records
    folder.write("x", b"")
    shift(monkeypatch, 40)
    with caplog.at_level(logging.WARNING):
        require_clock(folder)
    assert "40 s ahead of the clock of store" in caplog.text and age_s(folder, "x", time.time() - 3600) < 5


def test_commit_fails_after_quarantine(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repair is an older version on a node whose clock is hours ahead: it takes files of a live worker for orphaned
    ones."""
    plain = Store.write

    def write(self: Store, path: str, content: bytes, *, durable: bool = False) -> None:
        if path.startswith("trials/"):
            self.move(path.replace("trials/", "metrics/"), "quarantine/then/" + path)
        plain(self, path, content, durable=durable)

    monkeypatch.setattr(Store, "write", write)
    with pytest.raises(FileNotFoundError, match="vanished before its commit"):
        commit(folder, A, ["t1"])
    monkeypatch.undo()
    assert take_snapshot(folder).trial_ids() == set() and not folder.list("trials")
    commit(folder, A, ["t1"])
    assert take_snapshot(folder).trial_ids() == {"t1"}


def test_late_clock_keeps_the_grace(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder, A, ["t1"])
    commit(folder, B, ["t2"])
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr("depthrate.storage.maintenance.merge.time.time", lambda: real() - 10 * HOUR)
        patch.setattr("depthrate.storage.maintenance.compact.require_clock", lambda store: None)  # an older version
        compact(folder)
    assert compact(folder).deleted == 0 and compact(folder, grace_s=0).deleted > 0
