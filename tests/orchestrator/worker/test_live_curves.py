"""Live curves: written soon, small, and without delaying the training."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from depthrate.orchestrator.analysis.open_results import open_results, results_of
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.monitor.running_trials import RunningTrial, running_table
from depthrate.orchestrator.worker import live_curve_writer
from depthrate.orchestrator.worker.attempt_runner import run_job
from depthrate.orchestrator.worker.context import StopFlag
from depthrate.orchestrator.worker.live_curve_writer import MAX_VALUES_PER_FILE, LiveCurves
from depthrate.storage.attempts.live_curves import LiveReader
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.tables.states import AttemptState
from depthrate.tasks.loading import load_task
from tests.support.kill_rounds import children
from tests.support.launches import job_options, spec_of

ATTEMPT = "20260101T000000_00000000000a"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write at every call."""
    monkeypatch.setattr(live_curve_writer, "MIN_WRITE_INTERVAL_S", 0.0)


def job_of(store: Store, *trial_ids: str) -> AttemptSpec:
    options = job_options(store, checkpoint_seconds=60)
    params = [{"depth": number} for number in range(len(trial_ids))]
    return spec_of(ATTEMPT, task="collapse", trial_ids=list(trial_ids), params=params, options=options)


def live_of(store: Store, *trial_ids: str) -> LiveCurves:
    return LiveCurves(store, job_of(store, *trial_ids), {t: {"depth": n} for n, t in enumerate(trial_ids)})


def steps_of(store: Store, split: str = "train") -> list[int]:
    (pack,) = LiveReader(store).refresh()
    return [row["step"] for row in pack.rows.to_pylist() if row["split"] == split]


def test_rows_that_come_later_are_there_later(folder: Store, soon: None) -> None:
    rows: list[dict[str, Any]] = [{"step": 0, "split": "train", "loss": 1.0}]
    live = live_of(folder, "t1")
    live.follow({"t1": rows})
    live.write_if_due()
    assert steps_of(folder) == [0]
    rows += [{"step": 1, "loss": 0.5}, {"step": 1, "split": "test", "loss": 0.6}]
    live.write_if_due()
    assert (steps_of(folder), steps_of(folder, "test")) == ([0, 1], [1])


def test_a_pack_that_is_over_soon_writes_nothing(folder: Store) -> None:
    live = live_of(folder, "t1")
    live.follow({"t1": [{"step": 0, "loss": 1.0}]})
    live.write_if_due()
    live.close()
    assert folder.list("live") == {}


def test_what_has_not_changed_is_not_written_again(folder: Store, soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    live = live_of(folder, "t1")
    live.follow({"t1": [{"step": 0, "loss": 1.0}]})
    live.write_if_due()
    before = folder.stamps("live")
    live.write_if_due()
    assert folder.stamps("live") == before
    monkeypatch.setattr(
        live_curve_writer, "REWRITE_AFTER_S", 0.0
    )  # but so that a compaction does not take it for left behind
    live.write_if_due()
    assert folder.stamps("live") != before


def test_long_curves_are_thinned_evenly(folder: Store, soon: None) -> None:
    ids = [f"t{number}" for number in range(8)]
    live, curves = live_of(folder, *ids), {t: list[dict[str, Any]]() for t in ids}
    live.follow(curves)
    for part in range(10):
        for rows in curves.values():
            for step in range(2000 * part, 2000 * part + 2000):
                rows.append({"step": step, "split": "train", "loss": step / 7, "accuracy": 0.5, "lr": 0.1})
                if step % 100 == 0:
                    rows.append({"step": step, "split": "test", "loss": step / 7, "accuracy": 0.5, "lr": 0.1})
        live.write_if_due()
    (size,) = folder.list("live").values()
    assert size < 8 * MAX_VALUES_PER_FILE + 20_000
    (pack,) = LiveReader(folder).refresh()
    of_one = [r for r in pack.rows.to_pylist() if r["trial_id"] == "t3"]
    train, test = ([r["step"] for r in of_one if r["split"] == split] for split in ("train", "test"))
    assert 100 <= len(train) <= MAX_VALUES_PER_FILE // (16 * 5) + 1 and train[-1] == 19_999
    gaps = {b - a for a, b in itertools.pairwise(train[:-1])}
    assert len(gaps) == 1
    assert len(test) >= 100  # what is logged seldom is not thinned because something else is logged often


def test_committed_trials_leave_the_file(folder: Store, soon: None) -> None:
    live = live_of(folder, "t1", "t2")
    live.follow({"t1": [{"step": 0, "loss": 1.0}], "t2": [{"step": 3, "loss": 1.0}]})
    live.write_if_due()
    live.forget({"t1"})
    live.follow({"t2": [{"step": 3, "loss": 1.0}, {"step": 4, "loss": 1.0}]})
    live.write_if_due()
    assert steps_of(folder) == [3, 4]
    live.forget({"t2"})
    assert folder.list("live") == {}


def test_after_the_end_nothing_comes_back(folder: Store, soon: None) -> None:
    rows: list[dict[str, Any]] = []
    live, is_over = live_of(folder, "t1"), threading.Event()
    live.follow({"t1": rows})

    def go_on() -> None:
        while not is_over.is_set():
            rows.append({"step": len(rows), "loss": 1.0})
            live.write_if_due()

    thread = threading.Thread(target=go_on)
    thread.start()
    while not folder.list("live"):
        time.sleep(0.01)
    live.close()
    time.sleep(0.1)
    is_over.set()
    thread.join()
    assert folder.list("live") == {}


@pytest.mark.parametrize("wrong", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("what is this")])
def test_refusing_store_warns_once(
    folder: Store, soon: None, wrong: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*inputs: object, **more: object) -> None:
        raise wrong

    rows = [{"step": 0, "loss": 1.0}]
    live = live_of(folder, "t1")
    live.follow({"t1": rows})
    monkeypatch.setattr(Store, "write", refuse)
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            rows.append({"step": step + 1, "loss": 1.0})
            live.write_if_due()
        live.close()
    assert caplog.text.count("live curves not written") == 1


