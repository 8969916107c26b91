"""What may stand in place of a store's files (pipes, devices, folders, 10 GB), and what every command makes of it."""

import contextlib
import io
import json
import logging
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from stat import S_IFCHR
from typing import Any
from unittest.mock import patch

import yaml

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.attempts.cancellation import write_cancel_mark
from depthrate.orchestrator.attempts.node_health import write_cleared
from depthrate.orchestrator.executors.slurm.submissions import Submission, SubmittedPack
from depthrate.storage.attempts.heartbeats import write_heartbeats
from depthrate.storage.attempts.live_curves import write_live
from depthrate.storage.attempts.searches import Batch, SearchRecords
from depthrate.storage.catalog.code_decisions import DecisionKind, decide
from depthrate.storage.catalog.tags import annotate
from depthrate.storage.commits.cache import SnapshotCache
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.json_objects import with_digest
from depthrate.storage.files.paths import claim_path, kind_of, launch_log_path, launch_path, library_path
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance import merge
from depthrate.storage.maintenance.delta_log import update_delta_logs
from tests.support import here
from tests.support.tests_rows import commit

SPARSE_BYTES = 10 * 2**30
MOST_S, MOST_BYTES = 10, 2**30
"""What a command may take, whatever stands in a file's place: seconds of a processor."""
HANG_S = 120
"""After which a command is taken to wait for ever, on a machine that does much else."""
A, B, C = (f"20260101T000000_{letter * 12}" for letter in "abc")
LAW = '''
import depthrate
import numpy as np


@depthrate.task(version=1, fusible=["seed"])
def law(*, depth: int, seed: int = 0):
    """A law of depth, with features and a column of its own."""
    print("a law")
    tables = []
    for value in seed:
        nc1 = [(1 + layer + value / 9) ** -0.5 for layer in range(depth + 1)]
        rows = [{"step": 1, "layer": layer, "nc1": each, "height": 1.0} for layer, each in enumerate(nc1)]
        features = {"step": [1, 1], "layer": [1, 1], "kind": ["sample"] * 2, "label": [0, 1], "sample_index": [0, 1]}
        features["feature"] = np.ones((2, 3), np.float32)
        tables.append({"metrics": rows, "curves": [{"step": 1, "loss": 0.1}], "features": features})
    return tables
'''
SWEEP = {
    "name": "tiny",
    "task": "./law.py:law",
    "grid": {"depth": [2, 3, 5, 8]},
    "seeds": 1,
    "fit": [{"metric": "nc1", "x": "depth"}],
}


