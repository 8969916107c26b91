"""Failure kinds by the class of an exception."""

import subprocess

import numpy as np
import pyarrow as pa
import pytest
import torch

from depthrate.orchestrator.worker.attempt_runner import failure_kind
from depthrate.storage.tables.states import FailureKind
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.measures.labelled import FeaturesError


class CustomError(Exception):
    """A user's exception class."""


class CustomMemoryError(MemoryError):
    """A subclass of a builtin exception with an uninformative name."""


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
