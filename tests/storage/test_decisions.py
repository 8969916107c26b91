"""Visible versions of a task's code: readers, compactions and repairs follow the last decision."""

from __future__ import annotations

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.storage.catalog.code_decisions import DecisionKind, decide
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.query.results import Results
from tests.support.tests_rows import commit

A, B = "a" * 32, "b" * 32


def values(store: Store) -> dict[str, float]:
    rows = Results(store, builtin_columns()).sql("select trial_id, nc1 from results order by 1").fetchall()
    return {trial_id: round(nc1 - 5.2) for trial_id, nc1 in rows}


def rerun(store: Store, version: str, *trial_ids: str) -> None:
    decide(store, take_snapshot(store).decisions, DecisionKind.RERUN, "s", version, {version}, trial_ids)


def test_what_was_decided_last_counts_before_and_after_compactions(store: Store) -> None:
    commit(store, "20260101T000000_00000000000a", ["t1", "t2", "t3"], hour=1, value=1.0, code_hash=A)
    commit(store, "20260101T000000_00000000000b", ["t1", "t2"], hour=2, value=2.0, code_hash=B)
    assert values(store) == {"t1": 1, "t2": 1, "t3": 1}, "the earliest wins while nothing is decided"
    rerun(store, B, "t1", "t3")
    expected = {"t1": 2, "t2": 1}
    assert values(store) == expected, "t3 has to run again"
    for _ in range(2):
        assert compact(store, grace_s=0).damaged == ()
        assert values(store) == expected
    results = Results(store, builtin_columns())
    assert results.features("t1", layer=1)[1].min() == 2.0 and results.features("t2", layer=1)[1].min() == 1.0
    assert {trial for trial, _, _ in results.iter_features(1)} == {"t1", "t2"}
    rerun(store, A, "t1", "t2", "t3")
    assert values(store) == {"t1": 1, "t2": 1, "t3": 1}, "a compaction has chosen nothing for good"
    assert len(store.list("manifest")) == 1


def test_a_straggler_of_the_old_code_does_not_count(store: Store) -> None:
    commit(store, "20260101T000000_00000000000a", ["t1"], hour=1, value=1.0, code_hash=A)
    rerun(store, B, "t1", "t2")
    commit(store, "20260101T000000_00000000000c", ["t1", "t2"], hour=3, value=3.0, code_hash=A)
    assert values(store) == {}
    commit(store, "20260101T000000_00000000000b", ["t1"], hour=2, value=2.0, code_hash=B)
    assert values(store) == {"t1": 2}


def test_rows_of_unknown_code_count_until_it_is_decided_otherwise(store: Store) -> None:
    commit(store, "20260101T000000_00000000000a", ["t1"], hour=1, value=1.0)
    commit(store, "20260101T000000_00000000000b", ["t1"], hour=2, value=2.0, code_hash=B)
    assert values(store) == {"t1": 1}
    rerun(store, B, "t1")
    compact(store, grace_s=0)
    assert values(store) == {"t1": 2}
