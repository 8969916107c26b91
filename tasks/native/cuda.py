"""Kernel libraries of a GPU: CUDA C++ compiled by NVRTC of torch's installation, and launched by the driver.

Compiled kernels are in the cache of `build.py`, in files whose names contain hashes of their dependencies and content.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from depthrate.tasks.code.trust import ROOT, distrust_of_paths
from depthrate.tasks.native.build import SOURCES, cached_content, digest
from depthrate.tasks.native.codegen.cuda_emit import CudaSource
from depthrate.tasks.native.codegen.cuda_plan import Tuning
from depthrate.tasks.native.codegen.values import up
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.native.library import AnyCall, Call, Library

HEADERS = ("cuda.h", "call.h")
OPTIONS = ("--std=c++17", "-default-device", "--disable-warnings")
_MAX_DYNAMIC_SHARED_BYTES, _SHARED_CARVEOUT = 8, 9
"""Numbers of function attributes in the driver's interface."""
_ATTRIBUTES = {"shared_bytes": 1, "local_bytes": 3, "registers": 4}
"""Name -> number of the function attributes that `resources` reads."""


class NvrtcMissingError(EngineError):
    """Raised when torch's installation has no NVRTC library that may be loaded."""


def compile_cubin(source: CudaSource, number: str, architecture: str, *more_options: str) -> bytes:
    """Compile a source for an architecture like sm_90. No GPU is needed.

    Raises:
        EngineError: The compiler rejects it, or is missing.
    """
    library, program = _nvrtc(), ctypes.c_void_p()

    def check(code: int) -> None:
        if code:
            raise EngineError(f"NVRTC failed with code {code}: {_log(library, program)[:2000]}")

    headers = [(SOURCES / name).read_bytes() for name in HEADERS]
    names = [name.encode() for name in HEADERS]
    text, count = source.text.encode(), len(HEADERS)
    arrays = (ctypes.c_char_p * count)(*headers), (ctypes.c_char_p * count)(*names)
    check(library.nvrtcCreateProgram(ctypes.byref(program), text, b"steps.cu", count, *arrays))
    try:
        options = [option.encode() for option in (*_options(source, number, architecture), *more_options)]
        check(library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)))
        size = ctypes.c_size_t()
        check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        cubin = ctypes.create_string_buffer(size.value)
        check(library.nvrtcGetCUBIN(program, cubin))
        return cubin.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _options(source: CudaSource, number: str, architecture: str) -> list[str]:
    constants = {"NUMBER": number, "THREADS": source.threads, "BLOCKS": source.blocks, "PARTS": source.num_parts}
    return [f"--gpu-architecture={architecture}", *OPTIONS, *(f"-D{name}={value}" for name, value in constants.items())]


