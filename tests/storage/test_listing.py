"""Listings that are not atomic, and listings that lag: readers see no gaps and no trials that are not committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from depthrate.storage.commits.snapshot import UNSTABLE_LISTING, await_commits, take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from tests.support.tests_rows import commit

A, B, C = (f"20260101T000000_{letter * 12}" for letter in "abc")


def after_listing(monkeypatch: pytest.MonkeyPatch, folder: str, act: Callable[[], object], times: int = 1) -> None:
    """Call a function right after a folder was listed, the first times."""
    plain, remaining = Store.list, times

    def listing(self: Store, listed: str = "") -> dict[str, int]:
        nonlocal remaining
        found = plain(self, listed)
        if listed == folder and remaining:
            remaining -= 1
            act()
        return found

    monkeypatch.setattr(Store, "list", listing)


def test_files_replaced_while_a_store_is_listed_leave_no_gap(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifests are listed before the compaction, the commits after it has deleted them."""
    commit(folder, A, ["t1"])
    commit(folder, B, ["t2"])
    after_listing(monkeypatch, "manifest", lambda: compact(folder, grace_s=0))
    snapshot = take_snapshot(folder)
    assert snapshot.trial_ids() == {"t1", "t2"} and not snapshot.problems


def test_a_store_that_never_comes_to_rest_is_said_to_be_so(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder, A, ["t1"])
    monkeypatch.setattr("depthrate.storage.commits.snapshot.RESCAN_DELAYS_S", (0.0, 0.0))
    numbers = iter(range(1000))
    plain = Store.list_many

    def list_many(self: Store, folders: Sequence[str]) -> dict[str, int]:
        listing = plain(self, folders)
        folder.write(f"manifest/sweep=s/20260102T000000_{next(numbers):012d}.json", b"{}")
        return listing

    monkeypatch.setattr(Store, "list_many", list_many)
    snapshot = take_snapshot(folder)
    assert UNSTABLE_LISTING in {problem.reason for problem in snapshot.problems}


def test_new_commits_are_no_reason_to_look_again(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder, A, ["t1"])
    looks = 0
    plain = Store.list_many

    def list_many(self: Store, folders: Sequence[str]) -> dict[str, int]:
        nonlocal looks
        looks += 1
        listing = plain(self, folders)
        commit(folder, f"20260101T000001_{looks:012d}", [f"n{looks}"])
        return listing

    monkeypatch.setattr(Store, "list_many", list_many)
    assert "t1" in take_snapshot(folder).trial_ids() and looks == 2


def test_commits_that_a_lagging_listing_hides_are_waited_for(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(folder, A, ["t1"])
    commit(folder, B, ["t2"])
    clock, plain = [0.0], Store.list

    def lagging(self: Store, listed: str = "") -> dict[str, int]:
        return {path: size for path, size in plain(self, listed).items() if clock[0] >= 25 or B not in path}

    monkeypatch.setattr(Store, "list", lagging)

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    assert take_snapshot(folder).trial_ids() == {"t1"}
    assert await_commits(folder, {"t1", "t2"}, sleep).trial_ids() == {"t1", "t2"} and 25 <= clock[0] < 60
    clock[0] = -1000.0
    assert await_commits(folder, {"t1", "t2"}, sleep).trial_ids() == {"t1"}, "at last it says what is to be seen"
    clock[0] = 100.0
    await_commits(folder, {"t1", "t2"}, sleep)
    assert clock[0] == 100.0, "nobody waits for what is there"
