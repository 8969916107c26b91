"""Compiled steps: a program on disk that runs over a pack's trials in groups.

The group size is chosen by timing the first training steps. It affects cache use but not results, since a trial's numbers do
not depend on the other trials.

One worker per machine compiles a program while the others that need it wait. Files are in the folder `steps` of the user's
cache (`private_cache`). Their names are hashes of everything they depend on: the step, its source code, torch, the compiler and
the processor. The folder may be deleted at any time.
"""

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
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depthrate.tasks.code.private_cache import is_private_file, private_cache
from depthrate.tasks.interface import Engine
from depthrate.tasks.native.build import hold_lock, processor, wait_for
from depthrate.tasks.native.compiler import EngineError, compiler
from depthrate.tasks.networks import flat_parameters, operations
from depthrate.tasks.networks.flat_parameters import split_parameters
from depthrate.tasks.networks.network import Network
from depthrate.tasks.python_process import start_python
from depthrate.tasks.training import step
from depthrate.tasks.training.engines import step_program
from depthrate.tasks.training.engines.step_program import StepProgram
from depthrate.tasks.training.pack_state import Divergence, MakeSteps, PackState, Steps

log = logging.getLogger(__name__)

TRIES = 3
"""Number of steps timed per group size. The fastest step counts."""
ERROR_TAIL = 2000


class CompiledSteps(Steps):
    """Takes the steps of a trainer with a loaded `StepProgram`."""

    engine = Engine.COMPILED

    def __init__(self, trainer: PackState, program: Any, size: int | None = None):
        """Run `size` trials per group. The default is the number that proves fastest."""
        super().__init__(trainer)
        self._program, self._size = program, size
        self._timings: dict[int, list[float]] = {}
        self._state: list[Tensor] = []
        self._parts: list[tuple[slice, list[Tensor]]] = []

    def prepare(self) -> None:
        """Bind the inputs of `StepProgram.run` up to the momentum, in its order."""
        trainer = self.trainer
        flat = [t for t in (trainer.theta_TP, trainer.moment_TP, trainer.square_TP) if t is not None]
        pieces = [piece for tensor in flat for piece in split_parameters(tensor, trainer.specs).values()]
        untrained = [trainer.untrained[spec.name] for spec in trainer.network.state_specs()]
        self._state = [*pieces, *untrained, *trainer.decays.values(), trainer.momentum_T1]
        powers = [
            2**exponent for exponent in range(trainer.num_trials.bit_length()) if 2**exponent < trainer.num_trials
        ]
        self._sizes = [trainer.num_trials, *reversed(powers)]
        self._timings = {size: [] for size in self._sizes}
        self._split(self._size or self._sizes[0])

    def release(self) -> None:
        super().release()
        self._state, self._parts = [], []

    def step(self, max_steps: int, divergence: Divergence | None) -> Tensor:
        """Take one step. If no group size has been chosen, time it with the least timed size."""
        if self._size is None:
            size = min(self._sizes, key=lambda size: len(self._timings[size]))
            self._split(size)
        started = time.thread_time()
        loss_T = self._run(*self.trainer.next_batch())
        if self._size is None:
            self._timings[size].append(time.thread_time() - started)
            if min(map(len, self._timings.values())) >= TRIES:
                self._size = min(self._sizes, key=lambda size: min(self._timings[size]))
                self._split(self._size)
        self.trainer.step_count += 1
        return loss_T

    def _run(self, x: Tensor, labels: Tensor) -> Tensor:
        losses, numbers = [], self.trainer.step_numbers()
        for rows, state in self._parts:
            batch = (x, labels) if self.trainer.shares_batches else (x[rows], labels[rows])
            losses += self._program.boxed_run([*state, numbers.rate[rows], numbers.correction, *batch])
        return losses[0] if len(losses) == 1 else torch.cat(losses)

    def _split(self, size: int) -> None:
        num_trials = self.trainer.num_trials
        slices = [slice(start, min(start + size, num_trials)) for start in range(0, num_trials, size)]
        self._parts = [(rows, [tensor[rows] for tensor in self._state]) for rows in slices]


def compile_steps(trainer: PackState, should_stop: Callable[[], bool]) -> tuple[MakeSteps, float]:
    """Load the compiled steps of a trainer's trials, compiling them if necessary. A corrupt file is compiled again.

    Returns:
        The steps, and the seconds spent compiling or waiting.

    Raises:
        EngineError: No compiler is available, it fails, or the step cannot be pickled for it.
        Interrupted: A stop was requested meanwhile.
    """
    started, program = time.monotonic(), StepProgram.from_trainer(trainer)
    path = compiled_program(program, should_stop)
    try:
        loaded = _load(path)
    except RuntimeError as error:
        log.warning("cannot load compiled step %s (%s), compiling again", path, error)
        path.unlink(missing_ok=True)
        loaded = _load(compiled_program(program, should_stop))
    return partial(CompiledSteps, program=loaded), time.monotonic() - started


def _load(path: Path) -> Any:
    # The public `torch._inductor.aoti_load_package` would also import the compiler: 2 s and 80 MB per worker.
    return torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)


def compiled_program(program: StepProgram, should_stop: Callable[[], bool]) -> Path:
    """Return the file of a compiled program, compiling it if necessary.

    Raises:
        EngineError: As `compile_steps`.
        Interrupted: As `compile_steps`.
    """
    path = private_cache("steps") / f"{program_key(program)}.pt2"
    if not is_private_file(path):
        compiler()
        try:
            with hold_lock(path.with_suffix(".lock"), should_stop):
                if not is_private_file(path):
                    _compile(program, path, should_stop)
        except OSError as error:
            raise EngineError(f"cannot use the cache of compiled steps {path.parent}: {error}") from error
    return path


def program_key(program: StepProgram) -> str:
    """Compute the cache key of a compiled program from everything it depends on."""
    plan, network = program.plan, program.network
    sources: list[Any] = [step, step_program, operations, flat_parameters]
    sources += [base for base in type(network).__mro__ if issubclass(base, Network)]
    try:
        code = [Path(file).read_text(encoding="utf-8") for file in sorted({inspect.getfile(item) for item in sources})]
    except (TypeError, OSError) as error:
        raise EngineError(f"cannot read the source code of the network {type(network).__name__}: {error}") from error
    parts = [
        f"{type(network).__module__}.{type(network).__qualname__}",
        repr(network),
        repr((plan.loss, plan.optimizer, plan.clip_norm, plan.dtype, plan.adam_betas, plan.adam_eps)),
        repr((program.batch_shape, program.input_dtype, program.shares_batches)),
        *code,
        network.custom_code(),
        torch.__version__,
        repr(torch.__config__.show()),
        os.environ.get("CXX", ""),
        processor(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _compile(program: StepProgram, path: Path, should_stop: Callable[[], bool]) -> None:
    """Compile in a separate process, which can be killed and returns the compiler's memory."""
    work = path.with_suffix(".compiling")
    shutil.rmtree(work, ignore_errors=True)  # left behind by a killed worker
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
        return wait_for(process, should_stop, partial(os.killpg, process.pid, signal.SIGKILL))
