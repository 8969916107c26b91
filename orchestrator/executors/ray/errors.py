"""What goes wrong with Ray, and which kind of failure it is."""

from __future__ import annotations

import re
from pathlib import Path

import depthrate.orchestrator.executors.ray.settings  # noqa: F401 - first: ray reads the environment

# isort: split
import ray
from ray.tune.experiment import Trial as TuneTrial

from depthrate.storage.tables.states import FailureKind


class RayError(ValueError):
    """Ray cannot be reached, or its nodes cannot run our packs."""


class RayLost(OSError):
    """The connection to Ray broke while packs ran."""


class RayWorkerError(RuntimeError):
    """A worker raised an error, which Ray has handed on."""


_TASK_ERROR = re.compile(r"(\x1b\[\d+m)?ray::")
"""How the text of an error begins that was raised in a worker: with the call, in colour."""


OWN_RAY_LATE = (
    "where the machine is busy or short of memory, try again with fewer --workers; --executor local needs no Ray"
)
"""What to do where a Ray of our own does not start."""


def told(error: BaseException) -> str:
    """Return what an error of Ray's says in a line: its pages of advice and its processes' logs are for who develops Ray."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 240 else f"{text[:240]}..."


def kind_of(error: BaseException) -> FailureKind:
    """Return the kind of failure that an error of Ray's is."""
    text = str(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError) or "running low on memory" in text:
        return FailureKind.OUT_OF_MEMORY
    if isinstance(error, ray.exceptions.NodeDiedError) or "node has died" in text or "preempted" in text:
        return FailureKind.NODE_LOST
    if "node" in text and ("was terminated" in text or ("died" in text and "its node" in text)):
        return FailureKind.NODE_LOST
    return FailureKind.TASK if isinstance(error, RayWorkerError) else FailureKind.WORKER_LOST


def error_of(trial: TuneTrial) -> BaseException:
    """Return how a trial failed, by the text that Tune keeps of it.

    Tune keeps the error as a pickle, too; that is not loaded: on a shared machine others may write into Ray's folder.
    """
    try:
        text = Path(trial.error_file).read_text(encoding="utf-8", errors="replace") if trial.error_file else ""
    except OSError:
        text = ""
    last = re.split(r"^Failure # \d+ \(occurred at .*\)\n", text, flags=re.MULTILINE)[-1].strip()
    if _TASK_ERROR.match(last):
        return RayWorkerError(last)
    return RuntimeError(last or "Ray kept no error")
