"""A store declares the versions that may read and write it. Data added by newer versions are carried along, never
dropped."""

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from depthrate.orchestrator.analysis.open_results import open_results, results_of
from depthrate.orchestrator.cli.app import app
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.commits.commit import METADATA_KEY
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.format import FORMAT, FORMAT_FILE, Format
from depthrate.storage.files.parquet import DataFile, table_bytes, trials_bytes
from depthrate.storage.files.paths import compaction_of_path
from depthrate.storage.files.store import Store, StoreError, existing_store, open_store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.tables.schema import ATTEMPTS, TRIALS, as_attempts
from tests.support.later_store import COLUMN, age
from tests.support.tests_rows import A, B, C, commit, tables_of

WRITERS = (
    ("compact",),
    ("verify", "--repair"),
    ("sweeps", "rm", "s", "--yes"),
    ("sweeps", "restore", "s"),
    ("trials", "rm", "t1", "--yes"),
    ("trials", "restore", "--all"),
    ("trials", "tag", "odd", "t1"),
    ("cancel", "s"),
)
READERS = (("query", "select 1"), ("status",), ("verify",), ("sweeps", "list"), ("fit", "s"), ("logs", "t1"))


def call(store: Store, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*words, "--store", store.url])
    return result.exit_code, result.output


def files(store: Store) -> dict[str, bytes]:
    return {path: store.read(path) for path in store.list("")}


@pytest.mark.parametrize("words", [*WRITERS, *READERS], ids=" ".join)
def test_newer_store_is_refused(folder: Store, words: tuple[str, ...]) -> None:
    commit(folder, A, ["t1"])
    folder.write_format(Format(7, min_reader=5, min_writer=7, needs="0.9"))
    before = files(folder)
    code, output = call(folder, *words)
    assert code == 2 and "Install depthrate 0.9 or newer" in output and "pip install --upgrade" in output, output
    assert files(folder) == before


@pytest.mark.parametrize("words", WRITERS, ids=" ".join)
def test_newer_writers_permit_reading(folder: Store, words: tuple[str, ...]) -> None:
    commit(folder, A, ["t1"])
    folder.write_format(Format(7, min_reader=3, min_writer=7, needs="0.9"))
    before = files(folder)
    code, output = call(folder, *words)
    assert code == 2 and "cannot write to store" in output and "Install depthrate 0.9 or newer" in output
    assert files(folder) == before
    assert open_results(folder.url).sql("select trial_id from trials").fetchall() == [("t1",)]


def test_whatever_would_write_after_all_is_refused_too(folder: Store) -> None:
    commit(folder, A, ["t1"])
    folder.write_format(Format(7, min_writer=7))
    opened = existing_store(folder.url)
    acts: list[Callable[[], Any]] = [
        lambda: opened.write("x", b""),
        lambda: opened.delete("trials"),
        lambda: opened.delete_many(["format.json"]),
        lambda: opened.move("format.json", "x"),
    ]
    for act in acts:
        with pytest.raises(StoreError, match="Install a depthrate that supports format 7"):
            act()


@pytest.mark.parametrize("content", [b'{"format": 9}', b'{"format": 4, "min_reader": 4}', b'{"min_reader": 4, "x": 1'])
def test_later_format_in_another_form_is_not_read(folder: Store, content: bytes) -> None:
    folder.write("format.json", content)
    with pytest.raises(
        StoreError, match="cannot read store .* this version supports formats up to 3. Nothing was read"
    ):
        existing_store(folder.url)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"format": "x", "min_reader": 1, "min_writer": 1}', b"\xff"])
def test_invalid_format_stops_writers(folder: Store, content: bytes) -> None:
    commit(folder, A, ["t1"])
    folder.write(FORMAT_FILE, content)
    code, output = call(folder, "compact")
    assert code == 2 and "format.json is corrupt" in output and "backup" in output
    assert open_results(folder.url).sql("select trial_id from trials").fetchall() == [("t1",)]


@pytest.mark.parametrize("words", [*WRITERS, *READERS], ids=" ".join)
@pytest.mark.parametrize("older", [None, 1, 2])
def test_older_formats_are_refused_and_untouched(folder: Store, words: tuple[str, ...], older: int | None) -> None:
    commit(folder, A, ["t1"])
    if older is None:
        folder.delete(FORMAT_FILE)
    else:
        folder.write_format(Format(older, 1, 1))
    before = files(folder)
    code, output = call(folder, *words)
    assert code == 2 and f"has format {older or 2}, this version supports formats from 3" in output, output
    assert "Use the version of depthrate that wrote it" in output
    assert files(folder) == before


def test_older_format_stops_a_launch(folder: Store, tiny_sweep: Path) -> None:
    commit(folder, A, ["t1"])
    folder.delete(FORMAT_FILE)
    before = files(folder)
    code, output = call(folder, "run", str(tiny_sweep))
    assert code == 2 and "has format 2, this version supports formats from 3" in output
    assert files(folder) == before


