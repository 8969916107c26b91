"""Removed rows, purges, decisions on code, membership of trials, and lists that deletions rely on."""

import contextlib
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.launch.launch_plan import check_sweep, make_plan
from depthrate.storage.attempts.live_curves import write_live
from depthrate.storage.attempts.searches import Batch, SearchRecords
from depthrate.storage.catalog.code_decisions import DecisionKind, decide
from depthrate.storage.catalog.fits import write_fits
from depthrate.storage.catalog.removals import Removal, RemovalKind, remove, restore
from depthrate.storage.catalog.requested_trials import CorruptFileError
from depthrate.storage.catalog.specs import newest_specs, write_spec
from depthrate.storage.catalog.tags import MAX_NOTE, Marks, annotate, read_annotations
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.json_objects import read_with_digest, with_digest
from depthrate.storage.files.paths import live_path
from depthrate.storage.files.store import Store, StoreError
from depthrate.storage.maintenance import purge
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.sweep_removal import plan_removal, remove_sweep, rows_of_trials
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.query.results import QueryError, Results
from depthrate.sweeps.load import sweep_of_spec
from tests.support.crash_points import Killed, on_folder
from tests.support.storage_simulation import simulate_desk
from tests.support.tests_rows import A, B, C, commit

D = "20260101T000000_dddddddddddd"

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


def test_removal_keeps_shared_trials(shared: Store) -> None:
    going = plan_removal(shared, take_snapshot(shared), "a")
    assert (going.trial_ids(), going.kept) == ({"t1"}, {"t2"}) and there(shared) == {"t1", "t2", "t3"}
    remove_sweep(shared, going)
    assert there(shared) == {"t2", "t3"} and set(newest_specs(shared)) == {"b"}
    compact(shared, grace_s=3600, purge=True)
    compact(shared, grace_s=0)
    assert len(take_snapshot(shared).removals.removals) == 1, "it may still be restored"
    for _ in range(2):
        compact(shared, grace_s=0, purge=True)
    assert there(shared) == {"t2", "t3"}
    stored = [t for source in take_snapshot(shared).sources for t in source.all_trials["trial_id"].to_pylist()]
    assert sorted(stored) == ["t2", "t3"], "the row itself is gone"
    assert not shared.list("removed") and verify(shared).findings == []


def test_a_killed_removal_shows_a_sweep_or_none(folder: Store, tmp_path: Path) -> None:
    launch(folder, "a", "t1")
    launch(folder, "a", "t1", "t2")
    commit(folder, A, ["t1", "t2"], sweep="a")
    launch(folder, "b", "t2", "t3")
    commit(folder, B, ["t3"], sweep="b")
    SearchRecords(folder, "a").write(Batch("study", 0, ({},), (("t1",),)))
    write_live(folder, "a", "p", A, {"t1": {"depth": 1}}, [("t1", {"step": 1, "loss": 1.0})])
    template, work = Path(folder.root), tmp_path / "work"

    def state() -> tuple[list[str], object, set[str]]:
        store = Store(str(work))
        return sorted(newest_specs(store)), Results(store, builtin_columns()).membership().of_sweep, there(store)

    def kill_at(point: int | None) -> int:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(template, work)
        store = Store(str(work))
        plan = plan_removal(store, take_snapshot(store), "a")
        with on_folder(work, point) as deadline, contextlib.suppress(Killed):
            remove_sweep(store, plan)
        return deadline.count

    count = kill_at(None)
    after = state()
    kill_at(1)
    before = state()
    assert before != after and after == (["b"], {"b": {"t2", "t3"}}, {"t2", "t3"}) and count > 10
    states = []
    for point in range(1, count + 1):
        kill_at(point)
        states.append(state())
    assert all(seen in (before, after) for seen in states) and states.index(after) > 0


def test_removed_sweep_is_restored_whole(shared: Store) -> None:
    before = {path: shared.read(path) for path in shared.list("sweeps")}
    removal = remove_sweep(shared, plan_removal(shared, take_snapshot(shared), "a"))
    compact(shared, grace_s=3600)
    restore(shared, [removal])
    assert {path: shared.read(path) for path in shared.list("sweeps")} == before
    assert there(shared) == {"t1", "t2", "t3"} and not shared.list("removed") and not shared.list("removals")


