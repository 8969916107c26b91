"""Unhealthy nodes are those where only they fail, not nodes that run a task with a bug."""

import pytest

from depthrate.orchestrator.attempts.node_health import (
    NodeHealth,
    StartFailures,
    fisher_p_value,
    is_hardware_error,
)
from depthrate.storage.tables.states import FailureKind
from tests.support.clock import Clock

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def test_chance_of_a_node_s_failures() -> None:
    assert fisher_p_value(3, 0, 0, 3) == pytest.approx(1 / 20)
    assert fisher_p_value(2, 0, 0, 3) == pytest.approx(1 / 10)
    assert fisher_p_value(1, 1, 1, 1) == pytest.approx(5 / 6)
    assert fisher_p_value(0, 4, 2, 3) == 1.0


def test_node_failing_alone_is_excluded() -> None:
    for before in range(6):  # attempts that had gone well elsewhere
        health = NodeHealth(4)
        for number in range(before):
            health.record_success(f"n{3 + number % 2}")
        for number in range(3):
            health.record_failure("n2", f"p{number}", FailureKind.TASK)
            health.record_success("n3")
        assert health.unhealthy == ["n2"], before
        assert "3 of 3 attempts failed on n2 (elsewhere 0 of" in health.describe("n2")
        health.clear("n2")
        assert health.unhealthy == health.excluded == []


def test_task_bug_spares_nodes() -> None:
    health = NodeHealth(4)
    for number in range(40):
        for node in (f"n{number % 4}", f"n{(number + 1) % 4}"):  # tried again elsewhere
            health.record_failure(node, f"p{number}", FailureKind.TASK)
    assert health.unhealthy == []
    for number in range(20):
        health.record_success(f"n{number % 4}")
    assert health.unhealthy == health.excluded == []


def test_one_cursed_trial_speaks_against_no_node() -> None:
    health = NodeHealth(2)
    for number in range(20):
        health.record_success(f"n{number % 2}")
    for number in range(10):
        health.record_failure("n0", f"cursed{number}", FailureKind.TASK)
        health.record_failure("n1", f"cursed{number}", FailureKind.TASK)
    assert health.unhealthy == []


def test_what_is_no_nodes_doing_is_not_counted() -> None:
    health = NodeHealth(2)
    for kind in (FailureKind.OUT_OF_MEMORY, FailureKind.TIMEOUT, FailureKind.CANCELLED, FailureKind.PREEMPTED):
        for number in range(5):
            health.record_failure("n0", f"{kind} {number}", kind)
            health.record_success("n1")
    assert health.unhealthy == health.excluded == []


def test_hardware_is_never_a_packs_doing() -> None:
    health = NodeHealth(8)
    for _ in range(3):
        for node in ("n0", "n1"):
            health.record_failure(node, "p", FailureKind.HARDWARE)
        health.record_success("n2")
        health.record_success("n3")
    assert sorted(health.unhealthy) == ["n0", "n1"]


def test_dying_node_counts_once() -> None:
    health = NodeHealth(4, clock=(clock := Clock()))
    deaths = []
    for death in range(3):
        for number in range(8):
            health.record_failure("n2", f"{death} {number}", FailureKind.NODE_LOST)
        health.record_success("n3")
        deaths.append(health.describe("n2").partition(" on n2")[0])
        if death == 0:
            assert health.unhealthy == [] and health.excluded == ["n2"], "one reboot is not enough"
        clock.sleep(300)
    assert deaths == ["1 of 1 attempts failed", "2 of 2 attempts failed", "3 of 3 attempts failed"]
    assert health.unhealthy == ["n2"]


def test_attempts_that_run_longer_elsewhere_are_proof_enough() -> None:
    health = NodeHealth(2, clock=(clock := Clock()))
    health.record_start("n0", "long")
    for number in range(3):
        health.record_start("n1", f"a{number}")
        clock.sleep(5)
        health.record_failure("n1", f"p{number}", FailureKind.TASK, f"a{number}")
    assert health.unhealthy == ["n1"]


def test_cooldown_after_a_failure() -> None:
    health = NodeHealth(4, clock=(clock := Clock()))
    for node in ("n0", "n1", "n2", "n3"):
        health.record_start(node, f"on {node}")
    health.record_failure("n2", "p", FailureKind.TASK, "on n2")
    assert health.unhealthy == [] and health.excluded == ["n2"]
    clock.sleep(200)
    assert health.excluded == [], "one failure is not enough"


def test_some_nodes_are_always_left() -> None:
    health = NodeHealth(4)
    for node in ("n0", "n1", "n2"):
        for number in range(5):
            health.record_failure(node, f"{node} {number}", FailureKind.HARDWARE)
            health.record_success("n3")
            health.record_success("n3")
    assert len(health.unhealthy) == 2
    assert NodeHealth(1)._max_excluded() == 0 and NodeHealth(2)._max_excluded() == 1


@pytest.mark.parametrize(
    "error_text",
    [
        ECC,
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "all CUDA-capable devices are busy or unavailable",
        "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
        "RuntimeError: No CUDA GPUs are available",
        "OSError: [Errno 28] No space left on device: '/scratch/x'",
        "OSError: [Errno 5] Input/output error",
    ],
)
def test_errors_of_hardware_are_known(error_text: str) -> None:
    assert is_hardware_error(error_text)


@pytest.mark.parametrize(
    "error_text",
    [
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "ValueError: second device",
        "worker was killed by signal 9",
    ],
)
def test_task_errors_are_not_hardware(error_text: str) -> None:
    assert not is_hardware_error(error_text)


def test_node_excluded_while_jobs_fail_to_start() -> None:
    nodes = StartFailures(2)
    for node in ("n1", "n2"):
        for job in ("1", "2", "3"):
            nodes.record_failure(node, job)
    assert nodes.excluded == ["n1"], "the last node is never excluded"
    assert nodes.starts_nowhere(["n2"]) and not nodes.starts_nowhere(["n3"])
    nodes.record_start("n1", "1")
    assert nodes.excluded == [] and not nodes.starts_nowhere([]), "its record appeared late"