def test_new_stores_get_the_format_first(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may write the format and then files between the two reads."""
    assert open_store(folder.url).format == Format()
    listed = Store.list_many

    def launch(self: Store, folders: Sequence[str]) -> dict[str, int]:
        commit(folder, A, ["t1"])
        return listed(self, folders)

    monkeypatch.setattr(Store, "list_many", launch)
    assert open_store(folder.url).format == Format()


def newer_commit(store: Store, attempt_id: str, trial_id: str, schema_version: int = 3) -> None:
    """Commit a trial as a later version might: with columns, of any type, that this version does not know."""
    metrics = tables_of(trial_id, attempt_id)["metrics"]
    metrics = metrics.append_column("later", pa.array([trial_id.encode()] * metrics.num_rows, pa.binary()))
    content = table_bytes(metrics)
    path = f"metrics/sweep=s/{attempt_id}.parquet"
    store.write(path, content)
    file = DataFile(path, len(content), hashlib.sha256(content).hexdigest(), metrics.num_rows, {})
    row = {"trial_id": trial_id, "sweep": "s", "task": "t", "attempt_id": attempt_id, "status": "ok", "params": "{}"}
    row |= {"committed_at": datetime(2026, 1, 1, tzinfo=UTC), "energy_kwh": 1.5}
    metadata = {"schema_version": schema_version, "files": {"metrics": file.to_json()}}
    schema = TRIALS.append(pa.field("energy_kwh", pa.float32()))
    schema = schema.with_metadata({METADATA_KEY: json.dumps(metadata).encode()})
    store.write(
        f"trials/sweep=s/{attempt_id}.parquet", trials_bytes(pa.Table.from_pylist([row], schema=schema), is_commit=True)
    )
    record = {"attempt_id": attempt_id, "sweep": "s", "trial_ids": [trial_id], "state": "done", "started_at": 1e9}
    record |= {"heartbeat_at": 1e9, "ended_at": 1e9, "energy_kwh": 1.5}
    store.write(f"attempts/sweep=s/{attempt_id}.json", json.dumps(record).encode())


def compacted(store: Store, table: str) -> pa.Table:
    """Join the newest compaction's files."""
    newest = max(compaction_of_path(path) for path in store.list(table) if "compact_" in path)
    paths = [path for path in store.list(table) if newest in path]
    parts = [pq.read_table(Path(store.root, path), partitioning=None) for path in paths]
    return pa.concat_tables(parts, promote_options="default")


def test_columns_of_newer_versions_are_carried_on(folder: Store) -> None:
    commit(folder, A, ["t1"])
    newer_commit(folder, B, "t2")
    verification = verify(folder)
    assert verification.findings == []
    assert repair(folder, verification).moved == []
    for _ in range(2):  # the output of a compaction is compacted again
        compact(folder, grace_s=0)
        compact(folder, grace_s=0)
        trials, metrics = compacted(folder, "trials"), compacted(folder, "metrics")
        energies = dict(zip(trials["trial_id"].to_pylist(), trials["energy_kwh"].to_pylist(), strict=True))
        assert energies["t1"] is None and energies["t2"] == 1.5
        later = {*zip(metrics["trial_id"].to_pylist(), metrics["later"].to_pylist(), strict=True)}
        assert later >= {("t1", None), ("t2", b"t2")}
        assert folder.read(f"attempts/sweep=s/{B}.json"), "a record that says more than the table has columns for stays"
        verification = verify(folder)
        assert verification.findings == []
        commit(folder, C, ["t3"])
    assert results_of(folder).sql("select count(*) from trials").fetchall() == [(3,)]
    assert results_of(folder).sql("select count(*) from metrics where trial_id = 't2'").fetchall() == [(6,)]


def test_added_columns_and_keys_verify(folder: Store) -> None:
    commit(folder, A, ["t1", "t2"])
    write_spec(folder, "s", "aaaa", {"name": "s", "task": "t"}, ["t1", "t2", "t3"])
    compact(folder, grace_s=0)
    commit(folder, B, ["t3"])
    assert call(folder, "trials", "tag", "odd", "t1")[0] == 0
    folder.write_format(Format(FORMAT))
    assert age(Path(folder.root)) == len(files(folder)) - 1, "all but the list of trials, which is plain text"
    for _ in range(2):
        verification = verify(folder)
        assert verification.findings == []
        assert repair(folder, verification).moved == [] and take_snapshot(folder).trial_ids() == {"t1", "t2", "t3"}
        compact(folder, grace_s=0)
    assert compacted(folder, "features")[COLUMN].to_pylist() == [b"x"] * 12


def test_newer_files_are_kept(folder: Store) -> None:
    commit(folder, A, ["t1"])
    newer_commit(folder, B, "t2", schema_version=9)
    before = files(folder)
    results = results_of(folder)
    assert results.sql("select trial_id from trials").fetchall() == [("t1",)]
    assert any("written by a newer version of depthrate (schema 9" in problem.reason for problem in results.problems)
    verification = verify(folder)
    assert [(finding.kind, finding.path) for finding in verification.findings] == [
        ("newer", f"trials/sweep=s/{B}.parquet")
    ]
    assert repair(folder, verification).moved == [] and files(folder) == before
    compact(folder, grace_s=0)
    remaining_files = files(folder)
    assert all(remaining_files[path] == content for path, content in before.items() if B in path)


def test_records_have_every_column() -> None:
    table = pa.Table.from_pylist([{"attempt_id": "a", "step": 3}], ATTEMPTS).append_column("log", pa.array([b"x"]))
    assert as_attempts(table) == table
    with pytest.raises(KeyError, match="state"):
        as_attempts(table.drop_columns(["state", "engine"]))
