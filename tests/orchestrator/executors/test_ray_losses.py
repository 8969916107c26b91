"""A Ray cluster that loses its head or asks for a token: real processes of Ray, killed as they would be."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from depthrate.storage.attempts.records import read_loose_records
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import FailureKind

pytest.importorskip("ray", reason="needs pip install 'depthrate[ray]'")
pytest.importorskip("ray.tune", reason="needs pip install 'depthrate[ray]'")

from depthrate.orchestrator.executors.base import PackJob
from depthrate.orchestrator.executors.options import JobOptions
from depthrate.orchestrator.executors.ray import dispatcher as dispatcher_module
from depthrate.orchestrator.executors.ray.dispatcher import Dispatcher
from depthrate.orchestrator.executors.ray.errors import RayError
from depthrate.orchestrator.executors.ray.session import Session

OWN_TASKS = Path(__file__).parents[2] / "support/own_tasks.py"
pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
TOKEN = "a" * 64


class Nodes:
    """Nodes of a Ray cluster on this machine, each with processes of its own."""

    def __init__(self, folder: Path):
        self._folder, self._processes = folder, list[subprocess.Popen[bytes]]()
        with socket.socket() as probe:
            probe.bind(("", 0))
            self._port = probe.getsockname()[1]

    def start(self, cpus: int, **environment: str) -> subprocess.Popen[bytes]:
        """Start the head, or another node."""
        words = ["--head", f"--port={self._port}", "--include-dashboard=false", f"--temp-dir={self._folder}/r"]
        words = [f"--address={self.address}"] if self._processes else words
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words, f"--num-cpus={cpus}"]
        process = subprocess.Popen(
            [*command, "--object-store-memory=80000000"],
            env={
                **os.environ,
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
                "RAY_AUTH_MODE": "disabled",
                "RAY_worker_niceness": "0",  # else they starve beside other tests
                **environment,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        self._processes.append(process)
        if len(self._processes) == 1:
            await_that(lambda: socket.create_connection(("127.0.0.1", self._port), 1).close() is None, 60)
            time.sleep(5)  # the head listens before it knows its own node
        return process

    @property
    def address(self) -> str:
        """Where the head listens."""
        return f"{_own_address()}:{self._port}"

    def kill(self, process: subprocess.Popen[bytes], name: str) -> None:
        """Kill one process of a node, as the kernel would for lack of memory."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "stat").read_text().rpartition(")")
            except OSError:
                continue
            if int(words[2].split()[1]) == process.pid and words[0].partition("(")[2].startswith(name):
                os.kill(int(folder.name), signal.SIGKILL)

    def stop(self) -> None:
        """End everything."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _own_address() -> str:
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def await_that(is_so: Callable[[], bool], longest_s: float) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + longest_s
    while time.monotonic() < deadline:
        try:
            if is_so():
                return
        except OSError:
            pass
        time.sleep(0.3)
    raise AssertionError(f"not so within {longest_s} s")


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """No node yet."""
    load = os.getloadavg()[0]
    if load > (os.cpu_count() or 1) and "DEPTHRATE_TEST_LONG" not in os.environ:
        pytest.skip(
            f"the load is {load:.0f}: Ray's nodes and workers take minutes to start; alone, or with DEPTHRATE_TEST_LONG"
        )
    made = Nodes(Path(f"/tmp/drt{os.getpid()}"))
    try:
        yield made
    finally:
        made.stop()


def attempts(store: Store) -> list[dict[str, object]]:
    return [
        record for _, record in read_loose_records(store, [p for p in store.list("attempts") if p.endswith(".json")])
    ]


def launch(folder: Store, nodes: Nodes, tmp_path: Path, **spec: Any) -> subprocess.Popen[str]:
    """Start `depthrate run` of a sweep on these nodes."""
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"name": "s", "task": f"{OWN_TASKS}:steady", **spec}))
    words = ["run", str(tmp_path / "s.yaml"), "--store", folder.root, "--executor", "ray", "--address", nodes.address]
    environment = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", "depthrate", *words], env=environment, **pipes)


def test_a_lost_head_ends_the_launch_in_words(folder: Store, nodes: Nodes, tmp_path: Path) -> None:
    head = nodes.start(1)
    run = launch(folder, nodes, tmp_path, params={"depth": 1, "seconds": 300.0})
    await_that(lambda: len(attempts(folder)) == 1 or run.poll() is not None, 240)
    nodes.kill(head, "gcs_server")
    _, said = run.communicate(timeout=120)
    assert run.returncode == 1, said
    assert "has not answered for" in said and "run the same command again" in said and "Traceback" not in said
    assert len(attempts(folder)) == 1


def test_a_head_that_asks_for_a_token_is_named_so(nodes: Nodes) -> None:
    nodes.start(1, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
    said = ""

    def is_refused() -> bool:  # a head that has just begun to listen may not answer at all yet
        nonlocal said
        with pytest.raises(RayError) as raised:
            Session(address=nodes.address).connect()
        said = str(raised.value)
        return "Failed to connect" not in said

    await_that(is_refused, 480)  # one try takes a minute or more
    assert "asks for a token, and none is given here; set RAY_AUTH_MODE=token" in said


def test_an_address_where_nobody_listens_is_refused_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(RayError, match="no Ray cluster at '127.0.0.1:1': nobody listens there"):
        Session(address="127.0.0.1:1").connect()
    assert time.monotonic() - began < 20


def test_workers_follow_the_nodes_that_join_and_stop_where_one_dies(
    folder: Store, nodes: Nodes, tmp_path: Path
) -> None:
    nodes.start(1)
    run = launch(folder, nodes, tmp_path, grid={"depth": [1, 2, 3, 4, 5, 6]}, params={"seconds": 20.0})

    def num_running() -> int:
        return sum(attempt["state"] == "running" for attempt in attempts(folder))

    await_that(lambda: num_running() == 1 or run.poll() is not None, 360)
    joined = nodes.start(2)
    await_that(lambda: num_running() == 3 or run.poll() is not None, 240)
    nodes.kill(joined, "raylet")
    before = len(attempts(folder))
    time.sleep(15)
    assert len(attempts(folder)) - before <= 3, "workers whose raylet is gone take no more packs"
    _, said = run.communicate(timeout=300)
    assert run.returncode == 0, said
    assert len(take_snapshot(folder).trial_ids()) == 6  # records are put together by then


def test_a_worker_that_never_started_charges_no_pack_unless_none_starts_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: queue.SimpleQueue[Any] = queue.SimpleQueue()
    monkeypatch.setattr(Dispatcher, "_host_of", lambda self, trial_id: "n1")  # asks Ray, which does not run here
    dispatcher = Dispatcher(ends, "test", workers=3)
    options = JobOptions(store="", data="", device="cpu", checkpoint_seconds=30, git_sha=None, git_dirty=None)

    def fails_to_start(trial_id: str) -> FailureKind:
        job = PackJob(
            attempt_id=trial_id,
            sweep="s",
            task="power_law",
            pack_id=trial_id,
            trial_ids=[trial_id],
            params=[{}],
            options=options,
        )
        dispatcher.waiting.put(job)  # its worker takes it along
        dispatcher.new_worker(trial_id)
        dispatcher.on_trial_error(0, [], SimpleNamespace(trial_id=trial_id, error_file=None))
        end = ends.get_nowait()
        assert end.attempt_id == trial_id and "no error" in end.death
        kind: FailureKind = end.kind
        return kind

    assert fails_to_start("a") is FailureKind.NOT_BEGUN
    monkeypatch.setattr(dispatcher_module, "NO_START_S", -1.0)
    assert fails_to_start("b") is FailureKind.FAILED_TO_START_ANYWHERE
    dispatcher.new_worker("other")
    dispatcher.on_trial_start(0, [], SimpleNamespace(trial_id="other"))
    assert fails_to_start("c") is FailureKind.NOT_BEGUN, "another worker has started: it is the node's doing"
