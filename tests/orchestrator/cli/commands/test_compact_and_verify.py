"""`compact`, `verify` and `query -o` as commands, stores on S3, and the compaction that a launch starts by itself."""

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.attempts.record import new_attempt_id
from depthrate.orchestrator.launch.launch import AutoCompactor
from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.orchestrator.worker.attempt_runner import run_job
from depthrate.orchestrator.worker.context import StopFlag
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.sweeps.load import sweep_of_spec
from tests.support.here import TINY, invoke
from tests.support.launches import job_options, spec_of
from tests.support.s3_server import S3Server
from tests.support.tests_rows import commit


@pytest.fixture
def store(folder: Store) -> str:
    for number in range(4):
        commit(folder, f"20260101T00000{number}_aaaaaaaaaaaa", [f"t{number}a", f"t{number}b"], hour=number)
    return folder.root


def test_compact_says_what_it_did(store: str) -> None:
    code, output = invoke("compact", "--store", store)
    assert code == 0 and "merged 4 commits and 4 attempt records into 1 groups (8 trials)" in output
    assert "20 replaced files are kept for 1 h" in output
    code, output = invoke("compact", "--store", store, "--retain-hours", "0")
    assert code == 0 and "nothing to merge" in output and "20 replaced files deleted" in output
    code, output = invoke("query", "select count(*) as n from results", "--store", store, "--json")
    assert json.loads(output) == [{"n": 8}]


def test_verify_and_repair(store: str) -> None:
    code, output = invoke("verify", "--store", store)
    assert code == 0 and "8 trials in 16 files" in output and "all as committed" in output
    path = "metrics/sweep=s/20260101T000001_aaaaaaaaaaaa.parquet"
    Path(store, path).write_bytes(b"PAR1")
    code, output = invoke("verify", "--store", store)
    assert code == 1 and path in output and "depthrate verify --repair" in output
    code, output = invoke("verify", "--store", store, "--json")
    assert code == 1 and json.loads(output)["findings"][0]["trial_ids"] == ["t1a", "t1b"]
    code, output = invoke("verify", "--store", store, "--repair")
    assert code == 0 and "moved 4 files to quarantine/" in output and "2 trials are pending again" in output
    code, output = invoke("verify", "--store", store)
    assert code == 0 and "6 trials" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "--format", "csv"], "are mutually exclusive"),
        (["-o", "x.xls"], "has the extension .xls"),
        (["--format", "excel"], "excel"),
    ],
)
def test_bad_outputs(store: str, arguments: list[str], message: str) -> None:
    code, output = invoke("query", "select 1", "--store", store, *arguments)
    assert code == 2 and message in output


def test_formats(store: str, tmp_path: Path) -> None:
    query = "select trial_id, nc1, singular_values, committed_at from results order by 1 limit 2"
    code, output = invoke("query", query, "--store", store, "--format", "csv")
    lines = output.splitlines()
    assert code == 0 and lines[0] == "trial_id,nc1,singular_values,committed_at"
    assert lines[1] == 't0a,6.2,"[2.0, 1.0]",2026-01-01T00:00:00+00:00'
    for name in ("o.csv", "o.json", "o.parquet", "o.txt"):
        assert invoke("query", query, "--store", store, "-o", str(tmp_path / name))[0] == 0
    assert (tmp_path / "o.csv").read_text() == output
    assert [row["trial_id"] for row in json.loads((tmp_path / "o.json").read_text())] == ["t0a", "t0b"]
    assert pq.read_table(tmp_path / "o.parquet")["nc1"].to_pylist() == [6.2, 6.2]
    assert "t0b" in (tmp_path / "o.txt").read_text()
    assert sorted(os.listdir(tmp_path)) == ["o.csv", "o.json", "o.parquet", "o.txt", "store"], "nothing beside them"


def test_failed_query_keeps_the_file(store: str, tmp_path: Path) -> None:
    target = tmp_path / "o.csv"
    target.write_text("before")
    code, _ = invoke("query", "select nc9 from results", "--store", store, "-o", str(target))
    assert code == 2 and target.read_text() == "before"


@pytest.mark.slow
def test_a_launch_compacts_when_there_are_many_commits(store: str) -> None:
    opened = Store(store)
    upkeep = AutoCompactor(store, threshold=5)
    upkeep.refresh(take_snapshot(opened))
    upkeep.close(wait=True)
    assert not opened.list("manifest"), "four commits are few"
    upkeep = AutoCompactor(store, threshold=4)
    upkeep.refresh(take_snapshot(opened))
    upkeep.refresh(take_snapshot(opened))
    upkeep.close(wait=True)
    assert len(opened.list("manifest")) == 1 and take_snapshot(opened).num_loose() == {}
    assert results_of(opened).sql("select count(*) from results").fetchall() == [(8,)]


@pytest.fixture
def remote(s3: S3Server, tmp_path: Path) -> tuple[S3Server, str, Path]:
    sweep = tmp_path / "tiny.yaml"
    sweep.write_text(yaml.safe_dump(TINY))
    return s3, s3.new_url(), sweep


def test_a_sweep_on_s3(remote: tuple[S3Server, str, Path]) -> None:
    _, url, sweep = remote
    code, output = invoke("run", str(sweep), "--store", url, "--device", "cpu")
    assert code == 0 and "all 4 trials are committed" in output
    code, output = invoke("run", str(sweep), "--store", url, "--device", "cpu")
    assert code == 0 and "4 trials, 4 done" in output
    assert "4" in invoke("status", "--store", url)[1]
    assert invoke("compact", "--store", url, "--retain-hours", "0")[0] == 0
    assert invoke("verify", "--store", url)[0] == 0
    code, output = invoke(
        "query", "select depth, count(*) from results group by 1 order by 1", "--store", url, "--json"
    )
    assert code == 0 and [row["depth"] for row in json.loads(output)] == [2, 3]


def test_no_such_bucket_is_bad_input(remote: tuple[S3Server, str, Path]) -> None:
    _, _, sweep = remote
    for verb in (["run", str(sweep)], ["plan", str(sweep)], ["query", "select 1"], ["status"], ["verify"]):
        code, output = invoke(*verb, "--store", "s3://nowhere/store")
        assert code == 2 and "bucket 'nowhere' exists" in output


def test_a_trial_costs_less_than_one_request(remote: tuple[S3Server, str, Path]) -> None:
    """All requests of one attempt of a pack of 16: record, four tables, end, log, the checkpoint that is not there."""
    server, url, _ = remote
    checked = check_sweep(sweep_of_spec({**TINY, "grid": {"depth": [2]}, "seeds": 16}))
    # no beat and no live curves, which come by the clock: on a busy machine the attempt takes longer than they wait
    options = job_options(Store(url), checkpoint_seconds=3600, beat_s=3600)
    trials = {"trial_ids": checked.trials.ids, "params": [dict(trial.params) for trial in checked.trials]}
    job = spec_of(new_attempt_id(), sweep="tiny", task="collapse", options=options, **trials)
    Store(url).list()
    server.reset()
    assert run_job(job, StopFlag()).state == "done"
    counts = server.counts()
    assert counts["PUT"] <= 6 and counts.total() <= 12, counts
    assert results_of(Store(url)).sql("select count(*) from trials").fetchall() == [(16,)]
