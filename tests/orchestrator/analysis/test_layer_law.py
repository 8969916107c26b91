"""Fits over layers and collapses: the atlas's store, exclusions, the fits table, commands, the report."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from depthrate.orchestrator.analysis.fit_requests import fit_requests
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.sheet.markup import plain
from depthrate.orchestrator.sheet.value_sheets import layer_sheets
from depthrate.storage.files.store import Store
from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.spec import FitRequest, figure_request, fit_request
from tests.orchestrator.analysis.test_aggregate import stored
from tests.support.here import answer, printed, refused

ATLAS = Path(__file__).parents[3] / "docs" / "atlas" / "store"
PAIRS = "data_seed = embedding_seed"


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A copy of the atlas's store: the commands may save fits."""
    return Store(str(shutil.copytree(ATLAS, tmp_path_factory.mktemp("atlas") / "store")))


def laws_of_optimum(atlas: Store, metric: str) -> dict[int | None, FittedGroup]:
    checked, _ = find_sweep("optimum", atlas)
    request = FitRequest(metric, x="layer", over="data_seed", where=PAIRS)
    laws = fit_requests(results_of(atlas, checked.task), [request], checked.trials, checked.task).layer_laws
    return {law.last_layer: law for law in laws}


@pytest.mark.parametrize(
    ("metric", "r", "rho", "totals"),
    [
        ("nc1_pinv", (-0.9980, -0.9976, -0.9974), (0.7673, 0.8276, 0.8772), (3.4, 4.0, 4.5)),
        ("nc1", (-0.9905, -0.9896, -0.9888), (0.8519, 0.8896, 0.9197), (2.1, 2.5, 2.8)),
    ],
)
def test_the_optimum_obeys_the_law(atlas, metric, r, rho, totals):
    laws = laws_of_optimum(atlas, metric)
    fits = [laws[depth].law for depth in (13, 21, 34)]
    assert [round(fit.r, 4) for fit in fits] == list(r) and [round(fit.rho, 4) for fit in fits] == list(rho)
    assert [round(depth * fit.fit.exponent, 1) for depth, fit in zip((13, 21, 34), fits, strict=True)] == list(totals)
    assert {fit.fit.n_seeds for fit in fits} == {5} and laws[2].note == "2 layers, at least 3 needed"


def test_numbers_agree_with_the_rows(atlas):
    rows = results_of(atlas).for_sweep("optimum").sql(
        "select depth, layer, avg(ln(nc1_pinv)) as y from metrics m semi join results using (trial_id, step, split) "
        f"join trials using (trial_id) where layer > 0 and {PAIRS} group by all order by all"
    )  # fmt: skip
    frame, laws = rows.df(), laws_of_optimum(atlas, "nc1_pinv")
    for depth, part in frame[frame["depth"] > 2].groupby("depth"):
        slope, intercept = np.polyfit(part["layer"], part["y"], 1)
        assert laws[depth].law.rho == pytest.approx(math.exp(slope))
        assert laws[depth].law.fit.prefactor == pytest.approx(math.exp(intercept))


def profiles(params: Any) -> list[dict[str, Any]]:
    depth, seed = params["depth"], params["seed"]
    falls = math.exp(-((1 + 0.05 * seed) * depth**-0.6))
    rows = [{"layer": layer, "nc1": 3 * falls**layer if layer else 9.0} for layer in range(depth + 1)]
    if params.get("bad") == "zero":
        rows[2]["nc1"] = 0.0
    if params.get("bad") == "gap":
        rows[2]["nc1"] = None
    return rows


GRID = [{"depth": d, "seed": s, "bad": ""} for d in (3, 5, 8, 13) for s in (0, 1, 2)]


def test_trials_are_fitted_by_depth_and_excluded_with_a_reason(folder: Store) -> None:
    bad = [{"depth": 5, "seed": 3, "bad": "zero"}, {"depth": 5, "seed": 4, "bad": "gap"}]
    trials = stored(folder, [*GRID, *bad], profiles)
    requests = [FitRequest("nc1", x="layer"), FitRequest("nc1", x="layer", x_min=2)]
    laws = fit_requests(results_of(folder), requests, trials).layer_laws
    first, cut = laws[:4], laws[4:]
    assert [law.last_layer for law in first] == [law.last_layer for law in cut] == [3, 5, 8, 13]
    assert first[1].excluded == {"not positive at every layer": 1, "not measured at every layer": 1}
    for law in [*first, *cut[1:]]:
        assert law.law is not None and law.last_layer is not None
        assert law.law.rho == pytest.approx(math.exp(-1.05 * law.last_layer**-0.6)) and len(law.rows) == 3
        assert law.law.fit.prefactor == pytest.approx(3), "layer 0 is the input, not a layer"
    assert cut[0].note == "2 layers, at least 3 needed", "x_min is the first layer"
    whole, later = layer_sheets(laws)
    assert list(map(plain, whole.remarks)) == ["nc1, 3 seeds: -log rho = 1.05 L^-a, a = 0.600 [0.600, 0.600]"]
    assert [row["depth"] for row in whole.rows] == [3, 5, 8, 13]
    assert later.rows[0]["rho"] == "no fit: 2 layers, at least 3 needed"
    assert not fit_requests(results_of(folder), requests, trials).curves
    assert not fit_requests(results_of(folder), requests, trials).surfaces
    (row,) = first[1].table_rows("s")
    assert (row["model"], row["x"], row["n_trials"], row["n_seeds"]) == ("equi_separation", "layer", 5, 3)
    assert json.loads(row["by"]) == {"last_layer": 5} and row["exponent"] == pytest.approx(1.05 * 5**-0.6)


