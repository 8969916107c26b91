"""Every sweep that comes with depthrate is found by its name and expands into trials that can run."""

import json

import duckdb
import pyarrow as pa
import pytest

from depthrate.orchestrator.analysis.replicates import interval_text
from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import SHIPPED, find_sweep_file, load_sweep
from tests.support.here import printed

NAMES = sorted(file.relative_to(SHIPPED).with_suffix("").as_posix() for file in SHIPPED.rglob("*.yaml"))
PAPERS = [name for name in NAMES if name.startswith("papers/")]
RATES = [name for name in PAPERS if name.count("/") == 1]
"""Of P1, whose rows share their settings; a folder below papers is another paper's."""
QUICK = (
    "papers/lowrank/figure1",
    "papers/lowrank/figure2-top",
    *(f"papers/lowrank/{layers}-layers" for layers in ("two", "three", "more")),
    "papers/lowrank/theorem5",
    "papers/lowrank/theorem6",
    "papers/pfc/figure4b-descent",
    "papers/pfc/theorem4",
    *(f"papers/words/words-theorem{number}" for number in (1, 2, 3)),
)
"""Minutes on two cores at the paper's own settings."""
REDUCED = ("-small", "-medium", "-three-seeds", "-rn1-last-layers")
"""Ends of the names of those that are not at a paper's own size. The last layers are those of the run with three seeds."""


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_sweep_expands(name):
    sweep = load_sweep(name)
    assert sweep.name in (find_sweep_file(name).stem, "-".join(name.split("/")[1:]))
    trials = expand(sweep)
    assert len({trial.trial_id for trial in trials}) == len(trials)
    assert sweep.fit or sweep.figures or not sweep.grids, "a sweep over something asks how it depends on that"
    assert len(trials) > 2 or sweep.search or sweep.figures, "a search proposes its trials as it goes"


@pytest.mark.parametrize("name", [name for name in PAPERS if not name.endswith(REDUCED) and name not in QUICK])
def test_papers_have_small_variants(name):
    assert f"{name}-small" in PAPERS


@pytest.mark.parametrize("name", [name for name in RATES if not name.endswith(REDUCED)])
def test_a_row_of_the_paper_has_its_settings(name):
    trials = expand(load_sweep(name))
    assert sorted({t.params["depth"] for t in trials}) == [2, 3, 5, 8, 13, 21, 34]
    assert {t.params["seed"] for t in trials} == set(range(5))
    for params in (t.params for t in trials):
        assert (params["width"], params["epochs"]) == (64, 5000)
        assert params["loss"] == ("mse" if name.endswith("mse") else "ce")
        assert params["lr"] == (0.001 if params["dataset"] == "imdb" else 0.005)
        scaled = 0.005 / params["depth"]
        expected = {"scaled": scaled, "theorem": scaled, "constant": 0.0025}.get(name.rpartition("-")[2])
        if expected is None:
            expected = 0.005 / params["depth"] if params["arch"] == "t22" else 0.005
        assert params["weight_decay"] == pytest.approx(expected)


def test_literal_scaling_includes_the_last_layer():
    for name, last in (("papers/mnist-rn2-scaled", {None}), ("papers/mnist-rn2-theorem", {0.005})):
        assert {trial.params["weight_decay_last"] for trial in expand(load_sweep(name))} == last


def test_only_transformers_exclude_unconverged_trials():
    for name in RATES:
        sweep = load_sweep(name)
        dropped = {request.unconverged for request in sweep.fit} == {"drop"}
        assert dropped == (sweep.params["arch"].startswith("t") and not name.endswith(REDUCED)), name


@pytest.mark.parametrize("name", ["quickstart", *(name for name in PAPERS if "-rn" in name)])
def test_residual_networks_fit_blocks_too(name):
    assert {request.x for request in load_sweep(name).fit} == {"depth", "depth - 1"}


@pytest.mark.slow
def test_the_quickstart_trains_at_every_depth(tmp_path, monkeypatch):
    """Its rate is too high for deep networks on inputs with one mean and deviation of all pixels."""
    monkeypatch.chdir(tmp_path)
    printed("run", "quickstart", "--set", "depth=34", "--set", "steps=400", "--set", "name=deep", "--workers", "1")
    rows = json.loads(printed("query", "select judgement, objective from results", "--format", "json"))
    assert len(rows) == 3 and all(row["judgement"] in ("ok", "unconverged") and row["objective"] < 0.5 for row in rows)


def passing(where, trials):
    """Return the trials that pass the condition of a fit over their parameters."""
    rows = pa.Table.from_pylist(
        [{name: value for name, value in params.items() if is_scalar(value)} for params in trials]
    )
    connection = duckdb.connect()
    connection.register("rows", rows.append_column("trial", pa.array(range(len(trials)))))
    chosen = connection.execute(f"select trial from rows where {where or 'true'} order by trial").fetchall()
    return [trials[index] for (index,) in chosen]


def is_scalar(value):
    return isinstance(value, bool | int | float | str | None)


@pytest.mark.parametrize("name", NAMES)
def test_shipped_fits_average_no_parameter(name):
    """Over draws it may: of the data, where the sweep has several."""
    sweep = load_sweep(name)
    trials = [trial.params for trial in expand(sweep)]
    for request in sweep.fit:
        groups = {}
        for params in passing(request.where, trials):
            by = [*request.by, *(["depth"] if request.is_over_layers else [])]  # a law over layers is of one depth
            groups.setdefault(repr([params[name] for name in by]), []).append(params)
        texts = {interval_text(request, group, ["data_seed"]) for group in groups.values()}
        assert all("used" not in text or "of data_seed used" in text for text in texts), (request, texts)
