"""Kernel libraries on disk are built once for all processes, atomically, and errors name missing programs."""

import contextlib
import ctypes
import os
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import pytest

from depthrate.tasks.interface import Interrupted
from depthrate.tasks.native import build
from depthrate.tasks.native.build import FLAGS, cached_text, load_kernels, load_library
from depthrate.tasks.native.compiler import EngineError, NoCompilerError
from depthrate.tasks.native.library import Call, Library
from depthrate.tasks.native.table import Kernel
from tests.support.native_trials import native_trainer, network_of, plan_of, trainer_of, trials_of

CONSTANTS = {"NUMBER": "float", "WIDTH": 3, "INPUTS": 2, "CLASSES": 2, "LINEAR_LAYERS": 1, "PRE_NORM": 0}
QUICK = (*(flag for flag in FLAGS if flag != "-O3"), "-O0")


def never():
    return False


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "depthrate" / "native"


def libraries(folder):
    return sorted(folder.glob("*.so"))


def get(constants=CONSTANTS):
    return load_library("residual", constants, never, flags=QUICK)


@pytest.mark.slow
def test_built_once_without_recompiling(empty_cache, monkeypatch):
    get()
    (made,) = libraries(empty_cache)
    before = made.stat()
    monkeypatch.setenv("PATH", "")
    _, seconds = get()
    assert made.stat() == before and seconds < 1
    get({**CONSTANTS, "WIDTH": 3})
    with pytest.raises(NoCompilerError, match=r"'g\+\+' is not on PATH.*install g\+\+.*--engine eager"):
        get({**CONSTANTS, "WIDTH": 4})
    assert libraries(empty_cache) == [made]


@pytest.mark.slow
def test_corrupt_library_is_rebuilt(empty_cache, monkeypatch):
    get()
    (made,) = libraries(empty_cache)
    content = made.read_bytes()
    for broken in (content[:5000], content[:-1] + b"?", b""):
        damaged = empty_cache / "damaged"  # not in place, where this process has mapped the library
        damaged.write_bytes(broken)
        damaged.chmod(0o700)
        damaged.replace(made)
        with monkeypatch.context() as without_compiler:
            without_compiler.setenv("PATH", "")
            with pytest.raises(NoCompilerError):
                get()
        assert libraries(empty_cache) == []
        get()
        assert [path.read_bytes() for path in libraries(empty_cache)] == [content]


def test_sources_are_generated_once_and_again_where_damaged(empty_cache):
    made = []

    def make():
        made.append(None)
        return f"int made = {len(made)};"

    assert [cached_text("made", parts, make)[-2] for parts in (["a", "b"], ["a", "b"], ["a", "c"])] == ["1", "1", "2"]
    for path in empty_cache.glob("made-*"):
        path.write_text("int made = 9;")
    assert (
        cached_text("made", ["a", "b"], make) == "int made = 3;"
        and cached_text("made", ["a", "b"], make) == "int made = 3;"
    )
    empty_cache.chmod(0o500)
    if os.geteuid():  # root may write everywhere
        with pytest.raises(EngineError, match="cannot use the cache"):
            cached_text("made", ["d"], make)


def kernels_of(*numbers):
    """Return the sources of kernels that write a number."""
    kernels = [Kernel(("Number",), f"  p0[0] = {number};") for number in numbers]
    return {kernel.symbol: kernel.source() for kernel in kernels}


def numbers_of(sources):
    """Return the numbers that loaded kernels write."""
    addresses, _ = load_kernels(sources, {"NUMBER": "float"}, never, flags=QUICK)
    assert addresses.keys() == sources.keys()
    written, kernel = ctypes.c_float(), ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    places = (ctypes.c_void_p * 1)(ctypes.addressof(written))
    return [kernel(addresses[name])(None, places) or written.value for name in sources]