def test_trials_without_layers_have_a_note(folder: Store) -> None:
    trials = stored(folder, GRID[:3], lambda params: [{"layer": params["depth"], "nc1": 1.0}])
    one, unknown = fit_requests(
        results_of(folder), [FitRequest(m, x="layer") for m in ("nc1", "nothing")], trials
    ).layer_laws
    assert one.note == "1 layer, at least 3 needed" and one.table_rows("s") == []
    assert unknown.last_layer is None and unknown.note == "nothing to fit: 3 not measured"


def test_groups_and_trials_without_a_seed(folder: Store) -> None:
    grid = [{"depth": 5, "seed": s, "bad": "", "seed_scope": "trial"} for s in range(4)]
    trials = stored(folder, grid, profiles)
    (law,) = fit_requests(results_of(folder), [FitRequest("nc1", x="layer")], trials).layer_laws
    assert law.law is not None and law.law.fit.n_seeds == 4, "each trial is a unit"
    laws = fit_requests(results_of(folder), [FitRequest("nc1", x="layer", by=("seed",))], trials).layer_laws
    assert [law.by for law in laws] == [{"seed": s} for s in range(4)]
    assert all(law.law is not None and law.law.rho_interval is None for law in laws)


def test_fractions_name_the_nearest_layer(folder: Store) -> None:
    grid = [{"depth": d, "seed": s} for d in (3, 5, 8, 13) for s in (0, 1, 2)]
    trials = stored(folder, grid, lambda p: [{"layer": k, "nc1": 1.0 + k} for k in range(p["depth"] + 1)])
    requests = [FitRequest("nc1", layer=layer) for layer in (0.5, 0.1, -2)]
    half, tenth, before = fit_requests(results_of(folder), requests, trials).curves
    assert {row["x"]: row["y"] - 1 for row in half.rows} == {3: 2, 5: 3, 8: 4, 13: 7}
    assert {row["x"]: row["y"] - 1 for row in tenth.rows} == {3: 0, 5: 1, 8: 1, 13: 1}
    assert {row["x"]: row["y"] - 1 for row in before.rows} == {3: 2, 5: 4, 8: 7, 13: 12}
    assert half.label() == "layer 0.5 L" and before.label() == "layer -2"
    row = half.table_rows("s")[0]
    assert (row["layer"], row["layer_fraction"]) == (None, 0.5)
    assert before.table_rows("s")[0]["layer"] == -2


@pytest.mark.parametrize("layer", [1.5, 1.0, 0.0, -0.5])
def test_a_fraction_is_between_0_and_1(layer):
    with pytest.raises(SweepError, match="fraction of the depth between 0 and 1"):
        fit_request({"metric": "nc1", "layer": layer})


def test_requests_that_do_not_apply(atlas):
    options = ("fit", "optimum", "--store", atlas.url, "--metric", "nc1", "--x", "layer")
    for more in (("--layer", "1"), ("--target", "0.1"), ("--model", "power_floor")):
        assert "layer, target and model do not apply over layers" in refused(*options, *more)
    text = refused("fit", "optimum", "--store", atlas.url, "--metric", "objective_gap", "--x", "layer")
    assert "Left out: 147 not measured at every layer" in text
    for key in ("layer", "x", "lines"):
        with pytest.raises(SweepError, match="figures, kind collapse"):
            figure_request({"kind": "collapse", "metric": "nc1", key: 1})


@pytest.mark.slow
def test_commands_and_report_show_the_law_and_the_collapse(atlas, tmp_path):
    asked = {"metric": "nc1_pinv", "x": "layer", "over": "data_seed", "where": PAIRS}
    figures = [{"kind": "collapse", "metric": "nc1_pinv", "over": "data_seed", "where": PAIRS}]
    sweep = tmp_path / "layers.yaml"
    content = {
        "base": "optimum",
        "name": "optimum",
        "fit": [asked, {"metric": "nc1", "layer": 0.5}],
        "figures": figures,
    }
    sweep.write_text(yaml.safe_dump(content))
    text = printed("fit", sweep, "--store", atlas.url)
    assert "0.8276 [" in text and "-0.9976" in text and "L^-a, a = 0.638 [0.606, 0.671]" in text
    rows = answer("query", "--store", atlas.url, "select * from fits where sweep = 'optimum' and x = 'layer'")
    assert [json.loads(row["by"])["last_layer"] for row in rows] == [3, 5, 8, 13, 21, 34]
    assert math.exp(-rows[4]["exponent"]) == pytest.approx(0.8276, abs=1e-4)
    (half,) = answer(
        "query", "--store", atlas.url, "select distinct layer_fraction as f from fits where x = 'depth' and f > 0"
    )
    assert half["f"] == 0.5
    page, folder = tmp_path / "report.html", tmp_path / "figures"
    printed("report", sweep, "--store", atlas.url, "-o", page, "--figures", folder)
    html = page.read_text()
    assert "Law over layers" in html and "−0.9976" in html and "L<sup>−a</sup>, a = 0.638" in html
    assert "b = 0.63 [0.62, 0.64], 95 % over 5 replicates, mean deviation of ln y 0.037 (unscaled 1.68)" in html
    names = [path.name for path in folder.glob("*.csv")]
    assert any("collapse-of-nc1-pseudo-inverse" in name for name in names)
    assert any("over-the-l" in name for name in names)
