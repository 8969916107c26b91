"""Disk cache of kernel libraries: one process per machine builds a library in a few seconds while others wait.

Files are in the folder `native` of the user's cache (`private_cache`). A file's name contains hashes of its dependencies
(headers, constants, flags and processor, then the source and the compiler) and of its content. The folder may be deleted at any
time. A machine without a compiler copies libraries that machines with the same processor have put into the store.

Generated kernels are exported functions that are named after their text, so that any cached library that has a kernel provides
it, and only missing kernels are built.
"""

import ctypes
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from depthrate.tasks.code.private_cache import in_private_cache, is_private_file
from depthrate.tasks.interface import Interrupted, SharedLibraries
from depthrate.tasks.native.compiler import EngineError, NoCompilerError, compiler
from depthrate.tasks.native.library import CallMismatchError, Library
from depthrate.tasks.regular_file import read_regular

SOURCES = Path(__file__).parent
KERNEL_NAMES = re.compile(rb"kernel_[0-9a-f]{24}")
"""Names of generated kernels (`kernel_name`) in a library."""
NUMBERS = {"float32": "float", "float64": "double"}
"""Type of tensors -> type `NUMBER` of kernels."""
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
BUILD_POLL_INTERVAL_S = 0.05
SHARED_LIBRARY_TIMEOUT_S = 20.0
"""Time that a machine without a compiler waits for a library that another machine may be building."""
SHARED_LIBRARY_POLL_INTERVAL_S = 1.0
ERROR_HEAD = 2000
MAX_BYTES = 2**26


def load_library(
    family: str,
    constants: Mapping[str, object],
    should_stop: Callable[[], bool],
    shared: SharedLibraries | None = None,
    flags: tuple[str, ...] = FLAGS,
    bind: Callable[[ctypes.CDLL], Library] = Library,
) -> tuple[Library, float]:
    """Load the library of a handwritten file for these constants, building it if necessary.

    A corrupt file, or one with other structures, is deleted and built again.

    Args:
        family: Name of the file.
        constants: Macros that the file is compiled with.
        should_stop: Returns whether a stop is requested.
        shared: Libraries of other machines.
        flags: Flags of the compiler.
        bind: Returns the interface of a loaded library.

    Returns:
        The library, and the seconds spent building or waiting.

    Raises:
        EngineError: Neither a library nor a compiler exists, the compiler fails, or its library has other structures.
        Interrupted: A stop was requested meanwhile.
    """
    started = time.monotonic()
    text = (SOURCES / f"{family}.cpp").read_text(encoding="utf-8")
    name = f"{_prefix(family, constants, flags)}-{digest(text.encode())}"

    def find_or_build(folder: Path) -> Path:
        if (path := _find_cached(folder, name)) is not None:
            return path
        try:
            command = _command(constants, flags)
        except NoCompilerError as missing:
            return _library_from_store(folder, name, shared, missing, should_stop)
        with hold_lock(folder / f"{name}.lock", should_stop):
            return _find_cached(folder, name) or _build(folder, name, command, text, should_stop)

    try:
        path = in_private_cache("native", find_or_build)
        try:
            library = bind(ctypes.CDLL(str(path)))
        except CallMismatchError:
            path.unlink(missing_ok=True)
            path = in_private_cache("native", find_or_build)
            library = bind(ctypes.CDLL(str(path)))
        if shared is not None:
            shared.keep(path)
        return library, time.monotonic() - started
    except OSError as error:
        raise EngineError(f"cannot use the cache of native steps: {error}") from error
    except CallMismatchError as error:
        path.unlink(missing_ok=True)
        raise EngineError(f"the kernels of {family}.cpp were not loaded: {error}. Make both agree.") from error


def load_kernels(
    sources: Mapping[str, str],
    constants: Mapping[str, object],
    should_stop: Callable[[], bool],
    shared: SharedLibraries | None = None,
    flags: tuple[str, ...] = FLAGS,
) -> tuple[dict[str, int], float]:
    """Load generated kernels, building those that no cached library has, all in one library.

    Args:
        sources: Name of each exported function, which contains a hash of its source -> the source.
        constants: Macros that the sources are compiled with.
        should_stop: Returns whether a stop is requested.
        shared: Libraries of other machines.
        flags: Flags of the compiler.

    Returns:
        The functions' addresses by name, and the seconds spent building or waiting.

    Raises:
        EngineError: Kernels are missing without a compiler, the compiler fails, or the cache cannot be used.
        Interrupted: A stop was requested meanwhile.
    """
    started = time.monotonic()
    prefix = _prefix("kernels", constants, flags)

    def find_or_build(folder: Path) -> list[Path]:
        paths, missing = _libraries_with(folder, prefix, {*sources})
        if not missing:
            return paths
        try:
            command = _command(constants, flags)
        except NoCompilerError as error:
            return paths + _kernels_from_store(folder, prefix, missing, shared, error, should_stop)
        with hold_lock(folder / f"{prefix}-{_digest_of(missing)}.lock", should_stop):
            paths, missing = _libraries_with(folder, prefix, {*sources})
            if missing:
                text = "\n".join(['#include "generated.h"\n', *(sources[name] for name in sorted(missing))])
                paths.append(_build(folder, f"{prefix}-{_digest_of(missing)}", command, text, should_stop))
        return paths

    try:
        paths = in_private_cache("native", find_or_build)
        addresses = {}
        for path in paths:
            library = ctypes.CDLL(str(path))
            for name in sources:
                if hasattr(library, name):
                    addresses[name] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
            if shared is not None:
                shared.keep(path)
    except OSError as error:
        raise EngineError(f"cannot use the cache of native steps: {error}") from error
    if missing := sorted(sources.keys() - addresses.keys()):
        raise EngineError(f"{', '.join(map(str, paths))} lack {', '.join(missing)}. Delete them.")
    return addresses, time.monotonic() - started


