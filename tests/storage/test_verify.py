"""Each kind of damage is found, reported, tolerated by queries, and repaired. Intact rows of the same commits are
kept."""

import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.catalog.removals import RemovalKind, remove
from depthrate.storage.commits.commit import METADATA_KEY
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.parquet import trials_bytes
from depthrate.storage.files.paths import is_compacted
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.findings import Verification
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.sweep_removal import rows_of_trials
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
    verification = verify(store, builtin_columns())
    assert not verification.findings and verification.num_trials == 4 and verification.num_files == 8
    compact(store, grace_s=0)
    verification = verify(store, builtin_columns())
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
    verification = verify(store, builtin_columns())
    (finding,) = [finding for finding in verification.findings if finding.path == path]
    assert finding.kind == ("wrong schema" if damage == "schema" else "damaged"), finding
    if table != "trials":
        assert finding.trial_ids == ("t1", "t2") and problems.problems[0].path == path
    result = repair(store, verification)
    assert path in result.moved and store.size(f"{result.quarantine}/{path}") == before[path], "nothing is deleted"
    assert len(store.list()) == len(before)
    assert not verify(store, builtin_columns()).findings
    assert answers(store) == ["t3", "t4"]
    assert not results_of(store).problems
    commit(store, "20260101T000000_cccccccccccc", ["t1", "t2"], hour=3)  # run again
    assert answers(store) == ["t1", "t2", "t3", "t4"]


def test_missing_metrics_beside_a_commit(store: Store) -> None:
    store.delete(f"metrics/sweep=s/{A}.parquet")
    verification = verify(store, builtin_columns())
    assert kinds(verification) == {("missing", "metrics")} and verification.findings[0].trial_ids == ("t1", "t2")
    result = repair(store, verification)
    assert result.pending == {"t1", "t2"} and f"trials/sweep=s/{A}.parquet" in result.moved
    assert not verify(store, builtin_columns()).findings and answers(store) == ["t3", "t4"]


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
    verification = verify(store, builtin_columns())
    assert {finding.path for finding in verification.findings} == foreign.keys()
    result = repair(store, verification)
    assert set(result.moved) == foreign.keys() and not result.pending
    assert not verify(store, builtin_columns()).findings and answers(store) == ["t1", "t2", "t3", "t4"]
    assert store.size("my own report.html") is not None


def declared(row: Mapping[str, Any]) -> tuple[Sequence[int], Sequence[int]] | None:
    return (0, 5), range(4 if row["trial_id"] == "t2" else 3)


def test_incomplete_trial_keeps_its_pack(store: Store) -> None:
    assert not verify(store, builtin_columns(), measured=declared).findings, "its digests are right"
    verification = verify(store, builtin_columns(), deep=True, measured=declared)
    (finding,) = verification.findings
    assert finding.kind == "incomplete"
    assert "trial t2 is missing 2 of 8 measurements, the first at step 0, layer 3" in finding.what
    assert not verify(store, builtin_columns(), deep=True, measured=lambda row: ((0, 5), range(3))).findings
    result = repair(store, verification)
    assert result.pending == {"t2"} and result.saved == 1
    assert answers(store) == ["t1", "t3", "t4"]
    assert not verify(store, builtin_columns(), deep=True, measured=declared).findings
    labels, features = results_of(store).features("t1", layer=2)
    assert labels.tolist() == [0, 1] and features.shape == (2, 3)


