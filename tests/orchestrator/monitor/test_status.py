"""Attempt records are informative only: whatever they contain, a sweep's status is correct."""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

import depthrate
from depthrate.orchestrator.api.status import StatusPoller
from depthrate.orchestrator.attempts.liveness import is_live
from depthrate.orchestrator.attempts.record import Attempt, lost_attempt, read_attempt, write_lost
from depthrate.orchestrator.executors.base import JobCounts, Scheduler, SchedulerAnswer
from depthrate.orchestrator.launch.launch import write_launch
from depthrate.orchestrator.launch.peers import PeerLaunches
from depthrate.orchestrator.monitor.status import TrialState, sweep_status
from depthrate.orchestrator.serve.overview import summary
from depthrate.storage.attempts.records import parse_record, read_records
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.paths import attempt_path, claim_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind
from tests.support.here import printed
from tests.support.tests_rows import commit

SOUND: dict[str, Any] = {
    "attempt_id": "a",
    "sweep": "s",
    "pack_id": "p",
    "trial_ids": ["t1"],
    "state": "running",
    "started_at": 1.0,
    "heartbeat_at": 2e9,
    "host": "elsewhere",
    "pid": 7,
    "device": "cpu",
}
NO_RECORDS: dict[str, bytes] = {
    "nothing": b"",
    "torn": b'{"attempt_id": "a", "sw',
    "not text": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "a list": b"[1]",
    "null": b"null",
    **{
        name: json.dumps(SOUND | change).encode()
        for name, change in {
            "no state": {"state": None},
            "unknown state": {"state": "runing"},
            "state of another type": {"state": ["running"]},
            "no start": {"started_at": None},
            "start in words": {"started_at": "now"},
            "start that is not a number": {"started_at": float("nan")},
            "start too large": {"started_at": 10**400},
            "trials of another type": {"trial_ids": "t1"},
            "trials that are not strings": {"trial_ids": [1, None]},
            "another attempt": {"attempt_id": "b"},
            "no attempt": {"attempt_id": None},
            "another sweep": {"sweep": "../../x"},
        }.items()
    },
}
ODD: dict[str, dict[str, Any]] = {
    "nulls": dict.fromkeys(SOUND.keys() - {"attempt_id", "sweep", "state", "started_at", "trial_ids", "heartbeat_at"}),
    "no heartbeat": {"heartbeat_at": None},
    "heartbeat in words": {"heartbeat_at": "soon"},
    "host of another type": {"host": 3},
    "pid in words": {"pid": "seven"},
    "pid too large": {"pid": 10**30},
    "unknown kind": {"state": "failed", "error_kind": "tsak", "error": ["x"]},
    "half a surrogate": {"state": "failed", "error": "\ud800", "error_kind": "task"},
    "steps of another type": {"step": "3", "num_steps": [4], "trials_done": None, "checkpoints": "no"},
    "no trials": {"trial_ids": None},
}


@pytest.mark.parametrize("content", NO_RECORDS.values(), ids=NO_RECORDS)
def test_what_is_no_record_is_ignored_and_named(folder: Store, content: bytes) -> None:
    path = attempt_path("s", "a")
    folder.write(path, content)
    commit(folder, "20260101T000000_000000000001", ["t2"])
    snapshot = take_snapshot(folder)
    assert parse_record(content, path) is None and read_attempt(folder, "s", "a") is None
    assert [record["attempt_id"] for record in read_records(folder, snapshot)] == ["20260101T000000_000000000001"]
    status = sweep_status("s", ["t1", "t2"], snapshot, folder)
    assert status.states == {"t1": TrialState.PENDING, "t2": TrialState.OK}
    assert [str(problem) for problem in status.problems] == [f"{path}: is not a valid attempt record and is ignored"]
    others = PeerLaunches(folder)
    others.poll()
    assert not others.running and folder.read(path) == content, "what we cannot read we do not write over"


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_odd_details_of_a_record_count_as_unknown(folder: Store, change: dict[str, Any]) -> None:
    path = attempt_path("s", "a")
    folder.write(path, json.dumps(SOUND | change).encode())
    record = read_attempt(folder, "s", "a")
    assert record is not None and isinstance(record["state"], AttemptState)
    assert record["error_kind"] in (None, FailureKind.TASK)
    is_live(record, time.time())
    status = sweep_status("s", ["t1"], take_snapshot(folder), folder)
    status.to_json()
    expected = {"failed": TrialState.FAILED}.get(change.get("state", ""), TrialState.RUNNING)
    assert status.states["t1"] in (expected, TrialState.PENDING) and not status.problems
    PeerLaunches(folder).poll()
    before = read_attempt(folder, "s", "a")
    write_lost(folder, lost_attempt("a", "s", record, kind=FailureKind.NODE_LOST, error="gone"))
    again = read_attempt(folder, "s", "a")
    assert before is not None and again is not None
    if before["state"] is AttemptState.RUNNING:
        assert (again["state"], again["error_kind"]) == (AttemptState.LOST, FailureKind.NODE_LOST)
    else:
        assert again == before, "an end is never written over"


def test_the_stored_words_are_what_they_were(folder: Store) -> None:
    attempt = Attempt(attempt_id="a", sweep="s", pack_id="p", trial_ids=["t"], device="cpu")
    attempt.state, attempt.error_kind = AttemptState.FAILED, FailureKind.OUT_OF_MEMORY
    attempt.write(folder)
    written = folder.read(attempt_path("s", "a"))
    assert b'"state": "failed"' in written and b'"error_kind": "out_of_memory"' in written
    assert [*AttemptState] == ["running", "done", "interrupted", "failed", "lost"]
    assert [*TrialState] == ["ok", "diverged", "running", "failed", "pending"]