def _libraries_with(folder: Path, prefix: str, names: set[str]) -> tuple[list[Path], set[str]]:
    """Find intact libraries that together export as many functions of these names as cached. Corrupt files are deleted.

    Returns:
        The libraries, and the names that none exports.
    """
    compiled_by = "*"
    with suppress(EngineError):
        compiled_by = _compiler_digest()
    found = []
    for path in folder.glob(f"{prefix}-*-{compiled_by}-*.so"):
        content = _content_of(path)
        if content is not None and (exported := names & _exported(content)):
            found.append((-len(exported), path, exported))
    paths, missing = [], set(names)
    for _, path, exported in sorted(found):
        if missing & exported:
            paths.append(path)
            missing -= exported
    return paths, missing


def _exported(library: bytes) -> set[str]:
    return {name.decode() for name in KERNEL_NAMES.findall(library)}


def kernel_name(text: str) -> str:
    """Return the name of the function of a generated kernel, which depends on its text only."""
    return f"kernel_{digest(text.encode())}"


def _digest_of(names: Collection[str]) -> str:
    return digest(" ".join(sorted(names)).encode())


def _command(constants: Mapping[str, object], flags: tuple[str, ...]) -> list[str]:
    """Return the command that compiles a library.

    Raises:
        NoCompilerError: There is no compiler.
    """
    return [compiler(), *flags, *(f"-D{name}={value}" for name, value in constants.items()), f"-I{SOURCES}"]


def cached_text(kind: str, parts: Sequence[str], make: Callable[[], str], *, is_fresh: bool = False) -> str:
    """Return a text that is made from these parts, from the cache if it is there and need not be fresh.

    Raises:
        EngineError: The cache cannot be used.
    """
    name = f"{kind}-{digest(chr(0).join(parts).encode())}"
    return cached_content(name, ".txt", lambda: make().encode(), lambda: False, is_fresh=is_fresh).decode()


def cached_content(
    name: str, suffix: str, make: Callable[[], bytes], should_stop: Callable[[], bool], *, is_fresh: bool = False
) -> bytes:
    """Return the content of a cached file, which one process makes while others wait, if it is missing or must be fresh.

    Raises:
        EngineError: The cache cannot be used.
        Interrupted: A stop was requested while another process made it.
    """

    def find_or_make(folder: Path) -> bytes:
        if not is_fresh and (found := find_intact(folder, name, suffix)) is not None:
            return found[1]
        with hold_lock(folder / f"{name}.lock", should_stop):
            for path in folder.glob(f"{name}-*{suffix}") if is_fresh else ():
                discard(path)
            if (found := find_intact(folder, name, suffix)) is not None:
                return found[1]
            return keep_content(folder, name, suffix, make()).read_bytes()

    try:
        return in_private_cache("native", find_or_make)
    except OSError as error:
        raise EngineError(f"cannot use the cache of native steps: {error}") from error


def _wait_for(process: subprocess.Popen[bytes], should_stop: Callable[[], bool]) -> int:
    """Wait for a compiler's process, which is killed at a stop, and return its exit code.

    Raises:
        Interrupted: A stop was requested meanwhile.
    """
    try:
        while process.poll() is None:
            if should_stop():
                raise Interrupted
            time.sleep(BUILD_POLL_INTERVAL_S)
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
    return process.returncode


