"""Two sweeps that share trials, as a user meets them: asked apart, compared, removed, brought back, tagged."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.cli.commands.init import TASK
from tests.support.here import printed, refused

pytestmark = pytest.mark.slow
GRID = "task: ./my_task.py:power_law\nseeds: 3\nparams: {noise: 0.05}\nfit: [{metric: nc1, x: depth}]\n"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sweeps `low` and `high`, which share depth 5, and `low` once more with another exponent."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "my_task.py").write_text(TASK)
    for name, depths in (("low", "[2, 3, 5]"), ("high", "[5, 8, 13]")):
        (folder / f"{name}.yaml").write_text(f"name: {name}\ngrid: {{depth: {depths}}}\n{GRID}")
    for sweep in (("low.yaml",), ("high.yaml",), ("low.yaml", "--set", "exponent=1.0")):
        printed("run", str(folder / sweep[0]), *sweep[1:], "--workers", "1", "--store", str(folder / "store"))
    return folder


@pytest.fixture
def store(ran: Path, tmp_path: Path) -> str:
    shutil.copytree(ran / "store", tmp_path / "store")
    return str(tmp_path / "store")


def ask(store: str, sql: str, *options: str) -> list[dict[str, object]]:
    return json.loads(printed("query", sql, "--json", "--store", store, *options).split("\nnote")[0])


def test_each_sweep_is_asked_for_itself(store: str) -> None:
    counts = ask(store, "select sweep, count(*) as n, min(depth) as low from results group by sweep order by sweep")
    assert [[*c.values()] for c in counts] == [["high", 9, 5], ["low", 9, 2], ["low.exponent-1.0", 9, 2]]
    assert ask(store, "select count(*) as n, min(depth) as low from results", "--sweep", "high") == [{"n": 9, "low": 5}]
    assert ask(store, "select count(*) as n from results where sweep = 'high'") == [{"n": 9}]
    assert "low, low.exponent-1.0" in refused("query", "select 1 from results", "--sweep", "hi", "--store", store)


def test_average_over_parameters_is_named(store: str) -> None:
    sql = "select depth, avg(nc1) from results group by depth"
    said = CliRunner().invoke(app, ["query", sql, "--store", store]).stderr
    assert "aggregates trials that differ in exponent" in said and "--sweep high" in said
    assert not CliRunner().invoke(app, ["query", sql, "--store", store, "--sweep", "low"]).stderr
    said = CliRunner().invoke(app, ["query", "select avg(nc1) from results", "--store", store, "--sweep", "low"]).stderr
    assert "aggregates trials that differ in depth" in said and "--sweep" not in said
    by_both = "select depth, exponent, avg(nc1) from results group by all"
    assert not CliRunner().invoke(app, ["query", by_both, "--store", store]).stderr


def test_run_by_stored_name(store: str) -> None:
    assert "low: 9 trials, 9 done" in printed("plan", "low", "--store", store)
    assert "low.depth-21: 3 trials, 0 done" in printed("plan", "low", "--set", "depth=21", "--store", store)
    trial_id = str(ask(store, "select trial_id from results where depth = 2 and exponent = 0.5 limit 1")[0]["trial_id"])
    printed("trials", "rm", trial_id, "--yes", "--store", store)
    assert "low: 9 trials, 8 done, 1 to run" in printed("run", "low", "--workers", "1", "--store", store)
    for verb in ("run", "plan", "status", "fit", "report"):
        said = refused(verb, "lo", "--store", store)
        assert "'lo' does not exist" in said and f"Sweeps in {store}: high, low, low.exponent-1.0" in said
    assert "'lo' does not exist" in refused("run", "lo", "--store", f"{store}/none")


def test_a_sweep_is_removed_and_brought_back(store: str) -> None:
    shown = printed("sweeps", "rm", "low", "--store", store)
    assert "6 committed trials to remove" in shown and "3 trials kept for other sweeps: high 3" in shown
    assert "nothing was removed" in shown and len(ask(store, "select * from trials")) == 24
    printed("sweeps", "rm", "low", "--yes", "--store", store)
    assert len(ask(store, "select * from trials")) == 18
    left = {s["sweep"]: s["ok"] for s in json.loads(printed("status", "--json", "--store", store))}
    assert left == {"high": 9, "low.exponent-1.0": 9}
    assert "low" not in {row["sweep"] for row in ask(store, "select distinct sweep from fits")}
    printed("compact", "--store", store)
    assert "removed: low, 6 trials" in printed("sweeps", "list", "--store", store)
    assert "restored low: 6 trials" in printed("sweeps", "restore", "low", "--store", store)
    assert len(ask(store, "select * from trials")) == 24
    assert json.loads(printed("status", "low", "--json", "--store", store))[0]["ok"] == 9
    printed("sweeps", "rm", "low", "--yes", "--store", store)
    printed("compact", "--retain-hours", "0", "--purge", "--store", store)
    assert "no removed sweep 'low'" in refused("sweeps", "restore", "low", "--store", store)
    assert "all as committed" in printed("verify", "--store", store)
    assert "which has: high" in refused("sweeps", "rm", "low", "--store", store)


def test_trials_removed_restored_and_tagged(store: str) -> None:
    where = ("--where", "depth = 5 and seed = 0 and sweep = 'high'", "--store", store)
    assert "high, low" in printed("trials", "rm", *where)
    printed("trials", "rm", *where, "--yes")
    pending = {s["sweep"]: s["pending"] for s in json.loads(printed("status", "--json", "--store", store))}
    assert pending == {"high": 1, "low": 1, "low.exponent-1.0": 0}, "both have to run it again"
    assert "no removed results" in refused("trials", "restore", "--where", "depth = 13", "--store", store)
    assert "restored results: 1 trial" in printed("trials", "restore", *where)
    assert len(ask(store, "select * from trials")) == 24
    trial = str(ask(store, "select trial_id from trials where depth = 13 and seed = 1")[0]["trial_id"])
    printed("trials", "tag", "odd", trial[:12], "--store", store)
    assert ask(store, "select trial_id from results where list_contains(tags, 'odd')") == [{"trial_id": trial}]
    assert "starts with 'zz'" in refused("trials", "rm", "zz", "--store", store)
    assert "no trials given" in refused("trials", "rm", "--store", store)
    assert "tag 'two words' is invalid" in refused("trials", "tag", "two words", trial, "--store", store)


def test_tags_and_notes_of_a_sweep(store: str) -> None:
    def tag(*words: str) -> Any:
        return json.loads(printed("tag", "high", *words, "--json", "--store", store))

    assert tag() == {"sweep": {"tags": [], "note": ""}, "trials": {}}
    assert tag("--add", "paper", "--add", "odd", "--note", "for figure 3")["sweep"] == {
        "tags": ["odd", "paper"],
        "note": "for figure 3",
    }
    trials = tag("--where", "depth = 5", "--add", "deep", "--note", "look")["trials"]
    assert len(trials) == 3 and all(of == {"tags": ["deep"], "note": "look"} for of in trials.values())
    one = next(iter(trials))
    assert tag(one[:12], "--remove", "deep", "--note", "")["trials"] == {}
    assert len(tag()["trials"]) == 2
    text = printed("tag", "high", "--store", store)
    assert "high: odd, paper; for figure 3" in text and "deep; look" in text
    assert "no sweep 'hihg' was launched" in refused("tag", "hihg", "--store", store)
    assert "no trial of sweep 'high' starts with 'zz'" in refused("tag", "high", "zz", "--add", "x", "--store", store)
    assert "tag 'two words' is invalid" in refused("tag", "high", "--add", "two words", "--store", store)
    assert "no trial of sweep 'high' satisfies depth = 99" in refused(
        "tag", "high", "--where", "depth = 99", "--store", store
    )
