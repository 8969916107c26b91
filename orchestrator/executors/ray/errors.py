"""What goes wrong with Ray, and which kind of failure it is."""

from __future__ import annotations

import importlib
import logging
import re
from pathlib import Path
from typing import Any

import depthrate.orchestrator.executors.ray.settings  # noqa: F401 - first: ray reads the environment

# isort: split
import ray
from ray.tune.experiment import Trial as TuneTrial

from depthrate.storage.tables.states import FailureKind

log = logging.getLogger("depthrate")


class RayError(ValueError):
    """Ray cannot be reached, or its nodes cannot run our packs."""


class RayLost(OSError):
    """The connection to Ray broke while packs ran."""


class RayWorkerError(RuntimeError):
    """A worker raised an error, which Ray has handed on."""


_TASK_ERROR = re.compile(r"(\x1b\[\d+m)?ray::")
"""How the text of an error begins that was raised in a worker: with the call, in colour."""
_ACTOR_DETAIL = re.compile(r"\s*(class_name|actor_id|namespace|name|repr|ip|pid): ")
"""Lines that tell one actor from another."""


LOCAL_RAY_HINT = (
    "where the machine is busy or short of memory, try again with fewer --workers; --executor local needs no Ray"
)
"""What to do where a Ray of our own does not start."""


def short_error(error: BaseException) -> str:
    """Return what an error of Ray's says in a line: its pages of advice and its processes' logs are for who develops Ray."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 240 else f"{text[:240]}..."


def describe_exit(error: BaseException) -> str:
    """Return how a worker ended in a line that is the same for all that ended so: without the actor's names and numbers."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not _ACTOR_DETAIL.match(line)]
    said = lines[-1:] if isinstance(error, RayWorkerError) else lines  # the last line of a traceback
    return f"{type(error).__name__}: {' '.join(said)}"[:2000]


def outlive_memory_kills() -> None:
    """Have Tune take a worker that Ray has ended for lack of memory for one that died; else all others end with it.

    Tune raises what it does not know before any callback, scheduler or state of a trial hears of it, and its list of errors
    that it knows lacks this one. So no public hook can serve, and where a Ray has no such method all stays as that Ray does it.
    """
    try:
        managers: Any = importlib.import_module("ray.air.execution._internal.actor_manager").RayActorManager
        handle = managers._actor_task_failed
    except (ImportError, AttributeError):
        log.info("this Ray ends all packs of a launch when it ends one for lack of memory: its version is unknown here")
        return
    if getattr(handle, "takes_memory_kills", False):
        return

    def known(given: Any) -> Any:
        is_memory = isinstance(given, ray.exceptions.OutOfMemoryError)
        return ray.exceptions.RayActorError(error_msg=short_error(given)) if is_memory else given

    def actor_task_failed(*given: Any, **named: Any) -> None:
        handle(*map(known, given), **{name: known(value) for name, value in named.items()})

    actor_task_failed.__dict__["takes_memory_kills"] = True
    managers._actor_task_failed = actor_task_failed


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
