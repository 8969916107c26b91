"""Compiled steps on disk: each compiled once on a machine, by one worker while the others that need it wait.

They lie in the folder `steps` of the user's cache (`private_cache`), under a name that stands for all they depend on: the
step, the code that makes it, torch, the compiler and the processor. The folder may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import pickle
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from depthrate.tasks.interface import Interrupted
from depthrate.tasks.native.build import hold_lock, processor
from depthrate.tasks.networks import flat_parameters, operations
from depthrate.tasks.networks.network import Network
from depthrate.tasks.private_cache import is_private_file, private_cache
from depthrate.tasks.python_process import start_python
from depthrate.tasks.training import step
from depthrate.tasks.training.engines import step_program
from depthrate.tasks.training.engines.choice import EngineError, compiler
from depthrate.tasks.training.engines.compiled_step import CompiledStep
from depthrate.tasks.training.engines.step_program import StepProgram

COMPILE_POLL_INTERVAL_S = 0.2
ERROR_TAIL = 2000


def compiled_step(program: StepProgram, should_stop: Callable[[], bool]) -> tuple[CompiledStep, float]:
    """Return the compiled step and the seconds it took to get it; a damaged file is thrown away and made anew.

    Raises:
        EngineError, Interrupted: as `compiled_program`.
    """
    path, seconds = compiled_program(program, should_stop)
    try:
        return CompiledStep(path, shares_batches=program.shares_batches, device=program.device), seconds
    except RuntimeError as error:
        logging.getLogger(__name__).warning("compiled step %s cannot be used (%s); it is compiled anew", path, error)
        path.unlink(missing_ok=True)
    path, again = compiled_program(program, should_stop)
    return CompiledStep(path, shares_batches=program.shares_batches, device=program.device), seconds + again


def compiled_program(program: StepProgram, should_stop: Callable[[], bool]) -> tuple[Path, float]:
    """Return the file that holds the compiled step, and the seconds it took to get it, after compiling it if need be.

    Raises:
        EngineError: there is no compiler, it fails, or the step cannot be handed to it.
        Interrupted: asked to stop while it compiled or waited.
    """
    started = time.monotonic()
    path = cache_folder() / f"{program_key(program)}.pt2"
    if not is_private_file(path):
        compiler()
        try:
            with hold_lock(path.with_suffix(".lock"), should_stop):
                if not is_private_file(path):
                    _compile(program, path, should_stop)
        except OSError as error:
            raise EngineError(f"compiled steps are kept in {path.parent}, which cannot be used: {error}") from error
    return path, time.monotonic() - started


def cache_folder() -> Path:
    """Return where compiled steps are kept on this machine."""
    return private_cache("steps")


def program_key(program: StepProgram) -> str:
    """Return a name for all that a compiled step depends on."""
    plan, network = program.plan, program.network
    parts = [
        f"{type(network).__module__}.{type(network).__qualname__}",
        repr(network),
        repr((plan.loss, plan.optimizer, plan.clip_norm, plan.dtype, plan.adam_betas, plan.adam_eps)),
        repr((program.batch_shape, program.input_dtype, program.shares_batches, program.device)),
        *_code(network),
        network.own_code(),
        torch.__version__,
        repr(torch.__config__.show()),
        os.environ.get("CXX", ""),
        processor(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _code(network: Network) -> list[str]:
    """Return the text of all files that a step is made of: those of the network's class and of what it builds on among them."""
    made: list[Any] = [step, step_program, operations, flat_parameters]
    made += [each for each in type(network).__mro__ if issubclass(each, Network)]
    try:
        return [Path(file).read_text(encoding="utf-8") for file in sorted({inspect.getfile(each) for each in made})]
    except (TypeError, OSError) as error:
        raise EngineError(f"the code of the network {type(network).__name__} cannot be read: {error}") from error


def _compile(program: StepProgram, path: Path, should_stop: Callable[[], bool]) -> None:
    """Compile in a process of its own, so that this one keeps neither the compiler nor its memory, and can stop it."""
    work = path.with_suffix(".compiling")
    shutil.rmtree(work, ignore_errors=True)  # of a worker that was killed
    try:
        work.mkdir()
        made, request, output = work / path.name, work / "program", work / "output"
        try:
            request.write_bytes(pickle.dumps((program, str(made))))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            name = type(program.network).__name__
            raise EngineError(f"the network {name} cannot be handed to the compiler: {error}") from error
        code = _run_compiler(request, output, should_stop)
        if code or not made.exists():
            printed = output.read_text(encoding="utf-8", errors="replace")[-ERROR_TAIL:]
            raise EngineError(f"the step cannot be compiled (exit code {code}); the compiler's last words: {printed}")
        made.chmod(0o600)
        os.replace(made, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_compiler(request: Path, output: Path, should_stop: Callable[[], bool]) -> int:
    """Return the exit code of a process that compiles what stands in `request`."""
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(request.parent), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    with request.open("rb") as given, output.open("wb") as printed:
        process = start_python(
            step_program.__name__,
            variables=variables,
            stdin=given,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                if should_stop():
                    raise Interrupted
                time.sleep(COMPILE_POLL_INTERVAL_S)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return process.returncode