FAR = {"host": "elsewhere", "pid": 7}
GONE = {"host": socket.gethostname(), "pid": 2**22 + 1}
UNATTENDED: dict[str, tuple[bool, dict[str, Any]]] = {
    "nothing": (True, {}),
    "launch": (False, {"claim": {"sweep": "s", "trials": {}, **FAR}}),
    "launch of another sweep": (True, {"claim": {"sweep": "x", "trials": {}, **FAR}}),
    "launch of another sweep with the trial": (False, {"claim": {"sweep": "x", "trials": {"t1": 0}, **FAR}}),
    "silent launch": (True, {"claim": {"sweep": "s", "trials": {"t1": 0}, "renewed_at": -300, **FAR}}),
    "killed launch": (True, {"claim": {"sweep": "s", "trials": {"t1": 0}, **GONE}}),
    "running": (False, {"record": {"heartbeat_at": 0}}),
    "stale": (True, {"record": {"heartbeat_at": -300}}),
    "killed worker": (True, {"record": {"heartbeat_at": 0, **GONE}}),
    "failed": (False, {"record": {"state": "failed", "error_kind": "task", "error": "no"}}),
    "committed": (False, {"committed": True}),
    "waiting jobs": (False, {"jobs": JobCounts(1, 0)}),
    "running jobs": (False, {"jobs": JobCounts(0, 1)}),
    "ended jobs": (True, {"jobs": JobCounts(0, 0)}),
    "unknown jobs": (False, {"jobs": None}),
}
"""Whether a sweep is unattended -> times in seconds from now."""


@pytest.mark.parametrize(("is_unattended", "given"), UNATTENDED.values(), ids=UNATTENDED)
def test_pending_trials_without_anything_alive(
    folder: Store, monkeypatch: pytest.MonkeyPatch, is_unattended: bool, given: dict[str, Any]
) -> None:
    folder.write_format()
    now = time.time()
    if "claim" in given:
        claim = {"launch_id": "l", "renewed_at": 0, **given["claim"]}
        trials = {trial: now + since for trial, since in claim["trials"].items()}
        claim |= {"renewed_at": now + claim["renewed_at"], "trials": trials}
        folder.write(claim_path("20260101T000000_000000000002", 1), json.dumps(claim).encode())
    if "record" in given:
        written_at = now + given["record"].get("heartbeat_at", 0)
        record = SOUND | given["record"] | {"heartbeat_at": written_at}
        folder.write(attempt_path("s", "a"), json.dumps(record).encode())
        os.utime(folder.full_path(attempt_path("s", "a")), (written_at, written_at))
    if "committed" in given:
        commit(folder, "20260101T000000_000000000001", ["t1"])
    if "jobs" in given:
        answer = SchedulerAnswer(given["jobs"], [])
        scheduler = Scheduler("SLURM", lambda store, sweep: answer, lambda store, sweep: None)
        monkeypatch.setattr("depthrate.orchestrator.executors.registry.schedulers", lambda: {"slurm": scheduler})
    poller = StatusPoller(folder, {"s": ["t1"], "s@0": ["t2"]}, with_costs=False)
    texts = poller.poll().unattended
    expected = f"no launch or job works on 1 pending trial. Run: depthrate run s --store {folder.url}"
    assert texts == ({"s": expected} if is_unattended else {})


@pytest.mark.parametrize(
    ("place", "error"),
    [
        (FAR, "no heartbeat from the worker, cause unknown"),
        (GONE, "the worker process has ended, cause unknown"),
    ],
)
def test_lost_peers_have_no_invented_cause(folder: Store, place: dict[str, Any], error: str) -> None:
    path, before = attempt_path("s", "a"), time.time() - 300
    folder.write(path, json.dumps(SOUND | {"heartbeat_at": before} | place).encode())
    os.utime(folder.full_path(path), (before, before))
    PeerLaunches(folder).poll()
    record = read_attempt(folder, "s", "a")
    assert record is not None and (record["state"], record["error"]) == (AttemptState.LOST, error)


def test_all_views_show_a_sweep_that_nothing_runs(tmp_path: Path, folder: Store) -> None:
    (path := tmp_path / "s.yaml").write_text("{name: s, task: power_law.py:law, grid: {depth: [2, 3]}}")
    (tmp_path / "power_law.py").write_text(
        "import depthrate\n\n@depthrate.task(version=1)\ndef law(*, depth: int):\n    return {}\n"
    )
    sweep = depthrate.load(path)
    folder.write_format()
    write_launch(folder, sweep.checked(folder)[0])
    expected = "no launch or job works on 2 pending trials. Run: depthrate run s --store"
    assert f"s: {expected}" in " ".join(printed("status", "--store", folder.url).split())
    assert json.loads(printed("status", "--store", folder.url, "--json"))[0]["unattended"] is True
    assert expected in sweep.status(folder.url).sentence
    snapshot = StatusPoller(folder, {"s": sweep.checked(folder)[0].trials.ids}, with_costs=True).poll()
    (note,) = summary(snapshot, snapshot.states[0])["notes"]
    assert note.startswith(expected)


def test_newer_state_is_done(folder: Store) -> None:
    commit(folder, "20260101T000000_000000000001", ["t1"])
    snapshot = take_snapshot(folder)
    column = snapshot.trials.column_names.index("status")
    snapshot.__dict__["trials"] = snapshot.trials.set_column(column, "status", [["splendid"]])  # a cached property
    assert sweep_status("s", ["t1"], snapshot, folder).counts()["ok"] == 1