@contextmanager
def hold_lock(path: Path, should_stop: Callable[[], bool]) -> Iterator[None]:
    """Hold a file lock, which the system releases at process exit. Wait until it is free.

    Raises:
        Interrupted: A stop was requested while waiting.
    """
    if path.is_dir() or path.is_symlink():
        discard(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # do not block on a pipe
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


def _processor() -> str:
    """Return the processor's model and instruction sets, which determine compatibility and rounding of libraries."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    values = dict(re.split(r"\s*:\s*", line, maxsplit=1) for line in reversed(lines) if ":" in line)
    return f"{values.get('model name')} {values.get('flags', values.get('Features'))}"


def _prefix(family: str, constants: Mapping[str, object], flags: tuple[str, ...]) -> str:
    """Compute the part of a library's file name that depends neither on its source nor on the compiler."""
    headers = [path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.h"))]
    parts = [*headers, repr(sorted(constants.items())), repr(flags), _processor()]
    return f"{family}-{digest(chr(0).join(parts).encode())}"


def _find_cached(folder: Path, name: str) -> Path | None:
    """Find an intact library, of this machine's compiler if it has one, else of any. Corrupt files are deleted."""
    with suppress(EngineError):
        name = f"{name}-{_compiler_digest()}"
    found = find_intact(folder, name, ".so")
    return None if found is None else found[0]


def find_intact(folder: Path, name: str, suffix: str) -> tuple[Path, bytes] | None:
    """Find a file of this name that matches the checksum behind it, and its content. Corrupt files are deleted."""
    for path in sorted(folder.glob(f"{name}-*{suffix}")):
        if (content := _content_of(path)) is not None:
            return path, content
    return None


def _content_of(path: Path) -> bytes | None:
    """Read a file that matches the checksum in its name. Delete it and return None if it does not."""
    with suppress(OSError):  # unreadable, or too large
        if is_private_file(path) and is_intact(path.name, content := read_regular(path, MAX_BYTES)):
            return content
    discard(path)
    return None


def keep_content(folder: Path, name: str, suffix: str, content: bytes) -> Path:
    """Write a file that `find_intact` finds, whole or not at all, and return it."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="writing-") as work:
        made = Path(work) / "content"
        made.write_bytes(content)
        made.chmod(0o600)  # regardless of the umask, so that no other user can write to it
        return made.replace(folder / f"{name}-{digest(content)}{suffix}")


def discard(path: Path) -> None:
    """Delete a file, or a folder in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def is_intact(file_name: str, content: bytes) -> bool:
    """Return whether a library's content matches the checksum in its name."""
    return Path(file_name).stem.rpartition("-")[2] == digest(content)


def _library_from_store(
    folder: Path, name: str, shared: SharedLibraries | None, missing: NoCompilerError, should_stop: Callable[[], bool]
) -> Path:
    """Copy a library that another machine built into `folder`, so that the loaded file is the verified one.

    Raises:
        NoCompilerError: The store has no intact library.
        Interrupted: A stop was requested while waiting for one.
    """
    for file_name, content in _iter_stored(f"{name}-", shared, missing, should_stop):
        return keep_content(folder, file_name.rpartition("-")[0], ".so", content)
    raise missing


def _kernels_from_store(
    folder: Path,
    prefix: str,
    names: set[str],
    shared: SharedLibraries | None,
    missing: NoCompilerError,
    should_stop: Callable[[], bool],
) -> list[Path]:
    """Copy libraries that together export these functions, as `_library_from_store` does."""
    paths = []
    for file_name, content in _iter_stored(f"{prefix}-", shared, missing, should_stop):
        if names & _exported(content):
            names = names - _exported(content)
            paths.append(keep_content(folder, file_name.rpartition("-")[0], ".so", content))
        if not names:
            break
    return paths


def _iter_stored(
    prefix: str, shared: SharedLibraries | None, missing: NoCompilerError, should_stop: Callable[[], bool]
) -> Iterator[tuple[str, bytes]]:
    """Yield the intact libraries of the store whose names have a prefix, again and again until a time limit.

    Raises:
        NoCompilerError: The time limit has passed, or a library is not intact or can be written by others.
        Interrupted: A stop was requested while waiting.
    """
    if shared is None:
        raise missing
    until, reason = time.monotonic() + SHARED_LIBRARY_TIMEOUT_S, None
    while reason is None:
        try:
            for file_name, content in shared.iter_matching(prefix):
                if not is_intact(file_name, content):
                    reason = f"{file_name} in the store does not match its checksum and was not loaded. Delete it."
                    break
                yield file_name, content
        except OSError as error:
            reason = str(error)
        if should_stop():
            raise Interrupted
        if reason is None and time.monotonic() >= until:
            reason = "no node with a compiler and this processor has put a library into the store"
        elif reason is None:
            time.sleep(SHARED_LIBRARY_POLL_INTERVAL_S)
    raise NoCompilerError(f"{missing} No library from the store: {reason}") from None


def _build(folder: Path, name: str, command: list[str], source: str, should_stop: Callable[[], bool]) -> Path:
    with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as work:
        library, text = Path(work) / "library.so", Path(work) / "library.cpp"
        text.write_text(source, encoding="utf-8")
        command = [*command, str(text), "-o", str(library)]
        with (Path(work) / "output").open("w+b") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            code = _wait_for(process, should_stop)
            output.seek(0)
            if code or not library.exists():
                head = output.read()[:ERROR_HEAD].decode(errors="replace")
                library.write_bytes(os.urandom(2**22))  # raises OSError if the disk has less space than a library needs
                raise EngineError(
                    f"building native steps failed with exit code {code}. Train with --engine eager. The "
                    f"compiler's output starts: {head}"
                )
        return keep_content(folder, f"{name}-{_compiler_digest()}", ".so", library.read_bytes())


def _compiler_digest() -> str:
    """Compute a short digest of the compiler's version and target."""
    done = subprocess.run([compiler(), "-v"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return digest(done.stdout + done.stderr)[:8]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]
