"""The atlas: each figure has a sweep, a verdict and its evidence, and its pages come from the store beside them."""

import dataclasses
import importlib.util
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.api.fit import fit_sweep
from depthrate.orchestrator.cli.app import app
from depthrate.storage.files.store import existing_store
from depthrate.sweeps.atlas import Check, Verdict, atlas_figures
from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import find_sweep_file, load_sweep
from depthrate.tasks.citations import PAPERS

ROOT = Path(__file__).parents[1]
ATLAS = ROOT / "docs" / "atlas"
FIGURES = atlas_figures()
RUN = [figure for figure in FIGURES if figure.run]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """docs/atlas.py over a copy of its store: fits are saved in the store they are made from."""
    spec = importlib.util.spec_from_file_location("atlas_pages", ROOT / "docs" / "atlas.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    copy = tmp_path_factory.mktemp("atlas") / "atlas-store"
    shutil.copytree(module.STORE, copy)
    module.STORE = copy  # type: ignore[attr-defined]
    return module


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.key)
def test_a_figure_has_a_verdict_and_says_why(figure):
    assert (
        figure.paper in PAPERS
        and figure.key.startswith(f"{figure.paper.lower()}-")
        and figure.verdict in get_args(Verdict)
    )
    assert len(figure.claim) > 20 and len(figure.why) > 20
    assert bool(figure.run) == (figure.verdict != "not run") == bool(figure.pictures)
    assert not figure.run or figure.run == figure.sweep or figure.size, "a smaller run names its size"
    assert bool(figure.checks) == bool(figure.run)
    for name in filter(None, (figure.sweep, figure.run)):
        assert load_sweep(name).name


def test_no_figure_stands_twice():
    for names in ([figure.key for figure in FIGURES], [(figure.run, figure.figure) for figure in RUN]):
        assert len(set(names)) == len(names)


def test_store_holds_every_trial():
    states = {row["sweep"]: row for row in json.loads(call("status", "--store", str(ATLAS / "store"), "--json"))}
    for figure in RUN:
        sweep = load_sweep(figure.run)
        state = states[sweep.name]
        assert state["ok"] + state["diverged"] == state["num_trials"] == len(expand(sweep)), figure.key


@pytest.mark.slow
def test_the_store_is_sound_and_small():
    assert "all as committed" in call("verify", "--store", str(ATLAS / "store"))
    for paper in PAPERS:
        names = {load_sweep(figure.run).name for figure in RUN if figure.paper == paper}
        files = [file for name in names for file in (ATLAS / "store").rglob(f"sweep={name}/*")]
        assert 0 < sum(file.stat().st_size for file in files) < 20e6, paper


@pytest.mark.parametrize(
    ("name", "accuracy", "loss", "words", "linear"),
    [
        ("words-figure3", 1.0, 0.5131, (35.05, 34.46, 0.1841), (35.07, 34.48, 0.1842)),
        ("words-figure4a", 0.999, 0.3809, (24.24, 24.20), (24.34, 24.30)),
        ("words-figure4b", 0.437, 0.2003, None, None),  # no singular value is small, and the first three are printed
        ("words-figure4c", 1.0, 0.01675, (238.7, 237.5, 5.228), (8.387, 8.377, 0.1145)),
    ],
)
def test_feature_collapse_is_as_its_authors_print(name, accuracy, loss, words, linear):
    """Test accuracy, loss over the last epoch, singular values of 1,200 words and 15,000 linear vectors: their notebooks."""
    asked = "select avg(test_accuracy), avg(epoch_loss), avg(norm_rms), avg(linear_norm_rms) from results"
    (row,) = json.loads(call("query", asked, "--sweep", name, "--store", str(ATLAS / "store"), "--format", "json"))
    measured_accuracy, measured_loss, *norms = row.values()
    assert measured_accuracy == pytest.approx(accuracy, abs=0.03) and measured_loss == pytest.approx(loss, rel=0.015)
    for norm, values, rows in ((norms[0], words, 1200), (norms[1], linear, 15_000)):
        assert values is None or norm == pytest.approx(math.sqrt(sum(item**2 for item in values) / rows), rel=0.005)


