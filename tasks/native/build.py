"""Libraries of kernels on disk, each built once on a machine in a few seconds, by one process while others wait for it.

They lie in the folder `native` of the user's cache (`private_cache`). A file's name says what it depends on (sources,
constants, flags, processor; compiler) and what it holds (its checksum). The folder may be deleted at any time. A machine
without a compiler takes over what another one with the same processor has built, where there is a place for that.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from depthrate.tasks.interface import Interrupted, SharedLibraries
from depthrate.tasks.native.library import AnyCall, Call, CallMismatchError, Library
from depthrate.tasks.private_cache import is_private_file, private_cache
from depthrate.tasks.regular_file import read_regular
from depthrate.tasks.training.engines.choice import EngineError, NoCompilerError, compiler

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
BUILD_POLL_INTERVAL_S = 0.05
OTHERS_S, LOOK_S = 20.0, 1.0
"""How long a machine without a compiler waits for a library of others, who may just be building it, and between two looks."""
ERROR_HEAD = 2000
MAX_BYTES = 2**26
LIBRARY_MODE = 0o700
"""Of a library, whatever the umask allows: nobody else may write to it."""


def load_library(
    family: str,
    constants: Mapping[str, object],
    should_stop: Callable[[], bool],
    shared: SharedLibraries | None = None,
    flags: tuple[str, ...] = FLAGS,
    call: type[AnyCall] = Call,
) -> tuple[Library, float]:
    """Load the kernels of a family of networks for these constants; return them and the seconds of building or waiting.

    A damaged file, or one that reads calls of another structure, is deleted and built again.

    Raises:
        EngineError: neither a library nor a compiler exists, the compiler fails, or its library reads other calls than `call`.
        Interrupted: a stop was requested meanwhile.
    """
    started = time.monotonic()
    folder = private_cache("native")
    name = _name(family, constants, flags)
    try:
        path = _find_or_build(folder, name, family, constants, should_stop, shared, flags)
        try:
            library = Library(ctypes.CDLL(str(path)), call)
        except CallMismatchError:
            path.unlink(missing_ok=True)
            path = _find_or_build(folder, name, family, constants, should_stop, shared, flags)
            library = Library(ctypes.CDLL(str(path)), call)
        if shared is not None:
            shared.keep(path)
        return library, time.monotonic() - started
    except OSError as error:
        raise EngineError(f"native steps are kept in {folder}, which cannot be used: {error}") from error
    except CallMismatchError as error:
        path.unlink(missing_ok=True)
        raise EngineError(f"the kernels of {family}.cpp were not loaded: {error}; make them agree") from error


def _find_or_build(
    folder: Path,
    name: str,
    family: str,
    constants: Mapping[str, object],
    should_stop: Callable[[], bool],
    shared: SharedLibraries | None,
    flags: tuple[str, ...],
) -> Path:
    path = _find_cached(folder, name)
    if path is not None:
        return path
    try:
        compiler()
    except NoCompilerError as missing:
        return _library_from_store(folder, name, shared, missing, should_stop)
    with hold_lock(folder / f"{name}.lock", should_stop):
        return _find_cached(folder, name) or _build(folder, name, family, constants, flags, should_stop)


@contextmanager
def hold_lock(path: Path, should_stop: Callable[[], bool]) -> Iterator[None]:
    """Hold a lock that ends with this process; waits for whoever holds it.

    Raises:
        Interrupted: asked to stop while it waited.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe is not waited for
    with open(os.open(path, flags, 0o600), "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if should_stop():
                    raise Interrupted from None
                time.sleep(BUILD_POLL_INTERVAL_S)
        yield


def processor() -> str:
    """Return what a compiled program needs of a processor, and what decides how it rounds: model and instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    values = dict(re.split(r"\s*:\s*", line, maxsplit=1) for line in reversed(lines) if ":" in line)
    return f"{values.get('model name')} {values.get('flags', values.get('Features'))}"


def _name(family: str, constants: Mapping[str, object], flags: tuple[str, ...]) -> str:
    """Return what a library's file name begins with, whichever compiler built it."""
    sources = [path.read_text(encoding="utf-8") for path in (*sorted(SOURCES.glob("*.h")), SOURCES / f"{family}.cpp")]
    parts = [*sources, repr(sorted(constants.items())), repr(flags), processor()]
    return f"{family}-{_digest(chr(0).join(parts).encode())}"


def _find_cached(folder: Path, name: str) -> Path | None:
    """Return a library that is whole: of the compiler that is here, or of any where there is none."""
    with suppress(EngineError):
        name = f"{name}-{_compiler_digest()}"
    for path in sorted(folder.glob(f"{name}-*.so")):
        if is_private_file(path) and _is_intact(path.name, read_regular(path, MAX_BYTES)):
            return path
        path.unlink(missing_ok=True)
    return None


def _is_intact(file_name: str, content: bytes) -> bool:
    """Whether a library is what its name says."""
    return Path(file_name).stem.rpartition("-")[2] == _digest(content)


def _library_from_store(
    folder: Path,
    name: str,
    shared: SharedLibraries | None,
    missing: NoCompilerError,
    should_stop: Callable[[], bool],
) -> Path:
    """Return a library that another machine built, copied into our folder: what is loaded is what was compared with its name.

    Raises:
        NoCompilerError: there is none.
        Interrupted: asked to stop while it waited for one.
    """
    if shared is None:
        raise missing
    until, why = time.monotonic() + OTHERS_S, None
    while why is None:
        try:
            for file_name, content in shared.iter_matching(f"{name}-"):
                if _is_intact(file_name, content):
                    with tempfile.TemporaryDirectory(dir=folder, prefix="taking-") as work:
                        copy = Path(work) / "library.so"
                        copy.write_bytes(content)
                        copy.chmod(LIBRARY_MODE)
                        return copy.replace(folder / file_name)
                why = f"{file_name} in the store is not what its name says and was not loaded: delete it"
        except OSError as error:
            why = str(error)
        if should_stop():
            raise Interrupted
        if why is None and time.monotonic() >= until:
            why = "no node with a compiler and this processor has left a library in the store"
        elif why is None:
            time.sleep(LOOK_S)
    raise NoCompilerError(f"{missing}; {why}") from None


def _build(
    folder: Path,
    name: str,
    family: str,
    constants: Mapping[str, object],
    flags: tuple[str, ...],
    should_stop: Callable[[], bool],
) -> Path:
    with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as work:
        made = Path(work) / "library.so"
        defines = [f"-D{constant}={value}" for constant, value in constants.items()]
        command = [compiler(), *flags, *defines, str(SOURCES / f"{family}.cpp"), "-o", str(made)]
        with (Path(work) / "output").open("w+b") as printed:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT)
            try:
                while process.poll() is None:
                    if should_stop():
                        raise Interrupted
                    time.sleep(BUILD_POLL_INTERVAL_S)
            finally:
                if process.returncode is None:
                    process.kill()
                    process.wait()
            printed.seek(0)
            if process.returncode or not made.exists():
                words = printed.read()[:ERROR_HEAD].decode(errors="replace")
                raise EngineError(
                    f"native steps cannot be built (exit code {process.returncode}); train with --engine eager; "
                    f"the compiler's first words: {words}"
                )
        path = folder / f"{name}-{_compiler_digest()}-{_digest(made.read_bytes())}.so"
        made.chmod(LIBRARY_MODE)
        os.replace(made, path)
        return path


def _compiler_digest() -> str:
    """Return what tells the compiler apart that is here: its version and what it builds for."""
    asked = subprocess.run([compiler(), "-v"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return _digest(asked.stdout + asked.stderr)[:8]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]
