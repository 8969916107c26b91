"""The Ray executor on real Ray: the same numbers, the same retries, and nodes that go away."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.driver import Driver, Outcome
from orchestrator.executor import LaunchOptions
from orchestrator.place import PlaceError, open_place
from orchestrator.plan import check_sweep, make_plan
from storage.files import Files
from storage.query import Results, open_results
from sweeps.sweep import Sweep, sweep_of_spec

ray = pytest.importorskip("ray", reason="needs pip install 'depthrate[ray]'")
pytest.importorskip("ray.tune", reason="needs pip install 'depthrate[ray]'")
from ray.cluster_utils import Cluster  # noqa: E402

from orchestrator.ray_executor import RayError, RayExecutor, Session, check_versions, kind_of  # noqa: E402

OWN_TASKS = Path(__file__).parent / "own_tasks.py"
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SOON = {  # a node that died is noticed in seconds
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


def test_the_same_numbers_as_local(tmp_path: Path) -> None:
    """The command line with a Ray of its own on 127.0.0.1, which leaves nothing behind: a grid, and a search in it."""
    search = {"params": {"lr": {"low": 0.01, "high": 1, "log": True}}, "objective": "nc1", "trials": 4, "batch": 2}
    params = {"arch": "rn1", "samples_per_class": 5, "steps": 40, "width": 16}
    spec = {"name": "s", "task": "collapse", "params": params, "grid": {"depth": [2, 3]}, "search": search}
    sweep = tmp_path / "s.yaml"
    sweep.write_text(yaml.safe_dump(spec))
    stores = {}
    for executor in ("ray", "local"):
        stores[executor] = str(tmp_path / executor)
        arguments = ["run", str(sweep), "--store", stores[executor], "--executor", executor, "--workers", "1"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert not ray.is_initialized()
    for table in ("metrics", "curves"):
        query = f"select * exclude (attempt_id) from {table} order by trial_id, step" + ", layer" * (table == "metrics")
        ours, theirs = (open_results(stores[e]).sql(query).to_arrow_table() for e in ("ray", "local"))
        assert ours.num_rows and ours.equals(theirs), table


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes on this machine, with one CPU each."""
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": SOON, "object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args=head)
    made.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    os.environ["RAY_ADDRESS"] = made.address
    yield made
    ray.shutdown()
    made.shutdown()
    del os.environ["RAY_ADDRESS"]


@pytest.fixture(scope="module")
def session(cluster: Cluster) -> Iterator[Session]:
    made = Session(address=cluster.address)
    made.is_ours = False  # the fixture closes it, not the first executor
    yield made


def drive(
    files: Files, session: Session, task: str, *, watch: Any = lambda driver, progress: None, **spec: Any
) -> Outcome:
    checked = check_sweep(sweep_of_spec({"name": "s", "task": f"{OWN_TASKS}:{task}", **spec}))
    plan = make_plan(checked, files, workers=2)
    executor = RayExecutor(session, workers=2)
    options = LaunchOptions(store=files.root, data="", device="cpu", checkpoint_s=30, git_sha=None, git_dirty=None)
    driver = Driver(plan, files, executor, options, lambda progress: watch(driver, progress))
    try:
        return driver.run()
    finally:
        executor.close()


def committed(files: Files) -> list[tuple[Any, ...]]:
    return Results(files).sql("select depth, nc1 from results order by depth, nc1").fetchall()


def raw_rows(files: Files) -> int:
    return sum(pq.read_metadata(files.full_path(path)).num_rows for path in files.list("trials"))


def states(files: Files) -> list[str]:
    return sorted(row[0] for row in Results(files).sql("select state from attempts").fetchall())


def test_both_nodes_have_our_versions(session: Session) -> None:
    assert check_versions() == [] and session.resources()["CPU"] == 2


