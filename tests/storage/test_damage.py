"""Corrupt and foreign files are reported, are never visible, and do not affect queries of the rest."""

import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.parquet import PAGES_KEY, open_parquet
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from tests.support.tests_rows import commit


@pytest.fixture
def store(folder: Store) -> Store:
    commit(folder, "a1", ["t1", "t2"], hour=1)
    commit(folder, "a2", ["t3"], hour=2)
    return folder


def answers(store: Store) -> tuple[list[str], str]:
    results = results_of(store)
    trials = [row[0] for row in results.sql("select trial_id from results where nc1 is not null order by 1").fetchall()]
    return trials, "\n".join(map(str, results.problems))


@pytest.mark.parametrize("table", ["metrics", "curves", "features"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "missing"])
def test_damaged_data_file(store: Store, table: str, damage: str) -> None:
    path = f"{table}/sweep=s/a1.parquet"
    content = store.read(path)
    if damage == "missing":
        store.delete(path)
    else:
        store.write(path, content[: len(content) // 2] if damage == "truncated" else b"")
    trials, problems = answers(store)
    assert trials == ["t3"] and path in problems and "trials (2) are not visible" in problems


def test_truncated_trials_file(store: Store) -> None:
    path = "trials/sweep=s/a1.parquet"
    store.write(path, store.read(path)[:100])
    trials, problems = answers(store)
    assert trials == ["t3"] and path in problems


def test_damaged_page_fails_the_query(store: Store) -> None:
    path = "metrics/sweep=s/a1.parquet"
    content = bytearray(store.read(path))
    for position in range(4, len(content) - 2000, 40):
        content[position] ^= 255
    store.write(path, bytes(content))
    trials, problems = answers(store)
    assert trials == ["t3"] and f"{path}: its content is corrupt" in problems


@pytest.mark.parametrize("compacted", [False, True])
def test_damaged_trials_fail_every_reader(store: Store, compacted: bool) -> None:
    """Planning reads few of the columns. It must not count trials that a query leaves out."""
    if compacted:
        compact(store, grace_s=0)
    (path, *_) = store.list("trials")
    content = store.read(path)
    with open_parquet(content) as parquet:
        pages = len(content) if compacted else int(parquet.metadata.metadata[PAGES_KEY].split()[0])
    for position in range(4, len(content) - 4, len(content) // 60):
        changed = bytearray(content)
        changed[position] ^= 16
        store.write(path, bytes(changed))
        planned, results = take_snapshot(store), results_of(store)
        assert planned.trial_ids() == results.snapshot.trial_ids()
        assert position >= pages or (len(planned.trial_ids()) < 3 and planned.problems and results.problems)


def test_foreign_files(store: Store) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.table({"x": [1]}), sink)
    for path in ("trials/sweep=s/own.parquet", "metrics/sweep=s/own.parquet", "metrics/sweep=s/an own (1).parquet"):
        store.write(path, sink.getvalue())
    store.write("trials/notes.txt", b"hello")
    trials, problems = answers(store)
    assert trials == ["t1", "t2", "t3"]
    assert "trials/sweep=s/own.parquet: is Parquet, but was not written by depthrate" in problems
    assert "metrics/sweep=s/own.parquet: was not written by depthrate" in problems
    assert "metrics/sweep=s/an own (1).parquet: was not written by depthrate" in problems
    assert "trials/notes.txt: is not a Parquet file" in problems


def test_later_intact_commit_wins(store: Store) -> None:
    commit(store, "a3", ["t1", "t2"], hour=9)
    store.write("metrics/sweep=s/a1.parquet", b"")
    trials, problems = answers(store)
    assert trials == ["t1", "t2", "t3"] and "a1.parquet" in problems


def test_a_damaged_fits_file_is_named(store: Store) -> None:
    store.write("fits/sweep=s/fits.parquet", b"nonsense")
    results = results_of(store)
    assert results.sql("select * from fits").fetchall() == []
    assert "fits/sweep=s/fits.parquet" in str(results.problems[0])
