"""The command line: what it prints, its exit codes, and that bad input starts and writes nothing."""

import errno
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from depthrate.orchestrator.cli.app import app
from depthrate.storage.files.local import LocalFiles
from tests.support.here import TINY, answer, invoke, printed, refused


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A tiny sweep that was run to its end, and its store."""
    folder = tmp_path_factory.mktemp("done")
    sweep, store = folder / "tiny.yaml", str(folder / "store")
    sweep.write_text(yaml.safe_dump(TINY))
    code, output = invoke("run", str(sweep), "--store", store, "--device", "cpu")
    assert code == 0, output
    assert "all 4 trials are committed" in output
    assert "at least 3 needed" in output and "depth^" not in output, "of two depths"
    return sweep, store


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The store of a tiny sweep of four depths, over which curves are fitted."""
    folder = tmp_path_factory.mktemp("rates")
    sweep, store = folder / "tiny.yaml", str(folder / "store")
    sweep.write_text(yaml.safe_dump(TINY | {"grid": {"depth": [2, 3, 4, 6]}}))
    code, output = invoke("run", str(sweep), "--store", store, "--device", "cpu")
    assert code == 0 and "exponent" in output, output
    return store


@pytest.mark.slow
def test_adding_a_depth_runs_only_that_depth(done: tuple[Path, str]) -> None:
    sweep, store = done
    arguments = (str(sweep), "--store", store, "--set", "depth=[2,3,4]", "--set", "name=wider")
    planned = json.loads(invoke("plan", *arguments, "--json")[1])
    assert (planned["num_trials"], planned["num_done"], planned["num_pending"]) == (6, 4, 2)
    code, output = invoke("run", *arguments)
    assert code == 0 and "6 trials, 4 done, 2 to run in" in output
    sql = "select depth, sweep, count(*) n from trials group by all order by 1, 2"
    rows = [tuple(row.values()) for row in json.loads(printed("query", sql, "--store", store, "--json"))]
    assert rows == [(2, "tiny", 2), (2, "wider", 2), (3, "tiny", 2), (3, "wider", 2), (4, "wider", 2)], (
        "a trial belongs to every sweep that asks for it, whichever ran it"
    )
    fits = json.loads(invoke("fit", "wider", "--store", store, "--json")[1])
    assert {row["n_points"] for row in fits} == {6}, "a fit uses its sweep's trials, whichever sweep ran them"


@pytest.mark.slow
def test_a_finished_sweep_in_tables_and_its_status(done: tuple[Path, str]) -> None:
    sql = "select depth, avg(nc1) as nc1 from results where depth < 4 group by depth order by depth"
    code, output = invoke("query", sql, "--store", done[1])
    words = output.split()
    assert code == 0 and words[:2] == ["depth", "nc1"] and [w for w in words if w in ("2", "3")] == ["2", "3"]
    code, output = invoke("query", "select * from results", "--store", done[1])
    assert code == 0 and "more columns" in output and "--wide" in output and "…" not in output
    code, output = invoke("query", "select * from results", "--store", done[1], "--wide")
    assert code == 0 and "committed_at" in output and "more columns" not in output
    state = json.loads(invoke("status", "tiny", "--store", done[1], "--json")[1])[0]
    assert (state["num_trials"], state["ok"], state["pending"], state["problems"]) == (4, 4, 0, [])


@pytest.mark.slow
def test_logs_and_debug_of_a_trial(done: tuple[Path, str]) -> None:
    sql = "select trial_id, nc1 from results where depth = 3 and seed = 1"
    row = json.loads(invoke("query", sql, "--store", done[1], "--json")[1])[0]
    code, output = invoke("logs", row["trial_id"], "--store", done[1])
    assert code == 0 and " done: started " in output
    code, output = invoke("debug", row["trial_id"][:8], "--store", done[1])
    assert code == 0 and f"{row['nc1']:.6g}" in output, "alone and unfused it gives the committed number"