def test_rows_of_any_kind_harm_nothing(folder: Store, soon: None) -> None:
    live = live_of(folder, "t1")
    rows: list[Any] = [{"step": None, "loss": "high", "list": [1.0], 3: 4.0}, {"step": 2.0, "loss": None, "list": None}]
    live.follow({"t1": rows, "unknown": [{"step": 1, "loss": 1.0}]})
    live.write_if_due()
    assert steps_of(folder) == [0, 2]


LOOP = """
import os
import time
import depthrate
import torch

@depthrate.task(version=1)
def slow(*, depth: int, hold: str, seed: int = 0, steps: int = 120, context):
    torch.manual_seed(seed)
    model = torch.nn.Linear(depth, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with context.training(model, optimizer) as run:
        for step in run.steps(steps):
            loss = (model(torch.ones(depth)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(step, loss=loss, accuracy=step / steps)
            time.sleep(0.03)
            while step == 80 and os.path.exists(hold):
                time.sleep(0.1)
    return {"metrics": [{"layer": depth, "nc1": 1.0 / depth}], "curves": run.curves}
"""


def await_live(store: Path, launch: subprocess.Popen[str], not_of: str = "") -> tuple[Any, ...]:
    """Wait until the store has 81 rows of one running attempt, and return its live curves."""
    deadline = time.monotonic() + 150
    query = "select trial_id, attempt_id, max(step), count(*), min(depth) from live group by all"
    while time.monotonic() < deadline:
        rows = results_of(Store(str(store))).sql(query).fetchall() if (store / "live").exists() else []
        if rows and rows[0][1] != not_of and rows[0][2] == 80:
            (row,) = rows
            return row
        assert launch.poll() is None, launch.communicate()[0]
        time.sleep(0.5)
    raise AssertionError("no live rows")


@pytest.mark.slow
def test_unwritable_curves_commit(folder: Store, soon: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    task = load_task(str(tmp_path / "loop.py") + ":slow")
    folder.write("live", b"no folder can be here")
    params = task.schema.fill({"depth": 2, "hold": ""})
    job = replace(job_of(folder, "t1"), task=str(tmp_path / "loop.py") + ":slow", params=[params])
    attempt = run_job(job, StopFlag())
    assert (attempt.state, attempt.error) == (AttemptState.DONE, None)
    results = results_of(folder)
    assert results.sql("select count(*) from curves").fetchall() == [(120,)]
    assert results.sql("select count(*) from live").fetchall() == [(0,)]
    assert caplog.text.count("live curves") == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_asked_while_it_runs_killed_and_run_again(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    (hold := tmp_path / "hold").touch()
    spec = {"name": "s", "task": "./loop.py:slow", "params": {"hold": str(hold)}, "grid": {"depth": [3]}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(spec))
    store, command = tmp_path / "store", [sys.executable, "-m", "depthrate"]
    run = [*command, "run", str(tmp_path / "s.yaml"), "--store", str(store), "--checkpoint-seconds", "1"]
    launch = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    trial_id, first, _, rows, depth = await_live(store, launch)
    assert (rows, depth) == (81, 3)
    output = subprocess.run([*command, "status", "s", "--store", str(store)], capture_output=True, text=True).stdout
    assert trial_id in output and "accuracy" in output
    report = [*command, "report", "s", "--store", str(store), "-o", str(tmp_path / "r.html")]
    assert subprocess.run(report, capture_output=True).returncode == 0
    assert "No training curves yet" not in (tmp_path / "r.html").read_text()
    for pid in children(launch.pid):
        if b"orchestrator.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    _, second, _, rows, _ = await_live(store, launch, not_of=first)
    assert rows == 81  # what came before the checkpoint is shown too
    files = Store(str(store))
    compact(files)
    assert not verify(files).findings
    assert LiveReader(files).refresh(), "a compaction does not touch running attempts"
    hold.unlink()
    output = launch.communicate(timeout=200)[0]
    assert launch.returncode == 0, output
    results = open_results(str(store))
    assert files.list("live") == {}
    assert results.sql("select count(*) from live").fetchall() == [(0,)]
    assert results.sql("select count(*), count(distinct step) from curves").fetchall() == [(120, 120)]
    assert results.sql("select count(*) from results").fetchall() == [(1,)]
    assert {row[0] for row in results.sql("select attempt_id from trials").fetchall()} == {second}


def test_trials_of_several_sweeps():
    last = {"train": {"step": 3, "loss": 0.5}}
    inputs = [("a", {"depth": 2, "width": 8}), ("a", {"depth": 3, "width": 8}), ("b", {"width": 9, "epochs": 5})]
    trials = [RunningTrial(sweep, f"t{place}", params, 0.0, last) for place, (sweep, params) in enumerate(inputs)]
    rows = [["t0", "a", 3, 0.5, 2], ["t1", "a", 3, 0.5, 3], ["t2", "b", 3, 0.5, None]]
    assert running_table(trials) == (["running", "sweep", "step", "loss", "depth"], rows)
    assert running_table(trials[:2])[0] == ["running", "step", "loss", "depth"]