@dataclass(frozen=True)
class Place:
    """A store with a file of every kind, as it is kept, and the sweep's file beside it."""

    work: Path
    """Where commands are called; it holds the store, and all that is kept beside it."""
    trial_id: str
    node: str
    code: str
    """The hash of the task's code."""

    @property
    def store(self) -> Path:
        """The store that commands are called for."""
        return self.work / "store"

    @property
    def sweep(self) -> Path:
        """The sweep's file."""
        return self.work / "tiny.yaml"

    @property
    def clean(self) -> Path:
        """What is copied to `work`."""
        return self.work.with_name("clean")

    @property
    def beside(self) -> dict[str, str]:
        """Name -> path below `work` of what a user keeps beside stores, and commands read."""
        return {
            "sweep file": "tiny.yaml",
            "task file": "law.py",
            "cluster file": "cluster.yaml",
            "begun file": "begun/sweep.yaml",
            "data file": "data/mnist/train-images-idx3-ubyte.gz",
            "unpacked code": f"cache/depthrate/code/{self.code}/law.py",
            "accepted code": f"state/depthrate/accepted-code/{self.code}",
        }

    def renew(self) -> Store:
        """Copy all anew."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.clean, self.work, symlinks=True)
        return Store(str(self.store))


def looking_in(work: Path) -> AbstractContextManager[Any]:
    """Have commands find in this folder what is not in a store."""
    names = {"XDG_STATE_HOME": "state", "XDG_CACHE_HOME": "cache", "DEPTHRATE_DATA": "data"}
    return patch.dict(os.environ, {variable: str(work / name) for variable, name in names.items()})


def make_place(folder: Path) -> Place:
    """Make a store by a launch, a compaction and another launch, with all that comes beside results."""
    work = folder / "work"
    with looking_in(work):
        return _make_place(work)


def _make_place(work: Path) -> Place:
    for name in ("begun", "data/mnist"):
        (work / name).mkdir(parents=True)
    sweep = work / "tiny.yaml"
    (work / "law.py").write_text(LAW)
    (work / "cluster.yaml").write_text("partition: cpu\n")
    for name in ("images-idx3", "labels-idx1"):
        (work / f"data/mnist/train-{name}-ubyte.gz").write_bytes(b"images")
    invoke("init", str(work / "begun"), expect=0)
    (work / "begun" / "my_task.py").unlink()  # it was killed before it wrote that
    store = Store(str(work / "store"))
    for seeds in (1, 2):
        sweep.write_text(yaml.safe_dump(SWEEP | {"seeds": seeds}))
        invoke("run", str(sweep), "--store", store.root, "--workers", "1", expect=0)
        if seeds == 1:
            with patch.object(merge, "SETTLED_S", -1.0):  # else records are put together a minute later
                invoke("compact", "--retain-hours", "0", "--store", store.root, expect=0)
    ids = sorted(take_snapshot(store).trial_ids())
    (node,) = {row["host"] for row in results_of(store).sql("select host from attempts").to_arrow_table().to_pylist()}
    commit(store, A, ["t7"], sweep="other", hour=4)
    commit(store, B, ["t8"], sweep="gone", hour=4)
    commit(store, C, ["t9"], sweep="other", hour=5)
    invoke("trials", "rm", "t9", "--yes", "--store", store.root, expect=0)
    assert update_delta_logs(store, (), SnapshotCache())
    pack = [SubmittedPack(C, "p", ["t9"])]
    name = f"depthrate-tiny-{A}"
    Submission(name, "tiny", "lab", str(work.with_name("tiny") / name), [pack], ["7_0"]).write(store)
    store.write("checkpoints/p1/pack.json", with_digest({"trial_ids": ["x"], "wall_s": 1.0}))
    store.write("checkpoints/p1/pack.ckpt", b"weights")
    SearchRecords(store, "tiny").write(Batch("0123456789abcdef", 0, ({"lr": 0.1},), (("x",),)))
    store.write(f"searches/sweep=tiny/reports/{C}.json", with_digest({"reports": {"x": {"values": {"5": 0.1}}}}))
    write_heartbeats(store, "tiny", node, {})
    write_live(store, "tiny", "p9", C, {"x": {"depth": 9}}, [("x", {"step": 1, "loss": 0.5})])
    claim = {"launch_id": "l1", "sweep": "tiny", "host": "h", "pid": 1, "renewed_at": time.time() - 300, "trials": {}}
    store.write(claim_path("l1", 1), json.dumps(claim).encode())
    decide(store, take_snapshot(store).decisions, DecisionKind.ACCEPT, "other", "0" * 32, {None}, ["t7"])
    store.write(launch_path("tiny", "l1"), json.dumps({"launch_id": "l1", "started_at": 1e9, "events": []}).encode())
    store.write(launch_log_path("tiny", "l1"), b"it began")
    store.write(library_path("rn1-0000.so"), b"kernels that a node built")
    annotate(store, ids[:1], add=["odd"])
    write_cancel_mark(store, "tiny")
    write_cleared(store, "tiny", node)
    store.write(f"quarantine/20260101T000000/metrics/sweep=tiny/{C}.parquet", b"moved")
    store.write(f"removed/r1/sweeps/gone/{'0' * 16}.json", b"{}")
    (code,) = (work / "cache/depthrate/code").glob("[0-9a-f]*")
    invoke("trust", code.name, expect=0)
    place = Place(work, ids[0], node, code.name)
    shutil.copytree(work, place.clean, symlinks=True)
    return place


def files_of_kinds(store: Store) -> dict[str, str]:
    """Return kind -> one file of it."""
    found: dict[str, str] = {}
    for path in store.list():
        if (kind := kind_of(path)) is not None:
            found.setdefault(kind.name, path)
    return found


def _device(path: Path) -> None:
    try:
        os.mknod(path, S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:  # only root makes devices
        path.symlink_to("/dev/zero")


def _socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as one:  # a socket's path is short
        one.bind("s")
        os.rename("s", path.name)


COSTLY = ("export", "report", "compare", "fit", "run", "debug")
"""Commands that take a second of a processor or more, most of it not for reading the store."""
STAND_INS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": _device,
    "socket": _socket,
    "dangling link": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link out": lambda path: path.symlink_to("/etc/passwd"),
    "folder": Path.mkdir,
    "10 GB": lambda path: (path.touch(), os.truncate(path, SPARSE_BYTES)),
}


STORELESS = ("schema", "init", "init again", "tasks", "data list", "data fetch", "trust")
"""Commands that have no store."""


def commands(place: Place) -> dict[str, list[str]]:
    """Return name -> words of every command; those after `compact` change the store."""
    out, sweep, work = place.clean.with_name("out"), str(place.sweep), place.work
    return {
        "status": ["status"],
        "status of a sweep": ["status", "tiny"],
        "plan": ["plan", sweep],
        "plan by name": ["plan", "tiny"],
        "plan on a cluster": ["plan", sweep, "--executor", "slurm", "--cluster", str(work / "cluster.yaml")],
        **{f"query {view}": ["query", f"select * from {view}"] for view in ("results", "live", "attempts", "fits")},
        "query features": ["query", "select trial_id, layer from features"],
        "nodes": ["nodes", "tiny"],
        "logs": ["logs", place.trial_id],
        "compare": ["compare", "tiny", "tiny"],
        "debug": ["debug", place.trial_id],
        "sweeps list": ["sweeps", "list"],
        "export": ["export", "tiny", str(out)],
        "report": ["report", "tiny", "-o", f"{out}.html"],
        "verify": ["verify"],
        "compact": ["compact", "--retain-hours", "0", "--purge"],
        "repair": ["verify", "--repair"],
        "fit": ["fit", "tiny"],
        "cancel": ["cancel", "tiny"],
        "nodes --clear": ["nodes", "tiny", "--clear", place.node],
        "trials tag": ["trials", "tag", "seen", place.trial_id],
        "tag": ["tag", "tiny", place.trial_id, "--note", "seen"],
        "trials rm": ["trials", "rm", place.trial_id, "--yes"],
        "trials restore": ["trials", "restore", "--all"],
        "sweeps rm": ["sweeps", "rm", "tiny", "--yes"],
        "sweeps restore": ["sweeps", "restore", "gone"],
        "run": ["run", sweep, "--workers", "1"],
        "schema": ["schema"],
        "init": ["init", str(work / "new")],
        "init again": ["init", str(work / "begun")],
        "tasks": ["tasks", f"{work}/law.py:law"],
        "data list": ["data", "list"],
        "data fetch": ["data", "fetch", "mnist"],
        "trust": ["trust", place.code],
    }


def read_through_the_api(store: str) -> tuple[int, str]:
    """Ask what notebooks ask; an error of ours is an answer."""
    try:
        results = results_of(Store(store))
        rows = results.sql("select * from results").df()
        layers = list(results.iter_features(1))
        return 0, f"{len(rows)} rows, {len(layers)} layers, {[str(problem) for problem in results.problems]}"
    except (ValueError, OSError) as error:
        if isinstance(error, ValueError) and not type(error).__module__.startswith("depthrate."):
            raise
        return 2, str(error)


def invoke(*words: str, expect: int | None = None) -> tuple[int, str]:
    """Call the command line in this process. Warnings are part of its output, as in a separate process."""
    warnings = io.StringIO()
    handler = logging.StreamHandler(warnings)
    logging.getLogger("depthrate").addHandler(handler)
    try:
        code, output = here.invoke(*words)
    finally:
        logging.getLogger("depthrate").removeHandler(handler)
    assert expect in (None, code), output
    return code, output + warnings.getvalue()


class TooLongError(BaseException):
    """A command went on for longer than `HANG_S`."""


@contextlib.contextmanager
def watched() -> Iterator[Callable[[], int]]:
    """Let nothing in here take longer than `HANG_S`; it gets what says how much memory this process took meanwhile, at most."""

    def stop(*_: Any) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG_S)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark is what is held now
    held = _status_bytes("VmRSS")
    try:
        yield lambda: _status_bytes("VmHWM") - held
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _status_bytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


@dataclass(frozen=True)
class Outcome:
    """What became of one command."""

    kind: str
    stand_in: str
    command: str
    what: str
    """as ever, named, refused; or what must not be: silent, hang, memory, traceback."""
    detail: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether that must not be."""
        return self.what in ("silent", "hang", "memory", "traceback")