def test_lowest_objectives_are_those_of_lbfgs():
    """Three problems of Theorem 6 by L-BFGS from eight starts, with n samples and with one."""
    asked = "select min(objective) from results group by num_classes, depth, samples_per_class order by all"
    rows = json.loads(
        call("query", asked, "--sweep", "lowrank-theorem6", "--store", str(ATLAS / "store"), "--format", "json")
    )
    values = [value for row in rows for value in row.values()]
    expected = [value for value in (0.0595430391, 0.0791833242, 0.088162205931) for _ in range(2)]
    assert values == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("run", dict.fromkeys(figure.run for figure in RUN if load_sweep(figure.run).fit))
def test_fits_are_those_of_the_store(pages, run):
    """Golden numbers: another definition or minimiser changes the store's table of fits, and is seen in its difference."""
    copy, names = (
        existing_store(str(pages.STORE)),
        ("metric", "x", "variables", "by", "filter", "layer", "model", "x_min"),
    )
    checked, view = find_sweep(str(find_sweep_file(run)), copy)
    found = fit_sweep(checked, copy, view).rows
    asked = f"select * from fits where sweep = '{checked.sweep.name}'"
    stored = json.loads(call("query", asked, "--store", str(ATLAS / "store"), "--format", "json"))
    golden = {tuple(map(row.get, names)): row for row in stored}
    assert len(golden) == len(found) > 0
    for row in found:
        of_store = golden[tuple(map(row.get, names))]
        # a form that is minimised ends where its squares are equal to rounding: its parameters have fewer digits than these
        is_minimised = row["model"] in ("power_floor", "power_correction")
        is_determined = (row["stderr"] or math.inf) < abs(row["exponent"]) / 2
        for name in row.keys() & of_store.keys():
            value = row[name]
            if not isinstance(value, float) or value != value:
                assert is_minimised or of_store[name] == value, (row["metric"], row["by"], row["model"], name)
            elif not is_minimised or is_determined or name in ("r2", "aicc", "p_lack_of_fit"):
                exact = {"rel": 1e-9, "abs": 1e-12} if not is_minimised else {"rel": 1e-3, "abs": 1e-6}
                assert of_store[name] == pytest.approx(value, **exact), (row["metric"], row["by"], row["model"], name)


@pytest.mark.slow
def test_verdicts_follow_from_numbers(pages):
    assert {f.key: pages.verdict(f) for f in FIGURES} == {f.key: f.verdict for f in FIGURES}


@pytest.mark.parametrize(
    ("outcomes", "size", "verdict"),
    [
        (["holds", "holds"], "", "agrees"),
        (["holds", "holds"], "half the images", "agrees in trend"),
        (["holds", "fails"], "", "in part"),
        (["holds", "open"], "", "agrees"),
        (["holds", "open"], "half the images", "agrees in trend"),
        (["holds", "fails", "open"], "", "in part"),
        (["fails", "open"], "", "disagrees"),
        (["open"], "", "undecided"),
    ],
)
def test_outcomes_decide_the_verdict(pages, outcomes, size, verdict):
    figure = dataclasses.replace(RUN[0], size=size, theorem=False)
    assert pages.judge(figure, outcomes) == verdict
    assert pages.judge(figure, outcomes, "fails") == "not comparable"
    assert pages.judge(dataclasses.replace(figure, theorem=True), outcomes) == "theorem, no figure"
    assert pages.judge(dataclasses.replace(figure, run=""), []) == "not run"


@pytest.mark.parametrize(
    ("expect", "interval", "change", "could_move", "outcome"),
    [
        ("falls", (0.4, 0.6), (-1.2, -0.8), 0.1, "holds"),
        ("falls", (0.4, 0.6), (-1.2, 0.1), 0.1, "open"),
        ("falls", (-0.6, -0.4), (0.8, 1.2), None, "fails"),
        ("falls", (0.4, 0.6), None, None, "open"),
        ("falls", (0.4, 0.6), (-1.2, -0.8), 0.6, "open"),
        ("does not fall", (-0.6, 0.05), None, None, "holds"),
        ("does not fall", (-0.14, 0.25), None, None, "open"),
        ("does not fall", (0.4, 0.6), None, None, "fails"),
        ("flat", (-0.04, 0.06), None, None, "holds"),
        ("flat", (-0.1, 0.7), None, None, "open"),
        ("flat", (0.2, 0.4), None, None, "fails"),
        ("flat", (None, None), None, None, "open"),
    ],
)
def test_intervals_decide_a_trend(pages, expect, interval, change, could_move, outcome):
    whole = None if change is None else (sum(change) / 2, *change)
    evidence = pages.SlopeEvidence(0.5, interval, whole, could_move)
    assert pages.outcome_of_slope(Check("NC1", slope="nc1", expect=expect), evidence) == outcome