def test_readable_compacted_trials_are_kept(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthrate.storage.files.parquet.ROWS_PER_GROUP", 12)
    trials = [f"t{number:02d}" for number in range(20)]
    for start in range(0, 20, 4):
        commit(folder, f"20260101T000000_{start:012d}", trials[start : start + 4])
    compact(folder, grace_s=0)
    (path,) = [path for path in folder.list("metrics") if is_compacted(path)]
    folder.write(path, flip(folder.read(path), group=6))
    verification = verify(folder, builtin_columns())
    (finding,) = verification.findings
    assert finding.path == path and "1 of 10 row groups cannot be read" in finding.what
    lost = set(finding.trial_ids)
    assert 0 < len(lost) < 8
    result = repair(folder, verification)
    assert result.pending == lost and result.saved == 20 - len(lost)
    assert set(answers(folder)) == set(trials) - lost and not verify(folder, builtin_columns()).findings
    rows = results_of(folder).sql("select count(*) from metrics").fetchall()
    assert rows == [(6 * (20 - len(lost)),)]


def test_corrupt_compaction_yields_to_originals(store: Store) -> None:
    compact(store)
    (path,) = [path for path in store.list("curves") if is_compacted(path)]
    store.write(path, b"")
    assert answers(store) == ["t1", "t2", "t3", "t4"], "the replaced files are still there"
    verification = verify(store, builtin_columns())
    result = repair(store, verification)
    assert not result.pending
    assert answers(store) == ["t1", "t2", "t3", "t4"]
    assert not verify(store, builtin_columns()).findings


def test_changed_compacted_trials_are_found(store: Store) -> None:
    compact(store, grace_s=0)
    (path,) = store.list("trials")
    content = bytearray(store.read(path))
    content[40] ^= 1
    store.write(path, bytes(content))
    verification = verify(store, builtin_columns())
    assert ("damaged", "trials") in kinds(verification)
    repair(store, verification)
    assert not verify(store, builtin_columns()).findings


def test_commit_without_metrics_is_found(store: Store) -> None:
    path = f"trials/sweep=s/{A}.parquet"
    table = pq.read_table(io.BytesIO(store.read(path)))
    metadata = json.loads(table.schema.metadata[METADATA_KEY])
    del metadata["files"]["metrics"]
    store.write(path, trials_bytes(table.replace_schema_metadata({METADATA_KEY: json.dumps(metadata)})))
    verification = verify(store, builtin_columns())
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
    folder.write("checkpoints/p1/pack.json", b'{"trial_ids": ["t1"], "wall_s": 1}')
    folder.write("checkpoints/p1/pack.ckpt", b"weights")
    folder.write("checkpoints/p2/pack.json", b'{"trial_ids": ["t1", "t9"], "wall_s": 1}')
    verification = verify(folder, builtin_columns())
    assert {(f.kind, f.path) for f in verification.findings} == {
        ("leftover", f"metrics/sweep=s/{dead}.parquet"),
        ("leftover", "metrics/sweep=s/.x.parquet.1.tmp"),
        ("leftover", "checkpoints/p1/pack.json"),
    }
    repair(folder, verification)
    assert not verify(folder, builtin_columns()).findings and "checkpoints/p2/pack.json" in folder.list()
    assert not folder.list("checkpoints/p1") and not temporary.exists()


def test_small_files_are_checked(store: Store) -> None:
    store.write("sweeps/s/0123.json", b"{half")
    store.write("fits/sweep=s/fits.parquet", b"nonsense")
    store.write(f"attempts/sweep=s/{B}.json", b"[]")
    verification = verify(store, builtin_columns())
    assert kinds(verification) == {("damaged", "sweeps"), ("damaged", "fits"), ("damaged", "attempts")}
    repair(store, verification)
    assert not verify(store, builtin_columns()).findings and answers(store) == ["t1", "t2", "t3", "t4"]


def test_missing_manifest_with_trials(store: Store) -> None:
    compact(store, grace_s=0)
    (manifest,) = store.list("manifest")
    store.delete(manifest)
    assert answers(store) == []
    (finding,) = [finding for finding in verify(store, builtin_columns()).findings if finding.trial_ids]
    assert f"its manifest {manifest} is gone. 4 of its trials are committed nowhere else" in finding.what
    assert list(finding.trial_ids) == ["t1", "t2", "t3", "t4"]


def test_a_compaction_on_its_way_is_no_finding(store: Store) -> None:
    compact(store)
    (manifest,) = store.list("manifest")
    store.delete(manifest)  # as before it was written: the replaced files still exist
    assert not verify(store, builtin_columns()).findings and answers(store) == ["t1", "t2", "t3", "t4"]


def test_vanished_commit_is_named(folder: Store) -> None:
    commit(folder, A, ["t1", "t2"])
    commit(folder, B, ["t3"])
    folder.delete_many([path for path in folder.list("") if A in path and not path.startswith("attempts/")])
    (finding,) = verify(folder, builtin_columns()).findings
    assert (finding.kind, finding.path) == ("missing", f"attempts/sweep=s/{A}.json")
    assert finding.trial_ids == ("t1", "t2") and "2 of its 2 trials are in no commit" in finding.what
    repair(folder, verify(folder, builtin_columns()))
    assert not verify(folder, builtin_columns()).findings and take_snapshot(folder).trial_ids() == {"t3"}


def in_parts(store: Store, attempt_id: str, trial_ids: list[str]) -> None:
    """Commit each trial in a separate part, like packs whose trials run one after another."""
    for part, trial_id in enumerate(trial_ids):
        commit(store, attempt_id, [trial_id], part=part)
    path = f"attempts/sweep=s/{attempt_id}.json"
    store.write(path, json.dumps(json.loads(store.read(path)) | {"trial_ids": trial_ids}).encode())


def test_commit_vanished_beside_its_data(folder: Store) -> None:
    in_parts(folder, A, ["t1", "t2"])
    folder.delete(f"trials/sweep=s/{A}-0001.parquet")
    findings = verify(folder, builtin_columns()).findings
    gone = [finding for finding in findings if "but its commit trials/" in finding.what]
    assert len(gone) == len(findings) == 3


def test_purged_parts_are_not_missed(folder: Store) -> None:
    in_parts(folder, A, ["t1", "t2"])
    in_parts(folder, B, ["t1", "t2", "t3"])  # resumed: its record also names the trials committed by the first
    folder.delete_many([p for p in folder.list("") if f"{B}-0000" in p or f"{B}-0001" in p])
    assert not verify(folder, builtin_columns()).findings
    remove(folder, RemovalKind.TRIALS, "", rows_of_trials(take_snapshot(folder), ["t1"]))
    for _ in range(3):
        compact(folder, grace_s=0)
    folder.delete("removals")
    assert take_snapshot(folder).trial_ids() == {"t2", "t3"} and not verify(folder, builtin_columns()).findings


def test_vanished_compaction_is_named(folder: Store) -> None:
    commit(folder, A, ["t1"])
    compact(folder, grace_s=0, at_least=1)
    compact(folder, grace_s=0)
    folder.delete_many([p for p in folder.list("") if not p.startswith(("attempts/", "manifest/"))])
    contents = {path: folder.read(path) for path in folder.list("")}
    assert verify(folder, builtin_columns()).findings
    for path in [path for path in contents if path.startswith("manifest/")]:
        folder.delete(path)
    record = {"attempt_id": B, "sweep": "s", "trial_ids": ["t9"], "state": "done", "started_at": 1, "ended_at": 2}
    folder.write(f"attempts/sweep=s/{B}.json", json.dumps(record).encode())
    findings = {finding.path: finding for finding in verify(folder, builtin_columns()).findings}
    assert findings[f"attempts/sweep=s/{B}.json"].trial_ids == ("t9",)


def test_what_was_removed_for_good_is_not_missed(folder: Store) -> None:
    commit(folder, A, ["t1", "t2"])
    commit(folder, B, ["t3"])
    remove(folder, RemovalKind.TRIALS, "", rows_of_trials(take_snapshot(folder), ["t1", "t3"]))
    for _ in range(3):
        compact(folder, grace_s=0)
    folder.delete("removals")  # as after the deletion of old seals
    assert take_snapshot(folder).trial_ids() == {"t2"} and not verify(folder, builtin_columns()).findings
