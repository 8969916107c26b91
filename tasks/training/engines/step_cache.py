"""Disk cache of compiled steps: one worker per machine compiles a step while the others that need it wait.

Files are in the folder `steps` of the user's cache (`private_cache`). Their names are hashes of everything they depend on: the
step, its source code, torch, the compiler and the processor. The folder may be deleted at any time.
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
    """Load the compiled step. Also return the seconds spent compiling or waiting. A corrupt file is compiled again.

    Raises:
        EngineError: As `compiled_program`.
        Interrupted: As `compiled_program`.
    """
    path, seconds = compiled_program(program, should_stop)
    try:
        return CompiledStep(path, shares_batches=program.shares_batches, device=program.device), seconds
    except RuntimeError as error:
        logging.getLogger(__name__).warning("cannot load compiled step %s (%s), compiling again", path, error)
        path.unlink(missing_ok=True)
    path, more_seconds = compiled_program(program, should_stop)
    return CompiledStep(path, shares_batches=program.shares_batches, device=program.device), seconds + more_seconds


def compiled_program(program: StepProgram, should_stop: Callable[[], bool]) -> tuple[Path, float]:
    """Return the file of the compiled step, compiling it if necessary, and the seconds spent compiling or waiting.

    Raises:
        EngineError: No compiler is available, it fails, or the step cannot be pickled for it.
        Interrupted: A stop was requested meanwhile.
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
            raise EngineError(f"cannot use the cache of compiled steps {path.parent}: {error}") from error
    return path, time.monotonic() - started


def cache_folder() -> Path:
    """Return the folder of compiled steps on this machine."""
    return private_cache("steps")


def program_key(program: StepProgram) -> str:
    """Compute the cache key of a compiled step from everything it depends on."""
    plan, network = program.plan, program.network
    parts = [
        f"{type(network).__module__}.{type(network).__qualname__}",
        repr(network),
        repr((plan.loss, plan.optimizer, plan.clip_norm, plan.dtype, plan.adam_betas, plan.adam_eps)),
        repr((program.batch_shape, program.input_dtype, program.shares_batches, program.device)),
        *_code(network),
        network.custom_code(),
        torch.__version__,
        repr(torch.__config__.show()),
        os.environ.get("CXX", ""),
        processor(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _code(network: Network) -> list[str]:
    """Read the source files of a step: the training modules, the network's class and its base classes."""
    sources: list[Any] = [step, step_program, operations, flat_parameters]
    sources += [base for base in type(network).__mro__ if issubclass(base, Network)]
    try:
        return [Path(file).read_text(encoding="utf-8") for file in sorted({inspect.getfile(item) for item in sources})]
    except (TypeError, OSError) as error:
        raise EngineError(f"cannot read the source code of the network {type(network).__name__}: {error}") from error


def _compile(program: StepProgram, path: Path, should_stop: Callable[[], bool]) -> None:
    """Compile in a separate process, which can be killed and returns the compiler's memory."""
    work = path.with_suffix(".compiling")
    shutil.rmtree(work, ignore_errors=True)  # left by a killed worker
    try:
        work.mkdir()
        package, request, output = work / path.name, work / "program", work / "output"
        try:
            request.write_bytes(pickle.dumps((program, str(package))))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            name = type(program.network).__name__
            raise EngineError(f"cannot pickle the network {name} for the compiler: {error}") from error
        code = _run_compiler(request, output, should_stop)
        if code or not package.exists():
            tail = output.read_text(encoding="utf-8", errors="replace")[-ERROR_TAIL:]
            raise EngineError(f"compiling the step failed with exit code {code}. End of the compiler's output: {tail}")
        package.chmod(0o600)
        os.replace(package, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_compiler(request: Path, output: Path, should_stop: Callable[[], bool]) -> int:
    """Compile the program pickled in `request` in a process, and return its exit code."""
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(request.parent), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    with request.open("rb") as stdin, output.open("wb") as stdout:
        process = start_python(
            step_program.__name__,
            variables=variables,
            stdin=stdin,
            stdout=stdout,
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