def test_a_change_over_x_needs_no_model(pages):
    x, seeds = [2.0, 4.0, 8.0] * 5, [seed for seed in range(5) for _ in range(3)]
    y = np.random.default_rng(0).lognormal(size=15)
    changes = np.log(y[2::3] / y[::3])
    interval = stats.t.interval(0.95, 4, loc=changes.mean(), scale=stats.sem(changes))
    assert pages.change_over_x(x, y, seeds) == pytest.approx((changes.mean(), *interval))
    assert pages.change_over_x(x[:6], y[:6], seeds[:6]) is None, "two seeds"


def test_own_limits_are_marked_with_their_distance(pages):
    check = Check("close", value="select 1", low=0.97, high=1.03, own_limit=True)
    assert pages.requirement(check) == "0.97 to 1.03 (our limit)"
    assert pages.distance(check, 1.0) == "+2.9% from our limit" and pages.distance(check, 1.087).startswith("-5.5%")
    assert pages.distance(Check("printed", value="select 1", high=1), 0.5) == ""


@pytest.mark.slow
def test_the_pages_are_those_of_the_store(pages):
    """`python docs/atlas.py` brings them up to date."""
    old = [name for name, content in pages.pages() if (ATLAS / name).read_text() != content]
    assert not old, f"python docs/atlas.py; the store gives other pages: {', '.join(old)}"


def numbers(path: Path) -> list[float]:
    """The coordinates of all that a picture draws."""
    paths = re.findall(r' d="([^"]*)"', path.read_text())
    return [float(number) for line in paths for number in re.findall(r"-?\d+\.?\d*", line)]


@pytest.mark.slow
def test_figures_need_no_torch(pages, tmp_path):
    script = "import sys; sys.modules['torch'] = None; from depthrate.orchestrator.cli.app import main; main()"
    figure = ["report", "lowrank-figure2-top", "--store", str(pages.STORE), "--figures", str(tmp_path)]
    command = [sys.executable, "-c", script, *figure, "-o", str(tmp_path / "page.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = {pages._slug(path): path for path in sorted(tmp_path.glob("*.svg"), reverse=True)}
    drawn = [name for name in names if (ATLAS / "images" / f"p2-figure2-top--{name}.svg").exists()]
    assert drawn
    for name in drawn:
        expected = numbers(ATLAS / "images" / f"p2-figure2-top--{name}.svg")
        assert numbers(names[name]) == pytest.approx(expected, rel=1e-3, abs=0.01), name


def test_the_command_lists_them_and_tells_of_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = call("atlas")
    assert all(figure.key in listed and figure.figure in listed for figure in FIGURES)
    assert {row["key"] for row in json.loads(call("atlas", "--json"))} == {figure.key for figure in FIGURES}
    one = call("atlas", "p2-figure2-top")
    assert "papers/lowrank/figure2-top" in one and "depthrate run atlas/p2-figure2-top" in one
    assert "as in the paper" in one and "as in the paper" not in call("atlas", "p3-theorem4"), "a theorem has no size"
    refused = CliRunner().invoke(app, ["atlas", "p2-figure2-tpo"])
    assert refused.exit_code == 2 and "did you mean 'p2-figure2-top'" in refused.stderr


def test_sweep_name_in_the_atlas():
    assert find_sweep_file("atlas/p1-rn1-mnist") == find_sweep_file("papers/mnist-rn1-three-seeds")
    assert find_sweep_file("atlas/p2-figure9") == find_sweep_file("papers/lowrank/figure9")
    with pytest.raises(ValueError, match="atlas/p3-figure1"):
        find_sweep_file("atlas/p3-figure1")
