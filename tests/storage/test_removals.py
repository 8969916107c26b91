"""Removed rows are hidden at once, restorable until a compaction after the retention, and purged by it."""

from __future__ import annotations

import os

import pytest

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.storage.attempts.live_curves import write_live
from depthrate.storage.catalog.removals import RemovalKind, remove, restore
from depthrate.storage.catalog.specs import newest_specs, write_spec
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.paths import live_path
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.sweep_removal import plan_removal, remove_sweep, rows_of_trials
from depthrate.storage.maintenance.verify import verify
from tests.support.storage_simulation import simulate_desk
from tests.support.tests_rows import commit

A, B, C = (f"20260101T000000_00000000000{letter}" for letter in "abc")
INTERLEAVINGS = int(os.environ.get("DEPTHRATE_INTERLEAVINGS", "12"))


def launch(store: Store, sweep: str, *trial_ids: str) -> None:
    write_spec(store, sweep, "-".join(trial_ids), {"name": sweep, "task": "t"}, trial_ids)


def there(store: Store) -> set[str]:
    return take_snapshot(store).trial_ids()


@pytest.fixture
def shared(store: Store) -> Store:
    """Sweeps `a` (t1 t2) and `b` (t2 t3) that share t2, which a ran."""
    launch(store, "a", "t1", "t2")
    commit(store, A, ["t1", "t2"], sweep="a")
    launch(store, "b", "t2", "t3")
    commit(store, B, ["t3"], sweep="b")
    return store


def test_the_removal_of_a_sweep_keeps_what_another_asks_for(shared: Store) -> None:
    going = plan_removal(shared, take_snapshot(shared), "a")
    assert (going.trial_ids(), going.kept) == ({"t1"}, {"t2"}) and there(shared) == {"t1", "t2", "t3"}
    remove_sweep(shared, going)
    assert there(shared) == {"t2", "t3"} and set(newest_specs(shared)) == {"b"}
    compact(shared, grace_s=3600)
    assert len(take_snapshot(shared).removals.removals) == 1, "it may still be restored"
    compact(shared, grace_s=0)
    compact(shared, grace_s=0)
    assert there(shared) == {"t2", "t3"}
    stored = [t for source in take_snapshot(shared).sources for t in source.all_trials["trial_id"].to_pylist()]
    assert sorted(stored) == ["t2", "t3"], "the row itself is gone"
    assert not shared.list("removed") and verify(shared, builtin_columns()).findings == []


def test_a_removed_sweep_comes_back_with_all_it_had(shared: Store) -> None:
    before = {path: shared.read(path) for path in shared.list("sweeps")}
    removal = remove_sweep(shared, plan_removal(shared, take_snapshot(shared), "a"))
    compact(shared, grace_s=3600)
    restore(shared, [removal])
    assert {path: shared.read(path) for path in shared.list("sweeps")} == before
    assert there(shared) == {"t1", "t2", "t3"} and not shared.list("removed") and not shared.list("removals")


def test_a_trial_that_a_new_sweep_asks_for_comes_back_by_itself(shared: Store) -> None:
    remove_sweep(shared, plan_removal(shared, take_snapshot(shared), "a"))
    launch(shared, "c", "t1")
    assert there(shared) == {"t1", "t2", "t3"}
    compact(shared, grace_s=0)
    assert there(shared) == {"t1", "t2", "t3"}, "nor does a compaction take it"


def test_the_results_of_a_trial_go_for_every_sweep_until_it_runs_again(shared: Store) -> None:
    removal = remove(shared, RemovalKind.TRIALS, "", rows_of_trials(take_snapshot(shared), ["t2"]))
    assert there(shared) == {"t1", "t3"}
    restore(shared, [removal])
    assert there(shared) == {"t1", "t2", "t3"}
    remove(shared, RemovalKind.TRIALS, "", rows_of_trials(take_snapshot(shared), ["t2"]))
    commit(shared, C, ["t2"], sweep="b", hour=3)
    for _ in range(2):
        snapshot = take_snapshot(shared)
        attempt = dict(zip(*(snapshot.trials[n].to_pylist() for n in ("trial_id", "attempt_id")), strict=True))
        assert attempt == {"t1": A, "t2": C, "t3": B}
        compact(shared, grace_s=0)


def test_damaged_removals_hide_nothing_and_are_named(shared: Store) -> None:
    remove_sweep(shared, plan_removal(shared, take_snapshot(shared), "a"))
    (path,) = shared.list("removals")
    shared.write(path, shared.read(path)[:-20])
    snapshot = take_snapshot(shared)
    assert snapshot.trial_ids() == {"t1", "t2", "t3"} and path in {problem.path for problem in snapshot.problems}
    assert path in {finding.path for finding in verify(shared, builtin_columns()).findings}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_that_a_sweep_asks_for_is_lost_in_any_interleaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """DEPTHRATE_INTERLEAVINGS=1000 tries more. A failure reports its seed and prints the schedule."""
    for seed in range(INTERLEAVINGS):
        simulate_desk(seed)


def test_what_goes_meanwhile_does_not_stop_the_removal(shared: Store) -> None:
    write_live(shared, "a", "p", A, {"t1": {"depth": 1}}, [("t1", {"step": 1, "loss": 1.0})])
    going = plan_removal(shared, take_snapshot(shared), "a")
    shared.delete(live_path("a", "p"))
    remove_sweep(shared, going)
    assert there(shared) == {"t2", "t3"} and set(newest_specs(shared)) == {"b"}
