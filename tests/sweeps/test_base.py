"""A sweep file that rests on another holds what that holds, but for what it says itself."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from depthrate.orchestrator.cli.app import app
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import load_sweep, parse_yaml, sweep_of_spec

BASE = """
name: wd
task: collapse
params: {arch: rn1, steps: 9}
grid:
  depth: [2, 3]
  weight_decay: [0.001, 0.01]
derive: {weight_decay_last: weight_decay / 2}
seeds: 2
fit: [{metric: nc1}]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("wd.yaml").write_text(BASE)
    return tmp_path


def written(text: str, name: str = "variant.yaml") -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text)
    return name


def test_what_differs_is_said_and_the_rest_holds() -> None:
    spec = load_sweep(written("name: wide\nbase: wd.yaml\nparams: {width: 128, weight_decay: 0.5}\nfit: null\n")).spec()
    expected = load_sweep("wd.yaml").spec() | {"name": "wide", "params": {"arch": "rn1", "steps": 9}}
    expected["params"] |= {"width": 128, "weight_decay": 0.5}
    expected["grid"] = {"depth": [2, 3]}
    del expected["fit"]
    assert spec == expected and len(expand(load_sweep("variant.yaml"))) == 4


def test_fixed_becomes_axis_and_derived_fixed() -> None:
    text = "name: v\nbase: wd.yaml\ngrid: {steps: [3, 4]}\nparams: {weight_decay_last: 0.1}\nseeds: 1\n"
    spec = load_sweep(written(text)).spec()
    assert spec["params"] == {"arch": "rn1", "weight_decay_last": 0.1} and not spec.get("derive") and spec["seeds"] == 1
    assert spec["grid"] == {"depth": [2, 3], "weight_decay": [0.001, 0.01], "steps": [3, 4]}


def test_bases_nest_and_resolve_paths(folder: Path) -> None:
    written("name: far\ntask: ./law.py:law\ngrid: {depth: [2]}\n", "below/far.yaml")
    written("name: mid\nbase: far.yaml\nseeds: 3\n", "below/mid.yaml")
    spec = load_sweep(written("name: near\nbase: below/mid.yaml\ngrid: {depth: [5]}\n")).spec()
    assert spec["task"] == f"{folder / 'below' / 'law.py'}:law" and (spec["seeds"], spec["grid"]) == (3, {"depth": [5]})
    shipped = load_sweep(written("name: mine\nbase: quickstart\nseeds: 1\n")).spec()
    assert shipped == load_sweep("quickstart").spec() | {"name": "mine", "seeds": 1}
    overridden = load_sweep("variant.yaml", {"depth": [7]}).spec()
    assert overridden["grid"]["depth"] == [7] and overridden["name"].startswith("mine.")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base: wd.yaml\n", "no name.*give it a name"),
        ("name: v\nbase: variant.yaml\n", "depends on this file itself"),
        ("name: v\nbase: nowhere.yaml\n", "'nowhere.yaml' does not exist"),
        ("name: v\nbase: [wd.yaml]\n", "base is a list"),
        ("name: v\nbase: broken.yaml\n", "base .*broken.yaml: .*gird"),
    ],
)
def test_what_cannot_be_is_refused(text: str, words: str) -> None:
    written("name: b\ntask: collapse\ngird: {depth: [2]}\n", "broken.yaml")
    with pytest.raises(SweepError, match=words):
        load_sweep(written(text))


def test_stored_spec_reads_no_file() -> None:
    with pytest.raises(SweepError, match="base works in sweep files only"):
        sweep_of_spec({"name": "v", "task": "collapse", "base": "/etc/passwd"})


def test_documented_variant_expands() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "write-sweeps.md").read_text()
    whole, _, variant = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    written(whole, "wd.yaml")
    wide = load_sweep(written(variant, "wide.yaml"))
    trials = expand(wide)
    assert len(trials) == 25 and {trial.params["weight_decay"] for trial in trials} == {0.001} and wide.fit == ()
    assert {trial.params["width"] for trial in trials} == {128}
    assert {trial.params["steps"] for trial in trials} == {8000}


def test_show_prints_what_it_expands_to() -> None:
    written("name: wide\nbase: wd.yaml\nparams: {width: 128}\n")
    shown = CliRunner().invoke(app, ["show", "variant.yaml", "--set", "seeds=1"], catch_exceptions=False).stdout
    assert shown.endswith("# 4 trials, varying in depth, weight_decay, weight_decay_last\n")
    again = sweep_of_spec(parse_yaml(shown))
    assert again == load_sweep("variant.yaml", {"seeds": 1}) and "base" not in again.spec()
