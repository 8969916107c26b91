"""`query`: formats, files, and its end by Ctrl-C."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from depthrate.storage.files.store import Store
from depthrate.storage.query.sql_checks import compared_sweeps
from tests.support.here import printed, refused
from tests.support.tests_rows import A, commit


@pytest.fixture
def store(folder: Store) -> str:
    commit(folder, A, ["t0a", "t0b"])
    return folder.root


def test_formats(store: str, tmp_path: Path) -> None:
    query = ("query", "select trial_id, nc1, singular_values, committed_at from results order by 1", "--store", store)
    lines = (output := printed(*query, "--format", "csv")).splitlines()
    assert lines[0] == "trial_id,nc1,singular_values,committed_at"
    assert lines[1] == 't0a,6.2,"[2.0, 1.0]",2026-01-01T00:00:00+00:00'
    for name in ("o.csv", "o.json", "o.parquet", "o.txt"):
        printed(*query, "-o", tmp_path / name)
    assert (tmp_path / "o.csv").read_text() == output
    assert [row["trial_id"] for row in json.loads((tmp_path / "o.json").read_text())] == ["t0a", "t0b"]
    assert pq.read_table(tmp_path / "o.parquet")["nc1"].to_pylist() == [6.2, 6.2]
    assert "t0b" in (tmp_path / "o.txt").read_text()
    assert "has the extension .xls" in refused("query", "select 1", "--store", store, "-o", "x.xls")
    assert sorted(os.listdir(tmp_path)) == ["o.csv", "o.json", "o.parquet", "o.txt", "store"], "nothing beside them"


def test_failed_query_keeps_the_file(store: str, tmp_path: Path) -> None:
    (target := tmp_path / "o.csv").write_text("before")
    printed("query", "select nc9 from results", "--store", store, "-o", target, code=2)
    assert target.read_text() == "before"


def test_csv_is_safe_for_terminals(store: str) -> None:
    query = "select chr(8238) || 'txt.exe' as a, chr(8232) as b, chr(65309) || '1' as c, chr(13) || '=1' as d"
    output = printed("query", query, "--store", store, "--format", "csv")
    assert output.splitlines()[1] == "\\u202etxt.exe,\\u2028,'\uff1d1,\\x0d=1"


def test_a_query_too_long_to_be_interrupted_is_refused(store: str) -> None:
    """In this process, since the parser could be ended neither by a signal nor by a thread."""
    literals = ", ".join(map(str, range(200_000)))
    query = f"select count(*) from trials where sweep in ('s') and depth in ({literals})"
    assert "characters, expected at most 150000 with a time limit" in refused("query", query, "--store", store)


@pytest.mark.parametrize("text", ["''" * 20_000, "sweep = '" + "''" * 20_000 + "'", "'a'='" * 5_000])
def test_compared_sweeps_of_long_strings(text: str) -> None:
    assert "s" in compared_sweeps(f"select '{text}' from trials where sweep = 's'")


INTERRUPTED = """
import os, signal, sys, threading
from depthrate.orchestrator.cli.app import main
from depthrate.storage.query.results import Results
relation = Results._relation
def interrupted(*given, **options):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    return relation(*given, **options)
Results._relation = interrupted
sys.argv = ["depthrate", "query", *sys.argv[1:]]
main()
"""
SLOW = "with n as (from range(1000000)) select count(*) from n a, n b, n c, trials"
ONE_CALL = "select levenshtein(repeat('ab', 900000), repeat('ba', 900000)) from trials"


@pytest.mark.parametrize("words", [[SLOW], [ONE_CALL], [ONE_CALL, "-o", "x.csv"]])
def test_ctrl_c_ends_a_query(store: str, tmp_path: Path, words: list[str]) -> None:
    (place := tmp_path / "place").mkdir()
    command, variables = [sys.executable, "-c", INTERRUPTED, *words], {**os.environ, "DEPTHRATE_STORE": store}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, cwd=place)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not list(place.iterdir())
