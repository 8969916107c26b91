"""What goes wrong with Ray, and which kind of failure it is."""

from __future__ import annotations

import depthrate.orchestrator.executors.ray.settings  # noqa: F401 - first: ray reads the environment

# isort: split
import ray
from ray import cloudpickle
from ray.tune.experiment import Trial as TuneTrial

from depthrate.storage.tables.states import FailureKind


class RayError(ValueError):
    """Ray cannot be reached, or its nodes cannot run our packs."""


class RayLost(OSError):
    """The connection to Ray broke while packs ran."""


def kind_of(error: BaseException) -> FailureKind:
    """Return the kind of failure that an error of Ray's is."""
    text = str(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError) or "running low on memory" in text:
        return FailureKind.OUT_OF_MEMORY
    if isinstance(error, ray.exceptions.NodeDiedError) or "node has died" in text or "preempted" in text:
        return FailureKind.NODE_LOST
    if "node" in text and ("was terminated" in text or ("died" in text and "its node" in text)):
        return FailureKind.NODE_LOST
    return FailureKind.TASK if isinstance(error, ray.exceptions.RayTaskError) else FailureKind.WORKER_LOST


def error_of(trial: TuneTrial) -> BaseException:
    """Return what Tune kept, in this process's own folder, of how a trial failed; its own getters look where it copies to."""
    if trial.pickled_error_file is None:
        return RuntimeError("Ray kept no error")
    with open(trial.pickled_error_file, "rb") as file:
        error: BaseException = cloudpickle.load(file)
    return error
