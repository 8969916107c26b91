"""Forged rows with the right digests are found: what a commit repeats must agree, whatever its checksums say."""

import hashlib
import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.cli.commands.verify import fault_of
from depthrate.storage.catalog.fits import write_fits
from depthrate.storage.commits.commit import METADATA_KEY
from depthrate.storage.files.json_objects import with_digest
from depthrate.storage.files.parquet import feature_bytes, table_bytes, trials_bytes
from depthrate.storage.files.paths import attempt_path
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.findings import Verification
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.verify import verify
from tests.support.tests_rows import A, commit_rows
from tests.support.trial_ids import trial_id_of

Change = Callable[[pa.Table], pa.Table]
PARAMS = [{"depth": 5 + k, "lr": 0.5, "name": f"x{k}", "flag": k > 0, "sizes": [1, 2], "none": None} for k in range(2)]
IDS = [trial_id_of("away:law", 1, params) for params in PARAMS]


def forge(store: Store, table: str, change: Change) -> None:
    """Rewrite a table's only file, with its digest where that is named: in the commit, or in the manifest."""
    (path,) = (path for path in store.list(table) if path.endswith(".parquet"))
    old = store.read(path)
    metadata = pq.ParquetFile(io.BytesIO(old)).metadata.metadata or {}
    rows = change(pq.ParquetFile(io.BytesIO(old)).read())
    is_commit = METADATA_KEY in metadata
    if table == "trials":
        kept = {METADATA_KEY: metadata[METADATA_KEY]} if is_commit else {}
        content = trials_bytes(rows.replace_schema_metadata(kept), is_commit=is_commit)
    else:
        content = feature_bytes(rows) if table == "features" else table_bytes(rows)
    store.write(path, content)
    digests = hashlib.sha256(old).hexdigest(), hashlib.sha256(content).hexdigest()
    renewed = [(digests[0], digests[1]), (f'"size": {len(old)},', f'"size": {len(content)},')]
    if table == "trials" and is_commit:
        return
    if manifests := list(store.list("manifest")):
        fields = store.read(manifests[0]).decode()
        for before, after in renewed:
            fields = fields.replace(before, after)
        store.write(manifests[0], with_digest({k: v for k, v in json.loads(fields).items() if k != "sha256"}))
        return
    (commit,) = store.list("trials")
    parquet = pq.ParquetFile(io.BytesIO(store.read(commit)))
    fields = (parquet.metadata.metadata or {})[METADATA_KEY].decode()
    for before, after in renewed:
        fields = fields.replace(before, after)
    trials = parquet.read().replace_schema_metadata({METADATA_KEY: fields.encode()})
    store.write(commit, trials_bytes(trials, is_commit=True))