def test_requested_trial_is_restored(shared: Store) -> None:
    remove_sweep(shared, plan_removal(shared, take_snapshot(shared), "a"))
    launch(shared, "c", "t1")
    assert there(shared) == {"t1", "t2", "t3"}
    compact(shared, grace_s=0, purge=True)
    assert there(shared) == {"t1", "t2", "t3"}, "nor does a compaction take it"


@pytest.mark.parametrize("rival", ["launch", "restore"])
def test_a_purge_yields(shared: Store, monkeypatch: pytest.MonkeyPatch, rival: str) -> None:
    """Another process launches or restores after the purge record was written and before it is final."""
    removal = remove_sweep(shared, plan_removal(shared, take_snapshot(shared), "a"))
    plain, calls = purge.verified_requested_ids, []

    def requested(store: Store) -> frozenset[str]:
        calls.append(there(shared))
        if len(calls) == 2 and rival == "launch":
            launch(shared, "c", "t1")
        elif len(calls) == 2:
            restore(shared, [removal])
        return plain(store)

    monkeypatch.setattr(purge, "verified_requested_ids", requested)
    compact(shared, grace_s=0, purge=True)
    assert calls == [{"t2", "t3"}] * 2 and there(shared) == {"t1", "t2", "t3"}
    assert not take_snapshot(shared).removals.purges


