"""Decisions about failed packs."""

from collections.abc import Collection

import pytest

from depthrate.orchestrator.attempts.retry_policy import (
    RULES,
    Failure,
    FailureAction,
    decide,
    error_pattern,
    retry_delay_s,
)
from depthrate.orchestrator.executors.base import RequeueReason
from depthrate.slurm.job_states import PHASE_BY_STATE
from depthrate.storage.tables.states import FailureKind


def failed(*kinds: str, node: str = "") -> list[Failure]:
    return [Failure(node, FailureKind(kind)) for kind in kinds]


@pytest.mark.parametrize(
    ("kinds", "num_trials", "decision"),
    [
        (["task"], 4, "retry"),
        (["task"] * 2, 4, "give up"),
        (["code"], 4, "retry"),
        (["table"], 4, "give up"),
        (["out_of_memory"], 4, "split"),
        (["out_of_memory"] * 9, 2, "split"),
        (["out_of_memory"], 1, "retry"),
        (["out_of_memory"] * 2, 1, "give up"),
        (["task", *["worker_lost"] * 3], 4, "retry"),
        (["worker_lost"] * 4, 4, "give up"),
        (["timeout"], 4, "retry"),
        (["timeout"] * 2, 4, "give up"),
        (["not_begun"] * 40, 4, "retry"),
        (["begins_nowhere"], 4, "give up"),
        (["store"] * 3, 4, "retry"),
        (["task", "cancelled"], 4, "stop"),
    ],
)
def test_decide(kinds: list[str], num_trials: int, decision: str) -> None:
    assert decide(failed(*kinds), num_trials) is FailureAction(decision)


@pytest.mark.parametrize("kind", ["code", "not_here"])
def test_deterministic_failures_move_nodes_or_end(kind: str) -> None:
    queries: list[Collection[str]] = []
    for has_others, decision in ((False, FailureAction.GIVE_UP), (True, FailureAction.RETRY)):
        here = failed(kind, node="n1")
        assert decide(here, 1, ["n2"], lambda nodes, has=has_others: queries.append(nodes) or has) is decision
    assert queries == [{"n1", "n2"}] * 2


def test_unhealthy_node_failures_are_bounded() -> None:
    there, here = failed("task", node="sick"), failed("task", node="n1")
    assert decide([*there * 19, *here], 1, ["sick"]) is FailureAction.RETRY
    assert decide([*there * 20, *here], 1, ["sick"]) is FailureAction.GIVE_UP
    assert decide([*there, *here * 2], 1, ["sick"]) is FailureAction.GIVE_UP


def test_errors_differing_in_the_job_are_equal() -> None:
    template = "job {} ended as FAILED on {}: /spool/{}/job000{}/slurm_script: line 18: nonesuch: command not found"
    assert error_pattern(template.format("17_3", "n1", "n1", 17)) == error_pattern(
        template.format("2048", "n2", "n2", 2048)
    )
    assert error_pattern("worker exited with code 1 [pid 4711]") == error_pattern("worker exited with code 1 [pid 815]")
    assert error_pattern("depth 3 is cursed") != error_pattern("depth 5 is cursed")


def test_a_delay_grows_to_its_maximum() -> None:
    assert [retry_delay_s(failed(*["not_begun"] * count)) for count in (1, 2, 3, 40)] == [10, 20, 40, 300]
    assert retry_delay_s(failed("task")) == 0


def test_every_kind_of_failure_has_its_rule() -> None:
    assert RULES.keys() == set(FailureKind)
    assert not set(FailureKind) & set(RequeueReason), "only failures are retried"


def test_slurm_failures_are_ours() -> None:
    assert {kind for _, kind in PHASE_BY_STATE.values() if kind is not None} <= set(FailureKind)
