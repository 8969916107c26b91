"""Every verb that writes, killed at its every call: nothing is lost, nothing doubled, and calling it again ends it.

Without --all a sample of the points, whose number no change of code makes smaller than three a verb.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from crash_points import Killed, on_folder, on_requests
from one_by_one import TOY
from s3_server import S3Server
from tests_rows import commit

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.cli.commands.run import run_sweep
from depthrate.orchestrator.executors import registry
from depthrate.orchestrator.executors.options import LaunchOptions
from depthrate.storage.catalog.removals import RemovalKind, remove
from depthrate.storage.catalog.specs import write_spec
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.sweep_removal import rows_of_trials
from depthrate.storage.maintenance.verify import verify

A, B, C, D = (f"20260101T000000_00000000000{letter}" for letter in "abcd")
TASK = """
import depthrate

@depthrate.task(version=1)
def law(*, depth: int, seed: int = 0):
    return {"metrics": [{"layer": depth, "nc1": 1.0 / depth, "bend": 0.5}], "curves": [{"step": 1, "loss": 0.5}]}
"""
SWEEP = "name: tiny\ntask: ./my_task.py:law\ngrid: {depth: [2, 3]}\nfit: [{metric: nc1, x: depth}]\n"
SPEC = {"task": "collapse", "params": {"arch": "rn1"}, "grid": {"depth": [2]}}
SAMPLE = 3
"""Points of a verb that the fast lane tries."""


@dataclass(frozen=True)
class Verb:
    """A command and what it finds."""

    begin: Callable[[Path], None]
    """Makes a folder with a store in it, `store`, and what else it takes."""
    call: Callable[[Path], None]
    removes: frozenset[str] = frozenset()
    """Trials that it takes away or brings back."""


def invoke(*words: str, codes: tuple[int, ...] = (0,)) -> Callable[[Path], None]:
    def call(folder: Path) -> None:
        given = [word.format(folder=folder) for word in words]
        done = CliRunner().invoke(app, [*given, "--store", str(folder / "store")], catch_exceptions=False)
        assert done.exit_code in codes, done.output

    return call


def run(folder: Path, *, accept: bool = False) -> None:
    options = LaunchOptions(
        sweep=str(folder / "tiny.yaml"),
        store=str(folder / "store"),
        executor="toy",
        executor_options={"nice_level": 3},
        device="cpu",
        accept_code=accept,
    )
    assert run_sweep(options) == 0


def store_of(folder: Path) -> Store:
    return Store(str(folder / "store"))


def two_sweeps(folder: Path) -> None:
    """`a` (t1 t2) and `b` (t2 t3), their commits loose, and t4 of c removed, restorable."""
    store = store_of(folder)
    for sweep, trial_ids in (("a", ["t1", "t2"]), ("b", ["t2", "t3"]), ("c", ["t4"])):
        write_spec(store, sweep, f"{sweep}1", {"name": sweep, **SPEC}, trial_ids)
    write_spec(store, "a", "a2", {"name": "a", "seeds": 2, **SPEC}, ["t1", "t2"])
    for attempt, trial, sweep in ((A, "t1", "a"), (B, "t2", "a"), (C, "t3", "b"), (D, "t4", "c")):
        commit(store, attempt, [trial], sweep=sweep)
    remove(store, RemovalKind.TRIALS, "", rows_of_trials(take_snapshot(store), ["t4"]))


def compacted_twice(folder: Path) -> None:
    two_sweeps(folder)
    compact(store_of(folder), grace_s=3600)


def removed(folder: Path) -> None:
    two_sweeps(folder)
    invoke("sweeps", "rm", "a", "--yes")(folder)


def damaged(folder: Path) -> None:
    two_sweeps(folder)
    store = store_of(folder)
    store.write(f"metrics/sweep=b/{C}.parquet", b"damaged")
    store.write("sweeps/x/x1.json", b"{half")


def of_format_1(folder: Path) -> None:
    two_sweeps(folder)
    (folder / "store" / "sweeps" / "a" / "a1.trials").unlink()
    spec = folder / "store" / "sweeps" / "a" / "a1.json"
    fields = json.loads(spec.read_text())
    spec.write_text(json.dumps({name: value for name, value in fields.items() if name != "trials_sha256"}))


def a_sweep(folder: Path) -> None:
    (folder / "my_task.py").write_text(TASK)
    (folder / "tiny.yaml").write_text(SWEEP)


def a_changed_task(folder: Path) -> None:
    a_sweep(folder)
    run(folder)
    (folder / "my_task.py").write_text(TASK + "\n# changed\n")


def init(folder: Path) -> None:
    done = CliRunner().invoke(app, ["init", str(folder / "store")], catch_exceptions=False)
    assert done.exit_code in (0, 2), done.output


VERBS = {
    "run": Verb(a_sweep, run),
    "accept-code": Verb(a_changed_task, functools.partial(run, accept=True)),
    "compact": Verb(two_sweeps, invoke("compact", "--grace", "0"), removes=frozenset({"t4"})),
    "compact what was compacted": Verb(compacted_twice, invoke("compact", "--grace", "0"), removes=frozenset({"t4"})),
    "sweeps rm": Verb(two_sweeps, invoke("sweeps", "rm", "a", "--yes", codes=(0, 2)), removes=frozenset({"t1"})),
    "sweeps restore": Verb(removed, invoke("sweeps", "restore", "a", codes=(0, 2)), removes=frozenset({"t1"})),
    "sweeps rename": Verb(two_sweeps, invoke("sweeps", "rename", "a", "new")),
    "trials rm": Verb(two_sweeps, invoke("trials", "rm", "t3", "--yes", codes=(0, 2)), removes=frozenset({"t3"})),
    "trials restore": Verb(two_sweeps, invoke("trials", "restore", "--all", codes=(0, 2)), removes=frozenset({"t4"})),
    "trials tag": Verb(two_sweeps, invoke("trials", "tag", "odd", "t1")),
    "verify --repair": Verb(damaged, invoke("verify", "--repair"), removes=frozenset({"t3"})),
    "upgrade": Verb(of_format_1, invoke("upgrade")),
}


def trials(folder: Path) -> set[str]:
    """Return the trials that count, each checked to be there once and whole."""
    results = results_of(store_of(folder))
    rows = results.sql("select trial_id, count(*) from trials group by all").fetchall()
    assert all(number == 1 for _, number in rows), rows
    measured = results.sql("select trial_id, step, layer, count(*) from metrics group by all").fetchall()
    assert all(number == 1 for *_, number in measured) and {row[0] for row in measured} == {row[0] for row in rows}
    return {str(trial_id) for trial_id, _ in rows}


def state(folder: Path) -> dict[str, object]:
    """Return what a store says, without the names that are made anew each time."""
    store = store_of(folder)
    specs = {
        path: json.loads(store.read(path))["spec"]
        for path in store.list("sweeps")
        if path.endswith(".json") and "x1" not in path
    }
    lists = {path: store.read(path) for path in store.list("sweeps") if path.endswith(".trials")}
    findings = sorted(str(finding) for finding in verify(store, builtin_columns()).findings)
    store.read_format()
    return {"trials": trials(folder), "specs": specs, "lists": lists, "findings": findings, "format": store.format}


def points(count: int, is_all: bool) -> list[int]:
    if is_all:
        return list(range(1, count + 1))
    return sorted({1 + round((count - 1) * part / (SAMPLE - 1)) for part in range(SAMPLE)})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.EXECUTORS, "toy", TOY)
    monkeypatch.setattr("depthrate.storage.catalog.requested_trials.PAUSES_S", (None,))
    for module in ("storage.attempts.claims", "orchestrator.attempts.record"):  # who was killed is no more
        monkeypatch.setattr(f"depthrate.{module}.is_process_gone", lambda host, pid: True)


def kill_everywhere(verb: Verb, tmp_path: Path, *, is_all: bool) -> Counter[str]:
    """Kill a verb at its calls, one after the other, and call it again; return its calls."""
    template, work = tmp_path / "template", tmp_path / "work"
    work.mkdir()
    verb.begin(work)
    before = trials(work)
    shutil.copytree(work, template)
    with on_folder(work) as deadline:
        verb.call(work)
    verb.call(work)
    after = state(work)
    shutil.rmtree(work)
    for point in points(deadline.count, is_all):
        shutil.copytree(template, work)
        with on_folder(work, point), contextlib.suppress(Killed):  # a heartbeat makes the calls of a run differ
            verb.call(work)
        kept = before - verb.removes
        assert trials(work) >= kept, f"lost at call {point} of {deadline.count}"
        verb.call(work)
        assert state(work) == after, f"after call {point} of {deadline.count}"
        shutil.rmtree(work)
    return deadline.calls


@pytest.mark.slow
@pytest.mark.parametrize("name", VERBS)
def test_a_verb_killed_at_any_call_of_a_sample_is_ended_by_calling_it_again(name: str, tmp_path: Path) -> None:
    assert kill_everywhere(VERBS[name], tmp_path, is_all=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", VERBS)
def test_a_verb_killed_at_every_call_is_ended_by_calling_it_again(name: str, tmp_path: Path) -> None:
    calls = kill_everywhere(VERBS[name], tmp_path, is_all=True)
    print(f"{name}: {calls.total()} calls: {dict(calls)}")


@pytest.mark.slow
def test_init_killed_at_any_call_leaves_no_half_a_file(tmp_path: Path) -> None:
    with on_folder(tmp_path) as deadline:
        init(tmp_path / "whole")
    for point in points(deadline.count, True):
        work = tmp_path / f"work{point}"
        with on_folder(work, point), pytest.raises(Killed):
            init(work)
        for path in (work / "store").glob("[!.]*"):
            assert path.read_text() == (tmp_path / "whole" / "store" / path.name).read_text()
        init(work)
        assert {p.name for p in (work / "store").glob("[!.]*")} == {
            p.name for p in (tmp_path / "whole" / "store").iterdir()
        }


@pytest.mark.parametrize("answer_lost", [False, True], ids=["before it", "its answer lost"])
@pytest.mark.timeout(600)
def test_commit_and_compaction_killed_at_every_request_to_a_bucket(s3: S3Server, answer_lost: bool) -> None:
    def begin() -> Store:
        store = Store(s3.new_url())
        commit(store, A, ["t1"])
        commit(store, B, ["t2"])
        return store

    def check(store: Store, expected: set[str]) -> None:
        snapshot = take_snapshot(store)
        assert snapshot.trial_ids() == expected and snapshot.trials.num_rows == len(expected)

    for name, verb, more in (
        ("commit", lambda store: commit(store, C, ["t3"]), {"t3"}),
        ("compact", lambda store: compact(store, grace_s=0), set()),
    ):
        with on_requests(store := begin()) as deadline:
            verb(store)
        print(f"{name}: {deadline.count} requests: {dict(deadline.calls)}")
        for point in range(1, deadline.count + 1):
            store = begin()
            with on_requests(store, point, answer_lost=answer_lost), pytest.raises(Killed):
                verb(store)
            seen = take_snapshot(store).trial_ids()
            assert {"t1", "t2"} <= seen <= {"t1", "t2"} | more, (name, point)
            verb(store)
            check(store, {"t1", "t2"} | more)
