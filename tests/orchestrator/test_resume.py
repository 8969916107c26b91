"""Kill it, stop it, launch it twice: nothing is lost, nothing is doubled, and the numbers are those of a quiet run.

`DEPTHRATE_KILLS=20 pytest tests/orchestrator/test_resume.py` is the long form.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from depthrate.orchestrator.results import open_results
from depthrate.storage.query import Results

SPEC = {
    "name": "long",
    "task": "collapse",
    "params": {"arch": "rn1", "samples_per_class": 5, "steps": 2500, "width": 16, "batch_size": 20},
    "grid": {"depth": [2, 3, 5]},
    "seeds": 3,
}
KILLS = int(os.environ.get("DEPTHRATE_KILLS", "3"))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resume") / "long.yaml"
    path.write_text(yaml.safe_dump(SPEC))
    return path


@pytest.fixture(scope="module")
def quiet(sweep: Path) -> Results:
    """The results of an uninterrupted run."""
    store = str(sweep.parent / "quiet")
    launch = start(sweep, store)
    output = launch.communicate()[0]
    assert launch.returncode == 0, output
    return open_results(store)


def start(sweep: Path, store: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "depthrate", "run", str(sweep), "--store", store, "--checkpoint-seconds", "0.2"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.is_dir():
        return []
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def assert_equal(results: Results, quiet: Results) -> None:
    assert not results.problems
    assert results.sql("select count(*), count(distinct trial_id) from trials").fetchall() == [(9, 9)]
    for table, order in (("metrics", "trial_id, step, layer"), ("curves", "trial_id, step")):
        query = f"select * exclude (attempt_id) from {table} order by {order}"
        ours, theirs = results.sql(query).to_arrow_table(), quiet.sql(query).to_arrow_table()
        assert ours.num_rows == theirs.num_rows and ours.equals(theirs), table


def raw_rows(store: str) -> int:
    """Rows of all trials files as they lie there: the view hides a trial that was committed twice."""
    return sum(pq.read_metadata(path).num_rows for path in Path(store).glob("trials/*/*.parquet"))


def steps_kept(store: str) -> int:
    """Bytes of checkpoints and commits: grows as the sweep gets on."""
    return sum(
        path.stat().st_size for path in Path(store).rglob("*") if path.is_file() and "attempts" not in path.parts
    )


@pytest.mark.timeout(3000)
@pytest.mark.slow
def test_killed_at_random_moments_and_run_again(sweep: Path, quiet: Results, tmp_path: Path) -> None:
    store, rng, kills = str(tmp_path / "store"), random.Random(0), 0
    while True:
        launch = start(sweep, store)
        if kills < KILLS:
            before = steps_kept(store)
            while launch.poll() is None and steps_kept(store) == before:  # let it get somewhere, then any moment
                time.sleep(0.02)
            time.sleep(rng.uniform(0, 1.0))
            if launch.poll() is None:
                for pid in [*children(launch.pid), launch.pid]:
                    os.kill(pid, signal.SIGKILL)
                kills += 1
        launch.communicate()
        if launch.returncode == 0:
            break
        assert launch.returncode == -signal.SIGKILL
    assert kills >= min(KILLS, 3), "the sweep ended before it was killed often enough"
    results = open_results(store)
    assert_equal(results, quiet)
    assert raw_rows(store) == 9, "a trial was committed twice"
    assert results.sql("select count(*) from attempts where state = 'lost'").fetchall()[0][0] >= 1
    assert not (Path(store) / "checkpoints").exists() or not list((Path(store) / "checkpoints").rglob("*.ckpt"))


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_ctrl_c_checkpoints_and_says_how_to_resume(sweep: Path, quiet: Results, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    launch = start(sweep, store)
    while not list(Path(store).glob("checkpoints/*/pack.ckpt")):
        assert launch.poll() is None
        time.sleep(0.02)
    launch.send_signal(signal.SIGINT)
    output = launch.communicate(timeout=60)[0]
    assert launch.returncode == 130
    assert "saves a checkpoint" in output and f"resume: depthrate run {sweep} --store {store}" in output
    assert open_results(store).sql("select count(*) from attempts where state = 'interrupted'").fetchall()[0][0] >= 1
    again = start(sweep, store)
    output = again.communicate()[0]
    assert again.returncode == 0, output
    assert_equal(open_results(store), quiet)
    assert raw_rows(store) == 9


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_two_launches_at_once(sweep: Path, quiet: Results, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    launches = [start(sweep, store), start(sweep, store)]
    outputs = [launch.communicate()[0] for launch in launches]
    assert [launch.returncode for launch in launches] == [0, 0], outputs
    assert_equal(open_results(store), quiet)


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_workers_stop_when_their_driver_is_killed(sweep: Path, quiet: Results, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    launch = start(sweep, store)
    while not list(Path(store).glob("checkpoints/*/pack.ckpt")):
        assert launch.poll() is None
        time.sleep(0.02)
    workers = children(launch.pid)
    assert workers
    launch.kill()
    launch.communicate()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "an orphaned worker goes on"
        time.sleep(0.1)
    again = start(sweep, store)
    assert again.communicate() and again.returncode == 0
    assert_equal(open_results(store), quiet)
