"""The suite that every executor has to pass: worker processes, Ray on one node and on two, a real SLURM."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from depthrate.orchestrator.analysis.open_results import open_results
from depthrate.orchestrator.attempts.options import LaunchOptions
from depthrate.orchestrator.attempts.record import read_attempts
from depthrate.orchestrator.executors.base import Executor, ExecutorRequest
from depthrate.orchestrator.executors.local import LocalExecutor
from depthrate.orchestrator.executors.registry import open_executor
from depthrate.orchestrator.launch.driver import Driver
from depthrate.orchestrator.launch.launch_plan import Plan, check_sweep, make_plan
from depthrate.orchestrator.launch.outcome import Outcome
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState
from depthrate.sweeps.load import sweep_of_spec
from depthrate.sweeps.spec import SweepSpec
from tests.support.here import printed
from tests.support.launches import committed, job_options, raw_rows, states, write_missing_format

OWN_TASKS = Path(__file__).parents[2] / "support/own_tasks.py"
KINDS = (
    "local",
    pytest.param("ray_two_nodes", marks=pytest.mark.ray),
    pytest.param("slurm", marks=pytest.mark.slurm),
)
LOCAL_RAY = ("test_every_trial_is_committed_once", "test_grid_search_is_executor_independent")
"""What a Ray of one node has to pass too: it differs from one of two nodes in how it begins and ends."""
ignored = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("FutureWarning", "ResourceWarning")]
pytestmark = [pytest.mark.timeout(300), *ignored]


class ComputeTarget:
    """Machines of one kind: two workers, one task at a time each."""

    options: Sequence[str]
    """Options for `depthrate run`."""
    num_nodes = 1
    """Number of distinct nodes."""
    goes_on = False
    """True if packs keep running when their driver exits."""

    def plan(self, sweep: SweepSpec, store: Store) -> Plan:
        """Return the packs of a sweep that are not committed."""
        return make_plan(check_sweep(sweep), store, workers=2)

    def executor(self, plan: Plan) -> Executor:
        """Return a new executor on these machines."""
        raise NotImplementedError

    def disturb(self, pid: int) -> None:
        """Kill a process that runs packs, by its own process ID, without a warning."""
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End the machines."""


class LocalMachines(ComputeTarget):
    """Worker processes."""

    options = ("--executor", "local")

    def executor(self, plan: Plan) -> Executor:
        return LocalExecutor(2)


class RayMachines(ComputeTarget):
    """A local Ray, or two nodes, one of which is lost."""

    def __init__(self, two_nodes: bool) -> None:
        pytest.importorskip("ray.tune", reason="needs pip install 'depthrate[ray]'")
        from ray.cluster_utils import Cluster

        from depthrate.orchestrator.executors.ray.session import Session

        self._cluster: Any = None
        if two_nodes:
            soon = {  # a node that died is noticed in seconds
                "health_check_initial_delay_ms": 1000,
                "health_check_period_ms": 500,
                "health_check_timeout_ms": 1000,
                "health_check_failure_threshold": 3,
            }
            head = {"num_cpus": 1, "include_dashboard": False, "_system_config": soon}
            self._cluster = Cluster(initialize_head=True, head_node_args=head | {"object_store_memory": 80 * 2**20})
            self._add_node()
            self.session = Session(address=self._cluster.address).connect()
            self.options = ["--executor", "ray", "--address", self._cluster.address]
        else:
            self.session = Session(address=None, workers=2).connect()
            self.options = ["--executor", "ray", "--workers", "2"]
        self.session.is_connected = False  # closed here, not by the first executor

    def executor(self, plan: Plan) -> Executor:
        from depthrate.orchestrator.executors.ray.executor import RayExecutor

        return RayExecutor(self.session, workers=2)

    def disturb(self, pid: int) -> None:
        if self._cluster is None:
            super().disturb(pid)
        else:
            self._cluster.remove_node(next(iter(self._cluster.worker_nodes)), allow_graceful=False)
            self._add_node()

    def close(self) -> None:
        self.session.is_connected = True
        self.session.close()
        if self._cluster is not None:
            self._cluster.shutdown()

    def _add_node(self) -> None:
        self._cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)