def put(column: str, *values: Any, kind: pa.DataType | None = None) -> Change:
    """Replace the first values of a column, or the whole column by one of another type."""

    def change(rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index(column)
        old = rows[column].to_pylist()
        array = pa.array([*values, *old[len(values) :]], kind or rows.schema.field(at).type)
        return rows.set_column(at, column, array)

    return change


def cast(column: str, kind: pa.DataType) -> Change:
    return lambda rows: rows.set_column(rows.schema.get_field_index(column), column, rows[column].cast(kind))


def drop(column: str) -> Change:
    return lambda rows: rows.drop_columns([column])


FORGERIES: dict[str, tuple[str, Change]] = {
    **{f"parameter {name}": ("trials", put(name, value)) for name, value in (
        ("depth", 7), ("depth", None), ("lr", 0.25), ("lr", None), ("name", "y"), ("name", None), ("flag", True),
        ("flag", None), ("sizes", [1.0]), ("sizes", [2.0, 1.0]), ("sizes", None),
    )},
    "parameter as text": ("trials", cast("depth", pa.string())),
    "parameter as double": ("trials", cast("depth", pa.float64())),
    "parameter as int32": ("trials", cast("depth", pa.int32())),
    "float as text": ("trials", cast("lr", pa.string())),
    "flag as int": ("trials", cast("flag", pa.int64())),
    "value for a null": ("trials", put("none", 3, kind=pa.int64())),
    "parameter dropped": ("trials", drop("depth")),
    "params": ("trials", put("params", json.dumps(PARAMS[0] | {"depth": 9}))),
    "params and column": ("trials", lambda rows: put("depth", 9)(put("params", json.dumps(PARAMS[0] | {"depth": 9}))(rows))),
    "params without a name": ("trials", put("params", json.dumps({"depth": 5}))),
    "params of another": ("trials", put("params", json.dumps(PARAMS[1]))),
    "params no object": ("trials", put("params", "[]")),
    "params null": ("trials", put("params", None)),
    "id": ("trials", put("trial_id", "0123456789abcdef")),
    "id null": ("trials", put("trial_id", None)),
    "ids swapped": ("trials", put("trial_id", *reversed(IDS))),
    "id of another": ("trials", put("trial_id", IDS[1])),
    "trial twice": ("trials", lambda rows: pa.concat_tables([rows, rows.slice(0, 1)])),
    "sweep": ("trials", put("sweep", "other")),
    "sweep null": ("trials", put("sweep", None)),
    "task": ("trials", put("task", "other", "other")),
    "task of one": ("trials", put("task", "other")),
    "version": ("trials", put("task_version", 2, 2)),
    "version null": ("trials", put("task_version", None)),
    "attempt": ("trials", put("attempt_id", "20260101T000000_cccccccccccc")),
    "attempt null": ("trials", put("attempt_id", None)),
    "status": ("trials", put("status", "wonderful")),
    "status null": ("trials", put("status", None)),
    "time null": ("trials", put("committed_at", None)),
    "wall time as text": ("trials", put("wall_s", "long", "long", kind=pa.string())),
    "steps as double": ("trials", cast("steps", pa.float64())),
    **{f"{table} of another trial": (table, put("trial_id", "t9")) for table in ("metrics", "curves", "features")},
    **{f"{table} of no trial": (table, put("trial_id", None)) for table in ("metrics", "curves", "features")},
    **{f"{table} of another attempt": (table, put("attempt_id", "x")) for table in ("metrics", "curves", "features")},
    **{f"{table} at no step": (table, put("step", None)) for table in ("metrics", "curves", "features")},
    **{f"{table} before the first step": (table, put("step", -1)) for table in ("metrics", "curves", "features")},
    **{f"{table} with a row less": (table, lambda rows: rows.slice(1)) for table in ("metrics", "curves", "features")},
    "layer null": ("metrics", put("layer", None)),
    "step as double": ("metrics", cast("step", pa.float64())),
    "split as int": ("curves", put("split", *range(4), kind=pa.int64())),
    "no layer": ("metrics", drop("layer")),
    "metric as text": ("metrics", cast("nc1", pa.string())),
    "metric as float": ("metrics", cast("nc1", pa.float32())),
    "own column as text": ("metrics", cast("own", pa.string())),
    "own column dropped": ("metrics", drop("own")),
    "own text as numbers": ("metrics", put("word", *range(4), kind=pa.float64())),
    "label as double": ("features", cast("label", pa.float64())),
}  # fmt: skip


def checked(store: Store) -> Verification:
    return verify(store, fault_of=fault_of, columns=builtin_columns())


@pytest.fixture
def store(folder: Store) -> Store:
    tables = {
        "metrics": [{"layer": k, "nc1": 0.5, "own": 1.0, "word": "a"} for k in range(2)],
        "curves": [{"step": k, "loss": 0.5} for k in range(2)],
        "features": {
            "step": [0, 0],
            "layer": [0, 1],
            "kind": ["sample"] * 2,
            "label": [0, 1],
            "feature": [[1.0], [2.0]],
        },
    }
    fields = {
        trial_id: {"task": "away:law", "task_version": 1, "params": json.dumps(params), "wall_s": 1.0, "steps": 3}
        for trial_id, params in zip(IDS, PARAMS, strict=True)
    }
    folder.write_format()
    record = {"attempt_id": A, "sweep": "s", "trial_ids": IDS, "state": "done"}
    record |= dict.fromkeys(("started_at", "heartbeat_at", "ended_at"), 1e9)
    folder.write(attempt_path("s", A), json.dumps(record).encode())  # merged with the commit
    commit_rows(folder, A, dict.fromkeys(IDS, tables), fields=lambda trial_id: fields[trial_id])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("is_merged", [False, True], ids=["commit", "compaction"])
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found_and_moved_aside(store: Store, name: str, is_merged: bool) -> None:
    if is_merged:
        compact(store, grace_s=0, at_least=1)
        store.delete_many([path for path in store.list("attempts") if path.endswith(".json")])
    assert not checked(store).findings
    table, change = FORGERIES[name]
    forge(store, table, change)
    found = checked(store)
    assert "damaged" in {finding.kind for finding in found.findings}, name
    repair(store, found)
    assert not [finding for finding in checked(store).findings if finding.kind == "damaged"]


@pytest.mark.parametrize("change", [{"model": "wonderful"}, {"model": None}, {"sweep": "other"}])
def test_a_forged_fit_is_found(store: Store, change: dict[str, str | None]) -> None:
    fit = {"sweep": "s", "metric": "nc1", "x": "depth", "model": "power", "exponent": 0.5}
    write_fits(store, "s", [fit])
    assert not checked(store).findings
    write_fits(store, "s", [fit | change])
    assert [(finding.kind, finding.path) for finding in checked(store).findings] == [
        ("damaged", "fits/sweep=s/fits.parquet")
    ]


def test_trials_of_code_that_gained_parameters_are_intact(store: Store) -> None:
    """The id leaves out a parameter that the task gained, which no longer shows where the task is not installed."""
    (path,) = store.list("trials")
    later = [params | {"later": 3} for params in PARAMS]
    forge(store, "trials", put("params", *map(json.dumps, later)))
    forge(store, "trials", lambda rows: rows.append_column("later", pa.array([3, 3])))
    assert path in store.list("trials") and not checked(store).findings
