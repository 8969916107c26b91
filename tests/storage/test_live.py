"""Live curves: visible while trials run, never together with their results, deleted with their attempts."""

import io
import json
import time
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.attempts.live_curves import LiveReader, live_schema, write_live
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.files.paths import live_path
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.query.sql_checks import QueryError
from tests.support.tests_rows import A, B, commit

LATER = "20260101T000500_00000000000c"


@pytest.fixture
def store(folder: Store) -> Store:
    """A folder: what reads of the other kinds return is tested in test_store.py, test_commit.py and test_s3.py."""
    return folder


def log(store: Store, pack: str, *trial_ids: str, attempt: str = A, sweep: str = "s", steps: int = 3) -> None:
    params = {trial_id: {"depth": int(trial_id[1:]), "lr": 0.1, "arch": "rn1"} for trial_id in trial_ids}
    rows = [(t, {"step": step, "split": "train", "loss": 1 / (step + 1)}) for t in trial_ids for step in range(steps)]
    write_live(store, sweep, pack, attempt, params, rows)


def ask(store: Store, query: str) -> list:
    return results_of(store).sql(query).fetchall()


def test_rows_stand_beside_their_parameters(store: Store) -> None:
    log(store, "p", "t2", "t3")
    rows = ask(store, "select trial_id, depth, step, split, loss, sweep, attempt_id from live order by all")
    expected = [(f"t{d}", d, step, "train", 1 / (step + 1), "s", A) for d in (2, 3) for step in range(3)]
    assert rows == expected
    assert ask(store, "select distinct lr, param_lr, arch from live") == [(None, 0.1, "rn1")]


def test_without_any_the_view_is_there_and_empty(store: Store) -> None:
    assert ask(store, "select trial_id, step, loss, accuracy from live") == []
    with pytest.raises(QueryError, match="depth"):
        ask(store, "select depth from live")
    commit(store, A, ["t1"], params={"depth": 3})
    assert ask(store, "select depth, loss from live") == []
    columns = results_of(store).sql("select * from live").columns
    assert set(live_schema(builtin_columns()).names) < set(columns)


def test_parameters_before_the_first_row(store: Store) -> None:
    spec = {"name": "s", "task": "t", "params": {"steps": 9}, "grid": {"depth": [1]}, "zip": {"lr": [1], "width": [2]}}
    spec |= {"grids": [{"params": {"norm": "pre"}, "grid": {"heads": [1]}}], "include": [{"extra": 1}], "seeds": 2}
    write_spec(store, "s", "spec", spec | {"search": {"params": {"decay": {"from": 1, "to": 2}}}}, ["t1"])
    query = "select depth, max(step), min(loss), any_value(seed) from live group by depth"
    assert ask(store, query) == []
    names = "steps, depth, param_lr, width, norm, heads, extra, seed, decay"
    assert ask(store, f"select {names} from live") == []
    log(store, "p", "t1")
    assert ask(store, "select distinct depth, heads from live") == [(1, None)]


def test_a_committed_trial_has_no_row(store: Store) -> None:
    log(store, "p", "t2", "t3")
    commit(store, A, ["t2"])
    assert ask(store, "select distinct trial_id from live") == [("t3",)]
    assert ask(store, "select count(*) from results") == [(1,)]


def test_of_several_attempts_the_newest_counts(store: Store) -> None:
    log(store, "before", "t2", "t3", steps=9)
    log(store, "now", "t2", attempt=LATER)
    rows = ask(store, "select trial_id, attempt_id, count(*) from live group by all order by all")
    assert rows == [("t2", LATER, 3), ("t3", A, 9)]


def test_scope_includes_other_launches(store: Store) -> None:
    write_spec(store, "b", "spec", {"name": "b", "task": "t"}, ["t1", "t2"])
    commit(store, B, ["t1"], sweep="b")
    log(store, "p", "t2", "t3", sweep="a")
    results = results_of(store)
    assert results.for_sweep("b").sql("select distinct trial_id, sweep from live").fetchall() == [("t2", "a")]


def test_a_compaction_takes_away_what_is_over(store: Store) -> None:
    log(store, "p", "t2")
    log(store, "q", "t3", "t4")
    log(store, "r", "t5")
    commit(store, A, ["t2", "t3"])
    with mock.patch.object(Store, "modified", _old_if("r")):
        compact(store)
    assert [pack.path for pack in LiveReader(store).refresh()] == [live_path("s", "q")]


def _old_if(pack: str):
    real = Store.modified
    return lambda self, path: time.time() - 4000 if path == live_path("s", pack) else real(self, path)


def test_invalid_live_files_are_skipped(store: Store) -> None:
    log(store, "p", "t2")
    store.write("live/sweep=s/broken.parquet", store.read(live_path("s", "p"))[:-30])
    store.write("live/sweep=s/note.txt", b"?")
    store.write("live/sweep=s/empty.parquet", b"")
    commit(store, A, ["t1"])
    assert ask(store, "select distinct trial_id from live") == [("t2",)]
    verification = verify(store)
    assert not verification.findings
    repair(store, verification)
    assert ask(store, "select count(*) from live") == [(3,)]


@pytest.mark.parametrize("written_at", [1e20, float("nan"), float("-inf")])
def test_a_time_that_is_none_harms_no_question(folder: Store, written_at: float) -> None:
    with mock.patch("depthrate.storage.attempts.live_curves.time.time", return_value=written_at):
        log(folder, "p", "t2")
    log(folder, "q", "t3")
    assert ask(folder, "select distinct trial_id from live") == [("t3",)]


@pytest.mark.parametrize(
    ("said", "step"),
    [({"trials": ["t2"]}, 1), ({"trials": {"t2": {}}, "shared": []}, 1), ({"trials": {"t2": {}}}, None)],
)
def test_other_errors_spare_queries(folder: Store, said: dict, step: int | None) -> None:
    fields, sink = {"attempt_id": A, "written_at": 1.0, "shared": {}} | said, io.BytesIO()
    rows = pa.table({"trial_id": ["t2"], "step": pa.array([step], pa.int64()), "split": ["train"]})
    pq.write_table(rows.replace_schema_metadata({"depthrate_live": json.dumps(fields)}), sink)
    folder.write(live_path("s", "p"), sink.getvalue())
    log(folder, "q", "t3")
    assert ask(folder, "select distinct trial_id from live") == [("t3",)]


def test_names_that_other_columns_have(store: Store) -> None:
    params = {"t1": {"step": 7, "Loss": "ce", "sweep": 3}}
    rows = [("t1", {"step": 1, "split": "test", "LOSS": 2.0, "note": "no number", "Mine": float("nan"), "sweep": 1.0})]
    write_live(store, "s", "p", A, params, rows)
    query = "select step, param_step, split, param_Loss, sweep, param_sweep, mine from live"
    assert ask(store, query) == [(1, 7, "test", "ce", "s", 3, None)]