def _log(library: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace")


def _nvrtc() -> ctypes.CDLL:
    builtins, library = find_nvrtc(Path(torch.__file__).parent)
    ctypes.CDLL(str(builtins))  # NVRTC opens it by name, which finds it only once it is loaded
    return ctypes.CDLL(str(library))


def find_nvrtc(package: Path) -> tuple[Path, Path]:
    """Find the builtins and the library of NVRTC in the installation of torch's `package`.

    They are never searched by name, since the working folder or a variable could then provide another library.

    Raises:
        NvrtcMissingError: It has none, or only one that other users can change.
    """
    checks_owner = package.stat().st_uid in (os.geteuid(), ROOT)  # else torch itself runs the code of another owner
    environment = [Path(sys.prefix, "lib")] if package.is_relative_to(sys.prefix) else []  # where conda installs it
    problem = f"NVRTC, which torch's CUDA wheels contain, is missing next to {package}: pip install nvidia-cuda-nvrtc"
    for folder in (*sorted(package.parent.glob("nvidia/*/lib")), *environment):
        for builtins, library in zip(
            sorted(folder.glob("libnvrtc-builtins.so.*")), sorted(folder.glob("libnvrtc.so.*")), strict=False
        ):
            problems = distrust_of_paths([builtins, library], {folder.resolve()}, check_owner=checks_owner)
            if not problems:
                return builtins, library
            problem = f"NVRTC is not loaded: {problems[0]}. Let only its owner change it: chmod go-w"
    raise NvrtcMissingError(problem)


def nvrtc_version() -> str:
    """Return the version of NVRTC.

    Raises:
        NvrtcMissingError: There is none.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def load_cuda_library(
    source: CudaSource, number: str, should_stop: Callable[[], bool] = lambda: False
) -> tuple["CudaLibrary", float]:
    """Load kernels for torch's current GPU, compiling them if they are not in the cache.

    Returns:
        The library, and the seconds spent compiling or waiting.

    Raises:
        EngineError: They cannot be compiled or loaded.
        Interrupted: A stop was requested while another process compiled them.
    """
    started = time.monotonic()
    major, minor = torch.cuda.get_device_capability()
    cubin = cached_cubin(source, number, f"sm_{major}{minor}", should_stop)
    return CudaLibrary(source, cubin), time.monotonic() - started


RESERVED_BYTES = 1024
"""Bytes of shared memory that each block takes in addition."""


def tuning_of(num_trials: int) -> Tuning:
    """Choose how torch's current GPU divides steps: one block per multiprocessor if there are no more trials, else two.

    Both give equal bits, because a block has as many threads in both.

    Raises:
        EngineError: There is no GPU with enough shared memory.
    """
    _driver()
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    blocks = 1 if num_trials <= gpu.multi_processor_count else 2
    own = gpu.shared_memory_per_multiprocessor // blocks - RESERVED_BYTES
    most: int = gpu.shared_memory_per_block_optin  # type: ignore[attr-defined]  # missing in torch's stub only
    return Tuning(blocks=blocks, shared_bytes=min(most, own))


def cached_cubin(
    source: CudaSource, number: str, architecture: str, should_stop: Callable[[], bool] = lambda: False
) -> bytes:
    """Return compiled kernels from the cache, which they are added to if necessary.

    Raises:
        EngineError: They cannot be compiled, or the cache cannot be used.
        Interrupted: A stop was requested while another process compiled them.
    """
    parts = [source.text, *((SOURCES / name).read_text(encoding="utf-8") for name in HEADERS), nvrtc_version()]
    parts += _options(source, number, architecture)  # machine code does not depend on the driver
    name = f"cuda-{digest(chr(0).join(parts).encode())}"
    return cached_content(name, ".cubin", lambda: compile_cubin(source, number, architecture), should_stop)


def needed_bytes(source: CudaSource, call: Call, blocks: int) -> int:
    """Return the bytes of scratch memory: an arena per block, behind the parts of all trials, as in cuda.h."""
    arenas = blocks * source.arena_bytes
    if source.num_parts == 1:
        return arenas
    part = up(call.num_parameters * source.number_bytes, 16) + 16
    return up(call.num_trials * source.num_parts * part, 256) + arenas


def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise EngineError("the CUDA driver is missing") from error


class CudaLibrary(Library):
    """The kernels of one network's steps on torch's current GPU."""

    device = "cuda"

    def __init__(self, source: CudaSource, cubin: bytes):
        """Load compiled kernels.

        Raises:
            EngineError: The driver rejects them.
        """
        self.source, self._driver = source, _driver()
        torch.cuda.current_stream()
        torch.zeros(1, device="cuda")  # creates the context in which the module is loaded
        module = self._module = ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(module), cubin))
        self._functions = {}
        self.programs = ("run",) if source.num_parts == 1 else ("part", "step")
        """Kernels that take steps."""
        for name in (*self.programs, "evaluate"):
            function = ctypes.c_void_p()
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
            self._check(
                self._driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_BYTES, ctypes.c_int(source.shared_bytes))
            )
            self._check(self._driver.cuFuncSetAttribute(function, _SHARED_CARVEOUT, ctypes.c_int(100)))
            self._functions[name] = function
        processors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self.max_blocks = processors * max(self.resources(self.programs[0])["blocks"], 1)
        """Blocks that run at the same time."""
        self._scratch = torch.empty(0, dtype=torch.uint8, device="cuda")

    def resources(self, name: str) -> dict[str, int]:
        """Return registers and bytes per thread and block of a kernel, and the blocks that fit on a multiprocessor."""
        found, value = {}, ctypes.c_int()
        for attribute, number in _ATTRIBUTES.items():
            self._check(self._driver.cuFuncGetAttribute(ctypes.byref(value), number, self._functions[name]))
            found[attribute] = value.value
        self._check(
            self._driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                ctypes.byref(value),
                self._functions[name],
                self.source.threads,
                ctypes.c_size_t(self.source.shared_bytes),
            )
        )
        return {**found, "blocks": value.value, "dynamic_shared_bytes": self.source.shared_bytes}

    def statement_cycles(self) -> list[int]:
        """Return the cycles that the first block has spent in each statement, of kernels compiled with -DTIMED_STEPS."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        symbol = b"statement_cycles"
        self._check(self._driver.cuModuleGetGlobal_v2(ctypes.byref(address), ctypes.byref(size), self._module, symbol))
        cycles = (ctypes.c_longlong * (size.value // 8))()
        self._check(self._driver.cuMemcpyDtoH_v2(cycles, address, size))
        return list(cycles)

    def scratch_bytes(self, call: AnyCall) -> int:
        """Return 0: all calls share memory of the library, which grows with the blocks of a launch."""
        return 0

    def run(self, call: AnyCall) -> None:
        """Take `num_steps` steps of every trial in place, and wait for them."""
        self._allocate(call)
        if self.source.num_parts == 1:
            self._launch("run", call, call.num_trials)
        else:
            for step in range(call.num_steps):
                self._launch("part", call, self.source.num_parts * call.num_trials, step)
                self._launch("step", call, call.num_trials, step)
        torch.cuda.current_stream().synchronize()

    def evaluate(self, call: AnyCall) -> None:
        self._allocate(call)
        self._launch("evaluate", call, call.num_trials)
        torch.cuda.current_stream().synchronize()

    def _launch(self, name: str, call: Any, num_tasks: int, *numbers: int) -> None:
        """Launch a kernel with a block for each of a number of tasks, or as many as run at the same time."""
        blocks = min(num_tasks, self.max_blocks)
        values = [ctypes.c_int64(number) for number in numbers]
        arguments = (ctypes.c_void_p * (1 + len(values)))(*(ctypes.addressof(value) for value in (call, *values)))
        self._check(
            self._driver.cuLaunchKernel(
                self._functions[name],
                *(blocks, 1, 1),
                *(self.source.threads, 1, 1),
                self.source.shared_bytes,
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
                arguments,
                None,
            )
        )

    def _allocate(self, call: Any) -> None:
        needed = needed_bytes(self.source, call, min(self.source.num_parts * call.num_trials, self.max_blocks))
        if len(self._scratch) < needed:
            self._scratch = torch.zeros(needed, dtype=torch.uint8, device="cuda")
        call.scratch = self._scratch.data_ptr()

    def _check(self, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(text))
            raise EngineError(f"the CUDA driver reports: {(text.value or b'').decode()} ({code})")