def test_an_undecided_purge_lapses(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_sweep(shared, plan_removal(shared, take_snapshot(shared), "a"))
    Removal("p", RemovalKind.PURGING, "", 0.0, frozenset({("t1", A)})).write(shared)
    launch(shared, "c", "t1")
    compact(shared, grace_s=0)
    assert there(shared) == {"t2", "t3"}
    monkeypatch.setattr(purge, "UNDECIDED_S", -1.0)
    compact(shared, grace_s=0)
    assert there(shared) == {"t1", "t2", "t3"}


def test_rm_trials_hides_them_everywhere(shared: Store) -> None:
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
        compact(shared, grace_s=0, purge=True)


def test_a_trial_run_again_survives(shared: Store) -> None:
    """A compaction keeps both the removed commit, which can be restored, and the later one."""

    def attempt() -> str:
        trials = take_snapshot(shared).trials
        return dict(zip(trials["trial_id"].to_pylist(), trials["attempt_id"].to_pylist(), strict=True))["t2"]

    removal = remove(shared, RemovalKind.TRIALS, "", rows_of_trials(take_snapshot(shared), ["t2"]))
    commit(shared, C, ["t2"], sweep="a", hour=3)
    commit(shared, D, ["t1"], sweep="a", hour=4)
    for _ in range(2):
        compact(shared, grace_s=0)
        assert attempt() == C and there(shared) == {"t1", "t2", "t3"}
    restore(shared, [removal])
    compact(shared, grace_s=0)
    assert attempt() == A and there(shared) == {"t1", "t2", "t3"}


def test_damaged_removals_hide_nothing_and_are_named(shared: Store) -> None:
    remove_sweep(shared, plan_removal(shared, take_snapshot(shared), "a"))
    (path,) = shared.list("removals")
    shared.write(path, shared.read(path)[:-20])
    snapshot = take_snapshot(shared)
    assert snapshot.trial_ids() == {"t1", "t2", "t3"} and path in {problem.path for problem in snapshot.problems}
    assert path in {finding.path for finding in verify(shared).findings}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_interleavings_lose_nothing_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """DEPTHRATE_INTERLEAVINGS=1000 tries more. A failure reports its seed and prints the schedule."""
    for seed in range(INTERLEAVINGS):
        simulate_desk(seed)


def test_what_goes_meanwhile_does_not_stop_the_removal(shared: Store) -> None:
    write_live(shared, "a", "p", A, {"t1": {"depth": 1}}, [("t1", {"step": 1, "loss": 1.0})])
    going = plan_removal(shared, take_snapshot(shared), "a")
    shared.delete(live_path("a", "p"))
    remove_sweep(shared, going)
    assert there(shared) == {"t2", "t3"} and set(newest_specs(shared)) == {"b"}


REPORTS = {"sweep": "s", "reports": {"t1": {"values": {"5": 0.25, "10": math.nan}, "pruned_at": 10}}}


def test_a_digest_shows_changes() -> None:
    fields = {"b": [1, 2.5, None, "é"], "a": {"x": 1e-300}}
    assert read_with_digest(with_digest(fields)) == fields
    with pytest.raises(ValueError, match="was changed"):
        read_with_digest(b'{"a": 1}')
    with pytest.raises(ValueError, match="was changed after it was written"):
        read_with_digest(with_digest(fields).replace(b"2.5", b"3.5"))


def test_altered_reports_are_named(store: Store) -> None:
    path = f"searches/sweep=s/reports/{A}.json"
    store.write(path, with_digest(REPORTS))
    records = SearchRecords(store, "s")
    records.refresh()
    assert records.reports["t1"].pruned_at == 10 and not verify(store).findings
    store.write(path, with_digest(REPORTS).replace(b"0.25", b"0.75"))
    records = SearchRecords(store, "s")
    records.refresh()
    assert not records.reports
    (finding,) = verify(store).findings
    assert finding.path == path and "was changed after it was written" in finding.what


def test_checkpoint_owner_must_be_intact(store: Store) -> None:
    spec = {"name": "s", "task": "collapse", "params": {"arch": "rn1"}, "grid": {"depth": [2]}, "seeds": 4}
    checked = check_sweep(sweep_of_spec(spec))
    ids = [trial.trial_id for trial in checked.trials]
    content = with_digest({"trial_ids": ids[:3], "wall_s": 1.0, "code_hash": None})
    store.write("checkpoints/p1/pack.json", content)
    assert ids[:3] in [pack.trial_ids for pack in make_plan(checked, store).packs]
    store.write("checkpoints/p1/pack.json", content.replace(b"1.0", b"2.0"))
    assert ids[:3] not in [pack.trial_ids for pack in make_plan(checked, store).packs]
    (finding,) = verify(store).findings
    assert "does not name the trials of its checkpoint (was changed after it was written)" in finding.what


CODE_A, CODE_B = "a" * 32, "b" * 32


def values(store: Store) -> dict[str, float]:
    rows = Results(store, builtin_columns()).sql("select trial_id, nc1 from results order by 1").fetchall()
    return {trial_id: round(nc1 - 5.2) for trial_id, nc1 in rows}


def rerun(store: Store, version: str, *trial_ids: str) -> None:
    decide(store, take_snapshot(store).decisions, DecisionKind.RERUN, "s", version, {version}, trial_ids)


def test_last_decision_wins_across_compactions(store: Store) -> None:
    commit(store, "20260101T000000_00000000000a", ["t1", "t2", "t3"], hour=1, value=1.0, code_hash=CODE_A)
    commit(store, "20260101T000000_00000000000b", ["t1", "t2"], hour=2, value=2.0, code_hash=CODE_B)
    assert values(store) == {"t1": 1, "t2": 1, "t3": 1}, "the earliest wins while nothing is decided"
    rerun(store, CODE_B, "t1", "t3")
    expected = {"t1": 2, "t2": 1}
    assert values(store) == expected, "t3 has to run again"
    for _ in range(2):
        assert compact(store, grace_s=0).damaged == ()
        assert values(store) == expected
    results = Results(store, builtin_columns())
    assert results.features("t1", layer=1)[1].min() == 2.0 and results.features("t2", layer=1)[1].min() == 1.0
    assert {trial for trial, _, _ in results.iter_features(1)} == {"t1", "t2"}
    rerun(store, CODE_A, "t1", "t2", "t3")
    assert values(store) == {"t1": 1, "t2": 1, "t3": 1}, "a compaction has chosen nothing for good"
    assert len(store.list("manifest")) == 1


def test_late_rows_of_old_code(store: Store) -> None:
    commit(store, "20260101T000000_00000000000a", ["t1"], hour=1, value=1.0, code_hash=CODE_A)
    rerun(store, CODE_B, "t1", "t2")
    commit(store, "20260101T000000_00000000000c", ["t1", "t2"], hour=3, value=3.0, code_hash=CODE_A)
    assert values(store) == {}
    commit(store, "20260101T000000_00000000000b", ["t1"], hour=2, value=2.0, code_hash=CODE_B)
    assert values(store) == {"t1": 2}


def test_unknown_code_counts_until_decided(store: Store) -> None:
    commit(store, "20260101T000000_00000000000a", ["t1"], hour=1, value=1.0)
    commit(store, "20260101T000000_00000000000b", ["t1"], hour=2, value=2.0, code_hash=CODE_B)
    assert values(store) == {"t1": 1}
    rerun(store, CODE_B, "t1")
    compact(store, grace_s=0)
    assert values(store) == {"t1": 2}


def launch_spec(store: Store, sweep: str, spec: str, *trial_ids: str) -> None:
    write_spec(store, sweep, spec, {"name": sweep, "task": "t"}, trial_ids)


def counted(store: Store, query: str) -> list[tuple[object, ...]]:
    return Results(store, builtin_columns()).sql(query).fetchall()


def test_shared_trials_scoped_per_sweep(store: Store) -> None:
    launch_spec(store, "a", "1", "t1", "t2")
    commit(store, A, ["t1", "t2"], sweep="a")
    launch_spec(store, "b", "2", "t2", "t3")
    commit(store, B, ["t3"], sweep="b", value=5.0)
    for _ in range(2):
        found = counted(store, "select sweep, list(trial_id order by trial_id) from results group by sweep order by 1")
        assert found == [("a", ["t1", "t2"]), ("b", ["t2", "t3"])]
        assert counted(store, "select count(*), sum(nc1) from results where sweep = 'b'")[0] == (2, pytest.approx(16.4))
        assert counted(store, "select count(*) from trials t join metrics m using (trial_id) where t.sweep = 'b'") == [
            (12,)
        ]
        assert counted(store, "select count(*), count(distinct trial_id) from results") == [(3, 3)], "no doubles"
        scoped = Results(store, builtin_columns()).for_sweep("b")
        assert scoped.sql("select count(*), min(sweep), max(sweep) from trials").fetchall() == [(2, "b", "b")]
        for table in ("metrics", "curves", "features"):
            assert scoped.sql(f"select distinct trial_id from {table} order by 1").fetchall() == [("t2",), ("t3",)]
        assert [trial_id for trial_id, _, _ in scoped.iter_features(1)] == ["t2", "t3"]
        compact(store, grace_s=0)
    with pytest.raises(QueryError, match="no committed trials of sweep 'd' in .*Sweeps: a, b"):
        Results(store, builtin_columns()).for_sweep("d")


def test_earlier_requests_stay_separate(store: Store) -> None:
    launch_spec(store, "a", "1", "t1", "t2")
    commit(store, A, ["t1", "t2"], sweep="a")
    launch_spec(store, "a", "2", "t2", "t3")
    commit(store, B, ["t3"], sweep="a")
    by_sweep = counted(store, "select sweep, list(trial_id order by trial_id) from trials group by sweep order by 1")
    assert by_sweep == [("a", ["t2", "t3"]), ("a@1", ["t1"])]
    launch_spec(store, "a", "1", "t1", "t2")  # the first list again
    assert ("a", ["t1", "t2"]) in counted(
        store, "select sweep, list(trial_id order by trial_id) from trials group by sweep"
    )


def test_without_its_list_a_sweep_has_its_commits(store: Store) -> None:
    commit(store, A, ["t1"], sweep="nameless")
    write_spec(store, "old", "1", {"name": "old", "task": "t"}, ["t2"])
    store.delete("sweeps/old/1.trials")
    commit(store, B, ["t2"], sweep="old")
    write_spec(store, "tuned", "1", {"name": "tuned", "task": "t", "search": {"trials": 2}}, ["t1"])
    commit(store, C, ["t3", "t4", "t5"], sweep="tuned")
    for study, trial_ids in (("now", (("t1",), ("t3",))), ("before", (("t4",),))):  # of another version of the task
        SearchRecords(store, "tuned").write(Batch(study, 0, ({"lr": 1.0},) * len(trial_ids), trial_ids))
    by_sweep = counted(store, "select sweep, list(trial_id order by trial_id) from trials group by sweep order by 1")
    assert by_sweep == [("old", ["t2"]), ("tuned", ["t1", "t3"]), ("tuned@0", ["t4", "t5"])]


def test_relaunched_file_with_other_trials_mixes_nothing(store: Store) -> None:
    launch_spec(store, "a", "1", "t1", "t2")
    commit(store, A, ["t1", "t2"], sweep="a")
    launch_spec(store, "a", "1", "t3")  # the same file, after a new version or default of its task
    commit(store, B, ["t3"], sweep="a")
    by_sweep = counted(store, "select sweep, list(trial_id order by trial_id) from trials group by sweep order by 1")
    assert by_sweep == [("a", ["t3"]), ("a@0", ["t1", "t2"])]
    results = Results(store, builtin_columns())
    assert results.for_sweep("a").sql("select trial_id from results").fetchall() == [("t3",)]
    assert results.for_sweep("a@2").sql("select trial_id from results").fetchall() == [("t3",)]
    assert '2 of a@0). Show them: depthrate query --sweep a@0 "' in (results.membership().note("a") or "")
    assert results.membership().note("a@0") is None


def test_fits_have_a_name_for_by_without_quotes(store: Store) -> None:
    write_fits(store, "a", [{"sweep": "a", "metric": "nc1", "by": '{"lr": 0.1}'}])
    assert counted(store, "select split_by from fits") == counted(store, 'select "by" from fits') == [('{"lr": 0.1}',)]
    for query in ("select by from fits", "select metric from fits where by = '{}'"):
        with pytest.raises(QueryError, match="^The column by of fits is a reserved word of SQL: write split_by"):
            counted(store, query)
    with pytest.raises(QueryError, match='^Did you mean "metric"'):
        counted(store, "select metrc from fits group by all")


@pytest.mark.parametrize(
    "condition",
    ["sweep = 'gird'", "'gird' = t.sweep", "t.sweep in ('a', 'gird')", "sweep<>'gird'", "t.\"sweep\" not in ('gird')"],
)
def test_queries_of_unknown_sweeps_are_refused(store: Store, condition: str) -> None:
    launch_spec(store, "a", "1", "t1")
    commit(store, A, ["t1"], sweep="a")
    results = Results(store, builtin_columns())
    results.require_sweeps("select 'sweep', task = 'gird' from trials where sweep = 'a'")
    with pytest.raises(QueryError, match="no sweep 'gird'. Nearest: a"):
        results.require_sweeps(f"select * from trials t where {condition}")


def test_tags_stand_beside_the_trials(store: Store) -> None:
    commit(store, A, ["t1", "t2"])
    annotate(store, ["t1", "t2"], add=["odd"])
    annotate(store, ["t1"], add=["seen"])
    annotate(store, ["t2"], remove=["odd"])
    assert counted(store, "select trial_id, tags from results order by 1") == [("t1", ["odd", "seen"]), ("t2", None)]
    assert counted(store, "select trial_id from trials where list_contains(tags, 'odd')") == [("t1",)]


def test_notes_and_tags_of_trials_and_sweeps(store: Store) -> None:
    annotate(store, ["t1", "t2"], note="first")
    annotate(store, ["t1"], note="second\nline \u202e <b>")
    annotate(store, ["t2"], note="")
    annotate(store, "a", add=["paper"])
    annotate(store, "a", note="x" * MAX_NOTE)
    annotate(store, "b", add=["odd"])
    annotate(store, "b", remove=["odd"])
    found = read_annotations(store)
    assert found.trials == {"t1": Marks([], "second\nline \u202e <b>")}
    assert found.sweeps == {"a": Marks(["paper"], "x" * MAX_NOTE)}
    with pytest.raises(StoreError, match=f"a note has {MAX_NOTE + 1} characters, expected text of at most"):
        annotate(store, "a", note="x" * (MAX_NOTE + 1))
    with pytest.raises(StoreError, match="tag 'two words' is invalid"):
        annotate(store, "a", add=["two words"])
    assert read_annotations(store) == found


def test_changes_are_one_file_each_and_merged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(store, A, ["t1"])
    annotate(store, ["t1"], add=["odd", "odd", "seen"], note="first")
    assert len(store.list("tags")) == 1, "equal tags are one, and a change is one file"
    old = {"trial_ids": ["t1"], "tag": "early", "is_set": True}  # as earlier versions wrote
    store.write("tags/20200101T000000_0000.json", with_digest(old))
    store.write("tags/damaged.json", b"{}")
    for number in range(9):
        annotate(store, "s", add=[f"x{number}"], remove=[f"x{number - 1}"])
    expected = read_annotations(store)
    assert expected.trials == {"t1": Marks(["early", "odd", "seen"], "first")} and expected.sweeps["s"].tags == ["x8"]
    delete_many = Store.delete_many
    monkeypatch.setattr(Store, "delete_many", lambda self, paths: delete_many(self, sorted(paths)[1:4]))
    compact(store)
    assert len(store.list("tags")) > 2 and read_annotations(store) == expected, "a killed compaction changes nothing"
    monkeypatch.undo()
    annotate(store, "s", remove=["x8"])
    compact(store)
    assert len(store.list("tags")) == 2 and "tags/damaged.json" in store.list("tags")
    assert read_annotations(store).trials == expected.trials and read_annotations(store).sweeps == {}
    assert [finding.path for finding in verify(store).findings] == ["tags/damaged.json"]


def test_renamed_column_and_views(folder: Store) -> None:
    commit(folder, A, ["t1"], params={"depth": 2, "nc1": 3})
    commit(folder, B, ["t2"], params={"depth": 2, "steps": 60})
    with pytest.raises(QueryError, match="Parameter steps is column param_steps here"):
        counted(folder, "select steps from results")
    views = [row[0] for row in counted(folder, "show tables")]
    assert views == ["trials", "metrics", "curves", "features", "live", "attempts", "fits", "results"]


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
    return {t for s in (*snapshot.sources, *snapshot.superseded_commits) for t in s.all_trials["trial_id"].to_pylist()}


@pytest.mark.parametrize("damage", DAMAGE)
def test_unreadable_list_blocks_purge(relaunched: Store, damage: str) -> None:
    DAMAGE[damage](relaunched)
    for _ in range(2):
        (refused,) = compact(relaunched, grace_s=0, purge=True).refused
        assert "the trials requested by sweep 'c' are unknown" in refused and "Launch the sweep" in refused
    assert held(relaunched) == {"t1", "t2"}
    with pytest.raises(CorruptFileError):
        plan_removal(relaunched, take_snapshot(relaunched), "b")
    launch(relaunched, "c", "t1")
    relaunched.delete("searches")
    assert compact(relaunched, grace_s=0, purge=True).refused == () and take_snapshot(relaunched).trial_ids() == {
        "t1",
        "t2",
    }


def test_the_command_says_so_and_ends_with_1(relaunched: Store) -> None:
    relaunched.write(LIST, b"")
    result = CliRunner().invoke(app, ["compact", "--purge", "--retain-hours", "0", "--store", relaunched.url])
    assert (
        result.exit_code == 1
        and "nothing was purged: sweeps/c/t1.trials was changed after it was written" in result.output
    )


def test_repair_keeps_damaged_lists(relaunched: Store) -> None:
    relaunched.write(LIST, b"")
    (finding,) = verify(relaunched).findings
    assert finding.path == LIST and "Launch the sweep again" in finding.what
    repair(relaunched, verify(relaunched))
    compact(relaunched, grace_s=0, purge=True)
    assert held(relaunched) == {"t1", "t2"} and {LIST, SPEC} <= relaunched.list("sweeps").keys()


def test_damaged_sweep_can_be_removed(relaunched: Store) -> None:
    relaunched.write(LIST, b"")
    remove_sweep(relaunched, plan_removal(relaunched, take_snapshot(relaunched), "c"))
    assert not relaunched.list("sweeps/c") and compact(relaunched, grace_s=0, purge=True).refused == ()


def test_unreadable_manifest_blocks_deletion(folder: Store) -> None:
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


def test_unreadable_record_keeps_worker_files(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthrate.storage.maintenance.verify.YOUNG_S", -10.0)
    commit(folder, A, ["t1"])
    folder.delete(f"trials/sweep=s/{A}.parquet")  # not written yet
    folder.write(f"attempts/sweep=s/{A}.json", b"")
    verification = verify(folder)
    assert [finding.path for finding in verification.findings] == [f"attempts/sweep=s/{A}.json"]
    assert repair(folder, verification).moved == [f"attempts/sweep=s/{A}.json"] and len(folder.list("metrics")) == 1


def test_specs_and_lists_are_durable(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and their folders are synced: otherwise a power cut may leave an empty list, or none."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda opened: synced.append(os.readlink(f"/proc/self/fd/{opened}")))
    launch(folder, "a", "t1")
    SearchRecords(folder, "a").write(Batch("study", 0, ({},), (("t1",),)))
    names = [path.removeprefix(folder.root) for path in synced]
    assert sum(".t1.trials." in name or ".t1.json." in name for name in names) == 2
    assert names.count("/sweeps/a") == 2 and {"/sweeps", "", "/searches/sweep=a/study"} <= set(names)
    assert sum("/000000-" in name or "/.000000-" in name for name in names) == 1
