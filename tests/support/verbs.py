"""Every verb that writes, each with a store that it finds and what may be gone afterwards: for tests that kill them."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.attempts.options import LaunchOptions
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.cli.launch_output import run_sweep
from depthrate.orchestrator.launch.outcome import RunState
from depthrate.storage.catalog.removals import RemovalKind, remove
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.sweep_removal import rows_of_trials
from depthrate.storage.maintenance.verify import verify
from tests.support.tests_rows import commit

A, B, C, D, E = (f"20260101T000000_00000000000{letter}" for letter in "abcde")
TASK = """
import depthrate

@depthrate.task(version=1)
def law(*, depth: int, seed: int = 0):
    return {"metrics": [{"layer": depth, "nc1": 1.0 / depth, "bend": 0.5}], "curves": [{"step": 1, "loss": 0.5}]}
"""
SWEEP = "name: tiny\ntask: ./my_task.py:law\ngrid: {depth: [2, 3]}\nfit: [{metric: nc1, x: depth}]\n"
SPEC = {"task": "collapse", "params": {"arch": "rn1"}, "grid": {"depth": [2]}}


@dataclass(frozen=True)
class Place:
    """Where a verb works."""

    folder: Path
    """Where sweep files and tasks lie."""
    url: str = ""
    """Its store; empty: the folder `store` beside these files."""

    @functools.cached_property
    def store(self) -> Store:
        return Store(self.url or str(self.folder / "store"))


@dataclass(frozen=True)
class Verb:
    """A command and what it finds."""

    begin: Callable[[Place], None]
    """Makes a store, and what else the command takes."""
    call: Callable[[Place], None]
    removes: frozenset[str] = field(default_factory=frozenset)
    """Trials that it takes away or brings back."""


def invoke(*words: str, codes: tuple[int, ...] = (0,)) -> Callable[[Place], None]:
    def call(place: Place) -> None:
        done = CliRunner().invoke(app, [*words, "--store", place.store.address], catch_exceptions=False)
        assert done.exit_code in codes, done.output

    return call


def run(place: Place, *, accept: bool = False) -> None:
    toy = {"executor": "toy", "executor_options": {"nice_level": 3}, "device": "cpu", "keep_results": accept}
    options = LaunchOptions(sweep=str(place.folder / "tiny.yaml"), store=place.store.address, **toy)
    assert run_sweep(options) is RunState.COMPLETE


def two_sweeps(place: Place) -> None:
    """`a` (t1 t2) and `b` (t2 t3), their commits loose, and t4 of c removed, restorable."""
    for sweep, trial_ids in (("a", ["t1", "t2"]), ("b", ["t2", "t3"]), ("c", ["t4"])):
        write_spec(place.store, sweep, f"{sweep}1", {"name": sweep, **SPEC}, trial_ids)
    write_spec(place.store, "a", "a2", {"name": "a", "seeds": 2, **SPEC}, ["t1", "t2"])
    for attempt, trial, sweep in ((A, "t1", "a"), (B, "t2", "a"), (C, "t3", "b"), (D, "t4", "c")):
        commit(place.store, attempt, [trial], sweep=sweep)
    remove(place.store, RemovalKind.TRIALS, "", rows_of_trials(take_snapshot(place.store), ["t4"]))


def compacted_before(place: Place) -> None:
    """What was replaced is still there, and nothing new."""
    two_sweeps(place)
    compact(place.store, grace_s=3600)


def compacted_and_committed(place: Place) -> None:
    """What was replaced is still there, and a commit that the compaction before does not hold."""
    compacted_before(place)
    commit(place.store, E, ["t5"], sweep="a")


def removed(place: Place) -> None:
    two_sweeps(place)
    invoke("sweeps", "rm", "a", "--yes")(place)


def damaged(place: Place) -> None:
    two_sweeps(place)
    place.store.write(f"metrics/sweep=b/{C}.parquet", b"damaged")
    place.store.write("sweeps/x/x1.json", b"{half")


def a_sweep(place: Place) -> None:
    (place.folder / "my_task.py").write_text(TASK)
    (place.folder / "tiny.yaml").write_text(SWEEP)


def a_changed_task(place: Place) -> None:
    a_sweep(place)
    run(place)
    (place.folder / "my_task.py").write_text(TASK + "\n# changed\n")


COMPACT = invoke("compact", "--retain-hours", "0")
PURGE = invoke("compact", "--retain-hours", "0", "--purge")
VERBS = {
    "run": Verb(a_sweep, run),
    "commit": Verb(two_sweeps, lambda place: commit(place.store, E, ["t5"], sweep="a")),
    "keep-results": Verb(a_changed_task, functools.partial(run, accept=True)),
    "compact": Verb(two_sweeps, COMPACT),
    "compact --purge": Verb(two_sweeps, PURGE, removes=frozenset({"t4"})),
    "compact what was compacted": Verb(compacted_before, PURGE, removes=frozenset({"t4"})),
    "compact what was compacted and more": Verb(compacted_and_committed, COMPACT),
    "sweeps rm": Verb(two_sweeps, invoke("sweeps", "rm", "a", "--yes", codes=(0, 2)), removes=frozenset({"t1"})),
    "sweeps restore": Verb(removed, invoke("sweeps", "restore", "a", codes=(0, 2)), removes=frozenset({"t1"})),
    "trials rm": Verb(two_sweeps, invoke("trials", "rm", "t3", "--yes", codes=(0, 2)), removes=frozenset({"t3"})),
    "trials restore": Verb(two_sweeps, invoke("trials", "restore", "--all", codes=(0, 2)), removes=frozenset({"t4"})),
    "trials tag": Verb(two_sweeps, invoke("trials", "tag", "odd", "t1")),
    "tag": Verb(two_sweeps, invoke("tag", "a", "--note", "seen")),
    "verify --repair": Verb(damaged, lambda place: repair(place.store, verify(place.store)), removes=frozenset({"t3"})),
}


def counting_trials(store: Store) -> set[str]:
    """Return the trials that count, each checked to be there once and whole."""
    results = results_of(store)
    rows = results.sql("select trial_id, count(*) from trials group by all").fetchall()
    assert all(number == 1 for _, number in rows), rows
    measured = results.sql("select trial_id, step, layer, count(*) from metrics group by all").fetchall()
    assert all(number == 1 for *_, number in measured), measured
    assert {row[0] for row in measured} == {row[0] for row in rows}
    return {str(trial_id) for trial_id, _ in rows}


def state(store: Store) -> dict[str, Any]:
    """Return what a store says, without the names that are made anew each time."""
    paths = [path for path in store.list("sweeps") if path.endswith(".json") and "x1" not in path]
    specs = {path: json.loads(store.read(path))["spec"] for path in paths}
    lists = {path: store.read(path) for path in store.list("sweeps") if path.endswith(".trials")}
    findings = sorted(str(finding) for finding in verify(store).findings)
    store.read_format()
    return {
        "trials": counting_trials(store),
        "specs": specs,
        "lists": lists,
        "findings": findings,
        "format": store.format,
    }
