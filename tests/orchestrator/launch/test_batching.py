"""Batched attempts: no trial is lost or doubled wherever one is killed, and a failure counts only against its pack."""

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.attempts.record import new_attempt_id, read_attempt
from depthrate.orchestrator.attempts.retry_policy import Failure
from depthrate.orchestrator.attempts.spec import BATCH_S, AttemptSpec
from depthrate.orchestrator.launch.batching import Batching, QueuedPack, group_entries, split_failed, to_pack_trials
from depthrate.orchestrator.launch.launch_plan import Plan
from depthrate.orchestrator.launch.outcome import Outcome
from depthrate.orchestrator.worker.attempt_runner import run_job
from depthrate.orchestrator.worker.context import StopFlag
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.sweeps.packing import Pack, make_pack
from tests.support.launches import committed, drive, job_options, plan_of, raw_rows, states

SHORT_TASKS = Path(__file__).parents[2] / "support/short_tasks.py"


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an attempt run all of its packs, however slow this machine is."""
    monkeypatch.setattr("depthrate.orchestrator.worker.attempt_runner.BATCH_S", 60.0)


def short_plan(store: Store, task: str, **spec: Any) -> Plan:
    return plan_of(store, f"{SHORT_TASKS}:{task}", **spec)


def drive_short(store: Store, task: str, workers: int = 1, **spec: Any) -> Outcome:
    return drive(short_plan(store, task, **spec), store, workers=workers)


def job_of(store: Store, plan: Plan) -> AttemptSpec:
    """Return one batched attempt of all packs of a plan, the shallowest first."""
    packs = sorted(plan.packs, key=lambda pack: pack.trials[0].params["depth"])
    first, *then = [to_pack_trials(pack) for pack in packs]
    task, options = plan.checked.sweep.loaded_task, job_options(store)
    return AttemptSpec(attempt_id=new_attempt_id(), sweep="s", task=task, **vars(first), options=options, then=then)


def test_packs_of_one_attempt_are_committed_together(folder: Store, unhurried: None) -> None:
    job = AttemptSpec.from_json(job_of(folder, short_plan(folder, "hop", grid={"depth": [2, 3, 4]}, seeds=2)).to_json())
    assert run_job(job, StopFlag()).state == "done"
    assert [len(folder.list(table)) for table in ("trials", "metrics", "curves", "attempts")] == [1, 1, 1, 1]
    rows = results_of(folder).sql("select depth, seed, pack_id, attempt_id from trials order by all").fetchall()
    assert [(depth, seed) for depth, seed, *_ in rows] == [(d, s) for d in (2, 3, 4) for s in (0, 1)]
    assert len({pack_id for *_, pack_id, _ in rows}) == 3 and {row[3] for row in rows} == {job.attempt_id}
    record = read_attempt(folder, "s", job.attempt_id)
    assert record is not None and sorted(record["trial_ids"]) == sorted(job.all_trial_ids)


@pytest.mark.slow
def test_short_attempt_returns_packs(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthrate.orchestrator.worker.attempt_runner.BATCH_S", 0.0)
    job = job_of(folder, short_plan(folder, "hop", grid={"depth": [2, 3, 4]}))
    attempt = run_job(job, StopFlag())
    assert attempt.state == "done" and attempt.trial_ids == job.trial_ids and raw_rows(folder) == 1
    drive_short(folder, "hop", grid={"depth": [2, 3, 4]})
    assert raw_rows(folder) == 3, "committed packs are not run again"


def test_feature_widths_have_their_own_files(folder: Store, unhurried: None) -> None:
    job = job_of(folder, short_plan(folder, "widens", grid={"depth": [2, 3, 4]}))
    assert run_job(job, StopFlag()).state == "done"
    results = results_of(folder)
    packs = zip((2, 3, 4), job.packs(), strict=True)
    widths = [len(results.features(pack.trial_ids[0], layer=depth)[1][0]) for depth, pack in packs]
    assert widths == [2, 3, 2] and len(folder.list("features")) == len(folder.list("trials")) == 3


@pytest.mark.parametrize("how", ["metrics", "features"])
@pytest.mark.parametrize("bad", [3, 4])
def test_failed_trials_features_are_not_committed(folder: Store, how: str, bad: int) -> None:
    plan = short_plan(folder, "breaks", grid={"depth": [2, 3, 4]}, params={"bad": bad, "how": how})
    trials = sorted((t for pack in plan.packs for t in pack.trials), key=lambda trial: trial.params["depth"])
    options, task = job_options(folder), plan.checked.sweep.loaded_task
    pack = to_pack_trials(make_pack(trials))
    attempt = run_job(
        AttemptSpec(attempt_id=new_attempt_id(), sweep="s", task=task, **vars(pack), options=options), StopFlag()
    )
    # a value that the tables refuse fails its trial alone, an exception ends the attempt
    done = [d for d in (2, 3, 4) if (d != bad if how == "metrics" else d < bad)]
    assert attempt.state == "failed" and [depth for depth, _ in committed(folder)] == done
    rows = results_of(folder).sql("select trial_id, count(*) from features group by all order by all").fetchall()
    assert rows == sorted((t.trial_id, t.params["depth"]) for t in trials if t.params["depth"] in done)
    assert not [finding for finding in verify(folder).findings if finding.kind != "leftover"]


def test_what_was_done_before_a_failure_is_committed(folder: Store, unhurried: None) -> None:
    job = job_of(folder, short_plan(folder, "fails", grid={"depth": [2, 3, 4, 5]}, params={"bad": 4}))
    attempt = run_job(job, StopFlag())
    bad = job.then[1]
    assert attempt.state == "failed" and attempt.pack_id == bad.pack_id and attempt.trial_ids[-1] == bad.trial_ids[0]
    assert [depth for depth, _ in committed(folder)] == [2, 3]


def test_batch_size_follows_durations() -> None:
    batching = Batching(is_possible=True)

    def took(seconds: float, count: int) -> int:
        entries = [QueuedPack(Pack(str(number), ())) for number in range(count)]
        batching.record_done(entries, {"trial_ids": [], "packs_s": seconds})
        return batching.size(waiting=1000, workers=2)

    assert batching.size(1000, 2) == 1
    assert [took(0.01, 1), took(0.02, 2), took(0.04, 4)] == [2, 4, 8], "twice as many at most"
    assert took(0.8, 8) == int(BATCH_S / 0.1) and took(60.0, 2) == 1
    took(0.01, 1)
    assert batching.size(waiting=3, workers=2) == 1, "towards the end each worker gets one"
    alone = Batching(is_possible=False)
    alone.record_done([QueuedPack(Pack("p", ()))], {"trial_ids": [], "packs_s": 0.01})
    assert alone.size(1000, 1) == 1


def test_what_failed_before_goes_alone() -> None:
    entries = [QueuedPack(Pack(name, ())) for name in "abcdef"]
    entries[2].failures.append(Failure("", FailureKind.TASK))
    entries[4].runs_alone = True
    names = [[entry.pack.pack_id for entry in group] for group in group_entries(entries, size=3, max_groups=10)]
    assert names == [["a", "b"], ["c"], ["d"], ["e"], ["f"]]
    assert len(group_entries(entries, size=3, max_groups=2)) == 2


def test_failure_counts_for_its_pack() -> None:
    def entries() -> list[QueuedPack]:
        return [QueuedPack(Pack(name, ())) for name in "abc"]

    failed = {"state": AttemptState.FAILED, "pack_id": "b"}
    guilty, others = split_failed(entries(), FailureKind.TASK, failed)
    assert [e.pack.pack_id for e in guilty] == ["b"] and [e.pack.pack_id for e in others] == ["a", "c"]
    guilty, others = split_failed(entries(), FailureKind.WORKER_LOST, {"state": AttemptState.RUNNING, "pack_id": "a"})
    assert not guilty and all(entry.runs_alone for entry in others), "the failing pack is unknown"
    guilty, _ = split_failed(entries(), FailureKind.STORE, failed)
    assert len(guilty) == 3, "the store refused all of them"


@pytest.mark.parametrize("failed", ["a", ""])
def test_peer_commits_are_no_failure(failed: str) -> None:
    left = [QueuedPack(Pack("b", ()))]
    record = {"state": AttemptState.FAILED, "pack_id": failed}
    guilty, others = split_failed(left, FailureKind.TABLE, record)
    assert not guilty and others == left and left[0].runs_alone
    assert split_failed(left, FailureKind.TABLE, record) == (left, []), "an attempt of one pack has only its failures"
    alone = [QueuedPack(Pack("b", ()))]
    assert split_failed(alone, FailureKind.TASK, {"state": AttemptState.FAILED, "pack_id": "b"}) == (alone, [])
    assert split_failed(alone, FailureKind.WORKER_LOST, None) == (alone, [])


@pytest.mark.slow
@pytest.mark.parametrize("where", ["between", "metrics before", "metrics after", "trials before", "trials after"])
def test_a_worker_killed_anywhere_loses_and_doubles_nothing(folder: Store, tmp_path: Path, where: str) -> None:
    params = {"folder": str(tmp_path), "where": where}
    outcome = drive_short(folder, "dies", grid={"depth": list(range(1, 61))}, params=params)
    assert not outcome.failures and (tmp_path / "dead").exists()
    assert committed(folder) == [(depth, 1.0 / depth) for depth in range(1, 61)] and raw_rows(folder) == 60
    ended = Counter(states(folder))
    assert ended["lost"] == 1 and ended["done"] < 55, "several packs went together"
    ran = Counter((tmp_path / "ran").read_text().split())
    assert max(ran.values()) == (1 if where == "trials after" else 2) and len(ran) == 60
    findings = verify(folder).findings
    assert {finding.kind for finding in findings} <= {"leftover"}, findings


@pytest.mark.slow
def test_kill_is_noticed_beside_a_fork(folder: Store, tmp_path: Path) -> None:
    outcome = drive_short(folder, "forks", grid={"depth": [2, 3]}, params={"folder": str(tmp_path)})
    os.kill(int((tmp_path / "child").read_text()), 9)  # it is there: nobody has waited for it
    assert not outcome.failures and [depth for depth, _ in committed(folder)] == [2, 3]
    assert Counter(states(folder))["lost"] == 1


@pytest.mark.slow
def test_failing_pack_is_reported_alone(folder: Store) -> None:
    outcome = drive_short(folder, "fails", grid={"depth": list(range(1, 41))})
    (failure,) = outcome.failures
    assert failure.error == "RuntimeError: depth 20 is cursed" and len(failure.pack.trials) == 1
    assert [depth for depth, _ in committed(folder)] == [d for d in range(1, 41) if d != 20]
    assert Counter(states(folder))["failed"] == 1 and raw_rows(folder) == 39


@pytest.mark.slow
def test_conflicting_column_fails_its_pack(folder: Store) -> None:
    outcome = drive_short(folder, "widens", grid={"depth": list(range(1, 41))}, params={"text_at": 20})
    (failure,) = outcome.failures
    assert "mark" in failure.error and failure.pack.trials[0].params["depth"] == 20
    assert len(committed(folder)) == 39


@pytest.mark.slow
def test_compaction_beside_batches(folder: Store, tmp_path: Path) -> None:
    seen, damaged, is_over = [0], list[str](), threading.Event()

    def look() -> None:
        while not is_over.is_set():
            compact(folder, grace_s=0, at_least=2)
            ids = [row[0] for row in results_of(folder).sql("select trial_id from trials").fetchall()]
            assert len(ids) == len(set(ids))
            seen.append(len(ids))
            damaged.extend(f.path for f in verify(folder).findings if f.kind != "leftover")

    beside = threading.Thread(target=look)
    beside.start()
    try:
        outcome = drive_short(
            folder, "dies", workers=2, grid={"depth": list(range(1, 121))}, params={"folder": str(tmp_path)}
        )
    finally:
        is_over.set()
        beside.join()
    assert not outcome.failures and not damaged and seen == sorted(seen)
    assert [depth for depth, _ in committed(folder)] == list(range(1, 121))
