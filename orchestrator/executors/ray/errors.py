"""Errors of Ray: exceptions, short messages and failure kinds.

ValueError   └── RayError        Ray cannot be reached, or its nodes cannot run packs
OSError      └── RayLost         the connection broke while packs ran
RuntimeError └── RayWorkerError  a worker raised an error
"""

import importlib
import logging
import re
from pathlib import Path
from typing import Any

import depthrate.orchestrator.executors.ray.settings  # noqa: F401 - first: ray reads the environment

# isort: split
import ray
from ray.tune.experiment import Trial as TuneTrial

from depthrate.errors import InputError
from depthrate.storage.tables.states import FailureKind

log = logging.getLogger("depthrate")


class RayError(InputError):
    """Ray cannot be reached, or its nodes cannot run packs."""


class RayLost(OSError):
    """The connection to Ray broke while packs ran."""


class RayWorkerError(RuntimeError):
    """A worker raised an error, which Ray passed on."""


_TASK_ERROR = re.compile(r"(\x1b\[\d+m)?ray::")
"""Start of the text of an error raised in a worker, which is the call in colour."""
_ACTOR_DETAIL = re.compile(r"\s*(class_name|actor_id|namespace|name|repr|ip|pid): ")
"""Lines of an error that identify a single actor."""
LOCAL_RAY_HINT = "If the machine is busy or low on memory, use fewer --workers. --executor local does not need Ray."
"""Advice if a local Ray does not start."""


def short_error(error: BaseException) -> str:
    """Return the first line of an error of Ray, without its pages of advice and logs."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 240 else f"{text[:240]}..."


def describe_exit(error: BaseException) -> str:
    """Return a one-line description of a worker's exit without names and IDs, so that equal errors compare equal."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not _ACTOR_DETAIL.match(line)]
    relevant = lines[-1:] if isinstance(error, RayWorkerError) else lines  # the last line of a traceback
    return f"{type(error).__name__}: {' '.join(relevant)}"[:2000]


def outlive_memory_kills() -> None:
    """Make Tune treat a worker that Ray killed for lack of memory as lost. Otherwise Tune stops all workers.

    Tune raises unknown errors before any callback, scheduler or trial state sees them, and OutOfMemoryError is unknown to it.
    No public hook can change that. A version of Ray without the patched method behaves as before.
    """
    try:
        managers: Any = importlib.import_module("ray.air.execution._internal.actor_manager").RayActorManager
        handle = managers._actor_task_failed
    except (ImportError, AttributeError):
        log.info("unsupported version of Ray: it ends all packs of a launch when it kills one for lack of memory")
        return
    if getattr(handle, "takes_memory_kills", False):
        return

    def convert(value: Any) -> Any:
        is_memory = isinstance(value, ray.exceptions.OutOfMemoryError)
        return ray.exceptions.RayActorError(error_msg=short_error(value)) if is_memory else value

    def actor_task_failed(*args: Any, **kwargs: Any) -> None:
        handle(*map(convert, args), **{name: convert(value) for name, value in kwargs.items()})

    actor_task_failed.__dict__["takes_memory_kills"] = True
    managers._actor_task_failed = actor_task_failed


def kind_of(error: BaseException) -> FailureKind:
    """Return the failure kind of an error of Ray."""
    text = str(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError) or "running low on memory" in text:
        return FailureKind.OUT_OF_MEMORY
    if isinstance(error, ray.exceptions.NodeDiedError) or "node has died" in text or "preempted" in text:
        return FailureKind.NODE_LOST
    if "node" in text and ("was terminated" in text or ("died" in text and "its node" in text)):
        return FailureKind.NODE_LOST
    return FailureKind.TASK if isinstance(error, RayWorkerError) else FailureKind.WORKER_LOST


def error_of(trial: TuneTrial) -> BaseException:
    """Return the error of a failed trial, from the text file that Tune writes.

    Tune also writes a pickle. It is not loaded, because on a shared machine other users may write into Ray's folder.
    """
    try:
        text = Path(trial.error_file).read_text(encoding="utf-8", errors="replace") if trial.error_file else ""
    except OSError:
        text = ""
    last = re.split(r"^Failure # \d+ \(occurred at .*\)\n", text, flags=re.MULTILINE)[-1].strip()
    if _TASK_ERROR.match(last):
        return RayWorkerError(last)
    return RuntimeError(last or "Ray stored no error")