@pytest.mark.slow
def test_only_missing_kernels_are_built(empty_cache, monkeypatch):
    """Networks of other depths have some kernels in common."""
    assert numbers_of(kernels_of(1, 2, 3)) == [1, 2, 3] and len(libraries(empty_cache)) == 1
    (first,) = libraries(empty_cache)
    assert numbers_of(kernels_of(4, 2)) == [4, 2] and len(libraries(empty_cache)) == 2
    assert numbers_of(kernels_of(4, 5)) == [4, 5] and len(libraries(empty_cache)) == 3
    with monkeypatch.context() as without_compiler:
        without_compiler.setenv("PATH", "")
        assert numbers_of(kernels_of(5, 3, 4)) == [5, 3, 4]
        with pytest.raises(NoCompilerError, match="not on PATH"):
            numbers_of(kernels_of(5, 6))
    damaged = empty_cache / "damaged"  # not in place, where this process has mapped the library
    damaged.write_bytes(first.read_bytes()[:-1] + b"?")
    damaged.chmod(0o600)
    damaged.replace(first)
    assert numbers_of(kernels_of(3, 4)) == [3, 4] and not first.exists() and len(libraries(empty_cache)) == 3


@pytest.mark.slow
def test_processes_build_equal_kernels_once(empty_cache):
    code = (
        "from depthrate.tasks.native.build import *\n"
        "from tests.tasks.native.test_build import QUICK, kernels_of\n"
        "load_kernels(kernels_of(1, 2), {'NUMBER': 'float'}, lambda: False, flags=QUICK)"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(libraries(empty_cache)) == 1


@pytest.mark.slow
def test_second_builder_waits(empty_cache, monkeypatch):
    built = []

    def counted(*given):
        built.append(threading.current_thread())
        return build_it(*given)

    build_it = build._build
    monkeypatch.setattr(build, "_build", counted)
    threads = [threading.Thread(target=get) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1 and len(libraries(empty_cache)) == 1


@pytest.mark.slow
def test_concurrent_builds_leave_one_library(empty_cache):
    code = f"from depthrate.tasks.native.build import *; load_library('residual', {CONSTANTS}, lambda: False, flags={QUICK})"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(libraries(empty_cache)) == 1 and not list(empty_cache.glob("building-*"))


@pytest.mark.slow
def test_another_compiler_builds_its_own(empty_cache, monkeypatch, tmp_path):
    get()
    other = tmp_path / "other-compiler"
    other.write_text('#!/bin/sh\n[ "$1" = -v ] && echo another version\nexec g++ "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("CXX", str(other))
    get()
    assert len(libraries(empty_cache)) == 2


@pytest.mark.slow
def test_changed_calls_rebuild(empty_cache):
    """A library of an older version under this name: intact by its checksum, with a smaller call structure or none exported."""
    get()
    (made,) = libraries(empty_cache)
    source = empty_cache / "other.cpp"
    smaller = 'extern "C" { long call_bytes() { return 8; } long call_version() { return 1; } }'
    for text in ("", smaller):
        source.write_text(text)
        subprocess.run(["g++", "-shared", "-fPIC", source, "-o", empty_cache / "other"], check=True)
        other = (empty_cache / "other").read_bytes()
        planted = made.with_name(f"{made.stem.rpartition('-')[0]}-{build.digest(other)}.so")
        planted.write_bytes(other)
        planted.chmod(0o700)
        made.unlink()
        get()
        assert libraries(empty_cache) == [made]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"_fields_": [*Call._fields_, ("more", ctypes.c_int64)], "version": Call.version},
        {"_fields_": Call._fields_, "version": Call.version + 1},
    ],
)
def test_structure_mismatch_is_refused(empty_cache, change):
    mirror = type("OtherCall", (ctypes.Structure,), change)
    with pytest.raises(EngineError, match=r"residual.cpp.*\(bytes, version\) .*OtherCall"):
        load_library("residual", CONSTANTS, never, flags=QUICK, bind=partial(Library, call=mirror))
    assert libraries(empty_cache) == []


def test_a_stop_ends_the_building(empty_cache):
    with pytest.raises(Interrupted):
        load_library("residual", CONSTANTS, lambda: True, flags=QUICK)
    assert libraries(empty_cache) == [] and not list(empty_cache.glob("building-*"))