class SlurmMachines(ComputeTarget):
    """Two jobs at a time on a cluster of four nodes."""

    num_nodes = 4
    goes_on = True

    def __init__(self, lab: Any, folder: Path) -> None:
        self._lab = lab
        self._environment = pytest.MonkeyPatch()
        for name, value in lab.environment.items():
            self._environment.setenv(name, value)
        profile = folder / "cluster.toml"
        profile.write_text("mem_gb = 0.8\nwalltime_min = 10\narray_parallelism = 2\njob_min = 0\n")
        self.options = ["--executor", "slurm", "--cluster", str(profile)]

    def plan(self, sweep: SweepSpec, store: Store) -> Plan:
        options = LaunchOptions(executor="slurm", device="cpu", executor_options={"cluster": self.options[-1]})
        opened = open_executor(ExecutorRequest(sweep=sweep, store=store, options=options))
        assert isinstance(opened, Executor)
        self._executor = opened
        return make_plan(check_sweep(sweep), store, workers=2, submitted=opened.submitted())

    def executor(self, plan: Plan) -> Executor:
        return self._executor

    def close(self) -> None:
        self._environment.undo()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the machines of each test."""
    if "machines" in metafunc.fixturenames:
        local_ray = [pytest.param("ray", marks=pytest.mark.ray)] if metafunc.function.__name__ in LOCAL_RAY else []
        metafunc.parametrize("machines", [*KINDS, *local_ray], indirect=True, scope="module")


@pytest.fixture(scope="module")
def machines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComputeTarget]:
    if request.param == "local":
        made: ComputeTarget = LocalMachines()
    elif request.param == "slurm":
        made = SlurmMachines(request.getfixturevalue("lab"), tmp_path_factory.mktemp("cluster"))
    else:
        made = RayMachines(two_nodes=request.param == "ray_two_nodes")
    yield made
    made.close()


Watch = Callable[[Driver, Any], None]


def drive(
    machines: ComputeTarget,
    store: Store,
    task: str,
    watch: Watch = lambda driver, progress: None,
    path: Path = OWN_TASKS,
    **spec: Any,
) -> Outcome:
    plan = machines.plan(sweep_of_spec({"name": "s", "task": f"{path}:{task}", **spec}), store)
    executor = machines.executor(plan)
    write_missing_format(store)
    driver = Driver(plan, store, executor, job_options(store), lambda progress: watch(driver, progress))
    try:
        return driver.run()
    finally:
        executor.close()


@pytest.mark.slow
def test_every_trial_is_committed_once(machines: ComputeTarget, folder: Store) -> None:
    depths = list(range(1, 9))
    outcome = drive(machines, folder, "power_law", grid={"depth": depths}, params={"exponent": 1.0})
    assert not outcome.failures and committed(folder) == [(depth, 1 / depth) for depth in depths]
    assert raw_rows(folder) == 8 and folder.list("checkpoints") == {}


BESIDE = {
    "my_task.py": "import depthrate\nimport slurm, storage, tasks.laws\n\n@depthrate.task(version=1)\n"
    "def law(*, depth: int):\n    import model\n    value = model.law(depth) + storage.ONE + slurm.ONE\n"
    "    return {'metrics': [{'layer': depth, 'nc1': value}]}\n",
    "model.py": "from tasks.laws import law\n",
    "storage.py": "ONE = 1.0\n",
    "slurm.py": "ONE = 1.0\n",
    "tasks/__init__.py": "",
    "tasks/laws.py": "def law(depth): return 1 / depth\n",
}
"""A task file and its imports, some of which have the names of depthrate's packages."""


@pytest.mark.slow
def test_a_task_imports_what_lies_beside_its_file(machines: ComputeTarget, folder: Store, tmp_path: Path) -> None:
    for name, content in BESIDE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    outcome = drive(machines, folder, "law", path=tmp_path / "my_task.py", grid={"depth": [1, 2]})
    assert not outcome.failures, outcome.failures
    assert committed(folder) == [(1, 3.0), (2, 2.5)]


@pytest.mark.slow
def test_exception_runs_on_two_nodes(machines: ComputeTarget, folder: Store) -> None:
    outcome = drive(machines, folder, "fails", grid={"depth": [2, 3, 4]})
    assert [depth for depth, _ in committed(folder)] == [2, 4] and raw_rows(folder) == 2
    (failure,) = outcome.failures
    assert failure.error == "RuntimeError: depth 3 is cursed" and len(failure.pack.trials) == 1
    traced = "select * from attempts where state = 'failed' and traceback like '%is cursed%trial %'"
    query = "select count(*), count(distinct host) from attempts where state = 'failed'"
    num_tried = min(2, machines.num_nodes)
    results = open_results(folder.root)
    assert results.sql(query).fetchall() == [(num_tried, num_tried)]
    assert len(results.sql(traced).fetchall()) == num_tried


@pytest.mark.slow
def test_out_of_memory_halves_the_pack(machines: ComputeTarget, folder: Store) -> None:
    outcome = drive(machines, folder, "hungry", params={"depth": 2}, seeds=5)
    assert not outcome.failures and [value for _, value in committed(folder)] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_the_kernel_ends_workers_first(machines: ComputeTarget, folder: Store) -> None:
    with open("/proc/self/oom_score_adj") as file:
        launch = int(file.read())
    assert not drive(machines, folder, "oom_score", grid={"depth": [1]}).failures
    ((_, score),) = committed(folder)
    assert score >= 500 > launch


