"""A second reader of the store, written from docs/reference/store-format.md alone, reads the same rows as depthrate."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.catalog.code_decisions import DecisionKind, Decisions, decide
from depthrate.storage.catalog.removals import RemovalKind, remove
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from tests.support.tests_rows import A, B, C, commit

# The reader: from here to READER_END, nothing of depthrate is used.

Row = dict[str, Any]
TABLES = ("trials", "metrics", "curves", "features")


def sealed(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(path.read_bytes())
    digest = fields.pop("sha256")
    assert digest == hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest(), path
    return fields


def is_complete(root: Path, entries: list[Row]) -> bool:
    return all((root / e["path"]).is_file() and (root / e["path"]).stat().st_size == e["size"] for e in entries)


def sources(root: Path) -> Iterator[dict[str, list[str]]]:
    """Yield table -> paths of the current compactions, then of the commits that count."""
    manifests = [sealed(path) for path in root.glob("manifest/*/*.json")]
    complete = [m for m in manifests if is_complete(root, [e for named in m["files"].values() for e in named])]
    replaced = {compaction for m in complete for compaction in m["replaces"]["compactions"]}
    current = [m for m in complete if m["compaction_id"] not in replaced]
    superseded = [m for m in manifests if m["compaction_id"] in replaced]
    for manifest in current:
        yield {table: [entry["path"] for entry in named] for table, named in manifest["files"].items()}
    ignored = {
        f"sweep={m['sweep']}/{name}.parquet" for m in (*current, *superseded) for name in m["replaces"]["commits"]
    }
    for path in sorted(root.glob("trials/*/[!.]*.parquet")):
        below = f"{path.parent.name}/{path.name}"
        if path.name.startswith("compact_") or below in ignored:
            continue
        entries = json.loads(pq.read_metadata(path).metadata[b"depthrate"])["files"]
        if is_complete(root, list(entries.values())):
            yield {"trials": [f"trials/{below}"]} | {table: [entry["path"]] for table, entry in entries.items()}


def requested(root: Path) -> set[str]:
    lists = [path.with_suffix(".trials") for path in root.glob("sweeps/*/*.json")]
    return {trial_id for path in lists if path.is_file() for trial_id in path.read_text().split()}


def is_hidden(root: Path) -> Callable[[Row], bool]:
    decided: dict[str, list[str | None]] = {}
    paths = root.glob("decisions/*/*.json")
    for path in sorted(paths, key=lambda path: (int(path.name.partition("-")[0]), str(path))):
        decision = json.loads(path.read_bytes())
        decided |= dict.fromkeys(decision["trial_ids"], decision["counting"])
    removals = [sealed(path) for path in root.glob("removals/*.json")]
    spared = {True: requested(root), False: set[str]()}
    rows = {
        (t, a) for r in removals for a, ids in r["rows"].items() for t in ids if t not in spared[r["kind"] == "sweep"]
    }
    return lambda row: (
        (row["trial_id"], row["attempt_id"]) in rows
        or row["code_hash"] not in decided.get(row["trial_id"], [row["code_hash"]])
    )


def read_store(root: Path) -> dict[str, list[Row]]:
    """Return table -> its visible rows."""
    assert sealed(root / "format.json")["min_reader"] <= 3
    hidden, visible, found = is_hidden(root), dict[str, tuple[Any, int, Row]](), list(sources(root))
    for number, files in enumerate(found):
        for row in (
            row for path in files.get("trials", ()) for row in pq.read_table(root / path, partitioning=None).to_pylist()
        ):
            key, other = (row["committed_at"], row["attempt_id"]), visible.get(row["trial_id"])
            if not hidden(row) and (other is None or key < other[0]):
                visible[row["trial_id"]] = (key, number, row)
    tables: dict[str, list[Row]] = {
        "trials": [row for _, _, row in visible.values()],
        "metrics": [],
        "curves": [],
        "features": [],
    }
    keys = {(number, trial_id, row["attempt_id"]) for trial_id, (_, number, row) in visible.items()}
    for number, files in enumerate(found):
        for table in TABLES[1:]:
            for path in files.get(table, ()):
                rows = pq.read_table(root / path, partitioning=None).to_pylist()
                tables[table] += [row for row in rows if (number, row["trial_id"], row["attempt_id"]) in keys]
    return tables


# READER_END


def comparable(rows: list[Row], names: list[str]) -> list[str]:
    times = ({n: v.timestamp() for n, v in row.items() if isinstance(v, datetime)} for row in rows)
    return sorted(repr([(row | time).get(name) for name in names]) for row, time in zip(rows, times, strict=True))


def expect_same_rows(store: Store) -> None:
    """Compare the second reader's rows with depthrate's, for the columns that depthrate reads from files."""
    results, read = results_of(store), read_store(Path(store.root))
    for table, rows in read.items():
        relation = results.sql(f"select * from {table}")
        names = [name for name in relation.columns if name not in ("sweep", "tags")]
        ours = relation.to_arrow_table().to_pylist()
        assert comparable(ours, names) == comparable(rows, names), table
    assert {row["trial_id"] for row in read["trials"]} == {
        t for (t,) in results.sql("select trial_id from results").fetchall()
    }


def fill(store: Store) -> None:
    """Write duplicates, two versions of code, a removal of each kind, and parameters of two tasks."""
    commit(
        store, A, ["t1", "t2"], params={"depth": 2, "lr": 0.5, "steps": 7, "sizes": [1.0, 2.0], "name": "a", "on": True}
    )
    commit(store, B, ["t2", "t3"], hour=1, params={"depth": 3, "lr": 0.25}, value=3.0)
    commit(store, C, ["t4", "t5"], params={"width": 8}, sweep="other", task="u", code_hash="old")
    commit(
        store, f"{C[:-1]}d", ["t5"], hour=2, params={"width": 8}, sweep="other", task="u", code_hash="new", value=5.0
    )
    decide(store, Decisions(), DecisionKind.RERUN, "other", "new", ["new"], ["t5"])
    write_spec(store, "s", "aaaa", {"name": "s"}, ["t1", "t2"])
    remove(store, RemovalKind.SWEEP, "gone", [("t2", A), ("t3", B)])  # t2 is requested by sweep s
    remove(store, RemovalKind.TRIALS, "", [("t4", C)])


def test_loose_commits_read_by_a_second_reader(folder: Store) -> None:
    fill(folder)
    Path(folder.root, "trials/sweep=s/.x.parquet.tmp").write_bytes(b"half")
    folder.write(f"metrics/sweep=s/{A[:-1]}f.parquet", b"of a killed worker")
    expect_same_rows(folder)
    assert {row["trial_id"] for row in read_store(Path(folder.root))["trials"]} == {"t1", "t2", "t5"}


def test_compactions_read_by_a_second_reader(folder: Store, tmp_path: Path) -> None:
    fill(folder)
    before = read_store(Path(folder.root))
    loose = tmp_path / "loose"
    shutil.copytree(folder.root, loose)
    compact(folder)
    expect_same_rows(folder)  # the replaced files are still there
    after = read_store(Path(folder.root))
    assert {table: len(rows) for table, rows in after.items()} == {table: len(rows) for table, rows in before.items()}
    (path,) = (path for path in folder.list("manifest") if "sweep=s/" in path)
    shutil.copytree(folder.root, tmp_path / "killed")
    Path(tmp_path / "killed", path).unlink()  # killed before its manifest
    expect_same_rows(Store(str(tmp_path / "killed")))
    for letter in "ef":
        commit(folder, f"{A[:-1]}{letter}", [f"t6{letter}"], hour=3)
    compact(folder, grace_s=0)
    compact(folder, grace_s=0)
    expect_same_rows(folder)
    assert not any("compact_" not in path for path in folder.list("trials/sweep=s"))


@pytest.mark.parametrize("vanished", ["trials", "metrics"])
def test_incomplete_compactions_do_not_count(folder: Store, vanished: str) -> None:
    fill(folder)
    compact(folder)
    folder.delete(next(path for path in folder.list(f"{vanished}/sweep=s") if "compact_" in path))
    expect_same_rows(folder)


def test_a_compacted_file_has_typed_columns(folder: Store) -> None:
    """Any Parquet reader shows the parameters of a compaction."""
    fill(folder)
    compact(folder)
    files = [pq.read_schema(Path(folder.root, path)) for path in folder.list("trials/sweep=s") if "compact_" in path]
    types = {field.name: field.type for schema in files for field in schema}
    assert types["depth"] == pa.int64() and types["lr"] == pa.float64() and types["sizes"] == pa.list_(pa.float64())
    assert types["param_steps"] == pa.int64() and types["name"] == pa.string() and types["on"] == pa.bool_()
