"""A hanging task: reported with host and process, terminated by --force or --stall-minutes, never blocking a launch forever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from depthrate.orchestrator.attempts.cancellation import forced_attempts, read_cancel_mark, write_cancel_mark
from depthrate.orchestrator.attempts.spec import AttemptSpec, PackTrials
from depthrate.orchestrator.worker.attempt_runner import run_job
from depthrate.orchestrator.worker.context import StopFlag
from depthrate.storage.attempts.heartbeats import NodeHeartbeats
from depthrate.storage.files.store import Store
from tests.support.here import await_that, invoke
from tests.support.launches import attempt_of, committed, job_options, states

SHORT_TASKS = Path(__file__).parents[2] / "support/short_tasks.py"
HANGS = """
import time
from pathlib import Path
import depthrate

@depthrate.task(version=1)
def law(*, depth: int, context):
    flag = Path(__file__).with_name(f"hung-{depth}")
    context.progress(3, 10)
    if depth == 3 and not flag.exists():
        flag.touch()
        while True:  # whatever anybody asks
            time.sleep(0.1)
    return {"metrics": [{"layer": depth, "nc1": 1.0 / depth}]}
"""


class Lab:
    def __init__(self, folder: Path):
        (folder / "law.py").write_text(HANGS)
        self.sweep, self.flag, self.store = folder / "s.yaml", folder / "hung-3", Store(str(folder / "store"))
        self.sweep.write_text(yaml.safe_dump({"name": "s", "task": "./law.py:law", "grid": {"depth": [2, 3, 4]}}))

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = ["run", str(self.sweep), "--store", self.store.url, "--workers", "1", *words]
        words = (sys.executable, "-m", "depthrate", *command)
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def call(self, *words: str) -> tuple[int, str]:
        return invoke(*words, "--store", self.store.url)

    def records(self) -> list[dict[str, object]]:
        return [json.loads(self.store.read(p)) for p in self.store.list("attempts") if p.endswith(".json")]

    def await_hang(self) -> int:
        await_that(self.flag.exists, 120)
        (record,) = (record for record in self.records() if record["state"] == "running")
        return int(record["pid"])


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.mark.slow
def test_hung_worker_is_killed(lab: Lab) -> None:
    driver = lab.start()
    pid = lab.await_hang()
    driver.kill()
    driver.communicate()
    code, output = lab.call("cancel", "s")
    assert code == 0 and f"pid {pid}, since 20" in output and "If it hangs: --force" in output
    again = lab.start()
    assert again.stdout is not None
    line = ""
    while "waiting for" not in line:
        line = again.stdout.readline()
        assert line, "the waiting launch prints the blocking attempt"
    assert f"pid {pid}" in line and "--force" not in line, "advice is for stalled attempts only"
    code, output = lab.call("cancel", "s", "--force")
    assert code == 0 and "ends within seconds" in output
    # the new launch may have begun other trials by then
    assert f"pid {pid}" in output or "2 running attempts on" in output
    again.communicate(timeout=120)
    await_that(lambda: not Path(f"/proc/{pid}").exists(), 60)
    assert any(record["error"] == "terminated by depthrate cancel --force" for record in lab.records())
    last = lab.start()
    output = last.communicate(timeout=200)[0]
    assert last.returncode == 0, output


def test_force_ends_a_launch_whose_worker_hears_nothing(lab: Lab) -> None:
    driver = lab.start()
    pid = lab.await_hang()
    assert lab.call("cancel", "s", "--force")[0] == 0
    output = driver.communicate(timeout=60)[0]
    assert driver.returncode in (130, 1), output
    await_that(lambda: not Path(f"/proc/{pid}").exists(), 30)


def test_stalled_pack_is_retried(lab: Lab) -> None:
    driver = lab.start("--stall-minutes", "0.1")
    output = driver.communicate(timeout=200)[0]
    assert driver.returncode == 0, output
    assert "failed" in states(lab.store)
    (failed,) = (record for record in lab.records() if record["state"] == "failed")
    assert "no progress for" in str(failed["error"])
    assert "step 3/10: terminated by --stall-minutes" in str(failed["error"])
    printed = lab.store.read(f"attempts/sweep=s/{failed['attempt_id']}.log").decode()
    assert "law.py" in printed and "in law" in printed, "where it hung"


@pytest.mark.slow
def test_stopped_worker_is_killed(lab: Lab) -> None:
    """The worker cannot terminate itself. A peer launch that waits for its trial continues too."""
    driver = lab.start("--stall-minutes", "0.2")
    pid = lab.await_hang()
    os.kill(pid, signal.SIGSTOP)
    second = lab.start("--stall-minutes", "0.2")
    output, waited = driver.communicate(timeout=250)[0], second.communicate(timeout=250)[0]
    assert driver.returncode == second.returncode == 0, output + waited
    (lost,) = (record for record in lab.records() if record["state"] == "lost")
    assert "no heartbeat for" in str(lost["error"]) and "terminated by --stall-minutes" in str(lost["error"])
    assert not Path(f"/proc/{pid}").exists() and len(committed(lab.store)) == 3


def test_status_names_what_comes_no_further(lab: Lab) -> None:
    trial_id = json.loads(lab.call("plan", str(lab.sweep), "--json")[1])["packs"][0]["trial_ids"][0]
    name = f"{time.strftime('%Y%m%dT%H%M%S')}_0123456789ab"
    record = attempt_of(name, trial_ids=[trial_id], host="node7", pid=4711)
    record.step, record.num_steps, record.progress_at = 10, 200, time.time() - 1200
    lab.store.write_format()
    record.write(lab.store)
    code, output = lab.call("status", str(lab.sweep))
    assert code == 0
    assert f"attempt {name} on node7, pid 4711" in output and "no progress for 20 min, at step 10/200" in output
    assert "depthrate cancel s --force, or launch with --stall-minutes" in output
    (stalled,) = json.loads(lab.call("status", str(lab.sweep), "--json")[1])[0]["stalled"]
    assert stalled["pid"] == 4711 and 1190 < stalled["stalled_s"] < 1300


def test_mark_ends_a_worker(folder: Store) -> None:
    write_cancel_mark(folder, "s")
    assert forced_attempts(read_cancel_mark(folder, "s")) == set() == forced_attempts(None)
    write_cancel_mark(folder, "s", ["a", "b"])
    assert forced_attempts(read_cancel_mark(folder, "s")) == {"a", "b"}


@pytest.mark.slow
@pytest.mark.parametrize("stall_s", [None, 2.0])
def test_missing_features_stall_nothing(
    folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stall_s: float | None
) -> None:
    """Meanwhile the previous trial waits for its commit."""
    ended = threading.Event()
    monkeypatch.setattr("depthrate.orchestrator.worker.heartbeat.os._exit", lambda code: ended.set())
    for name in ("MAX_COMMIT_DELAY_S", "COMMIT_LOCK_TIMEOUT_S"):
        monkeypatch.setattr(f"depthrate.orchestrator.worker.attempt_runner.{name}", 0.5)
    options = job_options(folder, stall_minutes=None if stall_s is None else stall_s / 60)
    params = [{"depth": depth, "folder": str(tmp_path)} for depth in (2, 3)]
    pack = PackTrials(pack_id="p", trial_ids=["t2", "t3"], params=params)
    job = AttemptSpec(attempt_id="a", sweep="s", task=f"{SHORT_TASKS}:lingers", **vars(pack), options=options)
    runs = threading.Thread(target=run_job, args=(job, StopFlag()))
    runs.start()
    try:
        if stall_s is None:
            none, later = {"heartbeat_at": 0.0}, time.time() + 4
            await_that(lambda: NodeHeartbeats(folder, "s").poll().get("a", none)["heartbeat_at"] >= later, 20)
        else:
            assert ended.wait(20), "it is not ended"
    finally:
        (tmp_path / "go").touch()
        runs.join()
    assert [depth for depth, _ in committed(folder)] == [2, 3]
