"""A sweep relaunched with another version of its task: commands on the sweep, and on its earlier results by `sweep@N`."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from depthrate.orchestrator.cli.app import app
from tests.support.here import printed, refused

pytestmark = pytest.mark.slow
TASK = """import depthrate
@depthrate.task(version={version})
def t(*, depth: int, width: int = {width}, seed: int = 0, context):
    return {{"metrics": [{{"layer": depth, "nc1": {scale} / depth}}]}}
"""
SWEEP = "name: v\ntask: ./t.py:t\ngrid: {depth: [1, 2, 4]}\nfit: [{metric: nc1, x: depth}]\n"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sweep v with version 1, version 2, and version 2 with another default."""
    folder = tmp_path_factory.mktemp("versions")
    (folder / "v.yaml").write_text(SWEEP)
    for version, width, scale in ((1, 1, 0.5), (2, 1, 5.0), (2, 7, 50.0)):
        (folder / "t.py").write_text(TASK.format(version=version, width=width, scale=scale))
        printed("run", str(folder / "v.yaml"), "--workers", "1", "--store", str(folder / "store"))
    return folder


@pytest.fixture
def store(ran: Path, tmp_path: Path) -> str:
    shutil.copytree(ran / "store", tmp_path / "store")
    return str(tmp_path / "store")


def answer(*words: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def prefactor(store: str, sweep: str) -> float:
    rows = json.loads(answer("fit", sweep, "--store", store, "--json")[0])
    return float(rows[0]["prefactor"])


def test_sweep_is_what_its_newest_launch_requests(store: str) -> None:
    mean = (1 + 1 / 2 + 1 / 4) / 3
    rows, notes = answer("query", "select avg(nc1) as m from results", "--sweep", "v", "--json", "--store", store)
    assert json.loads(rows) == [{"m": pytest.approx(50 * mean)}]
    assert '(6 of v@0). Show them: depthrate query --sweep v@0 "select * from results"' in notes
    assert prefactor(store, "v") == pytest.approx(50.0)
    listed = json.loads(answer("sweeps", "list", "--json", "--store", store)[0])["sweeps"]
    assert {s["sweep"]: s["committed"] for s in listed} == {"v": 3, "v@0": 6}
    assert "several versions of task t:t" in printed("query", "select avg(nc1) from results", "--store", store)
    assert "several versions" not in printed(
        "query", "select task_version, avg(nc1) from results join trials using (trial_id) group by 1", "--store", store
    )


@pytest.mark.parametrize("command", ["status", "show", "plan", "nodes", "export", "cancel", "sweeps rm"])
def test_commands_accept_the_name_of_earlier_results(store: str, command: str, tmp_path: Path) -> None:
    options = {"export": [str(tmp_path / "events")]}.get(command, [])
    printed(*command.split(), "v@0", *options, "--store", store)


@pytest.mark.parametrize("command", ["fit", "report", "report --interactive", "compare v"])
def test_no_fit_mixes_earlier_results(store: str, command: str, tmp_path: Path) -> None:
    options = ["-o", str(tmp_path / "r.html")] if command.startswith("report") else []
    message = " ".join(refused(*command.split(), "v@0", *options, "--store", store).split())
    (condition,) = set(re.findall(r"--where '([^']*)'", message))
    (row,) = [row for row in json.loads(answer("fit", "v@0", "--where", condition, "--store", store, "--json")[0])][:1]
    assert row["prefactor"] == pytest.approx(0.5) and "task_version" in message


def test_values_of_a_fixed_parameter_are_not_mixed(tmp_path: Path) -> None:
    """A default that changed twice: each value is fitted alone, or as a group of its own."""
    store = str(tmp_path / "store")
    (tmp_path / "v.yaml").write_text(SWEEP)
    for width, scale in ((1, 0.5), (3, 5.0), (7, 50.0)):
        (tmp_path / "t.py").write_text(TASK.format(version=1, width=width, scale=scale))
        printed("run", str(tmp_path / "v.yaml"), "--workers", "1", "--store", store)
    message = " ".join(refused("fit", "v@0", "--store", store).split())
    assert "width = 1 or width = 3" in message and "--where 'width = " in message
    rows = json.loads(answer("fit", "v@0", "--by", "width", "--metric", "nc1", "--store", store, "--json")[0])
    assert {row["by"]: round(row["prefactor"], 6) for row in rows if row["model"] == "power"} == {
        '{"width": 1}': 0.5,
        '{"width": 3}': 5.0,
    }


def test_fit_of_earlier_results_is_separate(store: str) -> None:
    query = ["select trial_id from trials where task_version = 2", "--sweep", "v@0", "--json", "--store", store]
    ids = [row["trial_id"] for row in json.loads(answer("query", *query)[0])]
    printed("trials", "rm", *ids, "--yes", "--store", store)
    before = printed("query", "select sweep, prefactor from fits", "--json", "--store", store)
    assert prefactor(store, "v@0") == pytest.approx(0.5)
    assert printed("query", "select sweep, prefactor from fits", "--json", "--store", store) == before


def test_unknown_launch_number_names_the_recorded_ones(store: str) -> None:
    message = refused("fit", "v@77", "--store", store)
    assert "no launch 77 of sweep 'v' is recorded" in message and "Recorded: v@" in message