@pytest.mark.slow
def test_a_killed_worker_resumes_from_its_checkpoint(machines: ComputeTarget, folder: Store, tmp_path: Path) -> None:
    outcome = drive(machines, folder, "dies_once", params={"depth": 2, "flag": str(tmp_path / "flag")})
    assert not outcome.failures and committed(folder) == [(2, 5.0)] and states(folder) == ["done", "lost"]
    ((error,),) = open_results(folder.root).sql("select error from attempts where state = 'lost'").fetchall()
    assert isinstance(machines, RayMachines | SlurmMachines) or "killed by signal 9" in error
    assert folder.list("checkpoints") == {}


@pytest.mark.slow
def test_kills_cost_only_time(machines: ComputeTarget, folder: Store, tmp_path: Path) -> None:
    """A worker, or of two nodes one, goes away while two packs run."""
    gate = tmp_path / "gate"
    killed: list[float] = []

    def kill_when_two_run(driver: Driver, progress: Any) -> None:
        if (
            killed
            or len(progress.packs_running) < 2
            or not any(state.get("step") for _, state in progress.packs_running)
        ):
            return
        records = read_attempts(folder, "s", driver.executor.running().values()).values()
        alive = [record["pid"] for record in records if record["state"] is AttemptState.RUNNING]
        if len(alive) == 2:
            killed.append(time.monotonic())
            machines.disturb(alive[0])
            gate.touch()

    gated = {"grid": {"depth": [1, 2, 3, 4]}, "params": {"gate": str(gate)}}
    outcome = drive(machines, folder, "held", watch=kill_when_two_run, **gated)
    assert killed and not outcome.failures
    assert [depth for depth, _ in committed(folder)] == [1, 2, 3, 4] and raw_rows(folder) == 4
    trial_states = states(folder)  # on a busy machine Ray may take the other node for dead too
    assert trial_states[:4] == ["done"] * 4
    assert len(trial_states) > 4
    assert set(trial_states[4:]) <= {"lost", "interrupted"}


@pytest.mark.slow
def test_launch_resumes_a_stopped_one(machines: ComputeTarget, folder: Store, tmp_path: Path) -> None:
    def stop_when_one_runs(driver: Driver, progress: Any) -> None:
        if any(state.get("step") for _, state in progress.packs_running):
            driver.stop()

    gate = tmp_path / "gate"
    gated = {"grid": {"depth": [1, 2, 3, 4]}, "params": {"gate": str(gate)}}
    outcome = drive(machines, folder, "held", watch=stop_when_one_runs, **gated)
    assert outcome.interrupted and raw_rows(folder) == 0
    assert machines.goes_on or "interrupted" in states(folder)
    gate.touch()
    assert not drive(machines, folder, "held", **gated).failures and raw_rows(folder) == 4
    assert len(committed(folder)) == 4 and (not machines.goes_on or "interrupted" not in states(folder))


SEARCH = {"params": {"lr": {"low": 0.01, "high": 1, "log": True}}, "objective": "nc1", "trials": 4, "batch": 2}
TRAINED = {
    "name": "s",
    "task": "collapse",
    "grid": {"depth": [2, 3]},
    "search": SEARCH,
    "params": {"arch": "rn1", "samples_per_class": 5, "steps": 40, "width": 16},
}


def numbers(store: str, table: str) -> Any:
    order = "trial_id, step" + ", layer" * (table == "metrics")
    return open_results(store).sql(f"select * exclude (attempt_id) from {table} order by {order}").to_arrow_table()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with what one local worker makes of a search in a grid."""
    return run_search((), tmp_path_factory.mktemp("reference"))


def run_search(options: Sequence[str], folder: Path) -> str:
    (folder / "s.yaml").write_text(yaml.safe_dump(TRAINED))
    printed("run", folder / "s.yaml", "--store", folder / "store", *options)
    return str(folder / "store")


@pytest.mark.slow
def test_grid_search_is_executor_independent(machines: ComputeTarget, reference: str, tmp_path: Path) -> None:
    """Proposals, measurements and training curves, bit for bit, through the command line."""
    pytest.importorskip("optuna", reason="needs pip install 'depthrate[search]'")
    store = run_search(machines.options, tmp_path)
    for table in ("metrics", "curves"):
        ours, theirs = numbers(store, table), numbers(reference, table)
        assert ours.num_rows and ours.equals(theirs), table
    assert json.dumps(sorted(Store(store).list("searches"))) != "[]"
