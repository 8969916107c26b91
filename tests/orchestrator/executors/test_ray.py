"""Features of the Ray executor: code sent to bare nodes, GPU shares, ASHA, and rejected options."""

import os
import stat
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.attempts.options import LaunchOptions
from depthrate.orchestrator.executors.base import ExecutorRequest
from depthrate.orchestrator.executors.errors import ExecutorError
from depthrate.orchestrator.executors.registry import open_executor
from depthrate.orchestrator.launch.outcome import Outcome
from depthrate.storage.attempts.searches import SearchRecords
from depthrate.storage.files.store import Store
from depthrate.sweeps.spec import SweepSpec
from tests.support.here import printed, refused
from tests.support.launches import drive, plan_of
from tests.support.ray_nodes import await_nodes
from tests.support.search_tasks import ASHA_SEARCH

ray = pytest.importorskip("ray", reason="needs pip install 'depthrate[ray]'")
pytest.importorskip("ray.tune", reason="needs pip install 'depthrate[ray]'")
from ray.cluster_utils import Cluster  # noqa: E402

from depthrate.orchestrator.executors.ray import session  # noqa: E402
from depthrate.orchestrator.executors.ray.errors import RayError  # noqa: E402
from depthrate.orchestrator.executors.ray.executor import RayExecutor  # noqa: E402
from depthrate.orchestrator.executors.ray.session import NodeCheck, Session, check_nodes  # noqa: E402

SUPPORT = Path(__file__).parents[2] / "support"
ignored = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("FutureWarning", "ResourceWarning")]
pytestmark = [pytest.mark.ray, pytest.mark.timeout(900), *ignored]


def drive_on_ray(store: Store, session: Session, task: str, *, gpu_share: float = 0.0, **spec: Any) -> Outcome:
    return drive(plan_of(store, task, workers=2, **spec), store, RayExecutor(session, workers=2, gpu_share=gpu_share))


