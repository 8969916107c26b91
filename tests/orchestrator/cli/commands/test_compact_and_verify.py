"""`compact` and `verify` as commands, stores on S3, and the compaction that a launch starts by itself."""

import json
from pathlib import Path

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
from tests.support.trial_ids import trial_id_of


def ids(number: int) -> list[str]:
    """Return the ids of two trials with the parameters of `commit`."""
    return [trial_id_of(f"t{number}", None, {"depth": depth, "lr": 0.1, "steps": 5}) for depth in (2, 3)]


@pytest.fixture
def store(folder: Store) -> str:
    for number in range(4):
        commit(folder, f"20260101T00000{number}_aaaaaaaaaaaa", ids(number), hour=number, task=f"t{number}")
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
    assert code == 1 and json.loads(output)["findings"][0]["trial_ids"] == sorted(ids(1))
    code, output = invoke("verify", "--store", store, "--repair")
    assert code == 0 and "moved 4 files to quarantine/" in output and "2 trials are pending again" in output
    code, output = invoke("verify", "--store", store)
    assert code == 0 and "6 trials" in output


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