class Matrix:
    """Commands for a store in which something else stands in a file's place."""

    def __init__(self, place: Place):
        self.place, self.commands = place, commands(place)
        self.paths = {kind: f"store/{path}" for kind, path in files_of_kinds(place.renew()).items()} | place.beside
        self._codes: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """What is called."""
        return [*self.commands, "results API"]

    def outcomes(self, kind: str, stand_in: str, names: Iterable[str]) -> Iterator[Outcome]:
        """Yield what becomes of these commands where this stands in place of a file of that kind."""
        for name in names:
            if name not in self._codes:
                self.place.renew()
                self._codes[name] = self._call(name)[0]
            self.place.renew()
            full = self.place.work / self.paths[kind]
            full.unlink()
            STAND_INS[stand_in](full)
            yield self._outcome(kind, stand_in, name)

    def _call(self, name: str) -> tuple[int, str]:
        store = str(self.place.store)
        with looking_in(self.place.work):
            if name == "results API":
                return read_through_the_api(store)
            return invoke(*self.commands[name], *(() if name in STORELESS else ("--store", store)))

    def _outcome(self, kind: str, stand_in: str, name: str) -> Outcome:
        began = time.process_time()

        def outcome(what: str, detail: str = "") -> Outcome:
            return Outcome(kind, stand_in, name, what, detail)

        try:
            with watched() as max_bytes:
                code, said = self._call(name)
                taken = max_bytes()
        except TooLongError:
            return outcome("hang")
        except Exception as error:
            return outcome("traceback", f"{type(error).__name__}: {error}"[:300])
        if time.process_time() - began > MOST_S:
            return outcome("hang")
        if taken > MOST_BYTES:
            return outcome("memory", f"{taken / 1e9:.2f} GB")
        words, path = "".join(said.split()), self.paths[kind].removeprefix("store/")
        names_it = Path(path).name in said or path in words
        names_it |= kind == "code" and path.partition("/files/")[0] in words
        names_it |= kind == "unpacked code" and self.place.code in words
        refused = code != self._codes[name]
        return outcome(("refused" if refused else "named") if names_it else "silent" if refused else "as ever", said)
