"""Polars and deltalake read exactly the committed rows from the Delta logs of compactions."""

import contextlib
import json
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.catalog.code_decisions import DecisionKind, decide
from depthrate.storage.catalog.removals import RemovalKind, remove, restore
from depthrate.storage.commits.commit import commit_trials
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance import compact as compaction
from depthrate.storage.maintenance import delta_log
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.sweep_removal import rows_of_trials
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.tables.custom_columns import quoted
from tests.support.crash_points import Killed, on_folder
from tests.support.tests_rows import A, B, C, commit, tables_of

D, E, F = (f"20260101T000000_{letter * 12}" for letter in "def")

TABLES = ("trials", "metrics", "curves", "features")
Rows = dict[str, list[str]]
"""Table -> its rows as text, sorted."""


def plain(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows as text, without nulls and without the sweep, whose column in a query names all sweeps of a trial."""
    for row in rows:
        row |= {name: value.timestamp() for name, value in row.items() if isinstance(value, datetime)}
    return sorted(repr({k: v for k, v in sorted(row.items()) if v is not None and k != "sweep"}) for row in rows)


def by_deltalake(store: Store, tables: Sequence[str] = TABLES) -> Rows:
    return {table: plain(DeltaTable(f"{store.root}/{table}").to_pyarrow_table().to_pylist()) for table in tables}


def by_polars(store: Store, tables: Sequence[str] = TABLES) -> Rows:
    # Polars casts no arrays of fixed length to the lists of Delta
    frames = {table: polars.scan_delta(f"{store.root}/{table}", use_pyarrow=table == "features") for table in tables}
    return {table: plain(frame.collect().to_dicts()) for table, frame in frames.items()}


def committed(store: Store) -> Rows:
    results, rows = results_of(store), {}
    for table in TABLES:
        names = [field.name for field in DeltaTable(f"{store.root}/{table}").schema().fields if field.name != "sweep"]
        query = f"select {', '.join(map(quoted, names))} from {table}"
        rows[table] = plain(results.sql(query).to_arrow_table().to_pylist())
    return rows


def fill(store: Store) -> None:
    """Commit trials of which one is a duplicate, one was removed and run again, and one has two versions of its code."""
    commit(store, A, ["t1", "t2"], code_hash="a" * 32)
    commit(store, B, ["t2", "t3"], hour=2, width=4)
    remove(store, RemovalKind.TRIALS, "", rows_of_trials(take_snapshot(store), ["t3"]))
    commit(store, C, ["t3", "t4"], hour=3, value=5.0)
    commit(store, D, ["t1"], hour=4, value=7.0, code_hash="b" * 32)
    decide(store, take_snapshot(store).decisions, DecisionKind.RERUN, "s", "b" * 32, {"b" * 32}, ["t1"])


def test_readers_see_the_committed_rows(folder: Store) -> None:
    fill(folder)
    for step in ("", "nothing new", "restored", "one loose commit", "removed"):
        if step == "restored":
            restore(folder, take_snapshot(folder).removals.removals)
        elif step == "one loose commit":
            commit(folder, E, ["t9"], hour=9)
        elif step == "removed":
            remove(folder, RemovalKind.TRIALS, "", rows_of_trials(take_snapshot(folder), ["t2"]))
        assert compact(folder, grace_s=0, delta=not step).refused == ()
        rows = committed(folder)
        assert len(rows["trials"]) == {"one loose commit": 5}.get(step, 4)
        assert by_deltalake(folder) == rows and by_polars(folder) == rows, step
    assert len(folder.list("trials/_delta_log")) == 4, "no version without a change"
    assert not results_of(folder).problems and not verify(folder).findings


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("begun", [False, True])
def test_a_killed_compaction(folder: Store, tmp_path: Path, begun: bool) -> None:
    """Killed at any call, each table is as before or as after. The next compaction completes it."""
    fill(folder)
    if begun:
        compact(folder, grace_s=3600, delta=True)
        commit(folder, E, ["t9"], hour=9)
        commit(folder, F, ["t8"], hour=9)
        restore(folder, take_snapshot(folder).removals.removals)
    work = tmp_path / "work"

    def kill_at(point: int | None) -> int:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(folder.root, work)
        with on_folder(work, point) as deadline, contextlib.suppress(Killed):
            compact(Store(str(work)), grace_s=0, delta=True)
        return deadline.count

    before = by_deltalake(folder) if begun else {}
    count = kill_at(None)
    after = committed(Store(str(work)))
    assert count > 40 and by_deltalake(Store(str(work))) == after
    for point in range(1, count + 1):
        kill_at(point)
        store = Store(str(work))
        existing = [table for table in TABLES if begun or store.list(f"{table}/_delta_log")]
        rows = by_deltalake(store, existing)
        assert by_polars(store, existing) == rows
        for table in existing:
            assert rows[table] in (before.get(table), after[table]), f"{table} at call {point} of {count}"
        if point % 7 == 0:
            compact(store, grace_s=0, delta=True)
            assert by_deltalake(store) == after == by_polars(store), f"after call {point} of {count}"


def test_files_of_the_logs_stay(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(folder)
    compact(folder, grace_s=0, delta=True)
    rows = by_deltalake(folder)
    commit(folder, E, ["t9"], hour=9)
    commit(folder, F, ["t8"], hour=9)
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "update_delta_logs", lambda *_: False)
        (refused,) = compact(folder, grace_s=0).refused
    assert "the Delta logs were not updated" in refused and by_deltalake(folder) == rows
    assert compact(folder, grace_s=0).refused == () and by_deltalake(folder) == committed(folder)


def test_columns_of_two_types_are_left_out(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for attempt, trial, values in ((A, "t1", [0.5] * 6), (B, "t2", ["none"] * 6)):
        metrics = tables_of(trial, attempt)["metrics"].append_column("note", pa.array(values))
        row = {"trial_id": trial, "sweep": "s", "task": "t", "attempt_id": attempt, "status": "ok", "params": "{}"}
        options = {"sweep": "s", "attempt_id": attempt, "part": None, "columns": builtin_columns()}
        commit_trials(folder, trials=[row], tables={"metrics": [metrics]}, **options)
        monkeypatch.setattr("depthrate.storage.commits.commit.claim_columns", lambda *_: None)
    for _ in range(2):
        compact(folder, grace_s=0, delta=True)
        frame = polars.read_delta(f"{folder.root}/metrics")
        table = DeltaTable(f"{folder.root}/metrics").to_pyarrow_table()
        assert frame.columns == table.column_names and "nc1" in frame.columns and "note" not in frame.columns
        assert frame.height == table.num_rows == 12


def test_a_version_is_written_once(store: Store) -> None:
    assert store.create("trials/_delta_log/x.json", b"first")
    assert not store.create("trials/_delta_log/x.json", b"second")
    assert store.read("trials/_delta_log/x.json") == b"first" and len(store.list()) == 1


def test_two_compactions_write_every_version(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another compaction writes versions after the first one has read the logs."""
    fill(folder)
    compact(folder, grace_s=0, delta=True)
    commit(folder, E, ["t9"], hour=9)
    plain_snapshot, calls = delta_log.take_snapshot, []

    def snapshot(*args: Any, **options: Any) -> Any:
        calls.append(plain_snapshot(*args, **options))
        if len(calls) == 1:
            commit(folder, F, ["t8"], hour=9)
            compact(folder, grace_s=0)
        return calls[-1]

    monkeypatch.setattr(delta_log, "take_snapshot", snapshot)
    compact(folder, grace_s=0)
    assert len(calls) == 3 and by_deltalake(folder) == committed(folder)


def test_a_damaged_log_stops_deletion(folder: Store) -> None:
    fill(folder)
    compact(folder, delta=True)
    (path,) = folder.list("curves/_delta_log")
    folder.write(path, folder.read(path)[:-9])
    (refused,) = compact(folder, grace_s=0).refused
    assert "nothing was deleted" in refused and f"{path} is not a version of a Delta log" in refused


def replaced(old: str, new: str) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        assert old.encode() in content
        return content.replace(old.encode(), new.encode())

    return change


def with_action(action: str) -> Callable[[bytes], bytes]:
    return lambda content: content + b"\n" + action.encode()


FOREIGN_LOGS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "no JSON": lambda content: b"hello",
    "a list": lambda content: b"[]",
    "nested": lambda content: b'{"metaData": ' + b"[" * 100_000,
    "no metaData": lambda content: b"\n".join(line for line in content.splitlines() if b"metaData" not in line),
    **{f"metaData {value}": with_action(f'{{"metaData": {value}}}') for value in ("null", "[]", "3", '"x"', "{}")},
    **{
        f"schemaString {str(value)[:30]}": with_action(json.dumps({"metaData": {"id": "x", "schemaString": value}}))
        for value in (
            None,
            3,
            "",
            "[]",
            "{}",
            '{"fields": 3}',
            '{"fields": [3]}',
            '{"fields": [{"name": []}]}',
            "[" * 9999,
        )
    },
    "configuration": replaced('"configuration": {}', '"configuration": null'),
    "column mapping": replaced('"configuration": {}', '"configuration": {"delta.columnMapping.mode": "name"}'),
    "partitions": replaced('"partitionColumns": []', '"partitionColumns": ["sweep"]'),
    "protocol": replaced('"minWriterVersion": 2', '"minWriterVersion": 7'),
    "deletion vector": replaced('"partitionValues": {}', '"partitionValues": {}, "deletionVector": {}'),
    "path": replaced('"path": "sweep=', '"path": "../sweep='),
    "path a number": with_action('{"add": {"path": 3}}'),
    "add a list": with_action('{"add": []}'),
    "another writer": with_action('{"commitInfo": {"operation": "WRITE"}}'),
    "file of another writer": with_action('{"add": {"path": "part-00000.parquet", "size": 3}}'),
}