@pytest.mark.slow
def test_compiler_errors_are_shown(empty_cache):
    with pytest.raises(EngineError, match=r"(?s)building .* failed with exit code 1.*--engine eager.*not name a type"):
        get({**CONSTANTS, "NUMBER": "nosuch"})
    assert libraries(empty_cache) == []


def small(flags=QUICK):
    """Load a library that is quick to build, and return the file that was loaded."""
    library, _ = load_library("unconstrained", {"NUMBER": "float", "WIDTH": 3, "CLASSES": 2}, never, flags=flags)
    return Path(library._library._name)


@pytest.mark.slow
def test_unwritable_cache_stays_in_process(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    made = small()
    assert not made.is_relative_to(tmp_path) and made.parent.stat().st_mode & 0o777 == 0o700
    assert small() == made and caplog.text.count("XDG_CACHE_HOME") == 1


@pytest.fixture
def small_disk(tmp_path):
    """Return a function that mounts a disk of this many bytes at the cache's folder, which another process fills."""
    folder = tmp_path / "depthrate"
    folder.mkdir(mode=0o700)

    def mount(size):
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", folder], check=False)
        if done.returncode:
            pytest.skip("needs the right to mount a disk")

    yield mount
    subprocess.run(["umount", "--lazy", folder], check=False, capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize("size", [4096, 20480], ids=["at once", "while the compiler writes"])
def test_full_cache_falls_back(empty_cache, small_disk, tmp_path, caplog, size):
    small_disk(size)
    empty_cache.mkdir(mode=0o700)
    made = small()
    assert not made.is_relative_to(tmp_path) and made.parent.stat().st_mode & 0o777 == 0o700
    assert small() == made and f"{empty_cache} is full (No space left on device)" in caplog.text
    assert cached_text("made", ["x"], lambda: "// " + "x" * 500_000)[-1] == "x"
    assert caplog.text.count("Set XDG_CACHE_HOME") == 1


@pytest.mark.slow
def test_a_cache_and_temporary_folder_that_are_full_are_named(small_disk, monkeypatch, tmp_path):
    small_disk("64k")
    temporary = tmp_path / "depthrate/tmp"
    temporary.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(EngineError, match=rf"Set XDG_CACHE_HOME or TMPDIR to a folder with space.*{temporary}"):
        cached_text("made", ["full"], lambda: "x" * 500_000)


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_cache_is_private_under_any_umask(empty_cache, umask):
    (empty_cache.parent).mkdir()
    before = os.umask(umask)
    try:
        made = small()
    finally:
        os.umask(before)
    assert made.parent == empty_cache
    assert not any(p.stat().st_mode & 0o022 for p in (made, *empty_cache.iterdir(), empty_cache, empty_cache.parent))


@pytest.mark.slow
def test_foreign_writable_library_is_rebuilt(empty_cache):
    made = small()
    first = made.stat().st_ino
    for spoil in (lambda: made.chmod(0o777), lambda: os.link(made, empty_cache / "x"), lambda: os.chown(made, 99, -1)):
        spoil()
        with contextlib.suppress(FileNotFoundError):
            (empty_cache.parent / "kept").unlink()
        os.link(made, empty_cache.parent / "kept")  # so that its number is not given to the next one
        assert small() == made and made.stat().st_ino != first
        first = made.stat().st_ino


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_folder_of_somebody_else_is_not_used(empty_cache):
    shared = empty_cache.parent
    empty_cache.mkdir(parents=True)
    forged = small()
    shared.parent.chmod(0o1777)  # as /tmp, where another was here first
    for theirs in (empty_cache, shared):
        os.chown(theirs, 12345, -1)
        assert small().parent != forged.parent
        os.chown(theirs, os.geteuid(), -1)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["library", "lock"])
def test_pipe_blocks_nothing(empty_cache, place):
    made = small()
    name = made.name.rsplit("-", 2)[0]
    made.unlink()
    if place == "lock":
        (empty_cache / f"{name}.lock").unlink()
    os.mkfifo(made if place == "library" else empty_cache / f"{name}.lock")
    assert small().is_file()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["library", "lock"])
