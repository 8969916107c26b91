"""Decisions about failed packs."""

from __future__ import annotations

import subprocess
import typing
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import torch

from depthrate.orchestrator.attempts.failure_policy import RETRIES, Decision, decide, error_pattern, pause_s
from depthrate.orchestrator.executors.base import NoFailure
from depthrate.orchestrator.worker.attempt_runner import failure_kind
from depthrate.slurm.states import STATES
from depthrate.storage.tables.states import FailureKind
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.measures.labelled import FeaturesError


@pytest.mark.parametrize(
    ("kind", "failures", "num_trials", "decision"),
    [
        ("task", {"task": 1}, 4, "retry"),
        ("task", {"task": 2}, 4, "give up"),
        ("code", {"code": 1}, 4, "retry"),
        ("table", {"table": 1}, 4, "give up"),
        ("out_of_memory", {"out_of_memory": 1}, 4, "halve"),
        ("out_of_memory", {"out_of_memory": 9}, 2, "halve"),
        ("out_of_memory", {"out_of_memory": 1}, 1, "retry"),
        ("out_of_memory", {"out_of_memory": 2}, 1, "give up"),
        ("worker_lost", {"worker_lost": 3, "task": 1}, 4, "retry"),
        ("worker_lost", {"worker_lost": 4}, 4, "give up"),
        ("timeout", {"timeout": 1}, 4, "retry"),
        ("timeout", {"timeout": 2}, 4, "give up"),
        ("not_begun", {"not_begun": 20}, 4, "retry"),
        ("begins_nowhere", {"begins_nowhere": 1}, 4, "give up"),
        ("store", {"store": 3}, 4, "retry"),
        ("cancelled", {"cancelled": 1}, 4, "stop"),
    ],
)
def test_decide(kind: str, failures: dict[str, int], num_trials: int, decision: str) -> None:
    counted = Counter({FailureKind(name): count for name, count in failures.items()})
    assert decide(FailureKind(kind), counted, num_trials) is Decision(decision)


@pytest.mark.parametrize("kind", ["code", "not_here"])
def test_what_this_machine_would_say_again_is_tried_on_another_or_not_at_all(kind: str) -> None:
    counted = Counter({FailureKind(kind): 1})
    assert decide(FailureKind(kind), counted, 1, has_other_nodes=False) is Decision.GIVE_UP
    assert decide(FailureKind(kind), counted, 1, has_other_nodes=True) is Decision.RETRY


class CustomError(Exception):
    """An exception class of a user's."""


class CustomMemoryError(MemoryError):
    """A class below a builtin one, under a name that says nothing."""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TypeError("no"), FailureKind.CODE),
        (ModuleNotFoundError("no"), FailureKind.CODE),
        (RuntimeError("no"), FailureKind.CODE),
        (CustomError("no"), FailureKind.CODE),
        (SystemExit(3), FailureKind.CODE),
        (FeaturesError("no"), FailureKind.CODE),
        (np.linalg.LinAlgError("singular"), FailureKind.CODE),
        (DatasetError("class 1 is not among the samples"), FailureKind.CODE),
        (caused(DatasetError("x"), KeyError("y")), FailureKind.CODE),
        (caused(DatasetError("x cannot be read"), FileNotFoundError("x")), FailureKind.TASK),
        (ConnectionResetError("no"), FailureKind.TASK),
        (TimeoutError("no"), FailureKind.TASK),
        (EOFError("no"), FailureKind.TASK),
        (subprocess.CalledProcessError(1, "x"), FailureKind.TASK),
        (torch.AcceleratorError("no"), FailureKind.TASK),
        (torch.OutOfMemoryError("no"), FailureKind.OUT_OF_MEMORY),
        (pa.ArrowMemoryError("no"), FailureKind.OUT_OF_MEMORY),
        (CustomMemoryError("no"), FailureKind.OUT_OF_MEMORY),
        (OSError(5, "Input/output error"), FailureKind.HARDWARE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_failures_are_classified_by_class(error: BaseException, kind: FailureKind) -> None:
    assert failure_kind(error) is kind


def test_errors_that_differ_only_in_the_job_are_one() -> None:
    said = "job {} ended as FAILED on {}: /spool/{}/job000{}/slurm_script: line 18: nonesuch: command not found"
    assert error_pattern(said.format("17_3", "n1", "n1", 17)) == error_pattern(said.format("2048", "n2", "n2", 2048))
    assert error_pattern("worker exited with code 1: x [pid 4711]") == error_pattern(
        "worker exited with code 1: x [pid 815]"
    )
    assert error_pattern("depth 3 is cursed") != error_pattern("depth 5 is cursed")


def test_a_pause_grows_to_its_end() -> None:
    kind = FailureKind.NOT_BEGUN
    assert [pause_s(kind, Counter({kind: count})) for count in (1, 2, 3, 40)] == [10, 20, 40, 300]
    assert pause_s(FailureKind.TASK, Counter({FailureKind.TASK: 1})) == 0


def test_every_kind_of_failure_has_its_decision() -> None:
    assert RETRIES.keys() == set(FailureKind)
    assert not set(FailureKind) & set(NoFailure), "what is no failure is never retried as one"


def test_what_slurm_calls_a_failure_is_one_of_ours() -> None:
    assert {kind for _, kind in STATES.values() if kind is not None} <= set(FailureKind)
    assert typing.get_type_hints(decide)["kind"] is FailureKind
