"""The driver excludes unhealthy nodes and reports each once."""

from collections.abc import Sequence

import pytest

from depthrate.orchestrator.attempts.node_health import write_cleared
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.executors.base import AttemptEnd, Executor
from depthrate.orchestrator.launch.node_monitor import NodeMonitor
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import FailureKind

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


class Nodes(Executor):
    """Four nodes, with running attempts set by the test."""

    device, workers, capacity, num_nodes = "cpu", 4, 4, 4

    def __init__(self) -> None:
        self.on: dict[str, str] = {}
        self.avoided: list[list[str]] = []

    def nodes_by_attempt(self) -> dict[str, str]:
        return self.on

    def exclude_nodes(self, nodes: Sequence[str]) -> None:
        self.avoided.append(list(nodes))

    def summary(self) -> str:
        return "four nodes"

    def submit(self, jobs: Sequence[AttemptSpec]) -> None: ...

    def running(self) -> dict[str, str]:
        return {}

    def poll(self, timeout_s: float) -> list[AttemptEnd]:
        return []

    def stop(self, *, is_hopeless: bool = False) -> None: ...

    def close(self) -> None: ...


def test_excluded_nodes_are_avoided_and_reported_once_until_they_are_cleared(
    folder: Store, caplog: pytest.LogCaptureFixture
) -> None:
    now, nodes = [0.0], Nodes()
    monitor = NodeMonitor(folder, "s", nodes, clock=lambda: now[0])
    nodes.on = {"a": "n1", "b": "n2", "c": "n3"}
    monitor.update()
    monitor.health.record_failure("n2", "p", FailureKind.HARDWARE, "b", ECC)
    now[0] += 1
    monitor.update()
    assert nodes.avoided == [["n2"]] and f"(elsewhere 0 of 2), last error: {ECC}. Excluded for 2 min." in caplog.text
    for number in range(2):
        monitor.health.record_failure("n2", f"p{number}", FailureKind.HARDWARE, error=ECC)
        monitor.update()
    assert nodes.avoided == [["n2"]] and len(caplog.messages) == 2
    assert "Once it is repaired: depthrate nodes s --clear n2" in caplog.messages[1]
    write_cleared(folder, "s", "n2")
    monitor.update()
    assert nodes.avoided == [["n2"]], "it is read again after a while only"
    now[0] += 10
    monitor.update()
    assert nodes.avoided == [["n2"], []] and len(caplog.messages) == 2


SHAPE, OTHER = "8 {depth: 2}", "8 {depth: 34}"
FOUR = [("n1", SHAPE, 0.1), ("n2", SHAPE, 0.4), ("n3", SHAPE, 0.11), ("n4", SHAPE, 0.12)]


@pytest.mark.parametrize(
    ("speeds", "reported"),
    [
        (FOUR * 2, []),  # not often enough
        (
            FOUR * 9,
            ["node n2 is 3.5 times slower than others: 0.4 s per step, median of 4 nodes 0.115 s. Check its load."],
        ),
        ([*FOUR * 2, ("n2", SHAPE, 0.1)] * 9, []),  # not all the time
        (FOUR[:2] * 9, []),  # either may be the usual one
        ([(node, OTHER if node == "n2" else SHAPE, step_s) for node, _, step_s in FOUR] * 9, []),  # not comparable
        ([(node, "", step_s) for node, _, step_s in FOUR] * 9, []),
        ([(node, SHAPE, min(step_s, 0.3)) for node, _, step_s in FOUR] * 9, []),
        ([("", SHAPE, step_s) for _, _, step_s in FOUR] * 9, []),
    ],
)
def test_a_slow_node_is_reported_once(
    folder: Store, caplog: pytest.LogCaptureFixture, speeds: list[tuple[str, str, float]], reported: list[str]
) -> None:
    monitor = NodeMonitor(folder, "s", Nodes())
    for node, shape, step_s in speeds:
        monitor.record_speed(node, shape, {"step_s": step_s})
        monitor.record_speed(node, shape, {"step": 3})  # nothing is timed yet
    assert caplog.messages == reported


def test_a_failure_everywhere_excludes_no_node(folder: Store, caplog: pytest.LogCaptureFixture) -> None:
    nodes = Nodes()
    monitor = NodeMonitor(folder, "s", nodes)
    for node in ("n1", "n2", "n3", "n4"):
        monitor.health.record_failure(node, "p", FailureKind.TASK)
    monitor.update()
    assert not nodes.avoided and not caplog.messages
