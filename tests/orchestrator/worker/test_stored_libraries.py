"""Kernel libraries that one node built are used on another without a compiler, unmodified and only from a private store."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.attempts.record import new_attempt_id, read_attempt
from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.worker.stored_libraries import StoredLibraries
from depthrate.storage.attempts.records import Record
from depthrate.storage.files.store import Store
from depthrate.storage.tables.states import AttemptState, FailureKind
from depthrate.tasks.native import build
from depthrate.tasks.native.compiler import NoCompilerError
from depthrate.tasks.native.table import Kernel
from depthrate.tasks.papers.unconstrained.task import DUFM
from tests.support.launches import job_options

pytestmark = pytest.mark.slow

GIVEN = {"depth": 2, "num_classes": 2, "samples_per_class": 3, "width": 7, "steps": 40}


class Node:
    """A simulated node: a separate environment in which workers start."""

    def __init__(self, folder: Path, store: Store, *, has_compiler: bool):
        folder.mkdir()
        self.cache, self._store = folder / "depthrate" / "native", store
        self._environment = os.environ | {"XDG_CACHE_HOME": str(folder)}
        if not has_compiler:
            self._environment |= {"PATH": str(folder)}

    def run(self) -> Record:
        """Run a pack as a cluster's job does, and return its record."""
        options = job_options(self._store, engine="native", shares_libraries=True)
        named = new_attempt_id()
        pack = {"pack_id": f"p{named}", "trial_ids": [f"t{named}"], "params": [DUFM.schema.fill(GIVEN)]}
        job = AttemptSpec(attempt_id=named, sweep="s", task="dufm", options=options, **pack)
        command = [sys.executable, "-m", "depthrate.orchestrator.worker"]
        subprocess.run(command, input=job.to_json() + "\n", env=self._environment, text=True, check=True)
        record = read_attempt(self._store, "s", named)
        assert record is not None
        return record


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir(mode=0o700)
    return Store(str(tmp_path / "store"))


def test_compilerless_node_loads_the_stored_library(store: Store, tmp_path: Path) -> None:
    first, bare = (Node(tmp_path / name, store, has_compiler=name == "first") for name in ("first", "bare"))
    assert first.run()["state"] == AttemptState.DONE
    steps, kernels = sorted(first.cache.glob("*.so"))
    assert sorted(store.list("libraries")) == [f"libraries/{steps.name}", f"libraries/{kernels.name}"]
    done = bare.run()
    assert (done["state"], done["engine"]) == (AttemptState.DONE, "native"), done["error"]
    assert sorted(path.name for path in bare.cache.glob("*.so")) == [steps.name, kernels.name]
    losses = results_of(store).sql("select list(loss order by step) from curves group by trial_id").fetchall()
    assert len(losses) == 2 and losses[0] == losses[1]
    shutil.rmtree(bare.cache)
    store.write(f"libraries/{kernels.name}", kernels.read_bytes()[:-1] + b"?")
    failed = bare.run()
    assert (failed["state"], failed["error_kind"]) == (AttemptState.FAILED, FailureKind.NOT_HERE)
    assert "not on PATH" in failed["error"] and "does not match its checksum" in failed["error"]


class Machine:
    """Loads libraries in this process, with a separate cache and optionally without a compiler."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self._folder, self._patch = folder, patch

    def cached(self, name: str) -> list[str]:
        return [path.name for path in (self._folder / name / "depthrate" / "native").glob("*.so")]

    def take(self, store: Store, name: str) -> None:
        with self._patch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(self._folder / name))
            if name == "bare":
                patch.setenv("PATH", "")
            constants = {"NUMBER": "float", "WIDTH": 3, "CLASSES": 2}
            flags = ("-O0", *(flag for flag in build.FLAGS if flag != "-O3"))
            build.load_library("unconstrained", constants, lambda: False, StoredLibraries(store), flags)

    def refusal(self, store: Store) -> str:
        """Return the error of a node without a compiler that loads no library."""
        with pytest.raises(NoCompilerError, match="'g..' is not on PATH") as failed:
            self.take(store, "bare")
        assert self.cached("bare") == []
        return str(failed.value).rpartition("No library from the store: ")[2]

    def take_kernels(self, store: Store, name: str, *numbers: int) -> None:
        """Load generated kernels that differ by a number."""
        kernels = [Kernel(("Number",), f"  p0[0] = {number};") for number in numbers]
        with self._patch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(self._folder / name))
            if name == "bare":
                patch.setenv("PATH", "")
            sources = {kernel.symbol: kernel.source() for kernel in kernels}
            found, _ = build.load_kernels(sources, {"NUMBER": "float"}, lambda: False, StoredLibraries(store))
            assert found.keys() == sources.keys()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.fixture
def left(store: Store, machine: Machine) -> Path:
    """Libraries that a node with a compiler has stored."""
    machine.take(store, "first")
    (name,) = machine.cached("first")
    return Path(store.full_path(f"libraries/{name}"))


def test_what_was_taken_over_is_left_anew(store: Store, left: Path, machine: Machine) -> None:
    content = left.read_bytes()
    machine.take(store, "bare")
    assert machine.cached("bare") == [left.name]
    left.unlink()
    machine.take(store, "bare")
    assert left.read_bytes() == content


def test_kernels_come_from_several_libraries(store: Store, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.take_kernels(store, "first", 1, 2)
    machine.take_kernels(store, "first", 2, 3)
    machine.take_kernels(store, "other", 4)
    assert len(store.list("libraries")) == 3
    machine.take_kernels(store, "bare", 3, 1)
    assert sorted(machine.cached("bare")) == sorted(machine.cached("first"))
    monkeypatch.setattr(build, "SHARED_LIBRARY_TIMEOUT_S", 0.1)
    with pytest.raises(NoCompilerError, match="no node with a compiler and this processor"):
        machine.take_kernels(store, "bare", 1, 5)


def test_a_library_that_was_changed_is_not_loaded(store: Store, left: Path, machine: Machine) -> None:
    content = left.read_bytes()
    for changed in (content[:-1] + b"?", content[:5000], b""):
        left.write_bytes(changed)
        said = f"{left.name} in the store does not match its checksum and was not loaded. Delete it."
        assert machine.refusal(store) == said


@pytest.mark.parametrize("part", ["store", "library"])
def test_what_others_may_write_to_is_not_loaded(store: Store, left: Path, machine: Machine, part: str) -> None:
    theirs = Path(store.root) if part == "store" else left
    theirs.chmod(theirs.stat().st_mode | 0o002)
    assert f"not loaded: {theirs} can be written by everybody" in machine.refusal(store)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("part", ["store", "library"])
def test_what_belongs_to_somebody_else_is_not_loaded(store: Store, left: Path, machine: Machine, part: str) -> None:
    theirs = Path(store.root) if part == "store" else left
    os.chown(theirs, 12345, -1)
    assert f"not loaded: {theirs} belongs to another user (id 12345)" in machine.refusal(store)


def test_nothing_is_left_where_others_may_write(store: Store, machine: Machine) -> None:
    Path(store.root).chmod(0o777)
    machine.take(store, "first")
    assert machine.cached("first") and not store.list("libraries")


def test_missing_library_is_reported(store: Store, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SHARED_LIBRARY_TIMEOUT_S", 0.1)
    assert machine.refusal(store) == "no node with a compiler and this processor has put a library into the store"
