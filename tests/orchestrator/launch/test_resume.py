"""Killed, stopped and concurrent launches: no trial is lost or doubled, and results equal an uninterrupted run's.

`python -m tests.support.kill_rounds --rounds 300` is the long form of the kills.
"""

import signal
from pathlib import Path

import pytest
import yaml

from depthrate.orchestrator.analysis.open_results import open_results
from depthrate.storage.query.results import Results
from tests.support.here import await_that
from tests.support.kill_rounds import FAULTS, SWEEPS, children, raw_rows, run_rounds, start


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resume") / "train.yaml"
    path.write_text(yaml.safe_dump(SWEEPS["train"]))
    return path


@pytest.fixture(scope="module")
def quiet(sweep: Path) -> Results:
    """Return the results of an uninterrupted run."""
    store = str(sweep.parent / "quiet")
    launch = start(sweep, store)
    output = launch.communicate()[0]
    assert launch.returncode == 0, output
    return open_results(store)


def assert_equal(results: Results, quiet: Results) -> None:
    assert not results.problems
    assert results.sql("select count(*), count(distinct trial_id) from trials").fetchall() == [(9, 9)]
    for table, order in (("metrics", "trial_id, step, layer"), ("curves", "trial_id, step")):
        query = f"select * exclude (attempt_id) from {table} order by {order}"
        ours, theirs = results.sql(query).to_arrow_table(), quiet.sql(query).to_arrow_table()
        assert ours.num_rows == theirs.num_rows and ours.equals(theirs), table


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_killed_at_random_moments_and_run_again(name: str, tmp_path: Path) -> None:
    counts = run_rounds(tmp_path, 3, seed=0, names=(name,))
    assert counts["kills"] == 3 and counts["launches"] > counts["sweeps"]
    assert not {fault: counts[fault] for fault in FAULTS if counts[fault]}


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_ctrl_c_checkpoints_and_says_how_to_resume(sweep: Path, quiet: Results, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    launch = start(sweep, store)
    await_that(lambda: list(Path(store).glob("checkpoints/*/pack.ckpt")) or launch.poll() is not None, 300)
    launch.send_signal(signal.SIGINT)
    output = launch.communicate(timeout=60)[0]
    assert launch.returncode == 130
    assert "saves a checkpoint" in output and f"Resume: depthrate run {sweep} --store {store}" in output
    assert open_results(store).sql("select count(*) from attempts where state = 'interrupted'").fetchall()[0][0] >= 1
    again = start(sweep, store)
    output = again.communicate()[0]
    assert again.returncode == 0, output
    assert_equal(open_results(store), quiet)
    assert raw_rows(store) == 9


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_workers_stop_when_their_driver_is_killed(sweep: Path, quiet: Results, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    launch = start(sweep, store)
    await_that(lambda: list(Path(store).glob("checkpoints/*/pack.ckpt")) or launch.poll() is not None, 300)
    workers = children(launch.pid)
    assert workers
    launch.kill()
    launch.communicate()
    await_that(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 30)
    again = start(sweep, store)
    assert again.communicate() and again.returncode == 0
    assert_equal(open_results(store), quiet)