def test_workers_import_nothing_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session = Session(address=None, workers=1).connect()
    try:
        paths, is_safe = ray.get(ray.remote(lambda: (sys.path, sys.flags.safe_path)).remote())
        assert is_safe and str(tmp_path) not in paths and "" not in paths
    finally:
        session.close()


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python with the libraries, but without depthrate."""
    venv.create(tmp_path / "bare", with_pip=False)
    (packages,) = (tmp_path / "bare").glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return tmp_path / "bare" / "bin" / "python"


@pytest.fixture
def bare_cluster(bare_python: Path) -> Iterator[Cluster]:
    """Start a head without CPUs and a node with two CPUs where depthrate is not installed."""
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args=head)
    command = [str(bare_python), "-m", "ray.scripts.scripts", "start", "--block", f"--address={made.address}"]
    node = subprocess.Popen(
        [*command, "--num-cpus=2", "--object-store-memory=80000000"],
        env=os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"},  # as on a cluster, where it is not set to 0
        cwd="/",
    )
    try:
        await_nodes(made.address, 2)
        yield made
    finally:
        node.terminate()
        node.wait(60)
        made.shutdown()


def test_our_code_travels_to_nodes_that_lack_it(folder: Store, bare_python: Path, bare_cluster: Cluster) -> None:
    lacking = subprocess.run([bare_python, "-c", "import depthrate"], capture_output=True, text=True, cwd="/")
    assert "No module named 'depthrate'" in lacking.stderr
    session = Session(address=bare_cluster.address).connect()
    assert session.max_resources()["CPU"] == 2 and check_nodes() == NodeCheck([], [])
    outcome = drive_on_ray(folder, session, "power_law", grid={"depth": [2, 4]}, params={"exponent": 1.0})
    assert not outcome.failures
    assert results_of(folder).sql("select depth, nc1 from results order by depth").fetchall() == [(2, 0.5), (4, 0.25)]


def test_packs_share_a_gpu(folder: Store, tmp_path: Path) -> None:
    """Ray only counts GPUs, so a fake one suffices: two packs share it, and each receives its index."""
    session = Session(address=None, workers=2, gpus=1).connect()
    outcome = drive_on_ray(
        folder, session, "meets", gpu_share=0.5, params={"folder": str(tmp_path)}, grid={"depth": [1, 2]}
    )
    assert not outcome.failures, outcome.failures
    assert results_of(folder).sql("select depth, nc1 from results order by depth").fetchall() == [(1, 0.0), (2, 0.0)]
    assert not ray.is_initialized()


def test_asha_compares_concurrent_packs(folder: Store, tmp_path: Path) -> None:
    """All trials are proposed in one batch, so every threshold comes from trials that run at the same time."""
    climbs = f"{SUPPORT}/search_tasks.py:climbs"
    spec = {"name": "s", "task": climbs, "params": {"log": str(tmp_path / "log")}, "search": ASHA_SEARCH}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(spec))
    command = ["run", tmp_path / "s.yaml", "--store", folder.root]
    assert "asha needs --executor ray" in refused(*command)
    printed(*command, "--executor", "ray", "--workers", "2")
    records = SearchRecords(folder, "s")
    records.refresh()
    finished = {x for (x,) in results_of(folder).sql("select x from results").fetchall()}
    left_at = {next(iter(r.values.values())): r.pruned_at for r in records.reports.values()}
    assert len(left_at) == 12 and {x for x, step in left_at.items() if step is None} == finished
    assert 0 < len(finished) < 12 and max(left_at) in finished, "the best is never left out"
    assert {step for step in left_at.values() if step is not None} <= {2, 4, 8}, "rungs 2, 4, 8"
    took = [tuple(map(float, line.split()[:2])) for line in (tmp_path / "log").read_text().splitlines()]
    last = {x: max(step for other, step in took if other == x) for x in left_at}
    assert last == {x: 8 if step is None else step for x, step in left_at.items()}, "pruned trials stop there"


def test_what_does_not_fit_is_refused(folder: Store) -> None:
    sweep = SweepSpec(name="s", task="collapse")

    def refuse(executor: str, message: str, **options: Any) -> None:
        launch_options = LaunchOptions(executor=executor, device="cpu", workers=1, executor_options=options)
        with pytest.raises(ExecutorError, match=message):
            open_executor(ExecutorRequest(sweep=sweep, store=folder, options=launch_options))

    refuse("local", "--address needs --executor ray, but --executor is local", address="auto")
    refuse("local", "--packs-per-gpu needs --executor ray or slurm, but --executor is local", packs_per_gpu=2)
    refuse("ray", "--cluster needs --executor slurm, but --executor is ray", cluster="x.toml")
    refuse("ray", "Run depthrate on a node of the cluster, with --address auto", address="ray://x:10001")
    assert issubclass(RayError, ValueError)


def test_rays_folder_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(session.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(session.ray, "init", lambda **options: given.update(options))
    ray_session = session.Session(address=None, workers=1)
    ray_session.connect()
    outer = Path(given["_temp_dir"]).parent
    try:
        assert stat.S_IMODE(os.stat(outer).st_mode) == 0o700 and outer.name.startswith("dr-ray-")
    finally:
        ray_session._clean_up()
    assert not outer.exists()


LATE = """
import sys
from depthrate.orchestrator.executors.ray import session
from depthrate.orchestrator.cli.exit_codes import exit_code
def init(**options):
    print("(raylet) a stack of twenty lines", file=sys.stderr, flush=True)
    raise Exception("The current node timed out during startup.\\nThis could happen because\\n" + "advice\\n" * 40)
session.ray.init = init
sys.exit(exit_code(session.Session(address=None, workers=1).connect))
"""


def test_a_ray_that_does_not_start_in_time() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False)
    said = done.stderr.strip().splitlines()
    assert done.returncode == 2 and len(said) == 1, done.stderr
    assert said[0].startswith("depthrate: Ray cannot be started: The current node timed out during startup. If the")
