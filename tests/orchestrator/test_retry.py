"""Decisions about failed packs."""

from __future__ import annotations

from collections import Counter

import pytest

from depthrate.orchestrator.retry import decide


@pytest.mark.parametrize(
    ("kind", "failures", "num_trials", "decision"),
    [
        ("task", {"task": 1}, 4, "retry"),
        ("task", {"task": 2}, 4, "give up"),
        ("table", {"table": 1}, 4, "give up"),
        ("out_of_memory", {"out_of_memory": 1}, 4, "halve"),
        ("out_of_memory", {"out_of_memory": 9}, 2, "halve"),
        ("out_of_memory", {"out_of_memory": 1}, 1, "retry"),
        ("out_of_memory", {"out_of_memory": 2}, 1, "give up"),
        ("worker_lost", {"worker_lost": 3, "task": 1}, 4, "retry"),
        ("worker_lost", {"worker_lost": 4}, 4, "give up"),
        ("store", {"store": 3}, 4, "retry"),
        ("something new", {"something new": 1}, 4, "give up"),
    ],
)
def test_decide(kind: str, failures: dict[str, int], num_trials: int, decision: str) -> None:
    assert decide(kind, Counter(failures), num_trials) == decision
