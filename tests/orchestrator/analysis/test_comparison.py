"""`depthrate.compare` returns the results of `depthrate compare`. `run --quiet` prints nothing without problems."""

import contextlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import depthrate
from depthrate.orchestrator.cli.app import app
from tests.support.here import refused

pytestmark = pytest.mark.slow
SWEEP = """
name: {name}
task: ./law.py:law
params: {{exponent: {exponent}}}
grid: {{depth: [2, 3, 5, 8]}}
seeds: 3
fit: [{{metric: nc1}}]
"""
LAW = """
import depthrate

@depthrate.task(version=1)
def law(*, depth: int, exponent: float, seed: int = 0):
    return {"metrics": [{"nc1": depth ** -exponent * (1 + 0.01 * ((seed * 7 + depth) % 3))}]}
"""


def invoke(*arguments: str, code: int = 0):
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two sweeps that were run; tests add others beside them."""
    folder = tmp_path_factory.mktemp("compared")
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        Path("law.py").write_text(LAW)
        for name, exponent in (("half", 0.5), ("one", 1.0)):
            Path(f"{name}.yaml").write_text(SWEEP.format(name=name, exponent=exponent))
            quiet = invoke("run", f"{name}.yaml", "--workers", "1", "--quiet")
            assert quiet.stdout == "" and quiet.stderr == ""
    return folder


@pytest.fixture(autouse=True)
def ran(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))


def test_python_says_what_the_command_says() -> None:
    printed = json.loads(invoke("compare", "half", "one", "--json").stdout)
    found = depthrate.compare("half", depthrate.load("one.yaml"))
    (fit,), row = printed["fits"], found.df().iloc[0]
    assert row["metric"] == fit["metric"] == "nc1"
    assert 0.45 < row["first_exponent"] < 0.55 < 0.9 < row["second_exponent"]
    assert (row["first_exponent"], row["second_ci_low"]) == (fit["first"]["exponent"], fit["second"]["ci_low"])
    assert row["p_equal"] == fit["p_equal"] < 1e-3
    rows = found.parameters.frame.values.tolist()
    assert rows == [["exponent", [0.5], [1.0]]] == [["exponent", *printed["parameters"]["exponent"]]]
    assert "half (12 trials) and one (12 trials). 0 trials are in both" in repr(found)
    assert found._repr_html_().count("<table") == 2
    same = depthrate.compare("one", "one")
    assert list(same.parameters.frame.columns) == ["parameter", "one (first)", "one (second)"]
    assert "the same values" in repr(same) and "12 trials are in both" in repr(same)


def test_groups_against_a_single_curve() -> None:
    """Before this, there was nothing to compare where only `by` differed."""
    grouped = SWEEP.format(name="grouped", exponent=0.5).replace("metric: nc1", "metric: nc1, by: [exponent]")
    Path("grouped.yaml").write_text(grouped.replace("params: {exponent: 0.5}\ngrid: {", "grid: {exponent: [0.5, 1], "))
    invoke("run", "grouped.yaml", "--workers", "1", "--quiet")
    for sweeps, by in ((("grouped", "one"), 0), (("one", "grouped"), 1)):
        fits = json.loads(invoke("compare", *sweeps, "--json").stdout)["fits"]
        assert [fit["by"][by] for fit in fits] == [{"exponent": 0.5}, {"exponent": 1.0}]
        assert [fit["by"][1 - by] for fit in fits] == [{}, {}]
        assert fits[0]["p_equal"] < 1e-3 < fits[1]["p_equal"]
    assert "exponent = 0.5 / all" in invoke("compare", "grouped", "one").stdout
    assert len(depthrate.compare("grouped", "one").df()) == 2


def test_sweeps_without_a_common_fit() -> None:
    Path("other.yaml").write_text(SWEEP.format(name="other", exponent=1.0).replace("nc1", "nc1, x: depth - 1"))
    printed = invoke("compare", "half", "other.yaml").stdout
    for part in ("half fits nc1 over depth", "other fits nc1 over depth - 1", "under fit:"):
        assert part in " ".join(printed.split())
    found = depthrate.compare("half", "other.yaml")
    assert found.df().empty and "other fits nc1 over depth - 1" in repr(found.fits)


def test_quiet_says_what_fails() -> None:
    Path("bad.yaml").write_text(SWEEP.format(name="bad", exponent="[0.5]"))
    assert "exponent" in refused("run", "bad.yaml", "--quiet")


def test_a_notebook_takes_the_options_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    depthrate.load("one.yaml").run(rerun=True, stall_minutes=30.0, notify="true", quiet=True)
    assert capsys.readouterr().out == ""


def test_two_depths_have_no_exponent() -> None:
    half, one = (depthrate.load(f"{name}.yaml", depth=[2, 3], name=f"{name}-2") for name in ("half", "one"))
    for sweep in (half, one):
        fits = sweep.run(quiet=True, workers=1)
        assert fits.sentence.startswith(f"{sweep.name}: 0 curves fitted, 1 without a fit (2 values of depth, at least")
        assert fits.frame.empty
    found = depthrate.compare(half, one).df().iloc[0]
    assert all(found[name] is None for name in ("first_exponent", "second_exponent", "common_exponent", "p_equal"))
    assert repr(depthrate.load("one.yaml").fit()).startswith("one: 1 curve fitted\n")
