"""A custom column has one type per store: of two concurrent writers one wins, and a store with both types is
repaired."""

from __future__ import annotations

import json
import threading

import pyarrow as pa
import pytest

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.storage.commits.commit import commit_trials
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.query.results import Results
from depthrate.storage.tables import custom_columns as own_columns_module
from depthrate.storage.tables.custom_columns import claim_columns, custom_columns
from depthrate.storage.tables.schema import TableError
from tests.support.tests_rows import tables_of

A, B, C = (f"20260101T000000_{letter * 12}" for letter in "abc")


def commit(store: Store, attempt_id: str, trial_id: str, note: object, sweep: str = "s") -> None:
    kind = pa.string() if isinstance(note, str) else pa.float64()
    metrics = tables_of(trial_id, attempt_id)["metrics"].append_column("note", pa.array([note] * 6, kind))
    row = {"trial_id": trial_id, "sweep": sweep, "task": "t", "attempt_id": attempt_id, "status": "ok"}
    commit_trials(
        store,
        sweep=sweep,
        attempt_id=attempt_id,
        part=None,
        trials=[{**row, "params": json.dumps({"depth": 2})}],
        tables={"metrics": [metrics]},
        columns=builtin_columns(),
    )


def both_types(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the store of two workers that were first to write 0.5 and "none", before claims were unique."""
    commit(store, A, "t1", 0.5)
    with monkeypatch.context() as patch:
        patch.setattr("depthrate.storage.commits.commit.claim_columns", lambda *_: None)
        commit(store, B, "t2", "none")
    store.write("columns/metrics/string=note", b"")
    commit(store, C, "t3", 0.25)


def test_of_two_writers_at_once_one_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read the claims before either writes. Then each claims its type."""
    meet, failures = threading.Barrier(2), []
    look = custom_columns
    looked = threading.local()

    def look_together(store: Store, table: str) -> dict[str, str]:
        claims = look(store, table)
        if not getattr(looked, "once", False):
            looked.once = True
            meet.wait(timeout=30)
        return claims

    monkeypatch.setattr(own_columns_module, "custom_columns", look_together)

    def write(note: object, attempt_id: str, trial_id: str) -> None:
        try:
            commit(store, attempt_id, trial_id, note)
        except TableError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=write, args=values) for values in ((0.5, A, "t1"), ("none", B, "t2"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (refused,) = failures
    assert "column 'note' holds" in refused and "since an earlier commit" in refused
    monkeypatch.undo()
    winner = custom_columns(store, "metrics")["note"]
    assert winner in refused or {"double": "numbers", "string": "text"}[winner] in refused
    results = Results(store, builtin_columns())
    assert results.sql("select count(*) from results where note is not null").fetchall() == [(1,)]
    commit(store, C, "t3", 0.25 if winner == "double" else "some")
    assert compact(store, grace_s=0).damaged == ()
    assert verify(store, builtin_columns()).findings == [], "who is refused takes its claim back"


def test_a_claim_is_not_written_over(folder: Store) -> None:
    claim_columns(folder, "metrics", {"note": "double"})
    before = folder.list("columns")
    claim_columns(folder, "metrics", {"note": "double"})
    assert folder.list("columns") == before and len(before) == 1
    with pytest.raises(TableError, match="holds text, but in store .* it holds numbers since an earlier commit"):
        claim_columns(folder, "metrics", {"note": "string"})


def test_a_store_with_both_is_compacted_named_and_mended(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    both_types(folder, monkeypatch)
    result = compact(folder, grace_s=0)
    assert result.damaged == (f"trials/sweep=s/{B}.parquet",) and result.commits == 2, "it does not refuse the others"
    results = Results(folder, builtin_columns())
    assert results.sql("select count(*) from trials").fetchall() == [(3,)]
    results.sql("select nc1 from results").fetchall()
    assert any("verify --repair renames one" in problem.reason for problem in results.problems)
    verification = verify(folder, builtin_columns())
    assert {finding.kind for finding in verification.findings} == {"two types"} and len(verification.findings) == 2
    assert any("'note' is a text, but a number since" in finding.what for finding in verification.findings)
    mended = repair(folder, verification)
    assert mended.pending == set() and mended.saved == 1
    results = Results(folder, builtin_columns())
    rows = results.sql("select trial_id, note, note_text, nc1 is not null from results order by 1").fetchall()
    assert rows == [("t1", 0.5, None, True), ("t2", None, "none", True), ("t3", 0.25, None, True)]
    assert verify(folder, builtin_columns()).findings == [] and results.problems == []
    assert compact(folder, grace_s=0).damaged == ()
    assert Results(folder, builtin_columns()).sql("select count(note_text) from results").fetchall() == [(1,)]