@pytest.mark.slow
def test_report_is_written(done: tuple[Path, str], tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    code, output = invoke("report", "tiny", "--store", done[1], "-o", str(target))
    assert code == 0 and f"wrote {target}" in output and "</html>" in target.read_text()
    assert "This replaced" not in invoke("report", "tiny", "--store", done[1], "-o", str(target))[1]
    target.write_text(target.read_text().replace("<title>tiny", "<title>other &amp; older"))
    replaced = invoke("report", "tiny", "--store", done[1], "-o", str(target))[1]
    assert "This replaced the report on other & older in" in replaced
    code, _ = invoke("report", "tiny", "--store", done[1], "-o", str(tmp_path / "new" / "report.html"))
    assert code == 0 and (tmp_path / "new" / "report.html").is_file()


@pytest.mark.slow
def test_run_writes_the_report(done: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that cannot be written does not fail the run."""
    monkeypatch.chdir(tmp_path)
    words = ("run", str(done[0]), "--store", done[1], "--report")
    code, output = invoke(*words)
    assert code == 0 and "wrote report.html (" in output and "<title>tiny" in Path("report.html").read_text()
    Path("report.html").unlink()
    Path("report.html").mkdir()
    code, output = invoke(*words)
    assert (
        code == 0 and "no report: cannot write report.html: Is a directory. Try again: depthrate report tiny" in output
    )
    assert "--pilot runs only a part" in invoke(*words, "--pilot")[1]
    assert "--report needs the launch" in invoke(*words, "--detach")[1]


def test_tasks_lists_parameters() -> None:
    code, output = invoke("tasks", "collapse")
    assert code == 0 and "weight_decay_last" in output and "required" in output
    assert "P2: Neural Collapse versus Low-Rank Bias" in output
    assert "collapse" in invoke("tasks")[1]


@pytest.mark.slow
def test_damage_is_a_warning_not_a_traceback(done: tuple[Path, str], tmp_path: Path) -> None:
    import shutil

    store = tmp_path / "copy"
    shutil.copytree(done[1], store)
    victim = next((store / "metrics" / "sweep=tiny").glob("*.parquet"))
    victim.write_bytes(victim.read_bytes()[:50])
    (store / "trials" / "sweep=tiny" / "foreign.parquet").write_bytes(b"PAR1 nonsense")
    for arguments in (["status", "tiny"], ["query", "select 1 from results where sweep = 'tiny'"], ["fit", "tiny"]):
        code, output = invoke(*arguments, "--store", str(store))
        assert code == 0 and victim.name in output and "foreign.parquet" in output, arguments
    (state,) = answer("status", "tiny", "--store", store)
    assert (state["ok"], state["pending"]) == (2, 2), "trials whose rows are damaged do not count as done"
    code, output = invoke("run", str(done[0]), "--store", str(store))
    assert code == 0 and "4 trials, 2 done, 2 to run" in output
    assert answer("status", "tiny", "--store", store)[0]["ok"] == 4, "running again redoes them"


SLOW_TO_IMPORT = {"torch", "ray", "sklearn", "matplotlib", "optuna", "scipy", "pandas"}


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (["--help"], {"duckdb", "pyarrow", "numpy", "fsspec"}),
        (["plan", "quickstart"], {"duckdb", "pyarrow.compute"}),
        (["run", "--help"], {"duckdb", "pyarrow.compute", "yaml"}),
        (["status"], {"duckdb", "yaml", "pyarrow.compute", "statistics", "depthrate.tasks.panel"}),
        (["status", "tiny"], {"duckdb", "yaml", "pyarrow.compute"}),
        (["query", "select count(*) from trials"], set()),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
@pytest.mark.slow
def test_what_is_looked_at_often_imports_little(arguments: list[str], more: set[str], done: tuple[Path, str]) -> None:
    code = (
        "import sys; sys.argv = ['depthrate', *sys.argv[2:]]\n"
        "from depthrate.orchestrator.cli.app import app\n"
        "app(standalone_mode=False)\n"
        "slow = set(sys.orig_argv[3].split()) & set(sys.modules)\n"
        "assert not slow, slow"
    )
    environment = {**os.environ, "DEPTHRATE_STORE": done[1]}
    words = [sys.executable, "-c", code, " ".join(SLOW_TO_IMPORT | more), *arguments]
    subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_all_views_show_one_exponent(tmp_path: Path) -> None:
    import html
    import re

    import depthrate

    sweep, store = tmp_path / "tiny.yaml", str(tmp_path / "store")
    sweep.write_text(
        yaml.safe_dump(TINY | {"grid": {"depth": [2, 3, 4]}, "seeds": 3})
    )  # of two seeds nothing has an interval
    assert invoke("run", str(sweep), "--store", store, "--device", "cpu")[0] == 0
    rows = json.loads(invoke("fit", "tiny", "--store", store, "--json")[1])
    kept = depthrate.open(store).sql("select * from fits where sweep = 'tiny' and model = 'power'").df()
    points = depthrate.open(store).sql("select depth, seed, nc1 from results where sweep = 'tiny' order by depth").df()
    (ours, *_) = depthrate.fit_rates(points["depth"], points["nc1"], seeds=list(points["seed"]))
    (nc1,) = [row for row in rows if row["metric"] == "nc1" and row["model"] == "power"]
    (table,) = kept[kept["metric"] == "nc1"].to_dict("records")
    for name in ("exponent", "stderr", "ci_low", "ci_high", "prefactor", "p_half", "p_one", "r2"):
        assert nc1[name] == table[name], name
        assert nc1[name] == pytest.approx(getattr(ours, name), rel=1e-9), name
    target = tmp_path / "report.html"
    assert invoke("report", "tiny", "--store", store, "-o", str(target))[0] == 0
    page = html.unescape(target.read_text())
    (group,) = re.findall(r"<tr class=group><th[^>]*>NC1 over depth.*?</tbody>", page, re.DOTALL)
    (row,) = (row for row in re.findall(r"<tr>(.*?)</tr>", group, re.DOTALL) if "<td>power law</td>" in row)
    cells = [cell.replace("\u2212", "-") for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
    found = [float(number) for number in re.findall(r"-?[0-9.]+", cells[cells.index("power law") + 1])]
    assert found == pytest.approx([table["exponent"], table["ci_low"], table["ci_high"]], abs=6e-4)


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_fits_that_cannot_be_saved_fail(rates: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LocalFiles, "write", full)
    code, output = invoke("fit", "tiny", "--store", rates, *words)
    assert code == 1 and "fits are not saved: [Errno 28] No space left on device" in output and "exponent" in output
    assert invoke("fit", "tiny", "--store", rates, "--metric", "nc3", *words)[0] == 0, "it saves nothing"


@pytest.mark.slow
def test_temporary_fits_are_not_stored(rates: str) -> None:
    before = invoke("query", "select * from fits", "--store", rates, "--json")[1]
    options = ["--metric", "nc3", "--layer", "-1", "--where", "depth < 9", "--target", "0.01"]
    code, output = invoke("fit", "tiny", "--store", rates, *options)
    assert code == 0 and "layer -1, where depth < 9" in output and "not saved" in output
    rows = json.loads(invoke("fit", "tiny", "--store", rates, "--x-min", "2", "--json")[1])
    assert {row["metric"] for row in rows} == {"nc1", "objective_gap"} and {row["x_min"] for row in rows} == {2}
    assert invoke("query", "select * from fits", "--store", rates, "--json")[1] == before
    code, output = invoke("fit", "tiny", "--store", rates, "--x-min", "heavy")
    assert code == 2 and "heavy" in output
    code, output = invoke("fit", "tiny", "--store", rates, "--where", "no_such_column > 1")
    assert code == 2 and "no_such_column" in output


@pytest.mark.slow
def test_the_engine_is_no_parameter(done: tuple[Path, str]) -> None:
    """What one engine has committed is done for the other."""
    words = ["run", str(done[0]), "--store", done[1], "--device", "cpu", "--engine"]
    assert "4 done" in invoke(*words, "eager")[1]
    assert "engine is 'fast', expected one of auto, native, eager" in invoke(*words, "fast")[1]


def test_version_help_and_completion() -> None:
    assert printed("--version") == f"{version('depthrate')}\n"
    assert printed("-h") == printed("--help")
    assert "KEY=VALUE" in printed("run", "-h")
    words = {"_DEPTHRATE_COMPLETE": "bash_complete", "COMP_WORDS": "depthrate sta", "COMP_CWORD": "1"}
    assert CliRunner().invoke(app, prog_name="depthrate", env=words).output == "plain,status\n"


def test_init_runs_and_never_overwrites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed("init", "start")
    assert "mine: 12 trials, 0 done" in printed("plan", "start/sweep.yaml")
    own = yaml.safe_load((tmp_path / "start/sweep.yaml").read_text()) | {"task": "./my_task.py:power_law", "params": {}}
    (tmp_path / "start/own.yaml").write_text(yaml.safe_dump(own))
    assert "12 trials, 0 done" in printed("plan", "start/own.yaml")
    assert "sweep.yaml exists already" in refused("init", "start")
    monkeypatch.chdir(tmp_path / "start")
    for name in ("sweep.yaml", "my_task.py", "sweep.schema.json"):
        Path(name).unlink()
    printed("init")
    assert "mine: 12 trials, 0 done" in printed("plan", "sweep.yaml")
