"""A Ray cluster that loses its head or requires a token, with real processes of Ray."""

from __future__ import annotations

import os
import queue
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import FailureKind
from tests.support.here import await_that
from tests.support.launches import spec_of
from tests.support.ray_nodes import Nodes, attempts, await_nodes, launch, ray_nodes

pytest.importorskip("ray", reason="needs pip install 'depthrate[ray]'")
pytest.importorskip("ray.tune", reason="needs pip install 'depthrate[ray]'")
import ray

from depthrate.orchestrator.executors.ray import dispatcher as dispatcher_module
from depthrate.orchestrator.executors.ray.dispatcher import Dispatcher
from depthrate.orchestrator.executors.ray.errors import RayError
from depthrate.orchestrator.executors.ray.session import Session

OWN_TASKS = Path(__file__).parents[2] / "support/own_tasks.py"
ignored = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("FutureWarning", "ResourceWarning")]
pytestmark = [pytest.mark.ray, pytest.mark.alone, pytest.mark.timeout(600), *ignored]
TOKEN = "a" * 64


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """No node yet."""
    with ray_nodes() as made:
        yield made


def test_a_lost_head_ends_the_launch_in_words(folder: Store, nodes: Nodes, tmp_path: Path) -> None:
    head = nodes.start(1)
    run = launch(folder, nodes, tmp_path, params={"depth": 1, "seconds": 300.0})
    await_that(lambda: len(attempts(folder)) == 1 or run.poll() is not None, 240)
    nodes.kill(head, "gcs_server")
    _, output = run.communicate(timeout=120)
    assert run.returncode == 1, output
    assert len(output.splitlines()) < 12, output  # and nothing of what Ray's own processes say about their end
    assert "no answer from its head" in output and "run the same command again" in output and "Traceback" not in output
    assert len(attempts(folder)) == 1
    assert "GCS" not in output, "it ends before Ray aborts it a minute after the loss"


def test_head_asks_for_a_token(nodes: Nodes) -> None:
    nodes.start(1, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
    output = ""

    def is_refused() -> bool:  # a head that has just begun to listen may not answer at all yet
        nonlocal output
        with pytest.raises(RayError) as raised:
            Session(address=nodes.address).connect()
        output = str(raised.value)
        return "Failed to connect" not in output

    await_that(is_refused, 480)  # one try takes a minute or more
    assert "requires a token. Set RAY_AUTH_MODE=token" in output


def test_node_without_cpus_is_skipped(folder: Store, nodes: Nodes, tmp_path: Path) -> None:
    """As one whose memory is full, where Ray ends every worker."""
    nodes.start(1)
    nodes.start(2, RAY_memory_usage_threshold="0.001", RAY_memory_monitor_refresh_ms="50")
    await_nodes(nodes.address, 2)
    run = launch(folder, nodes, tmp_path, grid={"depth": [1, 2, 3]}, params={"seconds": 0.1})
    output = "".join(run.communicate(timeout=400))
    assert run.returncode == 0, output
    assert f"node {socket.gethostname()} is excluded, it runs no tasks" in output, output
    assert len(take_snapshot(folder).trial_ids()) == 3


def test_a_local_ray_leaves_no_token_mode_behind(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """In that mode this process would refuse the messages of a cluster without tokens, whose actors never start."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    session = Session(address=None, workers=1).connect()
    session.close()
    assert "RAY_AUTH_MODE" not in os.environ
    nodes.start(1)
    await_nodes(nodes.address, 1)

    class Pong:  # here, so that it is sent to the node by value
        def pong(self) -> str:
            return "pong"

    session = Session(address=nodes.address).connect()
    try:
        actor = ray.remote(Pong).remote()
        assert ray.get(actor.pong.remote(), timeout=120) == "pong"
    finally:
        session.close()


def test_unreachable_address_is_refused() -> None:
    began = time.monotonic()
    with pytest.raises(RayError, match="no Ray cluster at '127.0.0.1:1': .*Connection refused"):
        Session(address="127.0.0.1:1").connect()
    assert time.monotonic() - began < 20


def test_workers_follow_joining_and_dying_nodes(folder: Store, nodes: Nodes, tmp_path: Path) -> None:
    nodes.start(1)
    run = launch(folder, nodes, tmp_path, grid={"depth": [1, 2, 3, 4, 5, 6]}, params={"seconds": 12.0})

    def num_running() -> int:
        return sum(attempt["state"] == "running" for attempt in attempts(folder))

    await_that(lambda: num_running() == 1 or run.poll() is not None, 360)
    joined = nodes.start(2)
    await_that(lambda: num_running() == 3 or run.poll() is not None, 240)
    nodes.kill(joined, "raylet")
    before = len(attempts(folder))
    time.sleep(8)
    assert len(attempts(folder)) - before <= 3, "workers whose raylet is gone take no more packs"
    _, output = run.communicate(timeout=300)
    assert run.returncode == 0, output
    assert len(take_snapshot(folder).trial_ids()) == 6  # records are put together by then


def test_unstarted_worker_charges_no_pack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: queue.SimpleQueue[Any] = queue.SimpleQueue()
    monkeypatch.setattr(dispatcher_module, "get_value", lambda key: "n1")  # asks Ray, which does not run here
    dispatcher = Dispatcher(ends, "test", workers=3)

    def fails_to_start(trial_id: str) -> FailureKind:
        dispatcher.waiting.put(spec_of(trial_id, pack_id=trial_id))  # its worker takes it along
        dispatcher.register_worker(trial_id)
        dispatcher.on_trial_error(0, [], SimpleNamespace(trial_id=trial_id, error_file=None))
        end = ends.get_nowait()
        assert end.attempt_id == trial_id and "no error" in end.exit_message
        kind: FailureKind = end.kind
        return kind

    assert fails_to_start("a") is FailureKind.NOT_BEGUN
    monkeypatch.setattr(dispatcher_module, "START_TIMEOUT_S", -1.0)
    assert fails_to_start("b") is FailureKind.FAILED_TO_START_ANYWHERE
    dispatcher.register_worker("other")
    dispatcher.on_trial_start(0, [], SimpleNamespace(trial_id="other"))
    assert fails_to_start("c") is FailureKind.NOT_BEGUN, "another worker has started: it is the node's doing"