def test_folder_or_link_is_replaced(empty_cache, place):
    made = small()
    path = made if place == "library" else empty_cache / f"{made.name.rsplit('-', 2)[0]}.lock"
    for put in (lambda: (path / "inside").mkdir(parents=True), lambda: path.symlink_to("nowhere"), path.mkdir):
        made.unlink()
        path.unlink(missing_ok=True)
        put()
        assert small() == made and made.is_file() and not made.is_symlink()


@pytest.mark.slow
def test_a_library_of_impossible_size_is_replaced(empty_cache):
    made = small()
    made.unlink()
    made.touch(mode=0o700)
    os.truncate(made, build.MAX_BYTES + 1)
    assert small() == made and made.stat().st_size < build.MAX_BYTES


def test_it_needs_no_torch():
    code = "import sys; from depthrate.tasks.native import build, library; library.Call(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_background_build_trains(empty_cache):
    code = (
        "import os, sys, threading\n"
        "from types import SimpleNamespace\n"
        "from tests.support.own_data import Folder\n"
        "from depthrate.tasks.interface import Engine\n"
        "from depthrate.tasks.registry import registered_task\n"
        "task = registered_task('collapse')\n"
        "params = task.schema.fill(dict(arch='rn1', depth=2, width=8, samples_per_class=2, steps=1, dtype=sys.argv[1]))\n"
        "context = SimpleNamespace(engine=Engine.NATIVE, device='cpu', should_stop=lambda: False)\n"
        "task.prepare(params, context)\n"
        "[thread.join() for thread in threading.enumerate() if thread.name == 'kernels']\n"
        "assert 'torch' not in sys.modules\n"
        "os.environ['PATH'] = ''\n"
        "training = task.training([task.read(params)], Folder('.'))\n"
        "training.native_library(lambda: False)\n"
    )
    for number, dtype in enumerate(("float32", "float64")):
        subprocess.run([sys.executable, "-c", code, dtype], check=True)
        assert len(libraries(empty_cache)) == number + 1


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["-mavx2 -mfma", "-march=x86-64", "-march=x86-64-v3"])
def test_other_instruction_sets_work(flags, monkeypatch):
    """Vectors of other lengths round in another order, and give the same but for that."""
    from depthrate.tasks.training.engines import native

    if "avx2" not in build._processor():
        pytest.skip("a processor without AVX2")
    given = tuple(flag for flag in FLAGS if flag != "-march=native") + tuple(flags.split())
    monkeypatch.setattr(native, "load_library", lambda *requested: load_library(*requested, flags=given))
    network, plan = network_of(19, linear_layers=2, pre_norm=True), plan_of(batch_size=33)
    eager, native = (make(network, plan, trials_of(2), 67) for make in (trainer_of, native_trainer))
    for _ in range(10):
        assert abs(native.step() - eager.step()).max() < 1e-5
    assert (native.theta_TP - eager.theta_TP).abs().max() < 5e-6


@pytest.mark.slow
def test_libraries_of_one_process_share_nothing(empty_cache):
    """If two types shared a file name, the library loaded first would serve both."""
    get()
    (made,) = libraries(empty_cache)
    symbols = subprocess.run(["nm", "-D", "--defined-only", made], capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in symbols.splitlines()} <= {"T", "W"}


@pytest.mark.slow
def test_missing_instructions_can_be_targeted():
    """AVX-512 is compiled wherever the suite runs, whether or not it can be run there."""
    for number in ("float", "double"):
        defines = [f"-D{name}={value}" for name, value in {**CONSTANTS, "NUMBER": number, "WIDTH": 33}.items()]
        command = ["g++", "-std=c++17", "-O1", "-march=skylake-avx512", "-Wall", "-Werror", "-fsyntax-only", *defines]
        if build._processor().find("avx") >= 0:  # an x86
            subprocess.run([*command, str(build.SOURCES / "residual.cpp")], check=True)
