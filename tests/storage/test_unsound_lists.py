"""Corrupt lists stop every purge, deletion and move, and the message gives the fix."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.cli.app import app
from depthrate.storage.attempts.searches import Batch, SearchRecords
from depthrate.storage.catalog.requested_trials import CorruptFileError
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.sweep_removal import plan_removal, remove_sweep, rows_of_trials
from depthrate.storage.maintenance.verify import verify
from tests.support.tests_rows import A, B, commit

LIST, SPEC = "sweeps/c/t1.trials", "sweeps/c/t1.json"
DAMAGE: dict[str, Callable[[Store], object]] = {
    "an emptied list": lambda store: store.write(LIST, b""),
    "a truncated list": lambda store: store.write(LIST, b"t"),
    "a list that is gone": lambda store: store.delete(LIST),
    "an emptied spec": lambda store: store.write(SPEC, b""),
    "a spec of another": lambda store: store.write(SPEC, store.read("sweeps/b/t2.json")),
    "both emptied": lambda store: (store.write(LIST, b""), store.delete(SPEC)),
    "a batch": lambda store: store.write("searches/sweep=c/study/000000-00000000.json", b"{}"),
}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthrate.storage.catalog.requested_trials.LIST_RETRY_DELAYS_S", (None,))


def launch(store: Store, sweep: str, *trial_ids: str) -> None:
    write_spec(store, sweep, "-".join(trial_ids), {"name": sweep, "task": "t"}, trial_ids)


@pytest.fixture
def relaunched(folder: Store) -> Store:
    """Sweep `a` was removed. Then `c` was launched, which requests its t1. `b` has t2."""
    launch(folder, "a", "t1")
    commit(folder, A, ["t1"], sweep="a")
    launch(folder, "b", "t2")
    commit(folder, B, ["t2"], sweep="b")
    remove_sweep(folder, plan_removal(folder, take_snapshot(folder), "a"))
    launch(folder, "c", "t1")
    return folder


def held(store: Store) -> set[str]:
    snapshot = take_snapshot(store)
    return {
        t
        for source in (*snapshot.sources, *snapshot.superseded_commits)
        for t in source.all_trials["trial_id"].to_pylist()
    }


@pytest.mark.parametrize("damage", DAMAGE)
def test_nothing_is_purged_while_a_list_cannot_be_believed(relaunched: Store, damage: str) -> None:
    DAMAGE[damage](relaunched)
    for _ in range(2):
        (refused,) = compact(relaunched, grace_s=0).refused
        assert "the trials requested by sweep 'c' are unknown" in refused and "depthrate upgrade" in refused
    assert held(relaunched) == {"t1", "t2"}
    with pytest.raises(CorruptFileError):
        plan_removal(relaunched, take_snapshot(relaunched), "b")
    launch(relaunched, "c", "t1")
    relaunched.delete("searches")
    assert compact(relaunched, grace_s=0).refused == () and take_snapshot(relaunched).trial_ids() == {"t1", "t2"}


def test_the_command_says_so_and_ends_with_1(relaunched: Store) -> None:
    relaunched.write(LIST, b"")
    result = CliRunner().invoke(app, ["compact", "--grace", "0", "--store", relaunched.url])
    assert (
        result.exit_code == 1
        and "nothing was purged: sweeps/c/t1.trials was changed after it was written" in result.output
    )


def test_a_repair_leaves_a_damaged_list_to_what_mends_it(relaunched: Store) -> None:
    relaunched.write(LIST, b"")
    (finding,) = verify(relaunched, builtin_columns()).findings
    assert finding.path == LIST and "Launch the sweep again, or run depthrate upgrade" in finding.what
    repair(relaunched, verify(relaunched, builtin_columns()))
    compact(relaunched, grace_s=0)
    assert held(relaunched) == {"t1", "t2"} and {LIST, SPEC} <= relaunched.list("sweeps").keys()


def test_the_sweep_that_is_removed_may_be_the_damaged_one(relaunched: Store) -> None:
    relaunched.write(LIST, b"")
    remove_sweep(relaunched, plan_removal(relaunched, take_snapshot(relaunched), "c"))
    assert not relaunched.list("sweeps/c") and compact(relaunched, grace_s=0).refused == ()


def test_nothing_is_deleted_or_removed_while_a_manifest_cannot_be_read(folder: Store) -> None:
    commit(folder, A, ["t1"])
    commit(folder, B, ["t2"])
    compact(folder, grace_s=3600)
    compact(folder, grace_s=3600)
    (path,) = folder.list("manifest")
    folder.write(path, folder.read(path)[:-9])
    before = folder.list("")
    (refused,) = compact(folder, grace_s=0, at_least=9).refused
    assert "nothing was deleted" in refused and "--repair" in refused and before.keys() <= folder.list("").keys()
    with pytest.raises(CorruptFileError, match="Nothing is removed"):
        rows_of_trials(take_snapshot(folder), ["t1"])
    assert take_snapshot(folder).trial_ids() == {"t1", "t2"}


def test_what_a_worker_wrote_stays_while_its_record_cannot_be_read(
    folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("depthrate.storage.maintenance.verify.YOUNG_S", -10.0)
    commit(folder, A, ["t1"])
    folder.delete(f"trials/sweep=s/{A}.parquet")  # not written yet
    folder.write(f"attempts/sweep=s/{A}.json", b"")
    verification = verify(folder, builtin_columns())
    assert [finding.path for finding in verification.findings] == [f"attempts/sweep=s/{A}.json"]
    assert repair(folder, verification).moved == [f"attempts/sweep=s/{A}.json"] and len(folder.list("metrics")) == 1


def test_lists_specs_and_batches_are_on_the_disk_when_they_are_written(
    folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files and their folders are synced: otherwise a power cut may leave an empty list, or none."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda opened: synced.append(os.readlink(f"/proc/self/fd/{opened}")))
    launch(folder, "a", "t1")
    SearchRecords(folder, "a").write(Batch("study", 0, ({},), (("t1",),)))
    names = [path.removeprefix(folder.root) for path in synced]
    assert sum(".t1.trials." in name or ".t1.json." in name for name in names) == 2
    assert names.count("/sweeps/a") == 2 and {"/sweeps", "", "/searches/sweep=a/study"} <= set(names)
    assert sum("/000000-" in name or "/.000000-" in name for name in names) == 1