def test_many_packs_on_two_nodes(folder: Files, session: Session) -> None:
    outcome = drive(folder, session, "power_law", grid={"depth": list(range(1, 9))}, params={"exponent": 1.0})
    assert not outcome.failures and committed(folder) == [(depth, 1 / depth) for depth in range(1, 9)]
    assert raw_rows(folder) == 8


def test_failures_are_treated_as_everywhere(folder: Files, session: Session) -> None:
    outcome = drive(folder, session, "fails", grid={"depth": [2, 3, 4]})
    assert [depth for depth, _ in committed(folder)] == [2, 4]
    assert outcome.failures[0].error == "RuntimeError: depth 3 is cursed" and states(folder).count("failed") == 2


def test_out_of_memory_halves_the_pack(folder: Files, session: Session) -> None:
    outcome = drive(folder, session, "hungry", params={"depth": 2}, seeds=6)
    assert not outcome.failures and len(committed(folder)) == 6


def test_a_killed_worker_resumes_from_its_checkpoint(folder: Files, session: Session, tmp_path: Path) -> None:
    outcome = drive(folder, session, "dies_once", params={"depth": 2, "flag": str(tmp_path / "flag")})
    assert not outcome.failures and committed(folder) == [(2, 5.0)] and states(folder) == ["done", "lost"]


def test_asked_to_stop_it_saves_and_ends(folder: Files, session: Session) -> None:
    def stop_when_it_runs(driver: Driver, progress: Any) -> None:
        if any(state.get("step") for _, state in progress.packs_running):
            driver.stop()

    outcome = drive(folder, session, "slow", grid={"depth": list(range(1, 20))}, watch=stop_when_it_runs)
    assert outcome.interrupted and "interrupted" in states(folder) and raw_rows(folder) < 19
    assert not drive(folder, session, "slow", grid={"depth": [1]}).failures, "the next launch is not asked to stop"


def test_a_node_that_dies_costs_nothing_but_time(folder: Files, session: Session, cluster: Cluster) -> None:
    """The second node is killed while both run a pack; its pack runs again on the first."""
    doomed = next(node for node in cluster.worker_nodes)
    killed: list[float] = []

    def kill_when_both_run(driver: Driver, progress: Any) -> None:
        if not killed and sum(bool(state.get("step")) for _, state in progress.packs_running) == 2:
            killed.append(time.monotonic())
            cluster.remove_node(doomed, allow_graceful=False)

    outcome = drive(folder, session, "slow", grid={"depth": [1, 2, 3, 4, 5, 6]}, watch=kill_when_both_run)
    assert killed and not outcome.failures
    assert [depth for depth, _ in committed(folder)] == [1, 2, 3, 4, 5, 6] and raw_rows(folder) == 6
    kinds = Results(folder).sql("select error_kind, error from attempts where state = 'lost'").fetchall()
    assert [kind for kind, _ in kinds] == ["node_lost"], kinds


def test_kinds_of_failures() -> None:
    assert kind_of(ray.exceptions.OutOfMemoryError("x")) == "out_of_memory"
    assert kind_of(ray.exceptions.NodeDiedError("x")) == "node_lost"
    assert kind_of(RuntimeError("x")) == "worker_lost"


def test_what_does_not_fit_is_refused(folder: Files) -> None:
    sweep = Sweep(name="s", task="collapse")
    with pytest.raises(PlaceError, match="--address and --packs-per-gpu go with --executor ray"):
        open_place("local", device="cpu", workers=1, cluster=None, sweep=sweep, files=folder, address="auto")
    with pytest.raises(PlaceError, match="a Ray cluster is given by --address"):
        open_place("ray", device="cpu", workers=1, cluster="x.toml", sweep=sweep, files=folder)
    with pytest.raises(PlaceError, match="run on a node, with auto"):
        open_place("ray", device="cpu", workers=1, cluster=None, sweep=sweep, files=folder, address="ray://x:10001")
    assert issubclass(RayError, ValueError)
