"""`depthrate export --delta`: tables that deltalake and Polars read equal what counts in the store."""

import json
import threading

import polars
import pytest
from deltalake import DeltaTable

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.export import delta
from depthrate.storage.files.store import existing_store
from tests.support.here import printed

LAW = """import depthrate
@depthrate.task()
def law(*, depth: int, rate: float = 0.5):
    return {"metrics": [{"layer": layer, "nc1": layer ** -rate} for layer in range(1, depth + 1)],
            "curves": [{"step": step, "loss": 1 / (1 + step)} for step in range(3)]}
"""


@pytest.fixture
def law(tmp_path):
    (tmp_path / "law.py").write_text(LAW)

    def write(grid):
        path = tmp_path / "law.yaml"
        path.write_text(f"name: law\ntask: {tmp_path}/law.py:law\ngrid: {json.dumps(grid)}\n")
        return path

    return write


def assert_equal(store, folder):
    """Each table holds, read by either library, the rows of the store and no other."""
    results = results_of(existing_store(str(store)))
    for name in delta.DELTA_TABLES:
        expected = sorted(map(json.dumps, _plain(results.sql(f"select * from {name}").to_arrow_table().to_pylist())))
        by_delta = DeltaTable(f"{folder}/law/{name}").to_pyarrow_table().to_pylist()
        by_polars = polars.read_delta(f"{folder}/law/{name}").to_dicts()
        assert sorted(map(json.dumps, _plain(by_delta))) == expected, name
        assert sorted(map(json.dumps, _plain(by_polars))) == expected, name
    return len(results.sql("select * from trials").fetchall())


def _plain(rows):
    return [{key: str(value) for key, value in sorted(row.items()) if value is not None} for row in rows]


@pytest.mark.slow
def test_tables_follow_the_store_through_runs_compaction_and_removals(tmp_path, law):
    store, folder = tmp_path / "store", tmp_path / "delta"
    sweep = law({"depth": [1, 2, 3]})
    printed("run", sweep, "--store", store)
    assert "trials: 3 trials written; " in printed("export", sweep, folder, "--delta", "--store", store)
    assert assert_equal(store, folder) == 3
    versions = [DeltaTable(f"{folder}/law/{name}").version() for name in delta.DELTA_TABLES]
    assert "trials: 0 trials written; " in printed("export", sweep, folder, "--delta", "--store", store)
    assert [DeltaTable(f"{folder}/law/{name}").version() for name in delta.DELTA_TABLES] == versions
    sweep = law({"depth": [1, 2, 3, 4], "rate": [0.5, 1]})  # `rate` was a column without any value so far
    printed("run", sweep, "--store", store)
    assert "trials: 5 trials written; " in printed("export", sweep, folder, "--delta", "--store", store)
    assert assert_equal(store, folder) == 8
    printed("compact", "--retain-hours", "0", "--store", store)
    assert "trials: 0 trials written; " in printed("export", sweep, folder, "--delta", "--store", store)
    printed("trials", "rm", "--where", "depth = 4", "--yes", "--store", store)
    assert "trials: 0 trials written, 2 removed" in printed("export", sweep, folder, "--delta", "--store", store)
    assert assert_equal(store, folder) == 6
    printed("run", sweep, "--store", store)
    assert "trials: 2 trials written; " in printed("export", sweep, folder, "--delta", "--store", store)
    assert assert_equal(store, folder) == 8


@pytest.mark.slow
def test_a_trial_that_was_run_again_stands_once(tmp_path, law):
    store, folder = tmp_path / "store", tmp_path / "delta"
    sweep = law({"depth": [1, 2]})
    printed("run", sweep, "--store", store)
    printed("export", sweep, folder, "--delta", "--store", store)
    printed("trials", "rm", "--where", "depth > 0", "--yes", "--store", store)
    printed("run", sweep, "--store", store)
    assert "trials: 2 trials written, 2 removed" in printed("export", sweep, folder, "--delta", "--store", store)
    assert assert_equal(store, folder) == 2


@pytest.mark.slow
def test_a_column_whose_type_has_changed_is_written_whole_and_not_cast(tmp_path, law):
    store, folder = tmp_path / "store", tmp_path / "delta"
    sweep = law({"depth": [1, 2], "rate": [1.0]})
    printed("run", sweep, "--store", store)
    printed("export", sweep, folder, "--delta", "--store", store)
    trials = DeltaTable(f"{folder}/law/trials")
    polars.read_delta(str(folder / "law" / "trials")).with_columns(rate=polars.lit(1, polars.Int64)).write_delta(
        trials.table_uri, mode="overwrite", delta_write_options={"schema_mode": "overwrite"}
    )
    printed("run", law({"depth": [1, 2], "rate": [1.0, 2.5]}), "--store", store)
    printed("export", tmp_path / "law.yaml", folder, "--delta", "--store", store)
    assert assert_equal(store, folder) == 4


def test_an_export_that_was_stopped_between_two_tables_is_completed_by_the_next(tmp_path, law, monkeypatch):
    store, folder = tmp_path / "store", tmp_path / "delta"
    sweep = law({"depth": [1, 2]})
    printed("run", sweep, "--store", store)
    with monkeypatch.context() as patched:
        patched.setattr(delta, "DELTA_TABLES", ("trials",))
        printed("export", sweep, folder, "--delta", "--store", store)
    said = printed("export", sweep, folder, "--delta", "--store", store)
    assert "trials: 0 trials written; metrics: 2 trials written; curves: 2 trials written" in said
    assert assert_equal(store, folder) == 2


@pytest.mark.slow
def test_of_two_exports_at_once_one_is_refused_and_nothing_stands_twice(tmp_path, law):
    store, folder = tmp_path / "store", tmp_path / "delta"
    sweep = law({"depth": [1]})
    printed("run", sweep, "--store", store)
    printed("export", sweep, folder, "--delta", "--store", store)
    printed("run", law({"depth": [1, 2, 3]}), "--store", store)
    ready, ended = threading.Barrier(2), []

    def attempts(table, original=delta._attempts):
        found = original(table)
        if "trials" in table.table_uri:
            ready.wait()  # both have read the same version by now
        return found

    def export():
        try:
            delta.write_tables(results_of(existing_store(str(store))), f"{folder}/law")
            ended.append("written")
        except delta.TableConflictError as error:
            ended.append(str(error))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(delta, "_attempts", attempts)
        threads = [threading.Thread(target=export) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    refused = [end for end in ended if end != "written"]
    assert len(ended) == 2 and len(refused) == 1 and "at the same time" in refused[0], ended
    printed("export", tmp_path / "law.yaml", folder, "--delta", "--store", store)
    assert assert_equal(store, folder) == 3


def test_what_is_no_place_for_a_table_is_refused_in_a_line(tmp_path, law):
    store = tmp_path / "store"
    sweep = law({"depth": [1]})
    printed("run", sweep, "--store", store)
    (tmp_path / "file").write_text("x")
    said = printed("export", sweep, tmp_path / "file", "--delta", "--store", store, code=2)
    assert said.startswith("depthrate: cannot write Delta tables below ") and said.count("\n") == 1
    assert "are mutually exclusive" in printed(
        "export", sweep, tmp_path, "--delta", "--mlflow", "--store", store, code=2
    )
