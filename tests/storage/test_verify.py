"""Each kind of damage is found, reported, tolerated by queries, and repaired. Intact rows of the same commits are
kept."""

import io
import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.commits.commit import METADATA_KEY
from depthrate.storage.files.json_objects import with_digest
from depthrate.storage.files.parquet import trials_bytes
from depthrate.storage.files.paths import is_compacted
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.findings import Verification
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.verify import verify
from tests.support.tests_rows import commit


@pytest.fixture
def store(store: Store) -> Store:
    commit(store, "20260101T000000_aaaaaaaaaaaa", ["t1", "t2"], hour=1)
    commit(store, "20260101T000000_bbbbbbbbbbbb", ["t3", "t4"], hour=2)
    return store


@pytest.fixture(autouse=True)
def no_file_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthrate.storage.maintenance.verify.YOUNG_S", -10.0)


A, B = "20260101T000000_aaaaaaaaaaaa", "20260101T000000_bbbbbbbbbbbb"


def parquet_of(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def flip(content: bytes, group: int = 0) -> bytes:
    """Flip one bit of the numbers in a row group's first float column."""
    rows = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(group)
    columns = [rows.column(index) for index in range(rows.num_columns)]
    column = next(c for c in columns if c.physical_type in ("FLOAT", "DOUBLE"))
    changed = bytearray(content)
    changed[column.data_page_offset + column.total_compressed_size - 2] ^= 4
    return bytes(changed)


def wrong_schema(content: bytes) -> bytes:
    return parquet_of(pa.table({"trial_id": ["t1"], "attempt_id": [A], "step": ["five"], "nc1": ["high"]}))


DAMAGES = {
    "truncated": lambda c: c[: len(c) // 2],
    "zero bytes": lambda c: b"",
    "bit flip": flip,
    "schema": wrong_schema,
}


def answers(store: Store) -> list[str]:
    """Return the trials that appear in every view."""
    results = results_of(store)
    for view in ("metrics", "curves", "features"):
        results.sql(f"select * from {view}").fetchall()  # finds corrupt files
    rows = results.sql(
        "select trial_id from results where nc1 is not null and trial_id in (select trial_id from curves) order by 1"
    )
    return [row[0] for row in rows.fetchall()]


def kinds(found: Verification) -> set[tuple[str, str]]:
    return {(finding.kind, finding.path.partition("/")[0]) for finding in found.findings}


def test_a_sound_store_has_no_findings(store: Store) -> None:
    verification = verify(store)
    assert not verification.findings and verification.num_trials == 4 and verification.num_files == 8
    compact(store, grace_s=0)
    verification = verify(store)
    assert not verification.findings and verification.num_trials == 4


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("table", ["metrics", "curves", "features", "trials"])
@pytest.mark.slow
def test_damage_is_found_survived_and_repaired(store: Store, table: str, damage: str) -> None:
    path = f"{table}/sweep=s/{A}.parquet"
    store.write(path, DAMAGES[damage](store.read(path)))
    before = store.list()
    assert answers(store) == ["t3", "t4"], "the rest still answers"
    problems = results_of(store)
    problems.sql(f"select * from {'metrics' if table == 'trials' else table}").fetchall()
    verification = verify(store)
    (finding,) = [finding for finding in verification.findings if finding.path == path]
    assert finding.kind == "damaged", finding
    if table != "trials":
        assert finding.trial_ids == ("t1", "t2") and problems.problems[0].path == path
    result = repair(store, verification)
    assert path in result.moved and store.size(f"{result.quarantine}/{path}") == before[path], "nothing is deleted"
    assert len(store.list()) == len(before)
    assert not verify(store).findings and answers(store) == ["t3", "t4"] and not results_of(store).problems
    commit(store, "20260101T000000_cccccccccccc", ["t1", "t2"], hour=3)  # run again
    assert answers(store) == ["t1", "t2", "t3", "t4"]


def test_missing_metrics_beside_a_commit(store: Store) -> None:
    store.delete(f"metrics/sweep=s/{A}.parquet")
    verification = verify(store)
    assert kinds(verification) == {("missing", "metrics")} and verification.findings[0].trial_ids == ("t1", "t2")
    result = repair(store, verification)
    assert result.pending == {"t1", "t2"} and f"trials/sweep=s/{A}.parquet" in result.moved
    assert not verify(store).findings and answers(store) == ["t3", "t4"]


def test_foreign_files(store: Store) -> None:
    foreign = {
        "trials/sweep=s/own.parquet": parquet_of(pa.table({"x": [1]})),
        "metrics/sweep=s/own.parquet": parquet_of(pa.table({"x": [1]})),
        "trials/notes.txt": b"hello",
        "curves/notes.txt": b"hello",
        "attempts/sweep=s/notes.txt": b"hello",
        "manifest/sweep=s/notes.json": b"{}",
    }
    for path, content in foreign.items():
        store.write(path, content)
    store.write("my own report.html", b"not looked at: a store may lie in a folder with other things")
    assert answers(store) == ["t1", "t2", "t3", "t4"]
    verification = verify(store)
    assert {finding.path for finding in verification.findings} == foreign.keys()
    result = repair(store, verification)
    assert set(result.moved) == foreign.keys() and not result.pending
    assert not verify(store).findings and answers(store) == ["t1", "t2", "t3", "t4"]
    assert store.size("my own report.html") is not None


def test_a_damaged_compaction_is_pending(folder: Store) -> None:
    trials = [f"t{number}" for number in range(4)]
    for number in range(0, 4, 2):
        commit(folder, f"20260101T000000_{number:012d}", trials[number : number + 2])
    compact(folder, grace_s=0)
    (path,) = [path for path in folder.list("metrics") if is_compacted(path)]
    folder.write(path, flip(folder.read(path)))
    result = repair(folder, verify(folder))
    assert result.pending == set(trials) and answers(folder) == []
    assert not verify(folder).findings and not results_of(folder).problems


def test_corrupt_compaction_yields_to_originals(store: Store) -> None:
    compact(store)
    (path,) = [path for path in store.list("curves") if is_compacted(path)]
    store.write(path, b"")
    assert answers(store) == ["t1", "t2", "t3", "t4"], "the replaced files are still there"
    verification = verify(store)
    result = repair(store, verification)
    assert not result.pending and answers(store) == ["t1", "t2", "t3", "t4"] and not verify(store).findings


def test_changed_compacted_trials_are_found(store: Store) -> None:
    compact(store, grace_s=0)
    (path,) = store.list("trials")
    content = bytearray(store.read(path))
    content[40] ^= 1
    store.write(path, bytes(content))
    verification = verify(store)
    assert ("damaged", "trials") in kinds(verification)
    repair(store, verification)
    assert not verify(store).findings


def test_commit_without_metrics_is_found(store: Store) -> None:
    path = f"trials/sweep=s/{A}.parquet"
    table = pq.read_table(io.BytesIO(store.read(path)))
    metadata = json.loads(table.schema.metadata[METADATA_KEY])
    del metadata["files"]["metrics"]
    store.write(path, trials_bytes(table.replace_schema_metadata({METADATA_KEY: json.dumps(metadata)})))
    verification = verify(store)
    (finding,) = verification.findings
    assert finding.path == path and f"does not name metrics/sweep=s/{A}.parquet" in finding.what
    result = repair(store, verification)
    assert result.pending == {"t1", "t2"} and answers(store) == ["t3", "t4"]


def test_leftovers_of_dead_attempts_and_killed_writers(folder: Store) -> None:
    commit(folder, A, ["t1"])
    dead = "20260101T000000_dddddddddddd"
    record = (
        b'{"attempt_id": "%s", "sweep": "s", "trial_ids": ["t9"], "state": "%s", "started_at": 1, "heartbeat_at": %d}'
    )
    folder.write(f"attempts/sweep=s/{dead}.json", record % (dead.encode(), b"lost", 1))
    folder.write(f"metrics/sweep=s/{dead}.parquet", b"half")
    live = "20260101T000000_eeeeeeeeeeee"
    folder.write(f"attempts/sweep=s/{live}.json", record % (live.encode(), b"running", time.time()))
    folder.write(f"metrics/sweep=s/{live}.parquet", b"on its way")
    temporary = Path(folder.root, "metrics", "sweep=s", ".x.parquet.1.tmp")
    temporary.write_bytes(b"half")
    os.utime(temporary, (1, 1))
    folder.write("checkpoints/p1/pack.json", with_digest({"trial_ids": ["t1"], "wall_s": 1}))
    folder.write("checkpoints/p1/pack.ckpt", b"weights")
    folder.write("checkpoints/p2/pack.json", with_digest({"trial_ids": ["t1", "t9"], "wall_s": 1}))
    verification = verify(folder)
    assert {(f.kind, f.path) for f in verification.findings} == {
        ("leftover", f"metrics/sweep=s/{dead}.parquet"),
        ("leftover", "metrics/sweep=s/.x.parquet.1.tmp"),
        ("leftover", "checkpoints/p1/pack.json"),
    }
    repair(folder, verification)
    assert not verify(folder).findings and "checkpoints/p2/pack.json" in folder.list()
    assert not folder.list("checkpoints/p1") and not temporary.exists()


def test_small_files_are_checked(store: Store) -> None:
    store.write("sweeps/s/0123.json", b"{half")
    store.write("fits/sweep=s/fits.parquet", b"nonsense")
    store.write(f"attempts/sweep=s/{B}.json", b"[]")
    verification = verify(store)
    assert kinds(verification) == {("damaged", "sweeps"), ("damaged", "fits"), ("damaged", "attempts")}
    repair(store, verification)
    assert not verify(store).findings and answers(store) == ["t1", "t2", "t3", "t4"]


def test_a_compaction_on_its_way_is_no_finding(store: Store) -> None:
    compact(store)
    (manifest,) = store.list("manifest")
    store.delete(manifest)  # as before it was written: the replaced files still exist
    assert not verify(store).findings and answers(store) == ["t1", "t2", "t3", "t4"]


def in_parts(store: Store, attempt_id: str, trial_ids: list[str]) -> None:
    """Commit each trial in a separate part, like packs whose trials run one after another."""
    for part, trial_id in enumerate(trial_ids):
        commit(store, attempt_id, [trial_id], part=part)
    path = f"attempts/sweep=s/{attempt_id}.json"
    store.write(path, json.dumps(json.loads(store.read(path)) | {"trial_ids": trial_ids}).encode())


def test_commit_vanished_beside_its_data(folder: Store) -> None:
    in_parts(folder, A, ["t1", "t2"])
    folder.delete(f"trials/sweep=s/{A}-0001.parquet")
    findings = verify(folder).findings
    gone = [finding for finding in findings if "but its commit trials/" in finding.what]
    assert len(gone) == len(findings) == 3