@pytest.mark.parametrize("name", FOREIGN_LOGS)
def test_a_foreign_log_is_refused_listed_and_moved_aside(folder: Store, name: str) -> None:
    commit(folder, A, ["t1"])
    compact(folder, delta=True)
    assert not verify(folder).findings
    (path,) = folder.list("trials/_delta_log")
    folder.write(path, FOREIGN_LOGS[name](folder.read(path)))
    commit(folder, B, ["t2"])
    (refused,) = compact(folder, grace_s=0).refused
    assert "nothing was deleted" in refused and f"{path} is not a version of a Delta log" in refused
    found = verify(folder)
    assert [(finding.path, finding.kind) for finding in found.findings] == [(path, "damaged")]
    assert repair(folder, found).moved == [path]
    assert not compact(folder, grace_s=0).refused and not verify(folder).findings
    assert by_deltalake(folder) == committed(folder)


def test_a_missing_version_and_files_beside_it(folder: Store) -> None:
    for attempt, trial_id in ((A, "t1"), (B, "t2"), (C, "t3")):
        commit(folder, attempt, [trial_id])
        compact(folder, delta=True)
    beside = {f"trials/_delta_log/{name}" for name in ("_last_checkpoint", "00000000000000000001.checkpoint.parquet")}
    for path in beside:
        folder.write(path, b"{}")
    assert {(f.path, f.kind) for f in verify(folder).findings} == {(path, "foreign") for path in beside}
    folder.delete("trials/_delta_log/00000000000000000001.json")
    (refused,) = compact(folder, grace_s=0).refused
    assert "version 1 is missing" in refused
    found = verify(folder)
    assert "version 1 is missing" in next(f.what for f in found.findings if f.kind == "damaged")
    repair(folder, found)
    assert not compact(folder, grace_s=0).refused and by_deltalake(folder) == committed(folder)


def test_a_log_that_names_a_missing_file_is_listed(folder: Store) -> None:
    commit(folder, A, ["t1"])
    compact(folder, delta=True)
    (path,) = folder.list("metrics/sweep=s")
    folder.delete(path)
    assert f"its log names {path}" in " ".join(finding.what for finding in verify(folder).findings)
