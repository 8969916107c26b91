"""What files may hold that nobody means well with: each is refused, or written out, in one line and in little memory."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.slurm.errors import SlurmError
from depthrate.slurm.profile import load_profile
from depthrate.storage.catalog.code import hash_index, read_code
from depthrate.storage.commits.commit import METADATA_KEY
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.parquet import DECODED_BYTES, read_parquet, trials_bytes
from depthrate.storage.files.paths import code_index_path
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.query.row_writers import write_csv
from depthrate.storage.tables.schema import TRIALS
from depthrate.sweeps import load
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.load import load_sweep
from tests.support.here import invoke
from tests.support.tests_rows import commit

A, B = (f"20260101T000000_{letter * 12}" for letter in "ab")
DEEP = 100_000


@pytest.mark.parametrize("at", [1e30, -1e30, 10**400, "soon"])
def test_record_without_a_start_time(tmp_path: Path, at: object) -> None:
    store = Store(str(tmp_path / "store"))
    commit(store, A, ["t1"])
    record = {"attempt_id": B, "sweep": "s", "trial_ids": ["t2"], "state": "failed", "started_at": at, "host": "h"}
    store.write(f"attempts/sweep=s/{B}.json", json.dumps(record).encode())
    assert [row[0] for row in results_of(store).sql("select attempt_id from attempts").fetchall()] == [A]
    assert invoke("logs", "t2", "--store", store.root)[0] == 2
    (finding,) = verify(store).findings
    assert finding.path.endswith(f"{B}.json")


@pytest.mark.parametrize("at", ["ended_at", "heartbeat_at", "progress_at"])
def test_other_times_that_are_none_are_not_known(tmp_path: Path, at: str) -> None:
    store = Store(str(tmp_path / "store"))
    store.write_format()
    record = {"attempt_id": A, "sweep": "s", "trial_ids": ["t1"], "state": "failed", "started_at": 1e9, "host": "h"}
    store.write(f"attempts/sweep=s/{A}.json", json.dumps(record | {at: 1e30}).encode())
    (seen,) = results_of(store).sql("select started_at, ended_at, heartbeat_at from attempts").fetchall()
    assert seen == (1e9, None, None) and invoke("logs", "t1", "--store", store.root)[0] == 0


def test_self_linking_task_file(tmp_path: Path) -> None:
    (tmp_path / "law.py").symlink_to("law.py")
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"name": "s", "task": "./law.py:law", "grid": {"depth": [1]}}))
    (tmp_path / "me.yaml").symlink_to("me.yaml")
    code, said = invoke("plan", str(tmp_path / "s.yaml"), "--store", str(tmp_path / "store"))
    assert code == 2 and "law.py is a broken link" in said
    code, said = invoke("plan", str(tmp_path / "me.yaml"), "--store", str(tmp_path / "store"))
    assert code == 2 and "does not exist" in said


@pytest.mark.parametrize("text", ["a: " + "[" * DEEP, "{" * DEEP, "- " * DEEP, "? " * DEEP])
def test_deeply_nested_sweep_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(SweepError, match="nested too deeply|not YAML"):
        load_sweep(str(tmp_path / "s.yaml"))


def test_a_sweep_file_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "s.yaml").open("wb") as file:
        file.truncate(10 * 2**30)
    monkeypatch.setattr(load, "MAX_SWEEP_FILE_BYTES", 2**20)
    for given in ("s.yaml", "s.py"):
        (tmp_path / given).exists() or (tmp_path / given).symlink_to("s.yaml")
        with pytest.raises(SweepError, match="larger than 1 MB, the limit for sweep files"):
            load_sweep(str(tmp_path / given))


@pytest.mark.slow
def test_endless_or_nested_cluster_file(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match="/dev/zero has more than 1024 kB"):
        load_profile("/dev/zero")
    few = DEEP // 5  # the time that tomllib takes for a key grows as its square
    for text in ("a = " + "[" * DEEP, "a = " + "{b = " * DEEP, "[" + "a." * few + "a]\nb = 1"):
        (tmp_path / "c.toml").write_text(text)
        with pytest.raises(SlurmError, match="nested too deeply|is not TOML|unknown key"):
            load_profile(str(tmp_path / "c.toml"))


def test_deeply_nested_code_index(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    for index in (b"[" * DEEP, b"[]", b'{"files": 3, "main": ""}', b'{"files": {"a": 1}}'):
        store.write(code_index_path(hash_index(index)), index)
        assert read_code(store, hash_index(index)) is None
    assert {finding.kind for finding in verify(store).findings} == {"damaged"}


def test_deeply_nested_commit(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    commit(store, A, ["t1"])
    path = f"trials/sweep=s/{A}.parquet"
    table = pq.read_table(io.BytesIO(store.read(path)))
    store.write(path, trials_bytes(table.replace_schema_metadata({METADATA_KEY: b"[" * DEEP})))
    (problem,) = take_snapshot(store).problems
    assert problem.path == path and "nested too deeply" in problem.reason


def many_rows(store: Store) -> bytes:
    """A commit with a row too often: some kB that stand for gigabytes."""
    commit(store, A, ["t1"])
    table = pq.read_table(io.BytesIO(store.read(f"trials/sweep=s/{A}.parquet")))
    many = table.select(TRIALS.names).take(pa.array([0] * 2_000_000)).cast(TRIALS.with_metadata(table.schema.metadata))
    sink = io.BytesIO()
    pq.write_table(many, sink, compression="zstd")
    return sink.getvalue()


def long_texts(store: Store) -> bytes:
    """A commit with a long text that stands once in its dictionary, and for each of its rows."""
    commit(store, A, ["t1"])
    table = pq.read_table(io.BytesIO(store.read(f"trials/sweep=s/{A}.parquet")))
    index = table.schema.get_field_index("params")
    long = table.set_column(index, TRIALS.field("params"), pa.array([json.dumps({"a": "x" * 400_000})]))
    sink = io.BytesIO()
    many = long.select(TRIALS.names).take(pa.array([0] * 100)).cast(TRIALS.with_metadata(table.schema.metadata))
    with pq.ParquetWriter(sink, many.schema, compression="zstd", dictionary_pagesize_limit=2**30) as writer:
        for _ in range(100):
            writer.write_table(many)
    return sink.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("make", [many_rows, long_texts])
def test_decompression_bomb_in_trials(tmp_path: Path, make: object) -> None:
    content = make(Store(str(tmp_path / "made")))  # type: ignore[operator]
    assert len(content) < 500_000
    with pytest.raises(pa.ArrowInvalid, match="decode to .* more than the limit"):
        read_parquet(content)
    store = Store(str(tmp_path / "store"))
    commit(store, B, ["t2"])
    store.write(f"trials/sweep=s/{A}.parquet", content)
    command = [sys.executable, "-c", PEAK, "query", "select trial_id from trials", "--store", store.root]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "t2" in ended.stdout and f"{A}.parquet" in ended.stderr
    assert int(ended.stderr.split()[-1]) * 1024 < 700_000_000


PEAK = """
import re, sys
from click.testing import CliRunner
from depthrate.orchestrator.cli.app import app
result = CliRunner().invoke(app, sys.argv[1:])
print(result.output)
print(result.stderr, re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
sys.exit(result.exit_code)
"""


def test_large_compressible_file_is_read() -> None:
    table = pa.table({"trial_id": ["t" * 16] * 1_000_000, "nc1": pa.array([0.5] * 1_000_000)})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    assert len(sink.getvalue()) * 100 < table.nbytes < DECODED_BYTES
    assert read_parquet(sink.getvalue()).num_rows == 1_000_000


def test_csv_holds_no_formula_or_escape(tmp_path: Path) -> None:
    results = results_of(Store(str(tmp_path)))
    formulas = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\uff1d1"]
    texts = [*formulas, "\x1b[2J\x9b", "a\nb", "-1.5e-3", "plain"]
    values = ", ".join("('" + text.replace("'", "''") + "', -1.5)" for text in texts)
    sink = io.StringIO()
    write_csv(results.sql(f'select * from (values {values}) as t("=1+1", n)'), sink)
    header, *rows = csv.reader(io.StringIO(sink.getvalue()))
    assert header == ["'=1+1", "n"] and {row[1] for row in rows} == {"-1.5"}
    expected = [*(f"'{formula}" for formula in formulas), "\\x1b[2J\\x9b", "a\nb", "-1.5e-3", "plain"]
    assert [row[0] for row in rows] == expected
