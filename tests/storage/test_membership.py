"""A trial belongs to every sweep whose newest launch requests it, whichever ran it, before and after compactions."""

from __future__ import annotations

import pytest

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.catalog.tags import write_tag
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.query.results import QueryError, Results
from tests.support.tests_rows import commit

A, B, C = (f"20260101T000000_00000000000{letter}" for letter in "abc")


def launch(store: Store, sweep: str, spec: str, *trial_ids: str) -> None:
    write_spec(store, sweep, spec, {"name": sweep, "task": "t"}, trial_ids)


def counted(store: Store, query: str) -> list[tuple[object, ...]]:
    return Results(store, builtin_columns()).sql(query).fetchall()


def test_queries_scoped_to_each_of_two_sweeps_that_share_trials_are_right(store: Store) -> None:
    launch(store, "a", "1", "t1", "t2")
    commit(store, A, ["t1", "t2"], sweep="a")
    launch(store, "b", "2", "t2", "t3")
    commit(store, B, ["t3"], sweep="b", value=5.0)
    for _ in range(2):
        by_sweep = counted(
            store, "select sweep, list(trial_id order by trial_id) from results group by sweep order by 1"
        )
        assert by_sweep == [("a", ["t1", "t2"]), ("b", ["t2", "t3"])]
        assert counted(store, "select count(*), sum(nc1) from results where sweep = 'b'")[0] == (2, pytest.approx(16.4))
        assert counted(store, "select count(*) from trials t join metrics m using (trial_id) where t.sweep = 'b'") == [
            (12,)
        ]
        assert counted(store, "select count(*), count(distinct trial_id) from results") == [(3, 3)], (
            "no sweep, no doubles"
        )
        scoped = Results(store, builtin_columns()).for_sweep("b")
        assert scoped.sql("select count(*), min(sweep), max(sweep) from trials").fetchall() == [(2, "b", "b")]
        for table in ("metrics", "curves", "features"):
            assert scoped.sql(f"select distinct trial_id from {table} order by 1").fetchall() == [("t2",), ("t3",)]
        assert [trial_id for trial_id, _, _ in scoped.iter_features(1)] == ["t2", "t3"]
        compact(store, grace_s=0)
    with pytest.raises(QueryError, match="no committed trials of sweep 'd' in .*Sweeps: a, b"):
        Results(store, builtin_columns()).for_sweep("d")


def test_what_an_earlier_launch_asked_for_is_not_mixed_with_what_the_sweep_is_now(store: Store) -> None:
    launch(store, "a", "1", "t1", "t2")
    commit(store, A, ["t1", "t2"], sweep="a")
    launch(store, "a", "2", "t2", "t3")
    commit(store, B, ["t3"], sweep="a")
    by_sweep = counted(store, "select sweep, list(trial_id order by trial_id) from trials group by sweep order by 1")
    assert by_sweep == [("a", ["t2", "t3"]), ("a@1", ["t1"])]
    launch(store, "a", "1", "t1", "t2")  # the first list again
    assert ("a", ["t1", "t2"]) in counted(store, "select sweep, list(trial_id order by 1) from trials group by sweep")


def test_without_a_list_of_trials_a_sweep_has_what_was_committed_for_it(store: Store) -> None:
    commit(store, A, ["t1"], sweep="nameless")
    write_spec(store, "old", "1", {"name": "old", "task": "t"})
    commit(store, B, ["t2"], sweep="old")
    write_spec(store, "tuned", "1", {"name": "tuned", "task": "t", "search": {"trials": 2}}, ["t1"])
    commit(store, C, ["t3"], sweep="tuned")
    by_sweep = counted(store, "select sweep, list(trial_id order by trial_id) from trials group by sweep order by 1")
    assert by_sweep == [("old", ["t2"]), ("tuned", ["t1", "t3"])]


def test_tags_stand_beside_the_trials(store: Store) -> None:
    commit(store, A, ["t1", "t2"])
    write_tag(store, "odd", ["t1", "t2"], is_set=True)
    write_tag(store, "seen", ["t1"], is_set=True)
    write_tag(store, "odd", ["t2"], is_set=False)
    assert counted(store, "select trial_id, tags from results order by 1") == [("t1", ["odd", "seen"]), ("t2", None)]
    assert counted(store, "select trial_id from trials where list_contains(tags, 'odd')") == [("t1",)]


def test_a_renamed_column_is_said_and_the_views_are_listed(folder: Store) -> None:
    commit(folder, A, ["t1"], params={"depth": 2, "nc1": 3})
    commit(folder, B, ["t2"], params={"depth": 2, "steps": 60})
    with pytest.raises(QueryError, match="Parameter steps is column param_steps here"):
        counted(folder, "select steps from results")
    assert [row[0] for row in counted(folder, "show tables")] == [
        *("trials", "metrics", "curves", "features", "live", "attempts", "fits", "results")
    ]
